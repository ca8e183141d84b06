"""`python -m bench`: comparisons with other brokers, and the costs of the parts around a broker.

- `open`: opening a store after its broker was killed;
- `catchup`: an empty slave copies its master;
- `client`: the Python client beside RocketMQ's Java client, aiokafka and nats.py;
- `spark`, `kafka`: reading with Spark, alone and beside Kafka;
- `spark-plan`: planning the triggers of a stream over many queues;
- `java`: our servers beside Java RocketMQ's under the same loads, and beside Kafka and NATS under others;
- `grpc`: our gRPC proxy beside Java RocketMQ's.

The command `tandemmq bench`, which is part of the package, measures the cost of one message.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from bench.around import measure_around, render_catchup, render_reopened
from bench.catchup import measure_catchup
from bench.java.clusters import VERSION, find_kernel, prepare_java
from bench.processes import describe_machine
from bench.reopen import measure_reopening
from tandemmq.bench.command import BODY_BYTES, QUEUE_COUNT
from tandemmq.errors import ConfigError, install_hint

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Comparisons with other brokers, and the costs of the parts around a broker.",
)


@app.command(name="open")
def open_store(
    gib: Annotated[float, typer.Option(help="Size of the log; the disk needs a tenth more.", min=0.01)] = 2.0,
    body_bytes: Annotated[int, typer.Option(help="Body of each message.", min=0, max=4 * 2**20)] = BODY_BYTES,
    directory: Annotated[Path | None, typer.Option(help="Where to put the store, for its disk.")] = None,
) -> None:
    """Fill a store, kill its process under load, reopen it, and print the time and memory that this takes."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name:
        found = measure_reopening(Path(name) / "store", gib, body_bytes)
    typer.echo(render_reopened(found))


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
    """Let an empty slave copy a master's whole log; print its speed beside that of the bare loopback."""
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
    for line in render_catchup(found):
        typer.echo(line)


@app.command(name="client")
def clients(
    rounds: Annotated[int, typer.Option(help="Rounds of all clients that count.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of each measured run.", min=0.1, max=60)] = 3.0,
    body: Annotated[int, typer.Option(help="Body of each message, in bytes.", min=1)] = BODY_BYTES,
    out: Annotated[Path | None, typer.Option(help="The folder of the documents, for the page.")] = None,
    cache: Annotated[Path, typer.Option(help="Where Java's jars are kept.")] = Path(".interop-cache"),
    directory: Annotated[Path | None, typer.Option(help="Where to put the stores, for its disk.")] = None,
) -> None:
    """Measure our Python client, RocketMQ's Java client, aiokafka on Kafka and nats.py on NATS in turns, and
    print messages per second and per processor second. Needs a JDK and Maven, nats-server, and the clients
    that `scripts/setup peers` installs; what is missing is left out. `tandemmq bench client` measures ours
    alone.
    """
    from bench.client_beside import measure_clients, render_clients, render_page

    console = Console(stderr=True)
    with console.status("") as status:
        found = measure_clients(
            rounds=rounds,
            seconds=seconds,
            body_bytes=body,
            cache=cache.absolute(),
            directory=directory,
            on_progress=status.update if console.is_terminal else console.print,
        )
    typer.echo("\n".join(render_clients(found)))
    if out is not None:
        machine = describe_machine()[0].partition(": ")[2]
        (out / "client" / "speed.md").write_text(render_page(found, machine, rounds), encoding="utf-8")


@app.command(name="spark")
def spark_read(
    rows: Annotated[int, typer.Option(help="Messages in the topic.", min=1)] = 2_000_000,
    body: Annotated[int, typer.Option(help="Body of each message, in bytes.", min=1, max=4 * 2**20)] = 128,
    queues: Annotated[int, typer.Option(help="Queues of the topic.", min=1, max=1024)] = QUEUE_COUNT,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[2]",
    runs: Annotated[int, typer.Option(help="Reads of each kind; the best is reported.", min=1)] = 3,
    has_idle: Annotated[bool, typer.Option("--idle/--no-idle", help="Measure micro-batches too.")] = True,
) -> None:
    """Fill a topic, read it with Spark on the same machine, and print the cost."""
    from bench.spark_read import run_spark_bench

    for line in run_spark_bench(
        rows=rows, body_bytes=body, queue_count=queues, master=master, runs=runs, has_idle=has_idle
    ):
        typer.echo(line)


@app.command(name="spark-plan")
def spark_plan(
    topics: Annotated[int, typer.Option(help="Number of topics.", min=1)] = 1_000,
    queues: Annotated[int, typer.Option(help="Queues of each topic.", min=1)] = 10,
    moved: Annotated[int, typer.Option(help="Queues that get a message.", min=1)] = 100,
) -> None:
    """Plan triggers of a stream over many queues without Spark, and print the planner's cost and the size of
    the offset.
    """
    from bench.spark_plan import measure_plans, render_plan

    for cost in measure_plans(topics, queues, moved):
        typer.echo(render_plan(cost))


@app.command()
def kafka(
    small_rows: Annotated[int, typer.Option(help="Messages of 128 bytes.", min=1)] = 2_000_000,
    large_rows: Annotated[int, typer.Option(help="Messages of 1 KiB.", min=1)] = 500_000,
    queues: Annotated[int, typer.Option(help="Queues of each topic.", min=1, max=1024)] = QUEUE_COUNT,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[2]",
    runs: Annotated[int, typer.Option(help="Reads of each kind; the best is reported.", min=1)] = 3,
    has_idle: Annotated[bool, typer.Option("--idle/--no-idle", help="Measure micro-batches too.")] = True,
    cache: Annotated[Path, typer.Option(help="Where Kafka's jars are kept.")] = Path(".interop-cache"),
) -> None:
    """Read the same messages from a Kafka broker with Spark's Kafka source, and from ours with our source.

    Needs Maven, which downloads Kafka and the source at the first run (about 60 MB).
    """
    from bench.kafka.compare import run_kafka_bench

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
    java_version: Annotated[str, typer.Option(help="The version of Java's servers and client.")] = VERSION,
) -> None:
    """Measure our servers and Java RocketMQ's alternately, pair by pair, and print medians and ratios.

    If the optional kernel is installed, sends are also measured with it. Then Apache Kafka and NATS
    JetStream are measured beside ours (`--case Kafka`: only that, printed). With --out, the figures of
    `bench catchup` and `bench open` are added, which otherwise only those commands print. Needs a JDK and
    Maven, which downloads RocketMQ and Kafka at the first run, nats-server for NATS, and about 40 GB of disk
    for all cases.
    """
    from bench.java.measure import measure_pairs
    from bench.java.report import render_page, write_report
    from bench.others import choose, measure_others, render_others, report_absent

    if out is not None and find_spec("matplotlib") is None:
        raise ConfigError(f"--out needs matplotlib for the plot: {install_hint('demo')}")
    machine = describe_machine()
    cases, has_others = choose(case or [])
    console = Console(stderr=True)
    if has_others:
        report_absent(console.print)
    kernel = find_kernel()
    if cases and kernel != "used":
        console.print(f"Sends with the kernel will be left out: tandemmq-speedups is {kernel}")
    write = partial(write_report, version=java_version)
    with console.status("") as status:
        on_progress = status.update if console.is_terminal else console.print
        if cases:
            readings = measure_pairs(
                cases,
                rounds=rounds,
                seconds=seconds,
                warm_up_s=warm_up,
                tools=prepare_java(cache.absolute(), java_version),
                has_kernel=kernel == "used",
                directory=directory,
                on_progress=on_progress,
            )
            typer.echo(render_page(readings, machine))
            if out is not None:
                # Written at once: a later failure must not lose these figures.
                write(readings, machine, out)
        if has_others:
            others = measure_others(
                rounds=rounds,
                warm_up_s=warm_up,
                cache=cache.absolute(),
                directory=directory,
                on_progress=on_progress,
            )
            typer.echo("\n".join(["" if cases else machine[0], render_others(others)]))
            if cases and out is not None:
                write(readings, machine, out, others)
                chapter = measure_around(directory=directory, on_progress=on_progress)
                write(readings, machine, out, others, chapter)


@app.command(name="grpc")
def grpc_proxies(
    rounds: Annotated[int, typer.Option(help="Pairs of each load.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of each measured load.", min=0.1, max=60)] = 3.0,
    warm_up: Annotated[
        float, typer.Option(help="Seconds of load before each proxy is measured.", min=0)
    ] = 40.0,
    java_broker: Annotated[
        bool, typer.Option("--java-broker", help="Put Java's broker behind both.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A file for the readings as JSON.")] = None,
    cache: Annotated[Path, typer.Option(help="Where Java's jars are kept.")] = Path(".interop-cache"),
    directory: Annotated[Path | None, typer.Option(help="Where to put the store, for its disk.")] = None,
) -> None:
    """Measure our gRPC proxy and Java RocketMQ's alternately, before the same broker, and print medians and
    ratios. Needs a JDK and Maven, which downloads RocketMQ's proxy at the first run.
    """
    from bench.java.proxies import as_json, measure_proxies, render_proxies

    machine = describe_machine()
    console = Console(stderr=True)
    with console.status("") as status:
        found = measure_proxies(
            rounds=rounds,
            seconds=seconds,
            warm_up_s=warm_up,
            cache=cache.absolute(),
            directory=directory,
            on_progress=status.update if console.is_terminal else console.print,
            has_java_broker=java_broker,
        )
    typer.echo("\n".join([*machine, render_proxies(found)]))
    if out is not None:
        out.write_text(json.dumps({"machine": machine, **as_json(found)}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    app(prog_name="python -m bench")
