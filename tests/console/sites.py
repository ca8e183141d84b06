"""The two clusters, each with a load and a console: our elected brokers with access control, and Java's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clusters import java_cluster
from console_load import ORDERS, Load
from java_peers import LINE_5

from tandemmq.api import broker_admin
from tandemmq.client import BlockingAdmin, ClientOptions
from tandemmq.launcher import Server
from tandemmq.manage.tools import EVERYWHERE, open_tools
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.signature import Credentials
from tandemmq.units import MASTER_ID
from waits import until_blocking

OPERATOR = ("operator", "operator-secret")
PIPELINE = "orders-to-lake"
SERVICE = "service"
READER = ("reader", "reader-secret")
UP_SECONDS_MAX = 120.0

ACCESS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": OPERATOR[0], "password": OPERATOR[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": OPERATOR[0], "secretKey": OPERATOR[1]}),
}
SETTINGS = {
    # Half messages stay open, and delayed ones stay delayed, for the whole run.
    "transactionTimeOut": "600000",
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
}


@dataclass
class Site:
    """One cluster with its console at `url`. `user` is the name and the secret to log in with, or None."""

    name: str
    name_servers: str
    url: str
    load: Load
    client: ClientOptions
    user: tuple[str, str] | None
    log: Path
    up: Up | None = None
    """The processes of our cluster; None for Java's."""
    facts: dict[str, str] = field(default_factory=dict)
    """Values that a case has made for others."""

    @contextmanager
    def admin(self) -> Iterator[BlockingAdmin]:
        """Opens a client with the rights of the operator, to check what an action did."""
        with BlockingAdmin(self.name_servers, options=self.client) as admin:
            yield admin

    def master(self) -> str:
        """Returns the address of the master; waits while the name server knows none, as during a handover."""
        found: list[str] = []

        def is_known() -> bool:
            addresses = admin.cluster_info().brokers["broker-a"].addresses
            found.extend(address for number, address in addresses.items() if number == MASTER_ID)
            return bool(found)

        with self.admin() as admin:
            until_blocking(is_known, "a master")
        return found[-1]


@contextmanager
def open_console(
    name_servers: str, log: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Runs `tandemmq console` on a free port; yields its URL."""
    server = Server("console", ["console", "-n", name_servers, "--listen", "127.0.0.1:0", *options], log)
    server.environment = {**os.environ, **(environment or {})}
    address = server.start()
    try:
        yield f"http://{address}"
        server.check_alive()
    finally:
        server.stop()


@contextmanager
def open_ours(folder: Path) -> Iterator[Site]:
    """Runs `tandemmq up` with access control: a name server with a controller, a master and a slave."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        up = Up(folder / "up", folder / "home")
        stack.callback(up.stop)
        name_servers = up.start({**ACCESS, **SETTINGS})
        client = ClientOptions(access_key=OPERATOR[0], secret_key=OPERATOR[1], heartbeat_s=2.0)
        run_apart(create_reader(name_servers))
        load = Load(name_servers, client)
        stack.callback(load.stop)
        load.start()
        log = folder / "console.log"
        url = stack.enter_context(open_console(name_servers, log, *write_pipeline(folder)))
        yield Site("ours", name_servers, url, load, client, OPERATOR, log, up)


def write_pipeline(folder: Path) -> tuple[str, ...]:
    """Writes the progress of one pipeline and the status of one service; returns the console's options that
    show them.
    """
    shown = folder / "pipelines"
    shown.mkdir()
    started = {"event": "started", "topic": ORDERS, "out": "/data/orders", "rows_total": 0, "bytes_total": 0}
    batch = {"event": "batch", "batch": 0, "rows": 60, "rows_total": 60, "lag": 7, "seconds": 1.5, "rate": 40}
    (shown / f"{PIPELINE}.jsonl").write_text(f"{json.dumps(started)}\n{json.dumps(batch)}\n")
    total = {"rows": 60, "bad": 0}
    topic = {"state": "running", "error": "", "next_try_seconds": None, "lost": 0, "total": total}
    status = {"time_ms": 1_795_831_144_034, "error": "", "topics": {ORDERS: topic}}
    (folder / SERVICE / "_tandemmq").mkdir(parents=True)
    (folder / SERVICE / "_tandemmq" / "status.json").write_text(json.dumps(status))
    return "--pipelines", str(shown), "--served", str(folder / SERVICE)


def run_apart(work: Coroutine[None, None, None]) -> None:
    """Runs the coroutine in a thread of its own: Playwright has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


async def create_reader(name_servers: str) -> None:
    """Creates a user who may read one topic."""
    async with open_tools(name_servers, Credentials(*OPERATOR)) as tools:
        for address in await tools.brokers(EVERYWHERE):
            user = UserInfo(username=READER[0], password=READER[1])
            await broker_admin.create_user(tools.remoting, address, user)
            entry = EntryInfo(resource=f"Topic:{ORDERS}", actions=("Sub",), decision="Allow")
            acl = AclInfo(subject=f"User:{READER[0]}", policies=(PolicyInfo(entries=(entry,)),))
            await broker_admin.create_acl(tools.remoting, address, acl)


@contextmanager
def open_java(folder: Path) -> Iterator[Site]:
    """Runs a Java name server and a broker of the line 5.x."""
    folder.mkdir(parents=True, exist_ok=True)
    with java_cluster(LINE_5, folder / "servers") as cluster, ExitStack() as stack:
        cluster.start_java(LINE_5, "broker-a", SETTINGS)
        client = ClientOptions(heartbeat_s=2.0)
        load = Load(cluster.name_server, client)
        stack.callback(load.stop)
        load.start()
        log = folder / "console.log"
        url = stack.enter_context(open_console(cluster.name_server, log, *write_pipeline(folder)))
        yield Site("java", cluster.name_server, url, load, client, None, log)


class Up:
    """A local cluster of `tandemmq up`, whose processes may be killed."""

    def __init__(self, store: Path, home: Path) -> None:
        self._store = store
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "tools.yml").write_text(f"accessKey: {OPERATOR[0]}\nsecretKey: {OPERATOR[1]}\n")
        self._environment = {**os.environ, "TANDEMMQ_STORE": str(store), "ROCKETMQ_HOME": str(home)}

    def start(self, settings: Mapping[str, str]) -> str:
        """Starts the cluster; returns the address of its name server once a master is elected."""
        pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self._run("up", "-d", "--port-base", "auto", "--no-proxy", *pairs)
        until_blocking(lambda: self.processes("master"), "a master is elected", UP_SECONDS_MAX)
        return str(self._status()["namesrv"])

    def processes(self, role: str) -> list[int]:
        """Returns the ids of the processes with this role."""
        return [one["process"] for one in self._status()["processes"] if one["role"] == role]

    def kill_master(self) -> None:
        """Kills the master; `up` starts it again, and the slave is elected meanwhile."""
        os.kill(self.processes("master")[0], signal.SIGKILL)

    def stop(self) -> None:
        """Ends all processes."""
        self._run("down")

    def _status(self) -> dict[str, object]:
        done = self._run("status", "--json", is_checked=False)
        return json.loads(done.stdout or "{}")

    def _run(self, *arguments: str, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tandemmq", *arguments],
            capture_output=True,
            text=True,
            timeout=UP_SECONDS_MAX,
            env=self._environment,
            check=is_checked,
        )
