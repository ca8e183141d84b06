"""Bodies about the replicas of one broker: from controllers, the master and the in-sync set; from a broker,
the state of its replication (GET_BROKER_HA_STATUS, 907; spec remoting 11.13).

Fields with a wire name beginning with `tandem` are ours. For other callers they are None and therefore not
written.
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.bodies.codec import Body


class SyncStateSetAnswer(Body, frozen=True, kw_only=True):
    """The ids of the brokers whose logs are complete enough for election, and the set's epoch."""

    ids: tuple[int, ...] = field(name="syncStateSet", default=())
    epoch: int = field(name="syncStateSetEpoch", default=0)


class MemberGroup(Body, frozen=True, kw_only=True):
    """The addresses of a group by broker id."""

    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)
    broker_name: str = field(name="brokerName", default="")
    cluster: str = ""


class Election(Body, frozen=True, kw_only=True):
    """The answer to CONTROLLER_ELECT_MASTER: mqadmin reads the top-level members, brokers the rest."""

    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)
    member_group: MemberGroup = field(name="brokerMemberGroup")
    broker_name: str = field(name="brokerName")
    cluster: str
    ids: tuple[int, ...] = field(name="syncStateSet")


class EpochRange(Body, frozen=True, kw_only=True):
    """One term and its range of bytes; the end of the current one is 2**63 - 1."""

    end: int = field(name="endOffset")
    epoch: int
    start: int = field(name="startOffset")


class BrokerEpochs(Body, frozen=True, kw_only=True):
    """The answer to GET_BROKER_EPOCH_CACHE; `broker_id` follows the role: 0 for a master."""

    broker_id: int = field(name="brokerId")
    broker_name: str = field(name="brokerName")
    cluster: str = field(name="clusterName")
    epochs: list[EpochRange] = field(name="epochList")
    max_log_offset: int = field(name="maxOffset")


class ReplicaIdentity(Body, frozen=True, kw_only=True):
    """One broker of a group."""

    is_alive: bool = field(name="alive")
    address: str = field(name="brokerAddress")
    broker_id: int = field(name="brokerId")
    broker_name: str = field(name="brokerName")


class GroupSyncState(Body, frozen=True, kw_only=True):
    """A group in the answer to GET_SYNC_STATE_DATA; both lists are always present."""

    in_sync: list[ReplicaIdentity] = field(name="inSyncReplicas")
    master_address: str | None = field(name="masterAddress", default=None)
    master_id: int | None = field(name="masterBrokerId", default=None)
    master_epoch: int = field(name="masterEpoch")
    not_in_sync: list[ReplicaIdentity] = field(name="notInSyncReplicas")
    set_epoch: int = field(name="syncStateSetEpoch")
    group_id: str | None = field(name="tandemGroupId", default=None)
    term_id: str | None = field(name="tandemTermId", default=None)
    """The random id of the term, as text because it exceeds JavaScript's numbers."""
    contradiction: str | None = field(name="tandemContradiction", default=None)
    """The contradiction between brokers and the controllers' record."""
    waits_for: str | None = field(name="tandemWaitsFor", default=None)
    """The reason why the group has no master now."""
    refused: list[str] | None = field(name="tandemRefused", default=None)
    """The brokers of other groups that come with the name of this one, each with the reason."""


class SyncStateData(Body, frozen=True, kw_only=True):
    """The answer to CONTROLLER_GET_SYNC_STATE_DATA."""

    groups: dict[str, GroupSyncState] = field(name="replicasInfoTable", default_factory=dict)
    unknown: dict[str, str] | None = field(name="tandemUnknownGroups", default=None)
    """The groups that brokers report and the controllers do not know, with the brokers' reports."""


class ControllerMember(Body, frozen=True, kw_only=True):
    """One controller of the group."""

    name: str
    address: str
    is_voter: bool = field(name="voter")
    is_leader: bool = field(name="leader")


class HaConnection(Body, frozen=True, kw_only=True):
    """One slave as seen by its master; `lag_bytes` is the part it has not acknowledged.

    `lag_ms`: the age of the first message it has not acknowledged. `reason` and `away_ms`: for a slave that
    is disconnected or cannot be served. `slave`: its reported name and id; `halt_reason`: its reported reason
    for no longer copying.
    """

    address: str = field(name="addr", default="")
    lag_bytes: int = field(name="diff", default=0)
    is_in_sync: bool = field(name="inSync", default=False)
    acknowledged_offset: int = field(name="slaveAckOffset", default=0)
    transfer_from: int = field(name="transferFromWhere", default=0)
    bytes_per_second: int = field(name="transferredByteInSecond", default=0)
    state: str | None = field(name="tandemState", default=None)
    start_rule: str | None = field(name="tandemStartRule", default=None)
    start_offset: int | None = field(name="tandemStartOffset", default=None)
    is_tandem: bool | None = field(name="tandemPeer", default=None)
    lag_ms: int | None = field(name="tandemLagMs", default=None)
    away_ms: int | None = field(name="tandemAwayMs", default=None)
    reason: str | None = field(name="tandemReason", default=None)
    slave: str | None = field(name="tandemSlave", default=None)
    halt_reason: str | None = field(name="tandemHaltReason", default=None)


class HaClient(Body, frozen=True, kw_only=True):
    """The slave's own view of its connection to the master."""

    read_at_ms: int = field(name="lastReadTimestamp", default=0)
    written_at_ms: int = field(name="lastWriteTimestamp", default=0)
    master_address: str = field(name="masterAddr", default="")
    master_flushed_offset: int = field(name="masterFlushOffset", default=0)
    max_log_offset: int = field(name="maxOffset", default=0)
    bytes_per_second: int = field(name="transferredByteInSecond", default=0)
    state: str | None = field(name="tandemState", default=None)
    start_rule: str | None = field(name="tandemStartRule", default=None)
    start_offset: int | None = field(name="tandemStartOffset", default=None)
    tail: str | None = field(name="tandemTail", default=None)
    halt_reason: str | None = field(name="tandemHaltReason", default=None)
    halt_offset: int | None = field(name="tandemHaltOffset", default=None)
    halt_detail: str | None = field(name="tandemHaltDetail", default=None)


class HaStatus(Body, frozen=True, kw_only=True):
    """The replication of one broker; `connections` on a master, `client` on a slave.

    `waiting`: the reason why a master does not serve its log yet.
    """

    client: HaClient = field(name="haClientRuntimeInfo", default=HaClient())
    connections: tuple[HaConnection, ...] = field(name="haConnectionInfo", default=())
    in_sync_count: int = field(name="inSyncSlaveNums", default=0)
    is_master: bool = field(name="master", default=False)
    max_log_offset: int = field(name="masterCommitLogMaxOffset", default=0)
    waiting: str | None = field(name="tandemWaiting", default=None)
