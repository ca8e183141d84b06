"""Commands for users and policies: createUser, updateUser, deleteUser, getUser, listUser, copyUser,
createAcl, updateAcl, deleteAcl, getAcl, listAcl, copyAcl.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tandemmq.admin.options import Work, command
from tandemmq.admin.render import CommandAnswer, Row, Table
from tandemmq.admin.targets import Place, Tools, find_targets
from tandemmq.api import broker_admin
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

UserName = Annotated[str, typer.Option("-u", "--username", help="The user.")]
UserType = Annotated[str, typer.Option("-t", "--userType", help="Super or Normal.")]
Subject = Annotated[
    str, typer.Option("-s", "--subject", help="The user of the policies.", metavar="User:NAME")
]
Resources = Annotated[
    str,
    typer.Option("-r", "--resources", help="Resources, separated by commas: Topic:Orders,Group:billing*."),
]
Actions = Annotated[str, typer.Option("-a", "--actions", help="Actions, separated by commas: Pub,Sub.")]
Decision = Annotated[str, typer.Option("-d", "--decision", help="Allow or Deny.")]
SourceIps = Annotated[
    str, typer.Option("-i", "--sourceIp", help="Source addresses, separated by commas.", show_default="all")
]
FromBroker = Annotated[str, typer.Option("-f", "--fromBroker", help="The source.", metavar="HOST:PORT")]
ToBroker = Annotated[str, typer.Option("-t", "--toBroker", help="The target.", metavar="HOST:PORT")]


@command(app, "createUser")
def create_user(
    user: UserName,
    password: Annotated[
        str,
        typer.Option("-p", "--password", help="The password; its clients sign with it as their secret key."),
    ],
    place: Place,
    user_type: UserType = "",
) -> Work:
    """Create a user at one broker or at every broker of a cluster."""
    info = UserInfo(username=user, password=password, user_type=user_type or None)
    return lambda tools: change_user(tools, info, place, is_new=True)


@command(app, "updateUser")
def update_user(
    user: UserName,
    place: Place,
    password: Annotated[str, typer.Option("-p", "--password", help="The new password.")] = "",
    user_type: UserType = "",
    status: Annotated[str, typer.Option("-s", "--userStatus", help="enable or disable.")] = "",
) -> Work:
    """Change the given fields of a user."""
    if not (password or user_type or status):
        raise typer.BadParameter("nothing to change: give -p, -t or -s")
    info = UserInfo(
        username=user, password=password or None, user_type=user_type or None, status=status or None
    )
    return lambda tools: change_user(tools, info, place, is_new=False)


@command(app, "deleteUser")
async def delete_user(tools: Tools, user: UserName, place: Place) -> CommandAnswer:
    """Delete a user and its policies; an unknown user is not an error."""
    table = Table("deleted", ("broker", "user"))
    for target in await find_targets(tools, place):
        await broker_admin.delete_user(tools.remoting, target.address, user)
        table.rows.append((target.address, user))
    return CommandAnswer([table])


@command(app, "getUser")
def get_user(user: UserName, place: Place) -> Work:
    """Show a user; exit code 1 when there is none."""
    return lambda tools: show_user(tools, user, place)


@command(app, "listUser")
async def list_users(
    tools: Tools,
    place: Place,
    name_part: Annotated[str, typer.Option("-f", "--filter", help="Only names that contain this text.")] = "",
) -> CommandAnswer:
    """List all users, or those whose names contain a text."""
    table = Table("users", _USER_COLUMNS)
    for target in await find_targets(tools, place):
        users = await broker_admin.query_users(tools.remoting, target.address, name_part or None)
        table.rows += [_user_row(target.address, user) for user in users]
    return CommandAnswer([table])


@command(app, "copyUser", names=False)
def copy_users(
    source: FromBroker,
    target: ToBroker,
    names: Annotated[
        str, typer.Option("-u", "--usernames", help="Users, separated by commas.", show_default="all")
    ] = "",
) -> Work:
    """Copy users from one broker to another: new ones are created, existing ones changed."""
    return lambda tools: transfer_users(tools, source, target, _parts(names))


@command(app, "createAcl")
def create_acl(
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    place: Place,
    source_ips: SourceIps = "",
) -> Work:
    """Create policies: what a user may do with resources."""
    acl = _acl(subject, resources, actions, decision, source_ips)
    return lambda tools: change_acl(tools, acl, place, is_new=True)


@command(app, "updateAcl")
def update_acl(
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    place: Place,
    source_ips: SourceIps = "",
) -> Work:
    """Change policies; like createAcl, for a user that already has policies."""
    acl = _acl(subject, resources, actions, decision, source_ips)
    return lambda tools: change_acl(tools, acl, place, is_new=False)


@command(app, "deleteAcl")
def delete_acl(subject: Subject, place: Place, resources: Resources = "") -> Work:
    """Delete a user's policies for resources; without resources, all of the user's policies."""
    return lambda tools: remove_acl(tools, subject, _parts(resources), place)


@command(app, "getAcl")
async def get_acl(tools: Tools, subject: Subject, place: Place) -> CommandAnswer:
    """Show the policies of a user; exit code 1 when it has none."""
    table = Table("policies", _ACL_COLUMNS)
    for target in await find_targets(tools, place):
        acl = await broker_admin.query_acl(tools.remoting, target.address, subject)
        if acl is not None:
            table.rows += _acl_rows(target.address, acl)
    return CommandAnswer.of_found(table, otherwise=f"{subject} has no policies")


@command(app, "listAcl")
async def list_acls(
    tools: Tools,
    place: Place,
    subject: Annotated[
        str, typer.Option("-s", "--subject", help="Only subjects that contain this text.")
    ] = "",
    resource: Annotated[
        str, typer.Option("-r", "--resource", help="Only resources that contain this text.")
    ] = "",
) -> CommandAnswer:
    """List all policies, or those whose subjects and resources contain a text."""
    table = Table("policies", _ACL_COLUMNS)
    for target in await find_targets(tools, place):
        acls = await broker_admin.query_acls(
            tools.remoting, target.address, subject or None, resource or None
        )
        for acl in acls:
            table.rows += _acl_rows(target.address, acl)
    return CommandAnswer([table])


@command(app, "copyAcl", names=False)
def copy_acls(
    source: FromBroker,
    target: ToBroker,
    subjects: Annotated[
        str, typer.Option("-s", "--subjects", help="Subjects, separated by commas.", show_default="all")
    ] = "",
) -> Work:
    """Copy policies from one broker to another, which keeps its entries for other resources."""
    return lambda tools: transfer_acls(tools, source, target, _parts(subjects))


def _acl(subject: str, resources: str, actions: str, decision: str, source_ips: str) -> AclInfo:
    """Returns one policy with an entry for each resource. Raises typer.BadParameter when no resource is
    named.
    """
    names = _parts(resources)
    if not names:
        raise typer.BadParameter("-r must name a resource, such as Topic:Orders")
    entries = tuple(
        EntryInfo(resource=name, actions=_parts(actions), source_ips=_parts(source_ips), decision=decision)
        for name in names
    )
    return AclInfo(subject=subject, policies=(PolicyInfo(entries=entries),))


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_USER_COLUMNS = ("broker", "user", "password", "type", "status")
_ACL_COLUMNS = ("broker", "subject", "policy", "resource", "actions", "source_ips", "decision")


# Implementation of the commands


async def change_user(tools: Tools, user: UserInfo, place: Place, *, is_new: bool) -> CommandAnswer:
    """Creates the user, or changes its given fields, at the broker or at every broker of the cluster."""
    put = broker_admin.create_user if is_new else broker_admin.update_user
    table = Table("changed", ("broker", "user"))
    for target in await find_targets(tools, place):
        await put(tools.remoting, target.address, user)
        table.rows.append((target.address, user.username))
    return CommandAnswer([table])


async def show_user(tools: Tools, name: str, place: Place) -> CommandAnswer:
    """Shows one user at each broker; exit code 1 when no broker knows it."""
    table = Table("users", _USER_COLUMNS)
    for target in await find_targets(tools, place):
        user = await broker_admin.query_user(tools.remoting, target.address, name)
        if user is not None:
            table.rows.append(_user_row(target.address, user))
    return CommandAnswer.of_found(table, otherwise=f"no broker has the user {name!r}")


async def transfer_users(tools: Tools, source: str, target: str, names: Sequence[str]) -> CommandAnswer:
    """Copies the named users, or all, from one broker to another; the target is changed only if all were
    found.

    Raises:  ConfigError for a user that the source does not know, or whose password it does not show.
    """
    users = await broker_admin.query_users(tools.remoting, source)
    known = {user.username: user for user in users if user.username}
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"{source} has no user {', '.join(missing)}; its users: {', '.join(known) or 'none'}"
        )
    chosen = [known[name] for name in names or known]
    hidden = [str(user.username) for user in chosen if not user.password]
    if hidden:
        raise ConfigError(
            f"{source} does not show the password of {', '.join(hidden)}: sign as one of its super users"
        )
    table = Table("copied", ("source", "target", "user"))
    for user in chosen:
        held = await broker_admin.query_user(tools.remoting, target, str(user.username))
        put = broker_admin.create_user if held is None else broker_admin.update_user
        await put(tools.remoting, target, user)
        table.rows.append((source, target, user.username))
    return CommandAnswer([table])


async def change_acl(tools: Tools, acl: AclInfo, place: Place, *, is_new: bool) -> CommandAnswer:
    """Adds entries to a subject's policies, at the broker or at every broker of the cluster; an entry for the
    same resource is replaced.
    """
    put = broker_admin.create_acl if is_new else broker_admin.update_acl
    table = Table("changed", ("broker", "subject"))
    for target in await find_targets(tools, place):
        await put(tools.remoting, target.address, acl)
        table.rows.append((target.address, acl.subject))
    return CommandAnswer([table])


async def remove_acl(tools: Tools, subject: str, resources: Sequence[str], place: Place) -> CommandAnswer:
    """Deletes the entries for these resources; without resources, all policies of the subject."""
    table = Table("deleted", ("broker", "subject", "resource"))
    for target in await find_targets(tools, place):
        for resource in resources or ("",):
            await broker_admin.delete_acl(
                tools.remoting, target.address, subject=subject, resource=resource or None
            )
            table.rows.append((target.address, subject, resource or "*"))
    return CommandAnswer([table])


async def transfer_acls(tools: Tools, source: str, target: str, subjects: Sequence[str]) -> CommandAnswer:
    """Copies the policies of these subjects, or of all, from one broker to another, which keeps its entries
    for other resources.

    Raises:  ConfigError for a subject without policies at the source.
    """
    known = {acl.subject: acl for acl in await broker_admin.query_acls(tools.remoting, source)}
    missing = [subject for subject in subjects if subject not in known]
    if missing:
        raise ConfigError(f"{source} has no policies of {', '.join(missing)}")
    table = Table("copied", ("source", "target", "subject"))
    for subject in subjects or known:
        acl = known[subject]
        held = await broker_admin.query_acl(tools.remoting, target, str(subject))
        put = broker_admin.create_acl if held is None else broker_admin.update_acl
        await put(tools.remoting, target, acl)
        table.rows.append((source, target, subject))
    return CommandAnswer([table])


def _user_row(address: str, user: UserInfo) -> Row:
    return (address, user.username, user.password, user.user_type, user.status)


def _acl_rows(address: str, acl: AclInfo) -> list[Row]:
    return [
        (
            address,
            acl.subject,
            policy.policy_type,
            entry.resource,
            ",".join(entry.actions),
            ",".join(entry.source_ips),
            entry.decision,
        )
        for policy in acl.policies
        for entry in policy.entries
    ]
