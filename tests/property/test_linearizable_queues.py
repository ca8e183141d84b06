"""Compares the checker of queue histories with a search over all orders, which is slow and simple."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from sim.linearizable import Append, Read, contradiction

Operations = list[Append | Read]

TIMES = st.integers(0, 9).map(float)
SPANS = st.tuples(TIMES, TIMES).map(sorted)
VALUES = st.integers(1, 3)
OFFSETS = st.integers(0, 3)
APPENDS = st.one_of(
    st.builds(lambda value, span, offset: Append(value, *span, offset), VALUES, SPANS, OFFSETS),
    st.builds(lambda value, begin: Append(value, begin), VALUES, TIMES),
)
READS = st.builds(
    lambda offset, values, span, is_end: Read(offset, tuple(values), *span, is_end),
    OFFSETS,
    st.lists(VALUES, max_size=3),
    SPANS,
    st.booleans(),
)


def naive(operations: Operations, queue: tuple[int, ...] = ()) -> bool:
    """Returns True if some order of the operations fits the times and every answer."""
    if all(one.end_s == math.inf for one in operations):
        return True
    for one in operations:
        rest = [other for other in operations if other is not one]
        if any(other.end_s < one.begin_s for other in rest):
            continue
        if isinstance(one, Append):
            if one.offset in (None, len(queue)) and naive(rest, (*queue, one.value)):
                return True
            continue
        end = one.offset + len(one.values)
        fits = len(queue) == end if one.is_end else len(queue) >= end
        if fits and queue[one.offset : end] == one.values and naive(rest, queue):
            return True
    return False


@st.composite
def lived(draw: st.DrawFn) -> tuple[list[Append], list[Read]]:
    """Draws a history observed on a list, with some times slightly changed."""
    appends: list[Append] = []
    reads: list[Read] = []
    queue: list[int] = []
    for moment in range(draw(st.integers(1, 6))):
        at = moment * 2.0
        begin, end = at - draw(st.integers(0, 3)), at + draw(st.integers(0, 3))
        if draw(st.booleans()):
            value = draw(VALUES)
            is_answered = draw(st.booleans())
            appends.append(Append(value, begin, end, len(queue)) if is_answered else Append(value, begin))
            if is_answered or draw(st.booleans()):
                queue.append(value)
        else:
            low = draw(st.integers(0, len(queue)))
            high = draw(st.integers(low, len(queue)))
            is_end = high == len(queue) and draw(st.booleans())
            reads.append(Read(low, tuple(queue[low:high]), begin, end, is_end))
    return appends, reads


@given(lived())
def test_linearizable_history_has_no_contradiction(history: tuple[list[Append], list[Read]]) -> None:
    assert contradiction(*history) == ""


@given(st.lists(APPENDS, max_size=4), st.lists(READS, max_size=3))
@example([Append(1, 0.0, 1.0, 0), Append(2, 2.0, 3.0, 1)], [Read(0, (), 4.0, 5.0, is_end=True)])
@example([Append(1, 4.0, 5.0, 0), Append(2, 2.0, 3.0, 1)], [])
def test_it_agrees_with_a_search_over_all_orders(appends: list[Append], reads: list[Read]) -> None:
    assert (contradiction(appends, reads) == "") is naive([*appends, *reads])


@given(lived(), st.data())
def test_it_agrees_when_one_operation_is_moved(
    history: tuple[list[Append], list[Read]], data: st.DataObject
) -> None:
    appends, reads = history
    moved = data.draw(st.integers(0, len(appends) + len(reads) - 1))
    by = data.draw(st.integers(-8, 8))

    def move(index: int, one: Append | Read) -> Append | Read:
        return one._replace(begin_s=one.begin_s + by, end_s=one.end_s + by) if index == moved else one

    turned: Operations = [move(index, one) for index, one in enumerate([*appends, *reads])]
    news = [one for one in turned if isinstance(one, Append)]
    olds = [one for one in turned if isinstance(one, Read)]
    assert (contradiction(news, olds) == "") is naive(turned)
