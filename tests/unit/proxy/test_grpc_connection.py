"""Connections of the gRPC server in memory, with peers that err, abuse, stall or vanish."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from http2_client import Http2Client, framed
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from sim.memory import ManualClock, MemoryNetwork
from tandemmq.proxy.grpc_connection import PEER_CLOSE_S
from tandemmq.proxy.grpc_limits import GrpcLimits
from tandemmq.proxy.grpc_server import GrpcServer
from tandemmq.proxy.http2_frames import PREFACE
from tandemmq.proxy.rpc import GrpcCall, GrpcStatus, Method
from tandemmq.telemetry import events
from tandemmq.units import KIB
from waits import until

ECHO, HOLD, STREAM = "/t.T/Echo", "/t.T/Hold", "/t.T/Stream"


class World:
    """A server with test methods, and connections to it."""

    def __init__(self, limits: GrpcLimits | None = None) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        methods = [Method(ECHO, self.echo), Method(HOLD, self.hold, True), Method(STREAM, self.stream, True)]
        self.server = GrpcServer(self.network, self.clock, methods=methods, limits=limits)
        self.address = ("", 0)
        self.held: list[GrpcCall] = []
        self.cancelled_count = 0
        self.sent_count = 0
        self.release = asyncio.Event()

    async def connect(self, *, window: int = 1 << 20, starts: bool = True) -> Http2Client:
        return await Http2Client.connect(self.network, self.address, window=window, starts=starts)

    async def echo(self, call: GrpcCall) -> None:
        while (message := await call.receive()) is not None:
            await call.send(message)

    async def hold(self, call: GrpcCall) -> None:
        self.held.append(call)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise

    async def stream(self, call: GrpcCall) -> None:
        count, size = map(int, (await call.receive() or b"").split())
        for _ in range(count):
            await call.send(bytes(size))
            self.sent_count += 1

    async def is_well(self) -> None:
        """Asserts that the server still serves other peers, and holds nothing of the past ones."""
        client = await self.connect()
        assert await client.ends(client.call(ECHO, b"well")) == (0, "")
        client.transport.close()
        await until(lambda: not self.server.connection_count)
        shared = self.server.shared
        assert (shared.call_count, shared.held_count, shared.request_bytes) == (0, 0, 0)
        assert not len(self.server._deadlines)


@asynccontextmanager
async def world(**limits: float) -> AsyncIterator[World]:
    made = World(GrpcLimits(**limits))  # type: ignore[arg-type]  # bytes and counts are whole numbers
    made.address = await made.server.start("host", 0)
    try:
        yield made
    finally:
        await made.server.stop()


# Calls.


async def test_the_parts_of_an_answer() -> None:
    async with world() as w:
        client = await w.connect()
        stream = client.call(ECHO, b"one", b"", b"three")
        assert await client.ends(stream) == (0, "")
        head, trailers = client.headers[stream]
        assert head == {":status": "200", "content-type": "application/grpc"}
        assert trailers == {"grpc-status": "0"}
        assert client.data[stream] == framed(b"one") + framed(b"") + framed(b"three")


async def test_an_error_before_any_message_is_one_header_block() -> None:
    async with world() as w:
        client = await w.connect()
        stream = client.call("/t.T/Größe%", b"x", ends=False)
        assert await client.ends(stream) == (
            GrpcStatus.UNIMPLEMENTED,
            "unknown method /t.T/Gr%C3%B6%C3%9Fe%25",
        )
        (only,) = client.headers[stream]
        assert only[":status"] == "200"
        assert client.resets == {stream: ErrorCodes.NO_ERROR}  # the rest of the request is not needed


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [
        ((("content-type", "application/json"),), "POST", "415"),
        ((("content-type", "application/grpc-web"),), "POST", "415"),
        ((), "GET", "405"),
    ],
)
async def test_a_request_that_is_not_grpc_gets_an_http_status(
    headers: tuple[tuple[str, str], ...], method: str, status: str
) -> None:
    async with world() as w:
        client = await w.connect()
        stream = client.open(ECHO, *headers, ends=True, method=method)
        await until(lambda: stream in client.ended)
        assert client.headers[stream][0][":status"] == status


@pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=utf-8"])
async def test_forms_of_the_content_type(content_type: str) -> None:
    async with world() as w:
        client = await w.connect()
        stream = client.call(ECHO, b"x", headers=[("content-type", content_type)])
        assert await client.ends(stream) == (0, "")


@pytest.mark.parametrize("timeout", ["", "5", "S", "-1S", "1.5S", "5s", "9" * 19 + "S", "1 S"])
async def test_a_bad_timeout_is_refused(timeout: str) -> None:
    async with world() as w:
        client = await w.connect()
        status, text = await client.ends(client.call(ECHO, b"x", headers=[("grpc-timeout", timeout)]))
        assert status == GrpcStatus.INVALID_ARGUMENT
        assert "grpc-timeout" in text


@pytest.mark.parametrize(
    ("timeout", "left_s"),
    [("2H", 7200), ("3M", 180), ("1892160000S", 1892160000), ("99999999H", 359999996400), ("500m", 0.5)],
)
async def test_a_timeout_becomes_a_deadline(timeout: str, left_s: float) -> None:
    async with world() as w:
        client = await w.connect()
        client.call(HOLD, headers=[("grpc-timeout", timeout)])
        await until(lambda: w.held)
        assert w.held[0].deadline_s == pytest.approx(w.clock.monotonic() + left_s)


async def test_the_deadline_ends_the_call_and_its_handler() -> None:
    async with world() as w:
        client = await w.connect()
        stream = client.call(HOLD, b"x", headers=[("grpc-timeout", "40S")])
        await until(lambda: w.held)
        await w.clock.pass_time(39.8)
        assert stream not in client.ended
        await w.clock.pass_time(0.4)
        assert (await client.ends(stream))[0] == GrpcStatus.DEADLINE_EXCEEDED
        assert w.cancelled_count == 1
        client.transport.close()
        await w.is_well()


async def test_a_call_without_a_request_ends() -> None:
    async with world(request_s=30) as w:
        client = await w.connect()
        silent = [client.open(ECHO), client.open(HOLD, ("grpc-timeout", "900S"))]
        half = client.open(ECHO)
        client.http2.send_data(half, framed(b"message")[:-1])
        client.flush()
        whole = client.call(HOLD, b"x", ends=False)
        await until(lambda: len(w.held) == 2)
        await w.clock.pass_time(30.3)
        for stream in (*silent, half):
            assert (await client.ends(stream))[0] == GrpcStatus.DEADLINE_EXCEEDED
        await w.clock.pass_time(600)
        assert whole not in client.ended


async def test_a_request_that_ends_within_a_message_is_an_error() -> None:
    async with world() as w:
        client = await w.connect()
        for part in (b"\0", framed(b"message")[:-1]):
            stream = client.open(ECHO)
            client.http2.send_data(stream, part, end_stream=True)
            client.flush()
            assert (await client.ends(stream))[0] == GrpcStatus.INTERNAL


async def test_messages_may_be_cut_anywhere() -> None:
    body = framed(b"first") + framed(b"") + framed(bytes(300)) + framed(b"last")
    async with world() as w:
        client = await w.connect()
        for size in (1, 2, 3, 5, 6, 7, 100):
            stream = client.open(ECHO)
            for at in range(0, len(body), size):
                client.http2.send_data(stream, body[at : at + size])
                client.flush()
                await asyncio.sleep(0)
            client.http2.end_stream(stream)
            client.flush()
            assert await client.ends(stream) == (0, "")
            assert client.data[stream] == body
        client.transport.close()
        await w.is_well()


async def test_a_message_larger_than_the_windows_arrives() -> None:
    async with world(stream_window_bytes=64 * KIB, connection_window_bytes=64 * KIB) as w:
        client = await w.connect()
        await asyncio.sleep(0)
        message = random.Random(1).randbytes(1_000_000)
        body, at = framed(message), 0
        stream = client.open(ECHO)
        while at < len(body):
            size = min(16_384, len(body) - at, client.http2.local_flow_control_window(stream))
            if size <= 0:
                await asyncio.sleep(0)
                continue
            client.http2.send_data(stream, body[at : at + size], end_stream=at + size == len(body))
            client.flush()
            at += size
        assert await client.ends(stream) == (0, "")
        assert client.data[stream] == body


async def test_messages_that_no_handler_wants_close_the_window() -> None:
    async with world(stream_window_bytes=64 * KIB) as w:
        client = await w.connect()
        await until(lambda: client.http2.remote_settings.initial_window_size == 64 * KIB)
        stream = client.open(HOLD)
        sent = 0
        while (window := client.http2.local_flow_control_window(stream)) > 0:
            piece = framed(bytes(1000))[:window]
            client.http2.send_data(stream, piece)
            client.flush()
            sent += len(piece)
            await asyncio.sleep(0)
        assert sent <= 2 * 64 * KIB
        assert sent <= w.server.shared.request_bytes <= sent + 1_000  # with its headers
        other = client.call(ECHO, b"x")
        assert await client.ends(other) == (0, "")
        client.http2.reset_stream(stream)
        client.flush()
        await until(lambda: not w.server.shared.request_bytes)


# Flow control of answers.


async def test_a_closed_window_stops_one_stream_until_it_opens() -> None:
    async with world() as w:
        client = await w.connect(window=0)
        client.acknowledges = False
        stalled, other = client.call(STREAM, b"3 1000"), client.call(ECHO, b"x")
        await until(lambda: stalled in client.headers)
        client.http2.increment_flow_control_window(6, other)
        client.flush()
        assert await client.ends(other) == (0, "")
        assert stalled not in client.data
        assert w.sent_count == 0
        for _ in range(3 * 67):
            client.http2.increment_flow_control_window(15, stalled)
            client.flush()
            await asyncio.sleep(0)
        assert await client.ends(stalled) == (0, "")
        assert client.data[stalled] == framed(bytes(1000)) * 3


async def test_a_larger_initial_window_resumes_all_streams() -> None:
    async with world() as w:
        client = await w.connect(window=0)
        streams = [client.call(STREAM, b"2 5000") for _ in range(5)]
        await until(lambda: len(client.headers) == 5)
        client.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 20_000})
        client.flush()
        for stream in streams:
            assert await client.ends(stream) == (0, "")
            assert client.data[stream] == framed(bytes(5000)) * 2


async def test_a_stalled_call_can_be_cancelled() -> None:
    async with world() as w:
        client = await w.connect(window=0)
        stream = client.call(STREAM, b"3 1000")
        await until(lambda: stream in client.headers)
        client.http2.reset_stream(stream, ErrorCodes.CANCEL)
        client.flush()
        client.transport.close()
        await w.is_well()


async def test_a_peer_that_reads_nothing_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    async with world(write_buffer_high_bytes=100_000, slow_reader_s=30) as w:
        client = await w.connect(window=(1 << 31) - 1)
        client.http2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        client.flush()
        await asyncio.sleep(0)
        client.transport.pause_reading()
        client.call(STREAM, b"1000 10000")
        for _ in range(50):
            client.call("/t.T/Unknown")
            await asyncio.sleep(0)
        await until(lambda: w.sent_count)
        assert w.sent_count < 50
        await w.clock.pass_time(40)
        await until(lambda: not w.server.connection_count)
        assert events.GRPC_CONNECTION_CLOSED in caplog.messages
        await w.is_well()


async def test_a_slow_peer_that_still_reads_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(write_buffer_high_bytes=100_000, slow_reader_s=30) as w:
        client = await w.connect(window=(1 << 31) - 1)
        client.http2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        client.flush()
        await asyncio.sleep(0)
        client.transport.pause_reading()
        stream = client.call(STREAM, b"100 10000")
        await until(lambda: w.sent_count)
        unsent = iter(range(100_000, 0, -1_000))
        transport = next(iter(w.server._connections))._transport
        monkeypatch.setattr(transport, "get_write_buffer_size", lambda: next(unsent))
        await w.clock.pass_time(300)
        client.transport.resume_reading()
        assert await client.ends(stream) == (0, "")
        assert len(client.data[stream]) == 100 * 10_005


# Abuse.


async def test_garbage_is_disconnected_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0", bytes(100), PREFACE[:-1] + b"x", b"PRI * HTTP/1"):
            client = await w.connect(starts=False)
            client.write(garbage)
            assert (await client.loses())[0] == ErrorCodes.PROTOCOL_ERROR
        await w.is_well()
    assert events.GRPC_CONNECTION_CLOSED in caplog.messages


async def test_random_bytes_behind_the_preface_never_harm() -> None:
    chance = random.Random(7)
    async with world() as w:
        for _ in range(300):
            client = await w.connect(starts=False)
            client.write(PREFACE + SettingsFrame(0).serialize())
            for _ in range(chance.randrange(1, 6)):
                size = chance.randrange(60)
                head = size.to_bytes(3) + bytes((chance.randrange(12), chance.randrange(256)))
                stream = chance.choice([0, 1, 1, 2, 3, chance.randrange(1 << 31)])
                client.write(head + stream.to_bytes(4) + chance.randbytes(size))
                await asyncio.sleep(0)
            client.transport.close()
        await w.is_well()


async def test_a_valid_start_cut_anywhere_never_harms() -> None:
    async with world() as w:
        model = Http2Client()
        whole: list[bytes] = []
        model.write = whole.append  # type: ignore[method-assign]
        model.http2.initiate_connection()
        model.flush()
        model.call(ECHO, b"message")
        data = b"".join(whole)
        for size in range(len(data)):
            client = await w.connect(starts=False)
            client.write(data[:size])
            await asyncio.sleep(0)
            client.transport.abort() if size % 2 else client.transport.close()
        await w.is_well()


async def test_a_missing_preface_ends_the_connection() -> None:
    async with world(preface_s=10) as w:
        silent, slow = await w.connect(starts=False), await w.connect(starts=False)
        slow.write(PREFACE[:10])
        await w.clock.pass_time(9.9)
        assert not silent.is_lost
        await w.clock.pass_time(0.2)
        await silent.loses()
        await slow.loses()
        await w.is_well()


async def test_a_long_frame_is_refused_by_its_length() -> None:
    async with world() as w:
        client = await w.connect()
        client.write((1 << 20).to_bytes(3) + b"\0\0" + (1).to_bytes(4))
        assert (await client.loses())[0] == ErrorCodes.FRAME_SIZE_ERROR
        await w.is_well()


async def test_too_many_header_bytes_end_the_connection() -> None:
    async with world(header_bytes_max=64 * KIB) as w:
        client = await w.connect()
        fine = client.call(ECHO, b"x", headers=[("x-long", "v" * 60_000)])
        assert await client.ends(fine) == (0, "")
        client.open(ECHO, *((f"x-{number}", "v" * 10_000) for number in range(7)))
        assert (await client.loses())[0] == ErrorCodes.ENHANCE_YOUR_CALM
        await w.is_well()


async def test_endless_continuation_ends_the_connection() -> None:
    async with world() as w:
        client = await w.connect()
        client.write(HeadersFrame(1, data=b"").serialize())
        for _ in range(100):
            client.write(ContinuationFrame(1, data=b"").serialize())
        await client.loses()
        await w.is_well()


async def test_one_stream_too_many_is_refused() -> None:
    async with world(streams_max=3) as w:
        client = await w.connect()
        client.http2.remote_settings.max_concurrent_streams = 100  # type: ignore[misc]
        client.http2.remote_settings.acknowledge()
        held = [client.call(HOLD, b"x") for _ in range(3)]
        refused = client.call(HOLD, b"x")
        await until(lambda: client.resets == {refused: ErrorCodes.REFUSED_STREAM})
        w.release.set()
        for stream in held:
            assert await client.ends(stream) == (0, "")
        assert await client.ends(client.call(ECHO, b"x")) == (0, "")
        assert client.http2.remote_settings.max_concurrent_streams >= 3


async def test_rapid_resets_end_the_connection() -> None:
    async with world(resets_max=200) as w:
        client = await w.connect()
        for number in range(201):
            client.http2.reset_stream(client.call(HOLD, b"x"), ErrorCodes.CANCEL)
            client.flush()
            if number == 199:
                await until(lambda: w.server.shared.held_count == 0)
                assert not client.is_lost
        assert (await client.loses())[0] == ErrorCodes.ENHANCE_YOUR_CALM
        await w.is_well()


async def test_resets_of_old_calls_or_over_time_are_allowed() -> None:
    async with world(resets_max=200) as w:
        client = await w.connect()
        for _ in range(4):
            held = [client.call(HOLD, b"x") for _ in range(90)]
            await w.clock.pass_time(2)
            for stream in held:
                client.http2.reset_stream(stream)
            client.flush()
        for _ in range(30):
            for _ in range(100):
                client.http2.reset_stream(client.call(HOLD, b"x"))
            client.flush()
            await w.clock.pass_time(6)
        assert not client.is_lost
        client.transport.close()
        await w.is_well()


async def test_streams_that_the_peer_makes_us_reset_count_as_resets() -> None:
    async with world(resets_max=200) as w:
        client = await w.connect()
        for _ in range(300):
            stream = client.call(HOLD, b"x", ends=False)
            client.write(WindowUpdateFrame(stream, window_increment=(1 << 31) - 1).serialize())
            await asyncio.sleep(0)
        assert (await client.loses())[0] == ErrorCodes.ENHANCE_YOUR_CALM
        await w.is_well()


FLOODS = {
    "ping": PingFrame(0, opaque_data=b"12345678"),
    "settings": SettingsFrame(0),
    "priority": PriorityFrame(5),
    "reset": RstStreamFrame(1),
    "window": WindowUpdateFrame(0, window_increment=1),
    "data": DataFrame(1),
    "padding": DataFrame(1, flags=["PADDED"], pad_length=100),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_of_empty_frames_ends_the_connection(kind: str) -> None:
    async with world() as w:
        client = await w.connect()
        client.call(HOLD, b"x", ends=False)
        await until(lambda: w.held)
        frame = FLOODS[kind].serialize()
        for _ in range(20):
            client.write(frame * 100)
            await asyncio.sleep(0)
        assert (await client.loses())[0] == ErrorCodes.ENHANCE_YOUR_CALM
        await w.is_well()


@pytest.mark.parametrize("has_call", [False, True])
async def test_pings_once_per_second_are_answered_for_ever(has_call: bool) -> None:
    async with world(idle_s=10_000) as w:
        client = await w.connect()
        if has_call:
            client.call(HOLD, b"x")
        for _ in range(3_000):
            client.http2.ping(b"12345678")
            client.flush()
            await w.clock.pass_time(1)
        assert len(client.pings) == 3_000
        assert not client.goaways


async def test_a_burst_of_calls_is_read_in_turns() -> None:
    async with world() as w:
        client = await w.connect()
        written: list[bytes] = []
        write, client.write = client.write, written.append  # type: ignore[method-assign]
        streams = [client.call(ECHO, b"%d" % number) for number in range(1, 90)]
        client.write = write  # type: ignore[method-assign]
        client.write(b"".join(written))
        for stream in streams:
            assert await client.ends(stream) == (0, "")


# The end of a connection.


async def test_an_idle_connection_is_drained() -> None:
    async with world(idle_s=120) as w:
        idle, held = await w.connect(), await w.connect()
        stream = held.call(HOLD, b"x")
        await w.clock.pass_time(110)
        assert not idle.goaways
        await w.clock.pass_time(20)
        assert (await idle.loses())[0] == ErrorCodes.NO_ERROR
        assert not held.goaways
        w.release.set()
        assert await held.ends(stream) == (0, "")
        await w.clock.pass_time(130)
        await held.loses()


async def test_calls_that_cross_the_goaway_are_served() -> None:
    async with world() as w:
        client = await w.connect()
        held = client.call(HOLD, b"x")
        await until(lambda: w.held)
        draining = asyncio.ensure_future(w.server.drain(60))
        crossing = client.call(ECHO, b"x")
        await until(lambda: len(client.goaways) == 2)
        assert [last for _, last in client.goaways] == [(1 << 31) - 1, crossing]
        late = client.call(ECHO, b"x")  # of a client that ignores both
        assert (await client.ends(late))[0] == GrpcStatus.UNAVAILABLE
        assert await client.ends(crossing) == (0, "")
        w.release.set()
        assert await client.ends(held) == (0, "")
        await w.clock.pass_time(PEER_CLOSE_S + 0.1)
        await client.loses()
        await draining


@pytest.mark.parametrize("closes", [True, False])
async def test_the_peer_closes_a_drained_connection(closes: bool) -> None:
    """Frames that cross the last answer are read: a socket with unread bytes would be reset at its end."""
    async with world() as w:
        client = await w.connect()
        held = client.call(HOLD, b"x")
        await until(lambda: w.held)
        draining = asyncio.ensure_future(w.server.drain(60))
        await until(lambda: len(client.goaways) == 2)
        client.transport.pause_reading()
        w.release.set()
        await w.clock.pass_time(PEER_CLOSE_S / 2)
        client.write(PingFrame(0, opaque_data=b"crossing").serialize())
        await w.clock.pass_time(PEER_CLOSE_S / 4)
        assert w.server.connection_count == 1
        client.transport.resume_reading()
        assert await client.ends(held) == (0, "")
        assert not client.is_lost
        if closes:
            client.transport.close()
        else:
            await w.clock.pass_time(PEER_CLOSE_S)
        await draining
        await client.loses()


async def test_a_stop_closes_a_drained_connection() -> None:
    async with world() as w:
        client = await w.connect()
        await until(lambda: w.server.connection_count)
        draining = asyncio.ensure_future(w.server.drain(60))
        await until(lambda: len(client.goaways) == 2)
        await w.server.stop()
        await client.loses()
        await draining


async def test_a_peer_that_answers_no_ping_is_drained_by_time() -> None:
    async with world() as w:
        client = await w.connect()
        await asyncio.sleep(0)
        client.transport.pause_reading()
        draining = asyncio.ensure_future(w.server.drain(5))
        await w.clock.pass_time(6)
        await draining
        client.transport.resume_reading()
        await client.loses()


async def test_calls_end_normally_after_the_goaway_of_the_peer() -> None:
    async with world() as w:
        client = await w.connect()
        stream = client.call(HOLD, b"x")
        await until(lambda: w.held)
        client.write(GoAwayFrame(0).serialize())
        await asyncio.sleep(0)
        w.release.set()
        assert await client.ends(stream) == (0, "")
        await w.clock.pass_time(PEER_CLOSE_S + 0.1)
        await until(lambda: client.is_lost)


async def test_stop_answers_running_calls() -> None:
    async with world() as w:
        client = await w.connect()
        stream = client.call(HOLD, b"x")
        await until(lambda: w.held)
        await w.server.stop()
        assert await client.ends(stream) == (GrpcStatus.UNAVAILABLE, "the proxy stops")
        assert w.cancelled_count == 1


async def test_a_connection_too_many_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with world(connections_max=2) as w:
        clients = [await w.connect() for _ in range(3)]
        await until(lambda: clients[2].is_lost)
        assert w.server.refused_count == 1
        assert events.GRPC_CONNECTION_REFUSED in caplog.messages
        assert await clients[1].ends(clients[1].call(ECHO, b"x")) == (0, "")
        for client in clients:
            client.transport.close()
        await until(lambda: not w.server.connection_count)
        await w.is_well()


async def test_log_lines_about_bad_peers_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world() as w:
        for _ in range(100):
            client = await w.connect(starts=False)
            client.write(b"garbage")
        await w.is_well()
    assert caplog.messages.count(events.GRPC_CONNECTION_CLOSED) == 20
