"""The pure decisions of the client: queues, shares, replicas, routes, batches, acknowledgements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.api.broker_send import SendAnswer
from tandemmq.client.consumer.inbox import InFlight
from tandemmq.client.consumer.rebalance import AllocateByConsistentHash, allocate_averagely, plan_change
from tandemmq.client.consumer.replica_choice import ReadReplica, choose_replica
from tandemmq.client.consumer.subscription import parse_subscription
from tandemmq.client.options import (
    ConsumerOptions,
    MessageModel,
    ProducerOptions,
    PushOptions,
    parse_name_servers,
)
from tandemmq.client.producer.packer import must_travel_alone
from tandemmq.client.producer.producer import chunk_messages
from tandemmq.client.producer.results import SendStatus, split_answer
from tandemmq.client.producer.sender import RETRY_CODES, QueueChoice, queue_by_key
from tandemmq.client.route_cache import (
    AVOID_S_MAX,
    FaultyPeers,
    build_template_view,
    build_view,
    parse_order_queues,
)
from tandemmq.errors import BadRequest, ConfigError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.protocol.message import Message


def queues(count: int, brokers: str = "a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, name, queue_id) for name in brokers for queue_id in range(count)]


# Queue choice


def test_turn_passes_over_a_failed_broker():
    choice = QueueChoice(0)
    chosen = [choice.next_queue(queues(2, "abc"), {"b"}).broker_name for _ in range(8)]
    assert chosen == ["a", "c", "c", "a", "a", "c", "c", "a"]


def test_turn_goes_on_when_all_brokers_failed():
    choice = QueueChoice(5)
    assert len({choice.next_queue(queues(2, "ab"), {"a", "b"}) for _ in range(4)}) == 4


@given(start=st.integers(0, 1 << 20), count=st.integers(1, 20))
def test_every_queue_gets_its_turn(start: int, count: int):
    choice = QueueChoice(start)
    assert {choice.next_queue(queues(count)) for _ in range(count)} == set(queues(count))


@pytest.mark.parametrize("key_hash", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_a_key_hash_of_any_sign_names_a_queue(key_hash: int):
    assert queue_by_key(queues(7), key_hash) == queues(7)[abs(key_hash) % 7]


# Failed peers


def test_avoidance_doubles_with_failures_in_a_row_and_ends_with_success():
    faulty = FaultyPeers()
    assert not faulty
    now, waits = 0.0, []
    for _ in range(7):
        faulty.record_failure("a", now)
        faulty.record_failure("a", now + 0.5)
        until = now
        while faulty.avoided(until):
            until += 0.5
        waits.append(until - now)
        now = until
    assert waits == [2, 4, 8, 16, AVOID_S_MAX, AVOID_S_MAX, AVOID_S_MAX]
    faulty.record_success("a")
    assert not faulty


# Shares of a group


@given(
    queue_count=st.integers(0, 60),
    ids=st.sets(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=20),
)
def test_shares_cover_every_queue_once_and_differ_by_one_at_most(queue_count: int, ids: set[str]):
    shares = [allocate_averagely(queues(queue_count), ids, own) for own in sorted(ids)]
    assert [queue for share in shares for queue in share] == queues(queue_count)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("queue_count", "ids", "own", "expected"),
    [
        (8, ["a", "b", "c"], "a", [0, 1, 2]),
        (8, ["a", "b", "c"], "c", [6, 7]),
        (2, ["a", "b", "c"], "c", []),
        (4, ["b"], "a", []),
        (4, ["b", "a", "a"], "a", [0, 1]),
    ],
)
def test_shares_as_java_computes_them(queue_count: int, ids: list[str], own: str, expected: list[int]):
    assert [queue.queue_id for queue in allocate_averagely(queues(queue_count), ids, own)] == expected


def test_shares_do_not_depend_on_the_order_of_the_inputs():
    shuffled = list(reversed(queues(3, "ba")))
    assert allocate_averagely(shuffled, ["y", "x"], "x") == allocate_averagely(
        queues(3, "ab"), ["x", "y"], "x"
    )


def test_change_names_what_is_lost_and_gained():
    held, wanted = queues(3), queues(2) + queues(1, "b")
    change = plan_change(held, wanted)
    assert change.lost == (held[2],)
    assert change.gained == (wanted[2],)


# Replicas


@pytest.mark.parametrize(
    ("suggested", "unreachable", "expected"),
    [
        (0, (), 0),
        (1, (), 1),
        (3, (), 4),
        (7, (), 0),
        (0, ("m",), 1),
        (1, ("s1",), 0),
        (0, ("m", "s1", "s4"), 0),
    ],
)
def test_replica_of_a_pull(suggested: int, unreachable: tuple[str, ...], expected: int):
    addresses = {0: "m", 1: "s1", 4: "s4"}
    assert choose_replica(addresses, suggested, unreachable) == ReadReplica(expected, addresses[expected])


def test_without_address_there_is_no_replica():
    assert choose_replica({}, 0) is None
    assert choose_replica({1: "s"}, 0) == ReadReplica(1, "s")


# Acknowledgements


def test_committed_offset_waits_for_the_lowest():
    flight = InFlight(10)
    for offset in (10, 11, 13):
        flight.add(offset, 100)
    flight.advance(20)
    assert (flight.committed_offset, flight.bytes, flight.span) == (10, 300, 10)
    assert flight.finish(11)
    assert not flight.finish(11)
    assert not flight.finish(12)
    assert flight.committed_offset == 10
    flight.finish(10)
    assert flight.committed_offset == 13
    flight.finish(13)
    assert (flight.committed_offset, flight.bytes, len(flight)) == (20, 0, 0)
    flight.advance(15)
    assert flight.next_offset == 20


@given(st.permutations(range(12)), st.integers(0, 12))
def test_a_crash_at_any_moment_skips_nothing(order: list[int], finished_count: int):
    flight = InFlight(0)
    for offset in range(12):
        flight.add(offset, 1)
    finished = set(order[:finished_count])
    for offset in order[:finished_count]:
        flight.finish(offset)
    assert set(range(flight.committed_offset)) <= finished
    assert flight.bytes == 12 - finished_count


def test_an_offset_cannot_come_twice():
    flight = InFlight(5)
    with pytest.raises(AssertionError):
        flight.add(4, 1)


# Subscriptions


@pytest.mark.parametrize(("text", "expected"), [("*", "*"), ("", "*"), (" b ||a|| ", "a || b"), ("a", "a")])
def test_expressions(text: str, expected: str):
    assert parse_subscription("T", text, 1).expression == expected


def test_subscription_as_brokers_read_it():
    data = parse_subscription("T1", "TagA || TagB", 5).describe()
    assert (data.topic, data.version, data.tags) == ("T1", 5, {"TagA", "TagB"})
    assert data.tag_hashes == {2598919, 2598920}
    with pytest.raises(BadRequest):
        parse_subscription("T", "||", 1)


# Routes

ROUTE = TopicRoute(
    brokers=(
        BrokerData(broker_name="a", cluster="c", addresses={0: "a0", 1: "a1"}),
        BrokerData(broker_name="b", cluster="c", addresses={1: "b1"}),
        BrokerData(broker_name="d", cluster="c", addresses={0: "d0"}),
    ),
    queues=(
        QueueData(broker_name="d", permission=4, read_queue_count=1, write_queue_count=1),
        QueueData(broker_name="b", permission=6, read_queue_count=2, write_queue_count=2),
        QueueData(broker_name="a", permission=6, read_queue_count=3, write_queue_count=2),
        QueueData(broker_name="gone", permission=6, read_queue_count=3, write_queue_count=3),
    ),
)


def test_view_publishes_where_a_master_takes_writes_and_reads_everywhere():
    view = build_view("T", ROUTE)
    assert list(view.publish_queues) == queues(2, "a")
    assert list(view.subscribe_queues) == [*queues(3, "a"), *queues(2, "b"), *queues(1, "d")]
    assert view.master_address("a") == "a0"
    assert view.master_address("b") is None
    assert view.master_address("gone") is None


def test_template_gives_at_most_the_wanted_number_of_queues():
    view = build_template_view("New", ROUTE, 2)
    assert list(view.publish_queues) == queues(2, "a", "New")
    assert view.is_template


def test_ordered_topics_list_their_queues():
    assert parse_order_queues("T", "b:1;a:2;;x;y:z") == [*queues(1, "b"), *queues(2, "a")]
    assert parse_order_queues("T", None) == []


# Many messages


def test_messages_are_cut_by_topic_policy_count_and_size():
    messages = [Message(topic="TU"[i % 2], body=b"x" * 100) for i in range(10)]
    messages[4] = Message(topic="T", body=b"x", wait_stored=False)
    messages[7] = Message(topic="U", body=b"x", delay_level=1)
    chunks = list(
        chunk_messages(
            messages, count_max=3, bytes_max=1000, travels_alone=lambda message: bool(message.delay_level)
        )
    )
    assert sorted(len(chunk) for chunk in chunks) == [1, 1, 1, 1, 3, 3]
    assert all(len({(m.topic, m.wait_stored) for m in chunk}) == 1 for chunk in chunks)
    by_size = list(chunk_messages(messages[:4], count_max=9, bytes_max=300, travels_alone=lambda _: False))
    assert [len(chunk) for chunk in by_size] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("message", "alone"),
    [
        (Message(topic="T", body=b"x" * 100), False),
        (Message(topic="T", body=b"x" * 4096), True),
        (Message(topic="T", body=b"x", delay_level=1), True),
        (Message(topic="%RETRY%g", body=b"x"), True),
    ],
)
def test_messages_that_cannot_be_batched(message: Message, alone: bool):
    assert must_travel_alone(message, ProducerOptions()) is alone


def test_batch_answers_are_split():
    answer = SendAnswer(SendStatus.SEND_OK, "A,B", 0, 5)
    results = split_answer(answer, queues(1)[0], ["k1", "k2"])
    assert [(r.message_id, r.unique_key, r.queue_offset) for r in results] == [("A", "k1", 5), ("B", "k2", 6)]
    single = split_answer(SendAnswer(SendStatus.SEND_OK, "A", 0, 5), queues(1)[0], ["k1", "k2"])
    assert [result.message_id for result in single] == ["A", "A"]


def test_codes_that_are_tried_again():
    assert {1, 2, 14, 16, 17, 204, 205, 1500} == RETRY_CODES


# Settings


def test_name_servers_are_split():
    assert parse_name_servers("a:1; http://b:2,a:1") == ("a:1", "b:2")
    assert parse_name_servers("a;b:1") == parse_name_servers(["a", " b:1 "]) == ("a:9876", "b:1")
    assert parse_name_servers(("[::1];http://a",)) == ("[::1]:9876", "a:9876")
    for text in ("", " ; ", "a:b", "a:0", "a:70000", ":1", [], [" "], ["a:b"], ["a", 5]):
        with pytest.raises(ConfigError):
            parse_name_servers(text)  # type: ignore[arg-type]  # 5 is not a text
    with pytest.raises(ConfigError, match="name servers None"):
        parse_name_servers(None)  # type: ignore[arg-type]  # an environment variable that is not set


async def later(event: object) -> None:
    """An async function, passed where a plain one is required."""


@pytest.mark.parametrize("value", [later, "a name"])
def test_hooks_are_plain_functions(value: object):
    """The coroutine of an async hook would be discarded and never run."""
    for kind, name in (
        (ProducerOptions, "on_send"),
        (ProducerOptions, "before_send"),
        (PushOptions, "on_consume"),
    ):
        with pytest.raises(ConfigError, match=f"{name} = .*plain function"):
            kind(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"retry_count_max": -1},
        {"timeout_s": 0},
        {"timeout_s": None},
        {"timeout_s": "5"},
        {"batch_linger_ms": -1},
        {"in_flight_count_max": 0},
        {"client": None},
        {"metrics": 5},
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object]):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ProducerOptions(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"orderly": True},
        {"model": MessageModel.BROADCASTING},
        {"allocate": AllocateByConsistentHash()},
    ],
)
def test_brokers_assign_what_they_can(settings: dict[str, object]):
    with pytest.raises(ConfigError, match="server_assignment"):
        ConsumerOptions(server_assignment=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings", [{"start_from": "first"}, {"read_from": "master"}, {"model": "BROADCASTING"}]
)
def test_a_text_is_none_of_the_choices(settings: dict[str, object]):
    """If a text were accepted, it would equal no member and act as the last one that the code compares."""
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} = .* must be [A-Za-z]+[.][A-Z]+ or"):
        ConsumerOptions(**settings)  # type: ignore[arg-type]
