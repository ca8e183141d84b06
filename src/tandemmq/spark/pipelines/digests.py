"""What an audit knows of a range of one queue on one side, and how two sides are compared. Pure.

A digest does not depend on the order in which rows were read: counts, exclusive-or and sum of a hash per row.
Equal digests mean equal rows (two independent 64 and 32 bit sums would have to collide); unequal ones say in
which range to look, which is done row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tandemmq.spark.offsets import QueueKey

Ranges = Mapping[QueueKey, tuple[int, int]]
"""The queue offsets that are compared, by queue: [begin, end)."""


class PieceKey(NamedTuple):
    """Queue offsets of one queue: [`number` * size, (`number` + 1) * size) for the audit's size of pieces."""

    queue: QueueKey
    number: int


class Part(NamedTuple):
    """The offsets [`begin`, `end`) of a piece that lie in the audited range."""

    key: PieceKey
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The rows of one side in one piece. `offset_xor`: over a hash of each queue offset alone."""

    rows: int
    offset_xor: int
    content_xor: int
    content_sum: int
    offset_max: int
    stored_at_ms: int


Digests = Mapping[PieceKey, Digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a piece without gap and repeat has, whatever the messages say."""

    rows: int
    offset_xor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A side that ends early in a queue, from `reached` on."""

    queue: QueueKey
    reached: int
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`suspects`: pieces to be looked at row by row, in order; `surplus`: rows beyond one per offset."""

    suspects: tuple[Part, ...]
    behind: tuple[Behind, ...]
    missing: int
    surplus: int

    @property
    def is_equal(self) -> bool:
        return not self.suspects and not self.behind


def compare(
    reference: Digests,
    side: Digests,
    parts: Sequence[Part],
    expected: Mapping[PieceKey, Expected],
    ranges: Ranges,
) -> Comparison:
    """Where `side` is not the reference; for the reference itself, where it has gaps or repeats."""
    reached = find_ends(side, ranges)
    suspects = []
    missing = surplus = 0
    for part in parts:
        key, wanted = part.key, expected[part.key]
        found = side.get(key)
        rows = found.rows if found is not None else 0
        missing += max(wanted.rows - rows, 0)
        surplus += max(rows - wanted.rows, 0)
        end = min(part.end, reached[key.queue])
        if part.begin >= end:
            continue
        is_whole = found is not None and (found.rows, found.offset_xor) == (wanted.rows, wanted.offset_xor)
        if not is_whole or not _is_same(reference.get(key), found):
            suspects.append(Part(key, part.begin, end))
    behind = find_behind(reference, side, ranges, reached)
    return Comparison(suspects=tuple(suspects), behind=behind, missing=missing, surplus=surplus)


def find_ends(side: Digests, ranges: Ranges) -> dict[QueueKey, int]:
    """Behind the last message that the side has of each queue; its begin where it has none."""
    reached = {queue: begin for queue, (begin, _) in ranges.items()}
    for key, digest in side.items():
        if key.queue in reached:
            reached[key.queue] = max(reached[key.queue], digest.offset_max + 1)
    return reached


def find_behind(
    reference: Digests, side: Digests, ranges: Ranges, reached: Mapping[QueueKey, int]
) -> tuple[Behind, ...]:
    """Queues whose end the side has not reached: messages it lacks there, and seconds of store time."""
    found = []
    newest, own = _newest(reference), _newest(side)
    for queue, (_, end) in sorted(ranges.items()):
        at = reached[queue]
        if at >= end:
            continue
        last_ms = newest.get(queue, 0)
        seconds = max(last_ms - own.get(queue, last_ms), 0) / 1000
        found.append(Behind(queue=queue, reached=at, messages=end - at, seconds=seconds))
    return tuple(found)


def cut_parts(ranges: Ranges, piece_size: int) -> list[Part]:
    """The pieces that hold any of the ranges' offsets, in order."""
    return [
        Part(PieceKey(queue, n), max(begin, n * piece_size), min(end, (n + 1) * piece_size))
        for queue, (begin, end) in sorted(ranges.items())
        if begin < end
        for n in range(begin // piece_size, (end - 1) // piece_size + 1)
    ]


def _newest(digests: Digests) -> dict[QueueKey, int]:
    newest: dict[QueueKey, int] = {}
    for key, digest in digests.items():
        newest[key.queue] = max(newest.get(key.queue, 0), digest.stored_at_ms)
    return newest


def _is_same(one: Digest | None, other: Digest | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.rows, one.content_xor, one.content_sum) == (other.rows, other.content_xor, other.content_sum)
