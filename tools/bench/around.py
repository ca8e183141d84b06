"""The measurements around a broker's loads: a slave that catches up, and a store that opens after a kill.
Renders each for the screen, and both as a chapter of the page.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.catchup import CatchUp, measure_catchup
from bench.reopen import Reopened, measure_reopening

BODY_BYTES: Final = 1024
GIB: Final = 2.0


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


def measure_around(*, directory: Path | None, on_progress: Callable[[str], None]) -> list[str]:
    """Returns the lines of the chapter in Markdown. `on_progress` receives the name of each measurement.

    Raises:  the errors of the parts.
    """
    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name:
        root = Path(name)
        on_progress("a slave catches up")
        (root / "catchup").mkdir()
        copied = asyncio.run(measure_catchup(root / "catchup", GIB, BODY_BYTES, lambda *_: None))
        on_progress("a store opens after a kill")
        opened = measure_reopening(root / "open", GIB, BODY_BYTES)
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
    ]
