"""`tandemmq bench` and its commands: what a broker costs per message, and what the parts around it cost.

- without a command: one broker alone, and with a synchronous slave;
- `processes`: brokers side by side, as `tandemmq up --processes` starts them;
- `open`: opening a store after its broker was killed;
- `catchup`: an empty slave copies its master;
- `client`: what the Python client sends and reads, with our broker or any other, and beside the Java client;
- `spark`, `kafka`: reading with Spark, alone and beside Kafka;
- `java`: our servers beside Java RocketMQ's under the same loads, and beside Kafka and NATS under others.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from tandemmq.bench.around import (
    measure_around,
    measure_java_beside,
    measure_python_client,
    tell_catchup,
    tell_clients,
    tell_reopened,
)
from tandemmq.bench.catchup import measure_catchup
from tandemmq.bench.generator import LoadResult, run_load, send_frames
from tandemmq.bench.process_stats import describe_machine, processor_seconds, resident_bytes
from tandemmq.bench.reopen import measure_reopening
from tandemmq.errors import ConfigError
from tandemmq.launcher import Server, stopping, write_properties

if TYPE_CHECKING:
    from tandemmq.bench.java.measure import CaseFigures

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, invoke_without_command=True)

BODY_BYTES = 1024
QUEUE_COUNT = 4
TOPIC = "BenchTopic"  # made by the first send, as any producer of a development cluster would
_WARM_UP_SECONDS = 1.5
TABLE_WIDTH = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickRow:
    """One measured line: who was measured, with how many in flight, and what it cost."""

    setting: str
    in_flight: int
    result: LoadResult
    processor_us: dict[str, float]
    resident_mib: dict[str, float]


@contextmanager
def _cluster(directory: Path, *, has_slave: bool, masters: int = 1) -> Iterator[dict[str, Server]]:
    """A master (and a slave, and more masters) on free ports, by name; stopped at the end."""
    name_server = Server(
        "name server",
        ["namesrv", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"],
        directory / "namesrv.log",
    )
    servers = {"name server": name_server}
    with stopping(list(servers.values())):
        name_server.start()
        common = {
            "namesrvAddr": name_server.address,
            "brokerClusterName": "bench",
            "brokerName": "bench",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": 0,
            "flushDiskType": "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": 1024 * 1024 * 1024,
        }
        roles: dict[str, dict[str, object]] = {
            "master": {
                "brokerId": 0,
                "brokerRole": "SYNC_MASTER" if has_slave else "ASYNC_MASTER",
                "inSyncReplicas": 2 if has_slave else 1,
            }
        }
        if has_slave:
            roles["slave"] = {"brokerId": 1, "brokerRole": "SLAVE"}
        for number in range(2, masters + 1):
            roles[f"master {number}"] = {**roles["master"], "brokerName": f"bench-{number}"}
        brokers = []
        for name, role in roles.items():
            settings = {**common, **role, "storePathRootDir": directory / name}
            conf = write_properties(directory / f"{name}.conf", settings)
            brokers.append(Server(name, ["broker", "-c", str(conf)], directory / f"{name}.log"))
        with stopping(brokers):
            for broker in brokers:
                broker.start()
                servers[broker.name] = broker
            yield servers


def _measure(
    setting: str, servers: dict[str, Server], frames: list[bytes], *, in_flight: int, seconds: float
) -> QuickRow:
    brokers = {name: server for name, server in servers.items() if name != "name server"}
    before = {name: processor_seconds(server.pid) for name, server in brokers.items()}
    result = run_load(servers["master"].address, frames, in_flight=in_flight, seconds_max=seconds)
    return QuickRow(
        setting=setting,
        in_flight=in_flight,
        result=result,
        processor_us={
            name: (processor_seconds(server.pid) - before[name]) * 1e6 / max(result.count, 1)
            for name, server in brokers.items()
        },
        resident_mib={name: resident_bytes(server.pid) / 2**20 for name, server in brokers.items()},
    )


def _wait_until_replicated(servers: dict[str, Server], frames: list[bytes]) -> None:
    """Returns once a send to the master is acknowledged by both copies, so that no run measures the
    slave's start."""
    for _ in range(30):
        if run_load(servers["master"].address, frames, in_flight=1, seconds_max=0.2).failed == 0:
            return
    raise typer.BadParameter("the slave did not acknowledge any send within 30 tries")


def _measure_side_by_side(
    generators: Executor, brokers: list[Server], frames: list[bytes], *, in_flight: int, seconds: float
) -> QuickRow:
    """Each broker gets the load of a process of its own, all at the same time."""
    before = [processor_seconds(broker.pid) for broker in brokers]
    loads = [generators.submit(_load_of, broker.address, frames, in_flight, seconds) for broker in brokers]
    results = [load.result() for load in loads]
    spent_s = sum(
        processor_seconds(broker.pid) - earlier for broker, earlier in zip(brokers, before, strict=True)
    )
    together = LoadResult(
        count=sum(result.count for result, _ in results),
        seconds=max(result.seconds for result, _ in results),
        latencies_us=[latency for result, _ in results for latency in result.latencies_us],
        failed=sum(result.failed for result, _ in results),
    )
    generators_s = sum(generator_s for _, generator_s in results)
    return QuickRow(
        setting=f"{len(brokers)} broker{'s' * (len(brokers) > 1)}",
        in_flight=in_flight,
        result=together,
        processor_us={
            who: spent * 1e6 / max(together.count, 1)
            for who, spent in (("broker", spent_s), ("generator", generators_s))
        },
        resident_mib={"each": max(resident_bytes(broker.pid) for broker in brokers) / 2**20},
    )


def _load_of(address: str, frames: list[bytes], in_flight: int, seconds: float) -> tuple[LoadResult, float]:
    """A load, and the processor time that making it took."""
    begun_s = time.process_time()
    result = run_load(address, frames, in_flight=in_flight, seconds_max=seconds)
    return result, time.process_time() - begun_s


def _render(rows: list[QuickRow], connections: str = "one connection") -> Table:
    table = Table(title=f"send, {BODY_BYTES} B bodies, {connections}", title_justify="left")
    for heading in (
        "setting",
        "in flight",
        "messages/s",
        "p50 us",
        "p99 us",
        "processor us/message",
        "memory MiB",
    ):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for row in rows:
        table.add_row(
            row.setting,
            str(row.in_flight),
            f"{row.result.count / row.result.seconds:,.0f}",
            f"{row.result.percentile_us(0.5):,.0f}",
            f"{row.result.percentile_us(0.99):,.0f}",
            ", ".join(f"{name} {cost:.1f}" for name, cost in row.processor_us.items()),
            ", ".join(f"{name} {size:.0f}" for name, size in row.resident_mib.items()),
        )
    return table


@app.callback()
def bench(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(help="Length of each measured run.", min=0.5, max=60)] = 8.0,
) -> None:
    """Replay prepared send frames against a broker, alone and with a synchronous slave, and print what
    it costs."""
    if context.invoked_subcommand is not None:
        return
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    frames = send_frames(TOPIC, QUEUE_COUNT, BODY_BYTES, 4096)
    rows: list[QuickRow] = []
    for setting, has_slave in (("ASYNC_FLUSH, no slave", False), ("ASYNC_FLUSH, synchronous slave", True)):
        with (
            tempfile.TemporaryDirectory(prefix="tandemmq-bench-") as name,
            _cluster(Path(name), has_slave=has_slave) as servers,
            console.status(f"measuring {setting}"),
        ):
            _wait_until_replicated(servers, frames)
            run_load(servers["master"].address, frames, in_flight=64, seconds_max=_WARM_UP_SECONDS)
            for in_flight in (1, 64):
                rows.append(_measure(setting, servers, frames, in_flight=in_flight, seconds=seconds))
    _print_rows(console, _render(rows), rows)


def _print_rows(console: Console, table: Table, rows: list[QuickRow]) -> None:
    """The exit code is 1 when a send failed."""
    console.print(table)
    failed = sum(row.result.failed for row in rows)
    if failed:
        console.print(f"{failed} sends were not answered with SUCCESS")
        raise typer.Exit(1)


@app.command(name="processes")
def brokers_side_by_side(
    most: Annotated[
        int, typer.Option(help="Measure 1, 2, 4, ... brokers, up to so many.", min=1, max=64)
    ] = 2,
    seconds: Annotated[float, typer.Option(help="Length of each measured run.", min=0.1, max=60)] = 5.0,
) -> None:
    """Send to brokers that share nothing but the machine, each from a light process of its own, and print
    how that adds up."""
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    frames = send_frames(TOPIC, QUEUE_COUNT, BODY_BYTES, 4096)
    rows: list[QuickRow] = []
    for count in (1 << power for power in range(most.bit_length())):
        with (
            tempfile.TemporaryDirectory(prefix="tandemmq-bench-") as name,
            _cluster(Path(name), has_slave=False, masters=count) as servers,
            ProcessPoolExecutor(count, get_context("spawn")) as generators,
            console.status(f"measuring {count} at once"),
        ):
            del servers["name server"]
            measure = partial(_measure_side_by_side, generators, list(servers.values()), frames)
            measure(in_flight=64, seconds=min(seconds, _WARM_UP_SECONDS))
            rows += [measure(in_flight=in_flight, seconds=seconds) for in_flight in (1, 16, 64)]
    _print_rows(console, _render(rows, "one connection and one generator to each broker"), rows)


@app.command(name="open")
def open_store(
    gib: Annotated[float, typer.Option(help="Size of the log; the disk needs a tenth more.", min=0.01)] = 2.0,
    body_bytes: Annotated[int, typer.Option(help="Body of each message.", min=0, max=4 * 2**20)] = BODY_BYTES,
    directory: Annotated[Path | None, typer.Option(help="Where to put the store, for its disk.")] = None,
) -> None:
    """Fill a store, kill its process under load, open it again and print what that costs."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name:
        found = measure_reopening(Path(name) / "store", gib, body_bytes)
    typer.echo(tell_reopened(found))


@app.command()
def catchup(
    gib: Annotated[
        float, typer.Option(help="Size of the master's log; the disk needs twice that.", min=0.01)
    ] = 5.0,
    body_bytes: Annotated[
        int, typer.Option("--body", help="Body of each message.", min=0, max=4 * 2**20)
    ] = BODY_BYTES,
    directory: Annotated[Path | None, typer.Option(help="Where to put the stores, for its disk.")] = None,
) -> None:
    """Let an empty slave copy a master's whole log; print how fast it was, beside the bare loopback."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        found = asyncio.run(measure_catchup(Path(name), gib, body_bytes, show))
    for line in tell_catchup(found):
        typer.echo(line)


@app.command(name="client")
def client_rates(
    namesrv: Annotated[
        str,
        typer.Option(
            "-n", "--namesrv", help="Name servers of a cluster that runs, of either maker; else one of ours."
        ),
    ] = "",
    seconds: Annotated[float, typer.Option(help="Length of each measured run.", min=0.1, max=60)] = 5.0,
    body: Annotated[int, typer.Option(help="Body of each message, in bytes.", min=1)] = BODY_BYTES,
    java: Annotated[
        bool, typer.Option("--java", help="RocketMQ's Java client beside it; needs a JDK and Maven.")
    ] = False,
    cache: Annotated[Path, typer.Option(help="Where Java's jars are kept.")] = Path(".interop-cache"),
) -> None:
    """Send and read with the Python client and print how many messages per second that makes."""
    of_java: dict[str, CaseFigures] = {}
    with ExitStack() as stack:
        if not namesrv:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandemmq-bench-")))
            servers = stack.enter_context(_cluster(directory, has_slave=False))
            namesrv = servers["name server"].address
        readings = measure_python_client(namesrv, body_bytes=body, seconds=seconds)
        if java:
            of_java = measure_java_beside(namesrv, body_bytes=body, seconds=seconds, cache=cache)
    table = Table(title=f"Python client, {body} B bodies", title_justify="left")
    headings, *rows = tell_clients(readings, of_java)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(table)
    if any(one.error or not one.message_count for one in readings):
        raise typer.Exit(1)


@app.command(name="spark")
def spark_read(
    rows: Annotated[int, typer.Option(help="Messages in the topic.", min=1)] = 2_000_000,
    body: Annotated[int, typer.Option(help="Body of each message, in bytes.", min=1, max=4 * 2**20)] = 128,
    queues: Annotated[int, typer.Option(help="Queues of the topic.", min=1, max=1024)] = QUEUE_COUNT,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[2]",
    runs: Annotated[int, typer.Option(help="Reads of each kind; the best is told.", min=1)] = 3,
    has_idle: Annotated[bool, typer.Option("--idle/--no-idle", help="Measure micro-batches too.")] = True,
) -> None:
    """Fill a topic, read it with Spark on the same machine and print what that costs."""
    from tandemmq.bench.spark_read import run_spark_bench

    for line in run_spark_bench(
        rows=rows, body_bytes=body, queue_count=queues, master=master, runs=runs, has_idle=has_idle
    ):
        typer.echo(line)


@app.command()
def kafka(
    small_rows: Annotated[int, typer.Option(help="Messages of 128 bytes.", min=1)] = 2_000_000,
    large_rows: Annotated[int, typer.Option(help="Messages of 1 KiB.", min=1)] = 500_000,
    queues: Annotated[int, typer.Option(help="Queues of each topic.", min=1, max=1024)] = QUEUE_COUNT,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[2]",
    runs: Annotated[int, typer.Option(help="Reads of each kind; the best is told.", min=1)] = 3,
    has_idle: Annotated[bool, typer.Option("--idle/--no-idle", help="Measure micro-batches too.")] = True,
    cache: Annotated[Path, typer.Option(help="Where Kafka's jars are kept.")] = Path(".interop-cache"),
) -> None:
    """Read the same messages from a Kafka broker with Spark's Kafka source, and from ours with ours.

    Needs Maven, which fetches Kafka and the source at the first run (about 60 MB).
    """
    from tandemmq.bench.kafka.compare import run_kafka_bench

    for line in run_kafka_bench(
        rows={128: small_rows, 1024: large_rows},
        queue_count=queues,
        master=master,
        runs=runs,
        has_idle=has_idle,
        cache=cache.absolute(),
    ):
        typer.echo(line)


@app.command()
def java(
    rounds: Annotated[int, typer.Option(help="Pairs of each case.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of each measured load.", min=0.5, max=60)] = 5.0,
    warm_up: Annotated[float, typer.Option(help="Seconds of load before Java is measured.", min=0)] = 20.0,
    case: Annotated[
        list[str] | None, typer.Option(help="Only cases with this text in setting or name; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the page, the readings as JSON and the plot.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where Java's jars are kept.")] = Path(".interop-cache"),
    directory: Annotated[Path | None, typer.Option(help="Where to put the stores, for its disk.")] = None,
) -> None:
    """Measure our servers and Java RocketMQ's in turns, pair by pair, and print medians and ratios.

    Then Apache Kafka and NATS JetStream are measured beside ours (`--case Kafka`: only that, printed); with
    --out also what `bench catchup`, `open` and `client --java` measure, which is printed by those alone.
    Needs a JDK and Maven, which fetches RocketMQ and Kafka at the first run, nats-server for NATS, and about
    40 GB of disk for all cases.
    """
    from tandemmq.bench.java.measure import measure_pairs
    from tandemmq.bench.java.report import render_page, write_report
    from tandemmq.bench.others import choose, measure_others, render_others, tell_absent

    if out is not None and find_spec("matplotlib") is None:
        raise ConfigError("--out needs matplotlib for the plot: pip install 'tandemmq[demo]'")
    machine = describe_machine()
    cases, has_others = choose(case or [])
    console = Console(stderr=True)
    if has_others:
        tell_absent(console.print)
    with console.status("") as status:
        tell = status.update if console.is_terminal else console.print
        if cases:
            readings = measure_pairs(
                cases,
                rounds=rounds,
                seconds=seconds,
                warm_up_s=warm_up,
                cache=cache.absolute(),
                directory=directory,
                tell=tell,
            )
            typer.echo(render_page(readings, machine))
            if out is not None:
                # At once: what is measured after it must not cost these figures.
                write_report(readings, machine, out)
        if has_others:
            others = measure_others(
                rounds=rounds, warm_up_s=warm_up, cache=cache.absolute(), directory=directory, tell=tell
            )
            typer.echo("\n".join(["" if cases else machine[0], render_others(others)]))
            if cases and out is not None:
                write_report(readings, machine, out, others)
                chapter = measure_around(cache=cache, directory=directory, tell=tell)
                write_report(readings, machine, out, others, chapter)
