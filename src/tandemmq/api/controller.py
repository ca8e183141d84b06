"""What operators and brokers ask of controllers (spec controller 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.api.calls import CALL_TIMEOUT_S, call
from tandemmq.errors import NotLeader, RequestRejected
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.controller import (
    ControllerMember,
    SyncStateSet,
    decode_members,
    decode_sync_state_set,
    encode_sync_state_set,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.requests.controller import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    ChangeControllersRequest,
    ControllerMetadataResponse,
    ElectMasterRequest,
    MasterResponse,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterBrokerRequest,
    ReplicaInfoRequest,
)
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.client import RemotingClient

CHANGE_TIMEOUT_S = 15.0
"""A controller that is added gets everything first."""

DECIDE_TIMEOUT_S = 7.0
"""A controller waits 5 s for its log, and an election up to 1.4 s for the end of a lease before that."""

READ_TIMEOUT_S = 0.5
"""It is asked in the middle of a failover, and answered from memory."""

CAPABILITIES = {"tmCaps": "lease"}
"""How a broker of ours shows itself to controllers of ours; others do not know the field."""


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """What a controller says of a group. `master_id` None: no master, or none that it hears."""

    master_id: int | None
    master_address: str
    master_epoch: int
    sync_set: tuple[int, ...]
    set_epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a controller of ours says to a heartbeat; any other says nothing, and all are None."""

    master_epoch: int | None
    master_id: int | None
    lease_ms: int | None


async def find_leader(client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
    """The address of the leading controller, as the one at `address` knows it.

    Raises:  NotLeader when it knows none; what `call` raises.
    """
    answer = await call(client, address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=timeout_s)
    leader = answer.decode(ControllerMetadataResponse).leader_address
    if not leader:
        raise NotLeader(f"the controller at {address} knows no leader")
    return leader


async def change_controllers(
    client: RemotingClient, leader: str, action: str, name: str = "", new_address: str = ""
) -> list[ControllerMember]:
    """The members after `list`, `add`, `remove` or `handOver`.

    Raises:  what `call` raises.
    """
    header = ChangeControllersRequest(action=action, name=name, address=new_address)
    code = RequestCode.TANDEM_CHANGE_CONTROLLERS
    answer = await call(client, leader, code, header, timeout_s=CHANGE_TIMEOUT_S)
    return decode_members(answer.body)


async def next_broker_id(client: RemotingClient, leader: str, cluster: str, name: str) -> int:
    """The id that a new broker of the group applies for. Raises what `call` raises."""
    header = NextBrokerIdRequest(cluster_name=cluster, broker_name=name)
    answer = await call(client, leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
    return answer.decode(NextBrokerIdResponse).next_id


async def apply_broker_id(
    client: RemotingClient, leader: str, cluster: str, name: str, broker_id: int, check_code: str
) -> None:
    """Take the id. Repeating it with the same check code does nothing.

    Raises:  RequestRejected with CONTROLLER_BROKER_ID_INVALID when another broker has it; what `call` raises.
    """
    header = ApplyBrokerIdRequest(
        cluster_name=cluster, broker_name=name, broker_id=broker_id, check_code=check_code
    )
    code = RequestCode.CONTROLLER_APPLY_BROKER_ID
    await call(client, leader, code, header, timeout_s=DECIDE_TIMEOUT_S)


async def register_at_controller(
    client: RemotingClient, leader: str, header: RegisterBrokerRequest, now_ms: int
) -> MasterFacts:
    """Tell the address of a broker that has started. Raises what `call` raises."""
    answer = await _decide(client, leader, RequestCode.CONTROLLER_REGISTER_BROKER, header, now_ms)
    return _read_master(_require_success(answer))


async def elect_master(
    client: RemotingClient, leader: str, header: ElectMasterRequest, now_ms: int
) -> MasterFacts:
    """Who is master after the election that was asked for; a master that stays is an answer, too.

    Raises:  what `call` raises.
    """
    answer = await _decide(client, leader, RequestCode.CONTROLLER_ELECT_MASTER, header, now_ms)
    if answer.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
        _require_success(answer)
    return _read_master(answer)


async def read_master(client: RemotingClient, leader: str, name: str) -> MasterFacts:
    """The recorded master and set of a group. Raises what `call` raises."""
    header = ReplicaInfoRequest(broker_name=name)
    code = RequestCode.CONTROLLER_GET_REPLICA_INFO
    return _read_master(await call(client, leader, code, header, timeout_s=READ_TIMEOUT_S))


async def alter_sync_set(
    client: RemotingClient, leader: str, header: AlterSyncStateSetRequest, wanted: SyncStateSet, now_ms: int
) -> SyncStateSet:
    """The group's set from now on, with its epoch; `wanted` has the epoch of the set that it replaces.

    Raises:  what `call` raises; the controller has decided then, unless it is OutcomeUnknown or ClientError.
    """
    body = encode_sync_state_set(wanted)
    code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    answer = await _decide(client, leader, code, header, now_ms, body=body)
    return decode_sync_state_set(_require_success(answer).body)


async def beat(
    client: RemotingClient, address: str, header: BrokerHeartbeatRequest, *, timeout_s: float
) -> HeartbeatAnswer:
    """One heartbeat of a broker to one controller. Raises what `call` raises."""
    command = Command.request(RequestCode.BROKER_HEARTBEAT, header, fields=CAPABILITIES)
    fields = _require_success(await client.request(address, command, timeout_s)).fields
    return HeartbeatAnswer(
        _read_int(fields, "tmMasterEpoch"), _read_int(fields, "tmMaster"), _read_int(fields, "tmLease")
    )


def read_master_notice(command: Command) -> MasterFacts:
    """What NOTIFY_BROKER_ROLE_CHANGED tells. Raises RemoteProtocolError."""
    return _read_master(command)


async def _decide(
    client: RemotingClient, leader: str, code: int, header: Header, now_ms: int, *, body: bytes = b""
) -> Command:
    """RocketMQ's controllers of the jRaft kind judge who lives by the time that the caller tells."""
    command = Command.request(code, header, body=body, fields={"invokeTime": str(now_ms)})
    return await client.request(leader, command, DECIDE_TIMEOUT_S)


def _require_success(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer


def _read_master(answer: Command) -> MasterFacts:
    header = answer.decode(MasterResponse)
    told = decode_sync_state_set(answer.body) if answer.body else SyncStateSet()
    return MasterFacts(
        master_id=header.master_id if header.master_address else None,
        master_address=header.master_address or "",
        master_epoch=header.master_epoch or 0,
        sync_set=told.ids,
        set_epoch=max(told.epoch, header.set_epoch or 0),
    )


def _read_int(fields: Mapping[str, str], name: str) -> int | None:
    """Raises RequestRejected for what no controller says."""
    text = fields.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise RequestRejected(f"{name} of the answer is {text[:40]!r}, no number") from None
