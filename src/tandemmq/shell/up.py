"""`tandemmq up`, `status` and `down`: a whole cluster on this machine with one command."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.admin.options import AsJson, grouped, is_given, option
from tandemmq.errors import ConfigError, TandemError
from tandemmq.launcher import ProcessFailed
from tandemmq.shell import local
from tandemmq.shell.local import AlreadyRunning, NotRunning, ServerPlan, ServerState, UpState

if TYPE_CHECKING:
    from tandemmq.shell.supervisor import Supervisor

DETACH_SECONDS_MAX: Final = 60.0
_PAUSE_S: Final = 0.01
_RUNS_ALREADY: Final = "a cluster already runs in {}; `tandemmq down` stops it"

Store = Annotated[
    Path | None,
    option("--store DIR", "The cluster's folder.", show_default="$TANDEMMQ_STORE, else ~/.tandemmq"),
]


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `up`, by the names that a running cluster is compared with."""

    minimal: Annotated[bool, option("--minimal", "Start one broker per group, without a slave.")] = False
    elected: Annotated[
        bool | None,
        option(
            "--elected/--no-elected",
            "Fail over automatically.",
            show_default="on; off with --minimal; existing folders keep their mode",
        ),
    ] = None
    processes: Annotated[int, option("--processes N", "Number of broker groups.")] = 1
    detach: Annotated[bool, option("--detach -d", "Run in the background.")] = False
    port_base: Annotated[
        str,
        option(
            "--port-base PORT",
            "The name server's port; the brokers' ports follow it. auto: choose free ports.",
            show_default="RocketMQ's: 9876, 10911",
        ),
    ] = ""
    host: Annotated[str, option("--host IP", "The numeric IPv4 address that clients connect to.")] = (
        "127.0.0.1"
    )
    bind: Annotated[
        str,
        option(
            "--bind IP",
            "The IPv4 address to listen on.",
            show_default="--host if it is loopback, else all interfaces",
        ),
    ] = ""
    proxy: Annotated[
        bool | None,
        option(
            "--proxy/--no-proxy",
            "Serve the gRPC clients of RocketMQ 5.",
            show_default="on if the extra `proxy` is installed and port 8081 is free",
        ),
    ] = None
    console: Annotated[
        bool | None,
        option(
            "--console/--no-console",
            "Serve a web console of the cluster to this machine.",
            show_default="on if the extra `console` is installed and its port is free",
        ),
    ] = None
    console_port: Annotated[
        int,
        option(
            "--console-port PORT",
            "The console's port.",
            show_default="8088; with --port-base, behind the name server's",
            min=0,
            max=65535,
        ),
    ] = 0
    override: Annotated[
        list[str] | None, option("--set KEY=VALUE", "Override a setting of all brokers; repeatable.")
    ] = None

    def __post_init__(self) -> None:
        try:
            local.check_plan(
                groups=self.processes,
                port_base=self.port_base,
                host=self.host,
                bind=self.bind,
                overrides=self.override or (),
            )
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None


@grouped
def up(context: typer.Context, store: Store = None, options: UpOptions = UpOptions()) -> None:
    """Start a cluster on this machine: name server, controller, master, slave, proxy, web console."""
    folder = _folder(store)
    given = {name: value for name, value in context.params.items() if is_given(context, name)}
    if not local.is_own_address(options.host):
        typer.echo(
            f"tandemmq: no interface of this machine has the address --host {options.host}; the servers"
            " connect to each other there, so its packets must lead back here",
            err=True,
        )
    if options.detach and _is_parent(folder, given):
        return
    from tandemmq.shell.supervisor import Supervisor

    try:
        with local.folder_lock(folder):
            left = local.end_servers(folder)
            if left:
                typer.echo(f"stopped {left} processes that an earlier, killed `up` had left")
            plans = local.make_plan(
                folder,
                groups=options.processes,
                is_minimal=options.minimal,
                is_elected=options.elected,
                port_base=options.port_base,
                host=options.host,
                bind=options.bind,
                overrides=options.override or (),
            )
            if options.override:
                local.require_valid(plans, options.override)
            names = plans[0]
            plans += _plan_front("proxy for gRPC clients", local.plan_proxy, folder, names, options.proxy)
            plan_console = partial(local.plan_console, port=options.console_port)
            is_wanted = True if options.console is None and options.console_port else options.console
            plans += _plan_front("console", plan_console, folder, names, is_wanted)
            asyncio.run(_supervise(Supervisor(folder, plans, _print_line)))
    except AlreadyRunning:
        _report_running(folder, given)


def _plan_front(
    label: str,
    plan: Callable[[Path, ServerPlan], ServerPlan],
    folder: Path,
    name_server: ServerPlan,
    is_wanted: bool | None,
) -> list[ServerPlan]:
    """Plans a proxy or a console unless it is unwanted; one by default is left out if it cannot start.

    Raises:  ConfigError when a wanted one cannot start.
    """
    if is_wanted is False:
        return []
    try:
        return [plan(folder, name_server)]
    except ConfigError as error:
        if is_wanted:
            raise
        typer.echo(f"no {label} is started: {error}")
        return []


def _is_parent(folder: Path, given: Mapping[str, object]) -> bool:
    """Continues in a child process unless a cluster runs already. Returns False in the child; in the parent
    True, once the servers are ready.
    """
    running = local.supervisor_pid(folder)
    supervisor = _detach(folder) if running is None else running
    if supervisor:
        _await_ready(folder, supervisor, given, is_ours=running is None)
    return supervisor != 0


def _print_line(line: str) -> None:
    """Prints a line for the user; a closed output must not end the servers."""
    with suppress(OSError):
        typer.echo(line)


async def _supervise(supervisor: Supervisor) -> None:
    await supervisor.run(lambda state: _print_ready(state, "Ctrl-C"))
    _print_line("stopped")


def _detach(folder: Path) -> int:
    """Continues in a child process with a session of its own, which writes to `up.log`. Returns 0 in the
    child, the child's id in the parent.

    A fork is faster than a new command: the imports are done. There is only one thread, and no event loop
    yet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # The file is opened before the fork, so that the caller gets the error if it cannot be written. It is
    # opened for appending, because the child of a second `up` at the same moment reports here that it came
    # too late.
    log = os.open(folder / "up.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    child = os.fork()
    if child:
        os.close(log)
        return child
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, stream in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, stream)
    os.close(nothing)
    os.close(log)
    return 0


def _await_ready(folder: Path, supervisor: int, given: Mapping[str, object], *, is_ours: bool) -> None:
    """Waits until the supervisor reports that all servers are ready. The supervisor is this process's child,
    or for a second `up` the one that came first.

    Raises:  ProcessFailed when it ends, or takes too long; AlreadyRunning for a second `up` that has given
             other options.
    """
    end = time.monotonic() + DETACH_SECONDS_MAX
    pid: int | None = supervisor
    while pid is not None and time.monotonic() < end:
        state = local.read_state(folder)
        if state is not None and state.pid == pid and state.is_ready:
            if not is_ours:
                local.require_equal_options(state, given)
                typer.echo(_RUNS_ALREADY.format(folder))
            _print_ready(state, "`tandemmq down`")
            return
        time.sleep(_PAUSE_S)
        if is_ours:
            is_ours = os.waitpid(supervisor, os.WNOHANG) == (0, 0)
        if not is_ours:
            pid = local.supervisor_pid(folder)
    text = ""
    with suppress(FileNotFoundError):  # the supervisor may run in a terminal
        text = (folder / "up.log").read_text(encoding="utf-8", errors="replace").strip()
    if pid is not None:
        reason = f" ({text.splitlines()[-1]})" if text else ""
        raise ProcessFailed(
            f"still not ready after {DETACH_SECONDS_MAX:g} s{reason}; left running, see {folder / 'up.log'}"
        )
    raise ProcessFailed((text.splitlines() or ["it exited at once"])[-1].removeprefix("tandemmq: "))


def _report_running(folder: Path, given: Mapping[str, object]) -> None:
    state = local.read_state(folder)
    is_told = state is not None and state.pid == local.supervisor_pid(folder)
    if state is not None and is_told:
        local.require_equal_options(state, given)
    typer.echo(_RUNS_ALREADY.format(folder))
    if state is not None and is_told:
        _print_ready(state, "`tandemmq down`")


def _print_ready(state: UpState, stop_command: str) -> None:
    width = max(len(server.label) for server in state.servers)
    for server in state.servers:
        line = f"{server.label:{width}}  {server.address:21}  {server.state:8}  process {server.pid}"
        if server.health:
            line += f"  http://{server.health}/health/ready"
        _print_line(line)
    proxies = [server.address for server in state.servers if server.role == local.PROXY]
    grpc = f", clients of RocketMQ 5 (gRPC) to the proxy {proxies[0]}" if proxies else ""
    consoles = [server.address for server in state.servers if server.role == local.CONSOLE]
    console = f"The web console is at http://{consoles[0]}\n" if consoles else ""
    is_default = Path(state.folder) == local.default_folder()
    where = "" if is_default else f"export TANDEMMQ_STORE={shlex.quote(state.folder)}\n  "
    _print_line(
        f"\nConnect clients to the name server {state.namesrv}{grpc}.\n{console}"
        f"Files and logs are in {state.folder}; {stop_command} stops it. Try:\n"
        f"  {where}echo hello | tandemmq produce demo\n"
        "  tandemmq tail demo --last 10\n"
        "  tandemmq status"
    )


def _folder(store: Path | None) -> Path:
    return local.default_folder() if store is None else store.expanduser().resolve()


def down(store: Store = None) -> None:
    """Stop the cluster that `up` started, with all its processes. The messages are kept."""
    folder = _folder(store)
    count = len(local.server_pids(folder))
    was_running = local.end_supervisor(folder)
    local.end_servers(folder)
    left = local.server_pids(folder)
    if left:
        raise ProcessFailed(f"these processes did not stop: {', '.join(map(str, left))}")
    if was_running or count:
        typer.echo(f"stopped {count} processes; the messages are kept in {folder}")
    else:
        typer.echo(f"no cluster runs in {folder}")


def status(store: Store = None, as_json: AsJson = False) -> None:
    """Show the local processes with address, role and lag; exit code 1 when one has a problem."""
    folder = _folder(store)
    try:
        state = local.running_state(folder)
    except NotRunning:
        left = local.server_pids(folder)
        if not left:
            raise
        raise NotRunning(
            f"the supervisor in {folder} was killed; {len(left)} of its processes still run: `tandemmq up`"
            " restarts them, `tandemmq down` stops them"
        ) from None
    asyncio.run(_show_status(state, as_json))


async def _show_status(state: UpState, as_json: bool) -> None:
    from tandemmq.admin.render import CommandAnswer, Table, exit_on_broken_pipe, print_answer

    brokers = [server for server in state.servers if server.is_broker]
    found = dict(await asyncio.gather(*(_check_broker(state, server) for server in brokers)))
    now_ms = int(time.time() * 1000)
    is_well = all(server.state == "ready" for server in state.servers)
    columns = ("name", "role", "address", "process", "state", "uptime_seconds", "restarts", "lag_bytes")
    table = Table("processes", columns)
    for server in state.servers:
        role, lag, note = found.get(server.address, (server.role, None, ""))
        shown = server.note or note or server.state
        is_well &= not note
        uptime = (now_ms - server.started_at) // 1000 if server.state == "ready" else None
        table.rows.append(
            (server.name, role, server.address, server.pid, shown, uptime, server.restarts, lag)
        )
    with exit_on_broken_pipe():
        if as_json:
            rows = [dict(zip(columns, row, strict=True)) for row in table.rows]
            facts = {key: value for key, value in asdict(state).items() if key != "servers"}
            typer.echo(json.dumps({**facts, "is_well": is_well, "processes": rows}, indent=2))
        else:
            print_answer(CommandAnswer([table]), as_json=False)
            typer.echo(f"name server {state.namesrv}, files in {state.folder}, supervisor {state.pid}")
    raise typer.Exit(0 if is_well else 1)


async def _check_broker(state: UpState, server: ServerState) -> tuple[str, tuple[str, int | None, str]]:
    """Returns the role, a slave's lag behind its master in bytes, and the problem of a broker."""
    from tandemmq.api import broker_admin
    from tandemmq.manage.tools import open_tools

    try:
        async with open_tools("") as tools:
            own = await broker_admin.query_ha_status(tools.remoting, server.address)
            is_elected = server.role == local.ELECTED
            if own.is_master:
                return server.address, ("master" if is_elected else server.role, None, own.waiting or "")
            role = "slave" if is_elected else server.role
            if own.client.halt_reason:
                return server.address, (role, None, f"halted: {own.client.halt_reason}")
            if is_elected:
                master = own.client.master_address
            else:
                known = (one for one in state.servers if (one.name, one.role) == (server.name, "master"))
                master = next(known).address
            if not master:
                return server.address, (role, None, "no master is elected yet")
            whole = await broker_admin.query_ha_status(tools.remoting, master)
            return server.address, (role, max(0, whole.max_log_offset - own.client.max_log_offset), "")
    except TandemError as error:
        return server.address, (server.role, None, str(error))
