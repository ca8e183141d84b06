"""The settings that a client gets back: its own message with the server's values written over it. Pure.

Clients adopt the values: a client without a retry strategy fails, and one whose largest body is 0 refuses
every message. Fields without a server's value are echoed as received, resources with their namespace.

Source: spec proxy 4.2, 4.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tandemmq.protocol.bodies.tables import ExponentialRetry, SubscriptionGroupConfig
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS
from tandemmq.proxy.routing import Endpoint, make_endpoints
from tandemmq.proxy.rpc import Message
from tandemmq.proxy.schema import message_class

Duration = message_class("ExponentialBackoff")().initial.__class__
Metric = message_class("Metric")
RetryPolicy = message_class("RetryPolicy")

ATTEMPTS_MAX: Final = 2**31 - 1
EXPONENTIAL: Final = "EXPONENTIAL"
LITE_SUBSCRIPTION_QUOTA: Final = 2_000
LITE_TOPIC_LENGTH_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsOptions:
    """The values that clients get.

    collector  the address to which clients send their metrics; None: they send none
    """

    body_bytes_max: int = 4_194_304  # maxMessageSize
    validates_kinds: bool = True  # enableTopicMessageTypeCheck
    producer_attempts_max: int = 3  # grpcClientProducerMaxAttempts
    producer_backoff_ms: int = 10  # grpcClientProducerBackoffInitialMillis
    producer_backoff_ms_max: int = 1_000  # grpcClientProducerBackoffMaxMillis
    producer_backoff_factor: int = 2  # grpcClientProducerBackoffMultiplier
    receive_batch_size: int = 32  # grpcClientConsumerLongPollingBatchSize
    long_polling_ms: int = 20_000  # grpcClientConsumerMaxLongPollingTimeoutMillis
    collector: Endpoint | None = None  # metricCollectorMode on: metricCollectorAddress


def merge_settings(
    settings: Message, options: SettingsOptions, group: SubscriptionGroupConfig | None = None
) -> Message:
    """Returns a copy of a client's settings with the server's values.

    `group`: the configuration of a consumer's group, None if it is unknown; not used for a producer.
    """
    merged = type(settings)()
    merged.CopyFrom(settings)
    if merged.WhichOneof("pub_sub") == "publishing":
        merged.publishing.max_body_size = options.body_bytes_max
        merged.publishing.validate_message_type = options.validates_kinds
        policy = _producer_policy(options)
    else:
        config = group or SubscriptionGroupConfig()
        subscription = merged.subscription
        subscription.fifo = config.is_orderly
        subscription.receive_batch_size = options.receive_batch_size
        subscription.long_polling_timeout.CopyFrom(Duration(**_span(options.long_polling_ms)))
        subscription.lite_subscription_quota = LITE_SUBSCRIPTION_QUOTA
        subscription.max_lite_topic_size = LITE_TOPIC_LENGTH_MAX
        policy = _consumer_policy(config)
    merged.backoff_policy.CopyFrom(RetryPolicy(**policy))
    collector = options.collector
    metric = {"on": False} if collector is None else {"on": True, "endpoints": make_endpoints([collector])}
    merged.metric.CopyFrom(Metric(**metric))
    return merged


def attempts_of(group: SubscriptionGroupConfig) -> int:
    """Returns the number of deliveries of a message to the group; a negative `retryMaxTimes` is no limit."""
    return ATTEMPTS_MAX if group.retry_count_max < 0 else min(group.retry_count_max + 1, ATTEMPTS_MAX)


def _producer_policy(options: SettingsOptions) -> dict[str, Any]:
    backoff = {
        "initial": _span(options.producer_backoff_ms),
        "max": _span(options.producer_backoff_ms_max),
        "multiplier": options.producer_backoff_factor,
    }
    return {"max_attempts": options.producer_attempts_max, "exponential_backoff": backoff}


def _consumer_policy(group: SubscriptionGroupConfig) -> dict[str, Any]:
    """Returns the group's policy; the default one of its kind where the group has none, or an empty one."""
    attempts = {"max_attempts": attempts_of(group)}
    policy = group.retry_policy
    if policy.kind == EXPONENTIAL:
        retry = policy.exponential or ExponentialRetry()
        backoff = {
            "initial": _span(retry.initial_ms),
            "max": _span(retry.delay_ms_max),
            "multiplier": retry.multiplier,
        }
        return {**attempts, "exponential_backoff": backoff}
    delays_ms = policy.customized.delays_ms if policy.customized is not None else ()
    spans = [_span(delay_ms) for delay_ms in delays_ms or DELAY_LEVELS_MS]
    return {**attempts, "customized_backoff": {"next": spans}}


def _span(span_ms: int) -> dict[str, int]:
    """Returns the fields of a Duration."""
    seconds, ms = divmod(max(span_ms, 0), 1000)
    return {"seconds": seconds, "nanos": ms * 1_000_000}
