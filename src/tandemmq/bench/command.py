"""`tandemmq bench`: the cost of a send under a light load.

Without a command it measures one broker alone, and one with a synchronous slave. `processes` measures brokers
side by side, as `tandemmq up --processes` starts them; `client` measures the Python client, `grpc` a gRPC
proxy. Comparisons with other brokers, clients and proxies, and the costs of the components around a broker,
are in a checkout: `python -m bench --help`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tandemmq.bench.generator import LoadResult, QuickRow, run_load, send_frames
from tandemmq.bench.process_stats import processor_seconds, resident_bytes
from tandemmq.errors import ConfigError, install_hint
from tandemmq.launcher import Server, stopping, write_properties

if TYPE_CHECKING:
    from tandemmq.bench.proxy_load import ProxyLoad

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, invoke_without_command=True)

BODY_BYTES = 1024
QUEUE_COUNT = 4
TOPIC = "BenchTopic"  # created by the first send, as any producer of a development cluster would
GROUP = "bench"
_WARM_UP_SECONDS = 1.5
TABLE_WIDTH = 132


@contextmanager
def measured_cluster(directory: Path, *, has_slave: bool, masters: int = 1) -> Iterator[dict[str, Server]]:
    """Runs a master (and a slave, and more masters) on free ports; yields the servers by name, and stops them
    at the end.
    """
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
    """Waits until a send to the master is acknowledged by both replicas, so that no run measures the slave's
    start.
    """
    for _ in range(30):
        if run_load(servers["master"].address, frames, in_flight=1, seconds_max=0.2).failed == 0:
            return
    raise typer.BadParameter("the slave did not acknowledge any send within 30 tries")


def _measure_side_by_side(
    generators: Executor, brokers: list[Server], frames: list[bytes], *, in_flight: int, seconds: float
) -> QuickRow:
    """Loads all brokers at the same time, each from a separate process."""
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
    """Runs a load; returns the result and the processor time of the generator."""
    begun_s = time.process_time()
    result = run_load(address, frames, in_flight=in_flight, seconds_max=seconds)
    return result, time.process_time() - begun_s


def _render(
    rows: list[QuickRow],
    loads: str = "send",
    connections: str = "one connection",
    first: str = "setting",
    body_bytes: int = BODY_BYTES,
) -> Table:
    table = Table(title=f"{loads}, {body_bytes} B bodies, {connections}", title_justify="left")
    for heading in (
        first,
        "in flight",
        "messages/s",
        "p50 us",
        "p99 us",
        "processor us/message",
        "memory MiB",
    ):
        table.add_column(heading, justify="left" if heading == first else "right")
    for row in rows:
        table.add_row(
            row.setting,
            str(row.in_flight),
            f"{row.result.per_second:,.0f}",
            *(
                f"{row.result.percentile_us(share):,.0f}" if row.result.latencies_us else "-"
                for share in (0.5, 0.99)
            ),
            ", ".join(f"{name} {cost:.1f}" for name, cost in row.processor_us.items()),
            ", ".join(f"{name} {size:.0f}" for name, size in row.resident_mib.items()),
        )
    return table


def open_console() -> Console:
    """Returns a console whose tables have room when they are not printed to a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    return console


@app.callback()
def bench(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(help="Length of each run in seconds.", min=0.5, max=60)] = 8.0,
) -> None:
    """Measure throughput, latency and processor time of sends with 1 and with 64 in flight: to one broker,
    then to a master with a synchronous slave. Starts and stops its own servers; by default, takes less than
    a minute.
    """
    if context.invoked_subcommand is not None:
        return
    console = open_console()
    frames = send_frames(TOPIC, QUEUE_COUNT, BODY_BYTES, 4096)
    rows: list[QuickRow] = []
    for setting, has_slave in (("ASYNC_FLUSH, no slave", False), ("ASYNC_FLUSH, synchronous slave", True)):
        with (
            tempfile.TemporaryDirectory(prefix="tandemmq-bench-") as name,
            measured_cluster(Path(name), has_slave=has_slave) as servers,
            console.status(f"measuring {setting}"),
        ):
            _wait_until_replicated(servers, frames)
            run_load(servers["master"].address, frames, in_flight=64, seconds_max=_WARM_UP_SECONDS)
            for in_flight in (1, 64):
                rows.append(_measure(setting, servers, frames, in_flight=in_flight, seconds=seconds))
    _print_rows(console, _render(rows), rows)


def _print_rows(console: Console, table: Table, rows: list[QuickRow]) -> None:
    """Prints the table and the number of failed sends; exit code 1 when there is one."""
    console.print(table)
    failed = sum(row.result.failed for row in rows)
    if failed:
        console.print(f"{failed} calls failed: their answer was not a success")
        raise typer.Exit(1)


@app.command(name="processes")
def brokers_side_by_side(
    most: Annotated[int, typer.Option(help="Largest number of brokers.", min=1, max=64)] = 2,
    seconds: Annotated[float, typer.Option(help="Length of each run in seconds.", min=0.1, max=60)] = 5.0,
) -> None:
    """Measure how the total throughput grows with the number of brokers on this machine: 1, 2, 4, ...
    brokers, each with its own sender.
    """
    console = open_console()
    frames = send_frames(TOPIC, QUEUE_COUNT, BODY_BYTES, 4096)
    rows: list[QuickRow] = []
    for count in (1 << power for power in range(most.bit_length())):
        with (
            tempfile.TemporaryDirectory(prefix="tandemmq-bench-") as name,
            measured_cluster(Path(name), has_slave=False, masters=count) as servers,
            ProcessPoolExecutor(count, get_context("spawn")) as generators,
            console.status(f"measuring {count} at once"),
        ):
            del servers["name server"]
            measure = partial(_measure_side_by_side, generators, list(servers.values()), frames)
            measure(in_flight=64, seconds=min(seconds, _WARM_UP_SECONDS))
            rows += [measure(in_flight=in_flight, seconds=seconds) for in_flight in (1, 16, 64)]
    _print_rows(console, _render(rows, connections="one connection and one generator to each broker"), rows)


@app.command(name="client")
def python_client(
    namesrv: Annotated[
        str,
        typer.Option(
            "-n",
            "--namesrv",
            help="Name servers of a running cluster, ours or RocketMQ's; else one is started.",
        ),
    ] = "",
    seconds: Annotated[float, typer.Option(help="Length of each run in seconds.", min=0.05, max=60)] = 5.0,
    body: Annotated[int, typer.Option(help="Body of each message, in bytes.", min=1)] = BODY_BYTES,
) -> None:
    """Measure the Python client: sends with 1 and 64 in flight and in batches, then reads of the backlog by
    pull, push and pop, each pop acknowledged. Prints the processor time of the client and, of a cluster that
    it starts, of the broker. Uses a topic that it creates and deletes.
    """
    from tandemmq.bench.client_load import measure_client

    console = open_console()
    rows: list[QuickRow] = []
    broker_pids: dict[str, int] = {}

    async def measure() -> None:
        loads = measure_client(namesrv, body_bytes=body, seconds=seconds, broker_pids=broker_pids)
        async for row in loads:
            rows.append(row)

    with ExitStack() as stack:
        if not namesrv:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandemmq-bench-")))
            servers = stack.enter_context(measured_cluster(directory, has_slave=False))
            namesrv = servers["name server"].address
            broker_pids["broker"] = servers["master"].pid
        try:
            with console.status("measuring"):
                asyncio.run(measure())
        finally:
            if rows:  # an error ends the measurement, but not the figures before it
                console.print(_render(rows, "Python client", "one process", "case", body))


@contextmanager
def measured_proxy(directory: Path, name_server: str) -> Iterator[tuple[Server, float]]:
    """Runs a gRPC proxy on a free port; yields it with the seconds from its start to the first answer, which
    is the route of TOPIC.
    """
    from tandemmq.bench.proxy_load import wait_until_served

    settings = ["--set", "bindAddress=127.0.0.1", "--set", f"proxyStorePath={directory}"]
    command = ["proxy", "--namesrv", name_server, "--port", "0", *settings]
    proxy = Server("proxy", command, directory / "proxy.log")
    with stopping([proxy]):
        begun_s = time.monotonic()
        proxy.start()
        wait_until_served(proxy.address, TOPIC)
        yield proxy, time.monotonic() - begun_s


def measure_calls(
    load: ProxyLoad, operation: str, *, in_flight: int, seconds: float, pids: dict[str, int]
) -> QuickRow:
    """Runs one load of a proxy. `pids`: the processes to account for, by name."""
    load.prepare(operation)
    before = {name: processor_seconds(pid) for name, pid in pids.items()}
    begun_s = time.process_time()
    result = load.run(operation, in_flight=in_flight, seconds=seconds)
    spent_s = {name: processor_seconds(pid) - before[name] for name, pid in pids.items()}
    spent_s["generator"] = time.process_time() - begun_s
    return QuickRow(
        setting=operation,
        in_flight=in_flight,
        result=result,
        processor_us={name: spent * 1e6 / max(result.count, 1) for name, spent in spent_s.items()},
        resident_mib={name: resident_bytes(pid) / 2**20 for name, pid in pids.items()},
    )


@app.command(name="grpc")
def grpc_proxy(
    endpoint: Annotated[
        str, typer.Option(help="A running proxy, ours or another one; else one of ours is started.")
    ] = "",
    topic: Annotated[str, typer.Option(help="The topic at --endpoint, which must exist.")] = TOPIC,
    group: Annotated[str, typer.Option(help="The consumer group at --endpoint.")] = GROUP,
    seconds: Annotated[float, typer.Option(help="Length of each run in seconds.", min=0.1, max=60)] = 3.0,
) -> None:
    """Measure sends, receives and acknowledgements through a gRPC proxy, with 1, 16 and 64 calls in flight. A
    receive takes up to 32 messages, and its figures are per message. Messages that were sent to the topic of
    --endpoint stay there.
    """
    if find_spec("h2") is None or find_spec("google.protobuf") is None:
        raise ConfigError(f"bench grpc needs h2 and protobuf: {install_hint('proxy')}")
    from tandemmq.bench.proxy_load import IN_FLIGHT, OPERATIONS, ProxyLoad

    console = open_console()
    pids: dict[str, int] = {}
    with ExitStack() as stack:
        if not endpoint:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandemmq-bench-")))
            servers = stack.enter_context(measured_cluster(directory, has_slave=False))
            frames = send_frames(TOPIC, QUEUE_COUNT, BODY_BYTES, 1)
            run_load(servers["master"].address, frames, in_flight=1, seconds_max=0.0)
            name_server = servers["name server"].address
            proxy, ready_s = stack.enter_context(measured_proxy(directory, name_server))
            endpoint, topic, group = proxy.address, TOPIC, GROUP
            pids = {"proxy": proxy.pid}
            console.print(
                f"the proxy answered {ready_s:.2f} s after its start and has"
                f" {resident_bytes(proxy.pid) / 2**20:.0f} MiB of memory"
            )
        load = stack.enter_context(ProxyLoad(endpoint, topic, group, BODY_BYTES))
        with console.status("measuring"):
            load.run("send", in_flight=64, seconds=min(seconds, _WARM_UP_SECONDS))
            rows = [
                measure_calls(load, operation, in_flight=in_flight, seconds=seconds, pids=pids)
                for in_flight in IN_FLIGHT
                for operation in OPERATIONS  # an acknowledgement needs received messages
            ]
    rows.sort(key=lambda row: OPERATIONS.index(row.setting))
    _print_rows(console, _render(rows, "gRPC", first="operation"), rows)
