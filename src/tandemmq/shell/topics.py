"""`tandemmq topics`: lists, creates, describes, alters and deletes topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from tandemmq.admin import options as opt
from tandemmq.admin.options import option
from tandemmq.admin.render import CommandAnswer, Table, rows_of
from tandemmq.admin.topics import END_COLUMNS, QUEUE_ENDS
from tandemmq.client.admin_topics import NEW_QUEUE_COUNT
from tandemmq.errors import TandemError
from tandemmq.manage import topics
from tandemmq.manage.tools import Tools
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT, Permission
from tandemmq.runtime.machine import LoopClock
from tandemmq.shell import session
from tandemmq.shell.nouns import Yes, confirm, noun, verb

app = noun("List, create, describe, alter and delete topics.")

QUEUES_MAX: Final = 65535
_PERMISSIONS: Final = {
    "read-write": Permission.READ | Permission.WRITE,
    "read": Permission.READ,
    "write": Permission.WRITE,
    "none": 0,
}


def _permission(text: str, option: str) -> int:
    if text not in _PERMISSIONS:
        raise typer.BadParameter(f"{option} {text}: must be one of {', '.join(_PERMISSIONS)}")
    return int(_PERMISSIONS[text])


def _kind(text: str, option: str) -> str:
    if text.upper() not in topics.MESSAGE_TYPES:
        raise typer.BadParameter(f"{option} {text}: must be one of {', '.join(topics.MESSAGE_TYPES)}")
    return text.upper()


Queues = Annotated[int, option("--queues -q", "Queues at each broker.", min=1, max=QUEUES_MAX)]
NewQueues = Annotated[int | None, option("--queues -q", "Queues at each broker.", min=1, max=QUEUES_MAX)]
Perm = Annotated[
    int | None,
    option("--permission PERMISSION", f"What clients may do: {', '.join(_PERMISSIONS)}."),
    opt.Text(_permission),
]
Kind = Annotated[
    str, option("--type TYPE", f"The kind of messages: {', '.join(topics.MESSAGE_TYPES)}."), opt.Text(_kind)
]
Attributes = Annotated[
    list[str] | None, option("--attribute NAME=VALUE", "An attribute; repeatable. NAME= removes it.")
]
Cluster = Annotated[str, option("--cluster", "The cluster's name; needed if the name servers know several.")]


def _signed(given: list[str] | None, kind: str) -> dict[str, str]:
    """Returns changes of attributes as brokers expect them: `+name` -> value, `-name` -> nothing."""
    signed: dict[str, str] = {}
    for text in given or ():
        name, has_value, value = text.partition("=")
        if not name or not has_value:
            raise typer.BadParameter(f"--attribute {text}: expected NAME=VALUE, or NAME= to remove it")
        signed[f"+{name}" if value else f"-{name}"] = value
    return signed | ({f"+{topics.MESSAGE_TYPE}": kind} if kind else {})


@verb(app, "list")
async def list_topics(
    tools: Tools,
    all_topics: Annotated[bool, option("--all", "Include system, retry and dead-letter topics.")] = False,
) -> CommandAnswer:
    """List topics with their queues and message counts."""
    table = Table("topics", ("topic", "queues", "messages", "brokers"))
    info = await tools.cluster_admin.cluster_info()
    system = topics.system_names(info)
    for name in await tools.cluster_admin.topics():
        if not all_topics and topics.topic_kind(name, system) is not topics.TopicKind.USER:
            continue
        try:
            ends = await tools.cluster_admin.topic_offsets(name)
        except TandemError as error:
            table.rows.append((name, None, None, str(error)))
            continue
        brokers = sorted({queue.broker_name for queue in ends})
        if all_topics or ends:
            count = sum(one.count for one in ends.values())
            table.rows.append((name, len(ends), count, " ".join(brokers)))
    return CommandAnswer(
        [table], [] if table.rows else ["no topic yet: `echo hello | tandemmq produce demo`"]
    )


@verb(app, "create")
def create_topic(
    topic: session.Topic,
    queues: Queues = NEW_QUEUE_COUNT,
    permission: Perm = None,
    kind: Kind = "",
    attribute: Attributes = None,
    cluster: Cluster = "",
    exist_ok: Annotated[
        bool, option("--exist-ok", "Succeed, and change nothing, if the topic exists.")
    ] = False,
) -> opt.Work:
    """Create a topic at every master of a cluster; an existing topic with other settings is an error."""
    attributes = _signed(attribute, kind)

    async def work(tools: Tools) -> CommandAnswer:
        is_new = await topics.create_topic(
            tools,
            topic,
            cluster=cluster,
            queue_count=queues,
            permission=PERMISSION_DEFAULT if permission is None else permission,
            attributes=attributes,
            exist_ok=exist_ok,
        )
        notes = [] if is_new else [f"topic {topic} exists already; nothing is changed"]
        return _shown(await topics.read_topic(tools, topic, LoopClock().now_ms()), notes)

    return work


@verb(app, "describe")
async def describe_topic(tools: Tools, topic: session.Topic) -> CommandAnswer:
    """Show a topic's settings, queues, traffic and the groups that read it."""
    found = await topics.read_topic(tools, topic, LoopClock().now_ms())
    shown = _shown(found)
    queues = Table("queues", END_COLUMNS, rows_of(found.queues, QUEUE_ENDS))
    groups = Table("groups", ("group", "members", "lag", "behind_seconds", "out_tps", "out_24h"))
    groups.rows = [
        (one.group, one.member_count, one.lag, one.behind_s, round(one.out_tps, 2), one.out_day)
        for one in found.consumers
    ]
    load = found.load
    notes = [f"{load.count} messages; {load.in_tps:.1f} per second now, {load.in_day} in the last 24 hours"]
    if not found.consumers:
        notes.append("no group reads it")
    if found.consumer_count > len(found.consumers):
        notes.append(f"the first {len(found.consumers)} of {found.consumer_count} groups are shown")
    tables = [*shown.tables, queues, *([groups] if groups.rows else [])]
    return CommandAnswer(tables, [*notes, *shown.notes], exit_code=1 if found.failed else 0)


@verb(app, "alter")
def alter_topic(
    topic: session.Topic,
    queues: NewQueues = None,
    permission: Perm = None,
    kind: Kind = "",
    attribute: Attributes = None,
    cluster: Cluster = "",
    force: Annotated[bool, option("--force", "Remove queues even if they hold unread messages.")] = False,
) -> opt.Work:
    """Change the given settings of a topic; the others stay. Queues with unread messages are not removed."""
    attributes = _signed(attribute, kind)
    changes: dict[str, Any] = (
        {} if queues is None else {"read_queue_count": queues, "write_queue_count": queues}
    )
    changes |= {} if permission is None else {"permission": permission}
    changes |= {"attributes": attributes} if attributes else {}
    if not changes:
        raise typer.BadParameter("give a new value: --queues, --permission, --type or --attribute")

    async def work(tools: Tools) -> CommandAnswer:
        found = await topics.read_topic(tools, topic, LoopClock().now_ms())
        masters = await topics.find_topic_masters(tools, found, cluster)
        await topics.change_topic(tools, masters, topic, changes, force=force)
        return _shown(await topics.read_topic(tools, topic, LoopClock().now_ms()))

    return work


@verb(app, "delete")
async def remove_topic(tools: Tools, topic: session.Topic, yes: Yes = False) -> CommandAnswer:
    """Delete a topic with all its messages, at every broker; asks before."""
    found = await topics.read_topic(tools, topic, LoopClock().now_ms())
    readers = ", ".join(f"{one.group} (lag {one.lag})" for one in found.consumers)
    confirm(
        f"Delete topic {topic} with {found.load.count} messages at {', '.join(sorted(found.topic.configs))},"
        f" read by {readers or 'no group'}?",
        yes=yes,
    )
    await topics.delete_topic(tools, found)
    return CommandAnswer.of_rows("deleted", "topic messages", [(topic, found.load.count)])


def _shown(found: topics.TopicDetails, notes: Sequence[str] = ()) -> CommandAnswer:
    """Shows the settings of a topic at each broker."""
    table = Table("topics", ("broker", "topic", "read_queues", "write_queues", "permission", "attributes"))
    for name, one in sorted(found.topic.configs.items()):
        counts = one.read_queue_count, one.write_queue_count
        table.rows.append((name, one.name, *counts, topics.permission_text(one.permission), one.attributes))
    silent = [f"{one.broker_name} does not answer: {error}" for one, error in found.failed.items()]
    return CommandAnswer([table], [*notes, *silent])
