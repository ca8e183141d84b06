"""Commands for users and policies: createUser, updateUser, deleteUser, getUser, listUser, copyUser,
createAcl, updateAcl, deleteAcl, getAcl, listAcl, copyAcl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from tandemmq.admin.options import PARTS, Text, Work, command, option, parts
from tandemmq.admin.render import CommandAnswer, Row
from tandemmq.api import broker_admin
from tandemmq.client import admin_access
from tandemmq.manage.tools import Place, Tools
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

UserName = Annotated[str, option("-u --username", "The user.")]
UserType = Annotated[str, option("-t --userType", "Super or Normal.")]
Subject = Annotated[str, option("-s --subject User:NAME", "The user of the policies.")]
RESOURCES: Final = option("-r --resources", "Resources, separated by commas: Topic:Orders,Group:billing*.")
FromBroker = Annotated[str, option("-f --fromBroker HOST:PORT", "The source.")]
ToBroker = Annotated[str, option("-t --toBroker HOST:PORT", "The target.")]

_USER_COLUMNS = "broker user password type status"
_ACL_COLUMNS = "broker subject policy resource actions source_ips decision"


# Users


@command(app, "createUser")
async def create_user(
    tools: Tools,
    user: UserName,
    password: Annotated[
        str, option("-p --password", "The password; its clients sign with it as their secret key.")
    ],
    place: Place,
    user_type: UserType = "",
) -> CommandAnswer:
    """Create a user at one broker or at every broker of a cluster."""
    info = UserInfo(username=user, password=password, user_type=user_type or None)
    created = await tools.change(await tools.brokers(place), broker_admin.create_user, info)
    return CommandAnswer.of_rows("changed", "broker user", [(at, user) for at, _ in created])


@command(app, "updateUser")
def update_user(
    user: UserName,
    place: Place,
    password: Annotated[str, option("-p --password", "The new password.")] = "",
    user_type: UserType = "",
    status: Annotated[str, option("-s --userStatus", "enable or disable.")] = "",
) -> Work:
    """Change the given fields of a user."""
    if not (password or user_type or status):
        raise typer.BadParameter("nothing to change: give -p, -t or -s")
    info = UserInfo(
        username=user, password=password or None, user_type=user_type or None, status=status or None
    )

    async def work(tools: Tools) -> CommandAnswer:
        changed = await tools.change(await tools.brokers(place), broker_admin.update_user, info)
        return CommandAnswer.of_rows("changed", "broker user", [(at, user) for at, _ in changed])

    return work


@command(app, "deleteUser")
async def delete_user(tools: Tools, user: UserName, place: Place) -> CommandAnswer:
    """Delete a user and its policies; an unknown user is not an error."""
    deleted = await tools.change(await tools.brokers(place), broker_admin.delete_user, user)
    return CommandAnswer.of_rows("deleted", "broker user", [(at, user) for at, _ in deleted])


@command(app, "getUser")
async def get_user(tools: Tools, user: UserName, place: Place) -> CommandAnswer:
    """Show a user; exit code 1 when there is none."""
    found = await tools.ask(await tools.brokers(place), broker_admin.query_user, user)
    rows = [_user_row(at, one) for at, one in found if one is not None]
    return CommandAnswer.of_rows("users", _USER_COLUMNS, rows, otherwise=f"no broker has the user {user!r}")


@command(app, "listUser")
async def list_users(
    tools: Tools,
    place: Place,
    name_part: Annotated[str, option("-f --filter", "Only names that contain this text.")] = "",
) -> CommandAnswer:
    """List all users, or those whose names contain a text."""
    found = await tools.ask(await tools.brokers(place), broker_admin.query_users, name_part or None)
    rows = [_user_row(at, user) for at, users in found for user in users]
    return CommandAnswer.of_rows("users", _USER_COLUMNS, rows)


@command(app, "copyUser", names=False)
async def copy_users(
    tools: Tools,
    source: FromBroker,
    target: ToBroker,
    names: Annotated[
        tuple[str, ...], option("-u --usernames", "Users, separated by commas.", show_default="all"), PARTS
    ] = (),
) -> CommandAnswer:
    """Copy users from one broker to another: new ones are created, existing ones changed."""
    copied = await admin_access.copy_users(tools.remoting, source, target, names)
    rows = [(source, target, user) for user in copied]
    return CommandAnswer.of_rows("copied", "source target user", rows)


def _user_row(address: str, user: UserInfo) -> Row:
    return (address, user.username, user.password, user.user_type, user.status)


# Policies


def _resources(text: str, option: str) -> tuple[str, ...]:
    names = parts(text)
    if not names:
        raise typer.BadParameter("-r must name a resource, such as Topic:Orders")
    return names


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The options of createAcl and updateAcl: one policy with an entry for each resource."""

    subject: Subject
    resources: Annotated[tuple[str, ...], RESOURCES, Text(_resources)]
    actions: Annotated[
        tuple[str, ...], option("-a --actions", "Actions, separated by commas: Pub,Sub."), PARTS
    ]
    decision: Annotated[str, option("-d --decision", "Allow or Deny.")]
    source_ips: Annotated[
        tuple[str, ...],
        option("-i --sourceIp", "Source addresses, separated by commas.", show_default="all"),
        PARTS,
    ] = ()

    def acl(self) -> AclInfo:
        """Returns the policy as brokers accept it."""
        entries = (
            EntryInfo(resource=name, actions=self.actions, source_ips=self.source_ips, decision=self.decision)
            for name in self.resources
        )
        return AclInfo(subject=self.subject, policies=(PolicyInfo(entries=tuple(entries)),))


@command(app, "createAcl")
async def create_acl(tools: Tools, policy: PolicyOptions, place: Place) -> CommandAnswer:
    """Create policies: what a user may do with resources."""
    changed = await tools.change(await tools.brokers(place), broker_admin.create_acl, policy.acl())
    return CommandAnswer.of_rows("changed", "broker subject", [(at, policy.subject) for at, _ in changed])


@command(app, "updateAcl")
async def update_acl(tools: Tools, policy: PolicyOptions, place: Place) -> CommandAnswer:
    """Change policies; like createAcl, for a user that already has policies."""
    changed = await tools.change(await tools.brokers(place), broker_admin.update_acl, policy.acl())
    return CommandAnswer.of_rows("changed", "broker subject", [(at, policy.subject) for at, _ in changed])


@command(app, "deleteAcl")
async def delete_acl(
    tools: Tools, subject: Subject, place: Place, resources: Annotated[tuple[str, ...], RESOURCES, PARTS] = ()
) -> CommandAnswer:
    """Delete a user's policies for resources; without resources, all of the user's policies."""
    brokers = await tools.brokers(place)
    named = resources or (None,)
    await admin_access.delete_policies(tools.remoting, {at: at for at in brokers}, subject, named)
    rows = [(at, subject, resource or "*") for at in brokers for resource in named]
    return CommandAnswer.of_rows("deleted", "broker subject resource", rows)


@command(app, "getAcl")
async def get_acl(tools: Tools, subject: Subject, place: Place) -> CommandAnswer:
    """Show the policies of a user; exit code 1 when it has none."""
    found = await tools.ask(await tools.brokers(place), broker_admin.query_acl, subject)
    rows = [row for at, acl in found if acl is not None for row in _acl_rows(at, acl)]
    return CommandAnswer.of_rows("policies", _ACL_COLUMNS, rows, otherwise=f"{subject} has no policies")


@command(app, "listAcl")
async def list_acls(
    tools: Tools,
    place: Place,
    subject: Annotated[str, option("-s --subject", "Only subjects that contain this text.")] = "",
    resource: Annotated[str, option("-r --resource", "Only resources that contain this text.")] = "",
) -> CommandAnswer:
    """List all policies, or those whose subjects and resources contain a text."""
    places = await tools.brokers(place)
    found = await tools.ask(places, broker_admin.query_acls, subject or None, resource or None)
    rows = [row for at, acls in found for acl in acls for row in _acl_rows(at, acl)]
    return CommandAnswer.of_rows("policies", _ACL_COLUMNS, rows)


@command(app, "copyAcl", names=False)
async def copy_acls(
    tools: Tools,
    source: FromBroker,
    target: ToBroker,
    subjects: Annotated[
        tuple[str, ...], option("-s --subjects", "Subjects, separated by commas.", show_default="all"), PARTS
    ] = (),
) -> CommandAnswer:
    """Copy policies from one broker to another, which keeps its entries for other resources."""
    copied = await admin_access.copy_policies(tools.remoting, source, target, subjects)
    rows = [(source, target, subject) for subject in copied]
    return CommandAnswer.of_rows("copied", "source target subject", rows)


def _acl_rows(address: str, acl: AclInfo) -> list[Row]:
    return [
        (
            *(address, acl.subject, policy.policy_type, entry.resource),
            *(",".join(entry.actions), ",".join(entry.source_ips), entry.decision),
        )
        for policy in acl.policies
        for entry in policy.entries
    ]
