"""The servers as processes: each is made of its settings, and serves until a signal or an error ends it.

Invariants: standard output carries only the ready line of a server.
Strategy:   the classes of a server are imported when it is run, so that a name server loads no broker.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from tandemmq.broker.options import BrokerConfig
from tandemmq.config.inner_proxy import inner_proxy_config
from tandemmq.config.load import (
    load_broker,
    load_controller,
    load_name_server,
    load_proxy,
    read_settings,
    with_saved_settings,
)
from tandemmq.controller.options import ControllerConfig
from tandemmq.errors import ConfigError, install_hint
from tandemmq.protocol import speedups
from tandemmq.proxy.options import ProxyConfig
from tandemmq.remoting.options import render_address
from tandemmq.runtime.descriptors import (
    CONNECTIONS_TARGET,
    RESERVE,
    RESERVE_COUNT,
    DescriptorPlan,
    plan_descriptors,
    raise_limit,
)
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork, is_optimized_python
from tandemmq.runtime.ports import Machine, Network
from tandemmq.runtime.shared_port import WorkerNetwork
from tandemmq.runtime.speedups import load_speedups
from tandemmq.shell.machine import this_machine
from tandemmq.telemetry import events

if TYPE_CHECKING:
    from tandemmq.broker.autoswitch.elected import ElectedBroker
    from tandemmq.broker.broker import Broker
    from tandemmq.controller.controller import Controller
    from tandemmq.proxy.proxy import Proxy


class ServedProcess(Protocol):
    """The interface of a server towards `serve`."""

    async def start(self) -> object: ...
    async def stop(self) -> None: ...


async def run_name_server(config: Path | None, overrides: list[str]) -> int:
    """Runs a name server, and the controller in its process if there is one."""
    from tandemmq.nameserver.nameserver import NameServer

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


async def run_controller(config: Path | None, overrides: list[str]) -> int:
    """Runs a controller."""
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


async def run_proxy(config: Path | None, overrides: list[str], log_options: list[str]) -> int:
    """Runs a proxy in this process, or its workers, which get the options of the log."""
    loaded = load_proxy(read_settings(config, overrides), this_machine())
    _warn(loaded.inert, ())
    outcome = ServerEnd()
    if loaded.options.worker_count == 1:
        return await _serve_proxy(loaded, TcpNetwork(), outcome, "proxy")
    from tandemmq.shell.proxy_workers import WorkerGroup

    _ensure_certificate(loaded)
    files = [] if config is None else ["-c", str(config)]
    settings = [piece for override in overrides for piece in ("--set", override)]
    group = WorkerGroup(loaded.options, [*files, *settings, *log_options], outcome.fail)

    def ready() -> str:
        facts = f"{len(group.workers)} workers, name servers {loaded.options.name_servers}"
        return f"proxy ready on {render_address(group.address)}, {facts}"

    return max(await serve(group, outcome, ready), group.exit_code)


async def run_proxy_worker(config: Path | None, overrides: list[str], number: int, pair: int) -> int:
    """Runs one worker of a proxy, which gets its connections through the inherited socket `pair`."""
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
    try:
        from tandemmq.proxy.certificate import ensure_tls
    except ModuleNotFoundError as error:
        raise _without_proxy(error) from None
    ensure_tls(loaded, disk=RealDisk(), clock=LoopClock())


async def _serve_proxy(
    loaded: ProxyConfig, network: Network, outcome: ServerEnd, name: str, *, is_worker: bool = False
) -> int:
    server = _new_proxy(loaded, network, outcome, _plan_descriptors().connections_max)

    def ready() -> str:
        return f"{name} ready on {render_address(server.address)}, name servers {loaded.options.name_servers}"

    return await serve(server, outcome, ready, retire=server.drain, is_worker=is_worker)


def _new_proxy(loaded: ProxyConfig, network: Network, outcome: ServerEnd, connections_max: int) -> Proxy:
    try:
        from tandemmq.proxy.proxy import Proxy
    except ModuleNotFoundError as error:
        raise _without_proxy(error) from None
    return Proxy(
        loaded,
        machine=Machine(network, RealDisk(), LoopClock(), SystemRandom()),
        connections_max=connections_max,
        on_fatal=outcome.fail,
    )


def _without_proxy(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"the proxy needs {error.name}: {install_hint('proxy')}")


def _new_controller(config: ControllerConfig, outcome: ServerEnd, connections_max: int) -> Controller:
    from tandemmq.controller.controller import Controller

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


async def run_broker(config: Path | None, overrides: list[str]) -> int:
    """Runs a broker, elected or not, and the proxy in its process if there is one."""
    from tandemmq.broker.broker import Broker

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

    name = f"broker {loaded.broker.broker_name} ({loaded.store.role.value})"
    return await _serve_broker(server, loaded, outcome, lambda: name)


async def _elected_broker(loaded: BrokerConfig, outcome: ServerEnd) -> int:
    from tandemmq.broker.autoswitch.elected import ElectedBroker

    server = ElectedBroker(
        loaded,
        network=TcpNetwork(),
        disk=RealDisk(),
        clock=LoopClock(),
        chance=SystemRandom(),
        on_fatal=outcome.fail,
    )

    def name() -> str:
        return f"broker {loaded.broker.broker_name} (elected, id {server.broker_id})"

    return await _serve_broker(server, loaded, outcome, name, retire=server.retire)


async def _serve_broker(
    server: Broker | ElectedBroker,
    loaded: BrokerConfig,
    outcome: ServerEnd,
    name: Callable[[], str],
    *,
    retire: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Serves a broker, and the proxy in its process if there is one. The proxy starts when the broker has
    registered, and drains before the broker prepares its stop.
    """

    def ready() -> str:
        ports = f"{render_address(server.address)}, replication on {render_address(server.ha_address)}"
        return f"{name()} ready on {ports}, store in {loaded.store.root}"

    if not loaded.proxy.is_enabled:
        return await serve(server, outcome, ready, retire=retire)
    proxy = _new_proxy(inner_proxy_config(loaded), TcpNetwork(), outcome, loaded.broker.connections_max)

    def both_ready() -> str:
        return f"{ready()}, proxy on {render_address(proxy.address)}"

    async def retire_both() -> None:
        await proxy.drain()
        if retire is not None:
            await retire()

    return await serve(_Both(server, proxy), outcome, both_ready, retire=retire_both)


# --- Serving


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
    log = logging.getLogger("tandemmq.runtime")
    if not is_optimized_python():
        facts = {"python": sys.version.split()[0], "fix": "use a Python built with --enable-optimizations"}
        log.warning(events.PYTHON_UNOPTIMIZED, extra=facts)
    if speedups.state.startswith("refused"):
        log.warning(events.SPEEDUPS_REFUSED, extra={"reason": speedups.state})


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
    log = logging.getLogger("tandemmq.config")
    if inert:
        log.warning(
            events.SETTINGS_IGNORED, extra={"reason": "no effect here", "keys": ",".join(sorted(inert))}
        )
    for note in notes:
        log.warning(events.SETTING_CHANGED, extra={"reason": note})
