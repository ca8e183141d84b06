"""Policies of 5.x: what a subject may do with which resources, from where; pure.

Of the entries that fit a need, those of the most specific resource decide: a named type before Any, a
literal name before a prefix before `*`, a longer prefix before a shorter one. Among equals one Deny is
enough to refuse, which is stricter than RocketMQ (spec decisions 5). Entries of type CUSTOM decide before
those of type DEFAULT; when nothing fits, the answer is no.

Source: spec semantics 21.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from tandemmq.broker.access.actions import parse_action
from tandemmq.broker.access.needs import Need
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.access import EntryInfo

ANY: Final = "Any"
KINDS: Final = (ANY, "Cluster", "Namespace", "Topic", "Group")
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
POLICY_TYPES: Final = (CUSTOM, DEFAULT)
ALLOW: Final = "Allow"
DENY: Final = "Deny"
SUBJECT_PREFIX: Final = "User:"

_LITERAL: Final = 1 << 20
"""Ranks above any prefix: names are shorter."""


@dataclass(frozen=True, slots=True)
class Resource:
    """`name` is a literal, a prefix (`is_prefix`), or with is_prefix and "" every name."""

    kind: str
    name: str
    is_prefix: bool

    def rank(self, need: Need) -> tuple[bool, int] | None:
        """How specific it is for the need, the higher the more; None when it does not fit."""
        if self.kind not in (ANY, need.kind):
            return None
        if not self.is_prefix:
            return (self.kind != ANY, _LITERAL) if self.name == need.name else None
        if not need.name.startswith(self.name):
            return None
        return (self.kind != ANY, len(self.name))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a policy: resource, action bits, networks (none: from anywhere), allowed or denied."""

    resource: Resource
    actions: int
    networks: tuple[IPv4Network | IPv6Network, ...]
    is_allowed: bool

    def fits(self, need: Need, host: str) -> bool:
        """Whether it speaks of one of the actions and of the caller's address."""
        if not self.actions & need.actions:
            return False
        if not self.networks:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self.networks)


def decide(policies: Sequence[Sequence[Entry]], need: Need, host: str) -> bool:
    """Whether the need is allowed; `policies` are the entries of CUSTOM, then those of DEFAULT."""
    if not need.actions:
        return True
    for entries in policies:
        best: tuple[bool, int] | None = None
        is_allowed = False
        for entry in entries:
            rank = entry.resource.rank(need)
            if rank is None or not entry.fits(need, host) or (best is not None and rank < best):
                continue
            is_allowed = entry.is_allowed and (is_allowed or rank != best)
            best = rank
        if best is not None:
            return is_allowed
    return False


def parse_resource(text: str) -> Resource:
    """`Topic:orders`, `Group:app-*`, `Cluster:*`, `*`.

    Raises:  ConfigError saying what is allowed.
    """
    if text.strip() == "*":
        return Resource(ANY, "", True)
    kind_text, colon, name = text.strip().partition(":")
    kind = next((kind for kind in KINDS if kind.lower() == kind_text.lower()), None)
    if kind is None or not colon or not name or "*" in name[:-1]:
        raise ConfigError(
            f"resource {text!r}: must be Type:name, Type:prefix* or Type:*, with a type of {', '.join(KINDS)}"
        )
    is_prefix = name.endswith("*")
    return Resource(kind, name.removesuffix("*"), is_prefix)


def render_resource(resource: Resource) -> str:
    """As tools write it: `Type:name`, `Type:start*` or `Type:*`."""
    return f"{resource.kind}:{resource.name}{'*' if resource.is_prefix else ''}"


def parse_entry(info: EntryInfo) -> Entry:
    """The rule that a tool's entry states.

    Raises:  ConfigError naming what is wrong.
    """
    if not info.actions:
        raise ConfigError(f"resource {info.resource}: no action is given")
    actions = 0
    for name in info.actions:
        actions |= parse_action(name)
    decision = info.decision.strip().lower()
    if decision not in ("allow", "deny"):
        raise ConfigError(f"decision {info.decision!r}: must be Allow or Deny")
    networks = tuple(_network(text) for text in info.source_ips if text.strip())
    return Entry(parse_resource(info.resource), actions, networks, decision == "allow")


def parse_policy_type(text: str | None) -> str:
    """CUSTOM when nothing is said.

    Raises:  ConfigError naming what is allowed.
    """
    found = {name.lower(): name for name in POLICY_TYPES}.get((text or CUSTOM).strip().lower())
    if found is None:
        raise ConfigError(f"policy type {text!r}: must be Custom or Default")
    return found


def parse_subject(text: str) -> str:
    """The user name of `User:name`.

    Raises:  ConfigError for any other subject.
    """
    head, name = text[: len(SUBJECT_PREFIX)], text[len(SUBJECT_PREFIX) :]
    if head.lower() != SUBJECT_PREFIX.lower() or not name:
        raise ConfigError(f"subject {text!r}: must be User:name")
    return name


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigError(f"source address {text!r}: must be an address or a network a.b.c.d/n") from None
