"""Tests pushed conditions: fewer messages are read, and every query returns the same rows as without them."""

from __future__ import annotations

import importlib.util
import operator
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from spark_fakes import FakeBroker, FakeNet, FakeQueue

from tandemmq.spark.columns import select_columns
from tandemmq.spark.options import PropertiesAs, parse_options
from tandemmq.spark.pushdown import plan_pushdown
from tandemmq.spark.source import PUSHDOWN_WORKER, PushdownTopicReader
from tandemmq.telemetry import events

NAMES = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "tags", "keys")
COLUMNS = select_columns(NAMES, PropertiesAs.MAP)
STEP_S = 30
COUNT = 60

COMPARE = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def _time(offset: float) -> datetime:
    return datetime.fromtimestamp(offset * STEP_S, UTC)


def _holds(condition: Any, row: dict[str, Any]) -> bool | None:
    """Returns SQL's answer: None if a null makes it unknown."""
    if isinstance(condition, Not):
        inner = _holds(condition.child, row)
        return None if inner is None else not inner
    actual = row[condition.attribute[0]]
    if isinstance(condition, IsNull):
        return actual is None
    if isinstance(condition, IsNotNull):
        return actual is not None
    if actual is None:
        return False if isinstance(condition, EqualNullSafe) else None
    if isinstance(condition, In):
        return actual in condition.value
    if isinstance(condition, StringStartsWith):
        return bool(actual.startswith(condition.value))
    if isinstance(condition, StringEndsWith):
        return bool(actual.endswith(condition.value))
    if isinstance(condition, StringContains):
        return condition.value in actual
    return bool(COMPARE[type(condition)](actual, condition.value))


def _fill(net: FakeNet) -> list[FakeBroker]:
    def queue(shift: int) -> FakeQueue:
        return FakeQueue(
            3, COUNT, tag_of=lambda n: ("", "a", "b")[(n + shift) % 3], time_of=lambda n: n * STEP_S * 1000
        )

    brokers = [
        net.add_master("b", T_0=queue(0), T_1=queue(1), U_0=queue(2)),
        net.add_master("c", T_0=queue(1)),
    ]
    for broker in brokers:
        broker.indexed_until_ms = (COUNT - 5) * STEP_S * 1000
    return brokers


def _rows(filters: list[Any] | None, **raw: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """Returns the rows of the reader, and the filters that it leaves to Spark."""
    options = parse_options({"nameserver": "ns:1", "topic": "T,U", **raw}, is_streaming=False)
    reader = PushdownTopicReader(options, COLUMNS)
    rest = [] if filters is None else list(reader.pushFilters(filters))
    tasks = reader.partitions()
    reader = pickle.loads(pickle.dumps(reader))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()], rest


def _of(column: str, values: st.SearchStrategy[Any], *kinds: Any) -> st.SearchStrategy[Any]:
    chosen = st.sampled_from(kinds)
    plain = st.builds(lambda kind, value: kind((column,), value), chosen, values)
    listed = st.lists(values, min_size=1, max_size=3).map(lambda found: In((column,), tuple(found)))
    known = st.sampled_from([IsNotNull((column,)), IsNull((column,))])
    return st.one_of(plain, plain, listed, known)


ORDER = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
TEXT = (*ORDER, StringStartsWith, StringEndsWith, StringContains)
ANY = st.one_of(
    _of("queueId", st.integers(-1, 2), *ORDER),
    _of("queueOffset", st.integers(-1, COUNT + 1), *ORDER),
    _of("topic", st.sampled_from(["T", "U", "", "V"]), *TEXT),
    _of("brokerName", st.sampled_from(["b", "c", ""]), *TEXT),
    _of("storeTimestamp", st.floats(0, COUNT, width=16).map(_time), *ORDER),
    _of("tags", st.sampled_from(["a", "b", "c", "a || b", "*", ""]), *TEXT),
    _of("keys", st.integers(0, COUNT).map(lambda n: f"k{n}"), *TEXT),
)
FILTERS = st.lists(st.one_of(ANY, ANY, ANY.map(Not)), max_size=4)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filters=FILTERS)
def test_the_rows_are_those_of_a_query_without_pushdown(net: FakeNet, filters: list[Any]) -> None:
    net.brokers.clear()
    net.replicas.clear()
    net.queue_counts.clear()
    _fill(net)
    wanted = [row for row in _rows(None)[0] if all(_holds(one, row) for one in filters)]
    found, rest = _rows(filters)
    assert all(any(one is offered for offered in filters) for one in rest)
    kept = [row for row in found if all(_holds(one, row) for one in rest)]
    assert sorted(map(repr, kept)) == sorted(map(repr, wanted))


def test_queues_and_offsets_are_decided_here(net: FakeNet) -> None:
    _fill(net)
    filters = [
        IsNotNull(("queueId",)),
        EqualTo(("queueId",), 1),
        In(("brokerName",), ("b", "x")),
        GreaterThan(("queueOffset",), 9),
        LessThanOrEqual(("queueOffset",), 12),
    ]
    rows, rest = _rows(filters)
    assert rest == []
    assert [(row["queueId"], row["queueOffset"]) for row in rows] == [(1, 10), (1, 11), (1, 12)]


def test_a_time_is_read_with_a_minute_around_it(net: FakeNet) -> None:
    _fill(net)
    filters = [GreaterThanOrEqual(("storeTimestamp",), _time(20)), LessThan(("storeTimestamp",), _time(22))]
    rows, rest = _rows(filters)
    assert rest == filters
    offsets = {row["queueOffset"] for row in rows}
    assert offsets == set(range(20 - 60 // STEP_S, 22 + 60 // STEP_S + 2))


def test_a_limit_is_shared_out_among_the_queues(net: FakeNet) -> None:
    _fill(net)
    rows, _ = _rows(None, limit="6")
    places = [(row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows]
    assert places == [
        *[("T", "b", 0, 3), ("T", "b", 0, 4), ("T", "b", 0, 5)],
        *[("T", "b", 1, 3), ("T", "c", 0, 3), ("U", "b", 0, 3)],
    ]
    assert len(_rows(None, limit="1000")[0]) == 4 * (COUNT - 3)
    last = [GreaterThan(("queueOffset",), COUNT - 2)]
    assert [row["queueOffset"] for row in _rows(last, limit="2")[0]] == [COUNT - 1, COUNT - 1]


def test_tags_are_asked_of_the_broker(net: FakeNet) -> None:
    _fill(net)
    rows, rest = _rows([EqualTo(("tags",), "a")])
    assert len(rest) == 1
    assert {row["tags"] for row in rows} == {"a"}
    assert {row["tags"] for row in _rows([In(("tags",), ("a", "b"))], tags="b || c")[0]} == {"b"}
    # A condition that no wanted tag satisfies must not replace the option: Spark would keep its rows.
    assert {row["tags"] for row in _rows([EqualTo(("tags",), "a")], tags="b || c")[0]} <= {"b", "c"}


def test_a_key_is_looked_up_and_what_is_not_indexed_yet_is_read(net: FakeNet) -> None:
    brokers = _fill(net)
    rows, rest = _rows([EqualTo(("keys",), "k20")])
    assert len(rest) == 1
    young = COUNT - 5 - 60 // STEP_S
    assert {row["queueOffset"] for row in rows} == {20, *range(young, COUNT)}
    assert brokers[0].key_queries == ["k20", "k20"]
    for broker in brokers:
        broker.indexed_until_ms = 0
    assert len(_rows([EqualTo(("keys",), "k20")])[0]) == 4 * (COUNT - 3)


def test_a_limit_counts_all_ranges_of_a_queue(net: FakeNet) -> None:
    _fill(net)
    young = COUNT - 5 - 60 // STEP_S
    rows, _ = _rows([EqualTo(("keys",), "k20")], limit="8")
    assert sorted(row["queueOffset"] for row in rows) == [20] * 4 + [young] * 4


def test_everything_is_read_if_the_answer_to_a_key_may_have_been_cut(
    net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = {f"T_{n}": FakeQueue(0, COUNT, time_of=lambda n: n * STEP_S * 1000) for n in range(40)}
    broker = net.add_master("b", **queues)
    broker.indexed_until_ms, broker.key_matches_max = (COUNT - 5) * STEP_S * 1000, 32
    rows, _ = _rows([EqualTo(("keys",), "k20")], topic="T")
    assert {row["queueId"] for row in rows if row["queueOffset"] == 20} == set(range(40))
    broker.key_matches_max = 1
    few = len(_rows([EqualTo(("keys",), "k20")], topic="T")[0])
    assert few < 40 * COUNT, "one match is far from the limits"
    monkeypatch.setattr("tandemmq.spark.metadata.KEY_ANSWER_BYTES_MAX", 100)
    assert len(_rows([EqualTo(("keys",), "k20")], topic="T")[0]) == 40 * COUNT


def test_everything_is_read_if_the_answer_to_a_key_lacks_the_time_of_the_index(net: FakeNet) -> None:
    for broker in _fill(net):
        broker.hides_index_time = True
    assert len(_rows([EqualTo(("keys",), "k20")])[0]) == 4 * (COUNT - 3)


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("properties", "a"), "x"),
        EqualTo(("unknown",), 1),
        In(("queueId",), (1, None)),
        EqualTo(("storeTimestamp",), datetime(2020, 1, 1)),
        Not(EqualTo(("tags",), "a")),
    ],
)
def test_conditions_that_cannot_be_pushed_down_stay_with_spark(condition: Any) -> None:
    plan = plan_pushdown([condition], COLUMNS)
    assert plan.rest == [condition]
    assert plan.pushed == type(plan.pushed)()


def test_spark_still_has_the_module_that_tells_whether_it_pushes_filters() -> None:
    assert importlib.util.find_spec(PUSHDOWN_WORKER) is not None


def test_parts_of_milliseconds_are_kept() -> None:
    at = _time(10) + timedelta(microseconds=1)
    pushed = plan_pushdown([LessThanOrEqual(("storeTimestamp",), at)], COLUMNS).pushed
    assert pushed.stored_until_ms == 10 * STEP_S * 1000 + 2 + 60_000


def test_a_batch_tells_what_was_pushed_down(net: FakeNet, caplog: pytest.LogCaptureFixture) -> None:
    _fill(net)
    filters = [EqualTo(("queueId",), 1), GreaterThan(("queueOffset",), 5), In(("tags",), ("a", "b"))]
    _rows(filters, explain="true")
    (plan,) = [record for record in caplog.records if record.message == events.READ_PLANNED]
    assert plan.pushed == "queueId EqualTo 1; queueOffset 6..; tags a || b"
    assert (plan.messages, plan.queues, plan.filter) == (COUNT - 6, 1, "a || b")
    assert plan.messages + plan.spared_messages == 4 * (COUNT - 3)
