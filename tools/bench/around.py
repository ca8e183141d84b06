"""The measurements around a broker's loads: a slave that catches up, a store that opens after a kill, and the
Python client beside RocketMQ's. Renders each for the screen, and all as a chapter of the page.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.catchup import CatchUp, measure_catchup
from bench.client_bench import QUEUE_COUNT, ClientFigures, measure_client
from bench.reopen import Reopened, measure_reopening
from tandemmq.client import BlockingAdmin

if TYPE_CHECKING:
    from bench.java.measure import CaseFigures

BODY_BYTES: Final = 1024
GIB: Final = 2.0
CLIENT_S: Final = 3.0


def render_catchup(found: CatchUp) -> list[str]:
    """Returns four lines: the loopback, the log, the tables, the processes."""
    size, count = found.log_bytes, found.message_count
    lines = [
        f"bare loopback {found.loopback_rate / 1e6:,.0f} MB/s,"
        f" received and written to a file {found.loopback_file_rate / 1e6:,.0f} MB/s"
    ]
    for what, reading in (("log copied", found.copied), ("queues and keys too", found.dispatched)):
        lines.append(
            f"{what}: {size / 2**30:.1f} GiB, {count:,} messages in {reading.seconds:.1f} s:"
            f" {size / reading.seconds / 1e6:,.0f} MB/s"
            f" ({size / reading.seconds / found.loopback_file_rate:.0%} of the loopback with a file);"
            f" slave {reading.processor_seconds:.1f} s of processor time,"
            f" {reading.processor_seconds * 1e6 / count:.2f} us per message"
        )
    lines.append(
        f"master {found.master_seconds:.1f} s of processor time,"
        f" {found.master_seconds * 1e6 / count:.2f} us per message;"
        f" peak resident memory: master {found.master_peak_bytes / 2**20:.0f} MiB,"
        f" slave {found.dispatched.peak_bytes / 2**20:.0f} MiB"
    )
    return lines


def render_reopened(found: Reopened) -> str:
    """Returns one line: the time to open, and the memory."""
    return (
        f"{found.log_bytes / 2**30:.1f} GiB, {found.message_count:,} messages: open in {found.seconds:.1f} s"
        f" ({found.processor_seconds:.1f} s of processor time),"
        f" {found.resident_bytes / 2**20:.0f} MiB resident, peak {found.peak_bytes / 2**20:.0f} MiB"
    )


def measure_python_client(namesrv: str, *, body_bytes: int, seconds: float) -> list[ClientFigures]:
    """Runs every case of the Python client against a running cluster. Raises the errors of
    `measure_client`.
    """

    async def collect() -> list[ClientFigures]:
        return [one async for one in measure_client(namesrv, body_bytes=body_bytes, seconds=seconds)]

    return asyncio.run(collect())


def measure_java_beside(
    namesrv: str, *, body_bytes: int, seconds: float, cache: Path
) -> dict[str, CaseFigures]:
    """Runs the same cases with RocketMQ's client, in a separate topic, which is deleted afterwards.

    Raises:  TandemError without Java or Maven, or if a load fails.
    """
    from bench.java.measure import measure_java_client

    topic = f"BenchJavaClient-{time.time_ns()}"
    with BlockingAdmin(namesrv) as admin:
        admin.create_topic(topic, queue_count=QUEUE_COUNT)
        try:
            found = measure_java_client(
                namesrv, topic, body_bytes=body_bytes, seconds=seconds, cache=cache.absolute()
            )
            return dict(found)
        finally:
            admin.delete_topic(topic)


def client_rows(readings: Sequence[ClientFigures], of_java: Mapping[str, CaseFigures]) -> list[list[str]]:
    """Returns the rows of a table, headings first; with columns for Java's client if it was measured."""
    headings = ["case", "messages/s", "p50 us", "p99 us"]
    if of_java:
        headings += ["Java's client", "p50 us", "p99 us", "Python / Java"]
    rows = [headings]
    for one in readings:
        times = ["-" if took is None else f"{took:,.0f}" for took in (one.p50_us, one.p99_us)]
        other = of_java.get(one.case)
        if other is not None:
            has_times = one.p50_us is not None
            times += [f"{other.per_second:,.0f}"]
            times += [f"{took:,.0f}" if has_times else "-" for took in (other.p50_us, other.p99_us)]
            times += [f"{one.rate / other.per_second:.2f}"]
        rows.append([one.case, one.error or f"{one.rate:,.0f}", *times])
    return rows


def measure_around(*, cache: Path, directory: Path | None, on_progress: Callable[[str], None]) -> list[str]:
    """Returns the lines of the chapter in Markdown. `on_progress` receives the name of each measurement.

    Raises:  the errors of the parts.
    """
    from bench.java.clusters import running_ours
    from bench.java.measure import ASYNC

    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name:
        root = Path(name)
        on_progress("a slave catches up")
        (root / "catchup").mkdir()
        copied = asyncio.run(measure_catchup(root / "catchup", GIB, BODY_BYTES, lambda *_: None))
        on_progress("a store opens after a kill")
        opened = measure_reopening(root / "open", GIB, BODY_BYTES)
        with running_ours(root / "client", ASYNC) as cluster:
            on_progress("the Python client")
            ours = measure_python_client(cluster.name_server, body_bytes=BODY_BYTES, seconds=CLIENT_S)
            on_progress("the Java client")
            java = measure_java_beside(
                cluster.name_server, body_bytes=BODY_BYTES, seconds=CLIENT_S, cache=cache
            )
    headings, *rows = client_rows(ours, java)
    return [
        "## Around the broker",
        "",
        "An empty slave copies a master on the same machine (`python -m bench catchup`):",
        "",
        *(f"- {line}" for line in render_catchup(copied)),
        "",
        "A store opens after its process was killed (`python -m bench open`):",
        "",
        f"- {render_reopened(opened)}",
        "",
        "The Python client beside RocketMQ's, with the same broker of ours (`python -m bench client --java`),"
        " bodies of 1 KiB:",
        "",
        f"| {' | '.join(headings)} |",
        "|---|" + "--:|" * (len(headings) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
