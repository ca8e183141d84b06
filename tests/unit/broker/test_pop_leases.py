"""The table of leases, and their records in the revive topic (spec semantics 14.4)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.memory import ManualClock, MemoryDisk, NoFault
from tandemmq.broker.durable import DutyTasks
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.lease_log import LeaseLog, is_stored
from tandemmq.broker.pop.leases import (
    REVIVE_GROUP,
    Finished,
    Lease,
    LeaseKey,
    LeaseRecords,
    Leases,
    NewLease,
    read_change,
)
from tandemmq.broker.pop.order_table import OrderTable
from tandemmq.broker.pop.service import Revive
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies.progress import Position
from tandemmq.protocol.properties import append_property
from tandemmq.protocol.record import NewRecord, Record, decode_record, encode_record
from tandemmq.store import MessageStore, PutStatus, StoreOptions


def make(
    start: int = 0, *, pop_time: int = 1_000, count: int = 3, invisible: int = 500, queue: int = 0
) -> Lease:
    return Lease(
        LeaseKey("T", "G", 0, start, pop_time),
        range(start, start + count),
        invisible_ms=invisible,
        revive_queue_id=queue,
        end_offset=start + count,
    )


def stored(new: NewRecord, offset: int = 7) -> Record:
    raw = encode_record(new, queue_offset=offset, log_offset=0, stored_at_ms=0, store_host=bytes(8))
    return decode_record(raw)


def test_a_lease_ends_once_and_only_while_it_is_open() -> None:
    leases = Leases()
    early, late = make(0), make(10, invisible=900)
    leases.add(early)
    leases.add(late)
    assert leases.next_end_ms() == 1_500
    assert leases.list_ended(1_499, 9) == []
    assert leases.list_ended(1_500, 9) == [early]
    assert leases.list_ended(1_500, 9) == []
    leases.put_back(early, 1_700)
    assert leases.list_ended(1_700, 9) == [early]
    assert leases.finish(late, [0, 1]) is False
    assert late.open_offsets() == [12]
    assert leases.finish(late, [2]) is True
    assert leases.list_ended(9_999, 9) == []
    assert len(leases) == 1


def test_the_oldest_check_point_of_a_queue_is_known_whatever_is_written_again() -> None:
    leases = Leases()
    first, second = make(0), make(10)
    for place, lease in enumerate((first, second)):
        leases.add(lease)
        leases.record_written(lease, place)
    assert leases.oldest_written(0) is first
    leases.record_written(first, 5)  # rolled
    assert leases.oldest_written(0) is second
    leases.record_written(first, 0)  # which was not stored
    assert leases.oldest_written(0) is first
    leases.drop(first)
    leases.drop(second)
    assert leases.oldest_written(0) is None


def test_the_table_is_bounded() -> None:
    leases = Leases(1)
    assert leases.has_room
    lease = make()
    leases.add(lease)
    assert not leases.has_room
    leases.drop(lease)
    assert leases.has_room


def test_a_message_that_was_moved_is_not_acknowledged() -> None:
    leases, lease = Leases(), make(0)
    leases.add(lease)
    for index in (0, 1):  # one after the other
        lease.mark_moved([index])
    assert leases.finish(lease, [0, 1, 2])
    assert [leases.is_acknowledged(lease.key, offset) for offset in range(3)] == [False, False, True]


def test_the_last_finished_leases_answer_repeated_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.broker.pop.leases.FINISHED_COUNT_MAX", 2)
    leases = Leases()
    finished = [make(start, count=1) for start in range(4)]
    for lease in finished:
        leases.add(lease)
        assert leases.finish(lease, [0])
    known = [leases.is_acknowledged(lease.key, lease.offsets[0]) for lease in finished]
    assert known == [False, False, True, True]


def test_pops_that_wait_for_room_hear_of_it_once_a_tenth_is_free() -> None:
    leases = Leases(20)
    heard: list[int] = []
    leases.on_room = lambda: heard.append(len(leases))
    many = [make(start) for start in range(0, 60, 3)]
    for lease in many:
        leases.add(lease)
    leases.drop(many.pop())
    assert heard == []  # no pop waits
    leases.add(make(100))
    leases.await_room()
    while len(leases):
        leases.drop(leases.all()[0])
    assert heard == [17]


def test_a_check_point_is_rocketmqs_json_with_its_tag_and_unique_key() -> None:
    records = LeaseRecords(cluster="C", broker_name="b")
    lease = Lease(
        LeaseKey("T", "G", 2, 10, 17), [10, 12], invisible_ms=60_000, revive_queue_id=3, end_offset=13
    )
    new = records.check_point(lease, moves_position=True, now_ms=17)
    assert (new.topic, new.queue_id) == ("rmq_sys_REVIVE_LOG_C", 3)
    record = stored(new)
    assert record.properties == {"TAGS": "ck", "UNIQ_KEY": "T@2@10@G@17@b@ck"}
    assert json.loads(record.body) == {
        "bm": 0, "bn": "b", "c": "G", "d": [0, 2], "it": 60_000, "n": 2, "pt": 17, "q": 2,
        "ro": 0, "rp": "0", "so": 10, "t": "T", "tandemEnd": 13,
    }  # fmt: skip
    change = read_change(record)
    assert isinstance(change, NewLease)
    assert (change.lease.key, change.lease.offsets, change.position) == (lease.key, (10, 12), 13)
    assert not change.is_late


def test_acks_name_their_check_point() -> None:
    records = LeaseRecords(cluster="C", broker_name="b")
    lease = make(10)
    one, two = records.ack(lease, [11], 0), records.ack(lease, [10, 12], 0)
    assert stored(one).properties == {"TAGS": "ack", "UNIQ_KEY": "T@0@11@G@1000@b@ack"}
    assert json.loads(stored(one).body)["ao"] == 11
    assert stored(two).tags == "bAck"
    assert read_change(stored(one)) == Finished(lease.key, [11])
    assert read_change(stored(two)) == Finished(lease.key, [10, 12])


def test_a_check_point_of_javas_gets_time_for_its_acks() -> None:
    """It comes through the timer; without a list of distances the offsets are consecutive."""
    body = {"bm": -1 & 0b101, "c": "G", "it": 500, "n": 3, "pt": 1_000, "q": 0, "ro": 0, "so": 4, "t": "T"}
    new = NewRecord(
        topic="rmq_sys_REVIVE_LOG_C",
        queue_id=1,
        body=json.dumps(body).encode(),
        properties=b"TAGS\x01ck\x02TIMER_OUT_MS\x01500\x02",
        born_at_ms=0,
        born_host=bytes(8),
    )
    change = read_change(stored(new))
    assert isinstance(change, NewLease)
    assert change.is_late
    assert change.position is None
    assert change.lease.open_offsets() == [5]
    assert change.lease.ends_at_ms == 4_500


def test_positions_and_what_is_unknown() -> None:
    records = LeaseRecords(cluster="C", broker_name="b")
    new = records.position("T", "G", 1, 9, revive_queue_id=2, now_ms=0)
    assert read_change(stored(new)) == Position(topic="T", group="G", queue_id=1, offset=9)
    new.properties = b"TAGS\x01other\x02"
    assert read_change(stored(new)) is None
    new.properties, new.body = b"TAGS\x01ck\x02", b"no json"
    assert read_change(stored(new)) is None
    new.body = b'{"n":0}'
    assert read_change(stored(new)) is None


def make_core(clock: ManualClock, store: MessageStore, offsets: OffsetTable) -> Any:
    """Returns the parts of a core that leases need."""
    return SimpleNamespace(
        options=BrokerOptions(cluster_name="c", broker_name="b", revive_queue_count=1),
        store=store,
        offsets=offsets,
        topics=TopicTable(),
        groups=GroupTable(),
        tables=SimpleNamespace(orders=OrderTable()),
        clock=clock,
    )


def test_a_check_point_tells_which_messages_were_moved() -> None:
    """Only if some were; RocketMQ's broker ignores the key."""
    records = LeaseRecords(cluster="C", broker_name="b")
    lease = make()
    assert "tandemMoved" not in json.loads(records.check_point(lease, moves_position=True, now_ms=0).body)
    lease.bits, lease.moved_bits = 0b011, 0b010
    change = read_change(stored(records.check_point(lease, moves_position=False, now_ms=0)))
    assert isinstance(change, NewLease)
    assert [change.lease.is_acknowledged(offset) for offset in (0, 1, 2)] == [True, False, False]


async def test_leases_are_read_back_when_all_that_are_stored_are_shown() -> None:
    """Otherwise the broker would confirm an acknowledgement, and deliver the message again."""
    clock = ManualClock()
    store = await MessageStore.open(
        StoreOptions(root=Path("/store"), commit_log_file_bytes=1 << 16), disk=MemoryDisk(), clock=clock
    )
    core = make_core(clock, store, OffsetTable())
    log = LeaseLog(core, Leases())
    revive = Revive(core, log)
    log.recover()
    lease = make(pop_time=clock.now_ms(), invisible=60_000)
    log.open([lease], lambda _status: None)
    log.is_ready = False
    duties = DutyTasks(store, lambda: [revive])
    duties.start()
    assert not log.is_ready
    await clock.pass_time(1)
    assert log.is_ready
    assert log.leases.get(lease.key) is not None
    assert log.position(("T", "G", 0)) == 3
    await duties.stop()
    await store.close()


class NoRoom(NoFault):
    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0 if path.parent.name == "commitlog" else size


async def open_log(
    clock: ManualClock, disk: MemoryDisk, offsets: OffsetTable
) -> tuple[MessageStore, LeaseLog]:
    options = StoreOptions(root=Path("/store"), commit_log_file_bytes=1 << 16)
    store = await MessageStore.open(options, disk=disk, clock=clock)
    log = LeaseLog(make_core(clock, store, offsets), Leases(), roll_after_count=1)
    log.recover()
    return store, log


async def test_a_check_point_whose_repetition_was_not_stored_holds_the_revive_topic_back() -> None:
    """If progress went up to where the repetition would be, the lease would be unknown after the next
    start.
    """
    clock, disk = ManualClock(), MemoryDisk()
    store, log = await open_log(clock, disk, OffsetTable())
    for start in (0, 10, 20):
        log.open([make(start, pop_time=clock.now_ms(), invisible=60_000)], lambda _status: None)
        await clock.pass_time(0.1)
    oldest = log.leases.oldest_written(0)
    assert oldest is not None
    assert oldest.revive_offset == 0
    disk.fault = NoRoom()
    log.roll()
    await clock.pass_time(0.1)
    disk.fault = NoFault()
    await clock.pass_time(2)
    assert log.leases.oldest_written(0) is oldest
    assert oldest.revive_offset == 0
    await store.close()


async def test_a_pop_that_becomes_safe_leaves_a_reset_that_waits() -> None:
    """An operator resets the group; the position of an earlier pop is committed late."""
    clock, offsets = ManualClock(), OffsetTable()
    store, log = await open_log(clock, MemoryDisk(), offsets)
    log.open([make(5, pop_time=clock.now_ms(), invisible=60_000)], lambda _status: None)
    await clock.pass_time(0.1)
    log.settle()
    offsets.reset("G", "T", 0, 2, clock.now_ms())
    await clock.pass_time(11)
    log.settle()
    assert offsets.committed("G", "T", 0) == 2
    assert offsets.consume_reset("G", "T", 0) == 2
    await store.close()


async def test_a_message_whose_new_lease_was_not_stored_stays_open_in_the_old_one() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    store, log = await open_log(clock, disk, OffsetTable())
    lease = make(pop_time=clock.now_ms(), invisible=60_000)
    log.open([lease], lambda _status: None)
    await clock.pass_time(0.1)
    disk.fault = NoRoom()
    answers: list[PutStatus] = []
    new = make(1, pop_time=clock.now_ms(), count=1, invisible=90_000)
    log.replace(lease, 1, new, answers.append)
    assert lease.open_offsets() == [0, 2]
    await clock.pass_time(0.1)
    [answer] = answers
    assert not is_stored(answer)
    assert log.leases.get(new.key) is None
    assert lease.open_offsets() == [0, 1, 2]
    with pytest.raises(RequestRejected):  # the disk is not tried again at once
        log.replace(lease, 1, new, answers.append)
    assert lease.open_offsets() == [0, 1, 2]
    assert log.leases.get(new.key) is None
    await store.close()


async def test_the_revive_topic_is_not_given_up_beyond_records_of_others_that_are_unread() -> None:
    """RocketMQ's timer wrote a check point, and the broker stops before it has read the record."""
    clock, offsets = ManualClock(), OffsetTable()
    store, log = await open_log(clock, MemoryDisk(), offsets)
    theirs = make(50, pop_time=clock.now_ms(), invisible=60_000)
    foreign = log.records.check_point(theirs, moves_position=False, now_ms=clock.now_ms())
    foreign.properties = append_property(foreign.properties, "TIMER_OUT_MS", "500")
    store.appender.append([foreign], lambda _status: None)
    ours = make(pop_time=clock.now_ms(), invisible=60_000)
    log.open([ours], lambda _status: None)
    for index in range(3):
        log.ack(ours, [index], lambda _status: None)
    await clock.pass_time(0.1)
    assert len(log.leases) == 0
    await store.sync()
    for _ in range(3):
        log.settle()
    assert (offsets.committed(REVIVE_GROUP, log.records.topic, 0) or 0) == 0
    log.read_foreign()
    known = log.leases.get(theirs.key)
    assert known is not None
    log.leases.finish(known, range(3))
    log.settle()
    assert offsets.committed(REVIVE_GROUP, log.records.topic, 0) == 3
    await store.close()


def test_a_check_point_tells_that_its_messages_were_not_tried() -> None:
    """RocketMQ 5.5's key `sp`; absent for all others, so that older brokers read them as before."""
    records = LeaseRecords(cluster="C", broker_name="b")
    lease = make()
    assert "sp" not in json.loads(stored(records.check_point(lease, moves_position=True, now_ms=0)).body)
    lease.is_suspended = True
    record = stored(records.check_point(lease, moves_position=False, now_ms=0))
    assert json.loads(record.body)["sp"] is True
    change = read_change(record)
    assert isinstance(change, NewLease)
    assert change.lease.is_suspended


async def test_a_renewed_lease_is_one_check_point_more_with_its_own_handle() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    store, log = await open_log(clock, disk, OffsetTable())
    lease = make(pop_time=clock.now_ms(), invisible=1_000)
    log.open([lease], lambda _status: None)
    log.ack(lease, [0], lambda _status: None)
    await clock.pass_time(0.1)
    answers: list[PutStatus] = []
    log.renew(lease, 60_000, answers.append)
    await clock.pass_time(5)
    assert [is_stored(status) for status in answers] == [True]
    assert log.leases.list_ended(clock.now_ms(), 9) == []
    for _ in range(2):  # as it is, and as it is read back
        assert (known := log.leases.get(lease.key)) is not None
        assert (known.invisible_ms, known.open_offsets()) == (60_000, [1, 2])
        assert known.ends_at_ms == lease.key.pop_time_ms + 60_000
        log.recover()
    known = log.leases.get(lease.key)
    assert known is not None
    log.renew(known, 6_000, lambda _status: None)  # given back early
    await clock.pass_time(0.1)
    log.recover()
    assert log.leases.next_end_ms() == lease.key.pop_time_ms + 6_000
    await clock.pass_time(1)
    assert len(log.leases.list_ended(clock.now_ms(), 9)) == 1
    await store.close()


async def test_a_renewal_that_was_not_stored_changes_nothing() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    store, log = await open_log(clock, disk, OffsetTable())
    lease = make(pop_time=clock.now_ms(), invisible=10_000)
    log.open([lease], lambda _status: None)
    await clock.pass_time(0.1)
    disk.fault = NoRoom()
    answers: list[PutStatus] = []
    log.renew(lease, 60_000, answers.append)
    await clock.pass_time(0.1)
    assert [is_stored(status) for status in answers] == [False]
    with pytest.raises(RequestRejected):  # the disk is not tried again at once
        log.renew(lease, 60_000, answers.append)
    assert (lease.invisible_ms, log.leases.next_end_ms()) == (10_000, lease.key.pop_time_ms + 10_000)
    await store.close()


async def test_of_two_renewals_in_one_turn_that_fail_neither_is_remembered() -> None:
    """If the second one remembered the first, progress would pass the check point, and the lease be lost."""
    clock, disk, offsets = ManualClock(), MemoryDisk(), OffsetTable()
    store, log = await open_log(clock, disk, offsets)
    lease = make(pop_time=clock.now_ms(), invisible=60_000)
    log.open([lease], lambda _status: None)
    await clock.pass_time(0.1)
    disk.fault = NoRoom()
    answers: list[PutStatus] = []
    log.renew(lease, 70_000, answers.append)
    log.renew(lease, 80_000, answers.append)
    await clock.pass_time(0.1)
    assert [is_stored(status) for status in answers] == [False, False]
    assert (lease.revive_offset, lease.invisible_ms) == (0, 60_000)
    disk.fault = NoFault()
    for _ in range(3):
        await clock.pass_time(11)
        log.settle()
    assert log.recover() == 1
    await store.close()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_start_does_not_return_to_an_older_position_of_an_ordered_group(is_shared: bool) -> None:
    """An open lease of another group holds a queue of the revive topic back, so the queue is read again."""
    clock, offsets = ManualClock(), OffsetTable()
    store, _ = await open_log(clock, MemoryDisk(), offsets)
    core = make_core(clock, store, offsets)
    core.options = BrokerOptions(cluster_name="c", broker_name="b", revive_queue_count=8)
    log = LeaseLog(core, Leases())
    log.recover()
    queue_id = log.revive_queue_of("ordered")
    other = next(name for name in map(str, range(99)) if (log.revive_queue_of(name) == queue_id) == is_shared)
    lease = Lease(
        LeaseKey("T", other, 0, 40, clock.now_ms()),
        [40],
        invisible_ms=60_000,
        revive_queue_id=log.revive_queue_of(other),
        end_offset=41,
    )
    log.open([lease], lambda _status: None)
    key = ("T", "ordered", 0)
    for offset in range(1, 11):
        log.put_position(key, offset, lambda _status: None)
    for _ in range(3):
        await clock.pass_time(11)
        log.settle()
    assert log.recover() == 1
    assert log.position(key) == 10
    await store.close()


async def test_the_committed_offset_of_an_ordered_group_does_not_fall_to_one_that_became_safe_later() -> None:
    clock, disk, offsets = ManualClock(), MemoryDisk(), OffsetTable()
    store, log = await open_log(clock, disk, offsets)
    for offset in (5, 9):
        log.put_position(("T", "G", 0), offset, lambda _status: None)
        await clock.pass_time(0.01)  # it is written
        log.settle()
        if offset == 5:
            await store.sync()
    assert offsets.committed("G", "T", 0) == 9
    await store.close()


async def test_a_repeated_ack_is_answered_when_it_is_stored_and_takes_nothing_back() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    store, log = await open_log(clock, disk, OffsetTable())
    lease = make(pop_time=clock.now_ms(), invisible=60_000)
    log.open([lease], lambda _status: None)
    await clock.pass_time(0.1)
    answers: list[PutStatus] = []
    log.ack(lease, [0], answers.append)
    log.ack(lease, [0], answers.append)
    assert answers == []
    await clock.pass_time(0.1)
    assert [is_stored(status) for status in answers] == [True, True]
    disk.fault = NoRoom()
    log.ack(lease, [0], answers.append)  # a third one, which fails
    log.ack(lease, [1], answers.append)
    await clock.pass_time(0.1)
    assert [is_stored(status) for status in answers] == [True, True, False, False]
    assert lease.open_offsets() == [1, 2], "only the failed first ack is taken back"
    await store.close()
