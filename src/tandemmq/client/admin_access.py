"""The chapter of `Admin` about access: the users and policies of RocketMQ 5, the accounts of RocketMQ 4.

Every broker, a slave too, keeps its own users, policies and accounts. A change is made at every broker of the
cluster; one that does not answer does not hold the others up, because a right must end where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ParamSpec, TypedDict, TypeVar, Unpack

from tandemmq.api import broker_admin
from tandemmq.api.calls import Call
from tandemmq.client.admin_base import AdminClient, cluster_name
from tandemmq.client.changes import change_each
from tandemmq.errors import BadRequest, ConfigError
from tandemmq.protocol.bodies.tables import AccountsInfo, AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.remoting.client import RemotingClient

P = ParamSpec("P")
A = TypeVar("A")


class AccountChanges(TypedDict, total=False):
    """The fields of an account that a call names. Permissions are DENY, PUB, SUB or PUB|SUB; those of single
    topics and groups are `name=permission`.
    """

    secret_key: str
    white_remote_address: str
    default_topic_permission: str
    default_group_permission: str
    topic_permissions: Iterable[str]
    group_permissions: Iterable[str]


class AccessAdmin(AdminClient):
    """The part of `Admin` for users, policies and accounts.

    Each change raises NotPermitted when the client's user lacks the right; PartlyChanged when some of several
    brokers failed; BadRequest for an invalid value, or a missing `cluster` when the number of clusters is not
    one. Each read returns the answers by the brokers' addresses.
    """

    async def users(self, *, cluster: str | None = None) -> dict[str, list[UserInfo]]:
        """Returns the users of each broker. Brokers return passwords to super users only."""
        return await self._ask_brokers(cluster, broker_admin.query_users)

    async def create_user(
        self, username: str, password: str, *, user_type: str = "Normal", cluster: str | None = None
    ) -> None:
        """Creates a user of the type Normal or Super. Raises RequestRejected for a name in use."""
        if not username or not password:
            raise BadRequest("a user needs a name and a password")
        user = UserInfo(username=username, password=password, user_type=_one_of(user_type, "Normal", "Super"))
        await self._change_brokers(cluster, broker_admin.create_user, user)

    async def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        status: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Changes the given fields of a user; `status` is enable or disable. Raises RequestRejected for an
        unknown user.
        """
        if not (password or user_type or status):
            raise BadRequest("nothing to change: give a password, a user_type or a status")
        user = UserInfo(
            username=username,
            password=password or None,
            user_type=_one_of(user_type, "Normal", "Super"),
            status=_one_of(status, "enable", "disable"),
        )
        await self._change_brokers(cluster, broker_admin.update_user, user)

    async def delete_user(self, username: str, *, cluster: str | None = None) -> None:
        """Deletes a user and its policies; an unknown user is not an error."""
        await self._change_brokers(cluster, broker_admin.delete_user, username)

    async def policies(self, *, cluster: str | None = None) -> dict[str, list[AclInfo]]:
        """Returns the policies of all users of each broker."""
        return await self._ask_brokers(cluster, broker_admin.query_acls)

    async def set_policy(
        self,
        username: str,
        resources: Iterable[str],
        actions: Iterable[str],
        *,
        decision: str = "Allow",
        source_ips: Iterable[str] = (),
        cluster: str | None = None,
    ) -> None:
        """Allows or denies a user these actions (Pub, Sub, Create, Update, Delete, Get, List, All) on these
        resources, such as `Topic:Orders` or `Group:billing*`. A policy for the same resource is replaced.
        """
        named, chosen, sources = (_texts(values) for values in (resources, actions, source_ips))
        if not named or not chosen:
            raise BadRequest("a policy needs a resource, such as Topic:Orders, and an action")
        allowed = _one_of(decision, "Allow", "Deny") or ""
        entries = tuple(
            EntryInfo(resource=one, actions=chosen, source_ips=sources, decision=allowed) for one in named
        )
        acl = AclInfo(subject=_subject(username), policies=(PolicyInfo(entries=entries),))
        await self._change_brokers(cluster, broker_admin.create_acl, acl)

    async def delete_policies(
        self, username: str, resources: Iterable[str] | None = None, *, cluster: str | None = None
    ) -> None:
        """Deletes a user's policies for these resources; for None, all of the user's policies."""
        named = (None,) if resources is None else _texts(resources)
        await delete_policies(self._remoting, await self._brokers(cluster), _subject(username), named)

    async def accounts(self, *, cluster: str | None = None) -> dict[str, AccountsInfo]:
        """Returns the accounts of the rule files of each broker, with their secret keys."""
        return await self._ask_brokers(cluster, broker_admin.query_accounts)

    async def set_account(
        self,
        access_key: str,
        *,
        is_admin: bool = False,
        cluster: str | None = None,
        **fields: Unpack[AccountChanges],
    ) -> None:
        """Creates an account in the rule files, or changes the given fields of one; `is_admin` is always
        set.
        """
        if not access_key:
            raise BadRequest("an account needs an access key")
        given = {name: ",".join(_texts(value)) for name, value in fields.items()}  # type: ignore[arg-type]  # texts
        await self._change_brokers(
            cluster, broker_admin.change_account, access_key=access_key, is_admin=is_admin, **given
        )

    async def delete_account(self, access_key: str, *, cluster: str | None = None) -> None:
        """Deletes an account from the rule files."""
        await self._change_brokers(cluster, broker_admin.delete_account, access_key=access_key)

    async def copy_users(self, source: str, target: str, usernames: Iterable[str] = ()) -> list[str]:
        """Copies users, by default all, between brokers, as `copy_users` of this module does."""
        return await copy_users(self._remoting, source, target, _texts(usernames))

    async def copy_policies(self, source: str, target: str, usernames: Iterable[str] = ()) -> list[str]:
        """Copies the policies of users, by default of all, between brokers, as `copy_policies` of this module
        does.
        """
        subjects = tuple(map(_subject, _texts(usernames)))
        return await copy_policies(self._remoting, source, target, subjects)

    async def _brokers(self, cluster: str | None) -> dict[str, str]:
        """Returns the addresses of all brokers of the cluster, each with the text that names it."""
        info = await self.cluster_info()
        return {
            f"{name} ({address})": address
            for name in sorted(info.clusters[cluster_name(info, cluster)])
            for _, address in sorted(info.brokers[name].addresses.items())
        }

    async def _ask_brokers(self, cluster: str | None, call: Call[[], A]) -> dict[str, A]:
        addresses = (await self._brokers(cluster)).values()
        return {address: await call(self._remoting, address) for address in addresses}

    async def _change_brokers(
        self, cluster: str | None, call: Call[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        brokers = await self._brokers(cluster)
        await change_each(brokers, lambda one: call(self._remoting, brokers[one], *args, **kwargs))


async def copy_users(
    remoting: RemotingClient, source: str, target: str, usernames: tuple[str, ...] = ()
) -> list[str]:
    """Copies users, by default all, from one broker to another: new ones are created, existing ones changed.
    Returns their names.

    Raises:  ConfigError for a user that the source lacks, or whose password it does not show to this client.
    """
    users = await broker_admin.query_users(remoting, source)
    known = {user.username: user for user in users if user.username}
    missing = [name for name in usernames if name not in known]
    if missing:
        raise ConfigError(
            f"{source} has no user {', '.join(missing)}; its users: {', '.join(known) or 'none'}"
        )
    chosen = [known[name] for name in usernames or known]
    hidden = [str(user.username) for user in chosen if not user.password]
    if hidden:
        raise ConfigError(
            f"{source} does not show the password of {', '.join(hidden)}: sign as one of its super users"
        )

    async def copy(name: str) -> None:
        held = await broker_admin.query_user(remoting, target, name)
        put = broker_admin.create_user if held is None else broker_admin.update_user
        await put(remoting, target, known[name])

    return list(await change_each([str(user.username) for user in chosen], copy))


async def copy_policies(
    remoting: RemotingClient, source: str, target: str, subjects: tuple[str, ...] = ()
) -> list[str]:
    """Copies policies, by default of all subjects, from one broker to another, which keeps its entries for
    other resources. Returns the subjects. Raises ConfigError for a subject without policies.
    """
    known = {str(acl.subject): acl for acl in await broker_admin.query_acls(remoting, source)}
    missing = [subject for subject in subjects if subject not in known]
    if missing:
        raise ConfigError(f"{source} has no policies of {', '.join(missing)}")

    async def copy(subject: str) -> None:
        held = await broker_admin.query_acl(remoting, target, subject)
        put = broker_admin.create_acl if held is None else broker_admin.update_acl
        await put(remoting, target, known[subject])

    return list(await change_each(subjects or known, copy))


async def delete_policies(
    remoting: RemotingClient, brokers: Mapping[str, str], subject: str, resources: Sequence[str | None]
) -> None:
    """Deletes a subject's policies for these resources at brokers by the texts that name them. The resource
    None stands for all.

    Raises:  the errors of `change_each`, which name broker and resource.
    """
    targets = {
        f"{name}: {resource}" if resource else name: (address, resource)
        for name, address in brokers.items()
        for resource in resources
    }

    async def delete(target: str) -> None:
        address, resource = targets[target]
        await broker_admin.delete_acl(remoting, address, subject=subject, resource=resource)

    await change_each(targets, delete)


def _subject(username: str) -> str:
    if not username:
        raise BadRequest("the name of the user is missing")
    return f"User:{username}"


def _one_of(text: str | None, *allowed: str) -> str | None:
    """Returns the text as brokers write it; None for no text. Raises BadRequest for another one."""
    if not text:
        return None
    for one in allowed:
        if one.lower() == text.lower():
            return one
    raise BadRequest(f"{text!r}: must be {' or '.join(allowed)}")


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    """Returns the texts; a single one counts as a list of it."""
    return (values,) if isinstance(values, str) else tuple(values)
