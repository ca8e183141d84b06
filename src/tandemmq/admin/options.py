"""The shared parts of the commands of `tandemmq admin`: their options, and the frame in which each command
runs.

A command is a coroutine function whose parameters are its options, after the connections:

    @command(app, "topicStatus")
    async def topic_status(tools: Tools, topic: Topic) -> CommandAnswer: ...

If its options must be checked together, it is a plain function that returns such a coroutine function, so
that a mistake is reported before any connection is opened.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from functools import partial
from inspect import Parameter, Signature, iscoroutinefunction, signature
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, get_type_hints

import typer

from tandemmq.admin.render import CommandAnswer, Table, exit_on_broken_pipe, print_answer
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.api.calls import Call
from tandemmq.errors import ConfigError, RemoteProtocolError, TandemError
from tandemmq.manage.tools import Place, Tools, open_tools
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.remoting.options import parse_address, render_address
from tandemmq.runtime.machine import LoopClock

Kind = TypeVar("Kind")
Work = Callable[[Tools], Awaitable[CommandAnswer]]


@dataclass(frozen=True, slots=True)
class Text:
    """Marks an option whose text is parsed with `parse(text, name of the option)` before the command runs."""

    parse: Callable[[str, str], Any]


def option(names: str, text: str, **settings: Any) -> Any:
    """Returns an option of a command: its names as its help shows them, as in `--count -c N`, its help, and
    Typer's settings.
    """
    *words, last = names.split()
    if not last.startswith("-"):
        return typer.Option(*words, help=text, metavar=last, **settings)
    return typer.Option(*words, last, help=text, **settings)


def flag(text: str, option: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise typer.BadParameter(f"{option} {text}: must be true or false")
    return text.lower() == "true"


def checked_address(text: str) -> str:
    """Returns the address of a server, or nothing. Raises typer.BadParameter."""
    try:
        return text and render_address(parse_address(text))
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


FLAG: Final = Text(flag)
"""Marks an option with the value true or false, as mqadmin has them."""

NameServers = Annotated[
    str,
    option(
        "-n --namesrvAddr --namesrv HOST:PORT",
        "Name servers, separated by ;",
        envvar=["TANDEMMQ_NAMESRV", "NAMESRV_ADDR"],
        show_default="those of the context, else the running `up`",
    ),
]
AsJson = Annotated[bool, option("--json", "Print one JSON object.")]
Address = Annotated[
    str, option("-b --brokerAddr HOST:PORT", "The broker's address.", callback=checked_address)
]
BrokerAddress = Annotated[str, option("-b --brokerAddr HOST:PORT", "The broker.", callback=checked_address)]
Cluster = Annotated[str, option("-c --clusterName", "The cluster's name.")]
SettingKey = Annotated[str, option("-k --key", "The setting.")]
NewValue = Annotated[str, option("-v --value", "The new value.")]
Topic = Annotated[str, option("-t --topic", "The topic.")]
Group = Annotated[str, option("-g --groupName", "The consumer group.")]
ListFile = Annotated[
    Path, option("-f --filename", "A file with a JSON list, in mqadmin's format.", dir_okay=False)
]
BrokerName = Annotated[str, option("-b --brokerName", "The broker's name.")]
ExportDirectory = Annotated[Path, option("-f --filePath DIR", "The directory to write to.")]
EXPORT_DIRECTORY: Final = Path("/tmp/rocketmq/export")
Interval = Annotated[float, option("-i --interval N", "Repeat every N seconds until Ctrl-C; 0: once.", min=0)]


TIME_FORMAT: Final = "%Y-%m-%d#%H:%M:%S:%f"
"""mqadmin's format; local time."""
TIMES: Final = "now, Unix milliseconds or yyyy-MM-dd#HH:mm:ss:SSS."


def run(
    name_servers: str,
    work: Work,
    *,
    as_json: bool,
    needs_names: bool = True,
    interval_s: float = 0.0,
    tell: Callable[[TandemError], str] = str,
) -> None:
    """Does the work with separate connections, prints its answer, and exits with its code.

    With an interval the work is repeated until Ctrl-C or SIGTERM, which exit with code 0; `tell` renders the
    errors.
    """

    async def main() -> int:
        async with open_tools(name_servers if needs_names else "") as tools:
            if interval_s:
                task = asyncio.current_task()
                assert task is not None
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, task.cancel)
                try:
                    await repeat(tools, work, interval_s, as_json=as_json, tell=tell)
                except asyncio.CancelledError:
                    return 0
            answer = await work(tools)
        print_answer(answer, as_json=as_json)
        return answer.exit_code

    with exit_on_broken_pipe():
        code = asyncio.run(main())
    raise typer.Exit(code)


async def repeat(
    tools: Tools, work: Work, interval_s: float, *, as_json: bool, tell: Callable[[TandemError], str]
) -> NoReturn:
    """Does the work and prints its answer for ever; in JSON one line each time. An error is printed to
    standard error, and the loop continues.
    """
    clock = LoopClock()
    while True:
        try:
            answer = await work(tools)
        except TandemError as error:
            typer.echo(f"tandemmq: {tell(error)}", err=True)
        else:
            print_answer(answer, as_json=as_json, is_repeated=True)
        await clock.sleep(interval_s)


def command(
    app: typer.Typer,
    name: str,
    *,
    names: bool = True,
    interval_s: float | None = None,
    name_servers: Any = NameServers,
    run_work: Callable[..., None] = run,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as the command `name`, with the shared options after its own.

    The shared options are -n and --json, and for a parameter `place` also -b and -c; exactly one of these two
    must be given unless the parameter has a default. mqadmin accepts -n everywhere; without `names`, or when
    `place` or a parameter `broker` is an address, name servers are not asked. With `interval_s` the command
    can repeat (-i), and does so by default if it is not 0. A family of commands may have its own option of
    `name_servers`, and its own `run_work` in place of `run`.

    A parameter whose type is a dataclass stands for the options that are its fields.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        own = _Options(function)
        shared = [_option("namesrv", name_servers, "")]
        if own.has_place:
            shared += [_option("broker", Address, ""), _option("cluster", Cluster, "")]
        if interval_s is not None:
            shared.append(_option("interval", Interval, interval_s))
        shared.append(_option("as_json", AsJson, False))

        def run_command(**values: Any) -> None:
            as_json, given_servers = values.pop("as_json"), values.pop("namesrv")
            interval = values.pop("interval", 0.0)
            address = values.get("broker", "")
            arguments = own.arguments(values)
            run_work(
                given_servers,
                partial(function, **arguments) if iscoroutinefunction(function) else function(**arguments),
                as_json=as_json,
                needs_names=names and not address,
                interval_s=interval,
            )

        app.command(name)(_describe(run_command, function, own.options + shared))
        return function

    return register


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a command of Typer, where a parameter whose type is a dataclass stands for the options that are
    its fields, and marked options are parsed.
    """
    own = _Options(function)

    def run_grouped(**values: Any) -> None:
        function(**own.arguments(values))

    return _describe(run_grouped, function, own.options)


def _describe(
    command: Callable[..., None], function: Callable[..., Any], options: list[Parameter]
) -> Callable[..., None]:
    """Gives the command the options, and the help of the function."""
    command.__signature__ = Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in options}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


class _Options:
    """The options of a command, from the parameters of its function, and the way back from their values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.options: list[Parameter] = []
        self._parsed: dict[str, tuple[Text, str, Any]] = {}
        """The parameters whose values are texts to parse -> the option's name, and the default."""
        self._groups: dict[str, type] = {}
        hints = get_type_hints(function, include_extras=True)
        parameters = signature(function).parameters
        self.has_place = "place" in parameters
        self._needs_place = self.has_place and parameters["place"].default is Parameter.empty
        for name, parameter in parameters.items():
            kind = hints[name]
            if name in ("tools", "place"):
                continue
            if not is_dataclass(kind):
                self._add(name, kind, parameter.default)
                continue
            self._groups[name] = kind  # type: ignore[assignment]  # a class, not an instance
            kinds = get_type_hints(kind, include_extras=True)
            for field in fields(kind):
                default = Parameter.empty if field.default is MISSING else field.default
                self._add(field.name, kinds[field.name], default)

    def arguments(self, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the function. Raises typer.BadParameter."""
        for name, (text, option, default) in self._parsed.items():
            is_absent = values[name] == "" and default is not Parameter.empty
            values[name] = default if is_absent else text.parse(values[name], option)
        if self.has_place:
            place = Place(values.pop("broker"), values.pop("cluster"))
            if self._needs_place:
                demand_place(place.address, place.cluster)
            values["place"] = place
        for name, group in self._groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return values

    def _add(self, name: str, kind: Any, default: Any) -> None:
        option: Any
        option, *marks = getattr(kind, "__metadata__", (None,))
        text = next((mark for mark in marks if isinstance(mark, Text)), None)
        if text is not None:
            self._parsed[name] = (text, option.default, default)  # where Typer keeps the first name
            kind = Annotated[str, option]
            if default is not Parameter.empty:
                default = {True: "true", False: "false"}.get(default, "")
        self.options.append(_option(name, kind, default))


def _option(name: str, kind: object, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def demand_place(broker: str, cluster: str) -> None:
    """Raises typer.BadParameter unless exactly one of them is named."""
    if bool(broker) == bool(cluster):
        raise typer.BadParameter("name either a broker (-b) or a cluster (-c)")


# Settings of servers


async def show_settings(
    tools: Tools, server: str, addresses: Iterable[str], query: Call[[], dict[str, str]]
) -> CommandAnswer:
    """Shows the settings of each of these servers; `server` is the name of the column of addresses."""
    table = Table("settings", (server, "key", "value"))
    for address, settings in await tools.ask(addresses, query):
        table.rows += [(address, key, value) for key, value in sorted(settings.items())]
    return CommandAnswer([table])


def settings_changed(server: str, key: str, value: str, notes: Iterable[tuple[str, str]]) -> CommandAnswer:
    """Shows the servers that have changed a setting, each with its note."""
    rows = [(address, key, value, note or None) for address, note in notes]
    return CommandAnswer.of_rows("changed", f"{server} key value note", rows)


# Values of options


def is_given(context: Any, name: str) -> bool:
    """Returns True for an option on the command line; other values are defaults, or of the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def given(group: Any) -> dict[str, Any]:
    """Returns the values of a group of options that were given, by field; the others are None."""
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return {name: value for name, value in values.items() if value is not None}


def parse_time(text: str, now_ms: int) -> int:
    """Returns the milliseconds of a time in mqadmin's format. Raises typer.BadParameter."""
    if text == "now":
        return now_ms
    if text.removeprefix("-").isdecimal():
        time_ms = int(text)
        if time_ms >= END_OF_QUEUE_MS:
            return time_ms
        raise typer.BadParameter(f"{text}: times must be 0 or above, or -1 for the end of each queue")
    try:
        # %f parses milliseconds as the leading digits of microseconds, which is right.
        return int(datetime.strptime(text, TIME_FORMAT).timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(
            f"{text}: expected now, Unix milliseconds, -1 or yyyy-MM-dd#HH:mm:ss:SSS"
        ) from None


def read_list(path: Path, kind: type[Kind]) -> list[Kind]:
    """Returns the entries of a JSON list. Raises typer.BadParameter for other content, or an empty list."""
    try:
        entries = decode_body(path.read_bytes(), list[kind])  # type: ignore[valid-type]  # it is a type
    except (OSError, RemoteProtocolError) as error:
        raise typer.BadParameter(f"-f {path}: expected a file with a JSON list: {error}") from None
    if not entries:
        raise typer.BadParameter(f"-f {path}: the list is empty; it must have at least one entry")
    return entries


def attribute_changes(changes: str, option: str) -> dict[str, str]:
    """Returns signed names -> values, in the brokers' format. Raises typer.BadParameter."""
    found: dict[str, str] = {}
    for change in filter(None, map(str.strip, changes.split(","))):
        name, has_value, value = change.partition("=")
        if name[:1] not in ("+", "-") or len(name) == 1 or bool(has_value) != name.startswith("+"):
            raise typer.BadParameter(f"{option} {change}: expected +name=value or -name, separated by commas")
        found[name] = value
    return found


def parts(text: str, option: str = "") -> tuple[str, ...]:
    """Returns the parts of a text, separated by commas, without blanks around them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


PARTS: Final = Text(parts)
MOMENT: Final = Text(lambda text, _: parse_time(text, LoopClock().now_ms()))
ATTRIBUTES: Final = Text(attribute_changes)


@dataclass(frozen=True, slots=True)
class Span:
    """Options for a span of store times; None means from the begin, or to the end."""

    begin_ms: Annotated[
        int | None, option("-b --beginTimestamp", f"Earliest store time: {TIMES}"), MOMENT
    ] = None
    end_ms: Annotated[int | None, option("-e --endTimestamp", f"Latest store time: {TIMES}"), MOMENT] = None

    def __post_init__(self) -> None:
        if self.begin_ms is not None and self.end_ms is not None and self.begin_ms > self.end_ms:
            raise typer.BadParameter(
                f"the earliest time {self.begin_ms} is later than the latest time {self.end_ms}"
            )
