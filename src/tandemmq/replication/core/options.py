"""The settings of both ends of the replication channel: RocketMQ's keys and defaults, units in the names
(spec replication 17). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tandemmq.errors import ConfigError
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.setting_kinds import check_ranges, setting
from tandemmq.replication.core.frames import BODY_BYTES_MAX, AllowedHosts
from tandemmq.units import MIB


class FirstTransfer(Enum):
    """The position at which the copy of a slave that reports offset 0 begins."""

    NEGOTIATED = "negotiated"  # a TandemMQ slave starts at the first file, a RocketMQ slave at the last
    LAST_FILE = "last_file"  # the classic rule: the start of the master's last file (spec replication 4.4)
    FIRST_FILE = "first_file"  # everything that the master still holds


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOptions:
    """Settings of the SyncStateSet of an elected group, and of a broker that is to join it."""

    # RocketMQ: false, which may lose acknowledged messages
    waits_for_all: bool = setting("allAckInSyncStateSet", True)
    # sends are rejected while the SyncStateSet is smaller
    copy_count_min: int = setting("minInSyncReplicas", 1, kinds.whole(1, 100))
    # a slave lagging longer is removed from the set; RocketMQ: 15000
    lag_ms_max: int = setting("haMaxTimeSlaveNotCatchup", 2_000)
    # ours: the time for a slave to join a new master before it is removed
    join_ms_max: int = setting("joinSetTimeoutMillis", 5_000)
    is_learner: bool = setting("asyncLearner", False)  # copies the log and is never elected
    from_last_file: bool = setting("syncFromLastFile", False)  # an empty slave copies the last file only


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """Settings of both ends of the replication channel."""

    heartbeat_interval_ms: int = setting("haSendHeartbeatInterval", 5_000)
    silence_ms_max: int = setting("haHousekeepingInterval", 20_000)
    transfer_bytes_max: int = setting("haTransferBatchSize", 32_768, kinds.whole(1, BODY_BYTES_MAX))
    in_sync_gap_bytes_max: int = setting("haMaxGapNotInSync", 268_435_456, kinds.POSITIVE_LONG)
    flow_control: bool = setting("haFlowControlEnable", False)
    # per slave connection
    sent_bytes_per_second_max: int = setting("maxHaTransferByteInSecond", 104_857_600, kinds.POSITIVE_LONG)
    connect_timeout_ms: int = 5_000  # fixed in RocketMQ
    reconnect_delay_ms: int = 5_000  # fixed in RocketMQ
    first_transfer: FirstTransfer = setting("haFirstTransfer", FirstTransfer.NEGOTIATED)  # ours
    # ours: networks; empty allows all, as RocketMQ
    allowed_slaves: tuple[str, ...] = setting("haAllowedSlaves", (), kinds.NETWORKS)
    shared_secret: str = setting("haSharedSecret", "", kinds.SECRET)  # ours: empty disables the handshake
    connection_count_max: int = 256  # ours: slaves and all other peers on the replication port
    record_bytes_max: int = 64 * MIB  # ours: a slave treats a larger record as damaged
    write_buffer_bytes_max: int = 1 * MIB  # ours: above it the master stops reading its log for that slave
    # ours; RocketMQ: 3 s, then 10 s (spec replication D3)
    config_sync_interval_ms: int = setting("configSyncInterval", 1_000)
    config_sync_timeout_ms: int = 3_000  # fixed in RocketMQ

    def __post_init__(self) -> None:
        check_ranges(self)
        AllowedHosts(self.allowed_slaves)
        if self.heartbeat_interval_ms >= self.silence_ms_max:
            raise ConfigError(
                f"heartbeat_interval_ms: {self.heartbeat_interval_ms} must be below "
                f"silence_ms_max {self.silence_ms_max}, or a healthy idle peer would be dropped"
            )
