"""Measures the time that an empty slave needs to copy a master's log, beside the limits of the machine.

Master and slave are separate processes, each with a store and one end of the replication channel. The log is
made in bulk: some thousand records are encoded as by a broker. Every later round repeats their bytes and
overwrites, in columns, the fields that must differ (log offset, queue offset, store time, key).
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.catchup_node import CopyState, Ready
from bench.loopback import measure_loopback
from bench.processes import peak_resident_bytes
from tandemmq.bench.process_stats import processor_seconds
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, encode_record, tag_hash_of
from tandemmq.protocol.record_layout import BLANK_BYTES_MIN, encode_blank
from tandemmq.protocol.record_scan import Ints
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import BrokerRole, MessageStore, StoreOptions
from tandemmq.units import GIB

TOPICS: Final = ("orders", "payments-europe", "clicks", "inventory")
QUEUE_COUNT: Final = 4  # of each topic
_ROUND_COUNT: Final = 4096
_QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _STORED_AT = 20, 28, 56
_HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
_KEY: Final = "7F0000010000"
_KEY_DIGITS: Final = 20
_CHANGED_DIGITS: Final = 8
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_BORN_AT_MS: Final = 1_700_000_000_000


class LogMaker:
    """Makes consecutive records for a log with files of `segment_bytes`."""

    def __init__(self, *, segment_bytes: int, body_bytes: int) -> None:
        assert segment_bytes > 2 * body_bytes + 4096
        self._segment_bytes = segment_bytes
        chance = random.Random(1)
        records = [_encode(chance, body_bytes) for _ in range(_ROUND_COUNT)]
        self._raw = b"".join(raw for raw, _ in records)
        self._ends = np.cumsum([len(raw) for raw, _ in records])
        self._starts = self._ends - [len(raw) for raw, _ in records]
        self._key_at = self._starts + [raw.index(_KEY.encode()) + len(_KEY) for raw, _ in records]
        self._queue = np.array([queue for _, queue in records])
        self._rank = np.zeros(_ROUND_COUNT, dtype=np.int64)
        for queue in range(len(TOPICS) * QUEUE_COUNT):
            rows = np.flatnonzero(self._queue == queue)
            self._rank[rows] = np.arange(len(rows))
        self._queue_ends = np.zeros(len(TOPICS) * QUEUE_COUNT, dtype=np.int64)
        self.count = 0
        """The number of records made so far."""

    def pieces(self, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """Yields (log offset, bytes) of whole records from byte 0 on, at least `size_bytes` in total, with
        fillers at the ends of files. A piece never crosses a file boundary.
        """
        log_offset = 0
        while log_offset < size_bytes:
            room = self._segment_bytes - log_offset % self._segment_bytes
            count = int(np.searchsorted(self._ends, room - BLANK_BYTES_MIN, side="right"))
            data = self._round(log_offset, count)
            yield log_offset, memoryview(data)
            log_offset += len(data)
            if count < _ROUND_COUNT:
                room -= len(data)
                yield log_offset, memoryview(encode_blank(room) + bytes(room - BLANK_BYTES_MIN))
                log_offset += room

    def _round(self, log_offset: int, count: int) -> bytes:
        """Returns the first `count` records of a round, placed at `log_offset`."""
        size = int(self._ends[count - 1]) if count else 0
        data = np.frombuffer(self._raw, dtype=np.uint8)[:size].copy()
        starts, queue = self._starts[:count], self._queue[:count]
        numbers = self.count + np.arange(count)
        _put(data, starts + _LOG_OFFSET_AT, log_offset + starts)
        _put(data, starts + _QUEUE_OFFSET_AT, self._queue_ends[queue] + self._rank[:count])
        _put(data, starts + _STORED_AT, _BORN_AT_MS + numbers // 100)
        first = _KEY_DIGITS - _CHANGED_DIGITS
        for digit in range(_CHANGED_DIGITS):
            values = numbers >> 4 * (_CHANGED_DIGITS - 1 - digit) & 15
            data[self._key_at[:count] + first + digit] = _HEX[values]
        self._queue_ends += np.bincount(queue, minlength=len(self._queue_ends))
        self.count += count
        return data.tobytes()


def _put(data: NDArray[np.uint8], positions: Ints, values: Ints) -> None:
    """Writes 8 bytes in big-endian order at each position."""
    raw = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    data[positions[:, None] + np.arange(8)] = raw


def _encode(chance: random.Random, body_bytes: int) -> tuple[bytes, int]:
    """Returns a record and the number of its queue."""
    queue = chance.randrange(len(TOPICS) * QUEUE_COUNT)
    key = _KEY + "0" * _KEY_DIGITS
    properties = encode_properties({"UNIQ_KEY": key, "TAGS": f"tag{queue % 3}", "WAIT": "true"})
    record = NewRecord(
        topic=TOPICS[queue // QUEUE_COUNT],
        queue_id=queue % QUEUE_COUNT,
        body=chance.randbytes(body_bytes),
        properties=properties,
        tag_hash=tag_hash_of(properties),
        born_at_ms=_BORN_AT_MS,
        born_host=_HOST,
    )
    raw = encode_record(record, queue_offset=0, log_offset=0, stored_at_ms=0, store_host=_HOST)
    return raw, queue


LOOPBACK_BYTES = 2 * GIB
OnProgress = Callable[[str, int, int], None]
"""A callback with the current activity, the bytes done, and the total bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """The figures of one run. `copied`: the time at which the slave's log was complete; `dispatched`: the
    time at which its tables were, too.

    Rates of the loopback are in bytes per second; `master_seconds` is processor time while the slave copied.
    """

    log_bytes: int
    message_count: int
    copied: CopyState
    dispatched: CopyState
    master_seconds: float
    master_peak_bytes: int
    loopback_rate: float
    loopback_file_rate: float


async def measure_catchup(directory: Path, gib: float, body_bytes: int, on_progress: OnProgress) -> CatchUp:
    """Measures the bare loopback, fills a master in the existing `directory`, and copies it.

    Raises:  subprocess.CalledProcessError if one of the processes fails.
    """
    on_progress("bare loopback", 0, 2 * LOOPBACK_BYTES)
    loopback = measure_loopback(LOOPBACK_BYTES, None)
    on_progress("bare loopback, written to a file", LOOPBACK_BYTES, 2 * LOOPBACK_BYTES)
    loopback_file = measure_loopback(LOOPBACK_BYTES, directory / "loopback")
    await _fill(directory / "master", gib, body_bytes, on_progress)
    with _node("master", str(directory / "master")) as master:
        ready = msgspec.json.decode(_line(master), type=Ready)
        before_s = processor_seconds(master.pid)
        arguments = (str(directory / "slave"), ready.address, str(ready.log_end))
        with _node("slave", *arguments) as slave:
            copied = None
            for reading in _readings(slave):
                on_progress("copying", reading.log_end, ready.log_end)
                if copied is None and reading.log_end >= ready.log_end:
                    copied, master_seconds = reading, processor_seconds(master.pid) - before_s
                    master_peak = peak_resident_bytes(master.pid)
        if copied is None:
            raise subprocess.CalledProcessError(slave.returncode, slave.args)
    return CatchUp(
        log_bytes=ready.log_end,
        message_count=reading.message_count,
        copied=copied,
        dispatched=reading,
        master_seconds=master_seconds,
        master_peak_bytes=master_peak,
        loopback_rate=loopback,
        loopback_file_rate=loopback_file,
    )


async def _fill(directory: Path, gib: float, body_bytes: int, on_progress: OnProgress) -> None:
    """Makes the master's store: its log in bulk, its tables with a slave's dispatcher."""
    options = StoreOptions(root=directory, role=BrokerRole.SLAVE)
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    maker = LogMaker(segment_bytes=options.commit_log_file_bytes, body_bytes=body_bytes)
    total = int(gib * GIB)
    for log_offset, data in maker.pieces(total):
        store.append_raw(log_offset, data)
        on_progress("filling the master", log_offset, total)
    await store.close()


@contextmanager
def _node(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process of `catchup_node`, which has ended afterwards. Raises CalledProcessError if it
    failed.
    """
    command = [sys.executable, "-m", "bench.catchup_node", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()  # this ends a master
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def _readings(process: subprocess.Popen[bytes]) -> Iterator[CopyState]:
    while line := _line(process):
        yield msgspec.json.decode(line, type=CopyState)
