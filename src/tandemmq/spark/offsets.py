"""Positions in queues, as Spark's checkpoint keeps them; and how a limit is shared out between queues.

An offset of the stream is a JSON object that Spark stores as text and compares as text (spec spark SP-23),
so there is exactly one spelling for each set of positions: topics, brokers and queues sorted. A query that
has not read anything yet has a *symbol* as its offset, not numbers: Spark asks twice for the initial offset,
and two answers with numbers could differ and lose rows (spec spark SP-24). The first end offset carries in
`base` where each new queue starts, so a replay reads the same rows for ever. Queues that appear later are
pinned the same way, and so is where a query goes on after messages were lost.

Numbers alone do not tell one life of a topic from the next: a topic that is deleted and made again counts
from 0 and soon grows past the old position. So an offset also carries `Mark`s: where in the log a message
lies that was read, and when it was stored. Both are in the record itself, the same on every replica and in
every version of RocketMQ, and no two messages of a broker share them.

Which rows belong to which task is decided by options, which may be others when a batch is replayed. So an end
offset also carries the `PackingOptions` of its batch: sinks name rows by task and row (decision 024).

Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from tandemmq.errors import ConfigError

T = TypeVar("T")

FORMAT_VERSION = 1

PACKING_RULE = 1
"""The number of the rule by which `packing.plan_tasks` forms tasks. A rule that forms other tasks of the same
ranges needs the next number, and must keep this one for the offsets that name it."""

EARLIEST = -2
"""In a user's JSON: the first message that the broker still has."""

LATEST = -1
"""In a user's JSON: the end of the queue now."""


ANY_BROKER: Final = ""
"""In a user's JSON of Kafka's form, `{topic: {partition: offset}}`: the one broker with that queue."""


class QueueKey(NamedTuple):
    """One queue of one topic on one broker; a broker is a name here, shared by master and slaves."""

    topic: str
    broker: str
    queue_id: int


class OffsetRange(NamedTuple):
    """Messages of one queue from queue offset `begin` (inclusive) to `end` (exclusive)."""

    queue: QueueKey
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


Positions = Mapping[QueueKey, int]
"""The next queue offset to read of each queue."""


class Mark(NamedTuple):
    """What tells the message at a queue offset from any other that may ever be there."""

    queue_offset: int
    log_offset: int
    stored_at_ms: int


Marks = Mapping[QueueKey, Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingOptions:
    """The options that decide which task reads which messages of a batch.

    `partitions_min` 0 and `records_max` 0 mean no such rule; `pack_records` 0 means one range per task.
    """

    partitions_min: int = 0
    records_max: int = 0
    pack_records: int = 20_000


FIRST_PACKING: Final = PackingOptions(partitions_min=0, records_max=0, pack_records=20_000)
"""The defaults of the releases whose offsets carry no packing; they never change."""

_NONE: Final[Positions] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """What one offset of the stream says.

    `symbol` is set only before the first batch: `earliest`, `latest` or another name of a start rule. `base`
    holds the first position of every queue that the offset before this one did not name, or whose position
    there is no more. `filter_hash` identifies the tag expression, because positions of one filter mean
    nothing to another. `marks` knows a message below the position of each queue that had one; offsets of
    earlier versions have none. `packing` says how the batch that ends here is cut into tasks; offsets of
    earlier versions do not say it.
    """

    symbol: str | None = None
    positions: Positions = field(default_factory=dict)
    base: Positions = field(default_factory=dict)
    filter_hash: str = ""
    marks: Marks = field(default_factory=dict)
    packing: PackingOptions | None = None


def encode_offset(offset: StreamOffset) -> dict[str, Any]:
    """The one spelling of `offset`; equal offsets give equal text."""
    document: dict[str, Any] = {"v": FORMAT_VERSION}
    if offset.symbol is not None:
        document["init"] = offset.symbol
        return document
    document["o"] = nest_positions(offset.positions)
    if offset.base:
        document["base"] = nest_positions(offset.base)
    if offset.filter_hash:
        document["f"] = offset.filter_hash
    if offset.marks:
        document["m"] = _nest({queue: list(mark) for queue, mark in offset.marks.items()})
    if offset.packing is not None:
        document["plan"] = _encode_packing(offset.packing)
    return document


def decode_offset(document: Mapping[str, Any]) -> StreamOffset:
    """The offset that `encode_offset` wrote, perhaps in an earlier run of the query.

    Raises:  ConfigError for a document that this version cannot read.
    """
    version = document.get("v")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"the checkpoint holds offsets of format version {version!r}; this one reads {FORMAT_VERSION}"
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


def _encode_packing(packing: PackingOptions) -> dict[str, int]:
    """The options under their names, and the number of the rule that reads them."""
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


def nest_positions(positions: Positions) -> dict[str, dict[str, dict[str, int]]]:
    """`{topic: {broker: {queue: offset}}}` in sorted order, queues by number."""
    return _nest(positions)


def _nest(values: Mapping[QueueKey, T]) -> dict[str, dict[str, dict[str, T]]]:
    nested: dict[str, dict[str, dict[str, T]]] = {}
    for (topic, broker, queue_id), value in sorted(values.items()):
        nested.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = value
    return nested


def flatten_positions(nested: Mapping[str, Any]) -> dict[QueueKey, int]:
    """The inverse of `nest_positions`; also reads what users write as JSON, in our form or in Kafka's.

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
    """What lies between two offsets of the stream, by queue; a function of its arguments only (spec spark
    SP-17)."""
    if start == end:
        return []  # a watermark makes such batches; `base` belongs to the batch before
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
    """The end offset of the next batch, or None when nothing is new and `start` must be returned as it is.

    `begin` gives where each queue that `start` does not name begins; `latest` is where each known queue ends
    now. A queue that stands behind its own position (a slave that has not caught up) keeps the position.
    `moved` says where queues go on whose position there is no more; `gone` are queues that there are no more.
    With an unresolved `start` the answer is never None: the first end offset pins the start.

    The marks are those of `start`, where they still hold.
    """
    positions = {queue: at for queue, at in start.positions.items() if queue not in gone} | dict(moved)
    base = dict(moved)
    for queue, first in begin.items():
        if queue not in positions:
            positions[queue] = base[queue] = first
    backlog = {queue: max(latest.get(queue, at) - at, 0) for queue, at in positions.items()}
    for queue, share in share_out(backlog, limit).items():
        positions[queue] += share
    if start.symbol is None and not base and positions == dict(start.positions):
        return None
    marks = {q: mark for q, mark in start.marks.items() if q in positions and q not in moved}
    return StreamOffset(positions=positions, base=base, filter_hash=filter_hash, marks=marks)


def share_out(backlog: Mapping[QueueKey, int], limit: int | None) -> dict[QueueKey, int]:
    """How many messages of each queue belong to a batch of at most `limit`: in proportion to its backlog.

    A queue that has anything gets at least one message while the limit allows it, so a small queue is never
    starved by a big one. The sum is exactly min(limit, sum of the backlog).
    """
    wanted = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(wanted.values())
    if limit is None or total <= limit:
        return wanted
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
    """Messages between `positions` and `latest`, over all queues."""
    return sum(max(end - positions.get(queue, end), 0) for queue, end in latest.items())


def render_queues(queues: Iterable[QueueKey]) -> str:
    """Queues for an error text, a few of them at most."""
    names = [
        f"{queue.topic}@{queue.broker}:{queue.queue_id}"
        if queue.broker
        else f"{queue.topic}:{queue.queue_id}"
        for queue in sorted(queues)
    ]
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def measure_lag(end: str | None, latest: str | None) -> int | None:
    """Messages between two offsets as Spark shows them in its progress.

    None when it does not know the latest: a batch that is replayed after a restart is not planned anew.
    """
    read, known = (json.loads(text) if text else None for text in (end, latest))
    if read is None or known is None:
        return None
    return count_behind(decode_offset(read).positions, decode_offset(known).positions)
