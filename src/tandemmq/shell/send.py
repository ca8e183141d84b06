"""`tandemmq produce` sends lines as messages, as they arrive; `tandemmq resend` redelivers dead letters."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import structs

from tandemmq.admin.options import Text, grouped, option
from tandemmq.client import BlockingProducer, Message, ProducerOptions, SendResult
from tandemmq.errors import MessageIllegal, NoRoute, TandemError
from tandemmq.manage.tools import tools_options
from tandemmq.protocol.message import check_message
from tandemmq.shell import session, sources
from tandemmq.shell.dead_letters import ResendOptions, Wanted, run_resend
from tandemmq.shell.positions import parse_duration

if TYPE_CHECKING:
    from rich.progress import Progress

_ROUTE_POLL_S: Final = 0.1


def _tag(text: str, option: str) -> str:
    if "|" in text:
        raise typer.BadParameter(f"{option} {text}: a message has one tag, without '|'")
    return _utf8(text, option)


def _utf8(text: str, option: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{option} {text!r}: must be UTF-8") from None
    return text


def _delay(text: str, option: str) -> int:
    delay_ms = parse_duration(text)
    if not delay_ms:
        raise typer.BadParameter(f"{option} {text}: expected a duration such as 500ms, 30s, 10m, 2h or 7d")
    return delay_ms


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The options of a message to send."""

    key: Annotated[list[str] | None, option("--key", "A key for every message; repeatable.")] = None
    tag: Annotated[str, option("--tag", "A tag for every message."), Text(_tag)] = ""
    properties: Annotated[
        list[str] | None, option("--property NAME=VALUE", "A property for every message; repeatable.")
    ] = None
    priority: Annotated[
        int | None, option("--priority N", "A priority for every message; 0 is the lowest.", min=0)
    ] = None
    delay_ms: Annotated[
        int | None, option("--delay DURATION", "Deliver this much later: 30s, 10m, 2h."), Text(_delay)
    ] = None

    def make(self, topic: str) -> Message:
        """Returns the message without its body. Raises typer.BadParameter for an option."""
        pairs = dict(_pair(text) for text in self.properties or ())
        keys = [_utf8(key, "--key") for key in self.key or ()]
        message = Message(
            topic,
            b"x",
            tags=self.tag,
            keys=keys,
            properties=pairs,
            priority=self.priority,
            delay_ms=self.delay_ms,
        )
        try:
            check_message(message)
        except MessageIllegal as error:
            raise typer.BadParameter(error.remark) from None
        return message


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """The options of `produce` for the bodies, and for their pace."""

    file: Annotated[
        list[Path] | None,
        option(
            "--file -f FILE",
            "Read this file instead of standard input; repeatable.",
            exists=True,
            dir_okay=False,
        ),
    ] = None
    whole: Annotated[bool, option("--whole", "Each file, or all of standard input, is one message.")] = False
    from_json: Annotated[
        bool, option("--from-json", "Each line is a message as `tail --json` prints it.")
    ] = False
    key_delimiter: Annotated[
        str, option("--key-delimiter TEXT", "Each line is a key, this text, and the body.")
    ] = ""
    size: Annotated[
        int | None,
        option("--size N", "Send generated messages of N bytes.", min=1, max=sources.BODY_BYTES_MAX),
    ] = None
    count: Annotated[
        int | None, option("--count -c N", "Stop after N messages; repeats given texts.", min=1)
    ] = None
    rate: Annotated[float | None, option("--rate N", "At most N messages per second.", min=0.001)] = None

    def check(self, texts: Sequence[str]) -> None:
        """Raises typer.BadParameter for options that exclude each other."""
        origins = {"the text": texts, "--file": self.file, "--size": self.size}
        forms = {"--whole": self.whole, "--from-json": self.from_json, "--key-delimiter": self.key_delimiter}
        for options in (origins, forms):
            given = [name for name, value in options.items() if value]
            if len(given) > 1:
                raise typer.BadParameter(f"{' and '.join(given)} exclude each other: give only one")

    def open(self, texts: Sequence[str], stack: ExitStack) -> sources.Bodies:
        """Yields the bodies, until the end of the source."""
        if texts or self.size:
            bodies = [text.encode("utf-8", "surrogateescape") for text in texts] or [b"x" * (self.size or 0)]
            found = sources.repeat_bodies(bodies, self.count or len(bodies))
        else:
            found = self._read(stack)
            if self.count:
                found = sources.limit_bodies(found, self.count)
        return sources.pace_bodies(found, self.rate) if self.rate else found

    def _read(self, stack: ExitStack) -> sources.Bodies:
        inputs = [(sys.stdin.fileno(), "standard input")]
        if self.file:
            inputs = [(os.open(path, os.O_RDONLY), str(path)) for path in self.file]
            for source, _ in inputs:
                stack.callback(os.close, source)
        elif os.isatty(inputs[0][0]):
            session.note("each line that you type becomes a message; Ctrl-D ends the input")
        for source, name in inputs:
            yield from sources.read_whole(source, name) if self.whole else sources.read_lines(source)

    @property
    def is_typed(self) -> bool:
        """True if the lines are typed at a terminal."""
        return not (self.file or self.size) and os.isatty(sys.stdin.fileno())

    def convert(self, body: bytes, every: Message) -> Message:
        """Returns the message of a body. Raises UnusableInput."""
        if self.from_json:
            return sources.read_json(body, every)
        if self.key_delimiter:
            return sources.split_key(body, self.key_delimiter.encode("utf-8", "surrogateescape"), every)
        return structs.replace(every, body=body)


@grouped
def produce(
    topic: session.Topic,
    text: Annotated[
        list[str] | None, typer.Argument(help="The messages; else lines are read.", metavar="[TEXT]...")
    ] = None,
    namesrv: session.NameServers = "",
    source: BodyOptions = BodyOptions(),  # frozen
    given: MessageOptions = MessageOptions(),  # frozen
    batch: Annotated[int, option("--batch", "Most messages in one request.", min=1, max=10_000)] = 1_000,
    as_json: session.AsJson = False,
) -> None:
    """Send the texts, or each line of the input without its line end. Empty lines are skipped."""
    texts = text or ()
    source.check(texts)
    if "" in texts:
        raise typer.BadParameter("TEXT is empty: a message needs a body")
    every = given.make(topic)
    options = ProducerOptions(client=tools_options(), batch_count_max=batch)

    with session.explained_errors(), ExitStack() as stack:
        producer = stack.enter_context(
            BlockingProducer("TANDEMMQ_PRODUCE", session.find_name_servers(namesrv), options=options)
        )
        _wait_for_route(producer, topic)
        is_typed = not texts and source.is_typed
        sending = Sending(
            stack.enter_context(_open_progress(is_typed=is_typed)), has_lines=not (texts or source.size)
        )
        try:
            for bodies in source.open(texts, stack):
                messages = [source.convert(body, every) for body in bodies if body]
                sending.send(producer, messages, len(bodies))
        except KeyboardInterrupt:
            session.note("interrupted")
            sending.print_summary(topic, as_json=as_json)
            raise typer.Exit(130) from None
        except TandemError as error:
            raise sending.explain(error) from error
    sending.print_summary(topic, as_json=as_json)


class Sending:
    """The progress of sending, and the bar that shows it."""

    def __init__(self, progress: Progress | None, *, has_lines: bool) -> None:
        self.sent_count = 0
        self._has_lines = has_lines
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
        if not self.sent_count:
            return session.Explained(f"{session.explain(error)}. Nothing was sent")
        stored = f"{session.explain(error)}. {self.sent_count} messages are stored"
        if not self._has_lines:
            return session.Explained(stored)
        return session.Explained(
            f"{stored}; all lines up to {self.lines_before} are among them, so"
            f" `tail -n +{self.lines_before + 1}` gives those to send again"
        )


@grouped
def resend(
    group: session.Group,
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
    name, equals, value = _utf8(text, "--property").partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"--property {text}: must be NAME=VALUE")
    return name, value


@contextmanager
def _open_progress(*, is_typed: bool) -> Iterator[Progress | None]:
    """Yields a progress bar on a terminal's standard error; None elsewhere, and if the lines are typed at a
    terminal.
    """
    if is_typed or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress
