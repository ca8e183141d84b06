"""Commands for groups: consumerProgress, startMonitoring, consumerConnection, consumerStatus,
producerConnection, producer, brokerConsumeStats, resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset,
getConsumerConfig, updateSubGroup, updateSubGroupList, deleteSubGroup, setConsumeMode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer
from msgspec import to_builtins

from tandemmq.admin import options as opt
from tandemmq.admin.options import option
from tandemmq.admin.render import CommandAnswer, Row, Table
from tandemmq.api import broker_admin
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.client.groups import read_members
from tandemmq.errors import BadRequest, GroupNotFound, RemoteProtocolError
from tandemmq.manage import progress, resets
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.groups import change_group, delete_group, read_state
from tandemmq.manage.tools import Place, Tools, find_targets
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import ClientConnection, ProducerInfo, RequestMode
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.tables import GroupRetryPolicy, SubscriptionGroupConfig
from tandemmq.protocol.codes import render_version
from tandemmq.runtime.machine import LoopClock

app = typer.Typer()

_SETTINGS: Final = (
    "is_consume_enabled",
    "is_from_min_enabled",
    "is_broadcast_enabled",
    "is_orderly",
    "retry_queue_count",
    "retry_count_max",
)


LAG_EXIT_CODE: Final = 3
"""The exit code of a command whose user gave a limit that is exceeded."""
LAG_COLUMNS: Final = (
    *("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag", "in_flight"),
    "last_consumed_stored_at",
)
"""The progress of a group in a queue; the last column is the time at which the broker stored the last message
that the group has consumed.
"""


ConsumerGroup = Annotated[str, option("-g --consumerGroup", "The consumer group.")]
ResetGroup = Annotated[str, option("-g --group", "The consumer group.")]
Force = Annotated[bool, option("-f --force", "Accepted for mqadmin's scripts; has no effect."), opt.FLAG]


@opt.command(app, "consumerProgress")
async def consumer_progress(
    tools: Tools,
    group: opt.Group = "",
    topic: Annotated[str, option("-t --topicName", "Only this topic.")] = "",
    has_clients: Annotated[
        bool, option("-s --showClientIP", "true: with -g, show the consumer of each queue, too."), opt.FLAG
    ] = False,
) -> CommandAnswer:
    """Show the progress of a group in each queue; without a group, the lag of every group."""
    return await show_progress(tools, group, topic, has_clients=has_clients)


@opt.command(app, "startMonitoring", interval_s=60)
async def start_monitoring(tools: Tools) -> CommandAnswer:
    """Show each group's lag and its age, and the problems of its members, repeatedly."""
    now_ms = LoopClock().now_ms()
    masters = await tools.masters()
    columns = ("group", "members", "lag", "lag_of_one_queue", "behind_seconds", "dead_letters", "problems")
    table = Table("groups", columns)
    topics = await tools.cluster_admin.topics()
    for group in await progress.read_group_names(tools, masters, topics):
        state = await read_state(tools, masters, group, now_ms)
        reports = await progress.read_reports(tools, masters, group)
        problems = [*_notes(reports), *state.problems]
        wants = {
            tuple(sorted((one.topic, one.expression) for one in info.subscriptions))
            for _, _, info in reports.reports
        }
        if len(wants) > 1:
            problems.append("members subscribe differently")
        members = len(state.members.members)
        if state.lag and not members:
            problems.append("no member is online")
        largest = max((one.lag for one in state.lags), default=0)
        figures = (members, state.lag, largest, state.behind_s, state.dead_count)
        table.rows.append((group, *figures, "; ".join(problems) or None))
    return CommandAnswer([table])


@opt.command(app, "consumerConnection")
async def consumer_connection(tools: Tools, group: ConsumerGroup, broker: opt.Address = "") -> CommandAnswer:
    """Show the members of a group and its rejected requests; exit code 1 when no member is online."""
    members = Table("members", ("broker", "client", "address", "language", "version"))
    wants = Table("subscriptions", ("broker", "topic", "expression", "type"))
    refused = Table("refusals", ("broker", "client", "request", "code", "count", "last_at", "reason"))
    places = await tools.brokers(Place(broker))
    for at, found in await tools.ask(places, broker_admin.query_consumer_connections, group):
        if found is None:
            continue
        members.rows += [(at, *client_row(one)) for one in found.connections]
        for topic, data in sorted(found.subscriptions.items()):
            wants.rows.append((at, topic, data.expression, data.expression_type))
        for refusal in found.refusals or ():
            what = (refusal.client, refusal.request, refusal.code, refusal.count)
            refused.rows.append((at, *what, refusal.last_at_ms, refusal.reason))
    tables = [table for table in (members, wants, refused) if table.rows]
    notes = [] if members.rows else [f"no consumer of group {group!r} is online"]
    return CommandAnswer(tables, notes, exit_code=0 if members.rows else 1)


@opt.command(app, "consumerStatus")
async def consumer_status(
    tools: Tools,
    group: ConsumerGroup,
    client_id: Annotated[str, option("-i --clientId", "Only this member.")] = "",
    has_stack: Annotated[bool, option("-s --jstack", "Include the thread stacks of Java clients.")] = False,
    broker: opt.Address = "",
) -> CommandAnswer:
    """Show the state of a group's members, as they report it themselves; exit code 1 when no member is
    online.
    """
    members = Table("members", ("broker", "client", "name", "value"))
    queues = Table(
        "queues", ("client", "topic", "broker", "queue", "commit_offset", "cached", "locked", "pulled_at")
    )
    stacks: list[str] = []
    asked = await tools.masters(Place(broker))
    told = await progress.read_reports(tools, asked, group, client_id=client_id, has_stack=has_stack)
    notes = _notes(told)
    for at, client, info in told.reports:
        members.rows += [(at, client, name, text) for name, text in sorted(info.properties.items())]
        members.rows += [
            (at, client, f"subscription of {data.topic}", data.expression) for data in info.subscriptions
        ]
        queues.rows += [
            (
                client,
                *(queue.topic, queue.broker_name, queue.queue_id),
                *(state.commit_offset, state.cached_count, state.is_locked, state.pulled_at_ms),
            )
            for queue, state in sorted(info.queues.items())
        ]
        stacks += [f"{client}:\n{info.stack}"] if info.stack else []
    if not told.reports and not notes:
        notes.append(f"no consumer {client_id} of group {group!r} is online")
    return CommandAnswer([members, queues], [*notes, *stacks], exit_code=0 if members.rows else 1)


@opt.command(app, "producerConnection")
async def producer_connection(
    tools: Tools,
    group: Annotated[str, option("-g --producerGroup", "The producer group.")],
    broker: opt.Address = "",
    topic: Annotated[str, option("-t --topic", "Accepted for mqadmin's scripts; has no effect.")] = "",
) -> CommandAnswer:
    """Show the producers of a group; exit code 1 when none is online."""
    found = await tools.ask(
        await tools.brokers(Place(broker)), broker_admin.query_producer_connections, group
    )
    return CommandAnswer.of_rows(
        "producers",
        "broker client address language version",
        [(at, *client_row(one)) for at, producers in found for one in producers],
        otherwise=f"no producer of group {group!r} is online",
    )


@opt.command(app, "producer", names=False)
async def all_producers(tools: Tools, broker: opt.BrokerAddress) -> CommandAnswer:
    """Show the producers of all groups at one broker; exit code 1 when none is online."""
    found = await broker_admin.query_all_producers(tools.remoting, broker)
    return CommandAnswer.of_rows(
        "producers",
        "group client address language version seen_at",
        [
            (group, *client_row(one), one.updated_at_ms)
            for group, members in sorted(found.items())
            for one in members
        ],
        otherwise="no producer is online",
    )


@opt.command(app, "brokerConsumeStats", names=False)
async def broker_consume_stats(
    tools: Tools,
    broker: opt.BrokerAddress,
    timeout_ms: Annotated[
        int, option("-t --timeoutMillis", "Timeout of the request, in milliseconds.", min=1)
    ] = 50_000,
    lag_min: Annotated[
        int, option("-l --level", "Only queues with at least this lag, in messages.", min=0)
    ] = 0,
    is_ordered: Annotated[bool, option("-o --order", "true: only ordered topics."), opt.FLAG] = False,
) -> CommandAnswer:
    """Show the progress of every group in every queue of one broker."""
    table = Table(
        "queues", ("topic", "group", "broker", "queue", "broker_offset", "commit_offset", "lag", "last_at")
    )
    found = await broker_admin.query_all_consume_stats.within(
        timeout_ms / 1000, tools.remoting, broker, is_ordered=is_ordered
    )
    for group, stats in sorted(found.items()):
        for queue, one in sorted(stats.queues.items()):
            lag = one.broker_offset - one.committed_offset
            if lag >= lag_min:
                place = (queue.topic, group, queue.broker_name, queue.queue_id)
                offsets = (one.broker_offset, one.committed_offset, lag, one.last_timestamp_ms)
                table.rows.append((*place, *offsets))
    return CommandAnswer([table], [f"{sum(row[6] for row in table.rows)} messages wait in these queues"])


@opt.command(app, "getConsumerConfig")
async def get_consumer_config(tools: Tools, group: opt.Group) -> CommandAnswer:
    """Show the settings of a group at each master; exit code 1 when no master has it."""
    found = await tools.ask(await tools.masters(), broker_admin.query_group_config, group)
    rows = [
        (at, group, *(getattr(config, name) for name in _SETTINGS))
        for at, config in found
        if config is not None
    ]
    columns = f"broker group {' '.join(_SETTINGS)}"
    return CommandAnswer.of_rows("groups", columns, rows, otherwise=f"no broker has the group {group!r}")


@opt.command(app, "deleteSubGroup")
async def delete_sub_group(
    tools: Tools,
    group: opt.Group,
    place: Place,
    removes_offsets: Annotated[
        bool, option("-r --removeOffset", "true: delete its offsets, too."), opt.FLAG
    ] = False,
) -> CommandAnswer:
    """Delete a group at one broker or at every master of a cluster."""
    targets = await answering_masters(tools, place)
    deleted = await delete_group(tools, targets, group, removes_offsets=removes_offsets)
    return CommandAnswer.of_rows("deleted", "broker group", [(one.address, group) for one in deleted])


@opt.command(app, "resetOffsetByTime")
def reset_offset_by_time(
    group: ResetGroup,
    topic: opt.Topic,
    time_ms: Annotated[
        int,
        option("-s --timestamp", "now, Unix milliseconds, -1 (the end) or yyyy-MM-dd#HH:mm:ss:SSS."),
        opt.MOMENT,
    ],
    force: Force = True,
    broker: Annotated[
        str, option("-b --broker HOST:PORT", "With -q: the queue's master (RocketMQ 5.x).")
    ] = "",
    queue_id: Annotated[int | None, option("-q --queue", "Only this queue.", min=0)] = None,
    offset: Annotated[
        int | None, option("-o --offset", "With -q: reset to this offset, not to the time.", min=0)
    ] = None,
) -> opt.Work:
    """Move a group, online or not, to the first messages stored at or after a time."""
    if bool(broker) != (queue_id is not None):
        raise typer.BadParameter("-b and -q must be given together: they name one queue")
    if queue_id is None and offset is not None:
        raise typer.BadParameter("-o also needs the queue of the offset (-b and -q)")

    async def work(tools: Tools) -> CommandAnswer:
        if queue_id is None:
            return _moved(await tools.cluster_admin.reset_offsets(group, topic, time_ms))
        moved = await broker_admin.reset_offsets(
            tools.remoting, broker, group, topic, time_ms, queue_id=queue_id, offset=offset
        )
        return _moved(moved)

    return work


@opt.command(app, "skipAccumulatedMessage")
async def skip_accumulated(
    tools: Tools, group: ResetGroup, topic: opt.Topic, force: Force = True
) -> CommandAnswer:
    """Move a group, online or not, to the end of a topic; its backlog is never consumed."""
    return _moved(await tools.cluster_admin.reset_offsets(group, topic, END_OF_QUEUE_MS))


def _moved(offsets: dict[MessageQueue, int]) -> CommandAnswer:
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in sorted(offsets.items())]
    return CommandAnswer.of_rows("queues", "broker queue offset", rows)


@opt.command(app, "cloneGroupOffset")
async def clone_group_offset(
    tools: Tools,
    source: Annotated[str, option("-s --srcGroup", "The group to copy from.")],
    target: Annotated[str, option("-d --destGroup", "The group to copy to.")],
    topic: opt.Topic,
    offline: Annotated[
        bool, option("-o --offline", "Accepted for mqadmin's scripts; has no effect."), opt.FLAG
    ] = False,
) -> CommandAnswer:
    """Copy another group's offsets in a topic to a group that is not running."""
    rows = [(at, source, target, topic) for at in await resets.clone_offsets(tools, source, target, topic)]
    return CommandAnswer.of_rows("cloned", "broker source target topic", rows)


def _retry_policy(text: str, option: str) -> GroupRetryPolicy:
    try:
        return decode_body(text.encode(), GroupRetryPolicy)
    except RemoteProtocolError as error:
        example = '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}'
        raise typer.BadParameter(f"{option} {text}: expected JSON such as {example}: {error}") from None


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The options of updateSubGroup: fields of a group's configuration; None keeps the value."""

    is_consume_enabled: Annotated[
        bool | None, option("-s --consumeEnable", "Consumption allowed: true or false."), opt.FLAG
    ] = None
    is_from_min_enabled: Annotated[
        bool | None,
        option("-m --consumeFromMinEnable", "Start at the first offset: true or false."),
        opt.FLAG,
    ] = None
    is_broadcast_enabled: Annotated[
        bool | None, option("-d --consumeBroadcastEnable", "Broadcast allowed: true or false."), opt.FLAG
    ] = None
    is_orderly: Annotated[
        bool | None, option("-o --consumeMessageOrderly", "Consume in order: true or false."), opt.FLAG
    ] = None
    retry_queue_count: Annotated[
        int | None, option("-q --retryQueueNums", "Number of retry queues.", min=0)
    ] = None
    retry_count_max: Annotated[
        int | None, option("-r --retryMaxTimes", "Most redeliveries; -1: the default.", min=-1)
    ] = None
    broker_id: Annotated[
        int | None, option("-i --brokerId", "The broker to read from: 0 is the master.", min=0)
    ] = None
    slow_read_broker_id: Annotated[
        int | None,
        option("-w --whichBrokerWhenConsumeSlowly", "The broker that lagging consumers read from.", min=0),
    ] = None
    notifies_members: Annotated[
        bool | None,
        option("-a --notifyConsumerIdsChanged", "Notify members of changes: true or false."),
        opt.FLAG,
    ] = None
    retry_policy: Annotated[
        GroupRetryPolicy | None,
        option("-p --groupRetryPolicy", "The retry policy: JSON in mqadmin's format."),
        opt.Text(_retry_policy),
    ] = None
    attributes: Annotated[
        dict[str, str] | None, option("--attributes", "Attribute changes: +a=b,+c=d,-e."), opt.ATTRIBUTES
    ] = None


@opt.command(app, "updateSubGroup")
async def update_sub_group(
    tools: Tools, group: opt.Group, place: Place, settings: GroupSettings
) -> CommandAnswer:
    """Create a group, or change its given settings, at one broker or at every master of a cluster."""
    changes = opt.given(settings)
    targets = await find_targets(tools, place, masters_only=True)
    changed = await change_group(tools, targets, group, changes)
    rows = [(target.address, group, to_builtins(changes)) for target in changed]
    return CommandAnswer.of_rows("changed", "broker group settings", rows)


@opt.command(app, "updateSubGroupList")
def update_sub_group_list(file: opt.ListFile, place: Place) -> opt.Work:
    """Create or change all groups of a file, or none, at one broker or at every master of a cluster."""
    configs = opt.read_list(file, SubscriptionGroupConfig)

    async def work(tools: Tools) -> CommandAnswer:
        changed = await tools.change(await tools.masters(place), broker_admin.create_groups, configs)
        rows = [(at, config.name) for at, _ in changed for config in configs]
        return CommandAnswer.of_rows("changed", "broker group", rows)

    return work


def _mode(text: str, option: str) -> str:
    if text.upper() not in ("PULL", "POP"):
        raise typer.BadParameter(f"{option} {text}: must be PULL or POP")
    return text.upper()


@opt.command(app, "setConsumeMode")
async def set_consume_mode(
    tools: Tools,
    topic: Annotated[str, option("-t --topicName", "The topic.")],
    group: opt.Group,
    mode: Annotated[Literal["PULL", "POP"], option("-m --mode", "PULL or POP."), opt.Text(_mode)],
    place: Place,
    share_count: Annotated[
        int,
        option("-q --popShareQueueNum", "POP: share the queues of the next N members; 0: all queues.", min=0),
    ] = 0,
) -> CommandAnswer:
    """Set how a group consumes a topic, by pull or pop, when the broker assigns its queues."""
    wanted = RequestMode(group=group, mode=mode, pop_share_queue_count=share_count, topic=topic)
    changed = await tools.change(await tools.masters(place), broker_admin.set_request_mode, wanted)
    rows = [(at, topic, group, mode, share_count) for at, _ in changed]
    columns = "broker topic group mode pop_share_queues"
    return CommandAnswer.of_rows("changed", columns, rows)


# Implementation of the commands


async def show_progress(
    tools: Tools, group: str, topic: str, *, has_clients: bool = False, lag_max: int | None = None
) -> CommandAnswer:
    """Shows the progress of one group in each queue, optionally with the member that reads it, or the sums of
    all groups. A lag of a group above `lag_max` has exit code LAG_EXIT_CODE.
    """
    masters = await tools.masters()
    if group:
        answer = await _progress_of_group(tools, masters, group, topic, has_clients=has_clients)
        lags = {group: sum(row[LAG_COLUMNS.index("lag")] for row in answer.tables[0].rows)}
    else:
        answer = await _progress_of_all(tools, masters)
        lags = {name: lag for name, _, lag in answer.tables[0].rows}
    above = [name for name, lag in lags.items() if lag_max is not None and lag > lag_max]
    if not above:
        return answer
    notes = [*answer.notes, f"the lag is above {lag_max} messages: {', '.join(above)}"]
    return CommandAnswer(answer.tables, notes, LAG_EXIT_CODE)


async def _progress_of_all(tools: Tools, masters: list[str]) -> CommandAnswer:
    table, refused = Table("groups", ("group", "members", "lag")), []
    for one in await progress.read_group_names(tools, masters, await tools.cluster_admin.topics()):
        members = await read_members(tools.remoting, masters, one)
        lags = await progress.read_lags(tools, masters, one, members=members)
        table.rows.append((one, len(members.members), progress.sum_lag(lags)))
        refused += [f"{one}: {address}: {reason}" for address, reason in members.refused.items()]
    return CommandAnswer([table], refused)


async def _progress_of_group(
    tools: Tools, masters: list[str], group: str, topic: str, *, has_clients: bool
) -> CommandAnswer:
    table = Table("queues", LAG_COLUMNS)
    members = await read_members(tools.remoting, masters, group)
    lags = await progress.read_lags(tools, masters, group, topic, members=members)
    if not lags:
        for address, reason in members.refused.items():
            raise BadRequest(f"{address} does not tell the progress of {group!r}: {reason}")
        raise GroupNotFound(f"group {group!r} has committed no offset" + (f" in {topic!r}" if topic else ""))
    table.rows = list(map(lag_row, lags))
    notes = [f"lag {progress.sum_lag(lags)} messages, {len(members.members)} members online"]
    notes += [f"{address}: {reason}" for address, reason in members.refused.items()]
    if has_clients:
        reports = await progress.read_reports(tools, masters, group)
        notes += _notes(reports)
        # The address is the first part of a client id.
        readers = {queue: client.partition("@")[0] for queue, client in reports.readers().items()}
        table.columns = (*table.columns, "client_ip")
        table.rows = [(*lag_row(one), readers.get(one.queue)) for one in lags]
    return CommandAnswer([table], notes)


def client_row(one: ClientConnection | ProducerInfo) -> Row:
    """Returns a connected client as a row: client, address, language, version."""
    return (one.client_id, one.address, one.language, render_version(one.version))


def lag_row(one: progress.GroupLag) -> Row:
    """Returns the progress of a group in one queue as a row."""
    queue = one.queue
    place = (queue.topic, queue.broker_name, queue.queue_id)
    return (*place, one.broker_offset, one.committed_offset, one.lag, one.in_flight, one.read_at_ms)


def _notes(reports: progress.MemberReports) -> list[str]:
    return [f"{client} does not report its state: {error}" for client, error in reports.silent.items()]
