"""The times of requests on one channel: from arrival to the answer, by codes and outcome."""

from __future__ import annotations

import pytest
from test_channel import FakeTransport

from sim.memory import ManualClock
from tandemmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame, encode_frame_head
from tandemmq.remoting import rpc_times
from tandemmq.remoting.options import ChannelLimits
from tandemmq.remoting.rpc_times import MeasuredChannel, RpcTimes, read_response, row_labels

SEND = int(RequestCode.SEND_MESSAGE_V2)


class Rig:
    """A measured channel whose requests the test answers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.times = RpcTimes(self.clock)
        self.requests: list[Command] = []
        self.channel = MeasuredChannel(
            lambda _, command: self.requests.append(command),
            self.times,
            clock=self.clock,
            limits=ChannelLimits(),
        )
        self.channel.connection_made(FakeTransport())

    def receive(self, code: int, opaque: int, *, flag: int = 0, serialize_type: int = 0) -> Command:
        request = Command(code=code, opaque=opaque, flag=flag, serialize_type=serialize_type)
        self.channel.data_received(encode_frame(request))
        return self.requests[-1]

    def receive_block(self, *opaques: int) -> None:
        """Notes requests of a block, as the handler of a block does."""
        self.channel.last_read_at = self.clock.monotonic()
        self.channel.begin_block(SEND, opaques)

    def counts(self) -> dict[tuple[str, str, str, str], int]:
        return {row_labels(row): times.count for row, times in self.times.rows.items()}


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_answers_count_with_their_time_whichever_way_they_are_sent(serialize_type: int) -> None:
    rig = Rig()
    requests = [rig.receive(SEND, opaque, serialize_type=serialize_type) for opaque in (7, 8, 9)]
    rig.clock.advance(0.004)
    rig.channel.send(requests[2].reply(ResponseCode.SYSTEM_BUSY, remark='"opaque":7,'))
    rig.channel.send_frame(encode_frame_head(requests[0].reply(), 3), b"abc")
    rig.channel.send(requests[1].reply(body=bytes(100_000)))
    assert rig.counts() == {
        ("send_message_v2", "system_busy", "false", "success"): 1,
        ("send_message_v2", "success", "false", "success"): 2,
    }
    assert [round(times.total) for times in rig.times.rows.values()] == [4, 8]


def test_each_request_of_a_block_counts_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    request = rig.receive(SEND, 6)
    rig.receive_block(7, 8, 9)
    rig.clock.advance(0.004)
    rig.channel.send(request.reply(ResponseCode.FLUSH_SLAVE_TIMEOUT))
    rig.channel.send_answers([7, 8], b"the answers to 7 and 8")
    rig.channel.close("test")
    rig.channel.send_answers([9], b"not sent any more")
    rig.channel.connection_lost(None)
    assert rig.counts() == {
        ("send_message_v2", "flush_slave_timeout", "false", "success"): 1,
        ("send_message_v2", "success", "false", "success"): 2,
        ("send_message_v2", "", "false", "cancelled"): 1,
    }
    assert [round(times.total) for times in rig.times.rows.values()] == [4, 8, 4]
    monkeypatch.setattr(rpc_times, "WAITING_MAX", 2)
    rig = Rig()
    rig.receive_block(1, 2, 3)
    rig.channel.send_answers([1, 2, 3], b"")
    assert rig.counts() == {("send_message_v2", "success", "false", "success"): 2}


def test_our_own_requests_are_no_answers() -> None:
    rig = Rig()
    request = rig.receive(SEND, 1)
    rig.channel.send(Command.request(RequestCode.CHECK_TRANSACTION_STATE))
    rig.channel.start_request(Command.request(RequestCode.CHECK_TRANSACTION_STATE), lambda _: None, 1.0)
    assert not rig.counts()
    rig.channel.send(request.reply())
    assert rig.counts() == {("send_message_v2", "success", "false", "success"): 1}


def test_oneway_requests_held_requests_and_those_without_an_answer() -> None:
    rig = Rig()
    rig.receive(SEND, 1, flag=FLAG_ONEWAY)
    rig.receive(RequestCode.PULL_MESSAGE, 2)
    rig.channel.mark_held(2)
    rig.channel.mark_held(3)
    rig.channel.close("test")
    rig.channel.send(rig.requests[-1].reply())
    rig.channel.send_frame(encode_frame(rig.requests[-1].reply()))
    rig.channel.connection_lost(None)
    assert rig.counts() == {
        ("send_message_v2", "success", "false", "oneway"): 1,
        ("pull_message", "", "true", "cancelled"): 1,
    }


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for number in range(rpc_times.UNKNOWN_MAX + 5):
        rig.channel.send(rig.receive(60_000 + number, number).reply(-5))
    assert len(rig.times.rows) == rpc_times.UNKNOWN_MAX
    assert rig.counts()["60000", "-5", "false", "success"] == 1
    monkeypatch.setattr(rpc_times, "WAITING_MAX", 2)
    requests = [rig.receive(SEND, opaque) for opaque in (1, 2, 3)]
    for request in requests:
        rig.channel.send(request.reply())
    assert rig.counts()["send_message_v2", "success", "false", "success"] == 2
    monkeypatch.setattr(rpc_times, "ROWS_MAX", 0)
    rig.channel.send(rig.receive(SEND, 4).reply(ResponseCode.SYSTEM_ERROR))
    assert ("send_message_v2", "system_error", "false", "success") not in rig.counts()


def test_a_frame_is_read_as_it_was_encoded() -> None:
    for serialize_type in (0, 1):
        request = Command(code=SEND, opaque=-12, serialize_type=serialize_type)
        reply = request.reply(ResponseCode.TOPIC_NOT_EXIST, remark='a "opaque":5, b')
        reply.extra_fields = {"note": '"opaque":6,'}
        assert read_response(memoryview(encode_frame(reply))) == (-12, ResponseCode.TOPIC_NOT_EXIST)
