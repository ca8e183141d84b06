"""The commands of `tandemmq admin` about users and policies, with the names and flags of mqadmin 5.3."""

from __future__ import annotations

from typing import Annotated

import typer

from tandemmq.admin import access
from tandemmq.admin.options import Address, AsJson, Cluster, NameServers, demand_place, run
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


@app.command("createUser")
def create_user(
    user: UserName,
    password: Annotated[str, typer.Option("-p", "--password", help="Also the secret key of its clients.")],
    user_type: UserType = "",
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """Create a user at one broker or every broker of a cluster."""
    demand_place(broker, cluster)
    info = UserInfo(username=user, password=password, user_type=user_type or None)
    run(
        namesrv,
        lambda tools: access.change_user(tools, info, broker, cluster, is_new=True),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("updateUser")
def update_user(
    user: UserName,
    password: Annotated[str, typer.Option("-p", "--password", help="The new one.")] = "",
    user_type: UserType = "",
    status: Annotated[str, typer.Option("-s", "--userStatus", help="enable or disable.")] = "",
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """Change what is named of a user."""
    demand_place(broker, cluster)
    if not (password or user_type or status):
        raise typer.BadParameter("name what changes: -p, -t or -s")
    info = UserInfo(
        username=user, password=password or None, user_type=user_type or None, status=status or None
    )
    run(
        namesrv,
        lambda tools: access.change_user(tools, info, broker, cluster, is_new=False),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("deleteUser")
def delete_user(
    user: UserName,
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """Delete a user and its policies; one that is not there is no error."""
    demand_place(broker, cluster)
    run(
        namesrv,
        lambda tools: access.remove_user(tools, user, broker, cluster),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("getUser")
def get_user(
    user: UserName,
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """A user; exit code 1 when there is none."""
    demand_place(broker, cluster)
    run(
        namesrv,
        lambda tools: access.show_user(tools, user, broker, cluster),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("listUser")
def list_users(
    name_part: Annotated[str, typer.Option("-f", "--filter", help="A part of the names.")] = "",
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """All users, or those whose names hold a part."""
    demand_place(broker, cluster)
    run(
        namesrv,
        lambda tools: access.list_users(tools, name_part, broker, cluster),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("copyUser")
def copy_users(
    source: FromBroker,
    target: ToBroker,
    names: Annotated[
        str, typer.Option("-u", "--usernames", help="Separated by commas; else all users.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Bring users of one broker to another one: new ones are created, others changed."""
    run(
        "",
        lambda tools: access.copy_users(tools, source, target, _parts(names)),
        as_json=as_json,
        needs_names=False,
    )


@app.command("createAcl")
def create_acl(
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ips: SourceIps = "",
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """Say what a user may do with resources."""
    _change_acl(
        _acl(subject, resources, actions, decision, source_ips),
        namesrv,
        broker,
        cluster,
        is_new=True,
        as_json=as_json,
    )


@app.command("updateAcl")
def update_acl(
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ips: SourceIps = "",
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """Like createAcl, for a user that has policies."""
    _change_acl(
        _acl(subject, resources, actions, decision, source_ips),
        namesrv,
        broker,
        cluster,
        is_new=False,
        as_json=as_json,
    )


@app.command("deleteAcl")
def delete_acl(
    subject: Subject,
    resources: Resources = "",
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """Delete what is said of resources; without one, all policies of a user."""
    demand_place(broker, cluster)
    run(
        namesrv,
        lambda tools: access.remove_acl(tools, subject, _parts(resources), broker, cluster),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("getAcl")
def get_acl(
    subject: Subject,
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """The policies of a user; exit code 1 when it has none."""
    demand_place(broker, cluster)
    run(
        namesrv,
        lambda tools: access.show_acl(tools, subject, broker, cluster),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("listAcl")
def list_acls(
    subject: Annotated[str, typer.Option("-s", "--subject", help="A part of the subjects.")] = "",
    resource: Annotated[str, typer.Option("-r", "--resource", help="A part of the resources.")] = "",
    namesrv: NameServers = "",
    broker: Address = "",
    cluster: Cluster = "",
    as_json: AsJson = False,
) -> None:
    """All policies, or those whose subjects and resources hold a part."""
    demand_place(broker, cluster)
    run(
        namesrv,
        lambda tools: access.list_acls(tools, subject, resource, broker, cluster),
        as_json=as_json,
        needs_names=not broker,
    )


@app.command("copyAcl")
def copy_acls(
    source: FromBroker,
    target: ToBroker,
    subjects: Annotated[
        str, typer.Option("-s", "--subjects", help="Separated by commas; else all that have policies.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Bring policies of one broker to another one, whose entries for other resources stay."""
    run(
        "",
        lambda tools: access.copy_acls(tools, source, target, _parts(subjects)),
        as_json=as_json,
        needs_names=False,
    )


def _change_acl(
    acl: AclInfo, namesrv: str, broker: str, cluster: str, *, is_new: bool, as_json: bool
) -> None:
    demand_place(broker, cluster)
    run(
        namesrv,
        lambda tools: access.change_acl(tools, acl, broker, cluster, is_new=is_new),
        as_json=as_json,
        needs_names=not broker,
    )


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
