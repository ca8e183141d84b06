"""`python -m boards`: shows the Grafana board with real data, without Grafana.

Runs an elected group of two brokers, a gRPC proxy and Prometheus, with producers, consumers that are late,
fail or are refused, transactions, delayed messages and a failover. Then evaluates each panel's expressions
over Prometheus' HTTP interface, and draws them as the board places them.

Prints the panels without data, and the alerts that fired. Exit code 1 if a panel is empty. Needs Debian's
package `prometheus`, and the extras `demo` and `proxy`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image
from rich.console import Console

from tandemmq.bench.proxy_load import ProxyLoad
from tandemmq.client import (
    Message,
    PopConsumer,
    PopOptions,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from tandemmq.errors import TandemError
from tandemmq.generate.board import HEIGHT, WIDTH, render_board
from tandemmq.generate.command import read_rules
from tandemmq.generate.panels import ROWS, VARIABLES
from tandemmq.launcher import Server, stopping

say: Final = Console(highlight=False, soft_wrap=True)
BROKER: Final = "broker-a"
SCRAPE_S: Final = 2
RATE_S: Final = 10
LINES_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Rig:
    """The addresses of what runs."""

    names: str
    proxy: str
    prometheus: str
    brokers: tuple[Server, Server]
    controller: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def tandemmq(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise TandemError(f"{' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


@contextmanager
def running_rig(folder: Path) -> Iterator[Rig]:
    """Runs the servers and Prometheus in `folder`."""
    servers: list[Server] = []
    targets: list[str] = []

    def start(name: str, command: str, **settings: object) -> Server:
        port = free_port()
        targets.append(f"127.0.0.1:{port}")
        settings |= {"metricsExporterType": "PROM", "metricsPromExporterPort": port}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        server = Server(name, [command, "--set", "bindAddress=127.0.0.1", *words], folder / f"{name}.log")
        servers.append(server)
        server.start()
        return server

    with stopping(servers):
        controller = f"127.0.0.1:{free_port()}"
        names = start(
            "namesrv",
            "namesrv",
            listenPort=free_port(),
            kvConfigPath=folder / "kv.json",
            enableControllerInNamesrv="true",
            controllerDLegerPeers=f"n0-{controller}",
            controllerDLegerSelfId="n0",
            controllerStorePath=folder / "controller",
        ).address
        first, second = (
            start(
                name,
                "broker",
                brokerName=BROKER,
                brokerIP1="127.0.0.1",
                listenPort=free_port(),
                haListenPort=free_port(),
                fastListen="false",
                namesrvAddr=names,
                storePathRootDir=folder / name,
                mappedFileSizeCommitLog=64 << 20,
                enableControllerMode="true",
                controllerAddr=controller,
                transactionTimeOut=5000,
                enableRemotingMetrics="true",
            )
            for name in ("broker-1", "broker-2")
        )
        proxy = start(
            "proxy", "proxy", namesrvAddr=names, grpcServerPort=free_port(), proxyStorePath=folder / "proxy"
        ).address
        with running_prometheus(folder, targets) as prometheus:
            yield Rig(names, proxy, prometheus, (first, second), controller)


@contextmanager
def running_prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """Runs Prometheus with our alert rules; yields its address."""
    (folder / "alerts.yml").write_text(read_rules("runbooks"))
    jobs = [{"job_name": "tandemmq", "static_configs": [{"targets": targets}]}]
    interval = f"{SCRAPE_S}s"
    settings = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["alerts.yml"],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    words = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'series'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(words, stderr=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def prepare(names: str) -> None:
    """Creates the topics, a group whose failures become dead letters soon, and one that may not consume."""
    for topic, attributes in (
        ("orders", ""),
        ("parcels", ""),
        ("reminders", "+message.type=DELAY"),
        ("payments", "+message.type=TRANSACTION"),
        ("calls", ""),
    ):
        extra = ("-a", attributes) if attributes else ()
        tandemmq("admin", "updateTopic", "-n", names, "-c", "DefaultCluster", "-t", topic, *extra)
    for words in (("fraud", "-r", "1"), ("calls",), ("closed", "-s", "false")):
        tandemmq("admin", "updateSubGroup", "-n", names, "-c", "DefaultCluster", "-g", *words)


async def run_load(rig: Rig, seconds: float) -> float:
    """Runs all clients for that long; the master is killed after half of the time, and restarted. Returns the
    time of the end.
    """
    chance = random.Random(7)
    names = rig.names

    def fail_some(message: ReceivedMessage) -> None:
        if message.body[0] < 8:
            raise ValueError("suspicious")

    async def work_slowly(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.2)

    async def work(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)

    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer("shop", names))
        for group, handler in (
            ("billing", work),
            ("reports", work_slowly),
            ("fraud", fail_some),
            ("closed", work),
        ):
            options = PushOptions(start_from=StartFrom.FIRST, worker_count=4, retry_delay_level=1)
            consumer = PushConsumer(group, names, handler, options=options)
            consumer.subscribe("orders")
            await stack.enter_async_context(consumer)
        popper = PopConsumer("labels", names, options=PopOptions(start_from=StartFrom.FIRST))
        popper.subscribe("parcels")
        await stack.enter_async_context(popper)

        def decide(_: object) -> TransactionState:
            return chance.choice(list(TransactionState))

        booking = await stack.enter_async_context(
            TransactionProducer("tills", names, check=lambda _: TransactionState.COMMIT)
        )

        async def send_orders() -> None:
            rate = 6 + 4 * math.sin(time.monotonic() / 8)
            batch = [
                Message(topic=topic, body=chance.randbytes(chance.randrange(100, 2000)), tags="paid")
                for topic in ("orders", "parcels")
                for _ in range(round(rate))
            ]
            await producer.send_many(batch)
            await asyncio.sleep(0.1)

        async def send_reminders() -> None:
            await producer.send(
                Message(topic="reminders", body=b"soon", delay_ms=chance.randrange(1000, 15000))
            )
            await asyncio.sleep(0.2)

        async def pay() -> None:
            await booking.send(Message(topic="payments", body=b"10"), decide)
            await asyncio.sleep(0.2)

        async def pop() -> None:
            for message in await popper.receive(count_max=32, invisible_s=6, timeout_s=5):
                if chance.random() < 0.1:
                    await popper.change_invisible(message, 8)
                elif chance.random() < 0.95:
                    await popper.ack(message)

        async def call_proxy() -> None:
            await asyncio.to_thread(_call_proxy, rig.proxy)

        async def fail_over() -> None:
            await asyncio.sleep(seconds / 2)
            listed = tandemmq("admin", "clusterList", "-n", names, "--json")
            masters = [row for row in json.loads(listed)["brokers"] if str(row["id"]) == "0"]
            master = next(one for one in rig.brokers if one.address == masters[0]["address"])
            say.print(f"killing the master {master.address}")
            master.kill()
            await asyncio.sleep(seconds / 8)
            await asyncio.to_thread(master.start)
            await asyncio.sleep(seconds)

        jobs = (send_orders, send_reminders, pay, pop, call_proxy, fail_over)
        async with asyncio.TaskGroup() as group_of_tasks:
            tasks = [group_of_tasks.create_task(_repeat(job)) for job in jobs]
            await asyncio.sleep(seconds)
            end = time.time()
            for task in tasks:
                task.cancel()
    return end


async def _repeat(job: Any) -> None:
    """Repeats the job; what a failover breaks is tried again."""
    while True:
        try:
            await job()
        except (TandemError, OSError) as error:
            say.print(f"{job.__name__}: {error}")
            await asyncio.sleep(0.5)


def _call_proxy(address: str) -> None:
    with ProxyLoad(address, "calls", "calls", 500) as load:
        for _ in range(5):
            load.run("send", in_flight=2, seconds=0.05)
            load.run("receive", in_flight=2, seconds=0.05)
            load.run("ack", in_flight=2, seconds=0.2)
            time.sleep(0.5)
    with suppress(TandemError), ProxyLoad(address, "missing", "calls", 500):
        pass


def ask(prometheus: str, path: str, **words: Any) -> Any:
    """Returns the data of an answer of Prometheus."""
    query = urllib.parse.urlencode(words)
    with urllib.request.urlopen(f"{prometheus}/api/v1/{path}?{query}", timeout=30) as answer:
        return json.load(answer)["data"]


def concrete(expression: str) -> str:
    """Returns the expression with every variable as the board has it at first: all values."""
    expression = expression.replace("$__rate_interval", f"{RATE_S}s")
    for variable in VARIABLES:
        expression = expression.replace(f"${variable.name}", ".*")
    return expression


UNITS: Final = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")),
    "Bps": ((1 << 20, "MiB/s"), (1 << 10, "KiB/s"), (1, "B/s")),
    "s": ((60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us")),
    "ms": ((60_000, "min"), (1000, "s"), (1, "ms")),
    "µs": ((1_000_000, "s"), (1000, "ms"), (1, "us")),
    "cps": ((1000, "k/s"), (1, "/s")),
    "short": ((1_000_000, "M"), (1000, "k"), (1, "")),
    "percentunit": ((0.01, "%"),),
}


def text_of(value: float, unit: str) -> str:
    """Returns the value as Grafana shows it, about."""
    steps = UNITS[unit]
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / size:.4g} {name}".strip()


def draw_panel(axes: Axes, panel: dict[str, Any], prometheus: str, begin: float, end: float) -> bool:
    """Draws one panel; returns True if it has data."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    lines: list[tuple[str, list[tuple[float, float]]]] = []
    for target in panel["targets"]:
        found = ask(
            prometheus, "query_range", query=concrete(target["expr"]), start=begin, end=end, step=SCRAPE_S
        )
        for series in found["result"]:
            legend = target["legendFormat"]
            for name, value in series["metric"].items():
                legend = legend.replace(f"{{{{{name}}}}}", value)
            points = [(round(float(at), 3), float(value)) for at, value in series["values"]]
            lines.append((legend, [point for point in points if math.isfinite(point[1])]))
    lines = [line for line in lines if line[1]]
    axes.set_title(panel["title"], fontsize=8, loc="left", fontweight="bold")
    if panel["type"] == "stat":
        axes.axis("off")
        shown = text_of(lines[0][1][-1][1], unit) if lines else "no data"
        axes.text(0, 0.4, shown, fontsize=16, transform=axes.transAxes)
        return bool(lines)
    for legend, points in lines[:LINES_MAX]:
        # A gap stays one: a server that is down has no values.
        known = dict(points)
        times = [begin + SCRAPE_S * step for step in range(int((end - begin) / SCRAPE_S) + 1)]
        values = [known.get(round(at, 3), math.nan) for at in times]
        axes.plot([float(date2num(_moment(at))) for at in times], values, linewidth=1, label=legend)
    if not lines:
        axes.text(0.4, 0.5, "no data", transform=axes.transAxes)
        return False
    axes.set_xlim(float(date2num(_moment(begin))), float(date2num(_moment(end))))
    axes.set_ylim(0, 1.1 * max(value for _, points in lines for _, value in points) or 1)
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value, unit)))
    axes.tick_params(labelsize=6)
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(fontsize=5, loc="upper left", framealpha=0.5)
    return True


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def draw(
    prometheus: str, begin: float, end: float, target: Path, titles: set[str] | None = None
) -> list[str]:
    """Draws the rows with these titles (None: all) into a file; returns the empty panels."""
    rows = tuple(replace(row, is_closed=False) for row in ROWS if titles is None or row.title in titles)
    panels = render_board(rows, VARIABLES)["panels"]
    last = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(15, last * 2.2 / HEIGHT), dpi=80)
    empty: list[str] = []
    for panel in panels:
        place = panel["gridPos"]
        top = 1 - place["y"] / last
        if panel["type"] == "row":
            figure.text(0.01, top - 0.8 / last, panel["title"], fontsize=11, fontweight="bold")
            continue
        left, height = place["x"] / WIDTH, place["h"] / last
        axes = figure.add_axes(
            (left + 0.035, top - height + 0.9 / last, place["w"] / WIDTH - 0.045, height - 1.9 / last)
        )
        if not draw_panel(axes, panel, prometheus, begin, end):
            empty.append(panel["title"])
    figure.savefig(target)
    # A chart of lines needs few colours.
    Image.open(target).convert("RGB").quantize(64).save(target, optimize=True)
    return empty


def main() -> int:
    parser = argparse.ArgumentParser(prog="boards", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/boards"), help="folder of the pictures")
    parser.add_argument("--seconds", type=float, default=120.0, help="duration of the load")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        say.print("prometheus is missing: `apt-get install prometheus` brings it")
        return 2
    logging.disable()  # of the failover
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running_rig(Path(folder)) as rig:
        prepare(rig.names)
        begin = round(time.time() + RATE_S, 3)
        end = asyncio.run(run_load(rig, options.seconds))
        empty = draw(rig.prometheus, begin, end, options.out / "board.png")
        for row in ROWS:
            draw(
                rig.prometheus,
                begin,
                end,
                options.out / f"{re.sub('[^a-z]+', '-', row.title.lower())}.png",
                {row.title},
            )
        fired = ask(
            rig.prometheus, "query", query="count by (alertname, alertstate) (last_over_time(ALERTS[10m]))"
        )
    for alert in fired["result"]:
        say.print(f"alert {alert['metric']['alertname']} was {alert['metric']['alertstate']}")
    for title in empty:
        say.print(f"no data: {title}")
    shown = sum(len(row.panels) for row in ROWS)
    say.print(f"BOARDS {'OK' if not empty else 'FAILED'} panels={shown} empty={len(empty)}")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
