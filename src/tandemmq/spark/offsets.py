"""The offsets of a stream as Spark's checkpoint stores them, and the division of a limit between queues.

An offset of the stream is a JSON object that Spark stores and compares as text (spec spark SP-23), so each
set of positions has exactly one spelling: topics, brokers and queues are sorted. A query that has read
nothing yet has a *symbol* as its offset, not numbers: Spark asks twice for the initial offset, and two
different answers could lose rows (spec spark SP-24). The first end offset contains in `base` the start of
each new queue, so a replay always reads the same rows. Queues that appear later are pinned in the same way,
and so is the offset at which a query resumes after messages were lost.

Numbers alone cannot distinguish two incarnations of a topic: a topic that is deleted and created again counts
from 0 and soon passes the old position. An offset therefore also contains `Mark`s: the log offset and store
time of a message that was read. Both are fields of the record, equal on every replica and in every version of
RocketMQ, and no two messages of a broker share them.

The offset of a query with many queues is a compressed text instead (spec spark SP-88): Spark writes the whole
offset in each batch, and shows it in each progress report.

Options decide which rows belong to which task, and they may differ when a batch is replayed. An end offset
therefore also contains the `PackingOptions` of its batch: sinks name rows by task and row (decision 024).

Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from tandemmq.errors import ConfigError

T = TypeVar("T")

FORMAT_VERSION = 1

PACKED_VERSION = 3
"""The format version of offsets with more than `MANY_QUEUES` queues; 2 had another layout, in no release."""

MANY_QUEUES = 1_000
"""The number of queues above which a query plans for many queues: its offsets are packed and contain one mark
per topic and broker, and it reads the ends of all queues of a topic with one request.
"""

PACKING_RULE = 1
"""The number of the rule by which `packing.plan_tasks` forms tasks. A rule that forms other tasks from the
same ranges needs the next number, and the old rule must remain for the offsets that name it.
"""

EARLIEST = -2
"""The value in a user's JSON for the oldest message that the broker still has."""

LATEST = -1
"""The value in a user's JSON for the current end of the queue."""


ANY_BROKER: Final = ""
"""The broker name for JSON in Kafka's form, `{topic: {partition: offset}}`: the only one with that queue."""


class QueueKey(NamedTuple):
    """One queue of one topic on one broker; `broker` is the name that a master and its slaves share."""

    topic: str
    broker: str
    queue_id: int


@lru_cache(maxsize=2_048)
def name_queues(topic: str, broker: str, begin: int, end: int) -> tuple[QueueKey, ...]:
    """Returns the queues `[begin, end)`; mappings find keys that are the same objects in half the time."""
    return tuple(QueueKey(topic, broker, queue_id) for queue_id in range(begin, end))


class OffsetRange(NamedTuple):
    """The messages of one queue at queue offsets `[begin, end)`."""

    queue: QueueKey
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


Positions = Mapping[QueueKey, int]
"""The next queue offset to read, per queue."""


class Mark(NamedTuple):
    """The fields that distinguish the message at a queue offset from any other that may ever be stored
    there.
    """

    queue_offset: int
    log_offset: int
    stored_at_ms: int


Marks = Mapping[QueueKey, Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingOptions:
    """The options that decide which task reads which messages of a batch.

    `partitions_min` 0 and `records_max` 0 disable these rules; `pack_records` 0 means one range per task.
    """

    partitions_min: int = 0
    records_max: int = 0
    pack_records: int = 20_000


FIRST_PACKING: Final = PackingOptions(partitions_min=0, records_max=0, pack_records=20_000)
"""The defaults of the releases whose offsets contain no packing; they never change."""

_NONE: Final[Positions] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The content of one offset of the stream.

    `symbol` is set only before the first batch: `earliest`, `latest` or another kind of start rule. `base`
    contains the first position of every queue that the previous offset did not name, or whose position there
    no longer exists. `filter_hash` identifies the filter, because positions of one filter are meaningless for
    another. `marks` contains a message below the position of each queue that had one; offsets of earlier
    versions have none. `packing` is the division into tasks of the batch that ends here; offsets of earlier
    versions lack it.
    """

    symbol: str | None = None
    positions: Positions = field(default_factory=dict)
    base: Positions = field(default_factory=dict)
    filter_hash: str = ""
    marks: Marks = field(default_factory=dict)
    packing: PackingOptions | None = None


def encode_offset(offset: StreamOffset) -> dict[str, Any]:
    """Returns the only spelling of `offset`; equal offsets give equal text."""
    if offset.symbol is not None:
        return {"v": FORMAT_VERSION, "init": offset.symbol}
    if len(offset.positions) > MANY_QUEUES:
        return {"v": PACKED_VERSION, "z": _pack(offset)}
    document: dict[str, Any] = {"v": FORMAT_VERSION, "o": nest_positions(offset.positions)}
    if offset.base:
        document["base"] = nest_positions(offset.base)
    if offset.filter_hash:
        document["f"] = offset.filter_hash
    if offset.marks:
        document["m"] = nest_positions({queue: list(mark) for queue, mark in offset.marks.items()})
    if offset.packing is not None:
        document["plan"] = _encode_packing(offset.packing)
    return document


def decode_offset(document: Mapping[str, Any]) -> StreamOffset:
    """Returns the offset that `encode_offset` wrote, possibly in an earlier run of the query.

    Raises:  ConfigError for a document that this version cannot read.
    """
    version = document.get("v")
    if version == PACKED_VERSION:
        return _unpack(str(document.get("z")))
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"the checkpoint holds offsets of format version {version!r}; this one reads {FORMAT_VERSION} "
            f"and {PACKED_VERSION}"
        )
    if "init" in document:
        return StreamOffset(symbol=str(document["init"]))
    return StreamOffset(
        positions=flatten_positions(document.get("o", {})),
        base=flatten_positions(document.get("base", {})),
        filter_hash=str(document.get("f", "")),
        marks={queue: Mark(*mark) for queue, mark in _flatten(document.get("m", {}))},
        packing=_decode_packing(document["plan"]) if "plan" in document else None,
    )


_POSITION, _BASE, _MARK = 1, 2, 4
"""The bits of the tables that have a queue."""


def _pack(offset: StreamOffset) -> str:
    """Returns the queues as JSON and all numbers as 64 bits each, compressed together.

    Bytes of equal weight are neighbours, because most of the higher ones are zero. Starts and marks are
    stored as distances from the positions, because these are small.
    """
    at, base, marks = offset.positions, offset.base, offset.marks
    held = dict.fromkeys(at, _POSITION)
    for bit, part in ((_BASE, base), (_MARK, marks)):
        held |= {queue: held.get(queue, 0) | bit for queue in part}
    queues = sorted(held)
    numbers = [held[queue] for queue in queues]
    for table in (
        at,
        {queue: at.get(queue, 0) - first for queue, first in base.items()},
        {queue: at.get(queue, 0) - mark.queue_offset for queue, mark in marks.items()},
        {queue: mark.log_offset for queue, mark in marks.items()},
        {queue: mark.stored_at_ms for queue, mark in marks.items()},
    ):
        numbers += [table[queue] for queue in sorted(table)]
    document = {
        "queues": _nest_runs(queues),
        "f": offset.filter_hash,
        "plan": offset.packing and _encode_packing(offset.packing),
    }
    names = json.dumps(document, separators=(",", ":")).encode()
    raw = struct.pack(f"<{len(numbers)}q", *numbers)
    planes = (raw[weight::8] for weight in range(8))
    return b64encode(zlib.compress(b"".join((names, b"\0", *planes)))).decode()


@lru_cache(maxsize=4)  # Spark passes each offset several times.
def _unpack(text: str) -> StreamOffset:
    try:
        names, _, planes = zlib.decompress(b64decode(text, validate=True)).partition(b"\0")
        document = json.loads(names)
        filter_hash, plan = document["f"], document["plan"]
        raw, count = bytearray(len(planes)), len(planes) // 8
        for weight in range(8):
            raw[weight::8] = planes[weight * count : (weight + 1) * count]
        numbers = iter(struct.unpack(f"<{count}q", raw))
        queues = _flatten_runs(document["queues"])
        held = list(islice(numbers, len(queues)))
        placed, based, marked = (
            [queue for queue, bits in zip(queues, held, strict=True) if bits & bit]
            for bit in (_POSITION, _BASE, _MARK)
        )
        at, ahead, behind, log_offsets, stored = (
            dict(zip(part, islice(numbers, len(part)), strict=True))
            for part in (placed, based, marked, marked, marked)
        )
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, zlib.error) as error:
        raise ConfigError(f"the checkpoint holds a packed offset that cannot be read: {error}") from None
    return StreamOffset(
        positions=at,
        base={queue: at.get(queue, 0) - distance for queue, distance in ahead.items()},
        filter_hash=filter_hash,
        marks={
            queue: Mark(at.get(queue, 0) - distance, log_offsets[queue], stored[queue])
            for queue, distance in behind.items()
        },
        packing=_decode_packing(plan) if plan else None,
    )


def _encode_packing(packing: PackingOptions) -> dict[str, int]:
    """Returns the options under their names, and the number of the packing rule."""
    return {
        "rule": PACKING_RULE,
        "minPartitions": packing.partitions_min,
        "maxRecordsPerPartition": packing.records_max,
        "packRecords": packing.pack_records,
    }


def _decode_packing(document: Mapping[str, Any]) -> PackingOptions:
    rule = document.get("rule")
    if rule != PACKING_RULE:
        raise ConfigError(
            f"the checkpoint holds a batch whose tasks were formed by rule {rule!r}; this release knows rule "
            f"{PACKING_RULE}. Finish the batch with the release that planned it"
        )
    return PackingOptions(
        partitions_min=int(document["minPartitions"]),
        records_max=int(document["maxRecordsPerPartition"]),
        pack_records=int(document["packRecords"]),
    )


def nest_positions(values: Mapping[QueueKey, T]) -> dict[str, dict[str, dict[str, T]]]:
    """Returns `{topic: {broker: {queue: value}}}` in sorted order, queues by number."""
    nested: dict[str, dict[str, dict[str, T]]] = {}
    for (topic, broker, queue_id), value in sorted(values.items()):
        nested.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = value
    return nested


def _nest_runs(queues: Iterable[QueueKey]) -> dict[str, dict[str, list[list[int]]]]:
    """Returns `{topic: {broker: [[first queue, end], ...]}}`: runs of consecutive queues; `queues` are
    sorted.
    """
    nested: dict[str, dict[str, list[list[int]]]] = {}
    place, run = ("", ""), [0, -1]
    for topic, broker, queue_id in queues:
        if queue_id != run[1] or (topic, broker) != place:
            place, run = (topic, broker), [queue_id, queue_id]
            nested.setdefault(topic, {}).setdefault(broker, []).append(run)
        run[1] += 1
    return nested


def _flatten_runs(nested: Mapping[str, Any]) -> list[QueueKey]:
    """Returns the queues that `_nest_runs` nested."""
    runs = (
        name_queues(topic, broker, *run)
        for topic, brokers in nested.items()
        for broker, runs in brokers.items()
        for run in runs
    )
    return list(chain.from_iterable(runs))


def flatten_positions(nested: Mapping[str, Any]) -> dict[QueueKey, int]:
    """Returns the positions of `{topic: {broker: {queue: offset}}}`, the inverse of `nest_positions`; also
    accepts users' JSON in our form or in Kafka's.

    Raises:  ConfigError naming the part that is not `{topic: {broker: {queue: integer}}}`.
    """
    positions: dict[QueueKey, int] = {}
    for queue, offset in _flatten(nested):
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise ConfigError(f"queue {render_queues([queue])}: expected an integer offset, got {offset!r}")
        positions[queue] = offset
    return positions


def _flatten(nested: Mapping[str, Any]) -> Iterator[tuple[QueueKey, Any]]:
    for topic, brokers in nested.items():
        if not isinstance(brokers, Mapping):
            raise ConfigError(f"topic {topic!r}: expected {{broker: {{queue: offset}}}}, got {brokers!r}")
        for broker, queues in brokers.items():
            if not isinstance(queues, Mapping) and str(broker).isdecimal():
                yield QueueKey(topic, ANY_BROKER, int(broker)), queues
                continue
            if not isinstance(queues, Mapping):
                raise ConfigError(
                    f"topic {topic!r}, broker {broker!r}: expected {{queue: offset}}, got {queues!r}"
                )
            for queue_id, value in queues.items():
                if not str(queue_id).isdecimal():
                    raise ConfigError(
                        f"topic {topic!r}, broker {broker!r}: expected a queue number, got {queue_id!r}"
                    )
                yield QueueKey(topic, broker, int(queue_id)), value


def plan_ranges(start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    """Returns the ranges between two offsets of the stream, by queue; depends only on its arguments (spec
    spark SP-17).
    """
    if start == end:
        return []  # a watermark makes such batches; `base` belongs to the previous one
    ranges = []
    for queue, stop in sorted(end.positions.items()):
        begin = end.base.get(queue, start.positions.get(queue, stop))
        if begin < stop:
            ranges.append(OffsetRange(queue, begin, stop))
    return ranges


def advance(
    start: StreamOffset,
    *,
    begin: Positions,
    latest: Positions,
    limit: int | None,
    filter_hash: str,
    moved: Positions = _NONE,
    gone: Collection[QueueKey] = (),
) -> StreamOffset | None:
    """Returns the end offset of the next batch, or None if nothing is new and `start` must be returned
    unchanged.

    `begin` is the start of each queue that `start` does not name; `latest` is the current end of each known
    queue. A queue whose end is below its own position (a slave that is behind) keeps the position. `moved` is
    the offset at which a queue resumes whose position no longer exists; `gone` are queues that no longer
    exist. With an unresolved `start` the result is never None: the first end offset pins the start.

    The marks are those of `start` that are still valid.
    """
    positions = {queue: at for queue, at in start.positions.items() if queue not in gone} | dict(moved)
    base = dict(moved)
    for queue, first in begin.items():
        if queue not in positions:
            positions[queue] = base[queue] = first
    backlog = {queue: latest.get(queue, at) - at for queue, at in positions.items()}
    for queue, share in share_out(backlog, limit).items():
        positions[queue] += share
    if start.symbol is None and not base and positions == start.positions:
        return None
    marks = {q: mark for q, mark in start.marks.items() if q in positions and q not in moved}
    return StreamOffset(positions=positions, base=base, filter_hash=filter_hash, marks=marks)


def keep_youngest(marks: Marks) -> Marks:
    """Returns the mark with the greatest log offset for each topic of a broker.

    Logs of replicas share a prefix, so this message is the first one that a failover loses, and a topic that
    was created again does not have it.
    """
    youngest: dict[tuple[str, str], QueueKey] = {}
    for queue, mark in marks.items():
        other = youngest.setdefault((queue.topic, queue.broker), queue)
        if mark.log_offset > marks[other].log_offset:
            youngest[queue.topic, queue.broker] = queue
    return {queue: marks[queue] for queue in youngest.values()}


def share_out(backlog: Mapping[QueueKey, int], limit: int | None) -> dict[QueueKey, int]:
    """Returns the number of messages per queue for a batch of at most `limit`, in proportion to the backlogs.

    A queue with a backlog gets at least one message if the limit allows it, so a large queue never starves a
    small one. The sum is exactly min(limit, sum of the backlog).
    """
    wanted = {queue: count for queue, count in backlog.items() if count > 0}
    total = sum(wanted.values())
    if limit is None or total <= limit:
        return wanted
    wanted = dict(sorted(wanted.items()))
    shares = {queue: 1 if index < limit else 0 for index, queue in enumerate(wanted)}
    left = limit - sum(shares.values())
    rest = total - sum(shares.values())
    if left:
        for queue, count in wanted.items():
            shares[queue] += (count - 1) * left // rest
    for queue, count in sorted(wanted.items(), key=lambda item: (-item[1], item[0])):
        missing = limit - sum(shares.values()) if left else 0
        shares[queue] += min(missing, count - shares[queue])
    return {queue: share for queue, share in shares.items() if share}


def count_behind(positions: Positions, latest: Positions) -> int:
    """Returns the number of messages between `positions` and `latest`, over all queues."""
    return sum(max(end - positions.get(queue, end), 0) for queue, end in latest.items())


def render_queues(queues: Iterable[QueueKey]) -> str:
    """Renders at most five queues for an error text."""
    names = [
        f"{queue.topic}@{queue.broker}:{queue.queue_id}"
        if queue.broker
        else f"{queue.topic}:{queue.queue_id}"
        for queue in sorted(queues)
    ]
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def measure_lag(end: str | None, latest: str | None) -> int | None:
    """Returns the number of messages between two offsets in the form that Spark's progress shows.

    Returns None if the latest offset is unknown: Spark does not ask for it when it replays a batch after a
    restart.
    """
    read, known = (json.loads(text) if text else None for text in (end, latest))
    if read is None or known is None:
        return None
    return count_behind(decode_offset(read).positions, decode_offset(known).positions)
