"""The command line: starts servers and delegates to the other commands.

Invariants: standard output carries only the ready line of a server; the log goes to standard error. An error
            that the user can correct (an invalid setting, a port in use, a locked or unwritable store) ends
            with exit code 1 and one sentence; any other error is a bug and shows its traceback.
Strategy:   nothing heavy is imported before a command needs it, so `--help` is fast and a broker does not
            need Spark.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, Protocol

import typer
from typer.core import TyperCommand, TyperGroup

from tandemmq.errors import TandemError, install_hint
from tandemmq.remoting.options import render_address

if TYPE_CHECKING:
    from tandemmq.broker.options import BrokerConfig
    from tandemmq.controller.controller import Controller
    from tandemmq.controller.options import ControllerConfig
    from tandemmq.proxy.options import ProxyConfig
    from tandemmq.proxy.proxy import Proxy
    from tandemmq.runtime.descriptors import DescriptorPlan
    from tandemmq.runtime.ports import Network


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


class ServedProcess(Protocol):
    """The interface of a broker or a name server towards `serve`."""

    async def start(self) -> object: ...
    async def stop(self) -> None: ...


@app.command(rich_help_panel="Servers")
def namesrv(
    config: ConfigFile = None,
    override: Overrides = None,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
) -> None:
    """Run a name server until SIGTERM or SIGINT."""
    _run(lambda: _name_server(config, override or []), LogForm(log_level, log_format))


@app.command(rich_help_panel="Servers")
def controller(
    config: ConfigFile = None,
    override: Overrides = None,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
) -> None:
    """Run a controller, which elects the masters of broker groups, until SIGTERM or SIGINT."""
    _run(lambda: _controller(config, override or []), LogForm(log_level, log_format))


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
    form = LogForm(log_level, log_format)
    if worker:
        number, _, pair = worker.partition(":")
        form = replace(form, facts={"worker": int(number)})
        _run(lambda: _proxy_worker(config, overrides, int(number), int(pair)), form)
    else:
        _run(lambda: _proxy(config, overrides, form), form)


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
    else:
        _run(lambda: _broker(config, overrides), LogForm(log_level, log_format))


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


def _run(main: Callable[[], Coroutine[Any, Any, int]], form: LogForm) -> NoReturn:
    """Runs the server until its end."""
    form.apply()
    # A start consists mostly of imports, and none of the objects that they create is garbage. numpy's threads
    # for linear algebra are useless in a server.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    import uvloop

    from tandemmq.runtime.machine import keep_freed_memory

    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(main())
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
        return f"cannot listen on {render_address((unbound[1], int(unbound[2])))}: {unbound[3]}"
    return f"{error.filename}: {reason}" if error.filename else reason


async def _name_server(config: Path | None, overrides: list[str]) -> int:
    from tandemmq.config.load import load_name_server, read_settings, with_saved_settings
    from tandemmq.controller.options import ControllerConfig
    from tandemmq.nameserver.nameserver import NameServer
    from tandemmq.runtime.disk import RealDisk
    from tandemmq.runtime.machine import LoopClock, TcpNetwork
    from tandemmq.shell.machine import this_machine

    settings = with_saved_settings(read_settings(config, overrides), config)
    loaded = load_name_server(settings, config, listen_host=this_machine().listen_host)
    _warn(loaded.inert, ())
    outcome = ServerEnd()
    servers = 1 if loaded.controller is None else 2
    connections_max = _plan_descriptors().connections_max // servers
    name_server = NameServer(
        loaded.options,
        network=TcpNetwork(),
        disk=RealDisk(),
        clock=LoopClock(),
        on_fatal=outcome.fail,
        tls=loaded.tls,
        credentials=loaded.credentials,
        connections_max=connections_max,
    )
    options = loaded.controller
    if options is None:
        return await serve(
            name_server, outcome, lambda: f"name server ready on {render_address(name_server.address)}"
        )
    own = ControllerConfig(options=options, tls=loaded.tls, credentials=loaded.credentials)
    elector = _new_controller(own, outcome, connections_max)
    name_server.more_conditions = elector.read_conditions
    name_server.more_metrics = elector.read_metrics

    def ready() -> str:
        place = f"controller {options.self_id} on {render_address(elector.address)}"
        return f"name server ready on {render_address(name_server.address)}, {place}"

    return await serve(_Both(name_server, elector), outcome, ready)


async def _controller(config: Path | None, overrides: list[str]) -> int:
    from tandemmq.config.load import load_controller, read_settings
    from tandemmq.shell.machine import this_machine

    loaded = load_controller(read_settings(config, overrides), config, listen_host=this_machine().listen_host)
    _warn(loaded.inert, ())
    outcome = ServerEnd()
    connections_max = _plan_descriptors().connections_max
    server = _new_controller(loaded, outcome, connections_max)

    def ready() -> str:
        options = loaded.options
        place = f"{render_address(server.address)}, store in {options.store_path}"
        return f"controller {options.self_id} of {options.group} ready on {place}"

    return await serve(server, outcome, ready)


async def _proxy(config: Path | None, overrides: list[str], form: LogForm) -> int:
    from tandemmq.config.load import load_proxy, read_settings
    from tandemmq.runtime.machine import TcpNetwork
    from tandemmq.shell.machine import this_machine

    loaded = load_proxy(read_settings(config, overrides), this_machine())
    _warn(loaded.inert, ())
    outcome = ServerEnd()
    if loaded.options.worker_count == 1:
        return await _serve_proxy(loaded, TcpNetwork(), outcome, "proxy")
    from tandemmq.shell.proxy_workers import WorkerGroup

    _ensure_certificate(loaded)
    files = [] if config is None else ["-c", str(config)]
    settings = [piece for override in overrides for piece in ("--set", override)]
    group = WorkerGroup(loaded.options, [*files, *settings, *form.options], outcome.fail)

    def ready() -> str:
        facts = f"{len(group.workers)} workers, name servers {loaded.options.name_servers}"
        return f"proxy ready on {render_address(group.address)}, {facts}"

    return max(await serve(group, outcome, ready), group.exit_code)


async def _proxy_worker(config: Path | None, overrides: list[str], number: int, pair: int) -> int:
    """Runs one worker of a proxy, which gets its connections through the inherited socket `pair`."""
    from tandemmq.config.load import load_proxy, read_settings
    from tandemmq.runtime.shared_port import WorkerNetwork
    from tandemmq.shell.machine import this_machine

    loaded = load_proxy(read_settings(config, overrides), this_machine())
    loaded = replace(loaded, options=loaded.options.of_worker(number))
    address = (loaded.options.listen_host, loaded.options.listen_port)
    outcome = ServerEnd()

    def end(is_orphan: bool) -> None:
        if not outcome.has_begun:
            outcome.end()
        elif is_orphan:
            os._exit(1)  # the parent got a second signal, or was killed, while this worker drained

    network = WorkerNetwork(socket.socket(fileno=pair), address, end)
    return await _serve_proxy(loaded, network, outcome, f"proxy worker {number}", is_worker=True)


def _ensure_certificate(loaded: ProxyConfig) -> None:
    """Makes the certificate that the workers of a proxy share, unless one is given or none is needed."""
    from tandemmq.runtime.disk import RealDisk
    from tandemmq.runtime.machine import LoopClock

    try:
        from tandemmq.proxy.certificate import ensure_tls
    except ModuleNotFoundError as error:
        _fail_without_proxy(error)
    ensure_tls(loaded, disk=RealDisk(), clock=LoopClock())


async def _serve_proxy(
    loaded: ProxyConfig, network: Network, outcome: ServerEnd, name: str, *, is_worker: bool = False
) -> int:
    server = _new_proxy(loaded, network, outcome, _plan_descriptors().connections_max)

    def ready() -> str:
        return f"{name} ready on {render_address(server.address)}, name servers {loaded.options.name_servers}"

    return await serve(server, outcome, ready, retire=server.drain, is_worker=is_worker)


def _new_proxy(loaded: ProxyConfig, network: Network, outcome: ServerEnd, connections_max: int) -> Proxy:
    from tandemmq.runtime.disk import RealDisk
    from tandemmq.runtime.machine import LoopClock, SystemRandom
    from tandemmq.runtime.ports import Machine

    try:
        from tandemmq.proxy.proxy import Proxy
    except ModuleNotFoundError as error:
        _fail_without_proxy(error)
    return Proxy(
        loaded,
        machine=Machine(network, RealDisk(), LoopClock(), SystemRandom()),
        connections_max=connections_max,
        on_fatal=outcome.fail,
    )


def _fail_without_proxy(error: ModuleNotFoundError) -> NoReturn:
    _fail(f"the proxy needs {error.name}: {install_hint('proxy')}")


def _new_controller(config: ControllerConfig, outcome: ServerEnd, connections_max: int) -> Controller:
    from tandemmq.controller.controller import Controller
    from tandemmq.runtime.disk import RealDisk
    from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork

    return Controller(
        config,
        network=TcpNetwork(),
        disk=RealDisk(),
        clock=LoopClock(),
        chance=SystemRandom(),
        on_fatal=outcome.fail,
        connections_max=connections_max,
    )


@dataclass(frozen=True, slots=True)
class _Both:
    """Two servers in one process: the second one runs only while the first one does."""

    first: ServedProcess
    second: ServedProcess

    async def start(self) -> None:
        await self.first.start()
        await self.second.start()

    async def stop(self) -> None:
        await self.second.stop()
        await self.first.stop()


async def _broker(config: Path | None, overrides: list[str]) -> int:
    from tandemmq.broker.broker import Broker
    from tandemmq.config.load import load_broker, read_settings
    from tandemmq.runtime.disk import RealDisk
    from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork
    from tandemmq.runtime.ports import Machine
    from tandemmq.shell.machine import this_machine

    loaded = load_broker(read_settings(config, overrides), this_machine(), config)
    _warn(loaded.inert, loaded.notes)
    plan = _plan_descriptors(loaded.store.open_file_count_max, loaded.replication.connection_count_max)
    servers = 2 if loaded.proxy.is_enabled else 1
    loaded = replace(
        loaded,
        broker=replace(loaded.broker, connections_max=plan.connections_max // servers),
        store=replace(loaded.store, open_file_count_max=plan.open_file_count_max),
        replication=replace(loaded.replication, connection_count_max=plan.replication_connections_max),
    )
    outcome = ServerEnd()
    if loaded.election.is_enabled:
        return await _elected_broker(loaded, outcome)
    server = Broker(
        loaded.broker,
        loaded.store,
        loaded.replication,
        machine=Machine(TcpNetwork(), RealDisk(), LoopClock(), SystemRandom()),
        on_fatal=outcome.fail,
        access=loaded.access,
        tls=loaded.tls,
    )

    def ready() -> str:
        name, role = loaded.broker.broker_name, loaded.store.role.value
        ports = f"{render_address(server.address)}, replication on {render_address(server.ha_address)}"
        return f"broker {name} ({role}) ready on {ports}, store in {loaded.store.root}"

    return await _serve_broker(server, loaded, outcome, ready)


async def _elected_broker(loaded: BrokerConfig, outcome: ServerEnd) -> int:
    from tandemmq.broker.autoswitch.elected import ElectedBroker
    from tandemmq.runtime.disk import RealDisk
    from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork

    server = ElectedBroker(
        loaded,
        network=TcpNetwork(),
        disk=RealDisk(),
        clock=LoopClock(),
        chance=SystemRandom(),
        on_fatal=outcome.fail,
    )

    def ready() -> str:
        name = f"broker {loaded.broker.broker_name} (elected, id {server.broker_id})"
        ports = f"{render_address(server.address)}, replication on {render_address(server.ha_address)}"
        return f"{name} ready on {ports}, store in {loaded.store.root}"

    return await _serve_broker(server, loaded, outcome, ready, retire=server.retire)


async def _serve_broker(
    server: ServedProcess,
    loaded: BrokerConfig,
    outcome: ServerEnd,
    ready: Callable[[], str],
    *,
    retire: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Serves a broker, and the proxy in its process if there is one. The proxy starts when the broker has
    registered, and drains before the broker prepares its stop.
    """
    if not loaded.proxy.is_enabled:
        return await serve(server, outcome, ready, retire=retire)
    from tandemmq.config.inner_proxy import inner_proxy_config
    from tandemmq.runtime.machine import TcpNetwork

    proxy = _new_proxy(inner_proxy_config(loaded), TcpNetwork(), outcome, loaded.broker.connections_max)

    def both_ready() -> str:
        return f"{ready()}, proxy on {render_address(proxy.address)}"

    async def retire_both() -> None:
        await proxy.drain()
        if retire is not None:
            await retire()

    return await serve(_Both(server, proxy), outcome, both_ready, retire=retire_both)


class ServerEnd:
    """The reason why the server has to end: a signal (None) or the error after which it cannot continue."""

    def __init__(self) -> None:
        self.is_due = asyncio.Event()
        self.has_begun = False
        self.error: BaseException | None = None

    def end(self) -> None:
        self.has_begun = True
        self.is_due.set()

    def fail(self, error: BaseException) -> None:
        """Records the error and ends the server; only the first call's error counts."""
        if self.error is None:
            self.error = error
        self.end()


def _log_build() -> None:
    """Logs warnings: this Python was built without optimisation, the installed kernel does not fit."""
    from tandemmq.protocol import speedups
    from tandemmq.runtime.machine import is_optimized_python
    from tandemmq.telemetry import events
    from tandemmq.telemetry.log_lines import event_logger

    if not is_optimized_python():
        facts = {"python": sys.version.split()[0], "fix": "use a Python built with --enable-optimizations"}
        event_logger(__name__).warning(events.PYTHON_UNOPTIMIZED, extra=facts)
    if speedups.state.startswith("refused"):
        event_logger(__name__).warning(events.SPEEDUPS_REFUSED, extra={"reason": speedups.state})


async def serve(
    server: ServedProcess,
    outcome: ServerEnd,
    ready: Callable[[], str],
    *,
    retire: Callable[[], Awaitable[None]] | None = None,
    is_worker: bool = False,
) -> int:
    """Starts the server, prints the ready line, waits for a signal or a fatal error, and stops the server;
    returns the exit code. `retire` prepares the stop of a server that was ready and has no error.

    A second signal ends the process at once, in case stopping hangs. It does not end a worker, which may get
    one from its parent and one as a member of a group of processes; its parent kills it.
    """
    from tandemmq.runtime.speedups import load_speedups

    load_speedups()
    # The imports of a server, and the objects of its start, are permanent. A garbage collection that scans
    # them all, 80,000 objects, would block the loop for tens of milliseconds.
    gc.freeze()
    gc.enable()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, outcome.end)
    starting = asyncio.ensure_future(server.start())
    due = asyncio.ensure_future(outcome.is_due.wait())
    is_ready = False
    try:
        await asyncio.wait((starting, due), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            is_ready = True
            gc.freeze()
            typer.echo(ready())
            notify_service_manager("READY=1")
            if not is_worker:
                _log_build()
            await due
        else:
            # A long recovery must not make the process deaf to signals.
            starting.cancel()
            await asyncio.wait((starting,))
    finally:
        due.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            if is_worker:
                loop.add_signal_handler(number, _ignore)
            else:
                loop.remove_signal_handler(number)
        gc.unfreeze()
        notify_service_manager("STOPPING=1")
        try:
            if retire is not None and is_ready and outcome.error is None:
                await _unless_fatal(retire, outcome)
        finally:
            await server.stop()
    if outcome.error is None:
        return 0
    typer.echo(f"tandemmq: stopped: {outcome.error or type(outcome.error).__name__}", err=True)
    return 1


def _ignore() -> None:
    pass


async def _unless_fatal(work: Callable[[], Awaitable[None]], outcome: ServerEnd) -> None:
    """Runs the work until it ends or the server has a fatal error. Raises the errors of the work."""
    outcome.is_due.clear()
    working = asyncio.ensure_future(work())
    failing = asyncio.ensure_future(outcome.is_due.wait())
    try:
        await asyncio.wait((working, failing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, failing):
            task.cancel()
        await asyncio.wait((working, failing))
    if not working.cancelled():
        working.result()


def notify_service_manager(state: str) -> None:
    """Reports the state to systemd (`Type=notify`); does nothing when systemd did not start the process."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier, suppress(OSError):
        # An address that begins with @ is in the abstract namespace: its first byte is zero.
        notifier.sendto(state.encode(), path.replace("@", "\0", 1) if path[0] == "@" else path)


def _plan_descriptors(open_file_count_max: int = 0, replication_connections_max: int = 0) -> DescriptorPlan:
    """Raises this process's limit of open files, fills the reserve, and returns the division of the rest."""
    import logging

    from tandemmq.runtime.descriptors import (
        CONNECTIONS_TARGET,
        RESERVE,
        RESERVE_COUNT,
        plan_descriptors,
        raise_limit,
    )
    from tandemmq.telemetry import events

    limit = raise_limit()
    plan = plan_descriptors(limit, open_file_count_max, replication_connections_max)
    RESERVE.hold(RESERVE_COUNT)
    if plan.is_short:
        logging.getLogger("tandemmq.config").warning(
            events.DESCRIPTORS_LOW,
            extra={
                "limit": limit,
                "connections_max": plan.connections_max,
                "open_file_count_max": plan.open_file_count_max,
                "wanted_connections": CONNECTIONS_TARGET,
                "reason": "the hard limit of open files (ulimit -Hn, LimitNOFILE=) is small",
            },
        )
    return plan


def _warn(inert: tuple[str, ...], notes: tuple[str, ...]) -> None:
    import logging

    from tandemmq.telemetry import events

    log = logging.getLogger("tandemmq.config")
    if inert:
        log.warning(
            events.SETTINGS_IGNORED, extra={"reason": "no effect here", "keys": ",".join(sorted(inert))}
        )
    for note in notes:
        log.warning(events.SETTING_CHANGED, extra={"reason": note})


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
