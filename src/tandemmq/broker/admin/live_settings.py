"""Which settings an operator may change while the broker runs (UPDATE_BROKER_CONFIG), and how. Mostly pure.

Only what stands in `CHANGEABLE` changes: numbers and switches that are looked at each time they are needed.
Nothing that names a path, a file, a script, an address, a port, an identity or a secret is in it, so that a
request can never make the broker write or run something elsewhere (CVE-2023-33246, CVE-2023-37582).
Source: spec semantics 16.3 and 23.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tandemmq.broker.options import PERMISSION_MAX, BrokerOptions
from tandemmq.errors import ConfigError
from tandemmq.store.options import StoreOptions

_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Change:
    """One setting: its place, how its text is read, what is allowed."""

    part: str  # "broker" or "store"
    field: str
    parse: Callable[[str], Any]
    allowed: str


def _flag(field: str, *, part: str = "broker") -> Change:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    return Change(part, field, parse, "true or false")


def _whole(part: str, field: str, low: int = 1, high: int = _INT_MAX) -> Change:
    def parse(text: str) -> int:
        if not low <= int(text) <= high:
            raise ValueError(text)
        return int(text)

    return Change(part, field, parse, f"a whole number within {low}..{high}")


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(int(part) for part in text.split(";") if part)
    if not hours or any(not 0 <= hour <= 23 for hour in hours):
        raise ValueError(text)
    return hours


CHANGEABLE: Final[Mapping[str, Change]] = {
    "autoCreateTopicEnable": _flag("auto_create_topic"),
    "autoCreateSubscriptionGroup": _flag("auto_create_group"),
    "brokerPermission": _whole("broker", "broker_permission", 0, PERMISSION_MAX),
    "validateSystemTopicWhenUpdateTopic": _flag("validate_system_topic_when_update"),
    "enableMixedMessageType": _flag("mixed_message_type_enable"),
    "recallMessageEnable": _flag("recall_enable"),
    "storeReplyMessageEnable": _flag("reply_store_enable"),
    "rejectTransactionMessage": _flag("transactions_refused"),
    "enablePropertyFilter": _flag("property_filter_enable"),
    "litePullMessageEnable": _flag("lite_pull_enable"),
    "coldDataFlowControlEnable": _flag("cold_control_enable"),
    "cgColdReadThreshold": _whole("broker", "cold_bytes_per_group_max", 1, 2**53),
    "globalColdReadThreshold": _whole("broker", "cold_bytes_max", 1, 2**53),
    "dataReadAheadEnable": _flag("read_ahead_enable", part="store"),
    "rejectPullConsumerEnable": _flag("reject_pull_consumers"),
    "longPollingEnable": _flag("long_polling_enable"),
    "shortPollingTimeMills": _whole("broker", "short_polling_ms"),
    "useServerSideResetOffset": _flag("server_side_reset"),
    "notifyConsumerIdsChangedEnable": _flag("notify_consumer_ids_changed"),
    "channelExpiredTimeout": _whole("broker", "channel_expired_ms"),
    "popFromRetryProbability": _whole("broker", "pop_retry_percent", 0, 100),
    "fileReservedTime": _whole("store", "file_reserved_hours", 1, 24 * 36_500),
    "deleteWhen": Change("store", "delete_at_hours", _hours, "hours within 0..23, separated by ;"),
    "deleteFileBatchMax": _whole("store", "delete_file_count_max", 1, 2**20),
    "cleanResourceInterval": _whole("store", "clean_interval_ms"),
    "diskMaxUsedSpaceRatio": _whole("store", "disk_used_percent_max", 10, 95),
    "syncFlushTimeout": _whole("store", "sync_flush_timeout_ms"),
    "slaveTimeout": _whole("store", "slave_timeout_ms"),
    "flushIntervalCommitLog": _whole("store", "flush_interval_ms"),
    "maxTransferBytesOnMessageInMemory": _whole("store", "transfer_bytes_in_memory_max"),
    "maxTransferCountOnMessageInMemory": _whole("store", "transfer_count_in_memory_max"),
    "maxTransferBytesOnMessageInDisk": _whole("store", "transfer_bytes_on_disk_max"),
    "maxTransferCountOnMessageInDisk": _whole("store", "transfer_count_on_disk_max"),
    "maxMsgsNumBatch": _whole("store", "query_count_max", 1, 2**20),
}


def parse_change(key: str, text: str) -> tuple[Change, Any]:
    """The setting and its new value. `key` must be in `CHANGEABLE`.

    Raises:  ConfigError naming the key and what is allowed.
    """
    change = CHANGEABLE[key]
    try:
        return change, change.parse(text.strip())
    except ValueError:
        raise ConfigError(f"{key}={text[:64]}: must be {change.allowed}") from None


def apply_changes(
    broker: BrokerOptions, store: StoreOptions, changes: Mapping[str, tuple[Change, Any]]
) -> Callable[[], None]:
    """What makes the changes; nothing is changed before it is called.

    The options are values that all parts hold and look at when they need them. This is the one place that
    changes them, in place and all at once; between two awaits nobody sees half of it.
    Raises:  ConfigError when a new value contradicts another setting.
    """
    by_part: dict[str, dict[str, Any]] = {"broker": {}, "store": {}}
    for change, value in changes.values():
        by_part[change.part][change.field] = value
    replace(broker, **by_part["broker"])
    replace(store, **by_part["store"])

    def apply() -> None:
        for options, fields in ((broker, by_part["broker"]), (store, by_part["store"])):
            for name, value in fields.items():
                object.__setattr__(options, name, value)

    return apply
