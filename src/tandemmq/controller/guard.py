"""The controllers' guard: decides before the handler whether a request is served. `Controller` creates it and
passes its `check` to the server of the port.

The guard closes the port as soon as it has an account: the shared secret (access key `controllers`), the
inner credentials, or both. Brokers and tools then sign their requests, as clients sign requests to brokers
(protocol.signature). Without an account all requests are served, as in RocketMQ. Messages between controllers
carry a proof of the secret themselves (`Peers`).

Invariants:
- A request that changes the agreed state, or the facts recorded about a broker, must be signed. A request
  that only reads needs no signature: brokers, proxies and dashboards look up the leader and the master.
- A code without a row needs a signature, so an omission never opens a request.
- A change is recorded when its outcome is known: as allowed if it was made, else as refused with the reason.
At a bound: see `AccessLog`. A broker that repeats a request is recorded once per REPEAT_S.
Source: spec controller 2.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tandemmq.api.controller import SHARED_ACCESS_KEY
from tandemmq.controller.options import ControllerOptions
from tandemmq.errors import NotPermitted, TandemError
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.signature import ACCESS_KEY, Credentials, signature_fault
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import RequestRecorder
from tandemmq.runtime.ports import Clock

OPEN_CODES: Final = frozenset(
    {
        Code.CONTROLLER_GET_REPLICA_INFO,
        Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA,
        Code.GET_CONTROLLER_CONFIG,
        Code.TANDEM_RAFT_MESSAGE,
    }
)
"""Reads, and the messages between controllers, which carry their own proof."""
OPERATOR_CODES: Final = frozenset(
    {Code.UPDATE_CONTROLLER_CONFIG, Code.CLEAN_BROKER_DATA, Code.TANDEM_CHANGE_CONTROLLERS}
)
BROKER_CODES: Final = frozenset(
    {
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        Code.CONTROLLER_ELECT_MASTER,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_APPLY_BROKER_ID,
    }
)
"""Changes that brokers request routinely, and repeat while they are refused."""
QUIET_CODES: Final = frozenset({Code.BROKER_HEARTBEAT, Code.CONTROLLER_GET_NEXT_BROKER_ID})
"""Signed requests that are not recorded: heartbeats arrive several times a second, and the other request
changes nothing.
"""

REPEAT_S: Final = 10.0
REMEMBERED_MAX: Final = 1_024
TEXT_CHARS_MAX: Final = 160


def _accounts_of(secret: str, inner: Credentials | None) -> dict[str, bytes]:
    """Returns the secret keys by access key."""
    accounts = {SHARED_ACCESS_KEY: secret.encode()} if secret else {}
    if inner is not None:
        accounts[inner.access_key] = inner.secret_key.encode()
    return accounts


class ControllerGuard:
    """Guards the requests of one controller; `check` is called with every request."""

    def __init__(
        self,
        options: ControllerOptions,
        inner: Credentials | None,
        *,
        audit: AccessLog,
        clock: Clock,
    ) -> None:
        self._accounts = _accounts_of(options.shared_secret, inner)
        self._is_open = not self._accounts or options.admits_unsigned
        self._admits_weak = options.weak_signatures
        self._audit = audit
        self._clock = clock
        self._recorded: dict[tuple[str, int, str, int], float] = {}

    @property
    def is_closed(self) -> bool:
        """True if a request that changes something must be signed."""
        return not self._is_open

    def check(self, channel: Channel, command: Command) -> RequestRecorder | None:
        """Returns if the request may be served: the recorder of its outcome if it changes something.

        Raises:  NotPermitted with the reason; RemoteProtocolError for fields that cannot be read.
        """
        if self._is_open:
            channel.make_known()  # no further proof will follow
        if command.code in OPEN_CODES:
            return None
        fault = self._fault(command)
        if fault is None:
            channel.make_known()
        elif not self._is_open:
            self._audit.denied(_signer(command), channel.peer, command.code, _resource(command), fault)
            raise NotPermitted(fault)
        return None if command.code in QUIET_CODES else partial(self._record, channel, command)

    def _fault(self, command: Command) -> str | None:
        """Returns the reason why the request does not come from an account; None if it does."""
        if not self._accounts:
            return "there are no accounts"
        name = _signer(command)
        if not name:
            return (
                f"the request is not signed: {ACCESS_KEY} is missing. Brokers sign with"
                " controllerSharedSecret or innerClientAuthenticationCredentials, tools with tools.yml"
            )
        secret = self._accounts.get(name)
        if secret is None:
            return f"unknown access key {name}"
        fault = signature_fault(command, secret, admits_weak=self._admits_weak)
        return None if fault is None else f"access key {name}: {fault}"

    def _record(self, channel: Channel, command: Command, outcome: int, reason: str) -> None:
        resource = _resource(command)
        if command.code in BROKER_CODES:
            key, now_s = (channel.peer[0], command.code, resource, outcome), self._clock.monotonic()
            if now_s < self._recorded.get(key, 0.0):
                return
            if len(self._recorded) >= REMEMBERED_MAX:
                self._recorded.clear()
            self._recorded[key] = now_s + REPEAT_S
        account = _signer(command) if not self._is_open or self._fault(command) is None else ""
        if outcome == ResponseCode.SUCCESS:
            self._audit.allowed(account, channel.peer, command.code, resource)
        else:
            self._audit.refused(account, channel.peer, command.code, resource, reason[:TEXT_CHARS_MAX])


def _signer(command: Command) -> str:
    """Returns the access key that the request names."""
    try:
        return command.fields.get(ACCESS_KEY, "")[:TEXT_CHARS_MAX]
    except TandemError:
        return ""


def _resource(command: Command) -> str:
    if command.code in (Code.UPDATE_CONTROLLER_CONFIG, Code.TANDEM_CHANGE_CONTROLLERS):
        return "Controllers"
    try:
        return f"Group:{command.fields.get('brokerName', '')[:TEXT_CHARS_MAX]}"
    except TandemError:
        return ""
