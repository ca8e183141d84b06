"""A small store written by MessageStore on a real disk, and faults to inject into copies of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store_rig import record

from sim.memory import ManualClock
from tandemmq.protocol.record import NewRecord
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import MessageStore, StoreOptions
from tandemmq.store.inspect import Finding, InspectOptions, Severity, StorePart, StoreReport, check_store

LOG_FILE_BYTES = 4096
QUEUE_FILE_BYTES = 400
SIZES: dict[str, Any] = {
    "commit_log_file_bytes": LOG_FILE_BYTES,
    "consume_queue_file_bytes": QUEUE_FILE_BYTES,
    "key_index_slot_count": 16,
    "key_index_entry_count": 64,
}
PREPARED = 0x4


def some_records(count: int) -> list[NewRecord]:
    """Returns messages of two ordinary topics, delayed messages, transactions, and keys of both kinds."""
    records = []
    for number in range(count):
        body = b"body %04d " % number * 8
        if number % 11 == 5:
            delay = {"DELAY": str(number % 4)}
            records.append(record(body, topic="SCHEDULE_TOPIC_XXXX", queue_id=2, properties=delay))
        elif number % 11 == 7:
            records.append(record(body, topic="A", sys_flag=PREPARED, unique_key=f"U{number}"))
        else:
            records.append(
                record(
                    body,
                    topic="AB"[number % 2],
                    queue_id=number % 4 // 2,
                    tags=f"tag{number % 3}" if number % 3 else "",
                    keys=f"k{number} café" if number % 5 else "",
                    unique_key=f"U{number}",
                )
            )
    return records


async def write_store(root: Path, records: list[NewRecord], **changes: Any) -> None:
    """Writes a store, closes it, and opens and closes it again."""
    clock = ManualClock()
    for part in (records, []):
        options = StoreOptions(root=root, **{**SIZES, **changes})
        store = await MessageStore.open(options, disk=RealDisk(), clock=clock)
        for new in part:
            store.appender.append([new], lambda _: None)
            clock.run_soon()
            await clock.pass_time(0.5)
        await store.close()
    config = root / "config"
    config.mkdir()
    topics = {"topicConfigTable": {name: {} for name in ("A", "B", "SCHEDULE_TOPIC_XXXX")}}
    (config / "topics.json").write_text(json.dumps(topics))
    (config / "consumerOffset.json").write_text('{"offsetTable":{"A@g":{0:3,1:2\n}}}')


def make_store(root: Path, count: int = 60, **changes: Any) -> Path:
    asyncio.run(write_store(root, some_records(count), **changes))
    return root


def content(root: Path) -> dict[str, bytes]:
    """Returns every file below `root` except the lock."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def change(path: Path, offset: int, edit: bytes | Callable[[int], int]) -> None:
    """Overwrites bytes of a file, or changes one with a function."""
    data = bytearray(path.read_bytes())
    new = bytes([edit(data[offset]) & 0xFF]) if callable(edit) else edit
    data[offset : offset + len(new)] = new
    path.write_bytes(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    change(path, offset, lambda value: value ^ 1 << bit)


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def queue_file(root: Path, topic: str = "A", queue_id: int = 0, index: int = 0) -> Path:
    return sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())[index]


def check(root: Path, **changes: Any) -> StoreReport:
    return check_store(InspectOptions(root=root, **changes))


def damages(report: StoreReport, part: StorePart | None = None) -> list[Finding]:
    return [
        finding
        for finding in report.findings.listed
        if finding.severity is Severity.DAMAGE and part in (None, finding.part)
    ]


def notes(report: StoreReport) -> list[str]:
    return [f.reason for f in report.findings.listed if f.severity is Severity.NOTE]
