"""Tests streams over many queues, which plan by topic: here three queues count as many."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_fakes import FakeBroker, FakeNet, FakeQueue

from tandemmq.errors import OffsetOutOfRange
from tandemmq.protocol.codes import ResponseCode
from tandemmq.spark import metadata, offsets, resolve, stream
from tandemmq.spark.columns import select_columns
from tandemmq.spark.offsets import Mark, QueueKey, decode_offset
from tandemmq.spark.options import PropertiesAs, parse_options
from tandemmq.spark.stream import TopicStreamReader

ALL = ReadAllAvailable()
QUEUES = [QueueKey("T", "b", number) for number in range(3)]


@pytest.fixture(autouse=True)
def _three_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (metadata, offsets, resolve, stream):
        monkeypatch.setattr(module, "MANY_QUEUES", 2)


def _stream(**raw: str) -> TopicStreamReader:
    options = parse_options({"nameServer": "ns:1", "topic": "T", **raw}, is_streaming=True)
    return TopicStreamReader(options, select_columns(("queueId", "queueOffset"), PropertiesAs.MAP))


def _plan(reader: TopicStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Returns the next offset after a round trip through Spark's checkpoint."""
    end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, ALL)))
    return end


def _begin(net: FakeNet) -> tuple[FakeBroker, list[FakeQueue], dict[str, Any]]:
    """Returns a broker, its three queues, and the offset of a stream that has read their 50 messages; the
    second queue has the youngest one.
    """
    queues = [FakeQueue(0, 50, time_of=lambda at, n=n: 2_000 + at + n) for n in (0, 5, 1)]
    broker = net.add_master(**{f"T_{number}": queue for number, queue in enumerate(queues)})
    reader = _stream(startingOffsets="earliest")
    return broker, queues, _plan(reader, reader.initialOffset())


def test_ends_come_with_one_request_and_the_youngest_message_is_marked(net: FakeNet) -> None:
    broker, queues, start = _begin(net)
    assert start["v"] == 3
    assert broker.stats_queries == ["T"]
    offset = decode_offset(start)
    assert offset.positions == dict.fromkeys(QUEUES, 50)
    assert offset.marks == {QUEUES[1]: Mark(49, 4_900, 2_054)}
    reader = _stream()
    assert _plan(reader, start) == start
    queues[2].end = 60
    end = _plan(reader, start)
    assert decode_offset(end).positions == {**offset.positions, QUEUES[2]: 60}
    assert decode_offset(end).marks == {QUEUES[2]: Mark(59, 5_900, 2_060)}
    found = {
        (item.queue, item.begin, item.end) for task in reader.partitions(start, end) for item in task.ranges
    }
    assert found == {(QUEUES[2], 50, 60)}


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED])
def test_without_statistics_each_queue_is_asked(net: FakeNet, code: ResponseCode) -> None:
    broker, queues, start = _begin(net)
    broker.refuse_stats_with = code
    queues[0].end = 70
    end = decode_offset(_plan(_stream(), start))
    assert end.positions == {**dict.fromkeys(QUEUES, 50), QUEUES[0]: 70}


def test_a_queue_that_the_statistics_lack_is_gone(net: FakeNet) -> None:
    broker, _, start = _begin(net)
    del broker.queues["T", 2]
    net.queue_counts["T"]["b"] = 2
    with pytest.raises(OffsetOutOfRange, match=r"T@b:2: .*the queue is gone"):
        _plan(_stream(), start)


def test_an_offset_with_a_mark_for_each_queue_is_read(net: FakeNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "MANY_QUEUES", 3)
    monkeypatch.setattr(stream, "MANY_QUEUES", 3)
    _, queues, start = _begin(net)
    assert (start["v"], len(decode_offset(start).marks)) == (1, 3)
    monkeypatch.setattr(offsets, "MANY_QUEUES", 2)
    monkeypatch.setattr(stream, "MANY_QUEUES", 2)
    queues[0].end = 60
    end = _plan(_stream(), start)
    assert (end["v"], list(decode_offset(end).marks)) == (3, [QUEUES[0]])


@pytest.mark.parametrize("ends", [(80, 80, 80), (80, 0, 80), (50, 80, 80), (80, 50, 50)])
def test_a_topic_made_again_is_found_in_every_queue(net: FakeNet, ends: tuple[int, ...]) -> None:
    """The second queue, which has the mark, is longer, empty, or has as many messages as before."""
    _, queues, start = _begin(net)
    running = _stream()
    assert _plan(running, start) == start
    for queue, end in zip(queues, ends, strict=True):
        queue.end, queue.time_of = end, lambda at: 500_000 + at
    for reader in (_stream(), running):
        with pytest.raises(OffsetOutOfRange, match="made anew"):
            _plan(reader, start)
    reader = _stream(failOnDataLoss="false")
    end_offset = _plan(reader, start)
    found = {
        item.queue.queue_id: (item.begin, item.end)
        for task in reader.partitions(start, end_offset)
        for item in task.ranges
    }
    assert found == {number: (0, end) for number, end in enumerate(ends) if end}
    assert _plan(_stream(), end_offset) == end_offset


@pytest.mark.parametrize("marked_end", [80, 0])
def test_a_planned_batch_is_not_read_from_another_life(net: FakeNet, marked_end: int) -> None:
    _, queues, start = _begin(net)
    queues[0].end = queues[1].end = 60
    end = _plan(_stream(), start)
    assert list(decode_offset(end).marks) == [QUEUES[1]]
    for queue in queues:
        queue.end, queue.time_of = 80, lambda at: 500_000 + at
    queues[1].end = marked_end
    with pytest.raises(OffsetOutOfRange, match="made anew"):
        _stream().partitions(start, end)
    reader = _stream(failOnDataLoss="false")
    assert reader.partitions(start, end) == []


def test_a_slave_that_shows_another_life_is_not_read(net: FakeNet) -> None:
    _, _, start = _begin(net)
    net.brokers["b-0:1"].is_down = True
    slaves = {f"T_{number}": FakeQueue(0, 80, time_of=lambda at: 500_000 + at) for number in range(3)}
    net.add_slave(**slaves)
    assert _plan(_stream(), start) == start
