"""The names of topics and groups: allowed names, system names, names derived from a group, namespaces; and
the delay levels of topic SCHEDULE_TOPIC_XXXX.

Source:  spec semantics 1.1, 1.5 and 2.5; spec store 5 (tagsCode), 15.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tandemmq.errors import BadRequest, ConfigError

TOPIC_CHARS_MAX: Final = 127
DERIVED_TOPIC_CHARS_MAX: Final = 255
GROUP_CHARS_MAX: Final = 120

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of the name servers' key-value configuration with the queue counts of ordered topics per
broker.
"""
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    (
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
        TRACE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        DISCARD_TOPIC,
    )
)
"""The fixed names only; a broker adds its own name and its cluster's."""

NOT_SENDABLE_TOPICS: Final = frozenset(
    (SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, DISCARD_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC)
)

TIMER_TOPIC: Final = SYSTEM_TOPIC_PREFIX + "wheel_timer"
REVIVE_TOPIC_PREFIX: Final = SYSTEM_TOPIC_PREFIX + "REVIVE_LOG_"

INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
SYSTEM_GROUPS: Final = frozenset(
    (
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_P_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    )
)

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """Returns the topic for a group's messages that are to be retried."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Returns the topic for a group's messages whose retries are exhausted."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Returns the topic of a cluster's request-reply messages."""
    return cluster + "_REPLY_TOPIC"


def is_retry_topic(topic: str) -> bool:
    """Returns True for a group's retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Returns True for a group's dead letter topic."""
    return topic.startswith(DLQ_PREFIX)


def is_derived(topic: str) -> bool:
    """Returns True for a topic that belongs to a group, with its retries or its dead letters."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def is_system_topic(topic: str) -> bool:
    """Returns True for the fixed names and everything with the system's prefix."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def holds_other_topics(topic: str) -> bool:
    """Returns True for topics that hold waiting messages of other topics, or records about their fate."""
    return topic in (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, DISCARD_TOPIC) or (
        topic.startswith(REVIVE_TOPIC_PREFIX)
    )


def is_system_group(group: str) -> bool:
    """Returns True for the groups of tools and of the broker itself."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


# Namespaces: an application uses `Orders`, brokers know `shop%Orders`.

NAMESPACE_SEPARATOR: Final = "%"


def wrap_name(namespace: str, name: str) -> str:
    """Returns a topic or group of the namespace as brokers know it: `%RETRY%Billing` is
    `%RETRY%shop%Billing`.

    An empty name, one that is wrapped already and system names are unchanged.
    """
    if not name or is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX):
        return name
    prefix, bare = _split_derived(name)
    inside = namespace + NAMESPACE_SEPARATOR
    return name if bare.startswith(inside) else prefix + inside + bare


def unwrap_name(namespace: str, name: str) -> str:
    """Returns the name as the namespace's applications know it; one of another namespace is unchanged."""
    prefix, bare = _split_derived(name)
    return prefix + bare.removeprefix(namespace + NAMESPACE_SEPARATOR)


def _split_derived(name: str) -> tuple[str, str]:
    """Returns the prefix of a retry or dead letter topic, or nothing, and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


# A handler checks the same few names for every message.
@lru_cache(maxsize=8192)
def topic_fault(topic: str) -> str:
    """Returns the reason why a broker refuses this topic name; empty if accepted (spec semantics 1.5)."""
    if not topic.strip():
        return "the topic is blank"
    if _NAME.fullmatch(topic) is None:
        return f"the topic {topic[:160]!r} holds characters other than %, |, -, _, digits and ASCII letters"
    limit = DERIVED_TOPIC_CHARS_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_CHARS_MAX
    if len(topic) > limit:
        return f"the topic has {len(topic)} characters, at most {limit} are allowed"
    return ""


@lru_cache(maxsize=8192)
def group_fault(group: str) -> str:
    """Returns the reason why this group name is refused; empty if it is allowed (spec semantics 1.5)."""
    if not group.strip():
        return "the group is blank"
    if _NAME.fullmatch(group) is None:
        return f"the group {group[:160]!r} holds characters other than %, |, -, _, digits and ASCII letters"
    if len(group) > GROUP_CHARS_MAX:
        return f"the group has {len(group)} characters, at most {GROUP_CHARS_MAX} are allowed"
    return ""


def check_topic(topic: str) -> None:
    """Checks a topic name. Raises BadRequest with the reason if a broker would refuse it."""
    fault = topic_fault(topic) if isinstance(topic, str) else _type_fault("topic", topic)
    if fault:
        raise BadRequest(fault)


def check_group(group: str) -> None:
    """Checks a group name. Raises BadRequest with the reason if it is refused."""
    fault = group_fault(group) if isinstance(group, str) else _type_fault("group", group)
    if fault:
        raise BadRequest(fault)


def _type_fault(kind: str, name: object) -> str:
    return f"the {kind} must be str, not {type(name).__name__}"


# Names of other systems, such as `orders.v1` and `celery@host`.

_ESCAPED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ESCAPE: Final = re.compile(r"\|([0-9A-F]{2})")


def encode_name(name: str) -> str:
    """Returns a name that topics and groups may have: each byte other than letters, digits, `-` and `_` is
    written as `|` with two hexadecimal digits. `orders.v1` is `orders|2Ev1`.
    """
    return _ESCAPED.sub(lambda found: "".join(f"|{byte:02X}" for byte in found[0].encode()), name)


def decode_name(name: str) -> str:
    """Returns the name that `encode_name` was given."""
    raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name)
    return raw.encode("latin-1").decode() if raw != name else name


# Delay levels: the time from storing a message to its delivery.

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

DELAY_LEVELS_TEXT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Returns the milliseconds per level; level 1 is item 0.

    Raises:  ConfigError naming the piece that is not a number with one of s, m, h, d.
    """
    delays = []
    for piece in text.split():
        number, unit = piece[:-1], piece[-1]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdigit()):
            raise ConfigError(f"messageDelayLevel: {piece!r} must be a whole number with unit s, m, h or d")
        delays.append(int(number) * _UNIT_MS[unit])
    if not delays:
        raise ConfigError("messageDelayLevel: at least one level such as 1s is needed")
    return tuple(delays)


def render_delay_levels(delays_ms: Sequence[int]) -> str:
    """Returns the text for `parse_delay_levels`, each level in its largest unit."""
    return " ".join(
        next(f"{delay_ms // size}{unit}" for unit, size in reversed(_UNIT_MS.items()) if delay_ms % size == 0)
        for delay_ms in delays_ms
    )


DELAY_LEVELS_MS: Final = parse_delay_levels(DELAY_LEVELS_TEXT)
DUE_MS_MAX: Final = 2**63 - 1


def delivered_at_ms(level: int, stored_at_ms: int, delays_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Returns the due time of a message of this level (above 0); a level above the highest counts as the
    highest.

    The result is limited to eight bytes: no checksum covers the store time, so it may have any value.
    """
    assert level > 0
    return min(stored_at_ms + delays_ms[min(level, len(delays_ms)) - 1], DUE_MS_MAX)
