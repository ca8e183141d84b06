"""Commands for controllers and their decisions about elected groups: controllers, handover,
getControllerMetaData, getSyncStateSet, electMaster, cleanBrokerMetadata, getBrokerEpoch, getControllerConfig,
updateControllerConfig.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tandemmq.admin import options as opt
from tandemmq.admin.options import option
from tandemmq.admin.render import CommandAnswer, Table
from tandemmq.api import controller
from tandemmq.manage.tools import Place, Tools, find_targets
from tandemmq.protocol.requests.controller import CleanBrokerDataRequest, ElectMasterRequest
from tandemmq.runtime.machine import LoopClock

app = typer.Typer()

ControllerAddress = Annotated[str, option("-a --controllerAddress HOST:PORT", "Address of any controller.")]


def _split(addresses: str, option: str) -> list[str]:
    named = [part.strip() for part in addresses.split(";") if part.strip()]
    if not named:
        raise typer.BadParameter(f"{option} {addresses}: name at least one controller")
    return named


ControllerAddresses = Annotated[
    list[str], option("-a --controllerAddress HOST:PORT", "Controllers, separated by ;"), opt.Text(_split)
]
GroupOfBrokers = Annotated[str, option("-b --brokerName NAME", "The broker group's name.")]
GroupOrBroker = Annotated[
    str, option("-b --brokerName NAME", "The broker group's name, or the address of one broker.")
]
OneGroup = Annotated[str, option("-bn --brokerName", "The broker group's name.")]


@opt.command(app, "controllers", names=False)
def controllers(
    address: ControllerAddress,
    add: Annotated[
        str, option("--add ID-HOST:PORT", "Add this controller, which runs with controllerJoin=true.")
    ] = "",
    remove: Annotated[str, option("--remove ID", "Remove this controller.")] = "",
    hand_over: Annotated[str, option("--hand-over ID", "Make this controller the leader.")] = "",
) -> opt.Work:
    """List the controllers of a group; add or remove one, or make one the leader."""
    if sum(map(bool, (add, remove, hand_over))) > 1:
        raise typer.BadParameter("only one of --add, --remove and --hand-over is allowed")
    name, dash, new_address = add.partition("-")
    if add and not (name and dash):
        raise typer.BadParameter(f"--add {add}: must be ID-HOST:PORT")
    action = "add" if add else "remove" if remove else "handOver" if hand_over else "list"
    name = name or remove or hand_over

    async def work(tools: Tools) -> CommandAnswer:
        leader = await controller.find_leader(tools.remoting, address)
        members = await controller.change_controllers(tools.remoting, leader, action, name, new_address)
        rows = [(one.name, one.address, one.is_voter, one.is_leader) for one in members]
        return CommandAnswer.of_rows("controllers", "name address voter leader", rows)

    return work


@opt.command(app, "handover", names=False)
async def handover(
    tools: Tools,
    address: ControllerAddress,
    name: GroupOfBrokers,
    target: Annotated[
        int | None, option("--to ID", "The broker id of the new master.", show_default="any replica in sync")
    ] = None,
) -> CommandAnswer:
    """Make another broker of an elected group its master; no send fails."""
    groups = await controller.hand_over_group(tools.remoting, address, name, target, clock=LoopClock())
    columns = "when broker id address master_epoch in_sync"
    rows = [
        (
            *(when, name, group.master_id, group.master_address, group.master_epoch),
            " ".join(str(one.broker_id) for one in group.in_sync),
        )
        for when, group in zip(("before", "after"), groups, strict=True)
    ]
    return CommandAnswer.of_rows("masters", columns, rows)


@opt.command(app, "getControllerMetaData", names=False)
async def get_controller_metadata(tools: Tools, address: ControllerAddress) -> CommandAnswer:
    """Show the group and the leader of a controller."""
    found = await controller.query_metadata(tools.remoting, address)
    facts = [("group", found.group), ("leader", found.leader_id), ("leader address", found.leader_address)]
    facts += [("peer", peer) for peer in (found.peers or "").split(";") if peer]
    return CommandAnswer.of_rows("controller", "fact value", facts)


@opt.command(app, "getSyncStateSet", interval_s=0.0)
def get_sync_state_set(
    address: ControllerAddress, broker: GroupOfBrokers = "", cluster: opt.Cluster = ""
) -> opt.Work:
    """Show the replicas in sync of a group of brokers; exit code 1 when the group is unknown."""
    opt.demand_place(broker, cluster)
    return lambda tools: show_sync_sets(tools, address, broker, cluster)


@opt.command(app, "electMaster", names=False)
async def elect_master(
    tools: Tools,
    address: ControllerAddress,
    broker_id: Annotated[int, option("-b --brokerId", "The broker id of the new master.", min=1)],
    name: OneGroup,
    cluster: opt.Cluster,
) -> CommandAnswer:
    """Make a broker of a group its master; sends fail during the change (`handover` avoids that)."""
    leader = await controller.find_leader(tools.remoting, address)
    header = ElectMasterRequest(
        cluster_name=cluster, broker_name=name, broker_id=broker_id, is_designated=True
    )
    facts = await controller.elect_master(tools.remoting, leader, header, LoopClock().now_ms())
    columns = ("broker", "id", "address", "master_epoch", "in_sync", "set_epoch")
    members = " ".join(map(str, facts.sync_set))
    row = (name, facts.master_id, facts.master_address, facts.master_epoch, members, facts.set_epoch)
    is_wanted = facts.master_id == broker_id
    notes = [] if is_wanted else [f"broker {facts.master_id} remains the master of {name}"]
    return CommandAnswer([Table("masters", columns, [row])], notes, exit_code=0 if is_wanted else 1)


@opt.command(app, "cleanBrokerMetadata", names=False)
def clean_broker_metadata(
    address: ControllerAddress,
    name: OneGroup,
    cluster: opt.Cluster = "",
    ids: Annotated[
        str,
        option(
            "-b --brokerControllerIdsToClean",
            "Only the brokers with these ids, such as 1;2.",
            show_default="all of the group",
        ),
    ] = "",
    is_forced: Annotated[bool, option("-l --cleanLivingBroker", "Include slaves that are alive.")] = False,
    forgets_living_master: Annotated[
        bool,
        option(
            "--living-master",
            "Include a master that is alive; the group then has no failover until its brokers restart.",
        ),
    ] = False,
) -> opt.Work:
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

    async def work(tools: Tools) -> CommandAnswer:
        leader = await controller.find_leader(tools.remoting, address)
        await controller.clean_brokers(tools.remoting, leader, header, LoopClock().now_ms())
        row = (leader, name, (ids or "all").replace(";", " "))
        return CommandAnswer.of_rows("forgotten", "controller broker ids", [row])

    return work


@opt.command(app, "getControllerConfig", names=False)
async def get_controller_config(tools: Tools, addresses: ControllerAddresses) -> CommandAnswer:
    """Show the settings of controllers."""
    return await opt.show_settings(tools, "controller", addresses, controller.query_config)


@opt.command(app, "updateControllerConfig", names=False)
async def update_controller_config(
    tools: Tools, addresses: ControllerAddresses, key: opt.SettingKey, value: opt.NewValue
) -> CommandAnswer:
    """Change a setting of running controllers; name all of them."""
    # Controllers do not forward a change to each other.
    notes = await tools.change(addresses, controller.change_config, key, value)
    return opt.settings_changed("controller", key, value, notes)


@app.command("getBrokerEpoch")
def get_broker_epoch(
    name: GroupOrBroker = "",
    cluster: opt.Cluster = "",
    namesrv: opt.NameServers = "",
    interval: opt.Interval = 0.0,
    as_json: opt.AsJson = False,
) -> None:
    """Show the terms of the log and the byte range of each, as each broker reports them."""
    opt.demand_place(name, cluster)
    is_address = ":" in name
    opt.run(
        namesrv,
        lambda tools: show_epochs(tools, "" if is_address else name, cluster, name if is_address else ""),
        as_json=as_json,
        needs_names=not is_address,
        interval_s=interval,
    )


# Implementation of the two commands whose -b is the name of a group


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


async def show_epochs(tools: Tools, name: str, cluster: str, address: str) -> CommandAnswer:
    """Shows the byte range of each term, according to each broker of a group or a cluster."""
    targets = await find_targets(tools, Place(address, cluster))
    addresses = [one.address for one in targets if address or name in ("", one.broker_name)]
    rows = [
        (told.broker_name, at, told.broker_id, one.epoch, one.start, min(one.end, told.max_log_offset))
        for at, told in await tools.ask(addresses, controller.query_epochs)
        for one in told.epochs
    ]
    columns = "broker address id epoch start_offset end_offset"
    otherwise = f"no broker of {name or cluster or 'all'} has a term"
    return CommandAnswer.of_rows("terms", columns, rows, otherwise=otherwise)
