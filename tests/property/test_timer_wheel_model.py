"""The wheel of timer messages against a model that simply keeps everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.delay.timers import CANCELLING, TimerKey, TimerWheel

SLOTS = st.integers(0, 12).map(lambda number: number * 1000)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SLOTS),
        st.tuples(st.just("cancel"), SLOTS),
        st.tuples(st.just("take"), SLOTS, st.integers(1, 4)),
    ),
    max_size=80,
)


class Model:
    """Holds every message added and not yet removed."""

    def __init__(self) -> None:
        self.pending: set[TimerKey] = set()
        self.cancelled: set[tuple[int, str]] = set()
        self.all: list[tuple[TimerKey, str]] = []

    def refill(self, count_max: int) -> TimerWheel:
        """Does what reading the topic again does."""
        wheel = TimerWheel(count_max)
        for key, name in self.all:
            if key in self.pending:
                if name:
                    wheel.cancel(key.slot_ms, name)
                wheel.add(key)
        return wheel


@settings(max_examples=300)
@given(ACTIONS, st.integers(1, 8))
def test_messages_come_out_in_order_and_none_is_lost(
    actions: list[tuple[object, ...]], count_max: int
) -> None:
    model = Model()
    wheel = TimerWheel(count_max)
    for number, action in enumerate(actions):
        if action[0] in ("add", "cancel"):
            slot_ms = action[1]
            assert isinstance(slot_ms, int)
            key = TimerKey(slot_ms, number + (CANCELLING if action[0] == "cancel" else 0))
            name = f"n{number}" if action[0] == "cancel" else ""
            model.pending.add(key)
            model.all.append((key, name))
            if name:
                model.cancelled.add((slot_ms, name))
                wheel.cancel(slot_ms, name)
            wheel.add(key)
        else:
            _, end_ms, take_max = action
            assert isinstance(end_ms, int)
            assert isinstance(take_max, int)
            due = wheel.peek(end_ms, take_max)
            expected = sorted(key for key in model.pending if key.slot_ms < end_ms)
            assert due == expected[: len(due)]
            if not due and expected:
                assert wheel.wants_refill
            wheel.remove(due)
            model.pending -= set(due)
            if wheel.wants_refill:
                wheel = model.refill(count_max)
        assert len(wheel) <= count_max
        held = list(wheel.held())
        assert len(wheel) == len(held)
        assert held == sorted(model.pending)[: len(held)]
        assert wheel.next_key() == (held[0] if held else None)
        assert wheel.first_offset() == min((key.queue_offset for key in model.pending), default=None)
        if wheel.horizon is None:
            assert len(held) == len(model.pending)
        for slot_ms in {key.slot_ms for key in held}:
            names = [name for slot, name in model.cancelled if slot == slot_ms]
            waiting = [name for key, name in model.all if key in model.pending and key.slot_ms == slot_ms]
            for name in names:
                if name in waiting and len(names) <= count_max:
                    assert wheel.is_cancelled(slot_ms, name)


def test_wheel_of_one_slot_keeps_the_first() -> None:
    wheel = TimerWheel(4)
    for offset in range(9):
        wheel.add(TimerKey(1000, offset))
    assert [key.queue_offset for key in wheel.held()] == [0, 1]
    assert wheel.horizon == TimerKey(1000, 2)
    wheel.remove(wheel.peek(2000, 10))
    assert wheel.wants_refill
    assert wheel.first_offset() == 2


def test_cancellations_of_one_slot_are_bounded() -> None:
    wheel = TimerWheel(3)
    for number in range(9):
        wheel.cancel(1000, f"n{number}")
    assert [wheel.is_cancelled(1000, f"n{number}") for number in range(4)] == [True, True, True, False]
    assert wheel.has_cancelled
    wheel.forget_cancelled_below(1000)
    assert wheel.has_cancelled
    wheel.forget_cancelled_below(1001)
    assert not wheel.has_cancelled
