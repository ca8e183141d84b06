"""The end of a log that its master does not have is cut for good (spec controller 4.6, 10.9)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.store.store_rig import ROOT, Rig, bodies, heal_disturbed, options, record

from sim.memory import MemoryDisk, NoFault
from tandemmq.errors import Corrupt, LogDiverged, ServiceNotAvailable, StoreError, TandemError
from tandemmq.replication.core.epochs import EpochEntry, EpochList
from tandemmq.store import BrokerRole, FlushMode, MessageStore, PutStatus
from tandemmq.store.retention import HOUR_MS
from tandemmq.store.scrub import BLOCK_BYTES, FIRST_DELAY_S
from tandemmq.store.truncation import encode_terms, keep_tail
from tandemmq.units import MIB

BEFORE = EpochList((EpochEntry(1, 0), EpochEntry(2, 400)), {EpochEntry(1, 0): 7, EpochEntry(2, 400): 8})
AFTER = EpochList((EpochEntry(1, 0), EpochEntry(3, 300)), {EpochEntry(1, 0): 7, EpochEntry(3, 300): 9})
KEPT, CUT = 3, 40
"""The records before and after the cut; those after reach into a second and a third file."""


class TermRig(Rig):
    """A rig whose store has an elected master."""

    async def open(self, **changes: Any) -> MessageStore:
        return await MessageStore.open(
            options(**changes), disk=self.disk, clock=self.clock, on_fatal=self.fatal.append, has_terms=True
        )


class Died(BaseException):
    """Raised where the process ends."""


class DiesAt(NoFault):
    """A disk that allows a number of operations, then kills the process."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.count = 0

    def _step(self) -> None:
        self.count += 1
        if self.count > self.left:
            raise Died

    def on_create(self, path: Path, size: int) -> None:
        self._step()

    def on_write(self, path: Path, offset: int, size: int) -> int:
        self._step()
        return size

    def on_sync(self, path: Path) -> None:
        self._step()


async def open_deposed(rig: Rig) -> tuple[MessageStore, int]:
    """Returns a slave's store that led term 2 before, and the point where its master's log diverges."""
    store = await rig.open(role=BrokerRole.ASYNC_MASTER)
    rig.put(store, *(record(b"kept %d" % n, keys=f"k{n}") for n in range(KEPT)))
    point = store.max_log_offset
    rig.put(store, *(record(b"cut %d" % n + b"x" * 150, keys=f"c{n}") for n in range(CUT)))
    await store.terms.save_epochs(BEFORE)
    store.become(BrokerRole.SLAVE)
    return store, point


async def check_cut(rig: Rig, point: int) -> None:
    """Checks that the next run has exactly the kept part, and continues from there."""
    store = await rig.open(role=BrokerRole.SLAVE)
    assert store.max_log_offset == point
    assert store.queue_max("T", 0) == KEPT
    assert bodies(store) == [b"kept %d" % n for n in range(KEPT)]
    assert store.query_keys("T", "c1", 9, 0, 2**62) == []
    assert store.terms.epochs == AFTER
    assert not rig.disk.exists(ROOT / "truncate.pending")
    for name in rig.disk.list(ROOT / "commitlog"):
        data = rig.disk.read_bytes(ROOT / "commitlog" / name)
        assert not any(data[max(0, point - int(name)) :]), name
    [copy] = rig.disk.list(ROOT / "divergent")
    assert copy.startswith(f"1-{point}-")
    assert b"cut 39" in rig.disk.read_bytes(ROOT / "divergent" / copy)
    store.become(BrokerRole.ASYNC_MASTER)
    rig.put(store, record(b"new"))
    assert bodies(store)[-1] == b"new"
    await store.close()
    rig.power_cut()
    store = await rig.open(role=BrokerRole.SLAVE)
    assert bodies(store) == [*(b"kept %d" % n for n in range(KEPT)), b"new"]
    await store.close()


async def test_copies_of_what_was_cut_are_bounded() -> None:
    directory, disk = Path("/d"), MemoryDisk()
    disk.make_dirs(directory)

    def keep(epoch: int, size: int, bytes_max: int) -> list[str]:
        data = bytes(range(size))
        keep_tail(
            [data[:3], data[3:]], 10, size, epoch=epoch, directory=directory, bytes_max=bytes_max, disk=disk
        )
        return sorted(disk.list(directory))

    assert keep(1, 40, 100) == ["1-10-50"]
    assert keep(2, 60, 100) == ["1-10-50", "2-10-70"]
    assert keep(3, 50, 100) == ["3-10-60"], "the oldest go first"
    assert keep(4, 120, 100) == ["4-10-130"]
    assert disk.read_bytes(directory / "4-10-130") == bytes(range(100)), "its end is left out"
    assert keep(5, 20, 0) == ["4-10-130"], "nothing is kept"
    rig = TermRig()
    store = await rig.open(role=BrokerRole.ASYNC_MASTER, divergent_bytes_max=50)
    rig.put(store, record(b"kept"))
    point = store.max_log_offset
    rig.put(store, record(b"cut"), record(b"cut"))
    await store.terms.save_epochs(BEFORE)
    store.become(BrokerRole.SLAVE)
    await store.terms.cut(point, AFTER, "a newer term")
    [copy] = rig.disk.list(ROOT / "divergent")
    assert len(rig.disk.read_bytes(ROOT / "divergent" / copy)) == 50
    await store.close()


async def count_steps() -> int:
    rig = TermRig()
    store, point = await open_deposed(rig)
    await store.sync()
    fault = rig.disk.fault = DiesAt(10**9)
    await store.terms.cut(point, AFTER, "a newer term")
    rig.disk.fault = NoFault()
    await store.close()
    return fault.count


async def test_the_end_is_cut_at_once_and_stays_cut() -> None:
    rig = TermRig()
    store, point = await open_deposed(rig)
    told: list[int] = []
    store.terms.on_cut = lambda: told.append(store.queue_max("T", 0))
    store.terms.raise_confirm_offset(point)
    await store.terms.cut(point, AFTER, "a newer term")
    assert told == [KEPT]
    assert store.terms.confirm_offset == point
    marks = (store.appended, store.flushed, store.confirmed, store.dispatched)
    assert {mark.value for mark in marks} == {point}
    assert bodies(store) == [b"kept %d" % n for n in range(KEPT)]
    await store.close()
    await check_cut(rig, point)


async def test_no_record_of_the_next_master_need_end_where_one_of_the_cut_part_did() -> None:
    """The future durable mark, and the end that the tables confirm, are lowered with the log."""
    rig = TermRig()
    store, point = await open_deposed(rig)
    flusher = store.table_flusher
    assert await flusher.flush(is_thorough=True)
    assert min(flusher.tables_end, flusher._whole_end) > point
    await store.terms.cut(point, AFTER, "a newer term")
    assert max(flusher.tables_end, flusher._whole_end) <= point
    await store.close()
    await check_cut(rig, point)


@pytest.mark.parametrize("dies", ["kill", "power cut"])
async def test_whenever_it_is_interrupted_nothing_comes_back(dies: str) -> None:
    steps = await count_steps()
    assert steps > 15
    undone = 0
    for step in range(steps):
        rig = TermRig()
        store, point = await open_deposed(rig)
        end = store.max_log_offset
        await store.sync()
        rig.disk.fault = DiesAt(step)
        with pytest.raises((Died, TandemError)):  # a task of the store may be the first to fail
            await store.terms.cut(point, AFTER, "a newer term")
        rig.disk.fault = NoFault()
        rig.stores.append(store)
        if dies == "kill":
            rig.kill()
        else:
            rig.power_cut()
        if not rig.disk.exists(ROOT / "truncate.pending"):
            assert (await rig.open(role=BrokerRole.SLAVE)).max_log_offset == end, step
            undone += 1
            continue
        rig.disk.fault = again = DiesAt(step // 2)  # and the run that repeats it may die, too
        try:
            await (await rig.open(role=BrokerRole.SLAVE)).close()
        except (Died, StoreError):
            rig.disk.fault = NoFault()
            rig.power_cut()
        rig.disk.fault = NoFault()
        assert again.count
        await check_cut(rig, point)
    assert steps - undone > 15


async def test_a_mark_whose_removal_does_not_last_cuts_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may bring back a removed file; later records must not be cut with it."""
    rig = TermRig()
    store, point = await open_deposed(rig)
    remove = rig.disk.remove
    mark = ROOT / "truncate.pending"
    monkeypatch.setattr(rig.disk, "remove", lambda path: None if path == mark else remove(path))
    await store.terms.cut(point, AFTER, "a newer term")
    assert rig.disk.exists(mark)
    store.become(BrokerRole.ASYNC_MASTER)
    rig.put(store, record(b"stored since"))
    before = bodies(store)
    await store.sync()
    rig.disk.power_cut()
    store = await rig.open(role=BrokerRole.SLAVE)
    assert bodies(store) == before
    await store.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"point": -1},
        {"point": "4200"},
        {"point": None},
        {"point": 4095},
        {"point": 10**6},
        {"point": 10**30},
        {"epochs": "1\n"},
        {"epochs": "\u00e9"},
        {"epoch": -1},
    ],
)
async def test_a_mark_that_makes_no_sense_is_named_and_cuts_nothing(wrong: dict[str, object]) -> None:
    rig = TermRig()
    store, _ = await open_deposed(rig)
    await store.close()
    log, mark = ROOT / "commitlog", ROOT / "truncate.pending"
    rig.disk.remove(log / ("0" * 20))  # it has expired: the log begins at 4096
    right = {"point": 4096, "epochs": encode_terms(AFTER), "epoch": 1, "reason": "test"}
    rig.disk.write_atomically(mark, msgspec.json.encode(right | wrong))
    before = {name: rig.disk.read_bytes(log / name) for name in rig.disk.list(log)}
    with pytest.raises(Corrupt, match=re.escape(str(mark))):
        await rig.open(role=BrokerRole.SLAVE)
    assert {name: rig.disk.read_bytes(log / name) for name in rig.disk.list(log)} == before
    rig.disk.write_atomically(mark, msgspec.json.encode(right))
    store = await rig.open(role=BrokerRole.SLAVE)
    assert (store.min_log_offset, store.max_log_offset) == (4096, 4096)
    await store.close()


async def test_only_where_a_record_begins_and_only_on_a_slave() -> None:
    rig = TermRig()
    store, point = await open_deposed(rig)
    before = store.max_log_offset
    for wrong in (point - 1, point + 4, before, before + 100):
        with pytest.raises(LogDiverged):
            await store.terms.cut(wrong, AFTER, "")
    store.become(BrokerRole.ASYNC_MASTER)
    with pytest.raises(TandemError) as refused:
        await store.terms.cut(point, AFTER, "")
    assert isinstance(refused.value, ServiceNotAvailable)
    assert store.max_log_offset == before
    assert store.terms.epochs == BEFORE
    await store.close()


async def test_a_full_disk_costs_the_copy_and_not_the_cut() -> None:
    class Full(NoFault):
        def on_create(self, path: Path, size: int) -> None:
            if path.parent.name == "divergent":
                raise OSError(28, "no room")

    rig = TermRig()
    store, point = await open_deposed(rig)
    rig.disk.fault = Full()
    await store.terms.cut(point, AFTER, "a newer term")
    assert store.max_log_offset == point
    await store.close()


@pytest.mark.parametrize("takes_none", ["truncate.pending", "consumequeue"])
async def test_a_disk_that_is_full_refuses_a_cut_before_anything_is_changed(takes_none: str) -> None:
    """The copy of the tail may have filled it."""

    class Full(NoFault):
        def on_write(self, path: Path, offset: int, size: int) -> int:
            is_full = takes_none in path.parts and (takes_none == "consumequeue" or "divergent" in made)
            return 0 if is_full else size

        def on_create(self, path: Path, size: int) -> None:
            made.add(path.parent.name)

    made: set[str] = set()
    rig = TermRig()
    store, point = await open_deposed(rig)
    end, before = store.max_log_offset, bodies(store)
    rig.disk.fault = Full()
    with pytest.raises(ServiceNotAvailable):
        await store.terms.cut(point, AFTER, "a newer term")
    rig.disk.fault = NoFault()
    assert (store.max_log_offset, store.terms.epochs, bodies(store)) == (end, BEFORE, before)
    assert not rig.disk.exists(ROOT / "truncate.pending")
    assert rig.fatal == []
    await store.terms.cut(point, AFTER, "a newer term")
    await store.close()
    await check_cut(rig, point)


async def test_a_copy_that_leaves_no_room_for_a_cut_makes_room_and_costs_no_other_copy() -> None:
    class Full(NoFault):
        def on_write(self, path: Path, offset: int, size: int) -> int:
            has_copy = any(name.startswith("1-") for name in rig.disk.list(directory))
            return 0 if path.name == "truncate.pending" and has_copy else size

    directory = ROOT / "divergent"
    rig = TermRig()
    store, point = await open_deposed(rig)
    size = store.max_log_offset - point
    rig.disk.make_dirs(directory)
    rig.disk.create(directory / "0-10-20", store.options.divergent_bytes_max - size).close()
    rig.disk.fault = Full()
    await store.terms.cut(point, AFTER, "a newer term")
    assert rig.disk.list(directory) == ["0-10-20"]
    rig.disk.fault = NoFault()
    await store.close()
    assert (await rig.open()).max_log_offset == point


async def test_a_copy_that_is_made_again_or_breaks_off_costs_no_other_copy(tmp_path: Path) -> None:
    class Breaks(NoFault):
        def on_write(self, path: Path, offset: int, size: int) -> int:
            return size if offset == 0 else 0

    disk = MemoryDisk()

    def keep(epoch: int) -> None:
        data = bytes(40)
        keep_tail([data[:3], data[3:]], 10, 40, epoch=epoch, directory=tmp_path, bytes_max=100, disk=disk)

    keep(1)
    keep(2)
    keep(2)
    assert disk.list(tmp_path) == ["1-10-50", "2-10-50"]
    disk.fault = Breaks()
    keep(2)
    assert disk.list(tmp_path) == ["1-10-50"]


async def test_a_log_from_before_terms_gets_a_list_and_confirms_nothing() -> None:
    rig = TermRig()
    store = await Rig.open(rig)
    rig.put(store, record(b"old"))
    await store.close()
    store = await rig.open()
    assert store.terms.epochs == EpochList((EpochEntry(0, 0),))
    assert bodies(store) == [b"old"]
    await store.close()


async def test_truncation_survives_cancellation_of_its_caller() -> None:
    """The broker is elected during the cut: records it accepted then would be in the range being cut."""
    for turn in range(30):
        rig = TermRig()
        store, point = await open_deposed(rig)
        end = store.max_log_offset
        cutting = asyncio.create_task(store.terms.cut(point, AFTER, "a newer term"))
        for _ in range(turn):
            await asyncio.sleep(0)
        cutting.cancel()
        await asyncio.wait([cutting])
        is_cut = store.max_log_offset == point
        assert is_cut or store.max_log_offset == end
        store.become(BrokerRole.ASYNC_MASTER)
        rig.put(store, record(b"elected"))
        before = bodies(store)
        assert before[-1] == b"elected"
        await store.close()
        store = await rig.open(role=BrokerRole.SLAVE)
        assert bodies(store) == before, turn
        assert store.terms.epochs == (AFTER if is_cut else BEFORE)
        await store.close()


@pytest.mark.parametrize("scan_name", ["_scan_file", "_find_valid"])
async def test_what_is_cut_while_it_is_looked_at_is_no_damage(scan_name: str) -> None:
    """The scrubber reads off the loop; the cut happens meanwhile, in the same file."""
    rig = TermRig()
    store = await rig.open(role=BrokerRole.ASYNC_MASTER, commit_log_file_bytes=4 * MIB)
    rig.put(store, record(b"kept"))
    point = store.max_log_offset
    rig.put(store, *(record(b"x" * 60_000) for _ in range(40)))
    end = store.max_log_offset
    store.become(BrokerRole.SLAVE)
    await rig.clock.pass_time(1)
    if scan_name == "_find_valid":
        rig.disk.open(ROOT / "commitlog" / "00000000000000000000").pwrite(2 * BLOCK_BYTES, (bytes(100_000),))
    offload = rig.disk.offload
    is_cut = False

    async def cut_first(fn: Callable[..., object], *args: Any) -> object:
        nonlocal is_cut
        is_behind = getattr(fn, "__name__", "") == scan_name and args[3] > BLOCK_BYTES // 2
        if is_behind and not is_cut:
            is_cut = True
            await store.terms.cut(point, EpochList(), "its master does not have it")
        return await offload(fn, *args)

    rig.disk.offload = cut_first  # type: ignore[method-assign,assignment]
    await store.scrub(0, end)
    assert is_cut
    assert rig.fatal == []
    assert store.damaged_ranges == ()
    assert store.max_log_offset == point
    assert bodies(store) == [b"kept"]
    await store.close()


async def test_damage_that_is_cut_off_is_none_of_what_comes_in_its_place() -> None:
    rig = TermRig()
    store = await rig.open(role=BrokerRole.ASYNC_MASTER)
    rig.put(store, *(record(b"kept %d" % n) for n in range(3)))
    point = store.max_log_offset
    rig.put(store, *(record(b"cut %d" % n) for n in range(3)))
    await rig.clock.pass_time(1)
    rig.disk.open(ROOT / "commitlog" / "00000000000000000000").pwrite(point + 4, (b"####",))
    await store.scrub(0, store.max_log_offset)
    ((begin, end, _),) = store.damaged_ranges
    assert begin == point < end < store.max_log_offset
    store.become(BrokerRole.SLAVE)
    with pytest.raises(LogDiverged):
        await store.terms.cut(point, EpochList(), "its master does not have it")
    before = store.queue_entries("T", 0, 0, 3)[-1][0]
    await store.terms.cut(before, EpochList(), "its master does not have it")
    assert store.damaged_ranges == ()
    store.become(BrokerRole.ASYNC_MASTER)
    rig.put(store, *(record(b"new %d" % n) for n in range(3)))
    assert bodies(store) == [b"kept 0", b"kept 1", b"new 0", b"new 1", b"new 2"]
    await store.close()


@pytest.mark.parametrize("damaged", [(5, 6), (8,), (3, 5, 8)])
async def test_a_cut_takes_what_stands_for_damaged_messages_along(damaged: tuple[int, ...]) -> None:
    """Their fillers would block the new master's messages, and queue offsets that were kept."""
    new = TermRig()
    master = await new.open(role=BrokerRole.ASYNC_MASTER)
    new.put(master, *(record(b"kept %d" % n) for n in range(3)))
    point = master.max_log_offset
    new.put(master, *(record(b"new %d" % n) for n in range(4)))
    rig = TermRig()
    old = await rig.open(role=BrokerRole.ASYNC_MASTER)
    rig.put(old, *(record(b"kept %d" % n) for n in range(3)), *(record(b"cut %d" % n) for n in range(7)))
    await old.terms.save_epochs(BEFORE)
    places = [log_offset for log_offset, _, _ in old.queue_entries("T", 0, 0, 10)]
    await old.close()
    rig.kill()
    queue = ROOT / "consumequeue" / "T" / "0"
    for name in rig.disk.list(queue):
        rig.disk.remove(queue / name)  # so that it is rebuilt, with fillers
    rig.disk.remove(queue)
    rig.disk.remove(queue.parent)
    for number in damaged:
        rig.disk.open(ROOT / "commitlog" / f"{0:020d}").pwrite(places[number] + 4, (b"####",))
    slave = await rig.open(role=BrokerRole.SLAVE)
    assert slave.damaged_ranges
    await slave.terms.cut(places[2] if 3 in damaged else point, AFTER, "a newer term")
    begin = slave.max_log_offset
    slave.append_raw(begin, bytes(master.log.valid_view(begin, 4096)))
    await rig.clock.pass_time(1)
    assert bodies(slave) == bodies(master)
    assert slave.queue_min("T", 0) == 0
    await slave.close()
    slave = await rig.open(role=BrokerRole.SLAVE)
    assert bodies(slave) == bodies(master)
    await slave.close()
    await master.close()


async def test_a_file_that_is_made_ahead_is_waited_for_before_a_cut() -> None:
    """Otherwise the file would follow a gap, and no start opens such a log."""
    rig = TermRig()
    store = await rig.open(role=BrokerRole.ASYNC_MASTER, warm_segments=True)
    rig.put(store, record(b"kept"))
    point = store.max_log_offset
    offload = rig.disk.offload
    is_made = asyncio.Event()

    async def make_slowly(fn: Callable[..., object], *args: Any) -> object:
        if getattr(fn, "__name__", "") == "_make" and args[0].name.endswith("8192"):
            await is_made.wait()
        return await offload(fn, *args)

    rig.disk.offload = make_slowly  # type: ignore[method-assign,assignment]
    while store.max_log_offset < 8000:
        rig.put(store, record(b"cut"))
        await rig.clock.pass_time(0)
    store.become(BrokerRole.SLAVE)
    cut = asyncio.ensure_future(store.terms.cut(point, EpochList(), "its master does not have it"))
    await rig.clock.pass_time(1)
    is_made.set()
    await cut
    await rig.clock.pass_time(1)
    assert rig.disk.list(ROOT / "commitlog") == ["00000000000000000000"]
    assert rig.fatal == []
    await store.close()
    store = await rig.open(role=BrokerRole.SLAVE)
    assert bodies(store) == [b"kept"]
    await store.close()


@pytest.mark.parametrize("turn", range(5))
async def test_what_is_cut_while_it_is_healed_stays_cut(turn: int) -> None:
    rig = TermRig()
    store = await rig.open(role=BrokerRole.ASYNC_MASTER)
    rig.put(store, *(record(b"kept %d" % n) for n in range(3)))
    point = store.max_log_offset
    rig.put(store, *(record(b"cut %d" % n) for n in range(3)))
    await rig.clock.pass_time(1)
    at = store.queue_entries("T", 0, 4, 1)[0][0]
    file = rig.disk.open(ROOT / "commitlog" / "00000000000000000000")
    sound = file.pread(0, file.size)
    file.pwrite(at + 4, (b"####",))
    await store.scrub(0, store.max_log_offset)
    store.become(BrokerRole.SLAVE)
    cuts: list[asyncio.Task[None]] = []

    async def cut_meanwhile() -> None:
        cuts.append(asyncio.create_task(store.terms.cut(point, EpochList(), "its master does not have it")))
        for _ in range(99):
            await asyncio.sleep(0)

    assert await heal_disturbed(rig, store, sound, turn, cut_meanwhile) == 0
    assert len(cuts) == (turn < 4), "the heal takes so many turns"
    await asyncio.gather(*cuts)
    assert store.damaged_ranges == ()
    assert any(file.pread(point, file.size - point)) == (not cuts)
    await store.close()


@pytest.mark.parametrize("mode", list(FlushMode))
async def test_a_flush_that_is_under_way_flushes_nothing_of_what_is_cut(mode: FlushMode) -> None:
    rig = TermRig()
    store = await rig.open(role=BrokerRole.ASYNC_MASTER, flush_mode=mode)
    rig.put(store, record(b"kept"))
    point = store.max_log_offset
    rig.put(store, record(b"x" * 500))
    store.become(BrokerRole.SLAVE)
    offload = rig.disk.offload
    is_begun, is_synced = asyncio.Event(), asyncio.Event()

    async def sync_slowly(fn: Callable[..., object], *args: Any) -> object:
        if getattr(fn, "__name__", "") == "_sync_all" and not is_begun.is_set():
            is_begun.set()
            await is_synced.wait()
        return await offload(fn, *args)

    rig.disk.offload = sync_slowly  # type: ignore[method-assign,assignment]
    early = asyncio.create_task(store.sync())
    await is_begun.wait()
    await store.terms.cut(point, EpochList(), "its master does not have it")
    is_synced.set()
    await early
    assert store.flushed.value == store.confirmed.value == point
    store.become(BrokerRole.ASYNC_MASTER)
    rig.put(store, record(b"new"))
    await store.sync()
    assert store.flushed.value == store.max_log_offset
    await store.close()
    assert rig.fatal == []


@pytest.mark.parametrize("scan_name", ["_scan_file", "_find_valid", "between"])
async def test_scrubber_accepts_a_log_that_was_truncated_and_grew_again(scan_name: str) -> None:
    """The scrubber continues in a log that was cut and has grown beyond its old end meanwhile."""
    rig, other_rig = TermRig(), TermRig()
    settings = {"role": BrokerRole.ASYNC_MASTER, "commit_log_file_bytes": 4 * MIB}
    store = await rig.open(**settings, scrub_bytes_per_second=MIB // 10)
    other = await other_rig.open(**settings)
    for one, its_rig in ((store, rig), (other, other_rig)):
        its_rig.put(one, record(b"kept"))
    point = store.max_log_offset
    rig.put(store, *(record(b"x" * 60_000) for _ in range(40)))
    other_rig.put(other, *(record(b"y" * 100_000) for _ in range(30)))
    end = store.max_log_offset
    store.become(BrokerRole.SLAVE)
    await rig.clock.pass_time(1)
    if scan_name == "_find_valid":
        rig.disk.open(ROOT / "commitlog" / "00000000000000000000").pwrite(2 * BLOCK_BYTES, (bytes(100_000),))
    offload = rig.disk.offload
    is_cut = False

    async def cut_first(fn: Callable[..., object], *args: Any) -> object:
        nonlocal is_cut
        if getattr(fn, "__name__", "") == scan_name and args[3] > BLOCK_BYTES and not is_cut:
            is_cut = True
            await follow()
        return await offload(fn, *args)

    async def follow() -> None:
        await store.terms.cut(point, EpochList(), "its master does not have it")
        store.append_raw(point, other.log.valid_view(point, 4 * MIB))
        await store.sync()

    rig.disk.offload = cut_first  # type: ignore[method-assign,assignment]
    if scan_name == "between":
        await rig.clock.pass_time(FIRST_DELAY_S)
        read_bytes = store.recorder.scrubbed_bytes
        assert 0 < read_bytes < end
        await follow()
        await rig.clock.pass_time(60)
        assert store.recorder.scrubbed_bytes - read_bytes > store.max_log_offset - BLOCK_BYTES
    else:
        await store.scrub(0, end)
        assert is_cut
    assert store.max_log_offset > end
    assert store.damaged_ranges == ()
    await store.close()
    await other.close()


async def test_readers_of_a_slave_that_leads_see_no_more_than_is_confirmed() -> None:
    """The confirmed part may end within a partial record, which the slave drops."""
    rig, other_rig = TermRig(), Rig()
    other = await other_rig.open()
    other_rig.put(other, record(b"one"), record(b"two"))
    store = await rig.open(role=BrokerRole.SLAVE)
    store.terms.limit_reads()
    store.append_raw(0, bytes(other.log.valid_view(0, other.max_log_offset))[:-20])
    store.terms.raise_confirm_offset(other.max_log_offset)
    store.become(BrokerRole.ASYNC_MASTER)
    rig.put(store, record(b"new"))
    assert bodies(store) == [b"one"]
    await store.close()
    await other.close()


def record_of_file_begin(store: MessageStore, number: int) -> int:
    """Returns the offset at which the file of this number begins, and a record with it."""
    base = number * store.options.commit_log_file_bytes
    assert store.read_record(base) is not None
    return base


async def expiring_slave(rig: Rig) -> MessageStore:
    """Returns a slave's store of several files, all but the last of which may be deleted."""
    settings = {"commit_log_file_bytes": 1024, "consume_queue_file_bytes": 60}
    store = await rig.open(role=BrokerRole.ASYNC_MASTER, **settings)
    rig.put(store, *(record(b"%03d" % n + b"x" * 200, keys=f"k{n}") for n in range(20)))
    await store.terms.save_epochs(BEFORE)
    store.become(BrokerRole.SLAVE)
    await store.sync()
    await store.table_flusher.flush_soon()
    rig.clock._start_ms += 30 * 24 * HOUR_MS
    return store


@pytest.mark.parametrize("file_number", [0, 1])
async def test_no_file_expires_while_the_log_is_cut(file_number: int) -> None:
    """The cut may be at the beginning of a file due for deletion; the next round is soon enough."""
    rig = TermRig()
    store = await expiring_slave(rig)
    point = record_of_file_begin(store, file_number)
    offload = rig.disk.offload
    deleted: list[int] = []

    async def clean_first(fn: Callable[..., object], *args: Any) -> object:
        deleted.append(store.cleaner.clean(at_any_hour=True))
        await rig.clock.pass_time(61)
        deleted.append(store.cleaner.clean(at_any_hour=True))
        return await offload(fn, *args)

    rig.disk.offload = clean_first  # type: ignore[method-assign,assignment]
    await store.terms.cut(point, AFTER, "a newer term")
    rig.disk.offload = offload  # type: ignore[method-assign]
    assert deleted
    assert not any(deleted)
    assert (store.min_log_offset, store.max_log_offset) == (0, point)
    assert rig.fatal == []
    assert not rig.disk.exists(ROOT / "truncate.pending")
    await store.close()


async def test_files_expire_again_when_a_cut_is_over() -> None:
    rig = TermRig()
    store = await expiring_slave(rig)
    point = record_of_file_begin(store, 3) + len(store.read_record(3 * 1024) or b"")
    await store.terms.cut(point, AFTER, "a newer term")
    assert store.cleaner.clean(at_any_hour=True) == 3
    assert (store.min_log_offset, store.max_log_offset) == (3 * 1024, point)
    await store.close()


@pytest.mark.parametrize("turn", range(12))
async def test_no_keys_are_cut_while_they_are_written(turn: int) -> None:
    """A round over the tables begins during the cut, and writes the key index off the loop."""
    rig = TermRig()
    store, point = await open_deposed(rig)
    await store.sync()
    indexes = store.indexes
    assert indexes is not None
    offload = rig.disk.offload
    turns_left = turn
    rounds: list[asyncio.Task[None]] = []

    async def write_tables(fn: Callable[..., object], *args: Any) -> object:
        nonlocal turns_left
        turns_left -= 1
        if turns_left == -1:
            for index in indexes._files:
                indexes._add_unsynced(index)
            rounds.append(asyncio.create_task(store.table_flusher.flush_soon()))
        result = await offload(fn, *args)
        if getattr(fn, "__name__", "") == "write_and_sync":
            for _ in range(20):
                await asyncio.sleep(0)
        return result

    rig.disk.offload = write_tables  # type: ignore[method-assign,assignment]
    await store.terms.cut(point, AFTER, "a newer term")
    assert rounds
    await asyncio.gather(*rounds)
    rig.disk.offload = offload  # type: ignore[method-assign]
    assert rig.fatal == []
    assert store.query_keys("T", "c1", 9, 0, 2**62) == []
    await store.close()
    await check_cut(rig, point)


async def test_what_is_copied_in_the_place_of_damage_that_was_cut_is_dispatched() -> None:
    """A chunk of the copy may end exactly where the damage began."""
    rig, other_rig = TermRig(), Rig()
    other = await other_rig.open()
    other_rig.put(other, *(record(b"%d" % n) for n in range(4)))
    size = other.max_log_offset // 4
    sound = bytes(other.log.valid_view(0, 4 * size))
    store = await rig.open(role=BrokerRole.SLAVE)
    store.append_raw(0, sound[: 2 * size])
    store.append_raw(2 * size, b"#" * size)
    assert store.dispatched.value == 2 * size < store.max_log_offset
    await store.terms.cut(size, EpochList(), "its master does not have it")
    for begin in (size, 2 * size, 3 * size):
        store.append_raw(begin, sound[begin : begin + size])
        assert store.dispatched.value == begin + size
    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    await store.close()
    await other.close()


async def test_a_cut_waits_until_the_zeros_of_a_failed_write_are_on_disk() -> None:
    """The zeros are in a file that the cut removes; a power cut may bring that back."""
    second = "00000000000000004096"

    class Full(NoFault):
        def on_write(self, path: Path, offset: int, size: int) -> int:
            return 0 if path.name == second else size

    rig = TermRig()
    store = await rig.open(role=BrokerRole.ASYNC_MASTER)
    rig.put(store, record(b"kept"))
    point = store.max_log_offset
    while store.max_log_offset < 3500:
        rig.put(store, record(b"x" * 300))
    rig.disk.fault = Full()
    assert rig.put(store, record(b"x" * 500)) == [PutStatus.UNKNOWN_ERROR]
    rig.disk.fault = NoFault()
    offload = rig.disk.offload
    is_synced = asyncio.Event()

    async def sync_slowly(fn: Callable[..., object], *args: Any) -> object:
        if getattr(fn, "__name__", "") == "_sync_all" and any(file.path.name == second for file in args[0]):
            await is_synced.wait()
        return await offload(fn, *args)

    rig.disk.offload = sync_slowly  # type: ignore[method-assign,assignment]
    store.become(BrokerRole.SLAVE)
    cut = asyncio.ensure_future(store.terms.cut(point, EpochList(), "its master does not have it"))
    await rig.clock.pass_time(1)
    assert rig.disk.exists(ROOT / "commitlog" / second)
    is_synced.set()
    await cut
    assert not rig.disk.exists(ROOT / "commitlog" / second)
    await store.close()
    assert rig.fatal == []
    assert not rig.disk.exists(ROOT / "abort")


async def test_a_log_that_is_cut_to_nothing_begins_where_it_began_after_a_clean_stop() -> None:
    """Its terms begin there, too."""
    rig, other_rig = TermRig(), Rig()
    other = await other_rig.open()
    while other.max_log_offset < 4096 + 200:
        other_rig.put(other, record(b"x" * 300))
    sound = bytes(other.log.valid_view(4096, 4096))
    store = await rig.open(role=BrokerRole.SLAVE)
    store.append_raw(4096, sound)
    terms = EpochList((EpochEntry(1, 4096),))
    await store.terms.cut(4096, terms, "its master does not have it")
    await store.close()
    store = await rig.open(role=BrokerRole.SLAVE)
    assert (store.min_log_offset, store.max_log_offset, store.terms.epochs) == (4096, 4096, terms)
    store.append_raw(4096, sound)
    assert store.dispatched.value == 4096 + len(sound)
    await store.close()
    await other.close()
