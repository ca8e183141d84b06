"""Requests of operators and brokers to controllers (spec controller 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandemmq.api.calls import (
    Call,
    H,
    RequestContent,
    done,
    empty,
    given,
    header,
    one_setting,
    remark,
    settings,
    value,
)
from tandemmq.errors import ClientError, NotLeader, RequestRejected, TandemError
from tandemmq.protocol.bodies import replica
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import controller as headers
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


query_metadata = Call(
    RequestCode.CONTROLLER_GET_METADATA_INFO, empty, header(headers.ControllerMetadataResponse)
)
"""Returns the controller's view of its own Raft group."""


async def find_leader(client: RemotingClient, address: str, *, timeout_s: float | None = None) -> str:
    """Returns the address of the leading controller, as the controller at `address` knows it.

    Raises:  NotLeader when it knows none; the errors of `Call`.
    """
    asked = client.options.call_timeout_s if timeout_s is None else timeout_s
    leader = (await query_metadata.within(asked, client, address)).leader_address
    if not leader:
        raise NotLeader(f"the controller at {address} knows no leader")
    return leader


change_controllers = Call(
    RequestCode.TANDEM_CHANGE_CONTROLLERS,
    headers.ChangeControllersRequest,
    value(list[replica.ControllerMember]),
    timeout_s=CHANGE_TIMEOUT_S,
)
"""Runs the action `list`, `add`, `remove` or `handOver`; returns the members afterwards."""
next_broker_id = Call(
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    headers.NextBrokerIdRequest,
    lambda answer: answer.decode(headers.NextBrokerIdResponse).next_id,
)
"""Returns the id for which a new broker of the group applies."""
apply_broker_id = Call(
    RequestCode.CONTROLLER_APPLY_BROKER_ID, headers.ApplyBrokerIdRequest, done, timeout_s=DECIDE_TIMEOUT_S
)
"""Claims the id. Repeating the request with the same check code does nothing.

Raises RequestRejected with CONTROLLER_BROKER_ID_INVALID when another broker has it.
"""


def _timed(kind: type[H]) -> Callable[[H, int], RequestContent]:
    """Returns a builder of requests with the caller's time, in milliseconds: RocketMQ's jRaft controllers use
    it to judge which brokers are alive.
    """
    return lambda header, now_ms: RequestContent(header, fields={"invokeTime": str(now_ms)})


def read_master_facts(answer: Command) -> MasterFacts:
    """Decodes an answer about a group, or NOTIFY_BROKER_ROLE_CHANGED. Raises RemoteProtocolError."""
    header = answer.decode(headers.MasterResponse)
    answered = (
        decode_body(answer.body, replica.SyncStateSetAnswer) if answer.body else replica.SyncStateSetAnswer()
    )
    return MasterFacts(
        master_id=header.master_id if header.master_address else None,
        master_address=header.master_address or "",
        master_epoch=header.master_epoch or 0,
        sync_set=answered.ids,
        set_epoch=max(answered.epoch, header.set_epoch or 0),
        group_id=header.group_id or None,
        term_id=header.term_id or 0,
    )


register_at_controller = Call(
    RequestCode.CONTROLLER_REGISTER_BROKER,
    _timed(headers.RegisterReplicaRequest),
    read_master_facts,
    timeout_s=DECIDE_TIMEOUT_S,
)
"""Registers the address of a broker that has started."""
elect_master = Call(
    RequestCode.CONTROLLER_ELECT_MASTER,
    _timed(headers.ElectMasterRequest),
    read_master_facts,
    outcomes={ResponseCode.CONTROLLER_MASTER_STILL_EXIST: read_master_facts},
    timeout_s=DECIDE_TIMEOUT_S,
)
"""Requests an election and returns the master afterwards; the answer may be the current master."""
clean_brokers = Call(
    RequestCode.CLEAN_BROKER_DATA, _timed(headers.CleanBrokerDataRequest), done, timeout_s=DECIDE_TIMEOUT_S
)
"""Makes the controllers forget brokers of a group."""
query_config = Call(RequestCode.GET_CONTROLLER_CONFIG, empty, settings)
"""Returns the settings of one controller."""
change_config = Call(RequestCode.UPDATE_CONTROLLER_CONFIG, one_setting, remark)
"""Changes one setting of one running controller. Returns the reason why the change was not saved in its
file; an empty text when it was.
"""
query_epochs = Call(RequestCode.GET_BROKER_EPOCH_CACHE, empty, value(replica.BrokerEpochs))
"""Returns the terms of a broker's log."""


def _succeed(header: headers.ElectMasterRequest, now_ms: int, *, master_epoch: int) -> RequestContent:
    return RequestContent(header, fields={"invokeTime": str(now_ms), "tmHandover": str(master_epoch)})


elect_successor = Call(
    RequestCode.CONTROLLER_ELECT_MASTER, _succeed, read_master_facts, timeout_s=HAND_OVER_TIMEOUT_S
)
"""Requests an election as `elect_master`, on behalf of the master itself: it accepts no more requests under
`master_epoch`, so the election need not wait for the end of its lease.
"""
hand_over = Call(RequestCode.TANDEM_HAND_OVER, headers.HandOverRequest, read_master_facts)
"""Asks a master to hand over to another broker of its set; returns the new master.

ClientError may also follow a success, because the old master closes its connections.
"""
send_peer_lease = Call(RequestCode.TANDEM_VOUCH, given(headers.VouchRequest), header(headers.VouchResponse))
"""Informs a master that this broker is its slave, optionally with a promise to stay one for a while."""


def _name_all_groups(names: list[str]) -> RequestContent:
    return RequestContent(body=encode_body(names), fields={"tandemAll": "true"})


read_sync_states = Call(
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    encode_body,
    lambda answer: decode_body(answer.body, replica.SyncStateData).groups,
)
"""Returns the masters and sets of those groups (a list of names) that the controllers know."""
read_all_sync_states = Call(
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, _name_all_groups, value(replica.SyncStateData)
)
"""Returns the state of all groups that the controllers know or hear of; RocketMQ's controllers describe the
named ones.
"""
read_master = Call(
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    headers.ReplicaInfoRequest,
    read_master_facts,
    timeout_s=READ_TIMEOUT_S,
)
"""Returns the recorded master and set of a group."""


def _describe_set(
    header: headers.AlterSyncStateSetRequest, wanted: replica.SyncStateSetAnswer, now_ms: int
) -> RequestContent:
    return RequestContent(header, encode_body(wanted), {"invokeTime": str(now_ms)})


alter_sync_set = Call(
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    _describe_set,
    value(replica.SyncStateSetAnswer),
    timeout_s=DECIDE_TIMEOUT_S,
)
"""Changes the group's set and returns it with its new epoch; `wanted` has the epoch of the set that it
replaces. After an error the controller has decided, too, unless it is OutcomeUnknown or ClientError.
"""


def _read_heartbeat(answer: Command) -> ControllerHeartbeat:
    fields = answer.fields
    return ControllerHeartbeat(
        _read_int(fields, "tmMasterEpoch"),
        _read_int(fields, "tmMaster"),
        _read_int(fields, "tmLease"),
        fields.get("tmGroup") or None,
    )


def _describe_beat(header: BrokerHeartbeatRequest) -> RequestContent:
    return RequestContent(header, fields=CAPABILITIES)


send_controller_heartbeat = Call(RequestCode.BROKER_HEARTBEAT, _describe_beat, _read_heartbeat)
"""Sends one heartbeat of a broker to one controller."""


async def hand_over_group(
    client: RemotingClient, controller: str, name: str, target: int | None, *, clock: Clock
) -> tuple[replica.GroupSyncState, replica.GroupSyncState]:
    """Hands the group's master role over to `target`, or to any other member of its set; returns the group
    before and after.

    Raises:  RequestRejected when the group, its master or the member does not exist, when the master rejects,
             or when the master is unchanged after HAND_OVER_S_MAX; the errors of `Call`, after the handover
             only those that are not retriable, or that last until then.
    """
    leader = await find_leader(client, controller)
    before = (await read_sync_states(client, leader, [name])).get(name)
    if before is None or before.master_address is None:
        raise RequestRejected(f"the controllers know no group {name} that has a master")
    others = [one.broker_id for one in before.in_sync if one.is_alive and one.broker_id != before.master_id]
    if not others or (target is not None and target not in others):
        refused = "no other broker can" if target is None else f"broker {target} cannot"
        known = ", ".join(map(str, others)) or "none"
        raise RequestRejected(f"{refused} become master; alive and in sync besides the master: {known}")
    refusal: RequestRejected | None = None
    try:
        chosen = min(others) if target is None else target
        await hand_over(client, before.master_address, broker_id=chosen)
    except RequestRejected as error:
        refusal = error
    except ClientError:
        pass  # the old master closes its connections when it changes its role
    ends_at_s = clock.monotonic() + (HAND_OVER_S_MAX if refusal is None else 0.0)
    while True:
        unread: TandemError | None = None
        try:
            after = (await read_sync_states(client, await find_leader(client, controller), [name])).get(name)
        except TandemError as error:
            if not error.retriable:
                raise
            after, unread = None, error  # the controllers may be electing a leader meanwhile
        if after is not None and after.master_epoch > before.master_epoch:
            return before, after
        if clock.monotonic() > ends_at_s:
            raise refusal or unread or RequestRejected(f"broker {before.master_id} is still the master")
        await clock.sleep(HAND_OVER_POLL_S)


def _read_int(fields: Mapping[str, str], name: str) -> int | None:
    """Raises RequestRejected for a value that is not a number."""
    text = fields.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise RequestRejected(f"{name} of the answer is {text[:40]!r}, no number") from None
