"""Tests the streaming reader with Spark's call sequences: two calls for the start, and replays."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from spark_fakes import FakeNet, FakeQueue

import tandemmq.spark.stream
from tandemmq.errors import BrokerUnreachable, ConfigError, NoRoute, OffsetOutOfRange
from tandemmq.spark.columns import select_columns
from tandemmq.spark.offsets import PackingOptions
from tandemmq.spark.options import PropertiesAs, parse_options
from tandemmq.spark.source import TopicReader
from tandemmq.spark.stream import TopicStreamReader
from tandemmq.telemetry import events

COLUMNS = select_columns(("queueId", "queueOffset", "brokerName"), PropertiesAs.MAP)
ALL = ReadAllAvailable()


def _stream(**raw: str) -> TopicStreamReader:
    options = parse_options({"nameserver": "ns:1", "topic": "T", **raw}, is_streaming=True)
    return TopicStreamReader(options, COLUMNS)


def _batch(**raw: str) -> TopicReader:
    options = parse_options({"nameserver": "ns:1", "topic": "T", **raw}, is_streaming=False)
    return TopicReader(options, COLUMNS)


def _store(offset: dict[str, Any]) -> dict[str, Any]:
    """Returns the offset after a round trip through Spark's checkpoint."""
    stored: dict[str, Any] = json.loads(json.dumps(offset))
    return stored


def _rows(reader: TopicStreamReader | TopicReader, tasks: list[Any]) -> list[tuple[int, int]]:
    found = []
    for task in pickle.loads(pickle.dumps(tasks)):
        for batch in reader.read(task):
            found += [(row["queueId"], row["queueOffset"]) for row in batch.to_pylist()]
    return found


def test_latest_loses_nothing_that_arrives_between_the_calls(net: FakeNet) -> None:
    queue = FakeQueue(0, 100)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="latest")
    first = reader.initialOffset()
    queue.end = 110
    end = reader.latestOffset(_store(first), ALL)
    queue.end = 120
    assert reader.initialOffset() == first
    assert _rows(reader, reader.partitions(first, end)) == []
    later = reader.latestOffset(_store(end), ALL)
    assert _rows(reader, reader.partitions(_store(end), later)) == [(0, n) for n in range(110, 120)]


def test_earliest_is_pinned_although_retention_moves_it(net: FakeNet) -> None:
    queue = FakeQueue(10, 20)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="earliest")
    end = _store(reader.latestOffset(reader.initialOffset(), ALL))
    queue.begin = 15
    assert reader.partitions(reader.initialOffset(), end)[0].ranges[0].begin == 10


def test_nothing_new_returns_the_start_itself(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5))
    reader = _stream(startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) is end
    assert reader.partitions(end, end) == []


def test_a_limit_is_shared_out_and_read_all_available_overrides_it(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 900), T_1=FakeQueue(0, 100))
    reader = _stream(startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    limited = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert limited["o"] == {"T": {"b": {"0": 90, "1": 10}}}
    assert reader.latestOffset(reader.initialOffset(), ALL)["o"] == {"T": {"b": {"0": 900, "1": 100}}}


def test_a_limit_in_bytes_is_measured(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5000))
    reader = _stream(startingOffsets="earliest", maxBytesPerTrigger="11000")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(11_000)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(11_000))
    assert 50 <= end["o"]["T"]["b"]["0"] <= 150


def test_a_minimum_is_waited_for_but_not_longer_than_the_delay(
    net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = FakeQueue(0, 5)
    net.add_master(T_0=queue)
    now = 1000.0
    monkeypatch.setattr(tandemmq.spark.stream.time, "monotonic", lambda: now)
    reader = _stream(startingOffsets="earliest", minOffsetsPerTrigger="100", maxTriggerDelay="30s")
    least = reader.getDefaultReadLimit()
    assert least == ReadMinRows(100)
    start = reader.latestOffset(reader.initialOffset(), least)
    assert start["o"]["T"]["b"]["0"] == 5
    queue.end = 104
    assert reader.latestOffset(start, least) is start
    assert reader.latestOffset(start, ALL)["o"]["T"]["b"]["0"] == 104
    queue.end = 105
    enough = reader.latestOffset(start, least)
    assert enough["o"]["T"]["b"]["0"] == 105
    queue.end = 106
    now += 29.0
    assert reader.latestOffset(enough, least) is enough
    now += 2.0
    assert reader.latestOffset(enough, least)["o"]["T"]["b"]["0"] == 106


def test_a_new_queue_is_pinned_while_a_minimum_is_waited_for(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5))
    reader = _stream(startingOffsets="earliest", minOffsetsPerTrigger="100")
    start = reader.latestOffset(reader.initialOffset(), ReadMinRows(100))
    net.add_master("c", T_0=FakeQueue(3, 6))
    end = reader.latestOffset(start, ReadMinRows(100))
    assert end["base"] == {"T": {"c": {"0": 3}}}
    assert reader.partitions(start, end) == []


def test_available_now_does_not_wait_for_a_minimum(net: FakeNet) -> None:
    queue = FakeQueue(0, 5)
    net.add_master(T_0=queue)
    start = _stream(startingOffsets="earliest").latestOffset({"v": 1, "init": "earliest"}, ALL)
    queue.end = 9
    reader = _stream(minOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, ReadMinRows(100))["o"]["T"]["b"]["0"] == 9


def test_available_now_ends_where_the_topic_ended_at_the_start(net: FakeNet) -> None:
    queue = FakeQueue(0, 100)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    reader.prepareForTriggerAvailableNow()
    queue.end = 500
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(60))
    second = reader.latestOffset(first, ReadMaxRows(60))
    assert second["o"]["T"]["b"]["0"] == 100
    assert reader.latestOffset(second, ReadMaxRows(60)) is second


def test_a_new_queue_and_a_new_broker_are_read_from_their_first_message(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5))
    reader = _stream(startingOffsets="latest")
    start = _store(reader.latestOffset(reader.initialOffset(), ALL))
    net.add_master("c", T_0=FakeQueue(3, 6))
    end = reader.latestOffset(start, ALL)
    assert end["base"] == {"T": {"c": {"0": 3}}}
    assert _rows(reader, reader.partitions(start, _store(end))) == [(0, 3), (0, 4), (0, 5)]


def test_a_topic_that_does_not_exist_yet_is_waited_for_and_read_from_its_start(net: FakeNet) -> None:
    reader = _stream(startingOffsets="latest")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    assert start["o"] == {}
    assert reader.latestOffset(start, ALL) is start
    net.add_master(T_0=FakeQueue(0, 5))
    assert reader.latestOffset(start, ALL)["o"] == {"T": {"b": {"0": 5}}}


def test_brokers_that_are_away_leave_positions_as_they_are(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 5))
    reader = _stream(startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    master.is_down = True
    assert reader.latestOffset(start, ALL) is start
    net.queue_counts.clear()
    assert reader.latestOffset(start, ALL) is start


def test_name_servers_that_are_away_do_not_stop_a_running_stream(net: FakeNet) -> None:
    queue = FakeQueue(0, 5)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    net.is_name_server_down = True
    queue.end = 9
    end = reader.latestOffset(start, ALL)
    assert _rows(reader, reader.partitions(start, end)) == [(0, n) for n in range(5, 9)]
    with pytest.raises(BrokerUnreachable, match="no name server answers"):
        _stream().latestOffset(start, ALL)


def test_the_first_batch_needs_every_broker_of_the_topic(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5))
    net.add_master("c", T_0=FakeQueue(0, 5)).is_down = True
    with pytest.raises(BrokerUnreachable, match="T@c:0"):
        _stream(startingOffsets="latest").latestOffset({"v": 1, "init": "latest"}, ALL)


def test_a_changed_filter_is_refused(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5))
    reader = _stream(startingOffsets="earliest", tags="a")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with pytest.raises(ConfigError, match="tags or filter differs"):
        _stream(tags="b").latestOffset(end, ALL)


def test_lost_messages_are_found_when_the_batch_is_planned(net: FakeNet) -> None:
    queue = FakeQueue(0, 50)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    queue.begin, queue.end = 60, 70
    with pytest.raises(OffsetOutOfRange, match=r"queue offset 50, the broker has \[60, 70\)"):
        reader.latestOffset(start, ALL)
    queue.begin, queue.end = 0, 10
    with pytest.raises(OffsetOutOfRange, match="made anew"):
        reader.latestOffset(start, ALL)


def _later(offset: int) -> int:
    """Returns the store time of a message in a re-created topic."""
    return 500_000 + offset


def _read_50(net: FakeNet, **raw: str) -> tuple[FakeQueue, dict[str, Any]]:
    """Returns a queue, and the offset of a stream that has read its 50 messages."""
    queue = FakeQueue(0, 50)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="earliest", **raw)
    return queue, _store(reader.latestOffset(reader.initialOffset(), ALL))


@pytest.mark.parametrize("end", [50, 80])
def test_a_topic_made_again_is_found_when_it_has_grown_past_the_checkpoint(net: FakeNet, end: int) -> None:
    queue, start = _read_50(net)
    queue.end, queue.time_of = end, _later
    with pytest.raises(OffsetOutOfRange, match=r"at queue offset 50, .* not the one that was read"):
        _stream().latestOffset(start, ALL)
    reader = _stream(failOnDataLoss="false")
    again = _store(reader.latestOffset(start, ALL))
    assert _rows(reader, reader.partitions(start, again)) == [(0, n) for n in range(end)]
    assert _stream().latestOffset(again, ALL) == again


def test_a_topic_made_again_is_found_while_the_query_runs(net: FakeNet) -> None:
    queue = FakeQueue(0, 50)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="earliest")
    start = _store(reader.latestOffset(reader.initialOffset(), ALL))
    queue.end = 60
    start = _store(reader.latestOffset(start, ALL))
    queue.end, queue.time_of = 80, _later
    with pytest.raises(OffsetOutOfRange, match="not the one that was read"):
        reader.latestOffset(start, ALL)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_of_an_earlier_run_is_not_read_from_another_life(net: FakeNet, is_first: bool) -> None:
    queue, start = _read_50(net)
    if is_first:
        start, end = _stream().initialOffset(), start
    else:
        queue.end = 60
        end = _store(_stream().latestOffset(start, ALL))
    queue.end, queue.time_of = 80, _later
    with pytest.raises(OffsetOutOfRange, match="not the one that was read"):
        _stream().partitions(start, end)
    reader = _stream(failOnDataLoss="false")
    assert reader.partitions(start, end) == []
    later = reader.latestOffset(end, ALL)
    assert _rows(reader, reader.partitions(end, later)) == [(0, n) for n in range(80)]


def test_deleted_mark_and_missing_mark_do_not_count_as_a_recreated_topic(net: FakeNet) -> None:
    queue, start = _read_50(net)
    # Retention deleted the marked message and all before it.
    queue.begin, queue.end, queue.time_of = 50, 60, lambda at: 2_000 + at if at >= 50 else _later(at)
    assert _stream().latestOffset(start, ALL)["o"] == {"T": {"b": {"0": 60}}}
    # The checkpoint of a version without marks.
    del start["m"]
    queue.begin, queue.time_of = 0, _later
    assert _stream().latestOffset(start, ALL)["o"] == {"T": {"b": {"0": 60}}}


def test_a_slave_that_shows_another_life_is_no_proof_and_is_not_read(net: FakeNet) -> None:
    _, start = _read_50(net)
    net.brokers["b-0:1"].is_down = True
    slave = FakeQueue(0, 80, time_of=_later)
    net.add_slave(T_0=slave)
    assert _stream().latestOffset(start, ALL) == start
    slave.time_of = FakeQueue().time_of
    assert _stream().latestOffset(start, ALL)["o"] == {"T": {"b": {"0": 80}}}


def test_the_lost_end_of_a_log_costs_at_most_a_minute_of_repeats(net: FakeNet) -> None:
    queue = FakeQueue(0, 50, time_of=lambda at: 10_000 * at)
    net.add_master(T_0=queue)
    reader = _stream(startingOffsets="earliest")
    start = _store(reader.latestOffset(reader.initialOffset(), ALL))
    # A slave without the last 5 messages was promoted, and other messages have their offsets.
    queue.end, queue.time_of = 70, lambda at: 10_000 * at + (at >= 45)
    reader = _stream(failOnDataLoss="false")
    end = reader.latestOffset(start, ALL)
    assert _rows(reader, reader.partitions(start, end)) == [(0, n) for n in range(43, 70)]


def test_a_deleted_topic_is_an_error_and_not_the_end(net: FakeNet, caplog: pytest.LogCaptureFixture) -> None:
    _, start = _read_50(net)
    net.add_master("c", U_0=FakeQueue())
    net.delete_topic("T")
    for is_available_now in (True, False):
        reader = _stream()
        if is_available_now:
            reader.prepareForTriggerAvailableNow()
        with pytest.raises(OffsetOutOfRange, match=r"T@b:0: .* queue offset 50, and the queue is gone"):
            reader.latestOffset(start, ALL)
    reader = _stream(failOnDataLoss="false")
    end = _store(reader.latestOffset(start, ALL))
    assert reader.partitions(start, end) == []
    assert [(record.queue, record.from_offset) for record in caplog.records] == [("T@b:0", 50)]
    # After its re-creation it is a new topic.
    net.brokers["b-0:1"].queues["T", 0] = FakeQueue(0, 60, time_of=_later)
    net.queue_counts["T"] = {"b": 1}
    again = reader.latestOffset(end, ALL)
    assert reader.partitions(end, again)[0].ranges[0].begin == 0


def test_fewer_queues_are_an_error_too(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 5), T_1=FakeQueue(0, 5))
    reader = _stream(startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    net.queue_counts["T"] = {"b": 1}
    with pytest.raises(OffsetOutOfRange, match="T@b:1"):
        reader.latestOffset(start, ALL)


def test_a_run_over_what_is_there_now_needs_the_brokers_of_its_queues(net: FakeNet) -> None:
    _, start = _read_50(net)
    net.brokers["b-0:1"].is_down = True
    net.queue_counts.clear()
    reader = _stream()
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(BrokerUnreachable, match="T@b:0"):
        reader.latestOffset(start, ALL)
    # Queues that the query no longer selects are not missed.
    other = _stream(topic="U")
    other.prepareForTriggerAvailableNow()
    assert other.latestOffset(start, ALL) == start


def test_a_loss_that_is_allowed_moves_the_position_and_is_told(
    net: FakeNet, caplog: pytest.LogCaptureFixture
) -> None:
    queue, start = _read_50(net)
    reader = _stream(failOnDataLoss="false")
    queue.begin, queue.end = 60, 70
    end = _store(reader.latestOffset(start, ALL))
    assert _rows(reader, reader.partitions(start, end)) == [(0, n) for n in range(60, 70)]
    # The re-created topic is still shorter than before: all of it is new.
    queue.begin, queue.end, queue.time_of = 0, 5, _later
    again = _store(reader.latestOffset(end, ALL))
    assert _rows(reader, reader.partitions(end, again)) == [(0, n) for n in range(5)]
    queue.end = 6
    more = reader.latestOffset(again, ALL)
    assert _rows(reader, reader.partitions(again, more)) == [(0, 5)]
    reported = [(record.queue, record.from_offset, record.to_offset) for record in caplog.records]
    assert reported == [("T@b:0", 50, 60), ("T@b:0", 70, 0)]


def test_a_slave_that_is_behind_is_no_loss(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 50))
    net.add_slave(T_0=FakeQueue(0, 40))
    reader = _stream(startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    master.is_down = True
    assert reader.latestOffset(start, ALL) is start


def test_tasks_depend_on_the_offsets_only(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 900), T_1=FakeQueue(0, 10), T_2=FakeQueue(0, 10))
    reader = _stream(startingOffsets="earliest", maxRecordsPerPartition="300")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    first = [task.ranges for task in reader.partitions(start, end)]
    net.is_name_server_down = True
    again = _stream(startingOffsets="earliest", maxRecordsPerPartition="300").partitions(
        _store(start), _store(end)
    )
    assert [task.ranges for task in again] == first
    assert [[r.size for r in task] for task in first] == [[300], [300], [300], [10, 10]]


def _replayed(reader: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    """Returns the ranges of each task of a batch that an earlier run planned."""
    return [task.ranges for task in reader.partitions(_store(start), _store(end))]


def _plan(net: FakeNet, **raw: str) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Returns the offsets of a batch of three queues, and the ranges of its tasks."""
    net.add_master(T_0=FakeQueue(0, 900), T_1=FakeQueue(0, 10), T_2=FakeQueue(0, 10))
    reader = _stream(startingOffsets="earliest", **raw)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    return start, end, [task.ranges for task in reader.partitions(start, end)]


HARMLESS: list[dict[str, str]] = [
    {"packRecords": "0"},
    {"packRecords": "15"},
    {"minPartitions": "7"},
    {"maxRecordsPerPartition": "11"},
    {"startingOffsets": "latest"},
    {"startingTimestamp": "now"},
    {"maxOffsetsPerTrigger": "1"},
    {"maxBytesPerTrigger": "1k"},
    {"minOffsetsPerTrigger": "1000"},
    {"topic": "U"},
    {"topic": "T,U"},
    {"readFrom": "prefer-slave", "maxSlaveLag": "1k"},
    {"replica": "0"},
    {"group": "G"},
    {"failOnDataLoss": "false"},
    {"columns": "body"},
    {"decompress": "false", "verifyCrc": "true", "propertiesAs": "none"},
    {"arrowRows": "3", "arrowBytes": "1k", "pullBatchSize": "2"},
]
"""Options that may change on a restart without changing the rows of a repeated batch."""


@pytest.mark.parametrize("changed", HARMLESS, ids=lambda raw: ",".join(raw))
@pytest.mark.parametrize("given", [{}, {"maxRecordsPerPartition": "300"}, {"packRecords": "0"}], ids=str)
def test_a_batch_is_repeated_as_it_was_planned_whatever_the_options_are_now(
    net: FakeNet, given: dict[str, str], changed: dict[str, str]
) -> None:
    start, end, planned = _plan(net, **given)
    reader = _stream(**{"startingOffsets": "earliest", **given, **changed})
    assert _replayed(reader, reader.initialOffset(), end) == planned
    again = _stream(startingOffsets="earliest", **given)
    rows = _rows(again, again.partitions(start, end))
    assert _rows(reader, reader.partitions(_store(start), _store(end))) == rows


def test_new_options_count_from_the_next_batch_on(net: FakeNet) -> None:
    _, end, planned = _plan(net)
    assert [len(task) for task in planned] == [3]
    reader = _stream(packRecords="0")
    assert reader.latestOffset(end, ALL) is end
    for queue in net.brokers["b-0:1"].queues.values():
        queue.end += 5
    later = reader.latestOffset(end, ALL)
    assert [len(task) for task in _replayed(_stream(), end, later)] == [1, 1, 1]


def test_a_batch_of_a_release_that_kept_no_plan_is_cut_as_that_release_did(net: FakeNet) -> None:
    start, end, planned = _plan(net)
    del end["plan"]
    options = parse_options({"nameserver": "ns:1", "topic": "T"}, is_streaming=True)
    # The defaults of a later release.
    options = replace(options, packing=PackingOptions(pack_records=0))
    assert _replayed(TopicStreamReader(options, COLUMNS), start, end) == planned
    # The user's options are assumed to be unchanged.
    given = _stream(maxRecordsPerPartition="450")
    assert [sum(item.size for item in task) for task in _replayed(given, start, end)] == [450, 450, 20]


def test_a_plan_by_an_unknown_rule_is_refused(net: FakeNet) -> None:
    start, end, _ = _plan(net)
    end["plan"]["rule"] = 2
    with pytest.raises(ConfigError, match=r"formed by rule 2; this release knows rule 1"):
        _stream().partitions(start, end)


@pytest.mark.parametrize("changed", [{"tags": "b"}, {"filter": "a = 1"}, {"tags": "*"}])
def test_a_batch_is_not_repeated_with_another_filter(net: FakeNet, changed: dict[str, str]) -> None:
    """Tests that another filter is rejected: it would name other rows like rows that a sink may have."""
    start, end, _ = _plan(net, tags="a")
    with pytest.raises(
        ConfigError, match=f"tags or filter differs .* now it is .{re.escape(changed_to(changed))}"
    ):
        _stream(**changed).partitions(start, end)
    assert _replayed(_stream(tags="a"), start, end)


def changed_to(raw: dict[str, str]) -> str:
    """Returns the only value."""
    (value,) = raw.values()
    return value


Piece = tuple[str, int, int, int]
"""Broker, queue, begin and end of a range."""


def _replay_after(
    net: FakeNet, change: Callable[[FakeNet], None], pack: int, **raw: str
) -> list[list[Piece]]:
    """Returns the ranges per task of a replay of four queues of ten messages each, packed into tasks, after a
    change.
    """
    for name in ("b", "c"):
        net.add_master(name, T_0=FakeQueue(0, 10), T_1=FakeQueue(0, 10))
    reader = _stream(startingOffsets="earliest", packRecords=str(pack))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(reader.partitions(start, end)) == 40 // pack
    change(net)
    tasks = _replayed(_stream(**{"startingOffsets": "earliest", **raw}), start, end)
    return [[(at.queue.broker, at.queue.queue_id, at.begin, at.end) for at in task] for task in tasks]


def _shrink(net: FakeNet) -> None:
    net.queue_counts["T"]["b"] = 1
    del net.brokers["b-0:1"].queues["T", 1]


def _delete_at_one_broker(net: FakeNet) -> None:
    del net.queue_counts["T"]["b"]
    net.brokers["b-0:1"].queues.clear()
    net.add_master("b", U_0=FakeQueue())


def _delete_before_the_route_says_so(net: FakeNet) -> None:
    listed = net.queue_counts["T"]["b"]
    _delete_at_one_broker(net)
    net.queue_counts["T"]["b"] = listed


def _expire(net: FakeNet) -> None:
    net.brokers["b-0:1"].queues["T", 0].begin = 4


C0, C1 = ("c", 0, 0, 10), ("c", 1, 0, 10)


@pytest.mark.parametrize(
    ("change", "pack", "tasks", "lost"),
    [
        (_shrink, 20, [[("b", 0, 0, 10)], [C0, C1]], {"T@b:1": 10}),
        (_shrink, 40, [[("b", 0, 0, 10)], [C0, C1]], {"T@b:1": 10}),
        (_delete_at_one_broker, 10, [[], [], [C0], [C1]], {"T@b:0": 10, "T@b:1": 10}),
        (_delete_at_one_broker, 40, [[], [C0, C1]], {"T@b:0": 10, "T@b:1": 10}),
        (_delete_before_the_route_says_so, 20, [[], [C0, C1]], {"T@b:0": 10, "T@b:1": 10}),
        (_expire, 20, [[], [C0, C1], [("b", 0, 4, 10), ("b", 1, 0, 10)]], {"T@b:0": 4}),
    ],
)
def test_a_replay_goes_on_without_what_is_gone_and_names_the_other_rows_as_before(
    net: FakeNet,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[FakeNet], None],
    pack: int,
    tasks: list[list[Piece]],
    lost: dict[str, int],
) -> None:
    """Tests that rows behind a gap get new names."""
    assert _replay_after(net, change, pack, failOnDataLoss="false") == tasks
    reported = [record for record in caplog.records if record.getMessage() == events.MESSAGES_LOST]
    assert {record.queue: record.messages for record in reported} == lost


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_shrink, r"T@b:1: .* queue offset 0, and the queue is gone: .*fewer queues.*failOnDataLoss=false"),
        (_delete_at_one_broker, r"T@b:0: .*the queue is gone: .*\(so are T@b:1\).*failOnDataLoss=false"),
        (_delete_before_the_route_says_so, r"T@b:0: .*the queue is gone: .*\(so are T@b:1\)"),
        (_expire, r"T@b:0: .* queue offset 0, the broker has \[4, 10\): .*failOnDataLoss=false"),
    ],
)
def test_a_strict_replay_says_what_is_gone_and_what_to_do(
    net: FakeNet, change: Callable[[FakeNet], None], text: str
) -> None:
    with pytest.raises(OffsetOutOfRange, match=text):
        _replay_after(net, change, 20)


def _replay_beside_a_silent_broker(net: FakeNet, **raw: str) -> tuple[TopicStreamReader, dict[str, Any]]:
    """Starts a run up to the current ends, which repeats a batch of broker b while c does not answer; returns
    its reader and the end of the batch.
    """
    net.add_master("b", T_0=FakeQueue(0, 10))
    net.add_master("c", T_0=FakeQueue(0, 10))
    reader = _stream(startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    net.brokers["b-0:1"].queues["T", 0].end = 15
    end = _store(reader.latestOffset(start, ALL))
    net.brokers["c-0:1"].is_down = True
    net.asked.clear()
    again = _stream(**raw)
    again.prepareForTriggerAvailableNow()
    net.asked.clear()
    assert _rows(again, again.partitions(_store(start), end)) == [(0, at) for at in range(10, 15)]
    assert "c-0:1" not in net.asked
    return again, end


def test_a_replay_needs_nothing_of_a_broker_that_it_does_not_read(net: FakeNet) -> None:
    reader, end = _replay_beside_a_silent_broker(net)
    with pytest.raises(BrokerUnreachable, match=r"T@c:0, which the query reads.*failOnDataLoss=false"):
        reader.latestOffset(end, ALL)


def test_a_lenient_run_over_what_is_there_ends_without_a_silent_broker(
    net: FakeNet, caplog: pytest.LogCaptureFixture
) -> None:
    reader, end = _replay_beside_a_silent_broker(net, failOnDataLoss="false")
    assert reader.latestOffset(end, ALL) == end
    assert "T@c:0" in {getattr(record, "queues", "") for record in caplog.records}


def test_a_broker_that_answers_after_the_replay_is_read_by_the_same_run(net: FakeNet) -> None:
    reader, end = _replay_beside_a_silent_broker(net)
    net.brokers["c-0:1"].is_down = False
    net.brokers["c-0:1"].queues["T", 0].end = 12
    net.brokers["b-0:1"].queues["T", 0].end = 99
    later = reader.latestOffset(end, ALL)
    assert later["o"] == {"T": {"b": {"0": 15}, "c": {"0": 12}}}
    net.brokers["c-0:1"].queues["T", 0].end = 13
    assert reader.latestOffset(later, ALL) == later


def test_an_offset_beyond_the_end_is_a_mistake_and_no_loss(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(3, 50))
    wrong = '{"T": {"b": {"0": 500}}}'
    for loss in ("true", "false"):
        with pytest.raises(
            ConfigError, match=r"startingOffsets: 500 is beyond the end of T@b:0; .* up to 50"
        ):
            _batch(startingOffsets=wrong, failOnDataLoss=loss).partitions()
        reader = _stream(startingOffsets=wrong, failOnDataLoss=loss)
        with pytest.raises(ConfigError, match=r"startingOffsets: 500 is beyond the end of T@b:0"):
            reader.latestOffset(reader.initialOffset(), ALL)


def test_progress_is_committed_from_the_durable_offset(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(0, 50))
    reader = _stream(startingOffsets="earliest", group="G")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    assert master.committed == {}
    reader.latestOffset(start, ALL)
    assert master.committed == {("G", "T", 0): 50}


def test_a_group_is_resumed_when_asked(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 50), T_1=FakeQueue(0, 5)).committed["G", "T", 0] = 45
    reader = _stream(startingOffsets="group", group="G")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["base"] == {"T": {"b": {"0": 45, "1": 0}}}


def test_prefer_slave_plans_as_far_as_a_slave_that_keeps_up(
    net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(tandemmq.spark.stream.time, "monotonic", lambda: now[0])
    net.add_master(T_0=FakeQueue(0, 50))
    net.add_slave(T_0=FakeQueue(0, 40))
    reader = _stream(startingOffsets="earliest", readFrom="prefer-slave")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["o"] == {"T": {"b": {"0": 40}}}
    now[0] += 6
    assert reader.latestOffset(end, ALL)["o"] == {"T": {"b": {"0": 50}}}


def test_progress_shows_where_the_queues_end(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 50))
    reader = _stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    assert reader.reportLatestOffset() == {"v": 1, "o": {"T": {"b": {"0": 50}}}}


def test_a_batch_query_reads_from_start_to_end(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 50), T_1=FakeQueue(0, 50))
    offsets = '{"T": {"b": {"0": 45, "1": 50}}}'
    reader = _batch(startingOffsets=offsets)
    assert _rows(reader, reader.partitions()) == [(0, n) for n in range(45, 50)]
    reader = _batch(endingOffsets='{"T": {"b": {"0": 2, "1": 1}}}')
    assert _rows(reader, reader.partitions()) == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"startingOffsets": '{"U": {"b": {"0": 5}}}'}, r"start names U@b:0, .* there are T@b:0, T@b:1"),
        ({"startingOffsets": '{"T": {"c": {"0": 5}}}'}, "start names T@c:0"),
        ({"endingOffsets": '{"T": {"b": {"2": 5}}}'}, "end names T@b:2"),
        ({"startingOffsetsByTimestamp": '{"T": {"c": {"0": 5}}}'}, "start names T@c:0"),
        (
            {
                "startingOffsets": '{"T": {"b": {"1": 20}}}',
                "endingOffsets": '{"T": {"b": {"1": 10}}}',
            },
            "start is after the end in T@b:1: 20 and 10",
        ),
        (
            {"startingTimestamp": "2020", "endingTimestamp": "2010"},
            "after the end in T@b:0, T@b:1: 20 and 10",
        ),
    ],
)
def test_a_range_that_cannot_be_meant_is_refused(net: FakeNet, raw: dict[str, str], text: str) -> None:
    net.add_master(T_0=FakeQueue(0, 50), T_1=FakeQueue(0, 50))
    with pytest.raises(ConfigError, match=text):
        _batch(**raw).partitions()


def test_offsets_in_kafkas_form_need_one_broker_with_the_queue(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 50), T_1=FakeQueue(0, 50))
    offsets = '{"T": {"0": 48, "1": 50}}'
    reader = _batch(startingOffsets=offsets)
    assert _rows(reader, reader.partitions()) == [(0, 48), (0, 49)]
    net.add_master("c", T_0=FakeQueue(0, 50))
    with pytest.raises(ConfigError, match=r"T:0 of no broker, and there are T@b:0, T@c:0"):
        _batch(startingOffsets=offsets).partitions()


def test_a_stream_does_not_start_from_queues_that_there_are_not(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 50))
    reader = _stream(startingOffsets='{"T": {"b": {"1": 5}}}')
    with pytest.raises(ConfigError, match="names T@b:1"):
        reader.latestOffset(reader.initialOffset(), ALL)


@pytest.mark.parametrize("offsets", ["latest", '{"T": {"b": {"0": -1}}}'])
def test_a_batch_query_does_not_begin_at_the_end(offsets: str) -> None:
    with pytest.raises(ConfigError, match="reads nothing"):
        _batch(startingOffsets=offsets)


def test_a_batch_query_by_time(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 50))
    reader = _batch(startingTimestamp="2010", endingTimestamp="2013")
    assert _rows(reader, reader.partitions()) == [(0, 10), (0, 11), (0, 12)]
    with pytest.raises(OffsetOutOfRange, match="no message at or after"):
        _batch(startingTimestamp="9999", startingOffsetsByTimestampStrategy="error").partitions()


def test_a_batch_query_of_an_unknown_topic_fails_at_once(net: FakeNet) -> None:
    with pytest.raises(NoRoute, match="no readable queue of T"):
        _batch().partitions()


@pytest.mark.parametrize(
    ("raw", "missing"),
    [
        ({"topic": "T,Typo"}, "Typo"),
        ({"assign": '{"T": [0, 7]}'}, "T:7"),
        ({"assign": '{"T": {"b": [0], "c": [0]}}'}, "T@c:0"),
    ],
)
def test_a_batch_query_does_not_leave_out_what_it_names(
    net: FakeNet, raw: dict[str, str], missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    net.add_master(T_0=FakeQueue(0, 2))

    def batch(**more: str) -> TopicReader:
        return TopicReader(parse_options({"nameserver": "ns:1", **raw, **more}, is_streaming=False), COLUMNS)

    with pytest.raises(NoRoute, match=f"no readable queue of {missing} is known"):
        batch().partitions()
    reader = batch(failOnDataLoss="false")
    assert _rows(reader, reader.partitions()) == [(0, 0), (0, 1)]
    assert [(r.message, r.queues) for r in caplog.records] == [(events.QUEUES_MISSING, missing)]  # type: ignore[attr-defined]


def test_an_empty_batch_query_has_one_task_without_ranges(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 0))
    reader = _batch()
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_topics_by_pattern_leave_internal_ones_out(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 1), TU_0=FakeQueue(0, 1), SELF_TEST_TOPIC_0=FakeQueue(0, 1))
    net.queue_counts["%RETRY%T"] = {"b": 1}
    options = parse_options({"nameserver": "ns:1", "subscribepattern": ".*T.*"}, is_streaming=False)
    tasks = TopicReader(options, COLUMNS).partitions()
    assert {r.queue.topic for task in tasks for r in task.ranges} == {"T", "TU"}


def test_small_queues_of_a_task_share_arrow_batches(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 3), T_1=FakeQueue(0, 3))
    net.add_master("c", T_0=FakeQueue(0, 3))
    reader = _batch()
    (task,) = reader.partitions()
    (batch,) = list(reader.read(task))
    assert batch.column("brokerName").to_pylist() == ["b"] * 6 + ["c"] * 3


def test_arrow_batches_are_bounded_by_rows(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(0, 1000))
    reader = _batch(arrowRows="100")
    (task,) = reader.partitions()
    assert max(batch.num_rows for batch in reader.read(task)) < 132


@pytest.mark.parametrize(("lag", "replicas"), [(1000, {0, 1}), (1001, {0})])
def test_a_slave_too_far_behind_is_left_out(net: FakeNet, lag: int, replicas: set[int]) -> None:
    net.add_master(T_0=FakeQueue(0, 50)).log_end = 5000
    net.add_slave(T_0=FakeQueue(0, 50)).log_end = 5000 - lag
    (task,) = _batch(readFrom="prefer-slave", maxSlaveLag="1000").partitions()
    assert set(task.replicas["b"]) == replicas


def test_a_batch_of_a_stream_tells_its_plan_if_asked(net: FakeNet, caplog: pytest.LogCaptureFixture) -> None:
    net.add_master(T_0=FakeQueue(0, 50), T_1=FakeQueue(0, 5)).log_end = 5000
    net.add_slave(T_0=FakeQueue(0, 50), T_1=FakeQueue(0, 5)).log_end = 3000
    asked = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "11",
        "readFrom": "prefer-slave",
        "maxSlaveLag": "1000",
    }
    for explain, reported in (("false", []), ("true", [(11, 44, "b:1", "prefer-slave", 2)])):
        stream = _stream(**asked, explain=explain)
        start = stream.initialOffset()
        stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
        plans = [record for record in caplog.records if record.message == events.READ_PLANNED]
        found = [(p.messages, p.lag_messages, p.slow_slaves, p.read_from, p.queues) for p in plans]
        assert found == reported
