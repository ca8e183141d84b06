"""Server and client together: over memory with a clock controlled by the test, and over real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from sim.memory import ManualClock, MemoryNetwork
from tandemmq.errors import (
    BrokerUnreachable,
    Busy,
    FlushFailed,
    NotPermitted,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotFound,
)
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import Frame, FrameDecoder, encode_frame, encode_frame_head
from tandemmq.remoting import server as server_module
from tandemmq.remoting.channel import BLOCK_COUNT_MIN, Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import BlockRoute, Guard, Handler
from tandemmq.remoting.options import ChannelLimits, ConnectionOptions, ServerOptions
from tandemmq.remoting.rpc_times import RpcTimes
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.shared_bounds import FRAME_BYTES_HELD_MAX, LINES_MAX, SharedBounds
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.telemetry import events
from waits import PATIENCE_S, until

ECHO, REFUSE, BREAK, WAIT, LATER, ASSERT, FATAL, UNREADABLE, MISSING = range(1, 10)


class Peers:
    """A server and a client that reach each other; `fatal` holds the errors reported to the server's
    owner.
    """

    def __init__(
        self,
        network: Any,
        clock: Any,
        *,
        server_options: ServerOptions | None = None,
        client_options: ConnectionOptions | None = None,
        client_routes: Mapping[int, Handler] | None = None,
        server_routes: Mapping[int, Handler] | None = None,
        guard: Guard | None = None,
        connections_max: int = CONNECTIONS_MAX,
        frame_bytes_held_max: int = FRAME_BYTES_HELD_MAX,
    ) -> None:
        self.network = network
        self.clock = clock
        self.fatal: list[BaseException] = []
        self.gate = asyncio.Event()
        self.seen: list[Command] = []
        routes: dict[int, Handler] = {
            ECHO: self._echo,
            REFUSE: self._refuse,
            BREAK: self._break,
            WAIT: self._wait,
            LATER: self._later,
            ASSERT: self._assert,
            FATAL: self._fatal,
            UNREADABLE: self._unreadable,
        }
        self.server = RemotingServer(
            server_routes or routes,
            network=network,
            clock=clock,
            options=server_options,
            on_fatal=self.fatal.append,
            guard=guard,
            shared=SharedBounds(
                clock, connections_max=connections_max, frame_bytes_held_max=frame_bytes_held_max
            ),
        )
        self.client = RemotingClient(
            network=network, clock=clock, options=client_options, routes=client_routes
        )
        self.address = ""

    def _echo(self, channel: Channel, command: Command) -> Command:
        self.seen.append(command)
        return command.reply(body=command.body, fields=command.fields)

    def _refuse(self, channel: Channel, command: Command) -> Command:
        raise TopicNotFound("no such topic")

    def _break(self, channel: Channel, command: Command) -> Command:
        raise ZeroDivisionError("by zero")

    async def _wait(self, channel: Channel, command: Command) -> Command:
        await self.gate.wait()
        if command.body == b"refuse":
            raise TopicNotFound("gone meanwhile")
        return command.reply(body=b"waited")

    def _later(self, channel: Channel, command: Command) -> None:
        self.clock.call_later(0.001, lambda: channel.send(command.reply(body=b"later")))

    def _assert(self, channel: Channel, command: Command) -> Command:
        raise AssertionError("an invariant")

    def _fatal(self, channel: Channel, command: Command) -> Command:
        raise FlushFailed("fsync")

    def _unreadable(self, channel: Channel, command: Command) -> Command:
        raise RemoteProtocolError("no JSON")

    async def start(self) -> Peers:
        host, port = await self.server.start("127.0.0.1", 0)
        self.address = f"{host}:{port}"
        return self

    async def open_raw(self) -> asyncio.Transport:
        """Returns a connection to the server on which a test writes bytes."""
        host, _, port = self.address.rpartition(":")
        return cast(
            asyncio.Transport, await self.network.connect(host, int(port), asyncio.Protocol, PATIENCE_S)
        )

    async def call(self, code: int, *, timeout_s: float = PATIENCE_S, **parts: Any) -> Command:
        return await self.client.request(self.address, Command.request(code, **parts), timeout_s)

    async def stop(self) -> None:
        await self.client.close()
        await self.server.stop()


MakePeers = Callable[..., Peers]


@pytest.fixture(params=["memory", "tcp"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[MakePeers]:
    made: list[Peers] = []

    def build(**options: Any) -> Peers:
        network = TcpNetwork() if request.param == "tcp" else MemoryNetwork(LoopClock())
        made.append(Peers(network, LoopClock(), **options))
        return made[-1]

    yield build
    for peers in made:
        await peers.stop()


@pytest.mark.parametrize("form", [0, SERIALIZE_ROCKETMQ])
async def test_reply_comes_in_the_form_of_its_request(make: MakePeers, form: int) -> None:
    peers = await make().start()
    reply = await peers.call(ECHO, body=b"hi", fields={"k": "v"}, serialize_type=form)
    assert (reply.code, reply.body, dict(reply.fields)) == (0, b"hi", {"k": "v"})
    assert reply.serialize_type == form


async def test_errors_become_answers(make: MakePeers, caplog: pytest.LogCaptureFixture) -> None:
    peers = await make().start()
    missing = await peers.call(MISSING)
    assert (missing.code, missing.remark) == (3, f"request code {MISSING} is not supported")
    other = await peers.call(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert other.remark == (
        "request code 106 is not supported: GET_BROKER_CLUSTER_INFO is a request to a name server"
    )
    refused = await peers.call(REFUSE)
    assert (refused.code, refused.remark) == (17, "no such topic")
    unreadable = await peers.call(UNREADABLE)
    assert (unreadable.code, unreadable.remark) == (1, "no JSON")
    assert caplog.records == []
    broken = await peers.call(BREAK)
    assert (broken.code, broken.remark) == (1, f"the request {BREAK} failed: see the log")
    assert [record.message for record in caplog.records] == ["request.failed"]
    assert (await peers.call(ECHO)).code == 0


async def test_waiting_handlers_answer_when_they_are_done(make: MakePeers) -> None:
    peers = await make().start()
    waiting = [asyncio.ensure_future(peers.call(WAIT, body=body)) for body in (b"", b"refuse")]
    assert (await peers.call(LATER)).body == b"later"
    assert not waiting[0].done()
    peers.gate.set()
    assert (await waiting[0]).body == b"waited"
    assert (await waiting[1]).code == 17


class Reader(asyncio.Protocol):
    """Decodes all received bytes."""

    def __init__(self) -> None:
        self.decoder = FrameDecoder()
        self.received: list[Command] = []

    def data_received(self, data: bytes) -> None:
        self.received += self.decoder.feed(data)


async def test_oneway_requests_never_get_an_answer(make: MakePeers) -> None:
    peers = await make().start()
    reader = Reader()
    raw = await peers.client._network.connect(*peers.server.address, lambda: reader, PATIENCE_S)
    for code in (ECHO, MISSING, REFUSE, BREAK):
        raw.write(encode_frame(Command.request(code, oneway=True, body=b"oneway")))
    raw.write(encode_frame(Command.request(ECHO, body=b"answered")))
    await until(lambda: bool(reader.received))
    assert [command.body for command in reader.received] == [b"answered"]
    assert [command.body for command in peers.seen] == [b"oneway", b"answered"]
    raw.close()


async def test_too_many_waiting_handlers_are_overload(make: MakePeers) -> None:
    peers = await make(server_options=ServerOptions(limits=ChannelLimits(tasks_max=2))).start()
    waiting = [asyncio.ensure_future(peers.call(WAIT)) for _ in range(2)]
    await until(lambda: bool(peers.server.channels) and peers.server.channels[0].tasks_running == 2)
    busy = await peers.call(WAIT)
    assert busy.code == ResponseCode.SYSTEM_BUSY
    assert busy.remark is not None
    assert busy.remark.startswith("[OVERLOAD]")
    peers.gate.set()
    assert [(await reply).code for reply in waiting] == [0, 0]
    assert (await peers.call(WAIT)).code == 0


async def test_broken_invariants_are_told_to_the_owner(make: MakePeers) -> None:
    peers = await make().start()
    await peers.call(ECHO)  # connected: the time of the next calls is that of the handlers
    for code in (ASSERT, FATAL):
        with pytest.raises(RequestTimeout):
            await peers.call(code, timeout_s=0.05)
    await until(lambda: len(peers.fatal) == 2)
    assert [type(error) for error in peers.fatal] == [AssertionError, FlushFailed]


async def test_one_connection_per_address_even_for_simultaneous_calls(make: MakePeers) -> None:
    peers = await make().start()
    replies = await asyncio.gather(*(peers.call(ECHO, body=str(n).encode()) for n in range(50)))
    assert [reply.body for reply in replies] == [str(n).encode() for n in range(50)]
    assert len(peers.server.channels) == 1


async def test_client_connects_again_after_the_connection_broke(make: MakePeers) -> None:
    peers = await make().start()
    await peers.call(ECHO)
    waiting = asyncio.ensure_future(peers.call(WAIT))
    await until(lambda: peers.server.channels[0].tasks_running == 1)
    peers.server.channels[0].close("for the test")
    with pytest.raises(BrokerUnreachable, match="closed"):
        await waiting
    assert (await peers.call(ECHO)).code == 0


async def test_nothing_listening_is_unreachable(make: MakePeers) -> None:
    peers = await make().start()
    await peers.server.stop()
    with pytest.raises(BrokerUnreachable, match="cannot connect"):
        await peers.call(ECHO)
    with pytest.raises(BrokerUnreachable, match="not an address"):
        await peers.client.request("nowhere", Command.request(ECHO), 1.0)


async def test_closed_client_refuses(make: MakePeers) -> None:
    peers = await make().start()
    await peers.call(ECHO)
    await peers.client.close()
    assert peers.client.open_channel(peers.address) is None
    with pytest.raises(BrokerUnreachable, match="client is closed"):
        await peers.call(ECHO)


async def test_server_calls_the_client_over_its_own_connection(make: MakePeers) -> None:
    routes: dict[int, Handler] = {40: lambda _, command: command.reply(body=b"from client")}
    peers = await make(client_routes=routes).start()
    await peers.call(ECHO)
    (channel,) = peers.server.channels
    assert (await channel.request(Command.request(40), PATIENCE_S)).body == b"from client"
    assert (await channel.request(Command.request(41), PATIENCE_S)).code == 3


async def test_connection_over_the_bound_is_refused(make: MakePeers) -> None:
    peers = await make(connections_max=1).start()
    await peers.call(ECHO)
    other = RemotingClient(network=peers.client._network, clock=peers.clock)
    with pytest.raises(BrokerUnreachable):
        await other.request(peers.address, Command.request(ECHO), PATIENCE_S)
    await other.close()
    assert peers.server.refused_count == 1
    assert (await peers.call(ECHO)).code == 0


async def test_garbage_closes_one_connection_only(make: MakePeers) -> None:
    peers = await make().start()
    await peers.call(ECHO)
    bad = await peers.client._network.connect(*peers.server.address, asyncio.Protocol, PATIENCE_S)
    bad.write(b"\x16\x03\x01 hello, is this TLS?")
    await until(bad.is_closing)
    assert (await peers.call(ECHO)).code == 0


@pytest.mark.parametrize("is_measured", [False, True])
async def test_requests_of_one_read_are_taken_as_a_block(make: MakePeers, *, is_measured: bool) -> None:
    blocks: list[int] = []

    def take(channel: Channel, frames: Sequence[Frame]) -> bool:
        blocks.append(len(frames))
        return True

    peers = make(server_routes={ECHO: BlockRoute(cast(Handler, None), take)})
    peers.server.times = RpcTimes(peers.clock) if is_measured else None
    wire = await (await peers.start()).open_raw()
    wire.write(encode_frame(Command.request(ECHO)) * BLOCK_COUNT_MIN)
    await until(lambda: blocks == [BLOCK_COUNT_MIN])


async def test_unfinished_frames_are_held_up_to_a_bound_in_all(make: MakePeers) -> None:
    """The connection that needs more is closed, and its share is free again."""
    peers = await make(frame_bytes_held_max=100_000).start()
    begun = struct.pack(">iI", 1 << 20, 10)
    holding = [await peers.open_raw() for _ in range(2)]
    for wire in holding:
        wire.write(begun + bytes(40_000))
    budget = peers.server._shared.frames
    await until(lambda: budget.bytes_held == 80_016)
    greedy = await peers.open_raw()
    greedy.write(begun + bytes(40_000))
    await until(greedy.is_closing)
    await until(lambda: budget.bytes_held == 80_016)
    assert not any(wire.is_closing() for wire in holding)
    assert (await peers.call(ECHO)).code == 0
    for wire in holding:
        wire.abort()
    await until(lambda: budget.bytes_held == 0)


async def test_peers_that_nobody_knows_have_a_quarter(make: MakePeers) -> None:
    """A guard marks the authenticated ones as known."""

    def guard(channel: Channel, command: Command) -> None:
        if command.body == b"password":
            channel.make_known()

    peers = await make(frame_bytes_held_max=100_000, guard=guard).start()
    begun = struct.pack(">iI", 1 << 20, 10)
    stranger = await peers.open_raw()
    stranger.write(begun + bytes(26_000))
    await until(stranger.is_closing)
    known = await peers.open_raw()
    known.write(encode_frame(Command.request(ECHO, body=b"password")) + begun + bytes(90_000))
    budget = peers.server._shared.frames
    await until(lambda: budget.bytes_held == 90_008)
    assert budget.bytes_of_unknown == 0
    known.abort()
    await until(lambda: budget.bytes_held == 0)
    assert budget.bytes_of_unknown == 0


def only_with_a_password(channel: Channel, command: Command) -> None:
    if command.body != b"password":
        raise NotPermitted("who are you")
    channel.make_known()


async def test_unknown_peers_wait_for_their_turn(make: MakePeers) -> None:
    """Their requests get a share of the loop's time; a known peer is served meanwhile, and the others in
    turn.
    """
    peers = await make(guard=only_with_a_password).start()
    unknown, clock = peers.server._shared.unknown, ManualClock()
    unknown._clock = clock
    unknown._refilled_at = clock.monotonic()
    assert (await peers.call(ECHO, body=b"password")).code == 0
    unknown_channels = [await peers.open_raw() for _ in range(3)]
    unknown.spend(1.0)  # as if the unknown peers had taken a second
    for wire in unknown_channels:
        wire.write(encode_frame(Command.request(ECHO, body=bytes(100))) * 400)
    late = await peers.open_raw()
    await until(lambda: len(unknown._waiting) == 3)
    assert (await peers.call(ECHO, body=b"password")).code == 0
    late.write(encode_frame(Command.request(ECHO, body=b"password")) * 100)
    await until(lambda: len(unknown._waiting) == 4)
    seen = len(peers.seen)
    for wire in unknown_channels[:2]:
        wire.abort()

    def after_a_second(is_met: Callable[[], bool]) -> Callable[[], bool]:
        """Time passes at each look: on a busy machine a piece may take more than what is left."""
        return lambda: clock.advance(1.0) or is_met()

    # Once known, all received bytes are handled.
    await until(after_a_second(lambda: len(peers.seen) == seen + 100))
    await until(after_a_second(lambda: not unknown._waiting))
    assert not unknown_channels[2].is_closing()


async def test_a_large_first_request_of_an_unknown_peer_is_served(make: MakePeers) -> None:
    peers = await make(guard=lambda channel, _command: channel.make_known()).start()
    fields = {"properties": "K\x01v\x02" * 8_000}
    answer = await peers.client.request(
        peers.address, Command.request(ECHO, fields=fields, body=bytes(1_000_000)), PATIENCE_S
    )
    assert answer.fields == fields
    assert len(answer.body) == 1_000_000


async def test_a_flood_of_bad_frames_is_told_in_few_lines(
    make: MakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    peers = await make().start()
    bad = [await peers.open_raw() for _ in range(LINES_MAX + 5)]
    for wire in bad:
        wire.write(struct.pack(">iI", 1 << 20, 0x40000) + bytes(10))
    for wire in bad:
        await until(wire.is_closing)
    lines = [record for record in caplog.records if record.message == events.CHANNEL_CLOSED_BY_BAD_FRAME]
    assert len(lines) == LINES_MAX
    assert "longer than the limit of 262143" in vars(lines[0])["reason"]


async def test_ports_of_one_process_share_their_connections(make: MakePeers) -> None:
    peers = await make(connections_max=2).start()
    other = RemotingServer({}, network=peers.network, clock=peers.clock, shared=peers.server._shared)
    address = await other.start("127.0.0.1", 0)
    await peers.call(ECHO)
    second = await peers.network.connect(*address, asyncio.Protocol, PATIENCE_S)
    third = await peers.network.connect(*address, asyncio.Protocol, PATIENCE_S)
    await until(third.is_closing)
    assert other.refused_count == 1
    second.abort()
    await until(lambda: peers.server._shared.connection_count == 1)
    await other.stop()


async def test_at_the_bound_a_new_connection_takes_the_place_of_an_unknown_peer(make: MakePeers) -> None:
    peers = await make(connections_max=3, guard=only_with_a_password).start()
    assert (await peers.call(ECHO, body=b"password")).code == 0
    unknown_channels = [await peers.open_raw() for _ in range(2)]
    await until(lambda: len(peers.server.channels) == 3)
    other = RemotingClient(network=peers.network, clock=peers.clock)
    request = Command.request(ECHO, body=b"password")
    assert (await other.request(peers.address, request, PATIENCE_S)).code == 0
    await until(unknown_channels[0].is_closing)
    assert not unknown_channels[1].is_closing()
    third = RemotingClient(network=peers.network, clock=peers.clock)
    assert (await third.request(peers.address, Command.request(ECHO, body=b"password"), PATIENCE_S)).code == 0
    await until(unknown_channels[1].is_closing)
    fourth = RemotingClient(network=peers.network, clock=peers.clock)
    with pytest.raises(BrokerUnreachable):  # all that are left are known
        await fourth.request(peers.address, Command.request(ECHO, body=b"password"), PATIENCE_S)
    assert (await peers.call(ECHO, body=b"password")).code == 0
    for client in (other, third, fourth):
        await client.close()
    await until(lambda: peers.server._shared.connection_count == 1)
    assert not peers.server._shared.unknown_channels


async def test_stop_ends_handlers_and_connections(make: MakePeers) -> None:
    peers = await make().start()
    waiting = asyncio.ensure_future(peers.call(WAIT))
    await until(lambda: bool(peers.server.channels))
    await peers.server.stop()
    with pytest.raises(BrokerUnreachable):
        await waiting
    await peers.server.stop()


async def test_sixteen_megabytes_travel(make: MakePeers) -> None:
    peers = await make().start()
    body = bytes(range(256)) * 40_000
    assert (await peers.call(ECHO, body=body)).body == body


async def test_slices_of_a_mapped_file_reach_a_peer_that_reads_late(make: MakePeers, tmp_path: Path) -> None:
    size = 8 << 20
    file = RealDisk().create(tmp_path / "segment", size)
    file.pwrite(0, [bytes(range(256)) * (size // 256)])

    def send_slices(channel: Channel, command: Command) -> None:
        view = file.view()
        head = encode_frame_head(command.reply(), size)
        channel.send_frame(head, view[:1000], view[1000 : size // 2], view[size // 2 :])
        # The slices now belong to the transport; the file may be closed.
        channel._clock.call_soon(file.close)

    peers = await make(server_routes={ECHO: send_slices}).start()
    reader = Reader()
    raw = await peers.client._network.connect(*peers.server.address, lambda: reader, PATIENCE_S)
    raw.pause_reading()
    raw.write(encode_frame(Command.request(ECHO)))
    await until(lambda: bool(peers.server.channels) and file.is_closed)
    raw.resume_reading()
    await until(lambda: bool(reader.received))
    assert reader.received[0].body == bytes(range(256)) * (size // 256)
    raw.close()


async def test_client_bound_of_requests_in_flight(make: MakePeers) -> None:
    limits = ChannelLimits(requests_in_flight_max=1)
    peers = await make(client_options=ConnectionOptions(limits=limits)).start()
    waiting = asyncio.ensure_future(peers.call(WAIT))
    await until(lambda: bool(peers.server.channels) and peers.server.channels[0].tasks_running == 1)
    with pytest.raises(Busy):
        await peers.call(ECHO)
    peers.gate.set()
    await waiting


# With a clock controlled by the test.


async def in_time(clock: ManualClock, seconds: float, waiting: asyncio.Future[Any]) -> Any:
    """Returns the result of `waiting` while `seconds` pass."""
    await clock.pass_time(seconds)
    return await waiting


async def start_by_hand(**options: Any) -> tuple[ManualClock, Peers]:
    clock = ManualClock()
    peers = await Peers(MemoryNetwork(clock), clock, **options).start()
    assert (await in_time(clock, 0, asyncio.ensure_future(peers.call(ECHO)))).code == 0
    return clock, peers


async def test_idle_connections_are_closed_and_used_ones_are_not() -> None:
    clock, peers = await start_by_hand(client_options=ConnectionOptions(idle_close_s=1000))
    for _ in range(4):
        await clock.pass_time(100)
        assert len(peers.server.channels) == 1
        await in_time(clock, 0, asyncio.ensure_future(peers.call(ECHO)))
    await clock.pass_time(131)
    assert peers.server.channels == []
    assert peers.client.open_channel(peers.address) is None
    await peers.stop()


async def test_a_frame_that_never_ends_is_given_up_however_its_bytes_trickle() -> None:
    clock, peers = await start_by_hand()
    frame = encode_frame(Command.request(ECHO, body=bytes(200)))
    slow = await peers.open_raw()
    for byte in frame[:30]:
        slow.write(bytes([byte]))
        await clock.pass_time(5)
        await in_time(clock, 0, asyncio.ensure_future(peers.call(ECHO)))
    assert len(peers.server.channels) == 1  # the one that ends its frames
    await peers.stop()


async def test_slow_frames_that_do_end_keep_their_connection() -> None:
    clock, peers = await start_by_hand()
    frame = encode_frame(Command.request(ECHO, body=bytes(20)))
    slow = await peers.open_raw()
    for _ in range(3):
        for piece in (frame[:20], frame[20:] + frame[:10], frame[10:]):
            slow.write(piece)
            await clock.pass_time(50)
            await in_time(clock, 0, asyncio.ensure_future(peers.call(ECHO)))
    assert len(peers.server.channels) == 2
    await peers.stop()


async def test_timeout_leaves_nothing_behind() -> None:
    clock, peers = await start_by_hand()
    waiting = asyncio.ensure_future(peers.call(WAIT, timeout_s=3))
    await clock.pass_time(3.2)
    with pytest.raises(RequestTimeout):
        await waiting
    channel = peers.client.open_channel(peers.address)
    assert channel is not None
    assert channel.requests_in_flight == 0
    peers.gate.set()  # the late answer is dropped
    assert (await in_time(clock, 0, asyncio.ensure_future(peers.call(ECHO)))).code == 0
    await peers.stop()


async def test_silent_connection_is_given_up_after_a_timeout() -> None:
    clock, peers = await start_by_hand(client_options=ConnectionOptions(silent_close_s=10))
    waiting = asyncio.ensure_future(peers.call(WAIT, timeout_s=12))
    await clock.pass_time(13)
    with pytest.raises(RequestTimeout):
        await waiting
    assert peers.client.open_channel(peers.address) is None
    await peers.stop()


class DeafNetwork:
    """A network on which connections are never established."""

    async def listen(self, host: str, port: int, protocol_factory: Any) -> Any:
        raise OSError("not here")

    async def connect(self, host: str, port: int, protocol_factory: Any, timeout_s: float) -> Any:
        await asyncio.Event().wait()


async def test_caller_does_not_wait_longer_than_its_own_timeout_for_a_connection() -> None:
    clock = ManualClock()
    client = RemotingClient(network=DeafNetwork(), clock=clock)
    waiting = asyncio.ensure_future(client.request("h:1", Command.request(ECHO), 1.0))
    await clock.pass_time(1.1)
    with pytest.raises(BrokerUnreachable, match="in time"):
        await waiting
    other = asyncio.ensure_future(client.channel("h:1"))
    await clock.pass_time(0)
    await client.close()
    with pytest.raises(BrokerUnreachable):
        await other


async def test_a_server_that_is_paused_keeps_its_port_and_lets_requests_wait() -> None:
    clock = LoopClock()
    peers = Peers(MemoryNetwork(clock), clock)
    await peers.start()
    waits, kept = (RemotingClient(network=peers.network, clock=clock) for _ in "12")
    hangs = asyncio.create_task(waits.request(peers.address, Command.request(WAIT), 60))
    await kept.request(peers.address, Command.request(ECHO, body=b"1"), 5)
    await until(lambda: any(channel.tasks_running for channel in peers.server.channels))
    await peers.server.pause(lambda _: True)
    with pytest.raises(BrokerUnreachable):
        await hangs  # its handler was ended: no answer will come
    own = kept.open_channel(peers.address)
    sends = [
        asyncio.create_task(client.request(peers.address, Command.request(ECHO, body=b"%d" % n), 5))
        for n, client in enumerate((kept, waits, kept))
    ]
    held = peers.server._held
    assert held is not None
    await until(lambda: len(held.requests) == 3)
    await peers.server.pause(lambda _: True)  # once more: nothing is lost
    seen: list[bytes] = []

    def handle(_channel: Channel, command: Command) -> Command:
        seen.append(bytes(command.body))
        return command.reply(body=b"new")

    peers.server.resume({ECHO: handle})
    assert [bytes((await send).body) for send in sends] == [b"new"] * 3
    assert sorted(seen) == [b"0", b"1", b"2"]
    assert kept.open_channel(peers.address) is own
    await peers.server.pause(lambda _: False)
    await until(lambda: kept.open_channel(peers.address) is None)
    await waits.close()
    await kept.close()
    await peers.stop()


async def test_held_requests_of_a_paused_server_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HELD_MAX", 1)
    clock = LoopClock()
    peers = Peers(MemoryNetwork(clock), clock)
    await peers.start()
    await peers.server.pause(lambda _: True)
    first = asyncio.create_task(peers.client.request(peers.address, Command.request(ECHO), 5))
    held = peers.server._held
    assert held is not None
    await until(lambda: held.requests)
    refused = await peers.client.request(peers.address, Command.request(ECHO), 5)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    peers.server.resume({ECHO: peers._echo})
    assert (await first).code == ResponseCode.SUCCESS
    await peers.stop()
