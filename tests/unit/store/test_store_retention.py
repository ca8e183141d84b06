"""Cleaning: by age at the hour, by the disk's fill level; tables follow, views stay valid."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest
from store_rig import ROOT, Rig, bodies, options, record, unremovable

from tandemmq.errors import ServiceNotAvailable
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.record_layout import STORED_AT_V4
from tandemmq.store import BrokerRole, GetStatus, MessageStore, PutStatus, dispatcher
from tandemmq.store.retention import HOUR_MS, plan_cleaning
from tandemmq.telemetry import events

LOG = ROOT / "commitlog"


@pytest.mark.parametrize(
    ("used", "hour", "ages_h", "count", "is_full"),
    [
        (50, 4, [80, 73, 71], 2, False),
        (50, 5, [80, 73, 71], 0, False),
        (76, 5, [80, 73, 71], 2, False),
        (85, 5, [80, 73, 71], 2, False),
        (86, 5, [80, 73, 71], 3, False),
        (90, 5, [10], 1, False),
        (91, 5, [10], 1, True),
        (91, 5, [], 0, True),
        (99, 5, [1] * 50, 10, True),
    ],
)
def test_plan(used: int, hour: int, ages_h: list[int], count: int, is_full: bool) -> None:
    """spec store 19."""
    now = 10**12
    plan = plan_cleaning(
        options(clean_forcibly_enable=True),
        used_percent=used,
        hour=hour,
        now_ms=now,
        left_at_ms=[now - age * HOUR_MS for age in ages_h],
    )
    assert (plan.delete_count, plan.is_disk_full) == (count, is_full)


def test_plan_tells_which_files_go_before_their_time() -> None:
    """A disk above 85 % forces out files younger than fileReservedTime, and that is reported."""
    ages_h = (80, 73, 71, 3)
    plan = plan_cleaning(
        options(clean_forcibly_enable=True),
        used_percent=86,
        hour=5,
        now_ms=10**12,
        left_at_ms=[10**12 - age * HOUR_MS for age in ages_h],
    )
    assert (plan.delete_count, plan.early_count) == (4, 2)


def test_a_full_disk_forces_nothing_out_unless_an_operator_wants_it() -> None:
    plan = plan_cleaning(options(), used_percent=95, hour=5, now_ms=10**12, left_at_ms=[10**12])
    assert plan.delete_count == 0


async def old_store(rig: Rig) -> MessageStore:
    """Returns a store of five files or more at a deletion hour, all but the newest records a week old."""
    store = await rig.open(
        commit_log_file_bytes=1024, consume_queue_file_bytes=60, queue_flush_thorough_interval_ms=1000
    )
    rig.put(store, *(record(b"%03d" % n + b"x" * 200, keys=f"k{n}") for n in range(20)))
    await rig.clock.pass_time(1)
    rig.clock._start_ms += 7 * 24 * HOUR_MS
    hour = datetime.fromtimestamp(rig.clock.now_ms() / 1000).hour
    rig.clock._start_ms += (4 - hour) % 24 * HOUR_MS
    rig.put(store, *(record(b"%03d" % n + b"x" * 200, keys=f"k{n}") for n in range(20, 30)))
    await rig.clock.pass_time(11)
    return store


async def test_expired_files_go_and_the_queues_begin_behind_them() -> None:
    rig = Rig()
    store = await old_store(rig)
    before = bodies(store)
    slice_of_first = store.reader.get("T", 0, 0, count_max=1).slices[0]
    assert store.cleaner.clean() > 0
    low = store.queue_min("T", 0)
    assert 0 < low <= 20
    assert store.min_log_offset == int(rig.disk.list(LOG)[0])
    assert bodies(store) == before[low:]
    assert store.reader.get("T", 0, 0, count_max=1).status is GetStatus.OFFSET_TOO_SMALL
    assert [r.body for r in decode_records(slice_of_first)] == before[:1]
    assert store.reader.offset_by_time("T", 0, 0) == low
    assert store.query_keys("T", "k0", 8, 0, 2**62) == []
    first_unit = int(rig.disk.list(ROOT / "consumequeue" / "T" / "0")[0]) // 20
    assert low - 3 < first_unit <= low
    await store.close()
    store = await rig.open(commit_log_file_bytes=1024, consume_queue_file_bytes=60)
    assert (store.queue_min("T", 0), bodies(store)) == (low, before[low:])
    await store.close()


async def test_the_last_file_never_goes() -> None:
    rig = Rig()
    store = await old_store(rig)
    rig.clock._start_ms += 30 * 24 * HOUR_MS
    while store.cleaner.clean():
        pass
    assert len(rig.disk.list(LOG)) == 1
    assert rig.put(store, record(b"more")) == [PutStatus.PUT_OK]
    assert bodies(store)[-1] == b"more"
    await store.close()


async def test_rounds_run_by_themselves() -> None:
    rig = Rig()
    store = await old_store(rig)
    await rig.clock.pass_time(61)
    assert store.min_log_offset > 0
    await store.close()


async def test_a_full_disk_refuses_messages_until_there_is_room() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record())
    rig.disk.total_bytes = sum(rig.disk.size(path) for path in (LOG / name for name in rig.disk.list(LOG)))
    store.cleaner.clean()
    with pytest.raises(ServiceNotAvailable, match="disk is full"):
        store.appender.append([record()], pytest.fail)
    rig.disk.total_bytes = 1 << 40
    store.cleaner.clean()
    assert rig.put(store, record()) == [PutStatus.PUT_OK]
    await store.close()


async def test_files_that_no_queue_knows_yet_stay() -> None:
    """A slave received foreign bytes: dispatching has stopped before them, whatever is flushed."""
    rig = Rig(role=BrokerRole.SLAVE)
    slave = await rig.open(commit_log_file_bytes=1024)
    for log_offset in range(0, 4096, 1024):
        slave.append_raw(log_offset, b"\x7f" * 1024)
    await rig.clock.pass_time(11)
    assert (slave.flushed.value, slave.dispatched.value) == (4096, 0)
    rig.clock._start_ms += 30 * 24 * HOUR_MS
    rig.disk.total_bytes = 1
    assert slave.cleaner.clean() == 0
    await slave.close()


async def test_files_that_are_not_flushed_stay() -> None:
    rig = Rig(flush_interval_ms=10**6)
    store = await rig.open(commit_log_file_bytes=1024)
    rig.put(store, *(record(b"x" * 200) for _ in range(20)))
    rig.clock._start_ms += 30 * 24 * HOUR_MS
    rig.disk.total_bytes = 1
    assert store.cleaner.clean() == 0
    await store.close()


async def test_files_stay_whose_entries_could_be_lost_with_the_power() -> None:
    """Their queue's file is not flushed yet: without the records it would restart at 0."""
    rig = Rig(clean_forcibly_enable=True)
    store = await rig.open(commit_log_file_bytes=1024)
    rig.put(store, *(record(b"x" * 200) for _ in range(20)))
    await rig.clock.pass_time(15)
    rig.disk.total_bytes = 1
    assert (store.flushed.value, store.cleaner.clean()) == (store.max_log_offset, 0)
    rig.disk.total_bytes = 1 << 40
    rig.power_cut()
    store = await rig.open(commit_log_file_bytes=1024)
    assert (store.queue_min("T", 0), store.queue_max("T", 0)) == (0, 20)
    await rig.clock.pass_time(61)
    rig.disk.total_bytes = 1
    assert store.cleaner.clean() > 0
    rig.power_cut()
    rig.disk.total_bytes = 1 << 40
    store = await rig.open(commit_log_file_bytes=1024)
    assert (store.queue_min("T", 0) > 0, store.queue_max("T", 0)) == (True, 20)
    await store.close()


@pytest.mark.parametrize("bit", range(64))
async def test_a_turned_bit_in_a_record_s_time_makes_no_file_old_and_keeps_none_for_ever(bit: int) -> None:
    """No checksum covers the time."""
    rig = Rig()
    store = await rig.open(
        commit_log_file_bytes=1024, consume_queue_file_bytes=60, queue_flush_thorough_interval_ms=1000
    )
    rig.put(store, *(record(b"%03d" % n + b"x" * 200) for n in range(20)))
    await rig.clock.pass_time(11)
    file = rig.disk.open(LOG / f"{1024:020d}")
    at = STORED_AT_V4 + 7 - bit // 8
    file.pwrite(at, (bytes([file.pread(at, 1)[0] ^ 1 << bit % 8]),))
    assert store.cleaner.clean(at_any_hour=True) == 0
    rig.clock._start_ms += 7 * 24 * HOUR_MS
    assert store.cleaner.clean(at_any_hour=True) > 0
    await store.close()


async def test_a_file_that_cannot_be_deleted_keeps_those_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    """The log has no gap, which a start would refuse. The next round after the disk recovers
    continues there.
    """
    rig = Rig()
    store = await old_store(rig)
    before = bodies(store)
    with unremovable(rig, LOG / f"{1024:020d}"), caplog.at_level(logging.WARNING):
        assert [store.cleaner.clean(at_any_hour=True) for _ in range(2)] == [1, 0]
    assert [record.message for record in caplog.records] == [events.SEGMENT_DELETE_FAILED] * 2
    assert store.min_log_offset == int(rig.disk.list(LOG)[0]) == 1024
    low = store.queue_min("T", 0)
    assert bodies(store) == before[low:]
    assert store.queue_entries("T", 0, low, 1)[0][0] == 1024, "the tables follow what did go"
    await store.close()
    store = await rig.open(commit_log_file_bytes=1024, consume_queue_file_bytes=60)
    assert (store.min_log_offset, bodies(store)) == (1024, before[low:])
    await rig.clock.pass_time(11)
    assert store.cleaner.clean(at_any_hour=True) > 0
    assert store.min_log_offset == int(rig.disk.list(LOG)[0]) > 1024
    await store.close()


async def test_a_file_that_somebody_else_has_deleted_is_no_reason_to_keep_those_behind_it() -> None:
    rig = Rig()
    store = await old_store(rig)
    rig.disk.remove(LOG / f"{0:020d}")
    assert store.cleaner.clean(at_any_hour=True) > 1
    assert store.min_log_offset == int(rig.disk.list(LOG)[0])
    assert rig.fatal == []
    await store.close()


async def test_a_queue_whose_file_cannot_be_deleted_begins_with_the_log_and_so_do_the_others() -> None:
    rig = Rig(commit_log_file_bytes=1024, consume_queue_file_bytes=60)
    store = await rig.open()
    rig.put(store, *(record(b"x" * 200, queue_id=n % 2, keys=f"k{n}") for n in range(30)))
    await rig.clock.pass_time(61)
    rig.clock._start_ms += 7 * 24 * HOUR_MS
    queues = [ROOT / "consumequeue" / "T" / str(queue_id) for queue_id in range(2)]
    first = f"{0:020d}"
    with unremovable(rig, queues[0] / first):
        assert store.cleaner.clean(at_any_hour=True) > 0
    begin = store.min_log_offset
    for queue_id in range(2):
        low = store.queue_min("T", queue_id)
        (at, _, _), (before, _, _) = (store.queue_entries("T", queue_id, n, 1)[0] for n in (low, low - 1))
        assert before < begin <= at
    assert [rig.disk.exists(path / first) for path in queues] == [True, False]
    kept = [bodies(store, queue_id=queue_id) for queue_id in range(2)]
    store.cleaner.cut_tables()
    assert not rig.disk.exists(queues[0] / first)
    await store.close()
    store = await rig.open()
    assert [bodies(store, queue_id=queue_id) for queue_id in range(2)] == kept
    await store.close()


async def test_a_topic_made_again_beside_a_file_that_could_not_be_deleted_has_its_own_only() -> None:
    """Otherwise the queue would have a gap, and the store would not open."""
    rig = Rig(commit_log_file_bytes=1024, consume_queue_file_bytes=60)
    store = await rig.open()
    rig.put(store, *(record(b"x" * 200) for _ in range(30)))
    await rig.clock.pass_time(61)
    rig.clock._start_ms += 7 * 24 * HOUR_MS
    assert store.cleaner.clean(at_any_hour=True) > 0
    directory = ROOT / "consumequeue" / "T" / "0"
    first = directory / rig.disk.list(directory)[0]
    assert first.name > f"{0:020d}"
    with unremovable(rig, first):
        await store.deletions.drop(["T"])
    assert first.name in rig.disk.list(directory)
    rig.put(store, record(b"again"))
    await rig.clock.pass_time(61)
    assert rig.disk.list(directory) == [f"{0:020d}"]
    await store.close()
    store = await rig.open()
    assert bodies(store) == [b"again"]
    await store.close()


async def test_a_queue_file_that_can_never_be_deleted_stops_no_sends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries of its queue stay in memory, are read from there, and are rebuilt after a restart."""
    rig = Rig(commit_log_file_bytes=1024, consume_queue_file_bytes=60)
    store = await rig.open()
    rig.put(store, *(record(b"x" * 200) for _ in range(30)))
    await rig.clock.pass_time(61)
    first = ROOT / "consumequeue" / "T" / "0" / f"{0:020d}"
    with unremovable(rig, first):
        await store.deletions.drop(["T"])
        for n in range(3):
            rig.put(store, record(b"again%d" % n), record(b"other%d" % n, topic="U"))
            await rig.clock.pass_time(61)
        assert store.facts().refusal is None
        again = [b"again0", b"again1", b"again2"]
        assert bodies(store) == again
        told = [line.message for line in caplog.records if line.message.startswith("queue_")]
        assert told == [events.QUEUE_FILES_NOT_DELETED] * 2  # by the deletion, and by the first write
        monkeypatch.setattr(dispatcher, "UNWRITTEN_BYTES_MAX", 40)
        await rig.clock.pass_time(1.1)
        assert "queue files cannot be written" in str(store.facts().refusal)
        monkeypatch.setattr(dispatcher, "UNWRITTEN_BYTES_MAX", 60)
        await rig.clock.pass_time(1.1)
        assert store.facts().refusal is None
    await rig.clock.pass_time(1.1)
    assert rig.disk.list(first.parent) == [first.name]
    await store.close()
    store = await rig.open()
    assert bodies(store) == again
    await store.close()
