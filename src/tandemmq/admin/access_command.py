"""The commands of `tandemmq admin` about users and policies, with the names and flags of mqadmin 5.3."""

from __future__ import annotations

from typing import Annotated

import typer

from tandemmq.admin import access
from tandemmq.admin.options import Work, command
from tandemmq.admin.targets import Place
from tandemmq.protocol.bodies.access import AclInfo, EntryInfo, PolicyInfo, UserInfo

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

UserName = Annotated[str, typer.Option("-u", "--username", help="The user.")]
UserType = Annotated[str, typer.Option("-t", "--userType", help="Super or Normal.")]
Subject = Annotated[str, typer.Option("-s", "--subject", help="Whose policies.", metavar="User:NAME")]
Resources = Annotated[
    str, typer.Option("-r", "--resources", help="Separated by commas: Topic:Orders,Group:billing*.")
]
Actions = Annotated[str, typer.Option("-a", "--actions", help="Separated by commas: Pub,Sub.")]
Decision = Annotated[str, typer.Option("-d", "--decision", help="Allow or Deny.")]
SourceIps = Annotated[
    str, typer.Option("-i", "--sourceIp", help="Addresses, separated by commas; else from everywhere.")
]
FromBroker = Annotated[str, typer.Option("-f", "--fromBroker", help="The source.", metavar="HOST:PORT")]
ToBroker = Annotated[str, typer.Option("-t", "--toBroker", help="The target.", metavar="HOST:PORT")]


@command(app, "createUser")
def create_user(
    user: UserName,
    password: Annotated[str, typer.Option("-p", "--password", help="Also the secret key of its clients.")],
    place: Place,
    user_type: UserType = "",
) -> Work:
    """Create a user at one broker or every broker of a cluster."""
    info = UserInfo(username=user, password=password, user_type=user_type or None)
    return lambda tools: access.change_user(tools, info, place, is_new=True)


@command(app, "updateUser")
def update_user(
    user: UserName,
    place: Place,
    password: Annotated[str, typer.Option("-p", "--password", help="The new one.")] = "",
    user_type: UserType = "",
    status: Annotated[str, typer.Option("-s", "--userStatus", help="enable or disable.")] = "",
) -> Work:
    """Change what is named of a user."""
    if not (password or user_type or status):
        raise typer.BadParameter("name what changes: -p, -t or -s")
    info = UserInfo(
        username=user, password=password or None, user_type=user_type or None, status=status or None
    )
    return lambda tools: access.change_user(tools, info, place, is_new=False)


@command(app, "deleteUser")
def delete_user(user: UserName, place: Place) -> Work:
    """Delete a user and its policies; one that is not there is no error."""
    return lambda tools: access.remove_user(tools, user, place)


@command(app, "getUser")
def get_user(user: UserName, place: Place) -> Work:
    """A user; exit code 1 when there is none."""
    return lambda tools: access.show_user(tools, user, place)


@command(app, "listUser")
def list_users(
    place: Place, name_part: Annotated[str, typer.Option("-f", "--filter", help="A part of the names.")] = ""
) -> Work:
    """All users, or those whose names hold a part."""
    return lambda tools: access.list_users(tools, name_part, place)


@command(app, "copyUser", names=False)
def copy_users(
    source: FromBroker,
    target: ToBroker,
    names: Annotated[
        str, typer.Option("-u", "--usernames", help="Separated by commas; else all users.")
    ] = "",
) -> Work:
    """Bring users of one broker to another one: new ones are created, others changed."""
    return lambda tools: access.copy_users(tools, source, target, _parts(names))


@command(app, "createAcl")
def create_acl(
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    place: Place,
    source_ips: SourceIps = "",
) -> Work:
    """Say what a user may do with resources."""
    acl = _acl(subject, resources, actions, decision, source_ips)
    return lambda tools: access.change_acl(tools, acl, place, is_new=True)


@command(app, "updateAcl")
def update_acl(
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    place: Place,
    source_ips: SourceIps = "",
) -> Work:
    """Like createAcl, for a user that has policies."""
    acl = _acl(subject, resources, actions, decision, source_ips)
    return lambda tools: access.change_acl(tools, acl, place, is_new=False)


@command(app, "deleteAcl")
def delete_acl(subject: Subject, place: Place, resources: Resources = "") -> Work:
    """Delete what is said of resources; without one, all policies of a user."""
    return lambda tools: access.remove_acl(tools, subject, _parts(resources), place)


@command(app, "getAcl")
def get_acl(subject: Subject, place: Place) -> Work:
    """The policies of a user; exit code 1 when it has none."""
    return lambda tools: access.show_acl(tools, subject, place)


@command(app, "listAcl")
def list_acls(
    place: Place,
    subject: Annotated[str, typer.Option("-s", "--subject", help="A part of the subjects.")] = "",
    resource: Annotated[str, typer.Option("-r", "--resource", help="A part of the resources.")] = "",
) -> Work:
    """All policies, or those whose subjects and resources hold a part."""
    return lambda tools: access.list_acls(tools, subject, resource, place)


@command(app, "copyAcl", names=False)
def copy_acls(
    source: FromBroker,
    target: ToBroker,
    subjects: Annotated[
        str, typer.Option("-s", "--subjects", help="Separated by commas; else all that have policies.")
    ] = "",
) -> Work:
    """Bring policies of one broker to another one, whose entries for other resources stay."""
    return lambda tools: access.copy_acls(tools, source, target, _parts(subjects))


def _acl(subject: str, resources: str, actions: str, decision: str, source_ips: str) -> AclInfo:
    """One policy with an entry for each resource. Raises typer.BadParameter when none is named."""
    names = _parts(resources)
    if not names:
        raise typer.BadParameter("-r: name a resource, as Topic:Orders")
    entries = tuple(
        EntryInfo(resource=name, actions=_parts(actions), source_ips=_parts(source_ips), decision=decision)
        for name in names
    )
    return AclInfo(subject=subject, policies=(PolicyInfo(entries=entries),))


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
