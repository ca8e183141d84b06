"""Access control of the proxy: which user sent a request, and whether the user may do what it asks.

Users and policies are those of the brokers, fetched with the proxy's own credentials and cached; the rules
that decide are the brokers' own (a single denial among equals denies). Requests to brokers are signed by the
proxy, so the rights of the caller are checked here only.

Invariants: whatever fails, the request is refused with UNAUTHORIZED; a request without a row in `_NEEDS` is
            for administrators only. A change of a user counts within `USER_LIMITS.keep_s`.
At a bound: while LOOKUPS_MAX users are being fetched, requests of further users are refused.
Source:     spec proxy 3.2, 3.3, 8; spec semantics 21.3.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.api import broker_admin
from tandemmq.broker.access import auth_table
from tandemmq.broker.access.needs import (
    CLUSTER,
    GROUP,
    PUB,
    SUB,
    UPDATE,
    Need,
    Needs,
    needs_beside_group,
    of_broker,
    render_actions,
    topic_need,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.tables import AclInfo, UserInfo
from tandemmq.proxy.cache import Cached, CacheLimits
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.rpc import Message
from tandemmq.proxy.schema import PACKAGE, enum_number
from tandemmq.proxy.statuses import Code, RpcRefused, check_bound
from tandemmq.remoting.audit import AccessLog
from tandemmq.runtime.ports import Address

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
SCHEME: Final = "MQv2-HMAC-SHA1"
HEADER_CHARS_MAX: Final = 4_096
ACCESS_KEY_CHARS_MAX: Final = 255
LOOKUPS_MAX: Final = 64
ALLOWED_MAX: Final = 4_096
ALLOWED_CHARS_MAX: Final = 512
"""The most characters of the names in a remembered permission: names are not checked before the access."""
NAMES_MAX: Final = 1_024
"""The most topics of a request whose rights are checked, as of one that is served."""
RESOURCE_CHARS_MAX: Final = 512
"""The most characters of a denied resource in the answer and in the audit log."""
USER_LIMITS: Final = CacheLimits(fresh_s=15.0, keep_s=60.0)


# Authentication: the signature of a call.


class Signed(NamedTuple):
    """The claim of a call: its access key, and the signature that proves it."""

    access_key: str
    signature: str


def parse_authorization(text: str) -> Signed:
    """Parses `MQv2-HMAC-SHA1 Credential=KEY/region/service, SignedHeaders=..., Signature=HEX`.

    Raises:  Unauthenticated for a text of another form.
    """
    scheme, _, rest = text[:HEADER_CHARS_MAX].partition(" ")
    if scheme != SCHEME:
        raise Unauthenticated(f"the header {AUTHORIZATION} has not the scheme {SCHEME}")
    parts = dict(_pair(part) for part in rest.split(","))
    access_key = parts.get("Credential", "").partition("/")[0]
    if not 0 < len(access_key) <= ACCESS_KEY_CHARS_MAX or not access_key.isprintable():
        raise Unauthenticated(f"the header {AUTHORIZATION} names no access key")
    return Signed(access_key, parts.get("Signature", ""))


def _pair(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    return name.strip(), value.strip()


def is_signature(signature: str, date_time: str, secret_key: str) -> bool:
    """Returns True if the signature covers this `x-mq-date-time`, in constant time. The time itself is not
    compared with the clock: several clients send local time as UTC.
    """
    expected = hmac.new(secret_key.encode(), date_time.encode("utf-8", "replace"), "sha1").hexdigest()
    return hmac.compare_digest(expected.encode(), signature.lower().encode("utf-8", "replace"))


class Unauthenticated(TandemError):
    """A caller that is not who it claims to be."""


def claim_of(metadata: Mapping[str, str]) -> Signed:
    """Returns the claim of a call. Raises Unauthenticated for a call that is not signed."""
    text = metadata.get(AUTHORIZATION)
    if not text:
        raise Unauthenticated(f"the request is not signed: the header {AUTHORIZATION} is missing")
    return parse_authorization(text)


def signed_time(metadata: Mapping[str, str]) -> str:
    """Returns the time that the signature covers. Raises Unauthenticated without one."""
    date_time = metadata.get(DATE_TIME)
    if not date_time:
        raise Unauthenticated(f"the header {DATE_TIME} is missing, which the signature covers")
    return date_time


def check_signature(claim: Signed, metadata: Mapping[str, str], secret_key: str) -> None:
    """Raises Unauthenticated unless the claim was signed with this key."""
    if not is_signature(claim.signature, signed_time(metadata), secret_key):
        raise Unauthenticated("the signature is wrong")


@dataclass(frozen=True, slots=True)
class Denials:
    """Records refused requests in the audit log, and returns the errors that answer them."""

    audit: AccessLog

    def unauthenticated(self, access_key: str, peer: Address, name: str, reason: str) -> RpcRefused:
        """Returns the refusal of a caller that is not who it claims to be."""
        self.record(access_key, peer, name, reason)
        return RpcRefused(Code.UNAUTHORIZED, f"authentication failed: {reason}")

    def forbidden(self, access_key: str, peer: Address, name: str, need: Need) -> RpcRefused:
        """Returns the refusal of a caller without a right."""
        resource = f"{need.kind}:{need.name}"[:RESOURCE_CHARS_MAX]
        reason = f"{access_key} may not {render_actions(need.actions)} {resource}"
        self.record(access_key, peer, name, reason, resource)
        return RpcRefused(Code.UNAUTHORIZED, reason)

    def record(self, access_key: str, peer: Address, name: str, reason: str, resource: str = "") -> None:
        self.audit.denied(access_key, peer, int(Code.UNAUTHORIZED), resource, f"{name}: {reason}")


# Authorization: the rights that a request needs.

_PRODUCER: Final = enum_number("ClientType", "PRODUCER")


def needs_of_request(request: Message) -> Needs:
    """Returns the rights that a request needs; each need is one of its actions on one resource.

    Raises:  RpcRefused BAD_REQUEST for a request with more names than handlers accept.
    """
    check_bound(Code.BAD_REQUEST, "the request", _count_names(request), NAMES_MAX, "topics")
    rule = _NEEDS.get(request.DESCRIPTOR.name)
    if rule is None:
        return (Need(CLUSTER, "", UPDATE),)
    return tuple(dict.fromkeys(rule(request)))


def _count_names(request: Message) -> int:
    """Returns the number of topics that a request names, with repetitions."""
    match request.DESCRIPTOR.name:
        case "SendMessageRequest":
            return len(request.messages)
        case "TelemetryCommand":
            settings = request.settings
            return len(settings.publishing.topics) + len(settings.subscription.subscriptions)
        case _:
            return 1


def _send(request: Message) -> Iterable[Need]:
    return [topic_need(message.topic.name, PUB) for message in request.messages]


def _produce(request: Message) -> Iterable[Need]:
    return (topic_need(request.topic.name, PUB),)


def _consume(request: Message) -> Iterable[Need]:
    return _sub(request.group.name, (request.topic.name,))


def _consume_queue(request: Message) -> Iterable[Need]:
    return _sub(request.group.name, (request.message_queue.topic.name,))


def _sub(group: str, topics: Iterable[str]) -> Iterable[Need]:
    return (
        Need(GROUP, group, SUB),
        *(need for topic in topics for need in needs_beside_group(group, topic, SUB)),
    )


def _group(request: Message) -> Iterable[Need]:
    return (Need(GROUP, request.group.name, SUB),)


def _named_group(request: Message) -> Iterable[Need]:
    return _group(request) if request.group.name else ()


def _heartbeat(request: Message) -> Iterable[Need]:
    return () if request.client_type == _PRODUCER else _named_group(request)


def _telemetry(command: Message) -> Iterable[Need]:
    """Returns the needs of settings; other commands answer questions of this proxy."""
    if command.WhichOneof("command") != "settings":
        return ()
    settings = command.settings
    if settings.WhichOneof("pub_sub") == "subscription":
        subscription = settings.subscription
        return _sub(subscription.group.name, [entry.topic.name for entry in subscription.subscriptions])
    return [topic_need(topic.name, PUB) for topic in settings.publishing.topics]


_NEEDS: Final[Mapping[str, Callable[[Message], Iterable[Need]]]] = {
    "QueryRouteRequest": lambda request: (topic_need(request.topic.name, PUB | SUB),),
    "QueryAssignmentRequest": _consume,
    "SendMessageRequest": _send,
    "RecallMessageRequest": _produce,
    "EndTransactionRequest": _produce,
    "ReceiveMessageRequest": _consume_queue,
    "AckMessageRequest": _consume,
    "ForwardMessageToDeadLetterQueueRequest": _consume,
    "ChangeInvisibleDurationRequest": _group,
    "PullMessageRequest": _consume_queue,
    "UpdateOffsetRequest": _consume_queue,
    "GetOffsetRequest": _consume_queue,
    "QueryOffsetRequest": lambda request: (topic_need(request.message_queue.topic.name, SUB),),
    "SyncLiteSubscriptionRequest": _consume,
    "HeartbeatRequest": _heartbeat,
    "NotifyClientTerminationRequest": _named_group,
    "TelemetryCommand": _telemetry,
}


# Users of the brokers.


@dataclass(frozen=True, slots=True)
class ProxyUser:
    """A user with its policies. `allowed` remembers permissions by host and needs."""

    secret_key: str = field(repr=False)
    is_enabled: bool
    is_super: bool
    policies: tuple[tuple[auth_table.PolicyLine, ...], ...]
    allowed: set[tuple[str, Needs]] = field(default_factory=set, compare=False, repr=False)


def make_user(info: UserInfo, acl: AclInfo | None) -> ProxyUser:
    """Returns a user as brokers describe it.

    Raises:  ConfigError for an entry that cannot be read: a denial must not be lost.
    """
    return ProxyUser(
        secret_key=info.password or "",
        is_enabled=(info.status or auth_table.ENABLE).lower() == auth_table.ENABLE,
        is_super=(info.user_type or "").lower() == auth_table.SUPER.lower(),
        policies=auth_table.compile_policies(() if acl is None else acl.policies),
    )


class AccessControl:
    """Checks requests: `check` is the `CheckAccess` of `Callers`."""

    def __init__(self, core: ProxyCore, audit: AccessLog) -> None:
        self._core = core
        self._unauthenticated = _names(core.options.authentication_white_list)
        self._unauthorized = _names(core.options.authorization_white_list)
        self._denials = Denials(audit)
        self.users: Cached[str, ProxyUser] = Cached(
            "user", self._query_user, clock=core.clock, tasks=core.tasks, limits=USER_LIMITS
        )
        self._awaited: Counter[str] = Counter()
        self.refused_count = 0
        """The requests that were refused because too many users were being fetched."""

    async def check(self, metadata: Mapping[str, str], peer: Address, request: Message) -> str:
        """Returns the access key of the user; "" if the request needs none.

        Raises:  RpcRefused UNAUTHORIZED; the reason is in the audit log.
        """
        name = request.DESCRIPTOR.name
        if f"{PACKAGE}.{name}" in self._unauthenticated:
            return ""
        access_key = ""
        try:
            claim = claim_of(metadata)
            access_key = claim.access_key
            user = await self._authenticate(claim, metadata)
            denied = self._find_denied(user, name, request, peer[0])
        except Unauthenticated as error:
            raise self._denials.unauthenticated(access_key, peer, name, str(error)) from None
        except RpcRefused:
            raise
        except TandemError as error:
            self._denials.record(access_key, peer, name, f"the user cannot be fetched: {error}")
            raise RpcRefused(Code.UNAUTHORIZED, "the user cannot be fetched from the brokers now") from None
        if denied is not None:
            raise self._denials.forbidden(access_key, peer, name, denied)
        return access_key

    async def _authenticate(self, claim: Signed, metadata: Mapping[str, str]) -> ProxyUser:
        signed_time(metadata)  # before a user is fetched
        user = await self._user(claim.access_key)
        if user is None:
            raise Unauthenticated(f"there is no user {claim.access_key}")
        if not user.is_enabled:
            raise Unauthenticated(f"the user {claim.access_key} is disabled")
        if not user.secret_key:
            raise Unauthenticated(
                "the brokers do not show the secret keys of users to this proxy: its own credentials must be"
                " those of a super user"
            )
        check_signature(claim, metadata, user.secret_key)
        return user

    async def _user(self, access_key: str) -> ProxyUser | None:
        is_new = access_key not in self._awaited and self.users.peek(access_key) is None
        if is_new and len(self._awaited) >= LOOKUPS_MAX:
            self.refused_count += 1
            raise Unauthenticated(f"{LOOKUPS_MAX} users are being fetched: try again later")
        self._awaited[access_key] += 1
        try:
            return await self.users.get(access_key)
        finally:
            self._awaited[access_key] -= 1
            if not self._awaited[access_key]:
                del self._awaited[access_key]

    def _find_denied(self, user: ProxyUser, name: str, request: Message, host: str) -> Need | None:
        """Returns the first need that the user has no right to; None if the request may be served."""
        if (
            not self._core.options.authorization_enabled
            or user.is_super
            or f"{PACKAGE}.{name}" in self._unauthorized
        ):
            return None
        needs = needs_of_request(request)
        if (host, needs) in user.allowed:
            return None
        for need in needs:
            if not auth_table.decide(user.policies, of_broker(need, self._core.options.cluster), host):
                return need
        if sum(len(need.name) for need in needs) <= ALLOWED_CHARS_MAX:
            if len(user.allowed) >= ALLOWED_MAX:
                user.allowed.clear()
            user.allowed.add((host, needs))
        return None

    async def _query_user(self, access_key: str) -> ProxyUser | None:
        """Returns the user at the first master that knows it; None if none does. Raises as `ask_masters`."""

        async def ask(address: str, time_s: float) -> tuple[UserInfo, AclInfo | None] | None:
            remoting = self._core.brokers.remoting
            info = await broker_admin.query_user.within(time_s, remoting, address, access_key)
            if info is None:
                return None
            subject = auth_table.SUBJECT_PREFIX + access_key
            return info, await broker_admin.query_acl.within(time_s, remoting, address, subject)

        masters = await self._core.brokers.masters()
        found = await self._core.brokers.ask_masters(list(masters.values()), ask)
        return None if found is None else make_user(*found)


def _names(text: str) -> frozenset[str]:
    return frozenset(piece.strip() for piece in text.split(",") if piece.strip())
