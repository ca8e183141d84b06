"""Commands for controllers and their decisions about elected groups: controllers, handover,
getControllerMetaData, getSyncStateSet, electMaster, cleanBrokerMetadata, getBrokerEpoch, getControllerConfig,
updateControllerConfig.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tandemmq.admin.options import (
    AsJson,
    Cluster,
    Interval,
    NameServers,
    NewValue,
    SettingKey,
    Work,
    command,
    demand_place,
    run,
)
from tandemmq.admin.render import CommandAnswer, Table
from tandemmq.admin.targets import Place, Target, Tools, find_targets
from tandemmq.api import controller
from tandemmq.protocol.properties_file import parse_properties
from tandemmq.protocol.requests.controller import CleanBrokerDataRequest, ElectMasterRequest
from tandemmq.runtime.machine import LoopClock

app = typer.Typer()

ControllerAddress = Annotated[
    str, typer.Option("-a", "--controllerAddress", help="Address of any controller.", metavar="HOST:PORT")
]
ControllerAddresses = Annotated[
    str,
    typer.Option("-a", "--controllerAddress", help="Controllers, separated by ;", metavar="HOST:PORT"),
]
GroupOfBrokers = Annotated[
    str, typer.Option("-b", "--brokerName", help="The broker group's name.", metavar="NAME")
]
GroupOrBroker = Annotated[
    str,
    typer.Option(
        "-b", "--brokerName", help="The broker group's name, or the address of one broker.", metavar="NAME"
    ),
]
OneGroup = Annotated[str, typer.Option("-bn", "--brokerName", help="The broker group's name.")]


@command(app, "controllers", names=False)
def controllers(
    address: ControllerAddress,
    add: Annotated[
        str,
        typer.Option(
            "--add", help="Add this controller, which runs with controllerJoin=true.", metavar="ID-HOST:PORT"
        ),
    ] = "",
    remove: Annotated[str, typer.Option("--remove", help="Remove this controller.", metavar="ID")] = "",
    hand_over: Annotated[
        str, typer.Option("--hand-over", help="Make this controller the leader.", metavar="ID")
    ] = "",
) -> Work:
    """List the controllers of a group; add or remove one, or make one the leader."""
    if sum(map(bool, (add, remove, hand_over))) > 1:
        raise typer.BadParameter("only one of --add, --remove and --hand-over is allowed")
    name, dash, new_address = add.partition("-")
    if add and not (name and dash):
        raise typer.BadParameter(f"--add {add}: must be ID-HOST:PORT")
    action = "add" if add else "remove" if remove else "handOver" if hand_over else "list"
    name = name or remove or hand_over
    return lambda tools: change_controllers(tools, address, action, name, new_address)


@command(app, "handover", names=False)
def handover(
    address: ControllerAddress,
    name: GroupOfBrokers,
    target: Annotated[
        int | None,
        typer.Option(
            "--to", help="The broker id of the new master.", show_default="any replica in sync", metavar="ID"
        ),
    ] = None,
) -> Work:
    """Make another broker of an elected group its master; no send fails."""
    return lambda tools: hand_over(tools, address, name, target)


@command(app, "getControllerMetaData", names=False)
async def get_controller_metadata(tools: Tools, address: ControllerAddress) -> CommandAnswer:
    """Show the group and the leader of a controller."""
    found = await controller.query_metadata(tools.remoting, address)
    facts = [("group", found.group), ("leader", found.leader_id), ("leader address", found.leader_address)]
    facts += [("peer", peer) for peer in (found.peers or "").split(";") if peer]
    return CommandAnswer([Table("controller", ("fact", "value"), [*facts])])


@app.command("getSyncStateSet")
def get_sync_state_set(
    address: ControllerAddress,
    name: GroupOfBrokers = "",
    cluster: Cluster = "",
    namesrv: NameServers = "",
    interval: Interval = 0.0,
    as_json: AsJson = False,
) -> None:
    """Show the replicas in sync of a group of brokers; exit code 1 when the group is unknown."""
    demand_place(name, cluster)
    run(
        namesrv,
        lambda tools: show_sync_sets(tools, address, name, cluster),
        as_json=as_json,
        needs_names=not name,
        interval_s=interval,
    )


@command(app, "electMaster", names=False)
async def elect_master(
    tools: Tools,
    address: ControllerAddress,
    broker_id: Annotated[
        int, typer.Option("-b", "--brokerId", help="The broker id of the new master.", min=1)
    ],
    name: OneGroup,
    cluster: Cluster,
) -> CommandAnswer:
    """Make a broker of a group its master; sends fail during the change (`handover` avoids that)."""
    leader = await controller.find_leader(tools.remoting, address)
    header = ElectMasterRequest(
        cluster_name=cluster, broker_name=name, broker_id=broker_id, is_designated=True
    )
    facts = await controller.elect_master(tools.remoting, leader, header, LoopClock().now_ms())
    table = Table("masters", ("broker", "id", "address", "master_epoch", "in_sync", "set_epoch"))
    members = " ".join(map(str, facts.sync_set))
    table.rows.append(
        (name, facts.master_id, facts.master_address, facts.master_epoch, members, facts.set_epoch)
    )
    is_wanted = facts.master_id == broker_id
    notes = [] if is_wanted else [f"broker {facts.master_id} remains the master of {name}"]
    return CommandAnswer([table], notes, exit_code=0 if is_wanted else 1)


@command(app, "cleanBrokerMetadata", names=False)
def clean_broker_metadata(
    address: ControllerAddress,
    name: OneGroup,
    cluster: Cluster = "",
    ids: Annotated[
        str,
        typer.Option(
            "-b",
            "--brokerControllerIdsToClean",
            help="Only the brokers with these ids, such as 1;2.",
            show_default="all of the group",
        ),
    ] = "",
    is_forced: Annotated[
        bool, typer.Option("-l", "--cleanLivingBroker", help="Include slaves that are alive.")
    ] = False,
    forgets_living_master: Annotated[
        bool,
        typer.Option(
            "--living-master",
            help="Include a master that is alive; the group then has no failover until its brokers restart.",
        ),
    ] = False,
) -> Work:
    """Make the controllers forget brokers that will not come back."""
    if not all(one.isdecimal() for one in ids.split(";") if ids):
        raise typer.BadParameter(f"-b {ids}: must be broker ids, separated by ;")
    is_forced = is_forced or forgets_living_master
    if not ids and not is_forced and not cluster:
        raise typer.BadParameter("name the brokers (-b 1;2), or the group's cluster (-c)")
    header = CleanBrokerDataRequest(
        cluster_name=cluster or None,
        broker_name=name,
        ids=ids or None,
        is_forced=is_forced,
        forgets_living_master=forgets_living_master or None,
    )
    return lambda tools: clean(tools, address, header)


@app.command("getBrokerEpoch")
def get_broker_epoch(
    name: GroupOrBroker = "",
    cluster: Cluster = "",
    namesrv: NameServers = "",
    interval: Interval = 0.0,
    as_json: AsJson = False,
) -> None:
    """Show the terms of the log and the byte range of each, as each broker reports them."""
    demand_place(name, cluster)
    is_address = ":" in name
    run(
        namesrv,
        lambda tools: show_epochs(tools, "" if is_address else name, cluster, name if is_address else ""),
        as_json=as_json,
        needs_names=not is_address,
        interval_s=interval,
    )


@command(app, "getControllerConfig", names=False)
def get_controller_config(addresses: ControllerAddresses) -> Work:
    """Show the settings of controllers."""
    named = _split(addresses)
    return lambda tools: show_config(tools, named)


@command(app, "updateControllerConfig", names=False)
def update_controller_config(
    addresses: ControllerAddresses,
    key: SettingKey,
    value: NewValue,
) -> Work:
    """Change a setting of running controllers; name all of them."""
    named = _split(addresses)
    return lambda tools: change_config(tools, named, key, value)


def _split(addresses: str) -> list[str]:
    """Returns the addresses. Raises typer.BadParameter when there is none."""
    named = [part.strip() for part in addresses.split(";") if part.strip()]
    if not named:
        raise typer.BadParameter(f"-a {addresses}: name at least one controller")
    return named


# Implementation of the commands


async def change_controllers(
    tools: Tools, address: str, action: str, name: str, new_address: str
) -> CommandAnswer:
    """Adds, removes or promotes a controller; returns the group's controllers afterwards."""
    leader = await controller.find_leader(tools.remoting, address)
    members = await controller.change_controllers(tools.remoting, leader, action, name, new_address)
    table = Table("controllers", ("name", "address", "voter", "leader"))
    table.rows += [(one.name, one.address, one.is_voter, one.is_leader) for one in members]
    return CommandAnswer([table])


async def hand_over(tools: Tools, address: str, name: str, target: int | None) -> CommandAnswer:
    """Hands the master role of an elected group over to another member."""
    groups = await controller.hand_over_group(tools.remoting, address, name, target, clock=LoopClock())
    table = Table("masters", ("when", "broker", "id", "address", "master_epoch", "in_sync"))
    table.rows += [
        (
            when,
            name,
            group.master_id,
            group.master_address,
            group.master_epoch,
            " ".join(str(one.broker_id) for one in group.in_sync),
        )
        for when, group in zip(("before", "after"), groups, strict=True)
    ]
    return CommandAnswer([table])


async def show_sync_sets(tools: Tools, address: str, name: str, cluster: str) -> CommandAnswer:
    """Shows the SyncStateSet of one broker group or of every group of a cluster, the ids of group and term,
    and contradicting reports of brokers; exit code 1 when the controllers know none of the groups.
    """
    leader = await controller.find_leader(tools.remoting, address)
    names = (
        [name]
        if name
        else sorted({one.broker_name for one in await find_targets(tools, Place(cluster=cluster))})
    )
    groups = await controller.read_sync_states(tools.remoting, leader, names)
    table = Table("replicas", ("broker", "id", "address", "in_sync", "alive", "master", "master_epoch"))
    for group_name, group in sorted(groups.items()):
        for is_in_sync, members in ((True, group.in_sync), (False, group.not_in_sync)):
            for one in members:
                is_master = one.broker_id == group.master_id
                row = (group_name, one.broker_id, one.address, is_in_sync, one.is_alive, is_master)
                table.rows.append((*row, group.master_epoch))
    notes = [] if table.rows else [f"the controllers know none of {', '.join(names)}"]
    tables = [table]
    if any(group.group_id for group in groups.values()):
        histories = Table("histories", ("broker", "group_id", "term_id"))
        for group_name, group in sorted(groups.items()):
            histories.rows.append((group_name, group.group_id or "", group.term_id or ""))
        tables.append(histories)
    notes += [
        f"{name}: {group.contradiction}" for name, group in sorted(groups.items()) if group.contradiction
    ]
    return CommandAnswer(tables, notes, exit_code=0 if table.rows else 1)


async def clean(tools: Tools, address: str, header: CleanBrokerDataRequest) -> CommandAnswer:
    """Makes the controllers forget brokers of a group, or the whole group."""
    leader = await controller.find_leader(tools.remoting, address)
    await controller.clean_brokers(tools.remoting, leader, header, LoopClock().now_ms())
    table = Table("forgotten", ("controller", "broker", "ids"))
    table.rows.append((leader, header.broker_name, (header.ids or "all").replace(";", " ")))
    return CommandAnswer([table])


async def show_config(tools: Tools, addresses: list[str]) -> CommandAnswer:
    """Shows the settings of each named controller."""
    table = Table("settings", ("controller", "key", "value"))
    for address in addresses:
        text = await controller.query_config(tools.remoting, address)
        settings = parse_properties(text.encode(), address)
        table.rows += [(address, key, setting.text) for key, setting in sorted(settings.items())]
    return CommandAnswer([table])


async def change_config(tools: Tools, addresses: list[str], key: str, value: str) -> CommandAnswer:
    """Changes a setting of each named controller: controllers do not forward it to each other."""
    table = Table("changed", ("controller", "key", "value", "note"))
    for address in addresses:
        note = await controller.change_config(tools.remoting, address, key, value)
        table.rows.append((address, key, value, note or None))
    return CommandAnswer([table])


async def show_epochs(tools: Tools, name: str, cluster: str, address: str) -> CommandAnswer:
    """Shows the byte range of each term, according to each broker of a group or a cluster."""
    if address:
        targets = [Target("", "", None, address)]
    else:
        every = await find_targets(tools, Place(cluster=cluster))
        targets = [one for one in every if name in ("", one.broker_name)]
    table = Table("terms", ("broker", "address", "id", "epoch", "start_offset", "end_offset"))
    for target in targets:
        answer = await controller.query_epochs(tools.remoting, target.address)
        place = (answer.broker_name, target.address, answer.broker_id)
        ends = [min(one.end, answer.max_log_offset) for one in answer.epochs]
        table.rows += [
            (*place, one.epoch, one.start, end) for one, end in zip(answer.epochs, ends, strict=True)
        ]
    return CommandAnswer.of_found(table, otherwise=f"no broker of {name or cluster or 'all'} has a term")
