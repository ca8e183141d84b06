"""The numbers a store keeps for its metrics, on a clock that stands still."""

from __future__ import annotations

from store_rig import Rig, record

from tandemmq.store import BrokerRole, FlushMode, PutStatus
from tandemmq.store.recorder import BATCHES_WATCHED_MAX, WaitTimes
from tandemmq.units import ReplicaId


def test_batches_wait_until_their_end_is_reached() -> None:
    waits = WaitTimes()
    waits.begin(100, now=1.0)
    waits.begin(200, now=1.5)
    waits.reach(99, now=2.0)
    assert (len(waits), waits.seconds.count) == (2, 0)
    waits.reach(150, now=2.0)
    assert (len(waits), waits.seconds.count, waits.seconds.total) == (1, 1, 1.0)
    waits.reach(1000, now=3.5)
    assert (len(waits), waits.seconds.count, waits.seconds.total) == (0, 2, 3.0)


def test_forgotten_batches_are_not_measured() -> None:
    waits = WaitTimes()
    waits.begin(100, now=1.0)
    waits.forget()
    waits.reach(100, now=2.0)
    assert (len(waits), waits.seconds.count) == (0, 0)


def test_watched_batches_are_bounded() -> None:
    waits = WaitTimes()
    for end in range(BATCHES_WATCHED_MAX + 10):
        waits.begin(end, now=0.0)
    assert len(waits) == BATCHES_WATCHED_MAX


async def test_sends_of_one_turn_are_one_batch() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(), record(), record())
    rig.put(store, record())
    assert store.recorder.append_batch_s.count == 2
    assert store.recorder.outcomes[PutStatus.PUT_OK] == 4
    assert store.recorder.flush_wait.seconds.count == 0
    await store.close()


async def test_flush_and_the_wait_for_it_are_measured_once_per_batch() -> None:
    rig = Rig()
    store = await rig.open(flush_mode=FlushMode.SYNC_FLUSH)
    statuses = rig.put(store, record(), record())
    facts = store.facts()
    assert (facts.sends_waiting_for_flush, facts.sends_waiting_for_acks) == (2, 0)
    await rig.clock.pass_time(0.01)
    assert statuses == [PutStatus.PUT_OK] * 2
    assert store.recorder.flush_s.count == 1
    assert store.recorder.flush_wait.seconds.count == 1
    assert store.recorder.outcomes[PutStatus.PUT_OK] == 2
    await store.close()


async def test_acks_and_the_wait_for_them_are_measured() -> None:
    rig = Rig()
    store = await rig.open(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2, slave_timeout_ms=1000)
    statuses = rig.put(store, record(), record())
    assert store.facts().sends_waiting_for_acks == 2
    await rig.clock.pass_time(0.25)
    store.replies.acks.report(ReplicaId("s"), store.appended.value)
    assert statuses == [PutStatus.PUT_OK] * 2
    wait = store.recorder.ack_wait.seconds
    assert (wait.count, wait.total) == (1, 0.25)
    await store.close()


async def test_send_that_times_out_is_counted_once_and_its_batch_when_the_ack_comes() -> None:
    rig = Rig()
    store = await rig.open(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2, slave_timeout_ms=1000)
    statuses = rig.put(store, record())
    await rig.clock.pass_time(1.5)
    assert statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    store.replies.acks.report(ReplicaId("s"), store.appended.value)
    outcomes = store.recorder.outcomes
    assert (outcomes[PutStatus.FLUSH_SLAVE_TIMEOUT], outcomes[PutStatus.PUT_OK]) == (1, 0)
    wait = store.recorder.ack_wait.seconds
    assert (wait.count, wait.total) == (1, 1.5)
    await store.close()


async def test_both_waits_are_measured_apart() -> None:
    rig = Rig()
    store = await rig.open(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2, flush_mode=FlushMode.SYNC_FLUSH)
    statuses = rig.put(store, record())
    await rig.clock.pass_time(0.5)
    recorder = store.recorder
    assert (recorder.flush_wait.seconds.count, recorder.ack_wait.seconds.count) == (1, 0)
    store.replies.acks.report(ReplicaId("s"), store.appended.value)
    assert recorder.ack_wait.seconds.total == 0.5
    assert statuses == [PutStatus.PUT_OK]
    await store.close()


async def test_send_that_need_not_wait_is_counted_at_once() -> None:
    rig = Rig()
    store = await rig.open(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    assert rig.put(store, record(waits=False)) == [PutStatus.PUT_OK]
    assert store.recorder.outcomes[PutStatus.PUT_OK] == 1
    await store.close()


async def test_sends_without_answer_end_as_unknown_when_the_store_closes() -> None:
    rig = Rig()
    store = await rig.open(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    rig.put(store, record(), record())
    await store.close()
    assert store.recorder.outcomes[PutStatus.UNKNOWN_ERROR] == 2


async def test_raw_runs_of_a_slave_are_batches_too() -> None:
    rig = Rig()
    master = await rig.open()
    rig.put(master, record(), record())
    data = bytes(master.log.valid_view(0, 4096))
    await master.close()
    other = Rig()
    slave = await other.open(role=BrokerRole.SLAVE)
    slave.append_raw(0, data)
    assert slave.recorder.append_batch_s.count == 1
    assert slave.facts().refusal == "the broker is a slave; it accepts no messages"
    await slave.close()
    assert slave.facts().is_failed is False


async def test_facts_count_files_and_queues() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, *[record(b"x" * 1000, queue_id=number % 3) for number in range(5)])
    facts = store.facts()
    assert (facts.log_file_count, facts.queue_count, facts.refusal) == (2, 3, None)
    await store.close()
