"""A local cluster: its folder, its ports, its recorded state, and its processes.

The folder holds one directory per process (`server.properties`, the log, the store), `up.json` with the
running servers, and `up.lock`, which the supervisor holds while it runs.

Invariants: the kernel releases a lock with its process. So a folder has at most one supervisor, and the end
            of a supervisor is detected at once. Every server has the folder in its environment. So the
            servers of a killed supervisor are found again, and no other process is ever mistaken for one of
            these servers.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from tandemmq.errors import ConfigError, TandemError, install_hint
from tandemmq.launcher import write_properties
from tandemmq.protocol.properties_file import parse_override, parse_properties
from tandemmq.units import MIB

FOLDER_VARIABLE: Final = "TANDEMMQ_STORE"
DEFAULT_FOLDER: Final = Path("~/.tandemmq")
FOLDER_MARKER: Final = "TANDEMMQ_UP"
"""The variable of a server's environment that names its folder."""

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
PORT_STEP: Final = 20
"""The distance between the ports of the masters of two groups. A slave's port is half this distance above its
master's.
"""
PORTS_OF_BROKER: Final = (-2, 0, 1)
"""The distances from a broker's port to the ports of its fast, main and replication listeners."""
CONTROLLER_DISTANCE: Final = 2
"""The distance from the name server's port to the port of the controller, which runs in its process:
RocketMQ's 9878 by default.
"""
ELECTED: Final = "elected"
"""The role in `up.json` of a broker that may be master or slave."""
NAME_SERVER: Final = "name server"
"""The name, and the role, of the first process in `up.json`."""
METRICS_DISTANCE: Final = 3
"""The distance from a broker's port to that of its metrics and health, if they are wanted."""
NAME_SERVER_METRICS_DISTANCE: Final = 5
"""The distance from the first broker's port to the same port of the name server."""
PROXY_METRICS_DISTANCE: Final = 1
"""The distance from that port to the same port of the proxy."""
PROXY: Final = "proxy"
"""The name, and the role, of the gRPC proxy."""
PROXY_PORT: Final = 8081
PROXY_DISTANCE: Final = 1
"""The distance from the name server's port to the port of the proxy, unless the ports are RocketMQ's."""
PROXY_MODULES: Final = ("h2", "google.protobuf", "cryptography")
CONSOLE: Final = "console"
"""The name, and the role, of the web console."""
CONSOLE_PORT: Final = 8088
CONSOLE_DISTANCE: Final = 4
"""The same distance for the console, between two listeners of the first broker."""
CONSOLE_MODULES: Final = ("jinja2", "starlette", "uvicorn")
NOT_BROKERS: Final = (NAME_SERVER, PROXY, CONSOLE)
GROUPS_MAX: Final = 26
AUTO: Final = "auto"
_AUTO_LOWEST, _AUTO_HIGHEST = 12_000, 30_000
"""Below the ephemeral port range, so that no outgoing connection occupies a port between choice and use."""

COMMIT_LOG_FILE_BYTES: Final = 128 * MIB
"""The size of log files. On a small disk the files are smaller, so that each broker has room for
LOG_FILES_MIN files.
"""
LOG_FILES_MIN: Final = 4
STOP_SECONDS_MAX: Final = 20.0
"""The time for a server to stop, besides the time for which it forwards sends (`stop_seconds_max`)."""
_PAUSE_S: Final = 0.05


class NotRunning(TandemError):
    """The error of a command for a running cluster if no cluster runs in the folder."""


class AlreadyRunning(TandemError):
    """The error of a start if another supervisor holds the folder's lock."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """The start command and the address of one process. `command` follows `tandemmq`."""

    name: str
    role: str
    address: str
    command: tuple[str, ...]
    directory: Path
    stop_seconds_max: float = STOP_SECONDS_MAX
    health: str = ""
    """The address of the pages of health and metrics; empty without them."""

    @property
    def log_path(self) -> Path:
        return self.directory / "log"

    @property
    def is_broker(self) -> bool:
        return self.role not in NOT_BROKERS


@dataclass(slots=True)
class ServerState:
    """One process in `up.json`. `note` is the reason why it is not running."""

    name: str
    role: str
    address: str
    log: str
    pid: int = 0
    state: str = "starting"
    started_at: int = 0
    restarts: int = 0
    note: str = ""
    health: str = ""

    @property
    def label(self) -> str:
        """The name in lines for people."""
        return self.name if self.name == self.role else f"{self.name} {self.role}"

    @property
    def is_broker(self) -> bool:
        return self.role not in NOT_BROKERS


@dataclass(slots=True)
class UpState:
    """The supervisor's report on its cluster; `error` is the reason why it gave up."""

    pid: int
    folder: str
    namesrv: str
    started_at: int
    is_ready: bool = False
    error: str = ""
    servers: list[ServerState] = field(default_factory=list)


# The plan


def make_plan(
    folder: Path,
    *,
    groups: int = 1,
    is_minimal: bool = False,
    is_elected: bool | None = None,
    port_base: str = "",
    host: str = "127.0.0.1",
    bind: str = "",
    overrides: Sequence[str] = (),
) -> list[ServerPlan]:
    """Plans the processes of a cluster: the name server first, then masters, then slaves.

    With `is_elected` a controller in the name server's process chooses the master of each group. A folder
    keeps its first mode. None means the mode of the folder; in a new folder it means elected, unless
    `is_minimal`.

    `host` is the address that clients are given. `bind` is the address to listen at; the default is `host` if
    it is a loopback address, else all interfaces.

    Raises:  ConfigError for invalid numbers and addresses, for ports in use, and for a folder with the other
             mode.
    """
    check_plan(groups=groups, port_base=port_base, host=host, bind=bind, overrides=overrides)
    is_elected = _choose_mode(folder, is_minimal=is_minimal, is_elected=is_elected)
    bind = bind or (host if host.startswith("127.") else "0.0.0.0")
    names, brokers = _choose_ports(
        bind, groups, is_minimal=is_minimal, is_elected=is_elected, port_base=port_base
    )
    controller = f"{host}:{names + CONTROLLER_DISTANCE}" if is_elected else ""
    given = _pairs(overrides)
    metrics = _metrics_settings(given, brokers[0][0] + NAME_SERVER_METRICS_DISTANCE)
    plans = [_plan_name_server(folder, host, bind, names, controller, metrics)]
    file_bytes = _choose_log_file_bytes(folder, groups * len(brokers[0]))
    slaves: list[ServerPlan] = []
    for number, pair in enumerate(brokers):
        for broker_id, port in enumerate(pair):
            role = ELECTED if is_elected else "slave" if broker_id else "master"
            name = f"broker-{chr(ord('a') + number)}"
            directory = folder / (f"{name}-{'second' if is_elected else 'slave'}" if broker_id else name)
            settings = {
                "brokerClusterName": "DefaultCluster",
                "brokerName": name,
                **_role_settings(broker_id, len(pair), controller),
                "namesrvAddr": plans[0].address,
                "brokerIP1": host,
                "bindAddress": bind,
                "listenPort": port,
                "haListenPort": port + 1,
                "storePathRootDir": directory / "store",
                "mappedFileSizeCommitLog": _kept_log_file_bytes(directory) or file_bytes,
                "flushDiskType": "ASYNC_FLUSH",
                "slaveReadEnable": "true",
                **_metrics_settings(given, port + METRICS_DISTANCE),
                **given,
            }
            plan = _write_plan(name, role, f"{host}:{port}", "broker", directory, settings)
            (slaves if broker_id else plans).append(plan)
    return plans + slaves


def require_valid(plans: Iterable[ServerPlan], overrides: Sequence[str]) -> None:
    """Raises ConfigError for an override with which a broker would not start. On a busy machine processes
    need long to start, fail, and stop again.
    """
    from tandemmq.config.load import load_broker, read_settings
    from tandemmq.shell.machine import this_machine

    machine = this_machine()
    for plan in filter(lambda one: one.is_broker, plans):
        load_broker(read_settings(plan.directory / "server.properties", overrides), machine)


def _metrics_settings(given: Mapping[str, str], port: int) -> dict[str, object]:
    """Returns the settings of one server's metrics and health, with a port of its own; none unless the user
    asks for them.
    """
    if given.get("metricsExporterType", "DISABLE").upper() in ("DISABLE", "0"):
        return {}
    found = {key: text for key, text in given.items() if key.startswith("metric")}
    return {**found, "metricsPromExporterPort": port}


def _role_settings(broker_id: int, replica_count: int, controller: str) -> dict[str, object]:
    """Returns the settings for the role: fixed, or chosen by the controller if there is one."""
    if controller:
        return {"enableControllerMode": "true", "controllerAddr": controller}
    return {
        "brokerId": broker_id,
        "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER" if replica_count > 1 else "ASYNC_MASTER",
        "totalReplicas": replica_count,
        "inSyncReplicas": replica_count,
    }


def _choose_mode(folder: Path, *, is_minimal: bool, is_elected: bool | None) -> bool:
    """Returns True if a controller is to choose the masters. Raises ConfigError for a folder with the other
    mode.
    """
    # Without a store, files of a failed start may exist; a failed start does not decide the mode.
    is_old = any(folder.glob("broker-*/store"))
    was_elected = is_old and _controller_store(folder).exists()
    if is_elected and is_old and not was_elected:
        raise ConfigError(
            f"{folder} holds a cluster without elections: omit --elected, or choose another --store"
        )
    if is_elected is False and was_elected:
        raise ConfigError(
            f"{folder} holds a cluster with elections: omit --no-elected, or choose another --store"
        )
    return was_elected or not (is_minimal or is_old) if is_elected is None else is_elected


def _controller_store(folder: Path) -> Path:
    return folder / "namesrv" / "controller"


def _plan_name_server(
    folder: Path, host: str, bind: str, port: int, controller: str, metrics: Mapping[str, object]
) -> ServerPlan:
    """Plans the name server, with a controller at the address `controller` if there is one."""
    directory = folder / "namesrv"
    settings: dict[str, object] = {
        "listenPort": port,
        "bindAddress": bind,
        "kvConfigPath": directory / "kvConfig.json",
        "configStorePath": directory / "kept.properties",
        **metrics,
    }
    if controller:
        settings |= {
            "enableControllerInNamesrv": "true",
            "controllerDLegerPeers": f"n0-{controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": _controller_store(folder),
        }
    else:
        shutil.rmtree(_controller_store(folder), ignore_errors=True)
    return _write_plan(NAME_SERVER, NAME_SERVER, f"{host}:{port}", "namesrv", directory, settings)


def plan_proxy(folder: Path, name_server: ServerPlan) -> ServerPlan:
    """Plans a proxy in front of the name server's brokers.

    Raises:  ConfigError when its port is in use, or its extra is not installed.
    """
    _require_modules(PROXY, PROXY_MODULES)
    host, _, names = name_server.address.rpartition(":")
    given = _read_settings(name_server.directory / "server.properties")
    bind = given["bindAddress"]
    port = PROXY_PORT if int(names) == NAMESRV_PORT else int(names) + PROXY_DISTANCE
    metrics_port = int(given.get("metricsPromExporterPort", 0)) + PROXY_METRICS_DISTANCE
    metrics = _metrics_settings(given, metrics_port)
    for wanted in (port, *([metrics_port] if metrics else [])):
        if not _is_free(bind, wanted):
            raise ConfigError(f"the proxy's port {wanted} at {bind} is in use by another program")
    directory = folder / "proxy"
    settings = {
        "namesrvAddr": name_server.address,
        "bindAddress": bind,
        "grpcServerPort": port,
        "proxyStorePath": directory / "store",
        **metrics,
    }
    return _write_plan(PROXY, PROXY, f"{host}:{port}", "proxy", directory, settings)


def plan_console(folder: Path, name_server: ServerPlan, port: int = 0) -> ServerPlan:
    """Plans a web console of the cluster, which only this machine reaches. Its changes are recorded in the
    folder.

    Raises:  ConfigError when its port is in use, or its extra is not installed.
    """
    _require_modules(CONSOLE, CONSOLE_MODULES)
    names = int(name_server.address.rpartition(":")[2])
    port = port or (CONSOLE_PORT if names == NAMESRV_PORT else names + CONSOLE_DISTANCE)
    host = "127.0.0.1"
    if not _is_free(host, port):
        raise ConfigError(f"the console's port {port} at {host} is in use by another program")
    directory = folder / CONSOLE
    directory.mkdir(parents=True, exist_ok=True)
    audit = str(directory / "audit.jsonl")
    address = f"{host}:{port}"
    command = ("console", "-n", name_server.address, "--listen", address, "--audit-log", audit)
    return ServerPlan(CONSOLE, CONSOLE, address, command, directory)


def _require_modules(extra: str, modules: Iterable[str]) -> None:
    """Raises ConfigError if a module of this extra is not installed."""
    missing = [name for name in modules if find_spec(name.partition(".")[0]) is None]
    if missing:
        raise ConfigError(f"the {extra} needs {missing[0]}: {install_hint(extra)}")


def _choose_log_file_bytes(folder: Path, broker_count: int) -> int:
    """Returns the size of the log files of new stores in `folder`: a power of two.

    Raises:  ConfigError when the disk has no room for LOG_FILES_MIN of the smallest files for each broker.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    share = free * 3 // 4 // (broker_count * LOG_FILES_MIN)
    if share < MIB and not any(folder.glob("broker-*/store")):
        raise ConfigError(
            f"the disk of {place} has {free / MIB:.0f} MiB free, and {broker_count} brokers need"
            f" {broker_count * LOG_FILES_MIN * 4 // 3 + 1}: free space, or choose another disk with --store"
        )
    return min(COMMIT_LOG_FILE_BYTES, 1 << max(20, share.bit_length() - 1))


def _kept_log_file_bytes(directory: Path) -> int:
    """Returns the file size with which a broker's store was created, because all files of a log have the same
    size; 0 without a store.
    """
    path = directory / "server.properties"
    if not (directory / "store" / "commitlog").exists() or not path.exists():
        return 0
    kept = parse_properties(path.read_bytes(), str(path)).get("mappedFileSizeCommitLog")
    return int(kept.text) if kept is not None and kept.text.isdecimal() else 0


def check_plan(*, groups: int, port_base: str, host: str, bind: str, overrides: Sequence[str]) -> None:
    """Raises ConfigError for options of `make_plan` that are wrong on every machine and in every folder."""
    for option, text in (("--host", host), ("--bind", bind or host)):
        try:
            IPv4Address(text)
        except ValueError:
            raise ConfigError(f"{option} {text}: must be a numeric IPv4 address, such as 192.0.2.1") from None
    if not 1 <= groups <= GROUPS_MAX:
        raise ConfigError(f"--processes {groups}: must be from 1 to {GROUPS_MAX}")
    port_end = 65536 - PORT_STEP * groups - 5
    is_port = port_base.isascii() and port_base.isdecimal() and 0 < int(port_base) < port_end
    if port_base not in ("", AUTO) and not is_port:
        raise ConfigError(f"--port-base {port_base}: must be a port below {port_end}, or {AUTO}")
    _pairs(overrides)


def _write_plan(
    name: str, role: str, address: str, command: str, directory: Path, settings: Mapping[str, object]
) -> ServerPlan:
    directory.mkdir(parents=True, exist_ok=True)
    path = write_properties(directory / "server.properties", settings)
    kept = _read_settings(path)
    return ServerPlan(
        name,
        role,
        address,
        (command, "-c", str(path)),
        directory,
        stop_seconds_max(kept),
        _health_address(address, kept),
    )


def _health_address(address: str, settings: Mapping[str, str]) -> str:
    """Returns the address of a server's metrics and health; empty without one, and if only the server knows
    its port.
    """
    port = settings.get("metricsPromExporterPort", "0")
    return "" if port == "0" else f"{address.rpartition(':')[0]}:{port}"


def stop_seconds_max(settings: Mapping[str, str]) -> float:
    """Returns the time after which a server with these settings is killed: a stopped master that handed over
    forwards sends for `handoverStopLingerMillis` first.
    """
    linger_ms = settings.get("handoverStopLingerMillis", "")
    return STOP_SECONDS_MAX + (int(linger_ms) / 1000 if linger_ms.isdecimal() else 0.0)


def _pairs(overrides: Sequence[str]) -> dict[str, str]:
    return {key: setting.text for key, setting in map(parse_override, overrides)}


def _choose_ports(
    bind: str, groups: int, *, is_minimal: bool, is_elected: bool, port_base: str
) -> tuple[int, list[tuple[int, ...]]]:
    """Returns the name server's port, and the ports of the brokers by group."""

    def ports_from(names: int, first: int) -> tuple[int, list[tuple[int, ...]]]:
        masters = [first + PORT_STEP * number for number in range(groups)]
        return names, [(master,) if is_minimal else (master, master + PORT_STEP // 2) for master in masters]

    def first_occupied(names: int, brokers: list[tuple[int, ...]]) -> int | None:
        wanted = [port + distance for pair in brokers for port in pair for distance in PORTS_OF_BROKER]
        if is_elected:
            wanted.append(names + CONTROLLER_DISTANCE)
        return next((port for port in (names, *wanted) if not _is_free(bind, port)), None)

    if port_base == AUTO:
        for _ in range(100):
            base = random.randrange(_AUTO_LOWEST, _AUTO_HIGHEST)
            chosen = ports_from(base, base + 5)
            if first_occupied(*chosen) is None:
                return chosen
        raise ConfigError(f"found no {groups * PORT_STEP} free consecutive ports at {bind}")
    base = int(port_base or NAMESRV_PORT)
    chosen = ports_from(base, base + 5 if port_base else BROKER_PORT)
    taken = first_occupied(*chosen)
    if taken is not None:
        raise ConfigError(
            f"port {taken} at {bind} is in use by another program: stop it, or choose other ports with"
            f" --port-base 20000 or --port-base {AUTO}"
        )
    return chosen


def is_own_address(host: str) -> bool:
    """Returns True if an interface of this machine has the address."""
    with socket.socket() as one:
        try:
            one.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as one:
        # The servers set this option too: a port with connections in TIME_WAIT counts as free.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except PermissionError:
            return False
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise ConfigError(f"cannot listen at {host}: {error.strerror}") from None
    return True


# The folder


def default_folder() -> Path:
    """Returns $TANDEMMQ_STORE, else ~/.tandemmq."""
    return (Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)).expanduser().resolve()


def write_state(state: UpState) -> None:
    """Replaces `up.json` atomically with this state."""
    path = Path(state.folder) / "up.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def read_state(folder: Path) -> UpState | None:
    """Returns the last state written by a supervisor of the folder; None when there is none or it cannot be
    read.
    """
    try:
        found: dict[str, Any] = json.loads((folder / "up.json").read_text(encoding="utf-8"))
        servers = [ServerState(**one) for one in found.pop("servers")]
        return UpState(**found, servers=servers)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def running_state(folder: Path) -> UpState:
    """Returns the state of the running supervisor. Raises NotRunning."""
    state = read_state(folder)
    if state is None or supervisor_pid(folder) != state.pid:
        raise NotRunning(f"no cluster runs in {folder}: start one with `tandemmq up`")
    return state


def require_equal_options(state: UpState, given: Mapping[str, object]) -> None:
    """Raises AlreadyRunning if the running cluster does not have the given options of `up`, by their
    parameters' names. An option that is not given matches.
    """
    brokers = [one for one in state.servers if one.is_broker]
    groups = len({one.name for one in brokers})
    host, _, port = state.namesrv.rpartition(":")
    names, settings = (_settings_of(one) for one in (state.servers[0], brokers[0]))
    runs: dict[str, object] = {
        "minimal": len(brokers) == groups,
        "elected": any(one.role == ELECTED for one in brokers),
        "processes": groups,
        "host": host,
        "port_base": AUTO if given.get("port_base") == AUTO else port,
        "proxy": any(one.role == PROXY for one in state.servers),
        "console": any(one.role == CONSOLE for one in state.servers),
        "console_port": next(
            (int(one.address.rpartition(":")[2]) for one in state.servers if one.role == CONSOLE), 0
        ),
        "bind": names.get("bindAddress"),
    }
    differing = [
        f"--{'' if value else 'no-'}{name}"
        if isinstance(value, bool)
        else f"--{name.replace('_', '-')} {value} (it runs with {runs[name]})"
        for name, value in given.items()
        if name in runs and value != runs[name]
    ]
    wanted = given.get("override") or ()
    assert isinstance(wanted, Sequence)
    differing += [
        f"--set {key}={text} (it runs with {settings.get(key, 'the default')})"
        for key, text in _pairs(wanted).items()
        if settings.get(key) != text
    ]
    if differing:
        raise AlreadyRunning(
            f"a cluster already runs in {state.folder}, without {', '.join(differing)}: stop it with"
            " `tandemmq down`, then start it again; its messages are kept"
        )


def _settings_of(server: ServerState) -> dict[str, str]:
    """Returns the settings with which the server was started; none if its file cannot be read."""
    return _read_settings(Path(server.log).with_name("server.properties"))


def _read_settings(path: Path) -> dict[str, str]:
    try:
        return {key: one.text for key, one in parse_properties(path.read_bytes(), str(path)).items()}
    except (OSError, TandemError):
        return {}


def brokers_of(servers: Sequence[str]) -> list[tuple[str, str]]:
    """Returns name and address of the local cluster's brokers if its name server is among `servers`."""
    state = read_state(default_folder())
    if state is None or state.namesrv not in servers:
        return []
    return [(one.name, one.address) for one in state.servers if one.is_broker]


def controllers_of(servers: Sequence[str]) -> list[str]:
    """Returns the controller of the local cluster if its name server is among `servers`; else nothing."""
    folder = default_folder()
    state = read_state(folder)
    if state is None or state.namesrv not in servers or not _controller_store(folder).exists():
        return []
    return [controller_at(state.namesrv)]


def controller_at(name_server: str) -> str:
    """Returns the address of the controller in the process of an elected cluster's name server."""
    host, _, port = name_server.rpartition(":")
    return f"{host}:{int(port) + CONTROLLER_DISTANCE}"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds the folder's lock while the block runs. Raises AlreadyRunning."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"a cluster already runs in {folder}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def supervisor_pid(folder: Path) -> int | None:
    """Returns the id of the process that holds the folder's lock; None if no process holds the lock."""
    try:
        descriptor = os.open(folder / "up.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0)
            return int(text) if text.isdigit() else None
        return None
    finally:
        os.close(descriptor)


# Processes


def server_environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a server of the folder."""
    return {**os.environ, FOLDER_MARKER: str(folder)}


def server_pids(folder: Path) -> list[int]:
    """Returns all running servers of the folder."""
    mark = f"{FOLDER_MARKER}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # the process has ended, or belongs to another user
    return sorted(found)


def end_servers(folder: Path, stop_seconds_max: float = STOP_SECONDS_MAX) -> int:
    """Stops the servers of the folder, by SIGTERM and then by SIGKILL; returns their number."""
    pids = server_pids(folder)
    _signal(pids, signal.SIGTERM)
    if not _wait_for(lambda: not server_pids(folder), stop_seconds_max):
        _signal(server_pids(folder), signal.SIGKILL)
        _wait_for(lambda: not server_pids(folder), stop_seconds_max)
    return len(pids)


def end_supervisor(folder: Path) -> bool:
    """Stops the supervisor, which stops its servers; kills it if it does not end. Returns False when there
    was none.
    """
    pid, state = supervisor_pid(folder), read_state(folder)
    if pid is None:
        return False
    servers = [] if state is None else state.servers
    longest_s = max((stop_seconds_max(_settings_of(one)) for one in servers), default=STOP_SECONDS_MAX)
    _signal([pid], signal.SIGTERM)
    # The supervisor releases the lock shortly before it exits, so wait for its exit.
    if not _wait_for(lambda: not _is_running(pid), longest_s + STOP_SECONDS_MAX):
        _signal([pid], signal.SIGKILL)
        _wait_for(lambda: not _is_running(pid), STOP_SECONDS_MAX)
    return True


def _is_running(pid: int) -> bool:
    """Returns True if the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _wait_for(is_met: Callable[[], bool], seconds_max: float) -> bool:
    end = time.monotonic() + seconds_max
    while not is_met():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_S)
    return True
