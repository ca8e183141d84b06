"""Requests of operators and brokers to controllers (spec controller 2)."""

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
"""The timeout for adding a controller, which first receives all data."""

DECIDE_TIMEOUT_S = 7.0
"""A controller waits up to 5 s for its log, and before that an election waits up to 1.4 s for the end of a
lease.
"""

HAND_OVER_TIMEOUT_S = 2.0
"""The timeout of the controllers' part of a handover: the master accepts no requests meanwhile."""

HAND_OVER_S_MAX = 10.0
HAND_OVER_POLL_S = 0.1

READ_TIMEOUT_S = 0.5
"""The timeout of a read in the middle of a failover; controllers answer it from memory."""

CAPABILITIES = {"tmCaps": "lease"}
"""The capabilities that a TandemMQ broker announces to TandemMQ controllers; other controllers ignore the
field.
"""


SHARED_ACCESS_KEY = "controllers"
"""The account of requests signed with controllerSharedSecret."""

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
"""The requests that controllers with a shared secret accept only if signed."""


def controller_signer(
    secret: str, sign: Callable[[Command], None] | None
) -> Callable[[Command], None] | None:
    """Returns a signer that signs requests to controllers with the shared secret, if there is one, and all
    others with `sign`.
    """
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
    """The state of a group as a controller reports it. `master_id` is None without a master, or if the
    controller does not hear from it. `group_id` and `term_id` come from TandemMQ controllers; others leave
    them None and 0.
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
    """The answer of a TandemMQ controller to a heartbeat; other controllers report nothing, and all fields
    are None.
    """

    master_epoch: int | None
    master_id: int | None
    lease_ms: int | None
    group_id: str | None = None


async def query_metadata(
    client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> ControllerMetadataResponse:
    """Returns the controller's view of its own Raft group. Raises the errors of `call`."""
    answer = await call(client, address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=timeout_s)
    return answer.decode(ControllerMetadataResponse)


async def find_leader(client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
    """Returns the address of the leading controller, as the controller at `address` knows it.

    Raises:  NotLeader when it knows none; the errors of `call`.
    """
    leader = (await query_metadata(client, address, timeout_s=timeout_s)).leader_address
    if not leader:
        raise NotLeader(f"the controller at {address} knows no leader")
    return leader


async def change_controllers(
    client: RemotingClient, leader: str, action: str, name: str = "", new_address: str = ""
) -> list[ControllerMember]:
    """Runs `list`, `add`, `remove` or `handOver`; returns the members afterwards.

    Raises:  the errors of `call`.
    """
    header = ChangeControllersRequest(action=action, name=name, address=new_address)
    code = RequestCode.TANDEM_CHANGE_CONTROLLERS
    answer = await call(client, leader, code, header, timeout_s=CHANGE_TIMEOUT_S)
    return decode_members(answer.body)


async def next_broker_id(client: RemotingClient, leader: str, cluster: str, name: str) -> int:
    """Returns the id for which a new broker of the group applies. Raises the errors of `call`."""
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
    """Claims the id. Repeating the request with the same check code does nothing.

    Raises:  RequestRejected with CONTROLLER_BROKER_ID_INVALID when another broker has it; the errors of
             `call`.
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
    """Registers the address of a broker that has started. Raises the errors of `call`."""
    answer = await _decide(client, leader, RequestCode.CONTROLLER_REGISTER_BROKER, header, now_ms)
    return _read_master(_require_success(answer))


async def elect_master(
    client: RemotingClient, leader: str, header: ElectMasterRequest, now_ms: int
) -> MasterFacts:
    """Requests an election and returns the master afterwards; the answer may be the current master.

    Raises:  the errors of `call`.
    """
    answer = await _decide(client, leader, RequestCode.CONTROLLER_ELECT_MASTER, header, now_ms)
    if answer.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
        _require_success(answer)
    return _read_master(answer)


async def clean_brokers(
    client: RemotingClient, leader: str, header: CleanBrokerDataRequest, now_ms: int
) -> None:
    """Makes the controllers forget brokers of a group. Raises the errors of `call`."""
    _require_success(await _decide(client, leader, RequestCode.CLEAN_BROKER_DATA, header, now_ms))


async def query_config(client: RemotingClient, address: str) -> str:
    """Returns the settings of one controller as the text of a Java properties file. Raises the errors of
    `call`.
    """
    answer = await call(client, address, RequestCode.GET_CONTROLLER_CONFIG)
    return bytes(answer.body).decode("utf-8", "replace")


async def change_config(client: RemotingClient, address: str, key: str, value: str) -> str:
    """Changes one setting of one running controller. Returns the reason why the change was not saved in its
    file; an empty text when it was. Raises the errors of `call`.
    """
    body = edit_properties(b"", {key: value})
    return (await call(client, address, RequestCode.UPDATE_CONTROLLER_CONFIG, body=body)).remark or ""


async def query_epochs(client: RemotingClient, broker: str) -> BrokerEpochs:
    """Returns the terms of a broker's log. Raises the errors of `call`."""
    answer = await call(client, broker, RequestCode.GET_BROKER_EPOCH_CACHE)
    return decode_body(answer.body, BrokerEpochs)


async def elect_successor(
    client: RemotingClient, leader: str, header: ElectMasterRequest, now_ms: int, *, master_epoch: int
) -> MasterFacts:
    """Requests an election as `elect_master`, on behalf of the master itself: it accepts no more requests
    under `master_epoch`, so the election need not wait for the end of its lease. Raises the errors of `call`.
    """
    code, fields = RequestCode.CONTROLLER_ELECT_MASTER, {"tmHandover": str(master_epoch)}
    answer = await _decide(client, leader, code, header, now_ms, fields=fields, timeout_s=HAND_OVER_TIMEOUT_S)
    return _read_master(_require_success(answer))


async def hand_over(client: RemotingClient, master: str, target: int) -> MasterFacts:
    """Asks a master to hand over to another broker of its set; returns the new master.

    Raises:  the errors of `call`; ClientError may also follow a success, because the old master closes its
             connections.
    """
    header = HandOverRequest(broker_id=target)
    return _read_master(await call(client, master, RequestCode.TANDEM_HAND_OVER, header))


async def send_peer_lease(
    client: RemotingClient, master: str, header: VouchRequest, *, timeout_s: float
) -> VouchResponse:
    """Informs a master that this broker is its slave, optionally with a promise to stay one for a while.

    Raises:  the errors of `call`.
    """
    answer = await call(client, master, RequestCode.TANDEM_VOUCH, header, timeout_s=timeout_s)
    return answer.decode(VouchResponse)


async def hand_over_group(
    client: RemotingClient, controller: str, name: str, target: int | None, *, clock: Clock
) -> tuple[GroupSyncState, GroupSyncState]:
    """Hands the group's master role over to `target`, or to any other member of its set; returns the group
    before and after.

    Raises:  RequestRejected when the group, its master or the member does not exist, when the master rejects,
             or when the master is unchanged after HAND_OVER_S_MAX; the errors of `call`.
    """
    leader = await find_leader(client, controller)
    before = (await read_sync_states(client, leader, [name])).get(name)
    if before is None or before.master_address is None:
        raise RequestRejected(f"the controllers know no group {name} that has a master")
    others = [one.broker_id for one in before.in_sync if one.is_alive and one.broker_id != before.master_id]
    if not others or (target is not None and target not in others):
        wanted = "none" if target is None else f"no {target}"
        known = ", ".join(map(str, others)) or "none"
        raise RequestRejected(
            f"of the others {known} is in sync and lives, {wanted} that could be the master"
        )
    refusal: RequestRejected | None = None
    try:
        await hand_over(client, before.master_address, min(others) if target is None else target)
    except RequestRejected as error:
        refusal = error
    except ClientError:
        pass  # the old master closes its connections when it changes its role
    ends_at_s = clock.monotonic() + (HAND_OVER_S_MAX if refusal is None else 0.0)
    while True:
        after = (await read_sync_states(client, await find_leader(client, controller), [name])).get(name)
        if after is not None and after.master_epoch > before.master_epoch:
            return before, after
        if clock.monotonic() > ends_at_s:
            raise refusal or RequestRejected(f"the broker {before.master_id} is the master still")
        await clock.sleep(HAND_OVER_POLL_S)


async def read_sync_states(
    client: RemotingClient, leader: str, names: list[str], *, timeout_s: float = CALL_TIMEOUT_S
) -> dict[str, GroupSyncState]:
    """Returns the masters and sets of those groups that the controllers know. Raises the errors of `call`."""
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    answer = await call(client, leader, code, body=encode_body(names), timeout_s=timeout_s)
    return decode_body(answer.body, SyncStateData).groups


async def read_all_sync_states(client: RemotingClient, leader: str, names: list[str]) -> SyncStateData:
    """Returns the state of all groups that the controllers know or hear of; RocketMQ's controllers describe
    the named ones. Raises the errors of `call`.
    """
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    command = Command.request(code, fields={"tandemAll": "true"}, body=encode_body(names))
    answer = await client.request(leader, command, CALL_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_body(answer.body, SyncStateData)


async def read_master(
    client: RemotingClient, leader: str, name: str, group_id: str | None = None
) -> MasterFacts:
    """Returns the recorded master and set of a group. Raises the errors of `call`."""
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
    """Changes the group's set and returns it with its new epoch; `wanted` has the epoch of the set that it
    replaces.

    Raises:  the errors of `call`; the controller has decided then, unless the error is OutcomeUnknown or
             ClientError.
    """
    body = encode_sync_state_set(wanted)
    code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    answer = await _decide(client, leader, code, header, now_ms, body=body)
    return decode_sync_state_set(_require_success(answer).body)


async def send_controller_heartbeat(
    client: RemotingClient, address: str, header: BrokerHeartbeatRequest, *, timeout_s: float
) -> ControllerHeartbeat:
    """Sends one heartbeat of a broker to one controller. Raises the errors of `call`."""
    command = Command.request(RequestCode.BROKER_HEARTBEAT, header, fields=CAPABILITIES)
    fields = _require_success(await client.request(address, command, timeout_s)).fields
    return ControllerHeartbeat(
        _read_int(fields, "tmMasterEpoch"),
        _read_int(fields, "tmMaster"),
        _read_int(fields, "tmLease"),
        fields.get("tmGroup") or None,
    )


def read_master_notice(command: Command) -> MasterFacts:
    """Decodes NOTIFY_BROKER_ROLE_CHANGED. Raises RemoteProtocolError."""
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
    """Sends a request with the caller's time: RocketMQ's jRaft controllers use it to judge which brokers are
    alive.
    """
    sent = {"invokeTime": str(now_ms), **(fields or {})}
    return await client.request(leader, Command.request(code, header, body=body, fields=sent), timeout_s)


def _require_success(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer


def _read_master(answer: Command) -> MasterFacts:
    header = answer.decode(MasterResponse)
    answered = decode_sync_state_set(answer.body) if answer.body else SyncStateSetAnswer()
    return MasterFacts(
        master_id=header.master_id if header.master_address else None,
        master_address=header.master_address or "",
        master_epoch=header.master_epoch or 0,
        sync_set=answered.ids,
        set_epoch=max(answered.epoch, header.set_epoch or 0),
        group_id=header.group_id or None,
        term_id=header.term_id or 0,
    )


def _read_int(fields: Mapping[str, str], name: str) -> int | None:
    """Raises RequestRejected for a value that is not a number."""
    text = fields.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise RequestRejected(f"{name} of the answer is {text[:40]!r}, no number") from None
