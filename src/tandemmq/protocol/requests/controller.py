"""Requests between brokers, tools and controllers (RocketMQ's controller mode), and one of ours between
controllers.
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64


class AlterSyncStateSetRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001); the body is the wanted SyncStateSet with the present epoch."""

    broker_name: str = field(name="brokerName")
    master_id: Int64 = field(name="masterBrokerId")
    master_epoch: Int32 = field(name="masterEpoch")
    group_id: str | None = field(name="tmGroup", default=None)


class AlterSyncStateSetResponse(Header, frozen=True, kw_only=True):
    """The answer to CONTROLLER_ALTER_SYNC_STATE_SET; 0 if nothing was changed."""

    set_epoch: Int32 = field(name="newSyncStateSetEpoch", default=0)


class ElectMasterRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_ELECT_MASTER (1002): from a broker without a master, or from a tool that names one."""

    broker_name: str = field(name="brokerName")
    cluster_name: str = field(name="clusterName", default="")
    broker_id: Int64 = field(name="brokerId")
    is_designated: bool = field(name="designateElect", default=False)
    group_id: str | None = field(name="tmGroup", default=None)


class HistoryFacts(Header, frozen=True, kw_only=True):
    """The history that a broker knows of its group: fields of ours in registration and heartbeat.

    Other requests of brokers carry `group_id` alone.

    `epoch_known` is the highest master epoch that the broker has accepted or holds in its log, `term_id` the
    random id of that term (0: unknown) and `master_known` its master. Only that master sets `members` (ids
    joined by `;`) and `set_epoch`. `confirmed_epoch` is the epoch of the last byte below the confirmed
    offset. Every field is optional.
    """

    group_id: str | None = field(name="tmGroup", default=None)
    epoch_known: Int32 | None = field(name="tmEpochKnown", default=None)
    term_id: Int64 | None = field(name="tmTermId", default=None)
    master_known: Int64 | None = field(name="tmMasterKnown", default=None)
    members: str | None = field(name="tmMembers", default=None)
    set_epoch: Int32 | None = field(name="tmSetEpoch", default=None)
    confirmed_epoch: Int32 | None = field(name="tmConfirmedEpoch", default=None)
    is_incomplete: bool | None = field(name="tmIncomplete", default=None)
    """True if the broker's log may lack its end."""


class MasterResponse(Header, frozen=True, kw_only=True):
    """The master of a group: the answer to 1002, 1003 and 1004. The last two fields are ours."""

    cluster_name: str | None = field(name="clusterName", default=None)
    broker_name: str | None = field(name="brokerName", default=None)
    master_id: Int64 | None = field(name="masterBrokerId", default=None)
    master_address: str | None = field(name="masterAddress", default=None)
    master_epoch: Int32 | None = field(name="masterEpoch", default=None)
    set_epoch: Int32 | None = field(name="syncStateSetEpoch", default=None)
    group_id: str | None = field(name="tmGroup", default=None)
    term_id: Int64 | None = field(name="tmTermId", default=None)


class RegisterReplicaRequest(HistoryFacts, frozen=True, kw_only=True):
    """CONTROLLER_REGISTER_BROKER (1003), sent at each start of a broker.

    The last three fields are ours, as in a heartbeat: the epoch of the last byte of the log, the end of the
    log, the confirmed offset.
    """

    cluster_name: str = field(name="clusterName")
    broker_name: str = field(name="brokerName")
    broker_id: Int64 = field(name="brokerId")
    broker_address: str = field(name="brokerAddress")
    epoch: Int32 | None = field(name="tmEpoch", default=None)
    max_log_offset: Int64 | None = field(name="tmMaxOffset", default=None)
    confirmed_offset: Int64 | None = field(name="tmConfirmOffset", default=None)


class ReplicaInfoRequest(Header, frozen=True):
    """CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: str = field(name="brokerName")
    group_id: str | None = field(name="tmGroup", default=None)


class ControllerMetadataResponse(Header, frozen=True, kw_only=True):
    """The answer to CONTROLLER_GET_METADATA_INFO (1005)."""

    group: str | None = None
    leader_id: str | None = field(name="controllerLeaderId", default=None)
    leader_address: str | None = field(name="controllerLeaderAddress", default=None)
    is_leader: bool = field(name="isLeader", default=False)
    peers: str | None = None


class CleanBrokerDataRequest(Header, frozen=True, kw_only=True):
    """CLEAN_BROKER_DATA (1011); the ids are joined by `;`, no ids means the whole group."""

    cluster_name: str | None = field(name="clusterName", default=None)
    broker_name: str = field(name="brokerName")
    ids: str | None = field(name="brokerControllerIdsToClean", default=None)
    is_forced: bool = field(name="isCleanLivingBroker", default=False)
    forgets_living_master: bool | None = field(name="tmCleanLivingMaster", default=None)  # ours


class BrokerGroupHeader(Header, frozen=True):
    """The fields that name a group of brokers."""

    cluster_name: str = field(name="clusterName")
    broker_name: str = field(name="brokerName")


class NextBrokerIdRequest(BrokerGroupHeader, frozen=True):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012)."""


class NextBrokerIdResponse(BrokerGroupHeader, frozen=True, kw_only=True):
    """The answer to CONTROLLER_GET_NEXT_BROKER_ID."""

    next_id: Int64 = field(name="nextBrokerId")


class ApplyBrokerIdRequest(BrokerGroupHeader, frozen=True):
    """CONTROLLER_APPLY_BROKER_ID (1013); the check code identifies the same broker in a repeated request."""

    broker_id: Int64 = field(name="appliedBrokerId")
    check_code: str = field(name="registerCheckCode")
    group_id: str | None = field(name="tmGroup", default=None)


class ApplyBrokerIdResponse(BrokerGroupHeader, frozen=True, kw_only=True):
    """The answer to CONTROLLER_APPLY_BROKER_ID."""


class HandOverRequest(Header, frozen=True):
    """TANDEM_HAND_OVER: makes the master of an elected group hand over to the broker with this id."""

    broker_id: Int64 = field(name="brokerId")


class VouchRequest(Header, frozen=True, kw_only=True):
    """TANDEM_VOUCH: this broker is a slave in `master_epoch`.

    With the token of the previous answer it grants a lease: it promises to remain a slave for a while.
    """

    broker_id: Int64 = field(name="brokerId")
    master_epoch: Int32 = field(name="masterEpoch")
    token: Int64 | None = None


class VouchResponse(Header, frozen=True, kw_only=True):
    """The answer to TANDEM_VOUCH. `lease_requested`: the master's lease is running out, and it asks for
    promises.
    """

    token: Int64
    lease_requested: bool = field(name="isWanted")


class ChangeControllersRequest(Header, frozen=True):
    """TANDEM_CHANGE_CONTROLLERS: `action` is list, add, remove or handOver.

    `name` is the controller concerned; `address` is that of an added one.
    """

    action: str
    name: str = ""
    address: str = ""


class RaftMessageHeader(Header, frozen=True, kw_only=True):
    """TANDEM_RAFT_MESSAGE: one message between controllers; `proof` is an HMAC over the body."""

    group: str
    sender: str
    proof: str = ""
    caps: str | None = field(name="tmCaps", default=None)
    """The capabilities of the sender; `history`: it supports the commands and fields of histories."""
    controllers_id: str | None = field(name="tmGroup", default=None)
    """The random id of the sender's group of controllers; None until it has one."""
