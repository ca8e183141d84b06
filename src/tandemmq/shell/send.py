"""`tandemmq produce` sends lines as messages, as they arrive; `tandemmq resend` redelivers dead letters."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import structs

from tandemmq.admin.options import grouped
from tandemmq.api import broker_send
from tandemmq.client import (
    BlockingProducer,
    Message,
    MessageQueue,
    ProducerOptions,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from tandemmq.client.consumer.subscription import parse_subscription
from tandemmq.client.route_cache import build_view
from tandemmq.errors import MessageIllegal, NoRoute, NotPermitted, TandemError, TopicNotFound
from tandemmq.manage.reading import TopicPuller
from tandemmq.manage.tools import Tools, open_tools, tools_options
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import dlq_topic, is_retry_topic, retry_topic
from tandemmq.shell import session
from tandemmq.units import MIB

if TYPE_CHECKING:
    from rich.progress import Progress

READ_BYTES: Final = MIB
LINE_BYTES_MAX: Final = 4 * MIB
_ROUTE_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The options of `produce` that every message gets."""

    key: Annotated[list[str] | None, typer.Option("--key", help="A key for every message; repeatable.")] = (
        None
    )
    tag: Annotated[str, typer.Option("--tag", help="A tag for every message.")] = ""
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", help="A property for every message; repeatable.", metavar="NAME=VALUE"),
    ] = None
    priority: Annotated[
        int | None,
        typer.Option("--priority", help="A priority for every message; 0 is the lowest.", min=0, metavar="N"),
    ] = None


@grouped
def produce(
    topic: session.Topic,
    namesrv: session.NameServers = "",
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read this file instead of standard input.", metavar="FILE"),
    ] = None,
    given: MessageOptions = MessageOptions(),
    batch: Annotated[
        int, typer.Option("--batch", help="Most messages in one request.", min=1, max=10_000)
    ] = 1_000,
    as_json: session.AsJson = False,
) -> None:
    """Send each line as one message, without its line end. Empty lines are skipped."""
    session.check_name(topic)
    pairs = dict(_pair(text) for text in given.properties or ())
    options = ProducerOptions(client=tools_options(), batch_count_max=batch)
    every = Message(
        topic, b"", tags=given.tag, keys=given.key or (), properties=pairs, priority=given.priority
    )

    with session.explained_errors(), ExitStack() as stack:
        producer = stack.enter_context(
            BlockingProducer("TANDEMMQ_PRODUCE", session.find_name_servers(namesrv), options=options)
        )
        _wait_for_route(producer, topic)
        source = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
        if file is not None:
            stack.callback(os.close, source)
        if os.isatty(source):
            session.note("each line that you type becomes a message; Ctrl-D ends the input")
        sending = Sending(stack.enter_context(_progress(source)))
        try:
            for lines in read_lines(source):
                messages = [structs.replace(every, body=line) for line in lines if line]
                sending.send(producer, messages, len(lines))
        except KeyboardInterrupt:
            session.note("interrupted")
            sending.print_summary(topic, as_json=as_json)
            raise typer.Exit(130) from None
        except TandemError as error:
            raise sending.explain(error) from error
    sending.print_summary(topic, as_json=as_json)


def read_lines(source: int) -> Iterator[list[bytes]]:
    """Yields the available lines as soon as there are some; the last one may lack its line end.

    Raises:  MessageIllegal for a line that is longer than a message may be.
    """
    rest = b""
    while chunk := os.read(source, READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise MessageIllegal(
                f"a line is longer than {LINE_BYTES_MAX} bytes, the most that a message can hold"
            )
        if lines:
            yield lines
    if rest:
        yield [rest]


class Sending:
    """The progress of sending, and the bar that shows it."""

    def __init__(self, progress: Progress | None) -> None:
        self.sent_count = 0
        self.alone_count = 0
        self.lines_before = 0
        self._progress = progress
        self._task = None if progress is None else progress.add_task("", total=None, rate="")
        self._began = time.monotonic()

    def send(self, producer: BlockingProducer, messages: list[Message], line_count: int) -> None:
        """Sends the messages. Raises the first error, once every send in flight has its result."""
        producer.send_many(messages, on_result=self._count)
        self.lines_before += line_count
        if self._progress is not None and self._task is not None:
            rate = f"{self.sent_count:,} messages, {self._rate():,.0f}/s"
            self._progress.update(self._task, rate=rate)

    def _count(self, message: Message, outcome: SendResult | TandemError) -> None:
        if isinstance(outcome, TandemError):
            return
        self.sent_count += 1
        self.alone_count += not outcome.is_ok

    def _rate(self) -> float:
        return self.sent_count / max(time.monotonic() - self._began, 1e-6)

    def print_summary(self, topic: str, *, as_json: bool) -> None:
        """Prints the summary."""
        seconds = time.monotonic() - self._began
        if as_json:
            facts = {"topic": topic, "sent": self.sent_count, "not_replicated": self.alone_count}
            typer.echo(json.dumps({**facts, "seconds": round(seconds, 3)}))
        else:
            word = "message" if self.sent_count == 1 else "messages"
            typer.echo(f"{self.sent_count} {word} sent to {topic}")
        if self.alone_count:
            session.note(
                f"{self.alone_count} of them are not replicated yet: `tandemmq doctor` looks for the reason"
            )

    def explain(self, error: TandemError) -> session.Explained:
        """Returns the error with the way to resume."""
        return session.Explained(
            f"{session.explain(error)}. {self.sent_count} messages are stored; all lines up to"
            f" {self.lines_before} are among them, so `tail -n +{self.lines_before + 1}` gives those to send"
            " again"
        )


# Dead letters


RESEND_COUNT: Final = 256
"""The number of messages that are sent before the progress is saved."""


def resend(
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")],
    namesrv: session.NameServers = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Send to this topic instead.",
            show_default="the group's retry topic",
            metavar="TOPIC",
        ),
    ] = "",
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="Only messages with this key; repeatable.")
    ] = None,
    message_id: Annotated[
        list[str] | None, typer.Option("--id", "-i", help="Only the message with this id; repeatable.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Include messages that an earlier `resend` sent.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the dead letters instead of sending them.")
    ] = False,
    as_json: session.AsJson = False,
) -> None:
    """Redeliver a group's dead letters; only that group receives them, unless --to names a topic.

    Without --key and --id all dead letters are sent, and the next run continues after them.
    """
    session.check_name(retry_topic(group))
    if to:
        session.check_name(to)
    servers = session.find_name_servers(namesrv)
    wanted = frozenset(key or ()), frozenset(message_id or ())

    async def work() -> int:
        async with open_tools(servers) as tools:
            letters = DeadLetterGroup(tools, group, to, wanted)
            try:
                await letters.open(again=again)
                async for messages in letters.read():
                    if dry_run:
                        session.write_messages(messages, session.LineForm(has_meta=True, as_json=as_json))
                    else:
                        await letters.send(messages)
            except TandemError as error:
                sent = f"; {letters.sent_count} dead letters were already sent" if letters.sent_count else ""
                raise session.Explained(f"{session.explain(error)}{sent}") from error
        if not dry_run:
            facts = {"group": group, "topic": letters.target, "sent": letters.sent_count}
            sentence = f"{letters.sent_count} dead letters of {group} sent to {letters.target}"
            typer.echo(json.dumps(facts) if as_json else sentence)
        return 0

    session.run(work)


class DeadLetterGroup:
    """The dead letters of a group, and the progress of resending them.

    The progress is a committed offset of a separate group, so the broker stores it, and every machine sees
    it. It is committed after the sends: messages sent but not committed, because the process was killed, are
    sent twice.
    """

    def __init__(
        self, tools: Tools, group: str, to: str, wanted: tuple[frozenset[str], frozenset[str]]
    ) -> None:
        self.target = to or retry_topic(group)
        self.sent_count = 0
        self._tools = tools
        self._topic = dlq_topic(group)
        self._mark = f"TANDEMMQ_RESEND_{group}"
        self._keys, self._ids = wanted
        self._reader = TopicPuller(tools, self._topic, parse_subscription(self._topic, "*", 0))
        self._ends: dict[MessageQueue, tuple[int, int]] = {}

    @property
    def _is_whole(self) -> bool:
        return not (self._keys or self._ids)

    async def open(self, *, again: bool) -> None:
        """Finds the dead letters to read now."""
        admin = self._tools.cluster_admin
        try:
            queues = await self._reader.queues()
        except TopicNotFound:
            session.note(f"topic {self._topic} does not exist: the group never had a dead letter")
            return
        if not queues:
            raise NotPermitted(
                f"{self._topic} is not readable; `tandemmq admin updateTopic -t {self._topic} -p 6` allows it"
            )
        marks = {} if again or not self._is_whole else await admin.committed_offsets(self._mark, self._topic)
        for queue, ends in (await admin.topic_offsets(self._topic)).items():
            begin = max(ends.min_offset, marks.get(queue) or 0)
            self._ends[queue] = begin, ends.max_offset

    async def read(self) -> AsyncIterator[list[ReceivedMessage]]:
        """Yields the wanted dead letters by queue; the progress is saved when the next ones are requested."""
        for queue, (begin, end) in self._ends.items():
            while begin < end:
                found = await self._reader.read(queue, begin, min(RESEND_COUNT, end - begin))
                if not found:
                    break
                begin = found[-1].queue_offset + 1
                sent_before = self.sent_count
                yield [message for message in found if self._wants(message)]
                if self._is_whole and self.sent_count > sent_before:
                    await self._tools.cluster_admin.set_offset(self._mark, queue, begin)

    def _wants(self, message: ReceivedMessage) -> bool:
        ids = {message.message_id, message.record.message_id, message.properties.get(names.ORIGIN_MESSAGE_ID)}
        return self._is_whole or bool(self._keys.intersection(message.keys) or self._ids & ids)

    async def send(self, messages: list[ReceivedMessage]) -> None:
        """Sends the messages one after the other, to keep their order. Raises the first error."""
        view = build_view(self.target, await self._route())
        for message in messages:
            masters = [view.master_address(name) for name in (message.broker_name, *view.addresses)]
            address = next(filter(None, masters), None)
            if address is None:
                raise NoRoute(f"no broker of {self.target} has a master at the moment")
            answer = await self._send_one(message, address)
            self.sent_count += 1
            if answer.status is not SendStatus.SEND_OK:
                session.note(f"{message.message_id} is not replicated yet: {answer.status.value}")

    async def _send_one(self, message: ReceivedMessage, address: str) -> broker_send.SendAnswer:
        """Sends one message; if the broker has no room for its properties, without its origin, as the dead
        letter itself may be stored.
        """
        header = self._header(message, _DELIVERY_PROPERTIES)
        try:
            return await broker_send.send(self._tools.remoting, address, header, message.body)
        except MessageIllegal:
            header = self._header(
                message, _DELIVERY_PROPERTIES | {names.ORIGIN_MESSAGE_ID, names.RETRY_TOPIC}
            )
            return await broker_send.send(self._tools.remoting, address, header, message.body)

    async def _route(self) -> TopicRoute:
        """Returns the route of the target; if the retry topic has none, that of the dead letters: their
        brokers accept the group's retries, too.
        """
        admin = self._tools.cluster_admin
        try:
            return await admin.topic_route(self.target)
        except TopicNotFound:
            if not is_retry_topic(self.target):
                raise
            return await admin.topic_route(self._topic)

    def _header(self, message: ReceivedMessage, dropped: frozenset[str]) -> SendRequestV2:
        """Returns the message with its original content and a new retry count."""
        pairs = {name: text for name, text in message.properties.items() if name not in dropped}
        if not is_retry_topic(self.target):
            pairs.pop(names.RETRY_TOPIC, None)
        return SendRequestV2(
            producer_group="TANDEMMQ_RESEND",
            topic=self.target,
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=-1,
            sys_flag=message.body_sys_flag,
            born_at_ms=message.born_at_ms,
            flag=message.record.flag,
            properties=encode_properties(pairs).decode(),
            broker_name=message.broker_name,
        )


_DELIVERY_PROPERTIES: Final = frozenset(
    {
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.DELAY,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.REAL_TOPIC,
        names.REAL_QID,
        names.TRAN_MSG,
        "TIMER_DELAY_SEC",
        # The broker adds these again. Without WAIT it waits for its disk and slaves.
        names.WAIT,
        names.MSG_REGION,
        names.TRACE_ON,
        names.CLUSTER,
    }
)


def _wait_for_route(producer: BlockingProducer, topic: str) -> None:
    end = time.monotonic() + session.ROUTE_PATIENCE_S
    while True:
        try:
            producer.queues(topic)
            return
        except NoRoute:
            if time.monotonic() > end:
                raise
            time.sleep(_ROUTE_POLL_S)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"--property {text}: must be NAME=VALUE")
    return name, value


class _progress:  # a context manager
    """A progress bar on a terminal's standard error; None elsewhere, and if the lines are typed at a
    terminal.
    """

    def __init__(self, source: int) -> None:
        self._progress: Progress | None = None
        if sys.stderr.isatty() and not os.isatty(source):
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = SpinnerColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()
            self._progress = Progress(*columns, console=Console(stderr=True))

    def __enter__(self) -> Progress | None:
        if self._progress is not None:
            self._progress.start()
        return self._progress

    def __exit__(self, *ignored: object) -> None:
        if self._progress is not None:
            self._progress.stop()
