"""The caller of an rpc: the headers of its call, checked, and the names that its request uses.

`Callers.admit` is called once per request, and for each command of a telemetry stream. It first authenticates
and authorizes (`access`), then checks the client id. `topic_name` and `group_name` are for handlers.

Invariants: no header is kept unbounded; headers that only servers set are never read; an unknown language is
            not an error.
Source:     spec proxy 2.8, 3.1, 3.4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.protocol.codes import LanguageCode
from tandemmq.protocol.topic_names import group_fault, is_system_group, is_system_topic, topic_fault
from tandemmq.proxy.rpc import Caller, GrpcCall, Message
from tandemmq.proxy.statuses import Code, RpcRefused, check_bound
from tandemmq.runtime.ports import Address

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
CLIENT_VERSION: Final = "x-mq-client-version"
NAMESPACE: Final = "x-mq-namespace"

CLIENT_ID_CHARS_MAX: Final = 1_024
"""The longest client id that brokers register."""
VERSION_CHARS_MAX: Final = 64
NAMESPACE_CHARS_MAX: Final = 255
NAME_CHARS_KEPT: Final = 256
"""The checked characters of a name, more than any limit: the checks remember the names that they got."""

_LANGUAGES: Final = {code.name: code for code in LanguageCode} | {
    "GOLANG": LanguageCode.GO,
    "DOT_NET": LanguageCode.DOTNET,
}


CheckAccess = Callable[[Mapping[str, str], Address, Message], Awaitable[str]]
"""Checks a request by the headers and the peer of its call; returns the access key of an authenticated
caller, "" of an anonymous one. Raises RpcRefused.
"""


@dataclass(frozen=True, slots=True)
class Callers:
    """Makes the caller of each request, which must pass all checks; without access control there is none."""

    checks: Sequence[CheckAccess] = ()

    async def admit(self, call: GrpcCall, request: Message) -> Caller:
        """Returns the caller of a request that may be served.

        Raises:  RpcRefused UNAUTHORIZED, CLIENT_ID_REQUIRED, or BAD_REQUEST for a header out of bounds.
        """
        metadata, access_key = call.metadata, ""
        for check in self.checks:
            access_key = await check(metadata, call.peer, request) or access_key
        return Caller(
            client_id=_client_id(metadata),
            language=language_of(metadata.get(LANGUAGE, "")).name,
            version=metadata.get(CLIENT_VERSION, "")[:VERSION_CHARS_MAX],
            namespace=_namespace(metadata),
            peer=call.peer,
            deadline_s=call.deadline_s,
            access_key=access_key,
        )


def language_of(text: str) -> LanguageCode:
    """Returns the language by its name in headers; OTHER for an unknown or missing one."""
    return _LANGUAGES.get(text.strip().upper(), LanguageCode.OTHER)


def _client_id(metadata: Mapping[str, str]) -> str:
    client_id = metadata.get(CLIENT_ID, "").strip()
    if not client_id:
        raise RpcRefused(Code.CLIENT_ID_REQUIRED, f"the header {CLIENT_ID} is missing or blank")
    size = len(client_id)
    check_bound(Code.BAD_REQUEST, f"the header {CLIENT_ID}", size, CLIENT_ID_CHARS_MAX, "characters")
    if not client_id.isprintable():
        raise RpcRefused(
            Code.BAD_REQUEST, f"the header {CLIENT_ID} holds control characters: {client_id[:160]!r}"
        )
    return client_id


def _namespace(metadata: Mapping[str, str]) -> str:
    namespace = metadata.get(NAMESPACE, "")
    size = len(namespace)
    check_bound(Code.BAD_REQUEST, f"the header {NAMESPACE}", size, NAMESPACE_CHARS_MAX, "characters")
    return namespace


def topic_name(resource: Message) -> str:
    """Returns the name of a topic. Raises RpcRefused ILLEGAL_TOPIC for a bad name or a system topic."""
    name: str = resource.name
    fault = topic_fault(name[:NAME_CHARS_KEPT])
    if not fault and is_system_topic(name):
        fault = f"the topic {name} is a topic of the system"
    if fault:
        raise RpcRefused(Code.ILLEGAL_TOPIC, fault)
    return name


def group_name(resource: Message) -> str:
    """Returns the name of a consumer group.

    Raises:  RpcRefused ILLEGAL_CONSUMER_GROUP for a bad name or a system group.
    """
    name: str = resource.name
    fault = group_fault(name[:NAME_CHARS_KEPT])
    if not fault and is_system_group(name):
        fault = f"the group {name} is a group of the system"
    if fault:
        raise RpcRefused(Code.ILLEGAL_CONSUMER_GROUP, fault)
    return name
