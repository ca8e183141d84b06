"""The command line: starts servers and delegates to the other commands.

Invariants: the log of a server goes to standard error. An error that the user can correct (an invalid
            setting, a port in use, a locked or unwritable store) ends with exit code 1 and one sentence; any
            other error is a bug and shows its traceback.
Strategy:   nothing heavy is imported before a command needs it, so `--help` is fast and a broker does not
            need Spark.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tandemmq.errors import TandemError, install_hint


class _Commands(TyperGroup):
    """The group of commands. For shell completion it imports and returns the real command of another
    module.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if ctx.resilient_parsing and cmd_name in _OTHERS:
            # A command whose extra is not installed has nothing to complete.
            with suppress(typer.Exit):
                return _load_other(cmd_name)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(
            names, key=lambda name: _PANELS.index(_OTHERS[name][0] if name in _OTHERS else _SERVERS)
        )


class _OtherCommand(TyperCommand):
    """A command of another module, which parses all its words itself, also `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args


HELP_OPTIONS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="tandemmq",
    cls=_Commands,
    help="A RocketMQ-compatible message broker with a Spark data pipeline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)

_UNBOUND: Final = re.compile(r"bind on address \('([^']+)', (\d+)[^)]*\): (?:\[[^]]*\] )?(.+)")
"""The format in which asyncio and uvloop report a port that they could not bind."""

ConfigFile = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="A properties file with RocketMQ's keys.", metavar="FILE"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one setting of the file; repeatable.", metavar="KEY=VALUE"),
]
LogLevel = Annotated[str, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR.")]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        envvar="TANDEMMQ_LOG_FORMAT",
        help="text, or json for one object a line.",
        metavar="FORMAT",
    ),
]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from tandemmq import __version__

        typer.echo(f"tandemmq {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


# --- Servers


@app.command(rich_help_panel="Servers")
def namesrv(
    config: ConfigFile = None,
    override: Overrides = None,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
) -> None:
    """Run a name server until SIGTERM or SIGINT."""
    _prepare(LogForm(log_level, log_format))
    from tandemmq.shell.servers import run_name_server

    _run(run_name_server(config, override or []))


@app.command(rich_help_panel="Servers")
def controller(
    config: ConfigFile = None,
    override: Overrides = None,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
) -> None:
    """Run a controller, which elects the masters of broker groups, until SIGTERM or SIGINT."""
    _prepare(LogForm(log_level, log_format))
    from tandemmq.shell.servers import run_controller

    _run(run_controller(config, override or []))


NameServersOption = Annotated[
    str | None, typer.Option("-n", "--namesrv", help="Name servers, separated by ;", metavar="HOST:PORT")
]


@app.command(rich_help_panel="Servers")
def proxy(
    config: ConfigFile = None,
    override: Overrides = None,
    name_servers: NameServersOption = None,
    port: Annotated[
        int | None,
        typer.Option("-p", "--port", help="The port for clients; 0 picks a free one.", show_default="8081"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("-w", "--workers", help="Processes that share the port.", metavar="N", show_default="1"),
    ] = None,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
    worker: Annotated[str, typer.Option("--worker", hidden=True, metavar="NUMBER:SOCKET")] = "",
) -> None:
    """Run a gRPC proxy, for the clients of RocketMQ 5, until SIGTERM or SIGINT."""
    given = {"namesrvAddr": name_servers, "grpcServerPort": port, "proxyWorkers": workers}
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    overrides += override or []
    number, _, pair = worker.partition(":")
    form = LogForm(log_level, log_format, {"worker": int(number)} if worker else None)
    _prepare(form)
    from tandemmq.shell.servers import run_proxy, run_proxy_worker

    if worker:
        _run(run_proxy_worker(config, overrides, int(number), int(pair)))
    else:
        _run(run_proxy(config, overrides, form.options))


@app.command(rich_help_panel="Servers")
def broker(
    config: ConfigFile = None,
    override: Overrides = None,
    name_servers: NameServersOption = None,
    proxy: Annotated[
        bool | None,
        typer.Option(
            "--proxy/--no-proxy",
            help="Serve the gRPC clients of RocketMQ 5 in the same process, for development.",
            show_default="off",
        ),
    ] = None,
    proxy_port: Annotated[
        int | None,
        typer.Option("--proxy-port", help="The port of --proxy; 0 picks a free one.", show_default="8081"),
    ] = None,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Check the settings, list those without effect, and exit.")
    ] = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT."""
    has_proxy = proxy if proxy_port is None else proxy is not False
    given = {
        "namesrvAddr": name_servers or None,
        "enableProxy": None if has_proxy is None else str(has_proxy).lower(),
        "grpcServerPort": proxy_port,
    }
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    overrides += override or []
    if check_config:
        _check_broker_config(config, overrides)
        return
    _prepare(LogForm(log_level, log_format))
    from tandemmq.shell.servers import run_broker

    _run(run_broker(config, overrides))


def _check_broker_config(config: Path | None, overrides: list[str]) -> None:
    """Checks the settings; ends with exit code 1 and one sentence when a broker would not start with them."""
    from tandemmq.config.load import load_broker, read_settings
    from tandemmq.shell.machine import this_machine

    try:
        loaded = load_broker(read_settings(config, overrides), this_machine(), config)
    except TandemError as error:
        _fail(str(error))
    for key in sorted(loaded.inert):
        typer.echo(f"{key} has no effect here")
    for note in loaded.notes:
        typer.echo(note)
    typer.echo("the settings are valid")


@dataclass(frozen=True, slots=True)
class LogForm:
    """The level and the format of a server's log; `facts` are part of each line."""

    level: str
    format: str
    facts: Mapping[str, Any] | None = None

    @property
    def options(self) -> list[str]:
        """The options with which a worker gets the same form."""
        return ["--log-level", self.level, "--log-format", self.format]

    def apply(self) -> None:
        """Configures the log of this process. Ends it with one sentence for a value that is not allowed."""
        from tandemmq.telemetry.log_lines import FORMATS, LEVELS, configure_logging

        if self.level.upper() not in LEVELS:
            _fail(f"--log-level {self.level}: must be one of {', '.join(LEVELS)}")
        if self.format.lower() not in FORMATS:
            _fail(f"--log-format {self.format}: must be one of {', '.join(FORMATS)}")
        configure_logging(self.level.upper(), self.facts, self.format.lower())


def _prepare(form: LogForm) -> None:
    """Prepares this process for a server, before the server's modules are imported."""
    form.apply()
    # A start consists mostly of imports, and none of the objects that they create is garbage. numpy's threads
    # for linear algebra are useless in a server.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()


def _run(serving: Coroutine[Any, Any, int]) -> NoReturn:
    """Runs a server until its end, and exits with its code."""
    import uvloop

    from tandemmq.runtime.machine import keep_freed_memory

    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(serving)
    except TandemError as error:
        _fail(str(error))
    except OSError as error:
        _fail(_sentence(error))
    finally:
        gc.enable()
    raise typer.Exit(code)


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"tandemmq: {sentence}", err=True)
    raise typer.Exit(1)


def _sentence(error: OSError) -> str:
    """Returns the reason and the place of an error, without the errno's number."""
    reason = error.strerror or str(error)
    unbound = _UNBOUND.search(reason)
    if unbound is not None:
        from tandemmq.remoting.options import render_address

        return f"cannot listen on {render_address((unbound[1], int(unbound[2])))}: {unbound[3]}"
    return f"{error.filename}: {reason}" if error.filename else reason


# --- Commands of other modules


_LOCAL, _MESSAGES, _CLUSTER = "A cluster on this machine", "Messages", "A running cluster"
_SERVERS, _SPARK, _STORE = "Servers", "Spark", "Measure and repair"
_PANELS: Final = (_LOCAL, _MESSAGES, _CLUSTER, _SERVERS, _SPARK, _STORE)
"""The groups of the help, in its order."""

_OTHERS: Final = {
    "up": (_LOCAL, "tandemmq.shell.up", "", "Start a whole cluster on this machine and keep it running."),
    "status": (_LOCAL, "tandemmq.shell.up", "", "Show its processes and the lag of its slaves."),
    "down": (_LOCAL, "tandemmq.shell.up", "", "Stop it."),
    "produce": (_MESSAGES, "tandemmq.shell.send", "", "Send texts, lines or files as messages."),
    "consume": (_MESSAGES, "tandemmq.shell.read", "", "Read messages as a member of a consumer group."),
    "request": (_MESSAGES, "tandemmq.shell.requests", "", "Send a request and print the reply."),
    "reply": (_MESSAGES, "tandemmq.shell.requests", "", "Answer requests."),
    "tail": (_MESSAGES, "tandemmq.shell.read", "", "Show messages as they arrive."),
    "browse": (_MESSAGES, "tandemmq.shell.read", "", "Look up messages by position, time, key, tag or id."),
    "dlq": (_MESSAGES, "tandemmq.shell.dead_letters", "", "List, show, resend and purge dead letters."),
    "resend": (_MESSAGES, "tandemmq.shell.send", "", "Redeliver a group's dead letters."),
    "topics": (_CLUSTER, "tandemmq.shell.topics", "", "List, create, describe, alter and delete topics."),
    "groups": (_CLUSTER, "tandemmq.shell.groups", "", "List, describe, reset and delete groups."),
    "lag": (_CLUSTER, "tandemmq.shell.lag", "", "Show the lag of a consumer group."),
    "contexts": (_CLUSTER, "tandemmq.shell.contexts", "", "Keep the addresses and keys of several clusters."),
    "console": (_CLUSTER, "tandemmq.console.command", "console", "Serve the web console of a cluster."),
    "doctor": (_CLUSTER, "tandemmq.shell.doctor", "", "Find problems in a cluster and suggest fixes."),
    "check": (_CLUSTER, "tandemmq.shell.doctor", "", "Check whether a cluster is ready for production."),
    "debug": (_CLUSTER, "tandemmq.shell.debug", "", "Collect what helps to find a fault: one archive."),
    "admin": (
        _CLUSTER,
        "tandemmq.admin.command",
        "",
        "Inspect and change brokers, topics, groups and messages.",
    ),
    "mcp": (_CLUSTER, "tandemmq.mcp.command", "mcp", "Serve a cluster's state to AI assistants as tools."),
    "audit": (
        _CLUSTER,
        "tandemmq.admin.audit_command",
        "",
        "Compare the logs of running masters and slaves.",
    ),
    "generate": (
        _CLUSTER,
        "tandemmq.generate.command",
        "",
        "Print a Grafana board or Prometheus' alert rules.",
    ),
    "demo": (
        _SPARK,
        "tandemmq.demo.command",
        "spark",
        "Run a whole cluster and a Spark job over real data, and check the result.",
    ),
    "pipeline": (_SPARK, "tandemmq.spark.command", "spark", "Run a Spark pipeline over topics."),
    "bench": (_STORE, "tandemmq.bench.command", "", "Measure the broker's cost per message."),
    "store": (_STORE, "tandemmq.store_command", "", "Check, repair, back up or restore a store."),
}
"""The other commands, as command -> group, module, the extra that it needs ("" for none), and its line of
help.
"""


def _load_other(name: str) -> Any:
    """Returns the command of another module: its `app`, or the function that has the command's name."""
    import importlib

    _, module_name, extra, _ = _OTHERS[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or "a module"
        if missing.startswith("tandemmq"):
            _fail(f"the command {name} is not part of this installation ({missing} is missing)")
        hint = install_hint(*filter(None, (extra,)))
        _fail(f"the command {name} needs {missing}: {hint}")
    found = getattr(module, "app", None)
    if found is None:
        found = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        found.command()(getattr(module, name))
    command = typer.main.get_command(found)
    if _OTHERS[name][0] in (_LOCAL, _MESSAGES, _CLUSTER):
        from tandemmq.shell.contexts import add_context

        add_context(command)
    return command


def _defaults(name: str, found: Any) -> dict[str, Any]:
    """Returns the name server of the local `tandemmq up` as a default for mqadmin's commands. The other
    commands look it up themselves, because they report when there is none.
    """
    if name not in ("admin", "audit"):
        return {}
    from tandemmq.shell import local

    try:
        default = {"namesrv": local.running_state(local.default_folder()).namesrv}
    except local.NotRunning:
        return {}
    return dict.fromkeys(getattr(found, "commands", ()), default) or default


def _register_other(name: str) -> None:
    @app.command(
        name,
        cls=_OtherCommand,
        help=_OTHERS[name][3],
        rich_help_panel=_OTHERS[name][0],
    )
    def _delegate(context: typer.Context) -> None:
        import logging

        # Log lines of the client are for services: commands print what happened.
        logging.getLogger("tandemmq").addHandler(logging.NullHandler())
        try:
            found = _load_other(name)
            found(
                args=context.args,
                prog_name=f"tandemmq {name}",
                default_map=_defaults(name, found),
                **HELP_OPTIONS,
            )
        except TandemError as error:
            _fail(str(error))
        except OSError as error:
            _fail(_sentence(error))


for _name in _OTHERS:
    _register_other(_name)
