"""What a broker of an elected group can be told, RocketMQ's key beside each field (spec controller 8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandemmq.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionOptions:
    """Settings that count with enableControllerMode=true only; brokerId and brokerRole do not count then."""

    is_enabled: bool = False  # enableControllerMode
    controllers: tuple[str, ...] = ()  # controllerAddr, split at ';'
    identity_path: Path | None = (
        None  # storePathBrokerIdentity; None: brokerIdentity in the store's directory
    )
    epoch_path: Path | None = None  # storePathEpochFile; None: epochFileCheckpoint, in the same place
    heartbeat_ms: int = 300  # brokerHeartbeatInterval; RocketMQ: 1000, which its controllers get
    heartbeat_timeout_ms: int = 1_000  # sendHeartbeatTimeoutMillis
    silence_ms_max: int = 1_500  # controllerHeartBeatTimeoutMills; RocketMQ: 10000
    poll_ms: int = 1_000  # syncBrokerMetadataPeriod; RocketMQ: 5000
    priority: int = 2**31 - 1  # brokerElectionPriority: among equals the smaller one is elected
    waits_for_all: bool = True  # allAckInSyncStateSet; RocketMQ: false, which may lose what was acknowledged
    copy_count_min: int = 1  # minInSyncReplicas: sends are refused while the SyncStateSet is smaller
    lag_ms_max: int = 2_000  # haMaxTimeSlaveNotCatchup: who lags longer leaves the set; RocketMQ: 15000
    join_ms_max: int = 5_000  # joinSetTimeoutMillis (ours): who has not come to a new master leaves
    is_learner: bool = False  # asyncLearner: copies, and is never elected
    from_last_file: bool = False  # syncFromLastFile: an empty slave copies the last file only
    reapplies_id: bool = False  # ours, reapplyBrokerId: controllers that forgot this broker take it again

    def __post_init__(self) -> None:
        if not self.is_enabled:
            return
        if not self.controllers:
            raise ConfigError("controllerAddr: must not be empty in controller mode")
        for name in (
            "heartbeat_ms",
            "heartbeat_timeout_ms",
            "silence_ms_max",
            "poll_ms",
            "lag_ms_max",
            "join_ms_max",
            "copy_count_min",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.silence_ms_max < 4 * self.heartbeat_ms:
            raise ConfigError(
                f"silence_ms_max: {self.silence_ms_max} must be at least 4 heartbeats"
                f" of {self.heartbeat_ms} ms, or one that is late ends a master"
            )
