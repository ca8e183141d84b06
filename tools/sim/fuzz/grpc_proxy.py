"""A gRPC proxy in memory that is fuzzed: by bytes of HTTP/2, and by requests of every rpc. Its brokers answer
at random (`random_brokers`).

Each batch has its own proxy, and its own time. It must hold that no error other than a TandemError leaves a
handler, no task of the proxy fails, every call ends with a status, a well-behaved connection is served beside
the others, and nothing is held when the peers are gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import h2.config
import h2.connection
import h2.events
from h2.exceptions import ProtocolError as Http2Error

from sim.dice import Dice
from sim.fuzz.grpc_requests import TELEMETRY, Rpc, frame_message, make_body, make_headers, make_session, rpcs
from sim.fuzz.random_brokers import NAME_SERVER, RandomBrokers
from sim.fuzz.victims import Ended
from sim.manual_clock import ManualClock
from sim.memory import MemoryDisk, MemoryNetwork
from tandemmq.bench.process_stats import resident_bytes
from tandemmq.proxy.grpc_call import PREFIX_BYTES
from tandemmq.proxy.grpc_connection import GrpcConnection
from tandemmq.proxy.options import ProxyConfig, ProxyOptions
from tandemmq.proxy.proxy import Proxy
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.runtime.ports import Address, Machine, ProtocolFactory
from tandemmq.telemetry import events
from tandemmq.units import KIB, MIB

CALLS_PER_BATCH: Final = 100
CONNECTIONS_PER_BATCH: Final = 4
MESSAGE_BYTES_MAX: Final = 128 * KIB
HELD_BYTES_MAX: Final = 4 * MIB + 2 * MESSAGE_BYTES_MAX
"""The most bytes of requests that one connection may hold: its window, and a message."""
END_S: Final = 120.0
"""The virtual time in which every call must end, and everything be released."""
WINDOW_TURNS_MAX: Final = 2_000
HEALTH: Final = "/grpc.health.v1.Health/Check"
STATUS_INTERNAL: Final = b"13"
BUG_TEXT: Final = "an internal error"


class _Watch(logging.Handler):
    """Collects the faults that are logged."""

    _FAULTS: Final = (events.GRPC_CONNECTION_FAILED, events.TASK_FAILED)

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.msg in self._FAULTS or record.name == "asyncio":
            self.faults.append(self.format(record)[-3_000:])


class _Network(MemoryNetwork):
    """A network that knows the accepted connections of the proxy."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.accepted: list[GrpcConnection] = []

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> Any:
        def accept() -> Any:
            protocol = protocol_factory()
            if isinstance(protocol, GrpcConnection):
                self.accepted.append(protocol)
            return protocol

        return await super().listen(host, port, accept)


@dataclass(slots=True)
class ProxyVictim:
    """The target's results: the faults since the last call."""

    faults: list[str] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return True

    def fault(self) -> str | None:
        found, self.faults = self.faults, []
        return "\n".join(found[:3]) or None

    def resident_mib(self) -> int:
        return resident_bytes(os.getpid()) // MIB


class _World:
    """One proxy, its brokers, and connections to it."""

    def __init__(self, dice: Dice) -> None:
        self.clock = ManualClock()
        self.network = _Network(self.clock)
        self.fatal: list[BaseException] = []
        self.faults: list[str] = []
        self.brokers = RandomBrokers(Dice(dice.below(2**31)))
        options = ProxyOptions(
            listen_port=0,
            name_servers=":".join(map(str, NAME_SERVER)),
            message_bytes_max=MESSAGE_BYTES_MAX,
            makes_certificate=False,
        )
        machine = Machine(self.network, MemoryDisk(), self.clock, Dice(dice.below(2**31)))
        self.proxy = Proxy(
            ProxyConfig(options=options, tls=TlsOptions(mode=TlsMode.DISABLED)),
            machine=machine,
            on_fatal=self.fatal.append,
        )
        self.address: Address = ("", 0)

    async def start(self) -> None:
        await self.brokers.start(self.network)
        self.address = await self.proxy.start()

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        return await self.network.connect(*self.address, lambda: protocol, 5.0)

    async def until(self, is_done: Callable[[], bool]) -> bool:
        """Lets time pass until the condition holds; returns False if it does not within END_S."""
        end_s, step_s = self.clock.monotonic() + END_S, 0.01
        while not is_done():
            if self.clock.monotonic() >= end_s:
                return False
            await self.clock.pass_time(step_s)
            step_s = min(5.0, step_s * 2)
        return True

    def check_held(self) -> None:
        """Checks the bound of the bytes held."""
        held = self.network.accepted[0].shared.request_bytes
        if held > HELD_BYTES_MAX * len(self.network.accepted):
            self.faults.append(f"{held} bytes of requests are held")

    async def check_released(self) -> None:
        """Checks that nothing is left of peers that are gone."""
        accepted = self.network.accepted
        shared = accepted[0].shared

        def is_released() -> bool:
            counts = (shared.request_bytes, shared.call_count, shared.held_count)
            return not any(counts) and not any(one.streams for one in accepted)

        if not await self.until(is_released):
            rpcs_left = sorted(stream.method.path for one in accepted for stream in one.streams.values())
            self.faults.append(
                f"held after the end: bytes={shared.request_bytes} calls={shared.call_count}"
                f" held={shared.held_count} {rpcs_left[:5]}"
            )


class _Client(asyncio.Protocol):
    """A client of HTTP/2 that follows the protocol. Answers are kept by stream."""

    def __init__(self) -> None:
        self.http2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
            )
        )
        self.transport: Any = None
        self.is_lost = False
        self.headers: dict[int, dict[bytes, bytes]] = {}
        self.data: dict[int, bytes] = {}
        self.ended: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.http2.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        for event in self.http2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                self.headers.setdefault(event.stream_id, {}).update(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.is_lost = True
        self.flush()

    def flush(self) -> None:
        if not self.is_lost:
            self.transport.write(self.http2.data_to_send())

    async def call(self, headers: list[tuple[bytes, bytes]], body: bytes, *, ends: bool) -> int:
        """Sends a call as far as the windows open, and returns its stream."""
        stream_id = self.http2.get_next_available_stream_id()
        self.http2.send_headers(stream_id, headers)
        turns = 0
        while body and turns < WINDOW_TURNS_MAX and not self.is_lost:
            try:
                size = min(16_384, len(body), self.http2.local_flow_control_window(stream_id))
                if size:
                    self.http2.send_data(stream_id, body[:size])
                    body = body[size:]
            except Http2Error:  # the call has ended
                return stream_id
            self.flush()
            if not size:
                turns += 1
                await asyncio.sleep(0)
        if ends and stream_id not in self.ended:
            self.http2.end_stream(stream_id)
        self.flush()
        return stream_id


class _RawPeer(asyncio.Protocol):
    """A peer that sends any bytes, and drops the answers."""

    def __init__(self) -> None:
        self.is_lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@contextmanager
def _watching() -> Iterator[_Watch]:
    watch, root = _Watch(), logging.getLogger()
    root.addHandler(watch)
    try:
        yield watch
    finally:
        root.removeHandler(watch)


Attack = Callable[[_World, Dice], Any]


async def run_http2_batch(victim: ProxyVictim, dice: Dice) -> Ended:
    """Sends damaged sessions of HTTP/2."""
    return await _run_batch(victim, dice, _send_sessions)


async def run_rpc_batch(victim: ProxyVictim, dice: Dice) -> Ended:
    """Sends valid calls with mutated requests and metadata, and checks that each is answered."""
    return await _run_batch(victim, dice, _send_calls)


async def _run_batch(victim: ProxyVictim, dice: Dice, attack: Attack) -> Ended:
    with _watching() as watch:
        world = _World(dice)
        await world.start()
        well = _Client()
        await world.connect(well)
        try:
            frame_count, is_silent = await attack(world, dice)
            world.check_held()
            stream_id = await well.call(make_health_headers(), frame_message(b"", Dice(0)), ends=True)
            is_served = await world.until(lambda: stream_id in well.ended or well.is_lost)
            if not is_served or well.headers.get(stream_id, {}).get(b"grpc-status") != b"0":
                world.faults.append("a well-behaved connection is not served")
            well.transport.abort()
            await world.check_released()
        finally:
            stopping = asyncio.ensure_future(world.proxy.stop())
            if not await world.until(stopping.done):
                world.faults.append("the proxy does not stop")
                stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
        victim.faults += world.faults + [repr(error) for error in world.fatal] + watch.faults
    return Ended(frame_count, is_silent=is_silent)


def make_health_headers() -> list[tuple[bytes, bytes]]:
    """Returns the headers of a health check."""
    texts = {":method": "POST", ":scheme": "http", ":authority": "a", ":path": HEALTH}
    texts |= {"te": "trailers", "content-type": "application/grpc"}
    return [(name.encode(), value.encode()) for name, value in texts.items()]


async def _send_sessions(world: _World, dice: Dice) -> tuple[int, bool]:
    count = 0
    transports = []
    for _ in range(CONNECTIONS_PER_BATCH):
        pieces, frame_count = make_session(world.clock.now_ms(), dice)
        count += frame_count
        transport = await world.connect(_RawPeer())
        transports.append(transport)
        for piece in pieces:
            transport.write(piece)
            if dice.happens(30):
                await asyncio.sleep(0)
        await world.clock.pass_time(dice.pick((0.0, 0.0, 0.01, 0.5)))
        world.check_held()
    await world.clock.pass_time(dice.pick((0.0, 0.5, 4.0)))
    for transport in transports:
        transport.abort()
    return count, False


async def _send_calls(world: _World, dice: Dice) -> tuple[int, bool]:
    """Returns the number of calls, and whether some did not end. Some telemetry streams stay open."""
    sent: list[tuple[_Client, int, Rpc]] = []
    clients = [_Client() for _ in range(CONNECTIONS_PER_BATCH)]
    for client in clients:
        await world.connect(client)
    telemetry = next(rpc for rpc in rpcs() if rpc.name == TELEMETRY)
    for index in range(CALLS_PER_BATCH):
        client = dice.pick(clients)
        rpc = telemetry if index < CONNECTIONS_PER_BATCH else dice.pick(rpcs())
        is_telemetry = rpc is telemetry
        now_ms = world.clock.now_ms()
        count = dice.pick((1, 2, 5)) if is_telemetry else 1
        data = b"".join(frame_message(make_body(rpc, now_ms, dice), dice) for _ in range(count))
        ends = not is_telemetry or dice.happens(30)
        if client.is_lost:
            continue
        stream_id = await client.call(make_headers(rpc.path, dice), data, ends=ends)
        if ends:
            sent.append((client, stream_id, rpc))
        if dice.happens(20):
            await world.clock.pass_time(0.01)
    world.check_held()
    is_over = await world.until(lambda: all(c.is_lost or stream_id in c.ended for c, stream_id, _ in sent))
    for client, stream_id, rpc in sent:
        fault = _answer_fault(client, stream_id, rpc)
        if fault:
            world.faults.append(f"{rpc.name}: {fault}")
    for client in clients:
        client.transport.abort()
    return CALLS_PER_BATCH, not is_over


def _answer_fault(client: _Client, stream_id: int, rpc: Rpc) -> str:
    """Returns the fault of the end of a call; empty if it is as promised."""
    if client.is_lost:
        return "the connection was lost"
    headers = client.headers.get(stream_id, {})
    status = headers.get(b"grpc-status")
    if status is None:
        return f"no status: {headers}"
    if status == STATUS_INTERNAL and BUG_TEXT in headers.get(b"grpc-message", b"").decode():
        return "an internal error"
    if status != b"0" or not rpc.is_unary:
        return ""
    data = client.data.get(stream_id, b"")
    if len(data) != PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES]):
        return f"{len(data)} bytes are not one message"
    answer = rpc.response.FromString(data[PREFIX_BYTES:])
    return "" if answer.status.code else "an answer without a status"
