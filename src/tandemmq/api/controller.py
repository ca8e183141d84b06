"""What operators and brokers ask of controllers (spec controller 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandemmq.api.calls import CALL_TIMEOUT_S, call
from tandemmq.errors import ClientError, NotLeader, RequestRejected
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.bodies.replica import (
    BrokerEpochs,
    ControllerMember,
    GroupSyncState,
    SyncStateData,
    SyncStateSetAnswer,
    decode_members,
    decode_sync_state_set,
    encode_sync_state_set,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.properties_file import edit_properties
from tandemmq.protocol.requests.controller import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    ChangeControllersRequest,
    CleanBrokerDataRequest,
    ControllerMetadataResponse,
    ElectMasterRequest,
    HandOverRequest,
    MasterResponse,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterReplicaRequest,
    ReplicaInfoRequest,
    VouchRequest,
    VouchResponse,
)
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock

CHANGE_TIMEOUT_S = 15.0
"""A controller that is added gets everything first."""

DECIDE_TIMEOUT_S = 7.0
"""A controller waits 5 s for its log, and an election up to 1.4 s for the end of a lease before that."""

HAND_OVER_TIMEOUT_S = 2.0
"""For the controllers' part of it: the master accepts nothing meanwhile."""

HAND_OVER_S_MAX = 10.0
HAND_OVER_LOOK_S = 0.1

READ_TIMEOUT_S = 0.5
"""It is asked in the middle of a failover, and answered from memory."""

CAPABILITIES = {"tmCaps": "lease"}
"""How a broker of ours shows itself to controllers of ours; others do not know the field."""


SHARED_ACCESS_KEY = "controllers"
"""The account of whoever signs with controllerSharedSecret."""

SIGNED_CODES = frozenset(
    {
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.CLEAN_BROKER_DATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.TANDEM_CHANGE_CONTROLLERS,
    }
)
"""Requests that controllers with a shared secret serve only signed."""


def controller_signer(
    secret: str, sign: Callable[[Command], None] | None
) -> Callable[[Command], None] | None:
    """Signs requests to controllers with the shared secret, if there is one, and all others with `sign`."""
    if not secret:
        return sign
    shared = Credentials(SHARED_ACCESS_KEY, secret)

    def sign_by_code(command: Command) -> None:
        if command.code in SIGNED_CODES:
            shared.sign(command)
        elif sign is not None:
            sign(command)

    return sign_by_code


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """What a controller says of a group. `master_id` None: no master, or none that it hears. `group_id` and
    `term_id`: of controllers of ours, None and 0 of others.
    """

    master_id: int | None
    master_address: str
    master_epoch: int
    sync_set: tuple[int, ...]
    set_epoch: int
    group_id: str | None = None
    term_id: int = 0


@dataclass(frozen=True, slots=True)
class ControllerHeartbeat:
    """What a controller of ours says to a heartbeat; any other says nothing, and all are None."""

    master_epoch: int | None
    master_id: int | None
    lease_ms: int | None
    group_id: str | None = None


async def query_metadata(
    client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> ControllerMetadataResponse:
    """The group of the controller at `address`, as it knows it. Raises what `call` raises."""
    answer = await call(client, address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=timeout_s)
    return answer.decode(ControllerMetadataResponse)


async def find_leader(client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
    """The address of the leading controller, as the one at `address` knows it.

    Raises:  NotLeader when it knows none; what `call` raises.
    """
    leader = (await query_metadata(client, address, timeout_s=timeout_s)).leader_address
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
    client: RemotingClient,
    leader: str,
    cluster: str,
    name: str,
    broker_id: int,
    check_code: str,
    group_id: str | None = None,
) -> None:
    """Take the id. Repeating it with the same check code does nothing.

    Raises:  RequestRejected with CONTROLLER_BROKER_ID_INVALID when another broker has it; what `call` raises.
    """
    header = ApplyBrokerIdRequest(
        cluster_name=cluster,
        broker_name=name,
        broker_id=broker_id,
        check_code=check_code,
        group_id=group_id,
    )
    code = RequestCode.CONTROLLER_APPLY_BROKER_ID
    await call(client, leader, code, header, timeout_s=DECIDE_TIMEOUT_S)


async def register_at_controller(
    client: RemotingClient, leader: str, header: RegisterReplicaRequest, now_ms: int
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


async def clean_brokers(
    client: RemotingClient, leader: str, header: CleanBrokerDataRequest, now_ms: int
) -> None:
    """Let the controllers forget brokers of a group. Raises what `call` raises."""
    _require_success(await _decide(client, leader, RequestCode.CLEAN_BROKER_DATA, header, now_ms))


async def query_config(client: RemotingClient, address: str) -> str:
    """The settings of one controller as the text of a Java properties file. Raises what `call` raises."""
    answer = await call(client, address, RequestCode.GET_CONTROLLER_CONFIG)
    return bytes(answer.body).decode("utf-8", "replace")


async def change_config(client: RemotingClient, address: str, key: str, value: str) -> str:
    """Change one setting of one running controller. Returns why the change is not kept in its file; empty
    when it is. Raises what `call` raises.
    """
    body = edit_properties(b"", {key: value})
    return (await call(client, address, RequestCode.UPDATE_CONTROLLER_CONFIG, body=body)).remark or ""


async def query_epochs(client: RemotingClient, broker: str) -> BrokerEpochs:
    """The terms of a broker's log. Raises what `call` raises."""
    answer = await call(client, broker, RequestCode.GET_BROKER_EPOCH_CACHE)
    return decode_body(answer.body, BrokerEpochs)


async def elect_successor(
    client: RemotingClient, leader: str, header: ElectMasterRequest, now_ms: int, *, master_epoch: int
) -> MasterFacts:
    """The same, of the master itself: it accepts nothing any more under `master_epoch`, so that nobody needs
    to wait for the end of its lease. Raises what `call` raises."""
    code, fields = RequestCode.CONTROLLER_ELECT_MASTER, {"tmHandover": str(master_epoch)}
    answer = await _decide(client, leader, code, header, now_ms, fields=fields, timeout_s=HAND_OVER_TIMEOUT_S)
    return _read_master(_require_success(answer))


async def hand_over(client: RemotingClient, master: str, target: int) -> MasterFacts:
    """Ask a master to give its office to another broker of its set; who is master then.

    Raises:  what `call` raises; ClientError may come of a success, too: the old master closes connections.
    """
    header = HandOverRequest(broker_id=target)
    return _read_master(await call(client, master, RequestCode.TANDEM_HAND_OVER, header))


async def vouch(
    client: RemotingClient, master: str, header: VouchRequest, *, timeout_s: float
) -> VouchResponse:
    """A slave tells its master that it is one. Raises what `call` raises."""
    answer = await call(client, master, RequestCode.TANDEM_VOUCH, header, timeout_s=timeout_s)
    return answer.decode(VouchResponse)


async def hand_over_group(
    client: RemotingClient, controller: str, name: str, target: int | None, *, clock: Clock
) -> tuple[GroupSyncState, GroupSyncState]:
    """The group before and after its master gave its office to `target`, or to any other member of its set.

    Raises:  RequestRejected when there is no such group, master or member, when the master refuses, or when
             it is still master after HAND_OVER_S_MAX; what `call` raises.
    """
    leader = await find_leader(client, controller)
    before = (await read_sync_states(client, leader, [name])).get(name)
    if before is None or before.master_address is None:
        raise RequestRejected(f"the controllers know no group {name} that has a master")
    others = [one.broker_id for one in before.in_sync if one.is_alive and one.broker_id != before.master_id]
    if not others or (target is not None and target not in others):
        wanted = "none" if target is None else f"no {target}"
        known = ", ".join(map(str, others)) or "nobody"
        raise RequestRejected(
            f"of the others {known} is in sync and lives, {wanted} that could be the master"
        )
    refusal: RequestRejected | None = None
    try:
        await hand_over(client, before.master_address, min(others) if target is None else target)
    except RequestRejected as error:
        refusal = error
    except ClientError:
        pass  # the old master closes its connections when it takes the other role
    ends_at_s = clock.monotonic() + (HAND_OVER_S_MAX if refusal is None else 0.0)
    while True:
        after = (await read_sync_states(client, await find_leader(client, controller), [name])).get(name)
        if after is not None and after.master_epoch > before.master_epoch:
            return before, after
        if clock.monotonic() > ends_at_s:
            raise refusal or RequestRejected(f"the broker {before.master_id} is the master still")
        await clock.sleep(HAND_OVER_LOOK_S)


async def read_sync_states(
    client: RemotingClient, leader: str, names: list[str], *, timeout_s: float = CALL_TIMEOUT_S
) -> dict[str, GroupSyncState]:
    """Masters and sets of those groups that the controllers know. Raises what `call` raises."""
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    answer = await call(client, leader, code, body=encode_body(names), timeout_s=timeout_s)
    return decode_body(answer.body, SyncStateData).groups


async def read_master(
    client: RemotingClient, leader: str, name: str, group_id: str | None = None
) -> MasterFacts:
    """The recorded master and set of a group. Raises what `call` raises."""
    header = ReplicaInfoRequest(broker_name=name, group_id=group_id)
    code = RequestCode.CONTROLLER_GET_REPLICA_INFO
    return _read_master(await call(client, leader, code, header, timeout_s=READ_TIMEOUT_S))


async def alter_sync_set(
    client: RemotingClient,
    leader: str,
    header: AlterSyncStateSetRequest,
    wanted: SyncStateSetAnswer,
    now_ms: int,
) -> SyncStateSetAnswer:
    """The group's set from now on, with its epoch; `wanted` has the epoch of the set that it replaces.

    Raises:  what `call` raises; the controller has decided then, unless it is OutcomeUnknown or ClientError.
    """
    body = encode_sync_state_set(wanted)
    code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    answer = await _decide(client, leader, code, header, now_ms, body=body)
    return decode_sync_state_set(_require_success(answer).body)


async def beat(
    client: RemotingClient, address: str, header: BrokerHeartbeatRequest, *, timeout_s: float
) -> ControllerHeartbeat:
    """One heartbeat of a broker to one controller. Raises what `call` raises."""
    command = Command.request(RequestCode.BROKER_HEARTBEAT, header, fields=CAPABILITIES)
    fields = _require_success(await client.request(address, command, timeout_s)).fields
    return ControllerHeartbeat(
        _read_int(fields, "tmMasterEpoch"),
        _read_int(fields, "tmMaster"),
        _read_int(fields, "tmLease"),
        fields.get("tmGroup") or None,
    )


def read_master_notice(command: Command) -> MasterFacts:
    """What NOTIFY_BROKER_ROLE_CHANGED tells. Raises RemoteProtocolError."""
    return _read_master(command)


async def _decide(
    client: RemotingClient,
    leader: str,
    code: int,
    header: Header,
    now_ms: int,
    *,
    body: bytes = b"",
    fields: Mapping[str, str] | None = None,
    timeout_s: float = DECIDE_TIMEOUT_S,
) -> Command:
    """RocketMQ's controllers of the jRaft kind judge who lives by the time that the caller tells."""
    told = {"invokeTime": str(now_ms), **(fields or {})}
    return await client.request(leader, Command.request(code, header, body=body, fields=told), timeout_s)


def _require_success(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer


def _read_master(answer: Command) -> MasterFacts:
    header = answer.decode(MasterResponse)
    told = decode_sync_state_set(answer.body) if answer.body else SyncStateSetAnswer()
    return MasterFacts(
        master_id=header.master_id if header.master_address else None,
        master_address=header.master_address or "",
        master_epoch=header.master_epoch or 0,
        sync_set=told.ids,
        set_epoch=max(told.epoch, header.set_epoch or 0),
        group_id=header.group_id or None,
        term_id=header.term_id or 0,
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
