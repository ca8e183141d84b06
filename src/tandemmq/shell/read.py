"""`tandemmq consume`, `tail` and `browse`: messages as lines.

`consume` is a member of a group. `tail` and `browse` pull under the group of RocketMQ's tools, which commits
nothing, so these two commands leave no trace.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from tandemmq.admin.options import Text, grouped, option
from tandemmq.api.broker_consume import PullStatus
from tandemmq.client import Consumer, ConsumerOptions, MessageQueue, ReceivedMessage, StartFrom
from tandemmq.errors import TandemError
from tandemmq.manage.messages import find_place, find_records
from tandemmq.manage.reading import TopicPuller
from tandemmq.manage.resets import start_group
from tandemmq.manage.tools import Tools, open_tools, tools_options
from tandemmq.protocol.record import Record
from tandemmq.shell import session
from tandemmq.shell.positions import FIRST, LAST, POSITION, SECONDS, WHEN, StartPosition
from tandemmq.units import MASTER_ID

SUSPEND_MS: Final = 15_000
WAITING_PULLS_MAX: Final = 16
"""The most answers of all queues that wait to be printed to a slow reader; then pulling pauses."""
_LAST: Final = 10
"""The number of messages with which `tail` starts, as the Unix command starts with ten lines."""
_RETRY_S: Final = 0.5
_READER_CHECK_S: Final = 0.5

_SINGLE_BAR: Final = re.compile(r"(?<!\|)\|(?!\|)")


def _tags(text: str, option: str) -> str:
    if _SINGLE_BAR.search(text) or (text.strip() and not text.replace("||", "").strip()):
        raise typer.BadParameter(f"{option} {text}: separate tags by ||")
    return text


Tag = Annotated[str, option("--tag TAGS", "Only messages with these tags, separated by ||."), Text(_tags)]


# Reading as a group


@dataclass(frozen=True, slots=True)
class EndOptions:
    """The options that end the reading of a group; by default it runs until Ctrl-C."""

    count: Annotated[int | None, option("--count -c N", "Stop after N messages.", min=1)] = None
    wait_s: Annotated[
        float | None, option("--wait TIME", "Stop after this time without a message: 5, 500ms, 2m."), SECONDS
    ] = None


@grouped
def consume(
    topic: session.Topic,
    group: session.Group,
    namesrv: session.NameServers = "",
    tag: Tag = "*",
    start: Annotated[
        StartPosition | None,
        option(
            "--from WHERE",
            "Where a new group starts: earliest, latest, offset:N, a duration ago (2h) or a time.",
            show_default="earliest",
        ),
        POSITION,
    ] = None,
    ends: EndOptions = EndOptions(),  # frozen
    form: session.LineForm = session.PLAIN,
) -> None:
    """Read as a member of a group. Printed messages are acknowledged; the next run continues after them."""
    servers = session.find_name_servers(namesrv)

    async def work() -> int:
        async with open_tools(servers) as tools:
            await tools.cluster_admin.topic_route(topic)
            if start is not None:
                await _place_group(tools, group, topic, start)
        async with Consumer(group, servers, options=reader_options(start or FIRST)) as consumer:
            consumer.subscribe(topic, tag)
            async for messages in read_messages(consumer, ends):
                session.write_messages(messages, form)
                consumer.ack(*messages)
        return 0

    session.run(work)


def reader_options(start: StartPosition) -> ConsumerOptions:
    """Returns the options of a member whose messages are acknowledged one by one."""
    at_end, at_time = start == LAST, start.time_ms > 0
    return ConsumerOptions(
        client=tools_options(),
        start_from=StartFrom.LAST if at_end else StartFrom.TIMESTAMP if at_time else StartFrom.FIRST,
        start_time_ms=start.time_ms if at_time else None,
        auto_ack=False,
        commit_s=1.0,
    )


async def read_messages(consumer: Consumer, ends: EndOptions) -> AsyncIterator[list[ReceivedMessage]]:
    """Yields the messages as they arrive, until the options or a closed standard output end it."""
    left = ends.count
    last_at = time.monotonic()
    while left is None or left > 0:
        most = 256 if left is None else min(left, 256)
        timeout_s = min(_READER_CHECK_S, ends.wait_s or _READER_CHECK_S)
        messages = await consumer.poll(most, timeout_s=timeout_s)
        if session.is_reader_gone():
            break
        if messages:
            yield messages
            last_at = time.monotonic()
            left = None if left is None else left - len(messages)
        elif ends.wait_s is not None and time.monotonic() - last_at >= ends.wait_s:
            break


async def _place_group(tools: Tools, group: str, topic: str, start: StartPosition) -> None:
    """Stores an offset as the position of a new group; says so if the group is not new."""
    committed = await tools.cluster_admin.committed_offsets(group, topic)
    if any(offset is not None for offset in committed.values()):
        session.note(
            f"group {group} has read {topic} before and continues there, whatever --from says;"
            f" `tandemmq groups reset {group}` moves it"
        )
    elif start.offset is not None:
        await start_group(tools, group, topic, start.offset)


# Reading without a group


async def follow_queue(
    reader: TopicPuller, queue: MessageQueue, offset: int, out: asyncio.Queue[list[ReceivedMessage]]
) -> None:
    """Puts all messages from the offset on into `out`, until cancelled. A series of failures is reported
    once, and reading is retried.
    """
    is_unreadable = False
    while True:
        try:
            pulled, found, broker_id = await reader.pull(queue, offset, suspend_ms=SUSPEND_MS)
        except TandemError as error:
            if not is_unreadable:
                session.note(
                    f"queue {queue.queue_id} of {queue.broker_name} cannot be read: {error}; retrying"
                )
            is_unreadable = True
            await asyncio.sleep(_RETRY_S)
            with suppress(TandemError):  # the name server is unreachable, too; keep the known addresses
                await reader.queues()
            continue
        is_unreadable = False
        if found:
            await out.put(found)
        if broker_id != MASTER_ID and pulled.next_offset < offset:
            await asyncio.sleep(_RETRY_S)  # the slave lags: it does not have this offset yet
        elif pulled.next_offset == offset:
            await asyncio.sleep(0.05 if pulled.status is PullStatus.NOTHING_NEW else _RETRY_S)
        else:
            offset = pulled.next_offset


def sort_by_time(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """Returns the messages in the order of their store times, then of their queue positions."""
    return sorted(
        messages, key=lambda one: (one.stored_at_ms, one.broker_name, one.queue_id, one.queue_offset)
    )


@grouped
def tail(
    topic: session.Topic,
    namesrv: session.NameServers = "",
    last: Annotated[
        int | None,
        option(
            "--last -l N",
            "Start with the last N messages.",
            min=0,
            max=100_000,
            show_default=f"{_LAST}, none with --since",
        ),
    ] = None,
    since_ms: Annotated[
        int | None, option("--since", "Start at a time, or a duration ago: 90s, 10m, 2h, 7d."), WHEN
    ] = None,
    follow: Annotated[
        bool, option("--follow/--no-follow", "Keep printing new messages, or exit at the end.")
    ] = True,
    tag: Tag = "*",
    form: session.LineForm = session.PLAIN,
) -> None:
    """Show the last messages of all queues and new ones, without a group; continues while brokers restart."""
    if last and since_ms is not None:
        raise typer.BadParameter("--last and --since exclude each other: give only one")
    if last is None:
        last = 0 if since_ms is not None else _LAST
    servers = session.find_name_servers(namesrv)

    async def work() -> int:
        async with open_tools(servers) as tools:
            reader = TopicPuller(tools, topic, tag)
            await reader.queues()
            offsets = await _print_last(reader, last, since_ms, form)
            if follow:
                await _follow(reader, offsets, form)
        return 0

    session.run(work)


async def _print_last(
    reader: TopicPuller, last: int, since_ms: int | None, form: session.LineForm
) -> dict[MessageQueue, int]:
    """Prints the messages since a time, or the last ones; returns the offsets behind them, by queue."""
    admin, topic = reader.tools.cluster_admin, reader.topic
    ranges = await admin.topic_offsets(topic)
    offsets: dict[MessageQueue, int] = {queue: ends.max_offset for queue, ends in ranges.items()}
    begins: dict[MessageQueue, int] = {}
    if since_ms is not None:
        begins = dict(await admin.offsets_at(topic, since_ms))
    elif last:
        begins = {queue: max(ends.min_offset, ends.max_offset - last) for queue, ends in ranges.items()}
    old: list[ReceivedMessage] = []
    for queue, begin in begins.items():
        end = offsets.get(queue, begin)
        old += await reader.read(queue, begin, max(0, end - begin))
    old = sort_by_time(old)
    session.write_messages(old[-last:] if last else old, form)
    for message in old:
        place = MessageQueue(topic, message.broker_name, message.queue_id)
        offsets[place] = max(offsets.get(place, 0), message.queue_offset + 1)
    return offsets


async def _follow(reader: TopicPuller, offsets: dict[MessageQueue, int], form: session.LineForm) -> None:
    found: asyncio.Queue[list[ReceivedMessage]] = asyncio.Queue(WAITING_PULLS_MAX)
    tasks = [asyncio.create_task(follow_queue(reader, queue, at, found)) for queue, at in offsets.items()]
    try:
        while not session.is_reader_gone():
            for task in tasks:
                if task.done():
                    task.result()
            try:
                async with asyncio.timeout(_READER_CHECK_S):
                    messages = await found.get()
            except TimeoutError:
                continue
            session.write_messages(messages, form)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Options for the messages to look up; at most one of the offset, the time, the key and the id."""

    offset: Annotated[int | None, option("--offset", "Start at this queue offset.", min=0)] = None
    queue: Annotated[int | None, option("--queue -q", "Only the queue with this id.", min=0)] = None
    broker: Annotated[str, option("--broker -b", "Only this broker's queues.")] = ""
    when_ms: Annotated[int | None, option("--time", "Start at a time, or a duration ago: 10m."), WHEN] = None
    key: Annotated[str, option("--key -k", "Only messages with this key.")] = ""
    message_id: Annotated[str, option("--id -i", "Only the message with this id.")] = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.offset is not None, self.when_ms is not None, self.key, self.message_id))) > 1:
            raise typer.BadParameter("--offset, --time, --key and --id exclude each other: give only one")


@grouped
def browse(
    topic: session.Topic,
    namesrv: session.NameServers = "",
    position: Lookup = Lookup(),  # frozen
    tag: Tag = "*",
    count: Annotated[int, option("--count -c N", "Stop after N messages.", min=1, max=100_000)] = 20,
    form: session.MetaForm = session.MetaForm(),  # frozen
) -> None:
    """Look up messages by position, time, key, tag or id; exit code 1 when none is found."""
    servers = session.find_name_servers(namesrv)

    async def work() -> int:
        async with open_tools(servers) as tools:
            reader = TopicPuller(tools, topic, tag)
            if position.key or position.message_id:
                records = await _look_up(tools, topic, position, count)
                messages = [
                    ReceivedMessage(one, broker_name=(await find_place(tools, one)).broker_name)
                    for one in records
                    if reader.subscription.matches(one.tags)
                ]
            else:
                messages = []
                begins = {}
                if position.when_ms is not None:
                    begins = await tools.cluster_admin.offsets_at(topic, position.when_ms)
                for one in await reader.queues_at(position.broker, position.queue):
                    messages += await reader.read(one, begins.get(one, position.offset or 0), count)
            session.write_messages(sort_by_time(messages)[:count], form)
        if not messages:
            session.note("no message found")
        return 0 if messages else 1

    session.run(work)


async def _look_up(tools: Tools, topic: str, position: Lookup, count: int) -> Sequence[Record]:
    if position.key:
        return await tools.cluster_admin.find_by_key(topic, position.key, count_max=count)
    return await find_records(tools, position.message_id, topic)
