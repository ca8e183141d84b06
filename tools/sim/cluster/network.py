"""A `runtime.ports.Network` between simulated hosts, whose bytes are delayed, split, joined, blocked or lost.

Owns:    hosts, open ports, blocked routes, and every connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from zlib import crc32

from sim.cluster.connection import Host, Pipe, SimTransport
from sim.cluster.loop import SimClock, SimLoop, SimProcess
from sim.dice import Dice
from tandemmq.runtime.ports import Address, ProtocolFactory

OnBytes = Callable[[bytes], None]
Watcher = Callable[[SimProcess, SimProcess], tuple[OnBytes, OnBytes]]
"""Called for a new connection between a client's process and a server's; returns receivers for the bytes that
each of them writes.
"""

Way = tuple[str, str, int | None]
"""A route from a host to a host: connections to this port, or all."""

FIRST_EPHEMERAL_PORT = 40_000
SYN_RETRY_S = 0.5


class SimListener:
    """An open port."""

    def __init__(
        self, fabric: Fabric, process: SimProcess, address: Address, factory: ProtocolFactory
    ) -> None:
        self._fabric = fabric
        self.process = process
        self._address = address
        self.factory = factory

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        if self._fabric.listeners.get(self._address) is self:
            del self._fabric.listeners[self._address]


class WatchedPipe(Pipe):
    """A pipe that reports the bytes written to it."""

    def __init__(
        self, fabric: Fabric, source: SimTransport, target: SimTransport, port: int, on_bytes: OnBytes
    ) -> None:
        super().__init__(fabric, source, target, port)
        self._on_bytes = on_bytes

    def push(self, item: bytes | str) -> None:
        if isinstance(item, bytes):
            self._on_bytes(item)
        super().push(item)


class Fabric:
    """All hosts and the network between them. `observers` are called after a host's process has read
    bytes.
    """

    def __init__(self, loop: SimLoop, dice: Dice) -> None:
        self.loop = loop
        self.dice = dice
        self.context = SimProcess("network").context
        self.hosts: dict[str, Host] = {}
        self.listeners: dict[Address, SimListener] = {}
        self.ends: dict[SimTransport, None] = {}
        self.blocked: dict[Way, None] = {}
        self.latency_ms = (0.2, 2.0)
        self.cut_percent = 10
        self.aliases: dict[Address, Address] = {}
        """The addresses of brokers in the network of outside hosts -> those at which they listen."""
        self.hidden: dict[str, None] = {}
        """The hosts that outside hosts reach by aliases only."""
        self.on_wrong_address: Callable[[str], None] = lambda _text: None
        self.observers: list[Callable[[str], None]] = []
        self.watchers: dict[int, Watcher] = {}
        """The watchers, by the port that a connection dials."""
        self.served_bytes: Counter[tuple[Address, str]] = Counter()
        """The number of bytes sent from an open port to a host."""
        self.digest = 0
        self.delivery_count = 0
        self._pipes: dict[Pipe, None] = {}
        self._ports = itertools.count(FIRST_EPHEMERAL_PORT)

    def add_host(self, name: str, *, is_outside: bool = False) -> Host:
        host = Host(name, f"10.{int(is_outside)}.0.{len(self.hosts) + 1}", is_outside=is_outside)
        self.hosts[host.ip] = host
        return host

    # Randomness.

    def latency_s(self) -> float:
        low, high = self.latency_ms
        return (low + (high - low) * self.dice.below(1_000) / 1_000) / 1_000

    def cut_of(self, size: int) -> int:
        """Returns the number of arrived bytes that are delivered together."""
        if size < 2 or not self.dice.happens(self.cut_percent):
            return size
        return self.dice.between(1, min(size - 1, 20) if self.dice.happens(40) else size - 1)

    # Routes.

    def is_open(self, source_ip: str, target_ip: str, port: int) -> bool:
        """Returns True if bytes of a connection to `port` pass."""
        blocked = self.blocked
        return not blocked or (
            (source_ip, target_ip, None) not in blocked and (source_ip, target_ip, port) not in blocked
        )

    def block(self, source_ip: str, target_ip: str, port: int | None = None) -> None:
        """Blocks this direction for all connections, or for those to one port."""
        self.blocked[source_ip, target_ip, port] = None

    def unblock(self, source_ip: str, target_ip: str, port: int | None = None) -> None:
        """Unblocks this direction; waiting bytes move after a retransmission."""
        self.blocked.pop((source_ip, target_ip, port), None)
        self._move()

    def is_up(self, ip: str) -> bool:
        return ip in self.hosts and self.hosts[ip].is_up

    def translate(self, source: Host, address: Address) -> Address:
        """Returns the address at which a connection arrives. An address that the source cannot reach is a
        finding.
        """
        if source.is_outside and address[0] in self.hidden:
            self.on_wrong_address(f"{source.name} is outside and dials the registered address {address}")
            raise ConnectionRefusedError(f"no way to {address}")
        if not source.is_outside and self.hidden and address[0] not in self.hosts:
            self.on_wrong_address(f"{source.name} is inside and dials the advertised address {address}")
        return self.aliases.get(address, address)

    def power_up(self, host: Host) -> None:
        host.is_up = True
        self._move()

    def _move(self) -> None:
        for pipe in list(self._pipes):
            pipe.arm(self.dice.below(1_000) / 1_000)

    # Processes.

    def end_process(self, process: SimProcess, *, is_power_cut: bool) -> None:
        """Ends all sockets of the process."""
        for address in [a for a, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[address]
        for end in [end for end in self.ends if end.process is process]:
            end.vanish(is_power_cut=is_power_cut)

    def forget(self, end: SimTransport) -> None:
        """Removes an end at which nothing is received or sent any more; the connection is gone once both ends
        are removed.
        """
        self.ends.pop(end, None)
        for pipe in (end.out, end.inbound):
            if pipe is not None and pipe.is_over:
                self._pipes.pop(pipe, None)

    def connections_of(self, process: SimProcess) -> list[SimTransport]:
        return [end for end in self.ends if end.process is process]

    def break_connection(self, end: SimTransport) -> None:
        """Breaks a connection in the network: each end is notified that the other reset it."""
        assert end.out is not None
        for one in (end, end.out.target):
            if one.out is not None:
                one.out.clear()
            if not one.is_gone and one.protocol is not None:
                one.schedule(one.on_reset)

    # Tracing.

    def count_bytes(self, pipe: Pipe, size: int) -> None:
        self.delivery_count += 1
        text = f"{self.loop.time():.6f} {pipe.route} {size}"
        self.digest = crc32(text.encode(), self.digest)
        address = pipe.source.get_extra_info("sockname")
        if address[1] == pipe.port:
            self.served_bytes[address, pipe.target.host.ip] += size

    def after_delivery(self, host_name: str) -> None:
        for observer in self.observers:
            observer(host_name)

    # Connections.

    def listen(self, process: SimProcess, host: Host, port: int, factory: ProtocolFactory) -> SimListener:
        address = (host.ip, port or next(self._ports))
        if address in self.listeners:
            raise OSError(f"{address} is in use")
        listener = self.listeners[address] = SimListener(self, process, address, factory)
        return listener

    def join(self, process: SimProcess, host: Host, listener: SimListener, dialled: Address) -> SimTransport:
        """Creates both ends of a new connection; the accepting process is notified first."""
        local, remote = (host.ip, next(self._ports)), listener.address
        near = SimTransport(self, process, host, local, dialled)
        far = SimTransport(self, listener.process, self.hosts[remote[0]], remote, local)
        watcher = self.watchers.get(remote[1])
        if watcher is None:
            near.out, far.out = Pipe(self, near, far, remote[1]), Pipe(self, far, near, remote[1])
        else:
            on_near, on_far = watcher(near.process, far.process)
            near.out = WatchedPipe(self, near, far, remote[1], on_near)
            far.out = WatchedPipe(self, far, near, remote[1], on_far)
        far.inbound, near.inbound = near.out, far.out
        near.is_readable = False  # until its protocol exists
        self.ends[near] = self.ends[far] = None
        self._pipes[near.out] = self._pipes[far.out] = None
        far.schedule(_accept, far, listener.factory)
        return near


def _accept(end: SimTransport, factory: ProtocolFactory) -> None:
    end.begin(factory)


class HostNetwork:
    """The network as seen by one process on one host."""

    def __init__(self, fabric: Fabric, host: Host, process: SimProcess, clock: SimClock) -> None:
        self._fabric = fabric
        self._host = host
        self._process = process
        self._clock = clock

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> SimListener:
        if not self._process.is_alive:
            raise OSError("the process is gone")
        return self._fabric.listen(self._process, self._host, port, protocol_factory)

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport:
        if not self._process.is_alive:
            raise OSError("the process is gone")
        dialled = (host, port)
        host, port = self._fabric.translate(self._host, dialled)
        async with asyncio.timeout(timeout_s):
            await self._travel(self._host.ip, host, port)
            listener = self._fabric.listeners.get((host, port))
            if listener is None or not listener.process.is_alive:
                await self._travel(host, self._host.ip, port)
                raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
            near = self._fabric.join(self._process, self._host, listener, dialled)
            try:
                await self._travel(host, self._host.ip, port)
            except BaseException:
                near.abort()
                raise
        near.begin(protocol_factory)
        near.resume_reading()
        return near

    async def _travel(self, source_ip: str, target_ip: str, port: int) -> None:
        """Waits until a segment of the handshake arrives, which may never happen."""
        fabric = self._fabric
        await self._clock.sleep(fabric.latency_s())
        while not (fabric.is_open(source_ip, target_ip, port) and fabric.is_up(target_ip)):
            await self._clock.sleep(SYN_RETRY_S)
