"""The settings of both ends of the replication channel: RocketMQ's keys and defaults, units in the names
(spec replication 17). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tandemmq.errors import ConfigError
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

    waits_for_all: bool = True  # allAckInSyncStateSet; RocketMQ: false, which may lose acknowledged messages
    copy_count_min: int = 1  # minInSyncReplicas: sends are rejected while the SyncStateSet is smaller
    # haMaxTimeSlaveNotCatchup: a slave lagging longer is removed from the set; RocketMQ: 15000
    lag_ms_max: int = 2_000
    # joinSetTimeoutMillis (ours): the time for a slave to join a new master before it is removed
    join_ms_max: int = 5_000
    is_learner: bool = False  # asyncLearner: copies the log and is never elected
    from_last_file: bool = False  # syncFromLastFile: an empty slave copies the last file only


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """Settings of both ends of the replication channel."""

    heartbeat_interval_ms: int = 5_000  # haSendHeartbeatInterval
    silence_ms_max: int = 20_000  # haHousekeepingInterval
    transfer_bytes_max: int = 32_768  # haTransferBatchSize
    in_sync_gap_bytes_max: int = 268_435_456  # haMaxGapNotInSync
    flow_control: bool = False  # haFlowControlEnable
    sent_bytes_per_second_max: int = 104_857_600  # maxHaTransferByteInSecond, per slave connection
    connect_timeout_ms: int = 5_000  # fixed in RocketMQ
    reconnect_delay_ms: int = 5_000  # fixed in RocketMQ
    first_transfer: FirstTransfer = FirstTransfer.NEGOTIATED  # ours
    allowed_slaves: tuple[str, ...] = ()  # haAllowedSlaves (ours): networks; empty allows all, as RocketMQ
    shared_secret: str = field(default="", repr=False)  # haSharedSecret (ours); empty disables the handshake
    connection_count_max: int = 256  # ours: slaves and all other peers on the replication port
    record_bytes_max: int = 64 * MIB  # ours: a slave treats a larger record as damaged
    write_buffer_bytes_max: int = 1 * MIB  # ours: above it the master stops reading its log for that slave
    config_sync_interval_ms: int = 1_000  # ours; RocketMQ: 3 s, then 10 s (spec replication D3)
    config_sync_timeout_ms: int = 3_000  # fixed in RocketMQ

    def __post_init__(self) -> None:
        for name in (
            "heartbeat_interval_ms",
            "silence_ms_max",
            "in_sync_gap_bytes_max",
            "sent_bytes_per_second_max",
            "connect_timeout_ms",
            "reconnect_delay_ms",
            "connection_count_max",
            "record_bytes_max",
            "write_buffer_bytes_max",
            "config_sync_interval_ms",
            "config_sync_timeout_ms",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} must be at least 1")
        AllowedHosts(self.allowed_slaves)
        if not 1 <= self.transfer_bytes_max <= BODY_BYTES_MAX:
            raise ConfigError(f"transfer_bytes_max: {self.transfer_bytes_max} is outside 1..{BODY_BYTES_MAX}")
        if self.heartbeat_interval_ms >= self.silence_ms_max:
            raise ConfigError(
                f"heartbeat_interval_ms: {self.heartbeat_interval_ms} must be below "
                f"silence_ms_max {self.silence_ms_max}, or a healthy idle peer would be dropped"
            )
