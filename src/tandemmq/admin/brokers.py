"""Commands for brokers and name servers: clusterList, brokerStatus, haStatus, acceptLog, getBrokerConfig,
updateBrokerConfig, exportConfigs, cleanExpiredCQ, cleanUnusedTopic, deleteExpiredCommitLog, exportPopRecord,
resetMasterFlushOffset, setCommitLogReadAheadMode; getNamesrvConfig, updateNamesrvConfig, updateKvConfig,
deleteKvConfig, wipeWritePerm, addWritePerm; getColdDataFlowCtrInfo, updateColdDataFlowCtrGroupConfig,
removeColdDataFlowCtrGroupConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from tandemmq.admin.options import (
    EXPORT_DIRECTORY,
    FLAG,
    Address,
    BrokerAddress,
    BrokerName,
    Cluster,
    ExportDirectory,
    NewValue,
    SettingKey,
    Work,
    command,
    flag,
)
from tandemmq.admin.render import CommandAnswer, Row, Table, write_json
from tandemmq.admin.targets import EVERYWHERE, Place, Target, Tools, find_targets
from tandemmq.api import broker_admin, nameserver, replica
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.codec import REFUSALS_KEY
from tandemmq.protocol.bodies.replica import HaClient, HaStatus
from tandemmq.protocol.properties_file import parse_properties
from tandemmq.units import MASTER_ID

app = typer.Typer()

_EXPORTED: Final = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)
"""The settings that exportConfigs writes; a setting that a broker does not show is left out."""
_REFUSED: Final = ("AHEAD", "TOO_OLD", "HALTED")
"""The states of a slave, as its master sees it, that only an operator can end."""
_REPLICATION_TABLES: Final = (
    ("masters", ("broker", "log_end", "in_sync_slaves", "connections", "waiting")),
    (
        "slaves_of_masters",
        (
            "master",
            "slave",
            "acknowledged",
            "lag_bytes",
            "lag_seconds",
            "in_sync",
            "sent_to",
            "bytes_per_second",
            "state",
            "start_rule",
            "start_offset",
            "away_seconds",
            "name",
            "reason",
        ),
    ),
    (
        "copies",
        (
            "slave",
            "master_ha_address",
            "log_start",
            "log_end",
            "read_at",
            "bytes_per_second",
            "state",
            "start_rule",
            "tail",
            "halt",
        ),
    ),
)


ColdGroup = Annotated[str, typer.Option("-g", "--consumerGroup", help="The consumer group.")]
CleanedCluster = Annotated[str, typer.Option("-c", "--cluster", help="The cluster's name.")]


@command(app, "clusterList", interval_s=0)
def cluster_list(
    cluster: Cluster = "",
    has_days: Annotated[
        bool, typer.Option("-m", "--moreStats", help="Show message counts of yesterday and today instead.")
    ] = False,
) -> Work:
    """List all registered brokers with role, version and rates."""
    if has_days:
        return lambda tools: list_days(tools, cluster)
    return lambda tools: list_clusters(tools, cluster)


@command(app, "brokerStatus")
async def broker_status(tools: Tools, place: Place = EVERYWHERE) -> CommandAnswer:
    """Show all statistics of a broker."""
    table = Table("figures", ("broker", "name", "value"))
    for target in await find_targets(tools, place):
        facts = await broker_admin.query_runtime_info(tools.remoting, target.address)
        table.rows += [(target.address, name, text) for name, text in sorted(facts.items())]
    return CommandAnswer([table])


@command(app, "haStatus", interval_s=0)
async def ha_status(tools: Tools, place: Place = EVERYWHERE) -> CommandAnswer:
    """Show replication lag; exit code 1 when a slave has halted or a master is not serving yet."""
    masters, slaves, copies = (Table(name, columns) for name, columns in _REPLICATION_TABLES)
    has_halted = is_waiting = False
    for target in await find_targets(tools, place):
        status = await broker_admin.query_ha_status(tools.remoting, target.address)
        if status.is_master:
            count = sum(one.away_ms is None for one in status.connections)
            in_sync = status.in_sync_count
            masters.rows.append((target.address, status.max_log_offset, in_sync, count, status.waiting))
            is_waiting |= status.waiting is not None
            slaves.rows += _slave_rows(target, status)
            has_halted |= any(one.state in _REFUSED for one in status.connections)
            continue
        one = status.client
        has_halted |= one.halt_reason is not None
        copies.rows.append(_copy_row(target, one))
    tables = [table for table in (masters, slaves, copies) if table.rows]
    notes = ["a slave has halted: see docs/operations/runbooks.md"] if has_halted else []
    if is_waiting:
        notes.append(
            "a master does not serve until its slaves have reported their logs; acceptLog ends the wait"
        )
    return CommandAnswer(tables, notes, exit_code=1 if has_halted or is_waiting else 0)


@command(app, "acceptLog", names=False)
async def accept_log(tools: Tools, broker: Address) -> CommandAnswer:
    """Let a master serve without waiting for its slaves' logs; messages that only they hold are lost."""
    return CommandAnswer([], [await replica.accept_log(tools.remoting, broker)])


@command(app, "getBrokerConfig")
async def get_broker_config(tools: Tools, place: Place = EVERYWHERE) -> CommandAnswer:
    """Show the settings of a broker."""
    table = Table("settings", ("broker", "key", "value"))
    for target in await find_targets(tools, place):
        text = await broker_admin.query_broker_config(tools.remoting, target.address)
        settings = parse_properties(text.encode(), target.address)
        table.rows += [(target.address, key, setting.text) for key, setting in sorted(settings.items())]
    return CommandAnswer([table])


@command(app, "updateBrokerConfig")
def update_broker_config(
    key: SettingKey,
    value: NewValue,
    place: Place,
    has_slaves: Annotated[
        str, typer.Option("-a", "--updateAllBroker", help="true: with -c, change the slaves, too.")
    ] = "false",
) -> Work:
    """Change a setting of a running broker, or of the masters of a cluster."""
    masters_only = not flag(has_slaves, "-a")
    return lambda tools: change_config(tools, place, key, value, masters_only=masters_only)


@command(app, "exportConfigs")
async def export_configs(
    tools: Tools,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="The cluster.")],
    directory: ExportDirectory = EXPORT_DIRECTORY,
) -> CommandAnswer:
    """Write the size of a cluster, and the main settings of its masters, to configs.json."""
    targets = await find_targets(tools, Place(cluster=cluster))
    masters = [one for one in targets if one.broker_id == MASTER_ID]
    settings: dict[str, dict[str, str]] = {}
    for target in masters:
        text = await broker_admin.query_broker_config(tools.remoting, target.address)
        held = parse_properties(text.encode(), target.address)
        settings[target.broker_name] = {key: held[key].text for key in _EXPORTED if key in held}
    counts = {
        "namesrvSize": len(tools.cluster_admin.name_servers),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": len(targets) - len(masters),
    }
    path = write_json(directory / "configs.json", {"brokerConfigs": settings, "clusterScale": counts})
    return CommandAnswer(
        [Table("exported", ("path", "masters", "slaves"), [(str(path), *[*counts.values()][1:])])]
    )


@command(app, "cleanExpiredCQ")
def clean_expired_queues(broker: Address = "", cluster: CleanedCluster = "") -> Work:
    """Delete queue files whose messages are gone; without a broker or cluster, at all brokers."""
    return lambda tools: clean(tools, Place(broker, cluster), broker_admin.clean_queues)


@command(app, "cleanUnusedTopic")
def clean_unused_topics(broker: Address = "", cluster: CleanedCluster = "") -> Work:
    """Delete the queues of topics that no longer exist; without a broker or cluster, at all brokers."""
    return lambda tools: clean(tools, Place(broker, cluster), broker_admin.clean_topics)


@command(app, "deleteExpiredCommitLog")
def delete_expired_log(broker: Address = "", cluster: CleanedCluster = "") -> Work:
    """Delete log files older than fileReservedTime at once; without a broker or cluster, at all brokers."""
    return lambda tools: clean(tools, Place(broker, cluster), broker_admin.clean_log)


@command(app, "exportPopRecord")
async def export_pop_record(
    tools: Tools,
    place: Place,
    only_named: Annotated[
        bool, typer.Option("-d", "--dryRun", help="true: list the brokers without calling them."), FLAG
    ] = False,
) -> CommandAnswer:
    """Make RocketMQ brokers write pop leases from RocksDB to topics; TandemMQ brokers already keep them
    there.
    """
    table = Table("exported", ("broker", "dry"))
    for target in await find_targets(tools, place, masters_only=True):
        if not only_named:
            await broker_admin.export_leases(tools.remoting, target.address)
        table.rows.append((target.address, only_named))
    return CommandAnswer([table])


@command(app, "resetMasterFlushOffset", names=False)
async def reset_master_flush_offset(
    tools: Tools,
    broker: BrokerAddress,
    offset: Annotated[int, typer.Option("-o", "--offset", help="The new offset.", min=0)],
) -> CommandAnswer:
    """Reset the flushed offset of its master that a RocketMQ slave remembers; TandemMQ brokers compare logs
    instead.
    """
    told = await broker_admin.reset_flushed_offset(tools.remoting, broker, offset)
    return CommandAnswer([Table("changed", ("broker", "offset", "answer"), [(broker, offset, told)])])


@command(app, "setCommitLogReadAheadMode")
async def set_read_ahead_mode(
    tools: Tools,
    mode: Annotated[
        int,
        typer.Option("-m", "--commitLogReadAheadMode", help="0: read ahead; 1: random access.", min=0, max=1),
    ],
    place: Place,
) -> CommandAnswer:
    """Turn read-ahead of the log by the kernel on or off (dataReadAheadEnable), at a broker or a cluster."""
    table = Table("changed", ("broker", "mode", "answer"))
    for target in await find_targets(tools, place):
        told = await broker_admin.set_read_mode(tools.remoting, target.address, mode)
        table.rows.append((target.address, mode, told))
    return CommandAnswer([table])


# Name servers


@command(app, "getNamesrvConfig")
async def get_namesrv_config(tools: Tools) -> CommandAnswer:
    """Show the settings of every given name server."""
    table = Table("settings", ("name_server", "key", "value"))
    for address in tools.cluster_admin.name_servers:
        settings = parse_properties(
            (await nameserver.query_config(tools.remoting, address)).encode(), address
        )
        table.rows += [(address, key, setting.text) for key, setting in sorted(settings.items())]
    return CommandAnswer([table])


@command(app, "updateNamesrvConfig")
async def update_namesrv_config(
    tools: Tools,
    key: SettingKey,
    value: NewValue,
) -> CommandAnswer:
    """Change a setting of every given name server."""
    table = Table("changed", ("name_server", "key", "value", "note"))
    for address in tools.cluster_admin.name_servers:
        note = await nameserver.change_config(tools.remoting, address, key, value)
        table.rows.append((address, key, value, note or None))
    return CommandAnswer([table])


Space = Annotated[str, typer.Option("-s", "--namespace", help="The namespace of the key.")]
KvKey = Annotated[str, typer.Option("-k", "--key", help="The key.")]


@command(app, "updateKvConfig")
def update_kv_config(namespace: Space, key: KvKey, value: NewValue) -> Work:
    """Store a value in the key-value configuration of the name servers."""
    return lambda tools: change_kv(tools, namespace, key, value)


@command(app, "deleteKvConfig")
def delete_kv_config(namespace: Space, key: KvKey) -> Work:
    """Delete a value of the key-value configuration of the name servers."""
    return lambda tools: change_kv(tools, namespace, key, None)


@command(app, "getColdDataFlowCtrInfo")
async def get_cold_reads(tools: Tools, place: Place) -> CommandAnswer:
    """Show each group's reads of old messages in the current 5 s, and its limit."""
    table = Table("cold_reads", ("broker", "group", "bytes", "threshold_bytes", "read_at"))
    for target in await find_targets(tools, place, masters_only=not place.address):
        info = await broker_admin.query_cold_reads(tools.remoting, target.address)
        table.rows.append((target.address, "(all)", info.all_bytes, info.all_threshold_bytes, None))
        for group in sorted({*info.groups, *info.thresholds}):
            reads = info.groups.get(group)
            threshold = info.thresholds.get(group, info.group_threshold_bytes)
            figures = (None, None) if reads is None else (reads.bytes, reads.read_at_ms)
            table.rows.append((target.address, group, figures[0], threshold, figures[1]))
    return CommandAnswer([table])


@command(app, "updateColdDataFlowCtrGroupConfig")
def update_cold_threshold(
    group: ColdGroup,
    threshold: Annotated[str, typer.Option("-v", "--threshold", help="Most bytes of old messages per 5 s.")],
    place: Place,
) -> Work:
    """Limit the bytes of old messages that a group may read (coldDataFlowControlEnable)."""
    return lambda tools: change_cold_threshold(tools, group, threshold, place)


@command(app, "removeColdDataFlowCtrGroupConfig")
def remove_cold_threshold(group: ColdGroup, place: Place) -> Work:
    """Remove a group's own limit for old messages; the general limit applies again."""
    return lambda tools: change_cold_threshold(tools, group, None, place)


@command(app, "wipeWritePerm")
def wipe_write_permission(name: BrokerName) -> Work:
    """Make a broker read-only for clients: routes offer its queues to consumers only."""
    return lambda tools: change_write_permission(tools, name, allows=False)


@command(app, "addWritePerm")
def add_write_permission(name: BrokerName) -> Work:
    """Undo wipeWritePerm."""
    return lambda tools: change_write_permission(tools, name, allows=True)


# Implementation of the commands


async def change_config(
    tools: Tools, place: Place, key: str, value: str, *, masters_only: bool
) -> CommandAnswer:
    """Changes a setting of the broker, or of the brokers of the cluster."""
    table = Table("changed", ("broker", "key", "value", "note"))
    for target in await find_targets(tools, place, masters_only=masters_only):
        note = await broker_admin.change_broker_config(tools.remoting, target.address, key, value)
        table.rows.append((target.address, key, value, note or None))
    return CommandAnswer([table])


async def clean(tools: Tools, place: Place, what: broker_admin.CleanUp) -> CommandAnswer:
    """Makes the broker, or all brokers of the cluster, delete unused files."""
    table = Table("cleaned", ("broker",))
    for target in await find_targets(tools, place):
        await what(tools.remoting, target.address)
        table.rows.append((target.address,))
    return CommandAnswer([table])


async def list_clusters(tools: Tools, cluster: str) -> CommandAnswer:
    """Lists every registered broker with its statistics; a broker that does not answer is listed with the
    reason.
    """
    columns = (
        "cluster",
        "broker",
        "id",
        "address",
        "role",
        "version",
        "in_tps",
        "out_tps",
        "refused",
        "note",
    )
    table = Table("brokers", columns)
    for target in await find_targets(tools, Place(cluster=cluster)):
        place = (target.cluster, target.broker_name, target.broker_id, target.address)
        try:
            facts = await broker_admin.query_runtime_info(tools.remoting, target.address)
        except TandemError as error:
            table.rows.append((*place, None, None, None, None, None, str(error)))
            continue
        in_tps = first_rate(facts.get("putTps"))
        out_tps = first_rate(facts.get("getTransferredTps") or facts.get("getTransferedTps"))
        role = facts.get("brokerRole")
        refused = facts.get(REFUSALS_KEY)
        table.rows.append((*place, role, facts.get("brokerVersionDesc"), in_tps, out_tps, refused, None))
    return CommandAnswer([table])


async def list_days(tools: Tools, cluster: str) -> CommandAnswer:
    """Lists the messages received and sent yesterday and today, at every registered broker."""
    columns = ("cluster", "broker", "in_yesterday", "out_yesterday", "in_today", "out_today", "note")
    table = Table("brokers", columns)
    for target in await find_targets(tools, Place(cluster=cluster)):
        place = (target.cluster, target.broker_name)
        try:
            facts = await broker_admin.query_runtime_info(tools.remoting, target.address)
        except TandemError as error:
            table.rows.append((*place, None, None, None, None, str(error)))
            continue
        yesterday, today = (
            [counted_between(facts, way, begin, end) for way in ("Put", "Get")]
            for begin, end in (("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow"))
        )
        table.rows.append((*place, *yesterday, *today, None))
    return CommandAnswer([table])


def counted_between(facts: Mapping[str, str], way: str, begin: str, end: str) -> int | None:
    """Returns the messages received (Put) or sent (Get) between two of a broker's counters; None when the
    broker does not report them.
    """
    try:
        return int(facts[f"msg{way}Total{end}"]) - int(facts[f"msg{way}Total{begin}"])
    except (KeyError, ValueError):
        return None


def _copy_row(target: Target, one: HaClient) -> Row:
    halt = None if one.halt_reason is None else f"{one.halt_reason} at {one.halt_offset}: {one.halt_detail}"
    return (
        target.address,
        one.master_address,
        one.start_offset,
        one.max_log_offset,
        one.read_at_ms,
        one.bytes_per_second,
        one.state,
        one.start_rule,
        one.tail,
        halt,
    )


def _slave_rows(target: Target, status: HaStatus) -> list[Row]:
    return [
        (
            target.address,
            one.address,
            one.acknowledged_offset,
            one.lag_bytes,
            _seconds(one.lag_ms),
            one.is_in_sync,
            one.transfer_from,
            one.bytes_per_second,
            one.state,
            one.start_rule,
            one.start_offset,
            _seconds(one.away_ms),
            one.slave,
            one.reason,
        )
        for one in status.connections
    ]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def first_rate(text: str | None) -> float | None:
    """Returns the newest of the rates that a broker reports as `10s 60s 600s`."""
    try:
        return round(float((text or "").split()[0]), 1)
    except (IndexError, ValueError):
        return None


async def change_cold_threshold(
    tools: Tools, group: str, threshold: str | None, place: Place
) -> CommandAnswer:
    """Sets the bytes of old messages that a group may read in 5 s; None restores the general limit."""
    table = Table("changed", ("broker", "group", "threshold_bytes"))
    for target in await find_targets(tools, place, masters_only=True):
        if threshold is None:
            await broker_admin.remove_cold_threshold(tools.remoting, target.address, group)
        else:
            await broker_admin.set_cold_threshold(tools.remoting, target.address, group, threshold)
        table.rows.append((target.address, group, threshold))
    return CommandAnswer([table])


# Name servers: each one is changed, because they do not know each other


async def change_kv(tools: Tools, namespace: str, key: str, value: str | None) -> CommandAnswer:
    """Stores a value in the key-value configuration, or deletes it (None)."""
    table = Table("changed", ("name_server", "namespace", "key", "value"))
    for address in tools.cluster_admin.name_servers:
        if value is None:
            await nameserver.delete_kv(tools.remoting, address, namespace, key)
        else:
            await nameserver.put_kv(tools.remoting, address, namespace, key, value)
        table.rows.append((address, namespace, key, value))
    return CommandAnswer([table])


async def change_write_permission(tools: Tools, broker_name: str, *, allows: bool) -> CommandAnswer:
    """Makes routes offer the queues of a broker to producers, or stop offering them."""
    change = nameserver.add_write_permission if allows else nameserver.wipe_write_permission
    table = Table("changed", ("name_server", "broker", "topics"))
    for address in tools.cluster_admin.name_servers:
        table.rows.append((address, broker_name, await change(tools.remoting, address, broker_name)))
    return CommandAnswer([table])
