"""Tests digests: the differences that make a range suspect, and those that only mean a side is behind."""

from __future__ import annotations

from collections.abc import Iterable

from tandemmq.spark.offsets import QueueKey
from tandemmq.spark.pipelines.audit_frames import (
    Comparison,
    Digest,
    Expected,
    PieceKey,
    RangePart,
    Shortfall,
    compare,
    cut_parts,
)

Q, R = QueueKey("T", "b", 0), QueueKey("T", "b", 1)
RANGES = {Q: (5, 25), R: (0, 0)}
PARTS = cut_parts(RANGES, 10)


def mix(number: int) -> int:
    return (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF


def digest(offsets: Iterable[int], *, changed: int = -1) -> dict[PieceKey, Digest]:
    pieces: dict[PieceKey, list[int]] = {}
    for offset in offsets:
        pieces.setdefault(PieceKey(Q, offset // 10), []).append(offset)
    found = {}
    for key, members in pieces.items():
        place = content = total = 0
        for offset in members:
            place ^= mix(offset)
            content ^= mix(offset) + (offset == changed)
            total += mix(offset) + (offset == changed)
        found[key] = Digest(
            rows=len(members),
            offset_xor=place,
            content_xor=content,
            content_sum=total,
            offset_max=max(members),
            stored_at_ms=max(members) * 1000,
        )
    return found


EXPECTED = {
    part.key: Expected(rows=d.rows, offset_xor=d.offset_xor)
    for part in PARTS
    for d in [digest(range(part.begin, part.end))[part.key]]
}
WHOLE = digest(range(5, 25))


def judge(side: Iterable[int], *, changed: int = -1) -> Comparison:
    return compare(WHOLE, digest(side, changed=changed), PARTS, EXPECTED, RANGES)


def test_parts_cover_the_ranges() -> None:
    assert [
        RangePart(PieceKey(Q, 0), 5, 10),
        RangePart(PieceKey(Q, 1), 10, 20),
        RangePart(PieceKey(Q, 2), 20, 25),
    ] == PARTS


def test_equal_sides_are_equal() -> None:
    assert judge(range(5, 25)).is_equal
    assert judge(reversed(range(5, 25))).is_equal


def test_a_change_a_gap_and_a_repeat_make_their_piece_suspicious() -> None:
    part = (PARTS[1],)
    assert judge(range(5, 25), changed=12).suspects == part
    gap = judge(n for n in range(5, 25) if n != 12)
    assert (gap.suspects, gap.missing, gap.surplus) == (part, 1, 0)
    twice = judge([*range(5, 25), 12])
    assert (twice.suspects, twice.missing, twice.surplus) == (part, 0, 1)
    assert judge([13 if n == 12 else n for n in range(5, 25)]).suspects == part


def test_a_side_that_ends_early_is_behind_and_searched_only_where_it_has_rows() -> None:
    found = judge(range(5, 13))
    assert found.suspects == (RangePart(PieceKey(Q, 1), 10, 13),)
    assert found.behind == (Shortfall(queue=Q, reached=13, messages=12, seconds=12.0),)
    assert found.missing == 12
    assert judge(range(5, 20)).suspects == ()
    assert judge([]).behind[0].messages == 20
    assert not judge(range(5, 20)).is_equal


def test_a_reference_with_a_gap_is_not_equal_to_itself() -> None:
    holed = digest(n for n in range(5, 25) if n != 7)
    found = compare(holed, holed, PARTS, EXPECTED, RANGES)
    assert found.suspects == (PARTS[0],)
