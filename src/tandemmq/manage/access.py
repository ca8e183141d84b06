"""The users of a cluster and their rights: users and policies of RocketMQ 5.x, accounts of 4.x, and the
answers to "who may read this topic?" and "what may this user do?". Used by pages.

The answers come from the rules that our brokers apply (`broker.access`). RocketMQ's brokers differ in one
case: of equally specific policies, a single Deny denies here (spec decisions 5).

Secrets: passwords and secret keys that brokers return are dropped when an answer is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandemmq.api import broker_admin
from tandemmq.broker.access import auth_table
from tandemmq.broker.access.needs import DELETE, PUB, SUB, TOPIC, UPDATE, Need, render_actions
from tandemmq.broker.access.plain_rules import build_account
from tandemmq.errors import ConfigError, RequestRejected
from tandemmq.manage.reach import answers_of, ask_each, errors_of, if_supported, list_silent
from tandemmq.manage.tools import Target, Tools
from tandemmq.protocol.bodies import tables

MODES: Final = ("authenticationEnabled", "authorizationEnabled", "aclEnable")
"""The settings of a broker that switch access control on."""
ACTIONS: Final = (("read", SUB), ("write", PUB), ("change", UPDATE), ("delete", DELETE))
"""The rights that answers name, with the action that each needs."""
_HIDDEN: Final = "hidden secret"


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """The rules of one broker. `modes` are its settings of MODES, where it tells them; `error` is the reason
    why the rules could not be read.
    """

    modes: Mapping[str, str]
    users: tuple[tables.UserInfo, ...] = ()
    acls: tuple[tables.AclInfo, ...] = ()
    accounts: tables.AccountsInfo | None = None
    error: str = ""

    @property
    def is_on(self) -> bool:
        """True if the broker checks rights, or does not tell."""
        return not self.modes or any(self.modes.get(name) == "true" for name in MODES)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The rules of each broker that answered, and the errors of the others."""

    brokers: dict[Target, BrokerAccess]
    failed: dict[Target, str] = field(default_factory=dict)

    @property
    def may_have_accounts(self) -> bool:
        """False if no broker has accounts, and one of them lacks the requests for them."""
        held = self.brokers.values()
        return any(one.accounts is not None for one in held) or all(one.error for one in held)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rights of one user on one resource at one broker, by the names of ACTIONS, and the reason."""

    target: Target
    name: str
    kind: str
    rights: Mapping[str, bool]
    reason: str


@dataclass(frozen=True, slots=True)
class UserRow:
    """One user with the brokers that have it in this state."""

    name: str
    user_type: str
    status: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One entry of a policy with the brokers that have it."""

    subject: str
    policy_type: str
    entry: tables.EntryInfo
    brokers: tuple[str, ...]


async def read_access(tools: Tools, targets: Iterable[Target]) -> ClusterAccess:
    """Returns the rules of these brokers; a broker that lacks a kind of access control has no rules of it."""
    reached = await ask_each(targets, lambda one: _read_broker(tools, one.address))
    return ClusterAccess(dict(answers_of(reached)), errors_of(reached))


def judge(access: ClusterAccess, kind: str, name: str, host: str = "") -> list[Verdict]:
    """Returns the rights of each user of each broker on a resource (`kind` TOPIC or GROUP), for a client at
    the address `host`; without an address, policies for some addresses only do not count.
    """
    return [
        verdict
        for target, broker in access.brokers.items()
        for verdict in (
            *_judge_users(target, broker, kind, name, host),
            *_judge_accounts(target, broker, kind, name),
        )
    ]


def policies_of(acls: Iterable[tables.AclInfo], user: str) -> list[tables.PolicyInfo]:
    """Returns the policies of one user."""
    return [one for acl in acls if acl.subject == auth_table.SUBJECT_PREFIX + user for one in acl.policies]


def rows_of_users(access: ClusterAccess) -> list[UserRow]:
    """Returns the users by name."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for target, broker in access.brokers.items():
        for user in broker.users:
            key = (user.username or "", user.user_type or auth_table.NORMAL, user.status or auth_table.ENABLE)
            found.setdefault(key, []).append(target.address)
    return [UserRow(*key, tuple(brokers)) for key, brokers in sorted(found.items())]


def rows_of_policies(access: ClusterAccess) -> list[PolicyRow]:
    """Returns the entries of all policies, by subject and resource."""
    found: dict[tuple[str, str, tables.EntryInfo], list[str]] = {}
    for target, broker in access.brokers.items():
        for acl in broker.acls:
            for policy in acl.policies:
                for entry in policy.entries:
                    key = (acl.subject or "", policy.policy_type or "Custom", entry)
                    found.setdefault(key, []).append(target.address)
    rows = [PolicyRow(*key, tuple(brokers)) for key, brokers in found.items()]
    return sorted(rows, key=lambda row: (row.subject, row.policy_type, row.entry.resource))


def rows_of_accounts(access: ClusterAccess) -> list[tuple[tables.AccountInfo, list[str]]]:
    """Returns the accounts by access key, each with the brokers that have it in this form."""
    found: dict[tables.AccountInfo, list[str]] = {}
    for target, broker in access.brokers.items():
        for account in () if broker.accounts is None else broker.accounts.accounts:
            found.setdefault(account, []).append(target.address)
    return sorted(found.items(), key=lambda item: item[0].access_key)


def problems_of(access: ClusterAccess) -> list[str]:
    """Names the brokers whose rules are missing, each with the reason."""
    hidden = [
        f"{one} does not show its rules: {held.error}" for one, held in access.brokers.items() if held.error
    ]
    return list_silent(access.failed) + hidden


# Inside


async def _read_broker(tools: Tools, address: str) -> BrokerAccess:
    modes: dict[str, str] = {}
    try:
        held = await broker_admin.query_broker_config(tools.remoting, address)
        modes = {name: held[name] for name in MODES if name in held}
    except (RequestRejected, ConfigError):
        pass  # a user who may not read the settings may still read the rules
    try:
        users = await if_supported(broker_admin.query_users(tools.remoting, address))
        acls = None if users is None else await broker_admin.query_acls(tools.remoting, address)
        accounts = await if_supported(broker_admin.query_accounts(tools.remoting, address))
    except RequestRejected as error:
        return BrokerAccess(modes, error=error.remark or str(error))
    return BrokerAccess(
        modes,
        tuple(msgspec.structs.replace(user, password=None) for user in users or ()),
        tuple(acls or ()),
        None if accounts is None else _without_secrets(accounts),
    )


def _without_secrets(accounts: tables.AccountsInfo) -> tables.AccountsInfo:
    shown = tuple(msgspec.structs.replace(one, secret_key=None) for one in accounts.accounts)
    return msgspec.structs.replace(accounts, accounts=shown)


def _judge_users(target: Target, broker: BrokerAccess, kind: str, name: str, host: str) -> Iterator[Verdict]:
    for user in broker.users:
        username = user.username or ""
        try:
            policies = auth_table.compile_policies(policies_of(broker.acls, username))
        except ConfigError as error:
            yield Verdict(target, username, "user", _all(False), f"unreadable policy: {error}")
            continue
        if (user.status or auth_table.ENABLE).lower() != auth_table.ENABLE:
            yield Verdict(target, username, "user", _all(False), "disabled")
        elif (user.user_type or "").lower() == auth_table.SUPER.lower():
            yield Verdict(target, username, "user", _all(True), "super user")
        else:
            rights = {
                label: auth_table.decide(policies, Need(kind, name, bit), host) for label, bit in ACTIONS
            }
            yield Verdict(target, username, "user", rights, _reason(policies, kind, name, host))


def _judge_accounts(target: Target, broker: BrokerAccess, kind: str, name: str) -> Iterator[Verdict]:
    for info in () if broker.accounts is None else broker.accounts.accounts:
        try:
            account = build_account(_as_raw(info))
        except ConfigError as error:
            yield Verdict(target, info.access_key, "account", _all(False), str(error))
            continue
        rights = {label: account.allows(Need(kind, name, bit)) for label, bit in ACTIONS}
        named = account.topics if kind == TOPIC else account.groups
        default = account.default_topic if kind == TOPIC else account.default_group
        bits = named.get(name, default)
        reason = f"{'own rule' if name in named else 'default'}: {render_actions(bits)}"
        yield Verdict(
            target, info.access_key, "account", rights, "administrator" if account.is_admin else reason
        )


def _reason(policies: Sequence[Sequence[auth_table.PolicyLine]], kind: str, name: str, host: str) -> str:
    """Names the lines that match the resource, in the order of the policies."""
    needs = [Need(kind, name, bit) for _, bit in ACTIONS]
    found = [
        f"{'allow' if line.is_allowed else 'deny'} {render_actions(line.actions)}"
        f" on {auth_table.render_resource(line.resource)}"
        for lines in policies
        for line in lines
        if any(line.resource.rank(need) and line.fits(need, host) for need in needs)
    ]
    return "; ".join(found) or "no policy matches"


def _as_raw(info: tables.AccountInfo) -> dict[str, object]:
    """Returns an account as a rule file has it, with a text in place of its secret."""
    return {
        "accessKey": info.access_key,
        "secretKey": _HIDDEN,
        "admin": info.is_admin,
        "defaultTopicPerm": info.default_topic_permission,
        "defaultGroupPerm": info.default_group_permission,
        "topicPerms": list(info.topic_permissions),
        "groupPerms": list(info.group_permissions),
    }


def _all(value: bool) -> dict[str, bool]:
    return {label: value for label, _ in ACTIONS}
