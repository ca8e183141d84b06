"""`tandemmq produce` sends lines as messages, as they arrive; `tandemmq resend` redelivers dead letters."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import structs

from tandemmq.admin.options import grouped
from tandemmq.client import BlockingProducer, Message, ProducerOptions, SendResult
from tandemmq.errors import MessageIllegal, NoRoute, TandemError
from tandemmq.manage.tools import tools_options
from tandemmq.shell import session
from tandemmq.shell.dead_letters import ResendOptions, Wanted, run_resend
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


@grouped
def resend(
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")],
    namesrv: session.NameServers = "",
    wanted: Wanted = Wanted(),  # frozen
    options: ResendOptions = ResendOptions(),  # frozen
    as_json: session.AsJson = False,
) -> None:
    """Redeliver a group's dead letters, as `tandemmq dlq resend` does.

    Without --key and --id all dead letters are sent, and the next run continues after them.
    """
    run_resend(group, namesrv, wanted, options, as_json=as_json)


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
