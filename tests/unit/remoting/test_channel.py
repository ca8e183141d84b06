"""One channel on a fake transport: when bytes are written, and what each bound does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sim.memory import ManualClock
from tandemmq.errors import BrokerUnreachable, Busy, LocalProtocolError, RequestTimeout, TandemError
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FRAME_BYTES_MAX, FrameDecoder, encode_frame
from tandemmq.remoting.channel import FULL_READ_BYTES, Channel
from tandemmq.remoting.options import ChannelLimits
from tandemmq.runtime.machine import LoopClock


class FakeTransport(asyncio.Transport):
    """A transport that keeps the writes; the test sets `unsent`, the bytes not accepted by the kernel."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.2", 5000), "sockname": ("10.0.0.1", 10911)})
        self.writes: list[bytes] = []
        self.calls: list[str] = []
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.calls.append("writelines")
        self.writes.append(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limits {low}..{high}")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class Harness:
    """A connected channel with a clock controlled by the test."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.requests: list[Command] = []
        self.channel = Channel(
            lambda _, command: self.requests.append(command), clock=self.clock, limits=ChannelLimits(**limits)
        )
        self.transport = FakeTransport()
        self.channel.connection_made(self.transport)
        self.answers: list[Command | TandemError] = []

    def sent(self) -> list[Command]:
        return FrameDecoder().feed(b"".join(self.transport.writes))

    def start(self, code: int = 10, timeout_s: float = 3.0) -> int:
        return self.channel.start_request(Command.request(code), self.answers.append, timeout_s)


async def test_an_answer_of_the_same_turn_leaves_in_it() -> None:
    """The store answers sends at the end of the turn in which they came; they leave in that turn."""
    loop = asyncio.get_running_loop()

    def answer_soon(channel: Channel, command: Command) -> None:
        loop.call_soon(channel.send, command.reply())

    channel = Channel(answer_soon, clock=LoopClock(), limits=ChannelLimits())
    transport = FakeTransport()
    channel.connection_made(transport)
    request = Command.request(10)
    request.opaque = 1
    channel.data_received(encode_frame(request))
    writes = loop.create_future()
    loop.call_soon(lambda: writes.set_result(len(transport.writes)))
    assert await writes == 1


def test_frames_of_one_turn_leave_in_one_write() -> None:
    harness = Harness()
    request = Command.request(10)
    for body in (b"1", b"2", b"3"):
        harness.channel.send(request.reply(body=body))
    harness.channel.send_frame(
        encode_frame(request.reply(body=b"4"))[:5], encode_frame(request.reply(body=b"4"))[5:]
    )
    assert harness.transport.writes == []
    harness.clock.run_soon()
    assert len(harness.transport.writes) == 1
    assert [command.body for command in harness.sent()] == [b"1", b"2", b"3", b"4"]
    harness.clock.run_soon()
    assert len(harness.transport.writes) == 1


def test_large_bodies_are_handed_over_without_a_copy() -> None:
    harness = Harness()
    body = memoryview(bytes(200_000)).toreadonly()
    harness.channel.send(Command.request(10).reply(body=body))
    harness.clock.run_soon()
    assert "writelines" in harness.transport.calls
    assert harness.sent()[0].body == body


def test_requests_of_the_peer_are_given_out_in_order() -> None:
    harness = Harness()
    stream = b"".join(encode_frame(Command.request(code)) for code in (1, 2, 3))
    for start in range(0, len(stream), 7):
        harness.channel.data_received(stream[start : start + 7])
    assert [command.code for command in harness.requests] == [1, 2, 3]


def test_endpoints_are_known() -> None:
    harness = Harness(write_buffer_high_bytes=1000)
    assert harness.channel.peer == ("10.0.0.2", 5000)
    assert harness.channel.local == ("10.0.0.1", 10911)
    assert harness.transport.calls == ["limits 250..1000"]
    assert repr(harness.channel) == "<Channel 10.0.0.2:5000>"


def test_answers_find_their_request_in_any_order() -> None:
    harness = Harness()
    opaques = [harness.start(code) for code in (10, 11, 12)]
    assert len(set(opaques)) == 3
    assert 0 not in opaques
    harness.clock.run_soon()
    for request in reversed(harness.sent()):
        harness.channel.data_received(encode_frame(request.reply(request.code)))
    assert [answer.code for answer in harness.answers if isinstance(answer, Command)] == [12, 11, 10]
    harness.channel.data_received(encode_frame(harness.sent()[0].reply()))  # late, no waiter: dropped
    assert len(harness.answers) == 3
    assert harness.channel.requests_in_flight == 0


def test_each_request_times_out_at_its_own_deadline() -> None:
    harness = Harness()
    harness.start(timeout_s=3.0)
    harness.start(timeout_s=1.0)
    harness.start(timeout_s=2.0)
    harness.clock.advance(0.99)
    assert harness.answers == []
    counts = []
    for _ in range(3):
        harness.clock.advance(1.0)
        counts.append(len(harness.answers))
    assert counts == [1, 2, 3]
    assert all(isinstance(answer, RequestTimeout) for answer in harness.answers)
    assert harness.channel.requests_in_flight == 0


def test_lost_connection_ends_all_that_wait_and_calls_on_close_once() -> None:
    harness = Harness()
    closed: list[Channel] = []
    harness.channel.on_close.append(closed.append)
    harness.start()
    harness.start()
    harness.channel.connection_lost(ConnectionResetError("reset"))
    harness.channel.connection_lost(None)
    assert [type(answer) for answer in harness.answers] == [BrokerUnreachable] * 2
    assert "reset" in str(harness.answers[0])
    assert closed == [harness.channel]
    assert harness.channel.is_closed
    with pytest.raises(BrokerUnreachable):
        harness.start()
    harness.clock.advance(100)  # no timer is left that could touch it
    assert len(harness.answers) == 2


def test_one_request_too_many_is_busy() -> None:
    harness = Harness(requests_in_flight_max=2)
    first = harness.start()
    harness.start()
    with pytest.raises(Busy):
        harness.start()
    harness.channel.forget_request(first)
    harness.start()


def test_request_that_cannot_be_encoded_leaves_nothing_waiting() -> None:
    harness = Harness()
    with pytest.raises(LocalProtocolError):
        harness.channel.start_request(
            Command.request(10, body=bytes(FRAME_BYTES_MAX)), harness.answers.append, 1.0
        )
    assert harness.channel.requests_in_flight == 0


def test_bad_frame_closes_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.channel.data_received(b"GET / HTTP/1.1\r\n\r\n")
    harness.channel.data_received(b"more of it")
    assert harness.transport.calls[-1] == "close"
    assert [record.message for record in caplog.records] == ["channel.closed_by_bad_frame"]
    assert harness.channel.close_reason.startswith("bad frame")


def test_oversized_frame_closes() -> None:
    harness = Harness(frame_bytes_max=1000)
    harness.channel.data_received(encode_frame(Command.request(10, body=bytes(2000)))[:8])
    assert harness.channel.is_closed
    assert harness.requests == []


def test_close_sends_what_is_queued_and_gives_up_after_a_while() -> None:
    harness = Harness(close_linger_s=5)
    harness.channel.send(Command.request(10).reply())
    harness.channel.close("enough")
    harness.channel.send(Command.request(10).reply())
    harness.channel.send_frame(b"dropped")
    harness.clock.run_soon()
    assert len(harness.sent()) == 1
    assert harness.transport.calls[-1] == "close"
    harness.clock.advance(5.1)
    assert harness.transport.calls[-1] == "abort"


def test_peer_that_does_not_take_answers_is_not_read_from() -> None:
    harness = Harness()
    harness.channel.pause_writing()
    assert harness.transport.calls[-1] == "pause_reading"
    harness.channel.resume_writing()
    assert harness.transport.calls[-1] == "resume_reading"
    harness.clock.advance(1000)
    assert not harness.channel.is_closed


def test_peer_that_floods_is_read_once_in_a_turn_of_the_loop() -> None:
    harness = Harness()
    request = encode_frame(Command.request(10, body=bytes(1000)))
    flood = request * (2 * FULL_READ_BYTES // len(request) + 1)
    harness.channel.data_received(flood[: FULL_READ_BYTES - 1])
    assert "pause_reading" not in harness.transport.calls
    harness.channel.data_received(flood[FULL_READ_BYTES - 1 :][:FULL_READ_BYTES])
    assert harness.transport.calls[-1] == "pause_reading"
    harness.clock.run_soon()
    assert harness.transport.calls[-1] == "resume_reading"


def test_peer_that_floods_and_does_not_take_answers_is_not_read_from() -> None:
    harness = Harness()
    harness.channel.data_received(encode_frame(Command.request(10, body=bytes(FULL_READ_BYTES))))
    harness.channel.pause_writing()
    harness.clock.run_soon()
    assert "resume_reading" not in harness.transport.calls
    harness.channel.resume_writing()
    assert harness.transport.calls[-1] == "resume_reading"


def test_channel_that_a_flood_closes_is_read_no_more() -> None:
    harness = Harness()
    harness.channel._on_request = lambda channel, _: channel.close("enough")
    harness.channel.data_received(encode_frame(Command.request(10, body=bytes(FULL_READ_BYTES))))
    harness.clock.run_soon()
    assert not {"pause_reading", "resume_reading"} & {*harness.transport.calls}


def test_peer_that_takes_no_byte_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(slow_reader_close_s=30)
    harness.channel.send(Command.request(10).reply(body=bytes(1000)))
    harness.clock.run_soon()
    harness.transport.unsent = 900
    harness.channel.pause_writing()
    harness.clock.advance(29)
    harness.transport.unsent = 800  # slow, but it reads
    harness.clock.advance(2)
    assert not harness.channel.is_closed
    harness.clock.advance(30)
    assert harness.channel.is_closed
    assert harness.transport.calls[-1] == "abort"
    assert [record.message for record in caplog.records] == ["channel.closed_by_slow_reader"]


def test_too_much_unsent_disconnects() -> None:
    harness = Harness(write_buffer_high_bytes=1000, write_buffer_bytes_max=5000)
    harness.transport.unsent = 5001
    harness.channel.send(Command.request(10).reply())
    harness.clock.run_soon()
    assert harness.transport.calls[-1] == "abort"


def test_oneway_requests_get_an_opaque() -> None:
    harness = Harness()
    harness.channel.send(Command.request(40, oneway=True))
    harness.channel.send(Command.request(40, oneway=True))
    harness.clock.run_soon()
    first, second = harness.sent()
    assert 0 < first.opaque < second.opaque
    assert first.is_oneway


def test_end_of_stream_sends_what_is_queued() -> None:
    harness = Harness()
    harness.channel.send(Command.request(10).reply())
    assert harness.channel.eof_received() is False
    assert len(harness.sent()) == 1
    assert harness.channel.is_closed


async def test_awaited_request_is_forgotten_when_cancelled() -> None:
    harness = Harness()
    waiting = asyncio.ensure_future(harness.channel.request(Command.request(10), 3.0))
    await asyncio.sleep(0)
    assert harness.channel.requests_in_flight == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert harness.channel.requests_in_flight == 0


async def test_awaited_request_gives_the_answer_or_raises() -> None:
    harness = Harness()
    waiting = asyncio.ensure_future(harness.channel.request(Command.request(10), 3.0))
    await harness.clock.pass_time(0)
    harness.channel.data_received(encode_frame(harness.sent()[0].reply(17, remark="no")))
    assert (await waiting).code == 17
    late = asyncio.ensure_future(harness.channel.request(Command.request(10), 3.0))
    await harness.clock.pass_time(4)
    with pytest.raises(RequestTimeout):
        await late
