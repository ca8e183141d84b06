"""The shared parts of the commands for messages: finding the name server, exit codes, and writing messages.

Invariants: standard output carries only messages, so pipes and files work; notes go to standard error. A
            closed reader (`| head -1`) is a successful end, not an error. An error names the user's next
            step.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from tandemmq import errors
from tandemmq.admin import options as opt
from tandemmq.admin.options import option
from tandemmq.admin.render import exit_on_broken_pipe
from tandemmq.manage.bodies import make_printable
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.topic_names import check_group, check_topic
from tandemmq.shell import local
from tandemmq.shell.line_format import TEMPLATE, LineTemplate

VARIABLES: Final = ("TANDEMMQ_NAMESRV", "NAMESRV_ADDR")
ROUTE_PATIENCE_S: Final = 5.0
"""The time within which a broker that has just started is registered at the name server."""

NameServers = Annotated[
    str,
    option(
        "-n --namesrv HOST:PORT",
        "Name servers, separated by ;",
        show_default="those of the context, $TANDEMMQ_NAMESRV, $NAMESRV_ADDR, else the running `up`",
    ),
]
AsJson = Annotated[bool, option("--json", "Print JSON; messages as one object per line.")]
Pipelines = Annotated[
    Path | None,
    option("--pipelines DIR", "The folder with the progress of Spark pipelines, a file NAME.jsonl for each."),
]


def _checked(check: Callable[[str], object]) -> opt.Text:
    """Marks an option with a name, which `check` examines."""

    def parse(name: str, _: str) -> str:
        try:
            check(name)
        except errors.RequestRejected as error:
            raise typer.BadParameter(error.remark) from None
        return name

    return opt.Text(parse)


TOPIC_NAME: Final = _checked(check_topic)
GROUP_NAME: Final = _checked(check_group)
Topic = Annotated[str, typer.Argument(help="The topic.", metavar="TOPIC"), TOPIC_NAME]
Group = Annotated[str, option("--group -g", "The consumer group."), GROUP_NAME]
Meta = Annotated[bool, option("--meta/--no-meta", "Print time, position, id, tag and keys before each body.")]

_NEXT_STEPS: Final[tuple[tuple[type[errors.TandemError], str], ...]] = (
    (errors.TopicNotFound, "`tandemmq topics` lists the topics; the first `tandemmq produce` creates one"),
    (errors.TopicExists, "on the command line: --exist-ok, or `tandemmq topics alter`"),
    (errors.GroupNotFound, "`tandemmq groups` lists the groups"),
    (errors.NoRoute, "`tandemmq doctor` looks for the missing broker"),
    (errors.BrokerUnreachable, "`tandemmq up` starts a cluster here, `tandemmq doctor` examines one"),
    (errors.NotPermitted, "docs/security.md explains how tools sign requests"),
)


class Explained(errors.TandemError):
    """An error with the next step in its text."""


def explain(error: errors.TandemError) -> errors.TandemError:
    """Returns the error with the next step, if one is known."""
    step = next((step for kind, step in _NEXT_STEPS if isinstance(error, kind)), "")
    return Explained(f"{error}; {step}") if step else error


def find_name_servers(option: str) -> str:
    """Returns the given name servers, else those of the environment, else that of the local cluster. Raises
    ConfigError.
    """
    text = option or next(filter(None, (os.environ.get(name) for name in VARIABLES)), "")
    if text:
        return text
    try:
        return local.running_state(local.default_folder()).namesrv
    except local.NotRunning:
        raise errors.ConfigError(
            "no name server is given: start a cluster with `tandemmq up`, or use --namesrv HOST:PORT"
        ) from None


def run(work: Callable[[], Awaitable[int]]) -> NoReturn:
    """Does the work and exits with its code; Ctrl-C and SIGTERM cancel it and exit with code 0."""

    async def main() -> int:
        task = asyncio.ensure_future(work())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return 0

    with explained_errors():
        code = asyncio.run(main())
    raise typer.Exit(code)


def run_tools(namesrv: str, work: opt.Work, *, as_json: bool, interval_s: float = 0.0, **_: object) -> None:
    """Does the work with the connections of tools, prints its answer, and exits with its code; with an
    interval, repeats it.
    """
    servers = find_name_servers(namesrv)
    with explained_errors():
        opt.run(servers, work, as_json=as_json, interval_s=interval_s, tell=lambda error: str(explain(error)))


@contextmanager
def explained_errors() -> Iterator[None]:
    """Adds the next step to errors; a closed reader of standard output ends the command with code 0."""
    with exit_on_broken_pipe():
        try:
            yield
        except errors.TandemError as error:
            raise explain(error) from error


def note(sentence: str) -> None:
    """Prints a sentence for the user to standard error."""
    typer.echo(f"tandemmq: {sentence}", err=True)


# Messages


@dataclass(frozen=True, slots=True)
class LineForm:
    """Options for the form of printed messages."""

    has_meta: Meta = False
    as_json: AsJson = False
    template: Annotated[
        LineTemplate | None,
        option("--format TEMPLATE", "The line of a message: '{keys} {body}', see docs/cli.md."),
        TEMPLATE,
    ] = None

    def __post_init__(self) -> None:
        if self.as_json and self.template is not None:
            raise typer.BadParameter("--json and --format exclude each other: give only one")

    def render(self, message: ReceivedMessage, *, is_terminal: bool) -> bytes:
        """Returns the line of a message, without its line end."""
        if self.as_json:
            return json.dumps(message.as_object(), ensure_ascii=False).encode()
        line = bytes(message.body) if self.template is None else self.template.render(message)
        if is_terminal:
            # A terminal interprets control bytes as commands.
            keeps = "\t" if self.template is None else "\t\n"
            line = make_printable(line.decode("utf-8", "backslashreplace"), keeps=keeps).encode()
        # A template shows the facts that it names.
        return _meta(message).encode() + b"\t" + line if self.has_meta and self.template is None else line


PLAIN: Final = LineForm()


@dataclass(frozen=True, slots=True)
class MetaForm(LineForm):
    """The form of messages of `browse` and `dlq show`, which print their facts by default."""

    has_meta: Meta = True


def write_messages(messages: Iterable[ReceivedMessage], form: LineForm) -> None:
    """Writes each message as one line to standard output; all are written when the function returns.

    A body that could not be decoded is written as stored, with a note on standard error.
    """
    is_terminal = sys.stdout.isatty()
    out = sys.stdout.buffer
    for message in messages:
        if message.body_fault:
            place = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
            note(f"the body of {place} is printed as stored: {message.body_fault}")
        out.write(form.render(message, is_terminal=is_terminal) + b"\n")
    out.flush()


def _meta(message: ReceivedMessage) -> str:
    when = datetime.fromtimestamp(message.stored_at_ms / 1000).isoformat(" ", "milliseconds")
    place = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
    return f"{when}\t{place}\t{message.message_id}\t{message.tags or '-'}\t{' '.join(message.keys) or '-'}"


def is_reader_gone() -> bool:
    """Returns True if standard output is a pipe whose reader has closed it."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in watched.poll(0))
    except (OSError, ValueError):
        return False
