"""`tandemmq dlq`: lists, shows, resends and purges the dead letters of groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from tandemmq.admin.options import grouped, option
from tandemmq.admin.render import CommandAnswer, Table
from tandemmq.client import ReceivedMessage
from tandemmq.errors import GroupNotFound, TandemError
from tandemmq.manage import dead_letters
from tandemmq.manage.groups import read_groups
from tandemmq.manage.tools import Tools, open_tools
from tandemmq.protocol import properties as names
from tandemmq.protocol.topic_names import dlq_topic, retry_topic
from tandemmq.shell import nouns, session
from tandemmq.shell.nouns import Yes, confirm, noun, verb

app = noun("List, show, resend and purge dead letters: messages whose retries are used up.")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options that choose dead letters; without keys and ids, all."""

    key: Annotated[list[str] | None, option("--key -k", "Only messages with this key; repeatable.")] = None
    message_id: Annotated[
        list[str] | None, option("--id -i", "Only the message with this id; repeatable.")
    ] = None

    @property
    def is_everything(self) -> bool:
        return not (self.key or self.message_id)

    def accepts(self, message: ReceivedMessage) -> bool:
        """Returns True for a chosen dead letter."""
        ids = {message.message_id, message.record.message_id, message.properties.get(names.ORIGIN_MESSAGE_ID)}
        has_key = bool(set(self.key or ()).intersection(message.keys))
        return self.is_everything or has_key or bool(set(self.message_id or ()) & ids)


@dataclass(frozen=True, slots=True)
class ResendOptions:
    """The options of a resend."""

    to: Annotated[
        str,
        option("--to TOPIC", "Send to this topic instead.", show_default="the group's retry topic"),
        session.TOPIC_NAME,
    ] = ""
    again: Annotated[bool, option("--again", "Include messages that an earlier resend sent.")] = False
    dry_run: Annotated[bool, option("--dry-run", "Print the dead letters instead of sending them.")] = False


@verb(app, "list")
async def list_letters(tools: Tools) -> CommandAnswer:
    """List the groups that have dead letters, with their numbers."""
    groups = await dead_letters.read_dead_letter_groups(tools)
    counts = await dead_letters.read_dead_letter_counts(tools, groups)
    table = Table("groups", ("group", "dead_letters", "not_resent"))
    table.rows = [(one.group, one.kept, one.left) for one in counts.values()]
    notes = [f"{one.group} cannot be counted: {one.error}" for one in counts.values() if one.error]
    if len(groups) == dead_letters.GROUPS_MAX:
        notes.append(f"only the first {dead_letters.GROUPS_MAX} groups are listed")
    return CommandAnswer([table], notes or ([] if table.rows else ["no group has a dead letter"]))


@app.command("show")
@grouped
def show_letters(
    group: nouns.Group,
    namesrv: session.NameServers = "",
    wanted: Wanted = Wanted(),  # frozen
    again: Annotated[bool, option("--all/--not-resent", "Include messages that a resend has sent.")] = True,
    count: Annotated[int, option("--count -c N", "Stop after N messages.", min=1, max=100_000)] = 20,
    form: session.MetaForm = session.MetaForm(),  # frozen
) -> None:
    """Print a group's dead letters; exit code 1 when there is none."""

    async def work() -> int:
        left = count
        async with open_tools(session.find_name_servers(namesrv)) as tools:
            reader = await _open(tools, group, again=again)
            async for _, messages in reader.read():
                chosen = [one for one in messages if wanted.accepts(one)][:left]
                session.write_messages(chosen, form)
                left -= len(chosen)
                if not left:
                    session.note(f"stopped after {count} messages; --count prints more")
                    break
        if left == count:
            session.note("no message found")
        return 1 if left == count else 0

    session.run(work)


@app.command("resend")
@grouped
def resend_letters(
    group: nouns.Group,
    namesrv: session.NameServers = "",
    wanted: Wanted = Wanted(),  # frozen
    options: ResendOptions = ResendOptions(),  # frozen
    as_json: session.AsJson = False,
) -> None:
    """Redeliver a group's dead letters; only that group receives them, unless --to names a topic.

    Without --key and --id all dead letters are sent, and the next run continues after them.
    """
    run_resend(group, namesrv, wanted, options, as_json=as_json)


@verb(app, "purge")
async def purge(tools: Tools, group: nouns.Group, yes: Yes = False) -> CommandAnswer:
    """Delete all dead letters of a group; asks before."""
    topic = dlq_topic(group)
    if topic not in await tools.cluster_admin.topics():
        await _require_group(tools, group)
        return CommandAnswer.of_rows("purged", "group dead_letters", [(group, 0)])
    count = await dead_letters.read_dead_letter_count(tools, group)
    if count.kept is None:
        raise session.Explained(f"the dead letters of {group} cannot be counted: {count.error}")
    confirm(
        f"Delete the {count.kept} dead letters of group {group}, of which {count.left} were never resent?",
        yes=yes,
    )
    await dead_letters.purge_letters(tools, group)
    return CommandAnswer.of_rows("purged", "group dead_letters", [(group, count.kept)])


def run_resend(group: str, namesrv: str, wanted: Wanted, options: ResendOptions, *, as_json: bool) -> None:
    """Runs `tandemmq dlq resend` and `tandemmq resend`."""
    servers = session.find_name_servers(namesrv)
    show = None
    if options.dry_run:
        show = partial(session.write_messages, form=session.LineForm(has_meta=True, as_json=as_json))
    target = options.to or retry_topic(group)

    async def work() -> int:
        async with open_tools(servers) as tools:
            sender = dead_letters.DeadLetterSender(tools, group, options.to, session.note)
            try:
                reader = await _open(tools, group, again=options.again or not wanted.is_everything)
                await _send(reader, sender, wanted, show)
            except TandemError as error:
                sent = f"; {sender.sent_count} dead letters were already sent" if sender.sent_count else ""
                raise session.Explained(f"{session.explain(error)}{sent}") from error
        if not options.dry_run:
            facts = {"group": group, "topic": target, "sent": sender.sent_count}
            sentence = f"{sender.sent_count} dead letters of {group} sent to {target}"
            typer.echo(json.dumps(facts) if as_json else sentence)
        return 0

    session.run(work)


async def _open(tools: Tools, group: str, *, again: bool) -> dead_letters.DeadLetterReader:
    """Returns the dead letters of a group. Raises GroupNotFound."""
    if dlq_topic(group) not in await tools.cluster_admin.topics():
        await _require_group(tools, group)
    reader = dead_letters.DeadLetterReader(tools, group, session.note)
    await reader.open(again=again)
    return reader


async def _require_group(tools: Tools, group: str) -> None:
    if group not in (await read_groups(tools)).groups:
        raise GroupNotFound(f"no broker has the group {group!r}")


async def _send(
    reader: dead_letters.DeadLetterReader,
    sender: dead_letters.DeadLetterSender,
    wanted: Wanted,
    show: Callable[..., None] | None,
) -> None:
    """Sends the wanted dead letters, or shows them instead. The progress is saved after each part, unless
    only some are wanted.
    """
    if show is None and wanted.is_everything:
        await reader.prepare()
    async for queue, messages in reader.read():
        chosen = [message for message in messages if wanted.accepts(message)]
        if show is not None:
            show(chosen)
        elif wanted.is_everything:
            await dead_letters.send_part(reader, sender, queue, chosen)
        else:
            await sender.send(chosen)
