"""A disk that cannot hold a log file is reported before anything is sent."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from sim.memory import ManualClock, MemoryDisk
from tandemmq.errors import ConfigError
from tandemmq.protocol.record import NewRecord
from tandemmq.store import BrokerRole, StoreOptions
from tandemmq.store.message_store import MessageStore
from tandemmq.store.outcomes import PutStatus
from tandemmq.store.retention import LOG_FILES_MIN

FILE_BYTES = 1 << 20
OPTIONS = StoreOptions(
    root=Path("/store"),
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=20_000,
    key_index_enable=False,
    message_bytes_max=32_768,
)


async def opened(disk: MemoryDisk) -> MessageStore:
    return await MessageStore.open(OPTIONS, disk=disk, clock=ManualClock())


def small(usable_bytes: int) -> MemoryDisk:
    """Returns a disk of which `usable_bytes` may be used before it counts as full."""
    disk = MemoryDisk()
    disk.total_bytes = usable_bytes * 100 // OPTIONS.disk_warning_percent
    return disk


async def test_an_empty_store_does_not_open_where_no_log_file_fits() -> None:
    with pytest.raises(ConfigError, match=r"no message could be stored\. Set mappedFileSizeCommitLog to at"):
        await opened(small(FILE_BYTES - 100))


async def test_few_log_files_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    store = await opened(small(LOG_FILES_MIN * FILE_BYTES - 100))
    assert caplog.messages == ["disk.small"]
    await store.close()
    caplog.clear()
    store = await opened(small(LOG_FILES_MIN * FILE_BYTES + 100))
    assert caplog.messages == []
    await store.close()


async def test_a_store_that_holds_messages_opens_wherever_they_are() -> None:
    disk = MemoryDisk()
    store = await opened(disk)
    results: list[PutStatus] = []
    record = NewRecord(topic="T", queue_id=0, body=b"m", properties=b"", born_at_ms=1, born_host=bytes(8))
    store.appender.append([record], results.append)
    await store.close()
    assert results == [PutStatus.PUT_OK]
    disk.total_bytes = FILE_BYTES // 2
    await (await opened(disk)).close()


async def test_why_no_message_is_taken_is_told() -> None:
    disk = MemoryDisk()
    store = await opened(disk)
    assert store.refusal == ""
    ballast = disk.create(Path("/ballast"), 100)
    free = disk.usage(OPTIONS.root)[1]
    disk.total_bytes -= free - FILE_BYTES + 1
    assert f"a CommitLog file takes {FILE_BYTES:,}" in store.refusal
    disk.total_bytes += 1
    assert store.refusal == ""
    store._core.admission.block("x", "the disk accepts no writes: no")
    assert store.refusal == "the disk accepts no writes: no"
    ballast.close()
    await store.close()


async def test_a_slave_takes_no_messages_and_nothing_is_wrong_with_it() -> None:
    options = replace(OPTIONS, role=BrokerRole.SLAVE)
    store = await MessageStore.open(options, disk=MemoryDisk(), clock=ManualClock())
    assert store._core.admission.refusal is not None
    assert store.refusal == ""
    await store.close()
