"""Relations between settings that no single part can see.

Source: spec replication 3 (roles and ids), 5.2 (needed acknowledgements).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandemmq.errors import ConfigError
from tandemmq.store.options import BrokerRole, FlushMode

ELECTED_HEARTBEAT_MS = 300
"""A master whose controllers are gone goes on by reports of its slaves, which answer its heartbeats."""


def check_broker(values: dict[str, Any], texts: Mapping[str, str]) -> tuple[str, ...]:
    """What was put right on the way, in sentences for the log; `values` is by `part.field` and may be
    changed.

    Raises:  ConfigError for settings that contradict each other.
    """
    _check_replica_counts(texts)
    return (*_settle_role(values), *_settle_pool(values, texts))


def _settle_role(values: dict[str, Any]) -> tuple[str, ...]:
    """A master has id 0 whatever the file says, as in RocketMQ; a slave must have an id of its own."""
    if values.get("election.is_enabled", False):
        # The controllers say; until they do, it is a slave.
        values["store.role"], values["broker.broker_id"] = BrokerRole.SLAVE, 1
        values["store.transient_pool_enable"] = False
        values.setdefault("replication.heartbeat_interval_ms", ELECTED_HEARTBEAT_MS)
        return ()
    role = values.get("store.role", BrokerRole.ASYNC_MASTER)
    broker_id = values.get("broker.broker_id", 0)
    if role is BrokerRole.SLAVE:
        if broker_id == 0:
            raise ConfigError(
                "brokerRole=SLAVE needs a brokerId above 0, one that no other slave of the group has"
            )
        return ()
    if broker_id == 0:
        return ()
    values["broker.broker_id"] = 0
    return (f"brokerId={broker_id} is taken as 0, because brokerRole={role.value} is a master's",)


def _settle_pool(values: dict[str, Any], texts: Mapping[str, str]) -> tuple[str, ...]:
    """The transient pool serves masters that answer before the disk has the message (spec store 11)."""
    if not values.get("store.transient_pool_enable", False):
        return ()
    if values.get("store.flush_mode") is FlushMode.SYNC_FLUSH:
        reason = "with flushDiskType=SYNC_FLUSH each send waits for the disk"
    elif texts.get("writeWithoutMmap", "").lower() == "true":
        reason = "writeWithoutMmap=true rules it out"
    elif values.get("store.role") is BrokerRole.SLAVE:
        return ("transientStorePoolEnable=true has no effect while the broker is a slave",)
    else:
        return ()
    values["store.transient_pool_enable"] = False
    return (f"transientStorePoolEnable=true is taken as false: {reason}",)


def _check_replica_counts(texts: Mapping[str, str]) -> None:
    needed = int(texts.get("inSyncReplicas", "1"))
    if "totalReplicas" in texts and needed > int(texts["totalReplicas"]):
        raise ConfigError(
            f"inSyncReplicas={needed} can never be reached with totalReplicas={texts['totalReplicas']}"
        )
    is_elected = texts.get("enableControllerMode", "").lower() == "true"  # there the set's size is meant
    if "minInSyncReplicas" in texts and not is_elected and int(texts["minInSyncReplicas"]) > max(needed, 1):
        raise ConfigError(
            f"minInSyncReplicas={texts['minInSyncReplicas']} must not be above inSyncReplicas={needed}"
        )
