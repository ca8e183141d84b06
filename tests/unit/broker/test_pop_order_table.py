"""Messages that were popped in order and not acknowledged (spec semantics 14.5)."""

from __future__ import annotations

import json

import pytest

from tandemmq.broker.pop.order_table import KEPT_MS, OrderedPop, OrderTable

KEY = ("T", "G", 0)


def popped(*offsets: int, at: int = 1_000, attempt: str = "") -> OrderedPop:
    return OrderedPop(offsets, pop_time_ms=at, invisible_ms=500, attempt_id=attempt, seen_at_ms=at)


def test_a_queue_is_blocked_until_all_is_acknowledged_or_visible() -> None:
    table = OrderTable()
    table.put(KEY, popped(4, 5, attempt="a"))
    assert table.blocked_until_ms(KEY, None, 1_499) == 1_500
    assert table.blocked_until_ms(KEY, "a", 1_000) is None
    assert table.blocked_until_ms(KEY, "b", 1_000) == 1_500
    assert table.blocked_until_ms(KEY, None, 1_500) is None
    assert table.set_visible_at(KEY, 5, 1_000, 2_000)
    assert table.blocked_until_ms(KEY, None, 1_999) == 2_000
    assert table.acknowledge(KEY, 5, 1_000) == 4
    assert table.blocked_until_ms(KEY, None, 1_500) is None
    assert table.acknowledge(KEY, 4, 1_000) == 6


def test_acks_of_an_earlier_pop_are_ignored_and_unknown_offsets_refused() -> None:
    table = OrderTable()
    table.put(KEY, popped(4, 5))
    assert table.acknowledge(KEY, 4, 999) is None
    assert table.acknowledge(("T", "H", 0), 4, 1_000) is None
    with pytest.raises(ValueError, match="not in list"):
        table.acknowledge(KEY, 9, 1_000)
    assert not table.set_visible_at(KEY, 9, 1_000, 2_000)


def test_pops_are_counted_by_message_and_the_same_attempt_counts_once() -> None:
    table = OrderTable()
    table.put(KEY, popped(4, 5))
    table.put(KEY, again := popped(5, 6, at=2_000, attempt="x"))
    assert again.counts == {5: 1}
    table.put(KEY, same := popped(5, 6, at=2_100, attempt="x"))
    assert same.counts == {5: 1}
    table.put(KEY, third := popped(5, 6, at=3_000, attempt="y"))
    assert third.counts == {5: 2, 6: 1}


def test_the_file_is_rocketmqs_and_comes_back() -> None:
    table = OrderTable()
    pop = popped(4, 6, attempt="a")
    table.put(KEY, pop)
    table.acknowledge(KEY, 6, 1_000)
    table.set_visible_at(KEY, 4, 1_000, 9_000)
    row = json.loads(table.encode())["table"]["T@G"]["0"]
    assert row == {
        "a": "a", "cm": 2, "i": 500, "l": 1_000, "o": [4, 2], "oc": {}, "ot": {"4": 9_000}, "popTime": 1_000,
    }  # fmt: skip
    other = OrderTable()
    other.load(table.encode())
    assert other.encode() == table.encode()
    assert other.blocked_until_ms(KEY, None, 8_999) == 9_000


def test_java_s_file_is_read() -> None:
    table = OrderTable()
    table.load(b'{"table":{"T@G":{0:{"popTime":1000,"i":500,"o":[4,1],"oc":{5:2},"l":1000,"cm":1}}}}')
    pop = table.get(KEY)
    assert pop is not None
    assert (pop.offsets, pop.open_offsets(), pop.counts) == ([4, 5], [5], {5: 2})


def test_what_is_long_unused_is_forgotten() -> None:
    table = OrderTable()
    table.put(KEY, popped(1))
    table.put(("T", "H", 0), popped(1, at=KEPT_MS + 2_000))
    table.encode()
    assert table.get(KEY) is None
    assert table.get(("T", "H", 0)) is not None


def test_a_pop_is_forgotten_with_the_last_of_its_messages() -> None:
    """If the queue ends before it, that offset is assigned to another message."""
    table = OrderTable()
    table.put(KEY, popped(4, 5))
    assert table.drop_beyond(lambda _topic, _queue_id: 6) == 0
    assert table.drop_beyond(lambda _topic, _queue_id: 5) == 1
    assert table.get(KEY) is None


def test_every_pop_is_forgotten_when_another_master_leads() -> None:
    table = OrderTable()
    changes: list[None] = []
    table.on_change.append(lambda: changes.append(None))
    table.put(KEY, popped(4, attempt="a"))
    table.put(("T", "H", 1), popped(7))
    assert table.drop_all() == 2
    assert table.get(KEY) is None
    assert list(table.attempts_of(KEY[:2])) == []
    assert len(changes) == 3
    assert table.drop_all() == 0
    assert len(changes) == 3, "nothing is to be saved"


def test_a_message_that_was_put_off_untried_is_not_counted() -> None:
    table = OrderTable()
    table.put(KEY, popped(1, 2))
    assert table.set_visible_at(KEY, 1, 1_000, 1_100, is_postponed=True)
    assert table.set_visible_at(KEY, 2, 1_000, 1_100, is_postponed=True)
    assert table.set_visible_at(KEY, 2, 1_000, 1_100)  # the last request counts
    other = OrderTable()
    other.load(table.encode())
    for copy in (table, other):
        copy.put(KEY, popped(1, 2, at=2_000))
        pop = copy.get(KEY)
        assert pop is not None
        assert pop.counts == {2: 1}


def test_the_attempts_of_a_group_are_those_of_its_last_pops() -> None:
    table = OrderTable()
    first, second = ("T", "G", 7), ("T", "G", 8)
    table.put(first, popped(1, attempt="a"))
    table.put(second, popped(1, attempt="b"))
    assert set(table.attempts_of(("T", "G"))) == {"a", "b"}
    table.put(first, popped(2, attempt=""))
    assert set(table.attempts_of(("T", "G"))) == {"b"}
    table.clear(second)
    assert not table.attempts_of(("T", "G"))


def test_a_renewal_keeps_the_open_messages_of_the_last_pop_invisible() -> None:
    table = OrderTable()
    table.put(KEY, popped(4, 5))
    table.acknowledge(KEY, 4, 1_000)
    assert table.renew(KEY, 1_000, 2_000)
    assert table.blocked_until_ms(KEY, None, 1_999) == 2_000
    assert not table.renew(KEY, 999, 3_000)
    table.acknowledge(KEY, 5, 1_000)
    assert not table.renew(KEY, 1_000, 3_000)
    assert table.blocked_until_ms(KEY, None, 1_000) is None


def test_a_renewal_leaves_the_time_that_the_consumer_chose() -> None:
    table = OrderTable()
    table.put(KEY, popped(4, 5))
    assert table.set_visible_at(KEY, 4, 1_000, 3_000)
    assert table.renew(KEY, 1_000, 2_000)
    other = OrderTable()
    other.load(table.encode())
    for copy in (table, other):
        assert copy.blocked_until_ms(KEY, None, 1_000) == 3_000
        copy.acknowledge(KEY, 4, 1_000)
        assert copy.blocked_until_ms(KEY, None, 1_000) == 2_000
        assert copy.renew(KEY, 1_000, 9_000)
        assert copy.set_visible_at(KEY, 5, 1_000, 4_000)
        assert copy.renew(KEY, 1_000, 20_000)
        assert copy.blocked_until_ms(KEY, None, 1_000) == 4_000


def test_a_message_below_the_position_of_its_group_is_acknowledged() -> None:
    """A kill lost its ack from the file; the position is in the log."""
    table = OrderTable()
    table.put(KEY, popped(4, 5, 6))
    table.put(("T", "H", 0), popped(7))
    table.acknowledge_before({KEY: 6}.get)
    assert table.acknowledge(KEY, 6, 1_000) == 7
    assert table.acknowledge(("T", "H", 0), 7, 1_000) == 8


def test_no_two_pops_of_a_queue_have_one_time() -> None:
    table = OrderTable()
    assert table.free_time([KEY], 1_000) == 1_000
    table.put(KEY, popped(4))
    assert table.free_time([KEY, ("T", "G", 1)], 1_000) == 1_001
    assert table.free_time([KEY], 1_500) == 1_500
