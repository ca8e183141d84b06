"""Merged settings: spec proxy 4.2."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.tables import (
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from tandemmq.protocol.compression import CONTENT_BYTES_MAX
from tandemmq.proxy.options import MetricCollectorMode, ProxyOptions
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.settings import ATTEMPTS_MAX, merge_settings

Settings = message_class("Settings")
OPTIONS = ProxyOptions()


def producer(**fields: Any) -> Any:
    return Settings(
        client_type=1, publishing={"topics": [{"name": "T", "resource_namespace": "ns"}], **fields}
    )


def consumer(**fields: Any) -> Any:
    return Settings(
        client_type=2, subscription={"group": {"name": "G", "resource_namespace": "ns"}, **fields}
    )


def test_a_producer_gets_the_servers_limits_whatever_it_sent() -> None:
    sent = producer(max_body_size=128 * 1024 * 1024)
    sent.metric.on = True
    sent.user_agent.hostname = "h"
    sent.request_timeout.seconds = 3
    merged = merge_settings(sent, OPTIONS)
    assert merged.publishing.max_body_size == 4_194_304
    assert merged.publishing.validate_message_type
    assert merged.publishing.topics[0].resource_namespace == "ns"
    policy = merged.backoff_policy
    assert policy.max_attempts == 3
    assert policy.exponential_backoff.initial.nanos == 10_000_000
    assert policy.exponential_backoff.max.seconds == 1
    assert policy.exponential_backoff.multiplier == 2
    assert merged.HasField("metric")
    assert not merged.metric.on
    assert (merged.user_agent.hostname, merged.request_timeout.seconds) == ("h", 3)
    assert sent.publishing.max_body_size == 128 * 1024 * 1024, "the received message is unchanged"


def test_a_consumer_gets_the_groups_policy() -> None:
    group = SubscriptionGroupConfig(name="G", is_orderly=True, retry_count_max=4)
    merged = merge_settings(consumer(fifo=False), OPTIONS, group)
    subscription = merged.subscription
    assert subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.seconds == 20
    assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (2000, 64)
    assert subscription.group.resource_namespace == "ns"
    assert merged.backoff_policy.max_attempts == 5
    delays = merged.backoff_policy.customized_backoff.next
    assert [delay.seconds for delay in delays[:5]] == [1, 5, 10, 30, 60]
    assert len(delays) == 18


def test_an_unknown_group_has_default_values() -> None:
    merged = merge_settings(consumer(), OPTIONS)
    assert merged.backoff_policy.max_attempts == 17
    assert not merged.subscription.fifo
    assert merged.subscription.HasField("fifo")


def test_a_strategy_is_always_present() -> None:
    """Java's client throws without one."""
    for policy in (
        GroupRetryPolicy(kind="EXPONENTIAL"),
        GroupRetryPolicy(kind="CUSTOMIZED"),
        GroupRetryPolicy(kind="CUSTOMIZED", customized=CustomizedRetry()),
        GroupRetryPolicy(kind="other"),
    ):
        merged = merge_settings(consumer(), OPTIONS, SubscriptionGroupConfig(name="G", retry_policy=policy))
        assert merged.backoff_policy.WhichOneof("strategy") is not None
    merged = merge_settings(
        consumer(),
        OPTIONS,
        SubscriptionGroupConfig(
            retry_policy=GroupRetryPolicy(kind="EXPONENTIAL", exponential=ExponentialRetry(initial_ms=1_500))
        ),
    )
    backoff = merged.backoff_policy.exponential_backoff
    assert (backoff.initial.seconds, backoff.initial.nanos) == (1, 500_000_000)
    assert (backoff.max.seconds, backoff.multiplier) == (7200, 2)


def test_no_limit_of_retries_is_the_largest_number() -> None:
    """0 attempts would send every message to the dead letters."""
    for limit, attempts in ((-1, ATTEMPTS_MAX), (0, 1), (ATTEMPTS_MAX, ATTEMPTS_MAX)):
        merged = merge_settings(consumer(), OPTIONS, SubscriptionGroupConfig(retry_count_max=limit))
        assert merged.backoff_policy.max_attempts == attempts


def test_a_producer_gets_the_configured_retries_and_limits() -> None:
    options = ProxyOptions(
        body_bytes_max=0,
        producer_attempts=5,
        producer_backoff_ms=20,
        producer_backoff_ms_max=3_000,
        producer_backoff_factor=3,
    )
    merged = merge_settings(producer(), options)
    policy = merged.backoff_policy
    assert policy.max_attempts == 5
    assert policy.exponential_backoff.initial.nanos == 20_000_000
    assert policy.exponential_backoff.max.seconds == 3
    assert policy.exponential_backoff.multiplier == 3
    assert merged.publishing.max_body_size == CONTENT_BYTES_MAX, "0 would refuse every message"


def test_clients_send_metrics_to_the_collector() -> None:
    options = ProxyOptions(
        metric_collector_mode=MetricCollectorMode.ON, metric_collector="collector.example:4317"
    )
    merged = merge_settings(consumer(), options)
    assert merged.metric.on
    assert [(one.host, one.port) for one in merged.metric.endpoints.addresses] == [
        ("collector.example", 4317)
    ]


def test_a_collector_is_needed_to_send_metrics() -> None:
    with pytest.raises(ConfigError, match="metric_collector"):
        ProxyOptions(metric_collector_mode=MetricCollectorMode.ON)
