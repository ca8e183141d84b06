"""The order in which a pop reads queues (spec semantics 14.1, spec rocketmq55 5, decision 028)."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.reading import PopParams, PopReader
from tandemmq.broker.topics.topic_table import make_topic
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig

RETRY = "%RETRY%G_T"


def order(
    *,
    chance: int = 50,
    attributes: dict[str, str] | None = None,
    factor: str | None = None,
    retries: Collection[int] = (),
    retry_config: TopicConfig | None = None,
    queue_count: int = 4,
    params: dict[str, Any] | None = None,
    **options: Any,
) -> list[tuple[str, int]]:
    """Returns the (topic, queue) pairs of a pop for which every draw of chance is `chance`. `retries`: the
    queues of the retry topic that have messages.
    """
    topic = make_topic("T", queue_count)
    topic.attributes.update({"message.type": "PRIORITY"} if attributes is None else attributes)
    group = SubscriptionGroupConfig(
        name="G", attributes={} if factor is None else {"priority.factor": factor}
    )
    core = SimpleNamespace(
        options=BrokerOptions(**options),
        chance=SimpleNamespace(below=lambda _bound: chance),
        topics={"T": topic, **({} if retry_config is None else {RETRY: retry_config})},
        groups={"G": group},
        store=SimpleNamespace(queue_max=lambda name, queue_id: name == RETRY and queue_id in retries),
    )
    reader = PopReader(core, lease_log=None)  # type: ignore[arg-type]  # as far as it is used
    wanted: dict[str, Any] = {"topic": "T", "group": "G", "queue_id": -1, "count_max": 1, **(params or {})}
    return [(queue.topic, queue.queue_id) for queue in reader.sources(PopParams(**wanted), queue_count)]


def of(topic: str, *numbers: int) -> list[tuple[str, int]]:
    return [(topic, number) for number in numbers]


def test_a_pop_by_priority_reads_the_highest_queue_first_and_retries_before_new_messages() -> None:
    assert order() == of("T", 3, 2, 1, 0)
    assert order(retries=[0, 2]) == [("T", 3), (RETRY, 2), ("T", 2), ("T", 1), (RETRY, 0), ("T", 0)]
    assert order(priority_order_asc=False, retries=[2]) == [
        ("T", 0),
        ("T", 1),
        (RETRY, 2),
        ("T", 2),
        ("T", 3),
    ]


def test_some_pops_by_priority_read_all_retries_first_if_the_operator_wants_so() -> None:
    first = [*of(RETRY, 2, 0), *of("T", 3, 2, 1, 0)]
    assert order(chance=4, retries=[0, 2], priority_retry_percent=5) == first
    assert order(chance=5, retries=[0, 2], priority_retry_percent=5) != first


@pytest.mark.parametrize(
    "changes",
    [
        {"attributes": {}},
        {"attributes": {"message.type": "NORMAL"}},
        {"factor": "0"},
        {"factor": "50"},
    ],
)
def test_other_pops_begin_anywhere_and_read_retries_first_or_last(changes: dict[str, Any]) -> None:
    assert order(**changes) == of("T", 1, 0, 3, 2)
    assert order(**changes, priority_order_asc=False) == of("T", 2, 3, 0, 1)
    assert order(**changes, retries=[0]) == [*of("T", 1, 0, 3, 2), (RETRY, 0)]
    assert order(**changes, retries=[0, 3], pop_retry_percent=51) == [*of(RETRY, 0, 3), *of("T", 1, 0, 3, 2)]


def test_the_factor_is_the_share_of_pops_that_follow_the_priorities() -> None:
    assert order(chance=50, factor="51") == of("T", 3, 2, 1, 0)
    assert order(chance=99, factor="100") == of("T", 3, 2, 1, 0)


@pytest.mark.parametrize("params", [{"queue_id": 1}, {"is_ordered": True}])
def test_pops_of_one_queue_and_ordered_pops_ignore_priorities(params: dict[str, Any]) -> None:
    found = order(params=params, retries=[3])
    assert found == ([("T", 1), (RETRY, 3)] if "queue_id" in params else of("T", 1, 0, 3, 2))


def test_retries_are_read_in_every_queue_that_the_retry_topic_ever_had() -> None:
    """Its topic may have fewer queues now; after a kill its own configuration may have fewer."""
    assert (RETRY, 3) in order(retries=[3])
    assert (RETRY, 3) in order(retries=[3], retry_config=make_topic(RETRY, 1))
    assert (RETRY, 3) in order(retries=[3], queue_count=2, retry_config=make_topic(RETRY, 4))
