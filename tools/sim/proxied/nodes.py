"""A machine with a gRPC proxy on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sim.cluster.disk import NodeDisk
from sim.cluster.nodes import BrokerNode, Node
from sim.cluster.world import World
from sim.image import Image
from tandemmq.proxy.handles import Receipt
from tandemmq.proxy.lease_calls import LeaseCalls
from tandemmq.proxy.options import ProxyConfig, ProxyOptions
from tandemmq.proxy.proxy import Proxy
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.runtime.ports import Address, Machine

PROXY_PORT = 8081
INVISIBLE_MS = 10_000
"""The invisible time of renewed messages."""
LIFE_S = 40
"""The time for which a message is renewed."""
EXPIRY_S = 20
"""The time after which a silent client has left."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """A renewal of a lease by a proxy: once when it is sent, and again when a master has answered it.

    lease    flag, queue, start offset and pop time of the handle
    ends_ms  the earliest end of the lease by any broker's clock
    """

    group: str
    lease: tuple[str, int, str, str]
    invisible_ms: int
    ends_ms: int
    is_answered: bool


@dataclass(frozen=True, slots=True)
class WatchedCalls(LeaseCalls):
    """The calls of a proxy's renewals, which an observer sees."""

    note: Callable[[str, Receipt, int, bool, int], None] = field(kw_only=True)
    now_ms: Callable[[], int] = field(kw_only=True)

    async def renew(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> None:
        begin_ms = self.now_ms()
        self.note(group, receipt, invisible_ms, False, begin_ms)
        await LeaseCalls.renew(self, group, topic, receipt, invisible_ms)
        self.note(group, receipt, invisible_ms, True, begin_ms)


class ProxyNode(Node):
    """A proxy: it keeps nothing over a restart. `on_renewal` gets its renewals."""

    def __init__(self, name: str, world: World, namesrv: str, brokers: list[BrokerNode]) -> None:
        super().__init__(name, world)
        self.proxy: Proxy | None = None
        self.on_renewal: list[Callable[[Renewed], None]] = []
        self._namesrv = namesrv
        self._brokers = brokers

    @property
    def address(self) -> Address:
        return self.host.ip, PROXY_PORT

    def start(self) -> None:
        process = self.begin_process()
        self.proxy = None
        self.world.note(f"{process} starts")
        self.world.spawn(process, self._boot(), "boot")

    async def _boot(self) -> None:
        disk = NodeDisk(
            Image(), dice=self.world.dice, clock=self.clock, note=lambda _: None, on_lost=lambda: None
        )
        options = ProxyOptions(
            listen_host=self.host.ip,
            listen_port=PROXY_PORT,
            local_host=self.host.ip,
            name_servers=self._namesrv,
            store_path=Path("/proxy"),
            makes_certificate=False,
            invisible_ms=INVISIBLE_MS,
            renew_ms_max=LIFE_S * 1000,
            client_expiry_ms=EXPIRY_S * 1000,
            drain_s=5,
        )
        proxy = self.proxy = Proxy(
            ProxyConfig(options=options, tls=TlsOptions(mode=TlsMode.DISABLED)),
            machine=Machine(self.network, disk, self.clock, self.chance),
            on_fatal=self.on_fatal,
        )
        proxy._renewal.calls = WatchedCalls(
            proxy.brokers, self.clock, note=self._note_renewal, now_ms=self._earliest_ms
        )
        await proxy.start()

    def _earliest_ms(self) -> int:
        """Returns the time by the broker's clock that is furthest behind."""
        return min(broker.clock.now_ms() for broker in self._brokers)

    def _note_renewal(
        self, group: str, receipt: Receipt, invisible_ms: int, is_answered: bool, begin_ms: int
    ) -> None:
        if not self.is_running:
            return  # its end only unwinds the call
        handle = receipt.handle
        lease = handle.flag, handle.queue_id, str(handle.start_offset), str(handle.pop_time_ms)
        renewed = Renewed(group, lease, invisible_ms, begin_ms + invisible_ms, is_answered)
        for observer in self.on_renewal:
            observer(renewed)

    @property
    def renewed_count(self) -> int:
        """The number of messages that it renews."""
        return len(self.proxy._renewal) if self.is_running and self.proxy is not None else 0

    async def stop_server(self) -> None:
        if self.proxy is None:
            return
        await self.proxy.drain()
        await self.proxy.stop()
