"""`tandemmq groups`: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from tandemmq.admin import options as opt
from tandemmq.admin.groups import LAG_COLUMNS, client_row, lag_row, show_progress
from tandemmq.admin.options import option
from tandemmq.admin.render import CommandAnswer, Row, Table, print_preview
from tandemmq.manage.groups import delete_everywhere, read_group
from tandemmq.manage.resets import NewPosition, QueueMove, preview_reset, reset_group
from tandemmq.manage.tools import Tools
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.runtime.machine import LoopClock
from tandemmq.shell import nouns
from tandemmq.shell.nouns import Yes, confirm, noun, verb
from tandemmq.shell.positions import POSITION, StartPosition

app = noun("List, describe, reset and delete consumer groups.")


@verb(app, "list")
async def list_groups(tools: Tools) -> CommandAnswer:
    """List consumer groups with their members and their lag."""
    return await show_progress(tools, "", "")


@verb(app, "describe")
async def describe_group(tools: Tools, group: nouns.Group) -> CommandAnswer:
    """Show a group's settings, members, subscriptions and progress."""
    held, state = await read_group(tools, group, LoopClock().now_ms())
    settings = Table("settings", ("broker", "consumption", "in_order", "retries_max", "attributes"))
    for name, one in sorted(held.configs.items()):
        allowed = "allowed" if one.is_consume_enabled else "stopped"
        settings.rows.append((name, allowed, one.is_orderly, one.retry_count_max, one.attributes))
    members = Table("members", ("client", "address", "language", "version"))
    members.rows = [client_row(one) for _, one in sorted(state.members.members.items())]
    wants = Table("subscriptions", ("topic", "expression"))
    for topic, by_broker in sorted(state.members.subscriptions.items()):
        wants.rows += sorted({(topic, data.expression) for data in by_broker.values()})
    queues = Table("queues", LAG_COLUMNS, [lag_row(one) for one in state.lags])
    behind = "" if state.behind_s is None else f", {state.behind_s} s behind"
    notes = [
        f"lag {state.lag} messages{behind}, {len(members.rows)} members online, {state.retry_count} messages"
        f" wait for a retry, {state.dead_count} dead letters"
    ]
    tables = [settings, *(table for table in (members, wants, queues) if table.rows)]
    return CommandAnswer(tables, notes)


@verb(app, "reset")
def reset(
    group: nouns.Group,
    to: Annotated[
        StartPosition,
        option("--to WHERE", "earliest, latest, a duration ago (2h), a time, or offset:N with --queue."),
        POSITION,
    ],
    topic: Annotated[str, option("--topic -t", "Only this topic.", show_default="all that it has read")] = "",
    queue: Annotated[str, option("--queue -q BROKER/ID", "Only this queue of the topic.")] = "",
    dry_run: Annotated[bool, option("--dry-run", "Show the preview; change nothing.")] = False,
    yes: Yes = False,
) -> opt.Work:
    """Move a group to other messages, running or not, after a preview of what it skips and repeats."""
    if to.offset is not None and not queue:
        raise typer.BadParameter("--to offset:N also needs the queue of the offset: --queue broker-a/0")
    if queue and not topic:
        raise typer.BadParameter("--queue also needs its topic: --topic")
    broker, _, number = queue.rpartition("/")
    if queue and not (broker and number.isdecimal()):
        raise typer.BadParameter(f"--queue {queue}: expected a broker and a queue, such as broker-a/0")
    only = MessageQueue(topic, broker, int(number)) if queue else None
    position = NewPosition(to.time_ms, only, to.offset)

    async def work(tools: Tools) -> CommandAnswer:
        _, state = await read_group(tools, group, LoopClock().now_ms())
        topics = [topic] if topic else state.topics
        moves = [move for one in topics for move in await preview_reset(tools, group, one, position)]
        preview = _preview(moves)
        if dry_run or not moves:
            return preview
        if not yes:
            print_preview(preview)
        confirm(f"Move group {group} in {', '.join(topics)}?", yes=yes)
        for one in topics:
            await reset_group(tools, group, one, position)
        return CommandAnswer([Table("moved", ("topic", "queues", "skipped", "repeated"), _sums(moves))])

    return work


@verb(app, "delete")
async def delete(
    tools: Tools,
    group: nouns.Group,
    keep_offsets: Annotated[
        bool, option("--keep-offsets", "Keep its offsets: a new group of that name continues.")
    ] = False,
    yes: Yes = False,
) -> CommandAnswer:
    """Delete a group with its settings and offsets, at every broker; asks before."""
    held, state = await read_group(tools, group, LoopClock().now_ms())
    confirm(
        f"Delete group {group} at {', '.join(sorted(held.configs))}: {len(state.members.members)} members"
        f" online, lag {state.lag}?",
        yes=yes,
    )
    await delete_everywhere(tools, held, removes_offsets=not keep_offsets)
    return CommandAnswer.of_rows("deleted", "group broker", [(group, name) for name in sorted(held.configs)])


def _preview(moves: list[QueueMove]) -> CommandAnswer:
    columns = ("topic", "broker", "queue", "committed_offset", "new_offset", "skipped", "repeated")
    rows = [
        (
            *(one.queue.topic, one.queue.broker_name, one.queue.queue_id, one.committed, one.new_offset),
            *(one.skipped, one.repeated),
        )
        for one in moves
    ]
    sums = [f"{topic}: skips {skipped}, repeats {again}" for topic, _, skipped, again in _sums(moves)]
    return CommandAnswer([Table("queues", columns, rows)], sums or ["the group has read no topic"])


def _sums(moves: list[QueueMove]) -> list[Row]:
    """Returns topic, queues, skipped and repeated messages for each topic."""
    by_topic: dict[str, list[QueueMove]] = {}
    for move in moves:
        by_topic.setdefault(move.queue.topic, []).append(move)
    return [
        (topic, len(own), sum(one.skipped for one in own), sum(one.repeated for one in own))
        for topic, own in by_topic.items()
    ]
