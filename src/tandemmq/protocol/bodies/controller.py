"""What controllers tell about replica groups."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.command import Buffer


class SyncStateSet(Body, frozen=True, kw_only=True):
    """The brokers whose logs are complete enough to be elected, by their ids, and the set's epoch."""

    ids: tuple[int, ...] = field(name="syncStateSet", default=())
    epoch: int = field(name="syncStateSetEpoch", default=0)


class MemberGroup(Body, frozen=True, kw_only=True):
    """The addresses of a group by broker id."""

    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)
    broker_name: str = field(name="brokerName", default="")
    cluster: str = ""


class Election(Body, frozen=True, kw_only=True):
    """Answer to CONTROLLER_ELECT_MASTER: mqadmin reads the members from the top, brokers the rest."""

    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)
    member_group: MemberGroup = field(name="brokerMemberGroup")
    broker_name: str = field(name="brokerName")
    cluster: str
    ids: tuple[int, ...] = field(name="syncStateSet")


class EpochRange(Body, frozen=True, kw_only=True):
    """One term and its bytes; the last one has no end yet, which is 2**63 - 1."""

    end: int = field(name="endOffset")
    epoch: int
    start: int = field(name="startOffset")


class BrokerEpochs(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_EPOCH_CACHE; `broker_id` is the role's: 0 of a master."""

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
    """A group as GET_SYNC_STATE_DATA tells it; both lists are always there."""

    in_sync: list[ReplicaIdentity] = field(name="inSyncReplicas")
    master_address: str | None = field(name="masterAddress", default=None)
    master_id: int | None = field(name="masterBrokerId", default=None)
    master_epoch: int = field(name="masterEpoch")
    not_in_sync: list[ReplicaIdentity] = field(name="notInSyncReplicas")
    set_epoch: int = field(name="syncStateSetEpoch")


class SyncStateData(Body, frozen=True, kw_only=True):
    """Answer to CONTROLLER_GET_SYNC_STATE_DATA."""

    groups: dict[str, GroupSyncState] = field(name="replicasInfoTable", default_factory=dict)


class ControllerMember(Body, frozen=True, kw_only=True):
    """One controller of the group."""

    name: str
    address: str
    is_voter: bool = field(name="voter")
    is_leader: bool = field(name="leader")


def encode_members(value: list[ControllerMember]) -> bytes:
    return encode_body(value)


def decode_members(data: Buffer) -> list[ControllerMember]:
    """Raises RemoteProtocolError."""
    return decode_body(data, list[ControllerMember])


def encode_sync_state_set(value: SyncStateSet) -> bytes:
    return encode_body(value)


def decode_sync_state_set(data: Buffer) -> SyncStateSet:
    """Raises RemoteProtocolError."""
    return decode_body(data, SyncStateSet)


def encode_broker_epochs(value: BrokerEpochs) -> bytes:
    return encode_body(value)


def encode_election(value: Election) -> bytes:
    return encode_body(value)


def encode_sync_state_data(value: SyncStateData) -> bytes:
    return encode_body(value)


def decode_broker_names(data: Buffer) -> list[str]:
    """Raises RemoteProtocolError."""
    return decode_body(data, list[str])
