"""The queue of a message: the same one as Java's proxy chooses for a group, and turns for all others."""

from __future__ import annotations

import pytest

from sim.manual_clock import ManualClock
from tandemmq.client.route_cache import RouteView, build_view
from tandemmq.errors import BrokerUnreachable, RequestRejected
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.protocol.hashes import java_hash
from tandemmq.proxy import queue_choice
from tandemmq.proxy.queue_choice import NoWritableQueue, QueueChooser, jump_hash, queue_index, write_queues
from tandemmq.proxy.statuses import Code
from tandemmq.runtime.machine import SeededRandom


def view_of(
    queues: dict[str, int], *, no_master: tuple[str, ...] = (), permission: int = 6, order: str | None = None
) -> RouteView:
    brokers = [
        BrokerData(broker_name=name, addresses={1 if name in no_master else 0: f"{name}:1"})
        for name in queues
    ]
    rows = [
        QueueData(broker_name=name, permission=permission, read_queue_count=count, write_queue_count=count)
        for name, count in queues.items()
    ]
    route = TopicRoute(brokers=tuple(brokers), queues=tuple(rows), order_topic_conf=order)
    return build_view("T", route)


def chooser(clock: ManualClock | None = None) -> QueueChooser:
    return QueueChooser(clock or ManualClock(), SeededRandom(1))


@pytest.mark.parametrize(
    ("group", "hashed", "indexes"),
    [
        ("group0", -1237460591, (1, 7, 7)),
        ("group1", -1237460590, (3, 3, 3)),
        ("order-1001", 708180863, (2, 2, 2)),
        ("fifo", 3142860, (1, 5, 13)),
        ("a", 97, (0, 0, 0)),
    ],
)
def test_group_has_the_queue_of_java(group: str, hashed: int, indexes: tuple[int, ...]):
    """Source: spec proxy 5.5."""
    assert java_hash(group) == hashed
    assert tuple(queue_index(group, count) for count in (4, 8, 16)) == indexes


def test_jump_hash_is_that_of_java():
    """Source: spec proxy 5.5."""
    assert [jump_hash(value, 100) for value in range(10)] == [0, 55, 62, 8, 45, 59, 86, 97, 82, 59]


def test_jump_hash_ends_where_the_sum_of_java_is_negative():
    # state' >> 33 is 2^31 - 1 for this input, found by solving state * multiplier + 1 = 2^64 - 1.
    multiplier = 2862933555777941757
    state = (2**64 - 2) * pow(multiplier, -1, 2**64) % 2**64
    assert (state * multiplier + 1) % 2**64 >> 33 == 2**31 - 1
    assert jump_hash(state, 100) == 0


def test_group_moves_only_to_the_new_queue_when_one_is_added():
    groups = [f"g{i}" for i in range(500)]
    for count in range(1, 20):
        before = [queue_index(group, count) for group in groups]
        after = [queue_index(group, count + 1) for group in groups]
        assert all(new in (old, count) for old, new in zip(before, after, strict=True))


def test_candidates_are_sorted_by_broker_and_queue():
    found = [(one.broker_name, one.queue_id) for one in write_queues(view_of({"b": 2, "a": 2}))]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_order_configuration_names_the_candidates():
    """The ones of Java are sorted there too, and those of a broker without a master are left out."""
    view = view_of({"b": 8, "a": 8, "c": 8}, order="b:1;a:2;c:4", no_master=("c",))
    found = [(one.broker_name, one.queue_id) for one in write_queues(view)]
    assert found == [("a", 0), ("a", 1), ("b", 0)]


def test_group_has_one_queue_whatever_failed():
    clock = ManualClock()
    choice = chooser(clock)
    view = view_of({"a": 2, "b": 2})
    expected = write_queues(view)[queue_index("group1", 4)]
    choice.record_failure(expected.broker_name, BrokerUnreachable("gone"))
    assert choice.choose(view, "group1", {expected.broker_name}) == expected


def test_messages_without_a_group_take_turns():
    choice = chooser()
    view = view_of({"a": 2, "b": 2})
    seen = [choice.choose(view, "") for _ in range(8)]
    assert set(seen[:4]) == set(seen[4:]) == set(view.publish_queues)


def test_turn_of_a_topic_survives_a_new_route():
    choice = chooser()
    first = choice.choose(view_of({"a": 4}), "")
    second = choice.choose(view_of({"a": 4}), "")
    assert second.queue_id == (first.queue_id + 1) % 4


def test_broker_that_failed_is_avoided_for_a_while():
    clock = ManualClock()
    choice = chooser(clock)
    view = view_of({"a": 1, "b": 1})
    choice.record_failure("a", BrokerUnreachable("gone"))
    assert {choice.choose(view, "").broker_name for _ in range(4)} == {"b"}
    clock.advance(31)
    assert {choice.choose(view, "").broker_name for _ in range(4)} == {"a", "b"}


def test_success_ends_the_avoidance():
    choice = chooser()
    view = view_of({"a": 1, "b": 1})
    choice.record_failure("a", BrokerUnreachable("gone"))
    choice.record_success("a")
    assert {choice.choose(view, "").broker_name for _ in range(4)} == {"a", "b"}


def test_rejection_is_no_failure_of_the_broker():
    choice = chooser()
    choice.record_failure("a", RequestRejected("no"))
    assert {choice.choose(view_of({"a": 1, "b": 1}), "").broker_name for _ in range(4)} == {"a", "b"}


def test_only_broker_is_chosen_even_if_it_failed():
    choice = chooser()
    assert choice.choose(view_of({"a": 1}), "", {"a"}).broker_name == "a"


@pytest.mark.parametrize(("no_master", "is_outage"), [((), False), (("a",), True)])
def test_topic_without_a_writable_queue_is_forbidden(no_master: tuple[str, ...], is_outage: bool):
    view = view_of({"a": 4}, permission=6 if is_outage else 4, no_master=no_master)
    with pytest.raises(NoWritableQueue, match="no writable queue") as refused:
        chooser().choose(view, "")
    assert refused.value.code is Code.FORBIDDEN
    assert refused.value.is_outage is is_outage


def test_number_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queue_choice, "TOPICS_MAX", 3)
    choice = chooser()
    for number in range(10):
        route = TopicRoute(
            brokers=(BrokerData(broker_name="a", addresses={0: "a:1"}),),
            queues=(QueueData(broker_name="a", permission=6, read_queue_count=4, write_queue_count=4),),
        )
        choice.choose(build_view(f"T{number}", route), "")
    assert len(choice._topics) == 3
