"""The processor time and the memory of a process, as the kernel accounts them."""

from __future__ import annotations

import time
from pathlib import Path

_CLOCK_OF_ALL_THREADS = 2


def processor_seconds(pid: int) -> float:
    """Returns the user and system time that the process has used so far, in seconds, with a resolution of a
    nanosecond.

    The kernel has a clock for each process; its number is derived from the process id as in
    clock_getcpuclockid(3).
    Raises:  OSError without such a process.
    """
    return time.clock_gettime(~pid << 3 | _CLOCK_OF_ALL_THREADS)


def resident_bytes(pid: int) -> int:
    """Returns the process's resident memory in bytes."""
    return field_bytes(pid, "status", "VmRSS:")


def field_bytes(pid: int, name: str, field: str) -> int:
    """Returns a size in the file /proc/PID/`name`; 0 if the file has no such field."""
    for line in Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0
