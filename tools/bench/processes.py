"""The age, the memory and the tree of a process, a description of the machine, and the two servers that the
benchmarks of Spark read from (`running_servers`). Processor time is in `tandemmq.bench.process_stats`.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tandemmq.bench.process_stats import field_bytes
from tandemmq.launcher import Server, stopping, write_properties

HOST = "127.0.0.1"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_USER_FIELD, _START_FIELD = 13, 21


def _stat_fields(pid: int) -> list[str]:
    """Returns the fields after the command's name, which is in parentheses and may itself contain spaces."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text[text.rindex(")") + 2 :].split()


def age_seconds(pid: int) -> float:
    """Returns the age of the process in seconds (resolution: one kernel tick)."""
    up_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return up_s - int(_stat_fields(pid)[_START_FIELD - 2]) / _TICKS_PER_SECOND


def peak_resident_bytes(pid: int) -> int:
    """Returns the process's peak resident memory in bytes."""
    return field_bytes(pid, "status", "VmHWM:")


def private_bytes(pid: int) -> int:
    """Returns the process's anonymous memory in bytes: its heap, without the mapped store."""
    return field_bytes(pid, "smaps_rollup", "Anonymous:")


def proportional_bytes(pid: int) -> int:
    """Returns the process's resident memory in bytes, of which shared pages count only in part (PSS)."""
    return field_bytes(pid, "smaps_rollup", "Pss:")


def tree_seconds(root: int, *, without: frozenset[int] = frozenset()) -> float:
    """Returns the processor time of all running descendants of a process, and of the children that they
    waited for.

    Neither `root` itself nor the subtrees of `without` count. The time of a child that ended without being
    waited for is lost.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        try:
            fields = _stat_fields(pid)
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[_USER_FIELD - 2 : _USER_FIELD + 2]))
    total, parents = 0, [root]
    while parents:
        found = [pid for pid in children.get(parents.pop(), ()) if pid not in without]
        total += sum(ticks[pid] for pid in found)
        parents += found
    return total / _TICKS_PER_SECOND


def describe_machine() -> list[str]:
    """Returns one sentence about this machine, for the head of a report."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = " ".join(line.partition(":")[2].split())
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"{time.strftime('%Y-%m-%d')}: {len(os.sched_getaffinity(0))} processors ({model}), {memory:.0f} GiB"
        f" of memory, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}."
    ]


@dataclass(frozen=True, slots=True)
class Servers:
    """A name server and one broker, as running processes."""

    name_server: Server
    broker: Server


@contextmanager
def running_servers(directory: Path) -> Iterator[Servers]:
    """Runs both servers on free ports of this machine, with default settings; store and logs are in
    `directory`.

    Raises:  ProcessFailed when one does not start.
    """
    command = ["namesrv", "--set", "listenPort=0", "--set", f"bindAddress={HOST}"]
    name_server = Server("name server", command, directory / "namesrv.log")
    with stopping([name_server]):
        settings = {
            "namesrvAddr": name_server.start(),
            "brokerName": "bench",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": 0,
            "storePathRootDir": directory / "store",
        }
        conf = write_properties(directory / "broker.conf", settings)
        broker = Server("broker", ["broker", "-c", str(conf)], directory / "broker.log")
        with stopping([broker]):
            broker.start()
            yield Servers(name_server=name_server, broker=broker)
