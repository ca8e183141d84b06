"""`tandemmq produce`: lines become messages, as they come."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.admin.security import tools_options
from tandemmq.client import BlockingProducer, Message, ProducerOptions, SendResult
from tandemmq.errors import MessageIllegal, NoRoute, TandemError
from tandemmq.shell.session import (
    ROUTE_PATIENCE_S,
    AsJson,
    Explained,
    NameServers,
    Topic,
    check_name,
    ending_well,
    explain,
    find_name_servers,
    note,
)
from tandemmq.units import MIB

if TYPE_CHECKING:
    from rich.progress import Progress

READ_BYTES: Final = MIB
LINE_BYTES_MAX: Final = 4 * MIB
_LOOK_S: Final = 0.1


def produce(
    topic: Topic,
    namesrv: NameServers = "",
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read this file, not standard input.", metavar="FILE")
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="A key of every message.")] = None,
    tag: Annotated[str, typer.Option("--tag", help="The tag of every message.")] = "",
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", help="A property of every message.", metavar="NAME=VALUE"),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", help="Messages that may share one request.", min=1, max=10_000)
    ] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Send each line as one message, without its line end. Empty lines are passed over."""
    check_name(topic)
    pairs = dict(_pair(text) for text in properties or ())
    options = ProducerOptions(client=tools_options(), batch_count_max=batch)
    keys = key or ()

    def make(line: bytes) -> Message:
        return Message(topic, line, tags=tag, keys=keys, properties=pairs)

    with ending_well(), ExitStack() as stack:
        producer = stack.enter_context(
            BlockingProducer("TANDEMMQ_PRODUCE", find_name_servers(namesrv), options=options)
        )
        _wait_for_route(producer, topic)
        source = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
        if file is not None:
            stack.callback(os.close, source)
        sending = Sending(stack.enter_context(_progress(source)))
        try:
            for lines in read_lines(source):
                sending.send(producer, [make(line) for line in lines if line], len(lines))
        except KeyboardInterrupt:
            note("interrupted")
            sending.tell(topic, as_json=as_json)
            raise typer.Exit(130) from None
        except TandemError as error:
            raise sending.explain(error) from error
    sending.tell(topic, as_json=as_json)


def read_lines(source: int) -> Iterator[list[bytes]]:
    """The lines that are there, as soon as some are; the last one may lack its line end.

    Raises:  MessageIllegal for a line that no message can hold.
    """
    rest = b""
    while chunk := os.read(source, READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise MessageIllegal(f"a line has more than {LINE_BYTES_MAX} bytes, which no message can hold")
        if lines:
            yield lines
    if rest:
        yield [rest]


class Sending:
    """What was sent so far, and the bar that shows it."""

    def __init__(self, progress: Progress | None) -> None:
        self.sent_count = 0
        self.alone_count = 0
        self.lines_before = 0
        self._progress = progress
        self._task = None if progress is None else progress.add_task("", total=None, rate="")
        self._began = time.monotonic()

    def send(self, producer: BlockingProducer, messages: list[Message], line_count: int) -> None:
        """Raises the first error, once everything under way has its result."""
        producer.send_many(messages, on_result=self._note)
        self.lines_before += line_count
        if self._progress is not None and self._task is not None:
            rate = f"{self.sent_count:,} messages, {self._rate():,.0f}/s"
            self._progress.update(self._task, rate=rate)

    def _note(self, message: Message, outcome: SendResult | TandemError) -> None:
        if isinstance(outcome, TandemError):
            return
        self.sent_count += 1
        self.alone_count += not outcome.is_ok

    def _rate(self) -> float:
        return self.sent_count / max(time.monotonic() - self._began, 1e-6)

    def tell(self, topic: str, *, as_json: bool) -> None:
        """What was done, in the end."""
        seconds = time.monotonic() - self._began
        if as_json:
            facts = {"topic": topic, "sent": self.sent_count, "not_replicated": self.alone_count}
            typer.echo(json.dumps({**facts, "seconds": round(seconds, 3)}))
        else:
            typer.echo(f"{self.sent_count} messages sent to {topic}")
        if self.alone_count:
            note(f"{self.alone_count} of them are not at a slave yet: `tandemmq doctor` looks why")

    def explain(self, error: TandemError) -> Explained:
        """The error with how to go on."""
        return Explained(
            f"{explain(error)}. {self.sent_count} messages are stored; all lines up to {self.lines_before}"
            f" are among them, so `tail -n +{self.lines_before + 1}` gives those to send again"
        )


def _wait_for_route(producer: BlockingProducer, topic: str) -> None:
    end = time.monotonic() + ROUTE_PATIENCE_S
    while True:
        try:
            producer.queues(topic)
            return
        except NoRoute:
            if time.monotonic() > end:
                raise
            time.sleep(_LOOK_S)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"--property {text}: must be NAME=VALUE")
    return name, value


class _progress:  # a context manager
    """A bar on the terminal's standard error; None elsewhere, and where a person types the lines."""

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
