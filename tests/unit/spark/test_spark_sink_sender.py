"""Tests sends: several in flight, retried where useful, never two at once to one fixed queue."""

from __future__ import annotations

import time

import pytest
from spark_fakes import FakeConnection, FakeNet, FakeQueue

import tandemmq.spark.sink.sender
from tandemmq.errors import BrokerUnreachable, ConfigError, MessageIllegal, SendNotConfirmed
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.spark.sink.encode import RowShipment
from tandemmq.spark.sink.options import parse_sink_options
from tandemmq.spark.sink.sender import RowSender
from tandemmq.spark.wire import Security

OPTIONS = parse_sink_options({"nameServer": "ns:1", "topic": "T", "retries": "3", "inFlight": "2"})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.spark.sink.sender.time, "sleep", lambda seconds: None)


def ship(body: bytes, *, queue_index: int | None = None, sender: RowSender | None = None) -> RowShipment:
    queue = None if queue_index is None or sender is None else sender.queues("T")[queue_index]
    return RowShipment(topic="T", queue=queue, body=body, count=1)


def bodies(net: FakeNet, address: str = "b-0:1") -> list[bytes]:
    return [sent.body for sent in net.brokers[address].sent]


def test_free_shipments_go_round_the_queues(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(), T_1=FakeQueue(), T_2=FakeQueue())
    sender = RowSender(OPTIONS, turn=1)
    for n in range(4):
        sender.send(ship(b"%d" % n))
    sender.finish()
    sender.close()
    assert [s.header.queue_id for s in net.brokers["b-0:1"].sent] == [2, 0, 1, 2]
    assert (sender.message_count, sender.send_count) == (4, 4)


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    ],
)
def test_retriable_send_error_is_retried(net: FakeNet, code: ResponseCode) -> None:
    net.add_master(T_0=FakeQueue()).send_codes = [int(code), int(code)]
    sender = RowSender(OPTIONS)
    sender.send(ship(b"x"))
    sender.finish()
    assert bodies(net) == [b"x"] * 3
    assert sender.message_count == 1


def test_the_attempts_have_an_end(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue()).send_codes = [int(ResponseCode.SLAVE_NOT_AVAILABLE)] * 9
    sender = RowSender(OPTIONS)
    sender.send(ship(b"x"))
    with pytest.raises(SendNotConfirmed, match="SLAVE_NOT_AVAILABLE"):
        sender.finish()
    assert len(bodies(net)) == 4


def test_the_pauses_between_attempts_double_from_the_interval_of_the_options(
    net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(tandemmq.spark.sink.sender.time, "sleep", pauses.append)
    raw = {"nameserver": "ns:1", "topic": "T", "retries": "7", "retryIntervalMs": "20"}
    net.add_master(T_0=FakeQueue()).send_codes = [int(ResponseCode.SYSTEM_BUSY)] * 6
    sender = RowSender(parse_sink_options(raw))
    sender.send(ship(b"x"))
    sender.finish()
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.32])


def test_an_answer_is_awaited_for_as_long_as_the_options_say(
    net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    receive = FakeConnection.receive

    def note(connection: FakeConnection, opaque: int, deadline: float) -> Command:
        waits.append(deadline - time.monotonic())
        return receive(connection, opaque, deadline)

    monkeypatch.setattr(FakeConnection, "receive", note)
    net.add_master(T_0=FakeQueue())
    raw = {"nameserver": "ns:1", "topic": "T", "sendTimeoutMs": "77000"}
    sender = RowSender(parse_sink_options(raw))
    sender.send(ship(b"x"))
    sender.finish()
    assert 70 < waits[-1] <= 77


def test_a_refusal_for_good_ends_at_once(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue()).send_codes = [int(ResponseCode.MESSAGE_ILLEGAL)]
    sender = RowSender(OPTIONS)
    sender.send(ship(b"x"))
    with pytest.raises(MessageIllegal):
        sender.finish()
    assert len(bodies(net)) == 1


def test_another_broker_takes_what_a_dead_one_had(net: FakeNet) -> None:
    net.add_master("a", T_0=FakeQueue()).dies_after = 0
    net.add_master("b", T_0=FakeQueue())
    sender = RowSender(OPTIONS, turn=1)
    for n in range(6):
        sender.send(ship(b"%d" % n))
    sender.finish()
    assert sorted(bodies(net)) == [b"%d" % n for n in range(6)]


def test_a_broker_that_stays_away_is_an_error(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue()).is_down = True
    sender = RowSender(OPTIONS)
    with pytest.raises(BrokerUnreachable):
        sender.send(ship(b"x"))


def test_shipments_for_one_queue_never_overtake_each_other(net: FakeNet) -> None:
    broker = net.add_master(T_0=FakeQueue(), T_1=FakeQueue())
    broker.send_codes = [0, int(ResponseCode.SYSTEM_BUSY)]
    sender = RowSender(OPTIONS)
    for n in range(4):
        sender.send(ship(b"%d" % n, queue_index=1, sender=sender))
    sender.finish()
    assert bodies(net) == [b"0", b"1", b"1", b"2", b"3"]
    assert {s.header.queue_id for s in broker.sent} == {1}


def test_a_topic_that_does_not_exist_takes_the_template_of_new_ones(net: FakeNet) -> None:
    net.add_master(TBW102_7=FakeQueue())
    sender = RowSender(OPTIONS)
    assert [queue.queue_id for queue in sender.queues("New")] == [0, 1, 2, 3]
    sender.send(RowShipment(topic="New", queue=None, body=b"x", count=1))
    sender.finish()
    assert net.brokers["b-0:1"].sent[0].header.default_topic == "TBW102"


def test_options_of_the_sink() -> None:
    options = parse_sink_options(
        {"nameserver": "h:1", "topic": "T", "batchbytes": "64k", "checkpointlocation": "x", "path": "y"}
    )
    assert (options.batch_bytes, options.in_flight, options.group) == (65536, 4, "DEFAULT_PRODUCER")
    raw = {"nameserver": "h:1", "topic": "T", "accesskey": "user", "secretkey": "hidden", "tls": "true"}
    secured = parse_sink_options(raw)
    assert secured.security == Security(access_key="user", secret_key="hidden", is_tls=True)
    assert "hidden" not in repr(secured)
    for bad, why in (
        ({"semantics": "exactly-once"}, "needs the option topic"),
        ({"mode": "exactly-once", "topic": "T", "checkpointLocation": "s3://b/c"}, "set stateDir"),
        ({"mode": "exactly-once", "topic": "T", "writeId": "w"}, "writeId needs stateDir"),
        ({"mode": "transactional", "topic": "T", "writeId": "w"}, "writeId needs stateDir"),
        ({"mode": "transactional", "topic": "T", "checkpointLocation": "hdfs://b/c"}, "set stateDir"),
        ({"mode": "transactional", "topic": "T", "transactionRows": "0"}, "transactionRows"),
        ({"semantics": "perhaps"}, "expected at-least-once, exactly-once, transactional"),
        ({"inFlght": "3"}, "did you mean inFlight"),
        ({"batchBytes": "5m"}, "brokers accept at most"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_sink_options({"nameserver": "h:1", **bad})
