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

from tandemmq.admin import options as opt
from tandemmq.admin.options import option
from tandemmq.admin.render import CommandAnswer, Row, Table, write_json
from tandemmq.api import broker_admin, nameserver, replica
from tandemmq.errors import TandemError
from tandemmq.manage.brokers import seconds_of
from tandemmq.manage.cluster import counted_between, first_rate, sent_rates
from tandemmq.manage.tools import EVERYWHERE, Place, Tools, find_targets
from tandemmq.protocol.bodies.codec import REFUSALS_KEY
from tandemmq.protocol.bodies.replica import HaClient, HaConnection
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
_REPLICATION_TABLES: Final = {
    "masters": "broker log_end in_sync_slaves connections waiting",
    "slaves_of_masters": (
        "master slave acknowledged lag_bytes lag_seconds in_sync sent_to bytes_per_second"
        " state start_rule start_offset away_seconds name reason"
    ),
    "copies": (
        "slave master_ha_address log_start log_end read_at bytes_per_second state start_rule tail halt"
    ),
}
"""The tables of haStatus -> their columns."""


ColdGroup = Annotated[str, option("-g --consumerGroup", "The consumer group.")]
CleanedCluster = Annotated[str, option("-c --cluster", "The cluster's name.")]


@opt.command(app, "clusterList", interval_s=0)
async def cluster_list(
    tools: Tools,
    cluster: opt.Cluster = "",
    has_days: Annotated[
        bool, option("-m --moreStats", "Show message counts of yesterday and today instead.")
    ] = False,
) -> CommandAnswer:
    """List all registered brokers with role, version and rates."""
    table = Table("brokers", tuple((_DAY_COLUMNS if has_days else _CLUSTER_COLUMNS).split()))
    for target in await find_targets(tools, Place(cluster=cluster)):
        place: Row = (target.cluster, target.broker_name)
        if not has_days:
            place += (target.broker_id, target.address)
        try:
            facts = await broker_admin.query_runtime_info(tools.remoting, target.address)
        except TandemError as error:  # a broker that does not answer is listed with the reason
            unknown = (None,) * (len(table.columns) - len(place) - 1)
            table.rows.append((*place, *unknown, str(error)))
        else:
            table.rows.append((*place, *(_days(facts) if has_days else _rates(facts)), None))
    return CommandAnswer([table])


_DAY_COLUMNS: Final = "cluster broker in_yesterday out_yesterday in_today out_today note"
_CLUSTER_COLUMNS: Final = "cluster broker id address role version in_tps out_tps refused note"


def _rates(facts: Mapping[str, str]) -> Row:
    rates = first_rate(facts.get("putTps")), first_rate(sent_rates(facts))
    return (facts.get("brokerRole"), facts.get("brokerVersionDesc"), *rates, facts.get(REFUSALS_KEY))


def _days(facts: Mapping[str, str]) -> Row:
    days = ("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow")
    return tuple(counted_between(facts, way, *day) for day in days for way in ("Put", "Get"))


@opt.command(app, "brokerStatus")
async def broker_status(tools: Tools, place: Place = EVERYWHERE) -> CommandAnswer:
    """Show all statistics of a broker."""
    found = await tools.ask(await tools.brokers(place), broker_admin.query_runtime_info)
    rows = [(at, name, text) for at, facts in found for name, text in sorted(facts.items())]
    return CommandAnswer.of_rows("figures", "broker name value", rows)


@opt.command(app, "haStatus", interval_s=0)
async def ha_status(tools: Tools, place: Place = EVERYWHERE) -> CommandAnswer:
    """Show replication lag; exit code 1 when a slave has halted or a master is not serving yet."""
    masters, slaves, copies = (
        Table(name, tuple(columns.split())) for name, columns in _REPLICATION_TABLES.items()
    )
    has_halted = is_waiting = False
    for at, status in await tools.ask(await tools.brokers(place), broker_admin.query_ha_status):
        if status.is_master:
            count = sum(one.away_ms is None for one in status.connections)
            masters.rows.append((at, status.max_log_offset, status.in_sync_count, count, status.waiting))
            is_waiting |= status.waiting is not None
            slaves.rows += [_slave_row(at, one) for one in status.connections]
            has_halted |= any(one.state in _REFUSED for one in status.connections)
        else:
            has_halted |= status.client.halt_reason is not None
            copies.rows.append(_copy_row(at, status.client))
    tables = [table for table in (masters, slaves, copies) if table.rows]
    notes = ["a slave has halted: see docs/operations/runbooks.md"] if has_halted else []
    if is_waiting:
        notes.append(
            "a master does not serve until its slaves have reported their logs; acceptLog ends the wait"
        )
    return CommandAnswer(tables, notes, exit_code=1 if has_halted or is_waiting else 0)


@opt.command(app, "acceptLog", names=False)
async def accept_log(tools: Tools, broker: opt.Address) -> CommandAnswer:
    """Let a master serve without waiting for its slaves' logs; messages that only they hold are lost."""
    return CommandAnswer([], [await replica.accept_log(tools.remoting, broker)])


@opt.command(app, "getBrokerConfig")
async def get_broker_config(tools: Tools, place: Place = EVERYWHERE) -> CommandAnswer:
    """Show the settings of a broker."""
    return await opt.show_settings(
        tools, "broker", await tools.brokers(place), broker_admin.query_broker_config
    )


@opt.command(app, "updateBrokerConfig")
async def update_broker_config(
    tools: Tools,
    key: opt.SettingKey,
    value: opt.NewValue,
    place: Place,
    has_slaves: Annotated[
        bool, option("-a --updateAllBroker", "true: with -c, change the slaves, too."), opt.FLAG
    ] = False,
) -> CommandAnswer:
    """Change a setting of a running broker, or of the masters of a cluster."""
    addresses = await (tools.brokers(place) if has_slaves else tools.masters(place))
    notes = await tools.change(addresses, broker_admin.change_broker_config, key, value)
    return opt.settings_changed("broker", key, value, notes)


@opt.command(app, "exportConfigs")
async def export_configs(
    tools: Tools,
    cluster: Annotated[str, option("-c --clusterName", "The cluster.")],
    directory: opt.ExportDirectory = opt.EXPORT_DIRECTORY,
) -> CommandAnswer:
    """Write the size of a cluster, and the main settings of its masters, to configs.json."""
    targets = await find_targets(tools, Place(cluster=cluster))
    masters = [one for one in targets if one.broker_id == MASTER_ID]
    settings: dict[str, dict[str, str]] = {}
    for target in masters:
        held = await broker_admin.query_broker_config(tools.remoting, target.address)
        settings[target.broker_name] = {key: held[key] for key in _EXPORTED if key in held}
    counts = {
        "namesrvSize": len(tools.cluster_admin.name_servers),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": len(targets) - len(masters),
    }
    path = write_json(directory / "configs.json", {"brokerConfigs": settings, "clusterScale": counts})
    row = (str(path), len(masters), len(targets) - len(masters))
    return CommandAnswer.of_rows("exported", "path masters slaves", [row])


@opt.command(app, "cleanExpiredCQ")
async def clean_expired_queues(
    tools: Tools, broker: opt.Address = "", cluster: CleanedCluster = ""
) -> CommandAnswer:
    """Delete queue files whose messages are gone; without a broker or cluster, at all brokers."""
    return await _clean(tools, Place(broker, cluster), broker_admin.clean_queues)


@opt.command(app, "cleanUnusedTopic")
async def clean_unused_topics(
    tools: Tools, broker: opt.Address = "", cluster: CleanedCluster = ""
) -> CommandAnswer:
    """Delete the queues of topics that no longer exist; without a broker or cluster, at all brokers."""
    return await _clean(tools, Place(broker, cluster), broker_admin.clean_topics)


@opt.command(app, "deleteExpiredCommitLog")
async def delete_expired_log(
    tools: Tools, broker: opt.Address = "", cluster: CleanedCluster = ""
) -> CommandAnswer:
    """Delete log files older than fileReservedTime at once; without a broker or cluster, at all brokers."""
    return await _clean(tools, Place(broker, cluster), broker_admin.clean_log)


async def _clean(tools: Tools, place: Place, what: broker_admin.CleanUp) -> CommandAnswer:
    cleaned = await tools.change(await tools.brokers(place), what)
    return CommandAnswer.of_rows("cleaned", "broker", [(at,) for at, _ in cleaned])


@opt.command(app, "exportPopRecord")
async def export_pop_record(
    tools: Tools,
    place: Place,
    only_named: Annotated[
        bool, option("-d --dryRun", "true: list the brokers without calling them."), opt.FLAG
    ] = False,
) -> CommandAnswer:
    """Make RocketMQ brokers write pop leases from RocksDB to topics; TandemMQ brokers already keep them
    there.
    """
    addresses = await tools.masters(place)
    if not only_named:
        await tools.change(addresses, broker_admin.export_leases)
    return CommandAnswer.of_rows("exported", "broker dry", [(at, only_named) for at in addresses])


@opt.command(app, "resetMasterFlushOffset", names=False)
async def reset_master_flush_offset(
    tools: Tools,
    broker: opt.BrokerAddress,
    offset: Annotated[int, option("-o --offset", "The new offset.", min=0)],
) -> CommandAnswer:
    """Reset the flushed offset of its master that a RocketMQ slave remembers; TandemMQ brokers compare logs
    instead.
    """
    answer = await broker_admin.reset_flushed_offset(tools.remoting, broker, offset)
    return CommandAnswer.of_rows("changed", "broker offset answer", [(broker, offset, answer)])


@opt.command(app, "setCommitLogReadAheadMode")
async def set_read_ahead_mode(
    tools: Tools,
    mode: Annotated[
        int, option("-m --commitLogReadAheadMode", "0: read ahead; 1: random access.", min=0, max=1)
    ],
    place: Place,
) -> CommandAnswer:
    """Turn read-ahead of the log by the kernel on or off (dataReadAheadEnable), at a broker or a cluster."""
    changed = await tools.change(await tools.brokers(place), broker_admin.set_read_mode, mode)
    rows = [(at, mode, answer) for at, answer in changed]
    return CommandAnswer.of_rows("changed", "broker mode answer", rows)


# Name servers: each one is changed, because they do not know each other


@opt.command(app, "getNamesrvConfig")
async def get_namesrv_config(tools: Tools) -> CommandAnswer:
    """Show the settings of every given name server."""
    name_servers = tools.cluster_admin.name_servers
    return await opt.show_settings(tools, "name_server", name_servers, nameserver.query_config)


@opt.command(app, "updateNamesrvConfig")
async def update_namesrv_config(tools: Tools, key: opt.SettingKey, value: opt.NewValue) -> CommandAnswer:
    """Change a setting of every given name server."""
    notes = await tools.change(tools.cluster_admin.name_servers, nameserver.change_config, key, value)
    return opt.settings_changed("name_server", key, value, notes)


Space = Annotated[str, option("-s --namespace", "The namespace of the key.")]
KvKey = Annotated[str, option("-k --key", "The key.")]
_KV_COLUMNS: Final = "name_server namespace key value"


@opt.command(app, "updateKvConfig")
async def update_kv_config(tools: Tools, namespace: Space, key: KvKey, value: opt.NewValue) -> CommandAnswer:
    """Store a value in the key-value configuration of the name servers."""
    changed = await tools.change(tools.cluster_admin.name_servers, nameserver.put_kv, namespace, key, value)
    return CommandAnswer.of_rows("changed", _KV_COLUMNS, [(at, namespace, key, value) for at, _ in changed])


@opt.command(app, "deleteKvConfig")
async def delete_kv_config(tools: Tools, namespace: Space, key: KvKey) -> CommandAnswer:
    """Delete a value of the key-value configuration of the name servers."""
    changed = await tools.change(tools.cluster_admin.name_servers, nameserver.delete_kv, namespace, key)
    return CommandAnswer.of_rows("changed", _KV_COLUMNS, [(at, namespace, key, None) for at, _ in changed])


@opt.command(app, "wipeWritePerm")
async def wipe_write_permission(tools: Tools, name: opt.BrokerName) -> CommandAnswer:
    """Make a broker read-only for clients: routes offer its queues to consumers only."""
    counts = await tools.change(tools.cluster_admin.name_servers, nameserver.wipe_write_permission, name)
    return _permission_changed(name, counts)


@opt.command(app, "addWritePerm")
async def add_write_permission(tools: Tools, name: opt.BrokerName) -> CommandAnswer:
    """Undo wipeWritePerm."""
    counts = await tools.change(tools.cluster_admin.name_servers, nameserver.add_write_permission, name)
    return _permission_changed(name, counts)


def _permission_changed(name: str, counts: list[tuple[str, int]]) -> CommandAnswer:
    rows = [(at, name, count) for at, count in counts]
    return CommandAnswer.of_rows("changed", "name_server broker topics", rows)


# Reads of old messages


@opt.command(app, "getColdDataFlowCtrInfo")
async def get_cold_reads(tools: Tools, place: Place) -> CommandAnswer:
    """Show each group's reads of old messages in the current 5 s, and its limit."""
    table = Table("cold_reads", ("broker", "group", "bytes", "threshold_bytes", "read_at"))
    for at, info in await tools.ask(await tools.masters(place), broker_admin.query_cold_reads):
        table.rows.append((at, "(all)", info.all_bytes, info.all_threshold_bytes, None))
        for group in sorted({*info.groups, *info.thresholds}):
            reads = info.groups.get(group)
            threshold = info.thresholds.get(group, info.group_threshold_bytes)
            figures = (None, None) if reads is None else (reads.bytes, reads.read_at_ms)
            table.rows.append((at, group, figures[0], threshold, figures[1]))
    return CommandAnswer([table])


_THRESHOLD_COLUMNS: Final = "broker group threshold_bytes"


@opt.command(app, "updateColdDataFlowCtrGroupConfig")
async def update_cold_threshold(
    tools: Tools,
    group: ColdGroup,
    threshold: Annotated[str, option("-v --threshold", "Most bytes of old messages per 5 s.")],
    place: Place,
) -> CommandAnswer:
    """Limit the bytes of old messages that a group may read (coldDataFlowControlEnable)."""
    changed = await tools.change(
        await tools.masters(place), broker_admin.set_cold_threshold, group, threshold
    )
    return CommandAnswer.of_rows("changed", _THRESHOLD_COLUMNS, [(at, group, threshold) for at, _ in changed])


@opt.command(app, "removeColdDataFlowCtrGroupConfig")
async def remove_cold_threshold(tools: Tools, group: ColdGroup, place: Place) -> CommandAnswer:
    """Remove a group's own limit for old messages; the general limit applies again."""
    changed = await tools.change(await tools.masters(place), broker_admin.remove_cold_threshold, group)
    return CommandAnswer.of_rows("changed", _THRESHOLD_COLUMNS, [(at, group, None) for at, _ in changed])


# Rows of brokers


def _copy_row(address: str, one: HaClient) -> Row:
    halt = None if one.halt_reason is None else f"{one.halt_reason} at {one.halt_offset}: {one.halt_detail}"
    return (
        *(address, one.master_address, one.start_offset, one.max_log_offset, one.read_at_ms),
        *(one.bytes_per_second, one.state, one.start_rule, one.tail, halt),
    )


def _slave_row(address: str, one: HaConnection) -> Row:
    return (
        *(address, one.address, one.acknowledged_offset, one.lag_bytes, seconds_of(one.lag_ms)),
        *(one.is_in_sync, one.transfer_from, one.bytes_per_second, one.state, one.start_rule),
        *(one.start_offset, seconds_of(one.away_ms), one.slave, one.reason),
    )
