"""Options are checked where they are created; also small pure pieces of the broker."""

from __future__ import annotations

import pytest

from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.topics.attributes import apply_group_attributes, apply_topic_attributes
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
        ({}, "+message.type=PRIORITY", {"message.type": "PRIORITY"}),
        ({}, "+queue.type=SimpleCQ", {"queue.type": "SimpleCQ"}),
        (
            {"message.type": "LITE"},
            "+lite.topic.expiration=43200",
            {"message.type": "LITE", "lite.topic.expiration": "43200"},
        ),
    ],
)
def test_attribute_changes(before: dict[str, str], changes: str | None, after: dict[str, str]) -> None:
    assert apply_topic_attributes(before, changes, is_new=True, is_mixed_allowed=False) == after


@pytest.mark.parametrize(
    "changes",
    [
        "message.type=FIFO",
        "+message.type",
        "-message.type=FIFO",
        "+colour=red",
        "+queue.type=BatchCQ",
        "+reserve.time=x",
        "+reserve.time=" + "9" * 5_000,
        "+message.type=PRIORITIES",
        "+lite.topic.expiration=5",
        "+message.type=LITE,+lite.topic.expiration=43201",
        "+message.type=LITE,+lite.topic.expiration=-2",
    ],
)
def test_attribute_changes_that_cannot_be(changes: str) -> None:
    with pytest.raises(BadRequest):
        apply_topic_attributes({}, changes, is_new=True, is_mixed_allowed=False)


GROUP_ATTRIBUTES = {
    "priority.factor": ("0", "101"),
    "lite.bind.topic": ("Parent", ""),
    "lite.sub.model": ("Exclusive", "exclusive"),
    "lite.sub.reset.offset.exclusive": ("true", "yes"),
    "lite.sub.reset.offset.unsubscribe": ("false", "1"),
    "lite.sub.client.quota": ("-1", "-2"),
    "lite.sub.client.max.event.cnt": ("10", "9"),
    "lite.sub.wildcard": ("on", "x" * 256),
}


def test_attributes_of_groups_that_rocketmq_knows_are_kept() -> None:
    held: dict[str, str] = {}
    for key, (good, bad) in GROUP_ATTRIBUTES.items():
        with pytest.raises(BadRequest, match=key):
            apply_group_attributes(held, {**held, f"+{key}": bad})
        held = apply_group_attributes(held, {f"+{key}": good})
    assert held == {key: good for key, (good, _) in GROUP_ATTRIBUTES.items()}
    assert apply_group_attributes(held, held) == held  # the displayed attributes are sent back
    assert "lite.sub.model" not in apply_group_attributes(held, {"-lite.sub.model": ""})
    for wrong in ({"+colour": "red"}, {"priority.factor": "7"}, {"": "x"}, {"+": ""}):
        with pytest.raises(BadRequest):
            apply_group_attributes(held, wrong)


def test_rates_over_growing_windows() -> None:
    stats = BrokerStats(now_s=0.0)
    for second in range(10, 130, 10):
        stats.arrivals.row("T", "normal").record_batch(100 if second > 60 else 10, 1000)
        stats.sample(float(second))
    ten, minute, ten_minutes = stats.rates("put_count", 120.0)
    assert (round(ten), round(minute)) == (10, 10)
    assert round(ten_minutes, 1) == 5.5
    assert BrokerStats(now_s=5.0).rates("put_count", 5.0) == (0.0, 0.0, 0.0)
