"""Settings of clients: the check of received ones, the profile, and the answer. Pure.

The answer is the client's own message with the server's values in it; other fields are echoed as received,
resources with their namespace. Clients adopt the values: a client without a retry strategy fails, and one
whose largest body is 0 refuses every message.

At a bound: settings of more than SETTINGS_BYTES_MAX bytes or TOPICS_MAX topics are refused.
Source:     spec proxy 2.8, 4.2, 4.5, 4.6, 5.16.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, NamedTuple

from tandemmq.protocol.bodies.tables import ExponentialRetry, SubscriptionGroupConfig
from tandemmq.protocol.compression import CONTENT_BYTES_MAX
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS
from tandemmq.proxy.callers import group_name, topic_name
from tandemmq.proxy.options import MetricCollectorMode, ProxyOptions
from tandemmq.proxy.routing import make_endpoints
from tandemmq.proxy.rpc import Message
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code, RpcRefused, check_bound
from tandemmq.proxy.values import duration
from tandemmq.remoting.options import parse_address

Duration = message_class("Duration", "google.protobuf")
Metric = message_class("Metric")
RetryPolicy = message_class("RetryPolicy")

SETTINGS_BYTES_MAX: Final = 65_536
TOPICS_MAX: Final = 1_024
PROPERTIES_MAX: Final = 32
PROPERTY_KEY: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")
PROPERTY_VALUE_CHARS_MAX: Final = 256
PROPERTY_BYTES_MAX: Final = 4_096


# The check of received settings.


class ClientRole(Enum):
    """The kinds of clients that are served, by their number on the wire."""

    PRODUCER = enum_number("ClientType", "PRODUCER")
    PUSH_CONSUMER = enum_number("ClientType", "PUSH_CONSUMER")
    SIMPLE_CONSUMER = enum_number("ClientType", "SIMPLE_CONSUMER")


_CONSUMERS: Final = {role.value: role for role in (ClientRole.PUSH_CONSUMER, ClientRole.SIMPLE_CONSUMER)}
_LITE: Final = tuple(
    enum_number("ClientType", name) for name in ("LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER")
)
_SQL: Final = enum_number("FilterType", "SQL")


class Subscribed(NamedTuple):
    """A subscription of a consumer, as brokers express it: the type is TAG or SQL92."""

    topic: str
    expression: str
    expression_type: str


class Profile(NamedTuple):
    """The part of a client's settings that the proxy and brokers use.

    topics         the topics that a producer publishes to; empty for a consumer, and for a producer that has
                   not sent yet
    group          the group of a consumer; empty for a producer
    subscriptions  the topics of a consumer; some clients send none
    """

    role: ClientRole
    topics: tuple[str, ...] = ()
    group: str = ""
    subscriptions: tuple[Subscribed, ...] = ()


def profile_of(settings: Message) -> Profile:
    """Returns the profile of a client.

    Raises:  RpcRefused for settings that are refused, with the code of the first fault.
    """
    size = settings.ByteSize()
    check_bound(Code.BAD_REQUEST, "the command", size, SETTINGS_BYTES_MAX, "bytes of settings")
    if settings.client_type in _LITE:
        raise RpcRefused(Code.UNSUPPORTED, "UNSUPPORTED: this proxy does not serve lite consumers")
    _check_properties(settings.client_properties)
    match settings.WhichOneof("pub_sub"):
        case "publishing":
            topics = dict.fromkeys(map(topic_name, settings.publishing.topics))
            check_bound(Code.BAD_REQUEST, "the command", len(topics), TOPICS_MAX, "topics")
            return Profile(ClientRole.PRODUCER, topics=tuple(topics))
        case "subscription":
            return _consumer_profile(settings)
        case _:
            raise RpcRefused(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")


def _consumer_profile(settings: Message) -> Profile:
    role = _CONSUMERS.get(settings.client_type)
    if role is None:
        raise RpcRefused(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"client type {settings.client_type} is not served: must be PUSH_CONSUMER or SIMPLE_CONSUMER",
        )
    group = group_name(settings.subscription.group)
    subscriptions = {}
    for entry in settings.subscription.subscriptions:
        topic = topic_name(entry.topic)
        kind = "SQL92" if entry.expression.type == _SQL else "TAG"
        subscriptions[topic] = Subscribed(topic, entry.expression.expression or "*", kind)
    check_bound(Code.BAD_REQUEST, "the command", len(subscriptions), TOPICS_MAX, "topics")
    return Profile(role, group=group, subscriptions=tuple(subscriptions.values()))


def _check_properties(properties: Any) -> None:
    """Checks `client_properties`. Raises RpcRefused INVALID_CLIENT_PROPERTIES."""
    fault = ""
    if len(properties) > PROPERTIES_MAX:
        fault = f"{len(properties)} entries, at most {PROPERTIES_MAX} are allowed"
    elif sum(len(key.encode()) + len(text.encode()) for key, text in properties.items()) > PROPERTY_BYTES_MAX:
        fault = f"more than {PROPERTY_BYTES_MAX} bytes"
    for key, text in properties.items():
        if PROPERTY_KEY.fullmatch(key) is None:
            fault = fault or f"the key {key[:160]!r}"
        elif len(text) > PROPERTY_VALUE_CHARS_MAX:
            fault = (
                fault or f"{len(text)} characters in {key}, at most {PROPERTY_VALUE_CHARS_MAX} are allowed"
            )
    if fault:
        raise RpcRefused(Code.INVALID_CLIENT_PROPERTIES, f"client_properties have {fault}")


# The settings that a client gets back.

ATTEMPTS_MAX: Final = 2**31 - 1
EXPONENTIAL: Final = "EXPONENTIAL"
LITE_SUBSCRIPTION_QUOTA: Final = 2_000
LITE_TOPIC_LENGTH_MAX: Final = 64


def merge_settings(
    settings: Message, options: ProxyOptions, group: SubscriptionGroupConfig | None = None
) -> Message:
    """Returns a copy of a client's settings with the server's values.

    `group`: the configuration of a consumer's group, None if it is unknown; not used for a producer.
    """
    merged = type(settings)()
    merged.CopyFrom(settings)
    if merged.WhichOneof("pub_sub") == "publishing":
        merged.publishing.max_body_size = options.body_bytes_max or CONTENT_BYTES_MAX
        merged.publishing.validate_message_type = options.checks_message_type
        policy = _producer_policy(options)
    else:
        config = group or SubscriptionGroupConfig()
        subscription = merged.subscription
        subscription.fifo = config.is_orderly
        subscription.receive_batch_size = options.batch_max
        subscription.long_polling_timeout.CopyFrom(Duration(**duration(options.poll_ms_max)))
        subscription.lite_subscription_quota = LITE_SUBSCRIPTION_QUOTA
        subscription.max_lite_topic_size = LITE_TOPIC_LENGTH_MAX
        policy = _consumer_policy(config)
    merged.backoff_policy.CopyFrom(RetryPolicy(**policy))
    metric: dict[str, Any] = {"on": options.metric_collector_mode is MetricCollectorMode.ON}
    if metric["on"]:
        metric["endpoints"] = make_endpoints([parse_address(options.metric_collector)])
    merged.metric.CopyFrom(Metric(**metric))
    return merged


def attempts_of(group: SubscriptionGroupConfig) -> int:
    """Returns the limit of deliveries of a message to the group; a negative `retryMaxTimes` is unlimited."""
    return ATTEMPTS_MAX if group.retry_count_max < 0 else min(group.retry_count_max + 1, ATTEMPTS_MAX)


def _producer_policy(options: ProxyOptions) -> dict[str, Any]:
    initial_ms, max_ms = options.producer_backoff_ms, options.producer_backoff_ms_max
    backoff = _exponential(initial_ms, max_ms, options.producer_backoff_factor)
    return {"max_attempts": options.producer_attempts, "exponential_backoff": backoff}


def _consumer_policy(group: SubscriptionGroupConfig) -> dict[str, Any]:
    """Returns the group's policy; the default one of its kind where the group has none, or an empty one."""
    attempts = {"max_attempts": attempts_of(group)}
    policy = group.retry_policy
    if policy.kind == EXPONENTIAL:
        retry = policy.exponential or ExponentialRetry()
        backoff = _exponential(retry.initial_ms, retry.delay_ms_max, retry.multiplier)
        return {**attempts, "exponential_backoff": backoff}
    delays_ms = policy.customized.delays_ms if policy.customized is not None else ()
    spans = [duration(delay_ms) for delay_ms in delays_ms or DELAY_LEVELS_MS]
    return {**attempts, "customized_backoff": {"next": spans}}


def _exponential(initial_ms: int, max_ms: int, multiplier: float) -> dict[str, Any]:
    return {"initial": duration(initial_ms), "max": duration(max_ms), "multiplier": multiplier}
