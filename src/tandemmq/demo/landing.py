"""The demo's landing pipeline (`Landing`), and the counts that are taken from files alone
(`count_in_commit_log`, `count_in_table`).
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds

from tandemmq.launcher import ProcessFailed

KILL_AFTER_BATCHES = 2


class LandingProcess:
    """The process `tandemmq pipeline landing --once`: reports its progress, kills it on request, and starts
    it again.
    """

    def __init__(self, arguments: list[str], log_path: Path, on_progress: Callable[[int], None]) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tandemmq",
            "pipeline",
            "landing",
            "--once",
            "--progress",
            "json",
        ]
        self._command += arguments
        self._log_path = log_path
        self._on_progress = on_progress

    def run(self) -> None:
        """Runs until everything that the topic held is landed. Raises ProcessFailed."""
        process = self._start()
        for _ in self._batches(process):
            pass
        self._finish(process)

    def run_until_killed(self) -> None:
        """Kills the pipeline and its JVM with SIGKILL after a few batches.

        Raises:  ProcessFailed with the reason when it ended before that.
        """
        process = self._start()
        for number, _ in enumerate(self._batches(process), start=1):
            if number >= KILL_AFTER_BATCHES:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
                return
        self._finish(process)
        raise ProcessFailed("the landing pipeline was done before it could be killed: take more --rows")

    def _start(self) -> subprocess.Popen[str]:
        with self._log_path.open("ab") as log:
            # A separate session: the JVM and the Python workers are killed with it.
            return subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def _batches(self, process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "batch":
                # The total counts a batch that is repeated after a kill only once.
                self._on_progress(int(event["rows_total"]))
                yield event

    def _finish(self, process: subprocess.Popen[str]) -> None:
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        if code != 0:
            last = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            reason = last[0] if last else "no message"
            raise ProcessFailed(
                f"the landing pipeline ended with exit code {code}: {reason} (log: {self._log_path})"
            )


# Counts taken from files alone, so that no running process can affect them.
#
# The scan of the CommitLog reads sizes, magics and topics directly from the bytes (spec store 3), and shares
# no code with the store that wrote them.

_SIZE_AND_MAGIC = struct.Struct(">iI")
_INT32 = struct.Struct(">i")
_MAGIC_V1 = 0xDAA320A7
_MAGIC_V2 = 0xDAA320AB
_MAGIC_BLANK = 0xCBD43194
_SYS_FLAG_AT = 36
_HOSTS_START = 48
_BORN_HOST_V6 = 0x10
_STORE_HOST_V6 = 0x20


def count_in_commit_log(directory: Path, topic: str) -> int:
    """Counts the records of `topic` in the CommitLog files of `directory`, oldest file first, up to the first
    free byte.
    """
    wanted = topic.encode()
    return sum(
        _count_in_file(path, wanted) for path in sorted(directory.iterdir()) if path.stat().st_size > 0
    )


def _count_in_file(path: Path, topic: bytes) -> int:
    count = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        position = 0
        while position + _SIZE_AND_MAGIC.size <= len(data):
            size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
            if magic == _MAGIC_BLANK or size <= 0:
                break
            if magic not in (_MAGIC_V1, _MAGIC_V2):
                raise ValueError(f"{path} at byte {position}: no record starts here (magic {magic:#x})")
            if _topic_of(data, position, is_long=magic == _MAGIC_V2) == topic:
                count += 1
            position += size
    return count


def _topic_of(data: mmap.mmap, position: int, *, is_long: bool) -> bytes:
    sys_flag = _INT32.unpack_from(data, position + _SYS_FLAG_AT)[0]
    hosts_size = (20 if sys_flag & _BORN_HOST_V6 else 8) + (20 if sys_flag & _STORE_HOST_V6 else 8)
    # After the born host: the store time (8). After the store host: retries (4), prepared offset (8).
    body_size_at = position + _HOSTS_START + hosts_size + 8 + 4 + 8
    topic_size_at = body_size_at + 4 + _INT32.unpack_from(data, body_size_at)[0]
    if is_long:
        size, start = int.from_bytes(data[topic_size_at : topic_size_at + 2], "big"), topic_size_at + 2
    else:
        size, start = data[topic_size_at], topic_size_at + 1
    return data[start : start + size]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """The number of rows of a landed table, and of distinct messages in them."""

    rows: int
    distinct: int


def count_in_table(directory: Path) -> TableCount:
    """Counts the rows and distinct message ids of a Parquet table, read by pyarrow alone."""
    column = ds.dataset(directory, format="parquet").to_table(columns=["msgId"])["msgId"]
    return TableCount(rows=len(column), distinct=pc.count_distinct(column).as_py())
