"""Options are checked where they are made, and small pure pieces of the broker."""

from __future__ import annotations

import pytest

from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.topics.handlers import apply_attributes
from tandemmq.broker.topics.topic_table import system_topic_names, system_topics
from tandemmq.errors import BadRequest, ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker_name", ""),
        ("broker_id", -1),
        ("broker_permission", 8),
        ("listen_port", 65_536),
        ("listen_port", 2),
        ("short_polling_ms", 0),
        ("topic_count_max", 0),
    ],
)
def test_settings_out_of_range_name_themselves(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        BrokerOptions(**{name: value})  # type: ignore[arg-type]  # the point of the test


def test_registration_period_is_kept_within_rocketmqs_bounds() -> None:
    assert BrokerOptions(register_period_ms=1).register_period_clamped_ms == 10_000
    assert BrokerOptions(register_period_ms=10**9).register_period_clamped_ms == 60_000


def test_topics_of_a_fresh_broker() -> None:
    topics = {topic.name: topic for topic in system_topics(BrokerOptions(), delay_level_count=18)}
    assert (topics["TBW102"].read_queue_count, topics["TBW102"].permission) == (8, 7)
    assert topics["SCHEDULE_TOPIC_XXXX"].write_queue_count == 18
    assert topics["DefaultCluster"].permission == 7
    assert topics["rmq_sys_wheel_timer"].write_queue_count == 1
    options = BrokerOptions(
        auto_create_topic=False,
        cluster_topic_enable=False,
        trace_topic_enable=True,
        timer_wheel_enable=False,
    )
    topics = {topic.name: topic for topic in system_topics(options, delay_level_count=18)}
    assert "TBW102" not in topics
    assert "rmq_sys_wheel_timer" not in topics
    assert topics["DefaultCluster"].permission == 1
    assert "RMQ_SYS_TRACE_TOPIC" in topics
    assert "broker-a" in system_topic_names(options)


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({}, None, {}),
        ({}, "+message.type=FIFO, +reserve.time=-1", {"message.type": "FIFO", "reserve.time": "-1"}),
        ({"message.type": "FIFO"}, "-message.type", {}),
        ({"message.type": "FIFO"}, "+message.type=DELAY", {"message.type": "DELAY"}),
        ({}, "+queue.type=SimpleCQ", {"queue.type": "SimpleCQ"}),
    ],
)
def test_attribute_changes(before: dict[str, str], changes: str | None, after: dict[str, str]) -> None:
    assert apply_attributes(before, changes, is_new=True, is_mixed_allowed=False) == after


@pytest.mark.parametrize(
    "changes",
    [
        "message.type=FIFO",
        "+message.type",
        "-message.type=FIFO",
        "+colour=red",
        "+queue.type=BatchCQ",
        "+reserve.time=x",
    ],
)
def test_attribute_changes_that_cannot_be(changes: str) -> None:
    with pytest.raises(BadRequest):
        apply_attributes({}, changes, is_new=True, is_mixed_allowed=False)


def test_rates_over_growing_windows() -> None:
    stats = BrokerStats(now_s=0.0)
    for second in range(10, 130, 10):
        stats.put_count += 100 if second > 60 else 10
        stats.sample(float(second))
    ten, minute, ten_minutes = stats.rates("put_count", 120.0)
    assert (round(ten), round(minute)) == (10, 10)
    assert round(ten_minutes, 1) == 5.5
    assert BrokerStats(now_s=5.0).rates("put_count", 5.0) == (0.0, 0.0, 0.0)
