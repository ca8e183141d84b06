"""A stalled page cache and a full disk: sends are refused before anything is written."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from store_rig import ROOT, Rig, bodies, record

from tandemmq.errors import Busy, ServiceNotAvailable
from tandemmq.store import PutStatus
from tandemmq.telemetry import events

LOG = ROOT / "commitlog"


class SlowDisk:
    """A fault under which a write to the log takes `write_s` of the rig's time."""

    def __init__(self, rig: Rig) -> None:
        self.write_s = 0.0
        self._rig = rig
        rig.disk.fault = self

    def on_create(self, path: Path, size: int) -> None:
        return None

    def on_write(self, path: Path, offset: int, size: int) -> int:
        if path.parent == LOG:
            self._rig.clock._now_s += self.write_s
        return size

    def on_sync(self, path: Path) -> None:
        return None


async def test_a_slow_write_sheds_load_until_a_write_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    store = await rig.open()
    slow = SlowDisk(rig)
    slow.write_s = 1.2
    with caplog.at_level(logging.WARNING):
        assert rig.put(store, record(b"slow")) == [PutStatus.PUT_OK]
        with pytest.raises(Busy, match=r"^\[PC_SYNCHRONIZED\].*1200 ms"):
            rig.put(store, record(b"refused"))
        await rig.clock.pass_time(0.05)
        with pytest.raises(Busy):
            rig.put(store, record(b"refused"))
        await rig.clock.pass_time(0.06)
        assert rig.put(store, record(b"still slow")) == [PutStatus.PUT_OK]
        with pytest.raises(Busy):
            rig.put(store, record(b"refused"))
        slow.write_s = 0
        await rig.clock.pass_time(0.2)
        assert rig.put(store, record(b"quick")) == [PutStatus.PUT_OK]
        assert rig.put(store, record(b"quick too")) == [PutStatus.PUT_OK]
    assert bodies(store) == [b"slow", b"still slow", b"quick", b"quick too"]
    told = [event for event in caplog.messages if event.startswith("page_cache")]
    assert told == [events.PAGE_CACHE_BUSY, events.PAGE_CACHE_RECOVERED]
    await store.close()


@pytest.mark.parametrize(("limit_ms", "is_busy"), [(100, True), (500, False)])
async def test_page_cache_busy_limit_is_configurable(limit_ms: int, is_busy: bool) -> None:
    rig = Rig(page_cache_busy_ms=limit_ms)
    store = await rig.open()
    SlowDisk(rig).write_s = 0.3
    rig.put(store, record())
    assert (store.facts().refusal is not None) is is_busy
    await store.close()


async def test_with_the_pool_a_slow_page_cache_delays_no_send() -> None:
    rig = Rig(transient_pool_enable=True)
    store = await rig.open()
    SlowDisk(rig).write_s = 5
    for number in range(4):
        assert rig.put(store, record(b"%d" % number)) == [PutStatus.PUT_OK]
        await rig.clock.pass_time(1)
    await rig.clock.pass_time(30)
    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    await store.close()


async def test_a_disk_that_is_full_at_the_start_takes_no_message() -> None:
    """Spec store 19: the first round of the cleaning is a minute later."""
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"a"))
    await store.close()
    used = rig.disk.total_bytes - rig.disk.usage(ROOT)[1]
    rig.disk.total_bytes = used * 100 // 92
    before = {name: rig.disk.read_bytes(LOG / name) for name in rig.disk.list(LOG)}
    store = await rig.open()
    with pytest.raises(ServiceNotAvailable, match="full"):
        store.appender.append([record(b"b")], pytest.fail)
    assert bodies(store) == [b"a"]
    assert {name: rig.disk.read_bytes(LOG / name) for name in rig.disk.list(LOG)} == before
    rig.disk.total_bytes = used * 10
    store.cleaner.clean()
    assert rig.put(store, record(b"b")) == [PutStatus.PUT_OK]
    await store.close()


def usage_by_directory(rig: Rig, monkeypatch: pytest.MonkeyPatch, used: dict[str, int | None]) -> None:
    def usage(path: Path) -> tuple[int, int]:
        percent = used[path.name]
        if percent is None:
            raise OSError(errno.EIO, "no answer")
        return 1000, 1000 - 10 * percent

    monkeypatch.setattr(rig.disk, "usage", usage)


@pytest.mark.parametrize(
    ("log_percent", "queue_percent", "is_full"),
    [(50, 50, False), (91, 50, True), (50, 91, True), (90, 90, False), (None, 91, True), (None, None, False)],
)
async def test_the_fuller_disk_of_log_and_queues_counts(
    monkeypatch: pytest.MonkeyPatch, log_percent: int | None, queue_percent: int | None, is_full: bool
) -> None:
    rig = Rig()
    store = await rig.open()
    usage_by_directory(rig, monkeypatch, {"commitlog": log_percent, "consumequeue": queue_percent})
    store.cleaner.clean()
    assert (store.facts().refusal is not None) is is_full
    await store.close()


@pytest.mark.parametrize("is_pooled", [False, True])
async def test_no_room_for_the_next_file_refuses_the_send_and_keeps_the_rest(is_pooled: bool) -> None:
    rig = Rig(transient_pool_enable=is_pooled, commit_log_file_bytes=1024)
    store = await rig.open()
    rig.put(store, *(record(b"%d" % n * 200) for n in range(3)))
    await rig.clock.pass_time(0.3)

    def refuse(path: Path, size: int) -> Any:
        raise OSError(errno.ENOSPC, "no space left")

    create, rig.disk.fault.on_create = rig.disk.fault.on_create, refuse  # type: ignore[method-assign]
    with pytest.raises(ServiceNotAvailable, match="no space"):
        store.appender.append([record(b"x" * 500)], pytest.fail)
    with pytest.raises(ServiceNotAvailable):
        store.appender.append([record(b"small")], pytest.fail)
    rig.disk.fault.on_create = create  # type: ignore[method-assign]
    await rig.clock.pass_time(1.1)
    assert rig.put(store, record(b"x" * 500)) == [PutStatus.PUT_OK]
    await rig.clock.pass_time(0.3)
    assert len(bodies(store)) == 4
    await store.close()
