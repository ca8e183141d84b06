"""Tests reading a range: complete and in order, despite any behaviour of the brokers."""

from __future__ import annotations

import logging

import pytest
from spark_fakes import FakeNet, FakeQueue

import tandemmq.spark.wire
from tandemmq.errors import BrokerUnreachable, NotPermitted, OffsetOutOfRange
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.record import decode_record
from tandemmq.spark.columns import select_columns
from tandemmq.spark.fetch import RangeReader
from tandemmq.spark.offsets import OffsetRange, QueueKey
from tandemmq.spark.options import PropertiesAs, parse_options
from tandemmq.spark.read_task import read_task
from tandemmq.spark.task import TaskRanges
from tandemmq.telemetry import events

QUEUE = QueueKey("T", "b", 0)


def _reader(net: FakeNet, begin: int, end: int, *, queue_id: int = 0, **raw: str) -> RangeReader:
    options = parse_options({"nameserver": "ns:1", "topic": "T", **raw}, is_streaming=True)
    item = OffsetRange(QUEUE._replace(queue_id=queue_id), begin, end)
    return RangeReader(item, net.replicas.get("b", {}), options)


def _offsets(reader: RangeReader) -> list[int]:
    return [
        decode_record(chunk.data, int(at)).queue_offset for chunk in reader.read() for at in chunk.positions
    ]


@pytest.mark.parametrize("pull_count_max", [1, 7, 32, 5000])
def test_a_range_comes_whole_and_in_order_however_short_the_answers_are(
    net: FakeNet, pull_count_max: int
) -> None:
    net.add_master(T_0=FakeQueue(0, 3000)).pull_count_max = pull_count_max
    assert _offsets(_reader(net, 10, 2990)) == list(range(10, 2990))


def test_sizes_that_a_broker_of_ours_tells_are_used_and_checked(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 500))
    master.is_ours = True
    assert _offsets(_reader(net, 10, 490)) == list(range(10, 490))
    master.is_lying = True
    with pytest.raises(BrokerUnreachable, match="sizes in an answer are not those of its records"):
        _offsets(_reader(net, 10, 490))


def test_batches_have_at_most_the_rows_that_were_allowed(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 95)).pull_count_max = 50
    options = parse_options({"nameserver": "ns:1", "topic": "T", "arrowrows": "20"}, is_streaming=True)
    task = TaskRanges((OffsetRange(QUEUE, 0, 95),), {"b": net.replicas["b"]})
    columns = select_columns(("queueOffset", "properties"), PropertiesAs.MAP)
    batches = list(read_task(task, options, columns))
    assert [batch.num_rows for batch in batches] == [20, 20, 10, 20, 20, 5]
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == list(range(95))


def test_a_task_tells_what_it_took_if_asked(net: FakeNet, caplog: pytest.LogCaptureFixture) -> None:
    net.add_master(T_0=FakeQueue(0, 90)).pull_count_max = 30
    net.add_slave(T_0=FakeQueue(0, 50)).pull_count_max = 30
    task = TaskRanges((OffsetRange(QUEUE, 0, 90),), {"b": net.replicas["b"]})
    for explain in ("false", "true"):
        raw = {"nameserver": "ns:1", "topic": "T", "readfrom": "prefer-slave", "explain": explain}
        options = parse_options(raw, is_streaming=True)
        columns = select_columns(("queueOffset",), PropertiesAs.MAP)
        assert sum(batch.num_rows for batch in read_task(task, options, columns)) == 90
    (reported,) = [record for record in caplog.records if record.message == events.READ_FINISHED]
    assert (reported.queues, reported.messages) == ("T@b:0", 90)
    assert reported.bytes > 90 * 90
    assert reported.answers >= 4
    # The slave lacks the last messages.
    assert reported.retries == 1


def test_nothing_is_asked_twice_once_the_brokers_step_is_known(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 3200))
    assert len(_offsets(_reader(net, 0, 3200))) == 3200
    assert len(master.pulls) <= 3200 / 32 + 2


def test_answers_that_change_their_size_leave_no_gap(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 1000))
    found: list[int] = []
    for chunk in _reader(net, 0, 1000).read():
        found += [decode_record(chunk.data, int(at)).queue_offset for at in chunk.positions]
        master.pull_count_max = 3 + len(found) * 7 % 50
    assert found == list(range(1000))


def test_filtered_records_come_once_and_the_end_is_kept(net: FakeNet) -> None:
    queue = FakeQueue(0, 2000, tag_of=lambda offset: "ab"[offset % 7 == 0])
    net.add_master(T_0=queue)
    wanted = [offset for offset in range(5, 1500) if offset % 7 == 0]
    assert _offsets(_reader(net, 5, 1500, tags="b")) == wanted


def test_a_filter_that_matches_nothing_reads_to_the_end(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5000))
    assert _offsets(_reader(net, 0, 5000, tags="none")) == []


def test_prefer_slave_asks_no_master_while_the_slave_has_the_range(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 500))
    slave = net.add_slave(T_0=FakeQueue(0, 500))
    assert len(_offsets(_reader(net, 0, 500, readFrom="prefer-slave"))) == 500
    assert (bool(master.pulls), bool(slave.pulls)) == (False, True)


def test_fetch_reads_messages_missing_on_the_slave_from_the_master(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 500))
    net.add_slave(T_0=FakeQueue(0, 123))
    assert _offsets(_reader(net, 100, 500, readFrom="prefer-slave")) == list(range(100, 500))


def test_a_slave_that_dies_while_being_read_is_replaced_by_the_master(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 500))
    net.add_slave(T_0=FakeQueue(0, 500)).dies_after = 4
    assert _offsets(_reader(net, 0, 500, readFrom="prefer-slave")) == list(range(500))


def test_a_master_that_dies_is_replaced_by_the_slave(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 500)).dies_after = 4
    net.add_slave(T_0=FakeQueue(0, 500))
    assert _offsets(_reader(net, 0, 500, readFrom="master")) == list(range(500))


def test_the_suggestion_of_a_broker_is_followed(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 500))
    slave = net.add_slave(T_0=FakeQueue(0, 500))
    master.suggested_id = slave.suggested_id = 1
    assert _offsets(_reader(net, 0, 500)) == list(range(500))
    assert len(master.pulls) == 1
    assert slave.pulls


def test_brokers_that_suggest_each_other_do_not_stop_the_reader(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5000)).suggested_id = 1
    net.add_slave(T_0=FakeQueue(0, 5000))
    assert _offsets(_reader(net, 0, 5000)) == list(range(5000))


def test_deleted_messages_fail_the_query(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(50, 100))
    with pytest.raises(OffsetOutOfRange, match=r"T@b:0: the query is at queue offset 10, .*\[50, 100\)"):
        _offsets(_reader(net, 10, 100))


def test_deleted_messages_are_skipped_when_losses_are_allowed(
    net: FakeNet, caplog: pytest.LogCaptureFixture
) -> None:
    net.add_master(T_0=FakeQueue(50, 100))
    with caplog.at_level(logging.WARNING):
        assert _offsets(_reader(net, 10, 100, failOnDataLoss="false")) == list(range(50, 100))
    assert events.MESSAGES_LOST in caplog.text


def test_a_slave_alone_never_proves_a_loss(net: FakeNet) -> None:
    net.add_slave(T_0=FakeQueue(50, 100))
    with pytest.raises(BrokerUnreachable, match="no replica returned"):
        _offsets(_reader(net, 10, 100, failOnDataLoss="false", **{"fetchOffset.numRetries": "2"}))


def test_a_master_that_lost_its_tail_fails_the_query(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 80))
    with pytest.raises(OffsetOutOfRange, match=r"queue offset 80, the broker has \[0, 80\)"):
        _offsets(_reader(net, 0, 100))


def test_when_nobody_answers_the_error_names_the_range(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 100)).is_down = True
    with pytest.raises(
        BrokerUnreachable, match=r"no replica returned T@b:0, queue offsets \[0, 100\): b-0:1"
    ):
        _offsets(_reader(net, 0, 100, **{"fetchOffset.numRetries": "3"}))


def test_the_pauses_between_attempts_double_from_the_interval_of_the_options(
    net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(tandemmq.spark.wire.time, "sleep", pauses.append)
    net.add_master(T_0=FakeQueue(0, 100)).is_down = True
    several = {"fetchOffset.numRetries": "4", "fetchOffset.retryIntervalMs": "30"}
    with pytest.raises(BrokerUnreachable):
        _offsets(_reader(net, 0, 100, **several))
    assert pauses == pytest.approx([0.03, 0.06, 0.12, 0.24][: len(pauses)])
    assert len(pauses) >= 3


def test_a_broker_that_comes_back_under_another_address_is_found(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 100)).is_down = True
    reader = _reader(net, 0, 100)
    net.add_master(T_0=FakeQueue(0, 100))
    net.brokers["elsewhere:1"] = net.brokers.pop("b-0:1")
    net.replicas["b"] = {0: "elsewhere:1"}
    assert _offsets(reader) == list(range(100))


def test_a_replica_that_did_not_answer_a_moment_ago_is_asked_last(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 100))
    slave = net.add_slave(T_0=FakeQueue(0, 100))
    net.suspects = {"b-1:1"}
    assert len(_offsets(_reader(net, 0, 100, readFrom="prefer-slave"))) == 100
    assert (bool(master.pulls), bool(slave.pulls)) == (True, False)
    net.suspects = {"b-0:1"}
    assert len(_offsets(_reader(net, 0, 100, readFrom="master"))) == 100
    assert slave.pulls


def test_a_busy_slave_is_passed_over(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 100))
    net.add_slave(T_0=FakeQueue(0, 100)).refuse_pulls_with = ResponseCode.SYSTEM_BUSY
    assert _offsets(_reader(net, 0, 100, readFrom="prefer-slave")) == list(range(100))


def test_a_refusal_by_the_master_is_final(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 100)).refuse_pulls_with = ResponseCode.NO_PERMISSION
    with pytest.raises(NotPermitted):
        _offsets(_reader(net, 0, 100))


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_topic_that_is_deleted_under_a_task_is_a_loss(
    net: FakeNet, caplog: pytest.LogCaptureFixture, is_listed: bool
) -> None:
    """Tests a deleted topic, also while a name server still lists it."""
    net.add_master(U_0=FakeQueue())
    net.add_master(T_0=FakeQueue(0, 100))
    strict, lenient = _reader(net, 10, 100), _reader(net, 10, 100, failOnDataLoss="false")
    listed = dict(net.queue_counts)
    net.delete_topic("T")
    if is_listed:
        net.queue_counts = listed
    with pytest.raises(
        OffsetOutOfRange, match=r"queue offset 10, and the queue is gone.* failOnDataLoss=false"
    ):
        _offsets(strict)
    assert _offsets(lenient) == []
    (record,) = caplog.records
    assert (record.queue, record.from_offset, record.messages) == ("T@b:0", 10, 90)  # type: ignore[attr-defined]


def test_a_queue_that_is_taken_away_under_a_task_is_a_loss(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 5), T_1=FakeQueue(0, 5))
    reader = _reader(net, 2, 5, queue_id=1)
    net.queue_counts["T"] = {"b": 1}
    master.refuse_pulls_with = ResponseCode.INVALID_PARAMETER
    with pytest.raises(OffsetOutOfRange, match=r"T@b:1: .* queue offset 2, and the queue is gone"):
        _offsets(reader)
