"""Delivery of delay levels on a machine in memory: never early, in order, nothing lost (spec store 15)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from delay_machine import ROOT, Machine

from tandemmq.broker.delay.delivery import LevelDelivery
from tandemmq.broker.durable import DurableWriter
from tandemmq.errors import Busy
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.store import FlushMode
from tandemmq.store.options import QUEUE_UNIT_BYTES


async def test_message_comes_when_its_delay_is_over_and_not_before() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 2)
    await machine.clock.pass_time(4.99)
    assert machine.names() == []
    await machine.clock.pass_time(0.02)
    assert machine.names() == ["a"]
    await machine.clock.pass_time(60)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_idle_delivery_has_no_timer_running() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 1)
    await machine.clock.pass_time(30)
    before = len(machine.clock._timers)
    await machine.clock.pass_time(30)
    assert machine.names() == ["a"]
    assert len(machine.clock._timers) <= before
    await machine.stop()


async def test_levels_do_not_wait_for_each_other() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("slow", 3)
    machine.delay("quick 1", 1)
    await machine.clock.pass_time(0.5)
    machine.delay("quick 2", 1)
    await machine.clock.pass_time(0.6)
    assert machine.names() == ["quick 1"]
    await machine.clock.pass_time(20)
    assert machine.names() == ["quick 1", "quick 2", "slow"]
    await machine.stop()


async def test_each_message_is_read_once_however_many_wait_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    await machine.start()
    read: list[int] = []
    read_before = DurableWriter.read

    def count(self: DurableWriter, *args: Any, **options: Any) -> tuple[list[Record], int]:
        records, next_offset = read_before(self, *args, **options)
        read.extend(record.queue_offset for record in records)
        return records, next_offset

    monkeypatch.setattr(DurableWriter, "read", count)
    for number in range(40):
        machine.delay(f"{number}", 1)
        await machine.clock.pass_time(0.05)
    await machine.clock.pass_time(2)
    assert machine.names() == [f"{number}" for number in range(40)]
    assert read == list(range(40))
    await machine.stop()


async def test_message_that_waited_through_a_stop_comes_at_its_time() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 3)
    await machine.clock.pass_time(4)
    await machine.stop()
    await machine.start()
    await machine.clock.pass_time(5.9)
    assert machine.names() == []
    await machine.clock.pass_time(0.2)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_nothing_comes_twice_after_a_clean_stop_at_any_moment() -> None:
    for moment in range(30):
        machine = Machine()
        await machine.start()
        for number in range(20):
            machine.delay(f"{number}", 1 + number % 2)
            await machine.clock.pass_time(0.1)
        await machine.clock.pass_time(moment * 0.2)
        await machine.stop()
        await machine.start()
        await machine.clock.pass_time(20)
        names = machine.names()
        assert sorted(names, key=int) == [f"{number}" for number in range(20)], moment
        await machine.stop()


@pytest.mark.parametrize("cut", ["kill", "power_cut"])
@pytest.mark.parametrize("flush_mode", list(FlushMode))
async def test_nothing_is_lost_however_the_machine_dies(cut: str, flush_mode: FlushMode) -> None:
    for moment in range(12):
        machine = Machine(flush_mode=flush_mode)
        await machine.start()
        for number in range(20):
            machine.delay(f"{number}", 1 + number % 2)
            await machine.clock.pass_time(0.05)
        await machine.clock.pass_time(20 if moment == 11 else moment * 0.6)
        store = machine.store
        assert store is not None
        safe = store.flushed.value if cut == "power_cut" else store.appended.value
        sent = [
            record.body.decode()
            for queue_id in range(2)
            for record in machine.delivered("SCHEDULE_TOPIC_XXXX", queue_id)
            if record.log_offset + record.size <= safe
        ]
        await (machine.kill() if cut == "kill" else machine.power_cut())
        await machine.start()
        await machine.clock.pass_time(20)
        assert set(sent) <= set(machine.names()), moment
        await machine.stop()


async def test_progress_is_saved_while_running() -> None:
    machine = Machine()
    await machine.start()
    for number in range(5):
        machine.delay(f"{number}", 1)
    await machine.clock.pass_time(40)
    saved = json.loads(machine.disk.read_bytes(ROOT / "config" / "delayOffset.json"))
    assert saved["offsetTable"] == {"1": 5}
    await machine.kill()
    await machine.start()
    await machine.clock.pass_time(5)
    assert len(machine.names()) == 5
    await machine.stop()


async def test_progress_waits_for_a_slave_that_is_in_sync() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 1)
    machine.slave_has_all()
    await machine.clock.pass_time(30)
    assert machine.names() == ["a"]
    assert machine.tables.delay_offsets.get(1) is None
    machine.slave_has_all()
    await machine.clock.pass_time(2)
    assert machine.tables.delay_offsets.get(1) == 1
    await machine.stop()


async def test_delivery_goes_on_when_all_of_a_full_progress_became_valid_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandemmq.broker.durable.PROGRESS_COUNT_MAX", 2)
    machine = Machine()
    await machine.start()
    for name in "abcd":
        machine.delay(name, 1)
        machine.slave_has_all()
        await machine.clock.pass_time(0.3)
    await machine.clock.pass_time(10)
    assert machine.names() == ["a", "b"]
    machine.slave_has_all()
    await machine.clock.pass_time(1.5)
    assert machine.names() == ["a", "b", "c", "d"]
    await machine.stop()


@pytest.mark.parametrize("skew_ms", [-3_600_000, -500, 700])
async def test_clock_that_jumps_makes_no_message_early_and_none_an_hour_late(skew_ms: int) -> None:
    machine = Machine()
    await machine.start()
    machine.delay("before", 2)
    await machine.clock.pass_time(1)
    machine.clock.skew_ms = skew_ms
    machine.delay("after", 2)
    await machine.clock.pass_time(3.2)
    assert machine.names() == []
    await machine.clock.pass_time(2.0)
    assert "before" in machine.names()
    await machine.clock.pass_time(2.0)
    assert machine.names() == ["before", "after"]
    await machine.stop()


async def test_clock_that_was_set_back_while_stopped_holds_nothing_for_long() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 2)
    await machine.stop()
    machine.clock.skew_ms = -3_600_000
    await machine.start()
    await machine.clock.pass_time(4.9)
    assert machine.names() == []
    await machine.clock.pass_time(1.2)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_a_message_behind_one_that_waits_is_known_since_it_came() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 2)
    await machine.clock.pass_time(0.3)
    machine.delay("b", 2)
    machine.clock.skew_ms = -3_600_000
    await machine.clock.pass_time(5.4)
    assert machine.names() == ["a", "b"]
    await machine.stop()


async def test_unreadable_delayed_message_is_retried_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    await machine.start()
    read_before = DurableWriter.read
    asked: list[int] = []

    def read_nothing(
        _: DurableWriter, _topic: str, _queue_id: int, queue_offset: int
    ) -> tuple[list[Record], int]:
        asked.append(queue_offset)
        assert len(asked) < 10
        return [], queue_offset

    monkeypatch.setattr(DurableWriter, "read", read_nothing)
    machine.delay("a", 1)
    await machine.clock.pass_time(3.5)
    assert asked == [0, 0, 0, 0]
    monkeypatch.setattr(DurableWriter, "read", read_before)
    await machine.clock.pass_time(1)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_clock_that_jumps_ahead_is_noticed_within_a_second() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 4)
    await machine.clock.pass_time(2)
    machine.clock.skew_ms = 30_000
    await machine.clock.pass_time(1.1)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_changed_levels_hold_for_messages_that_wait() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("second", 2)
    machine.delay("fourth", 4)
    await machine.stop()
    machine.store_changes["delay_levels_ms"] = (1_000, 20_000)
    await machine.start()
    await machine.clock.pass_time(19)
    assert machine.names() == []
    await machine.clock.pass_time(2)
    # The fourth level is gone: messages that waited there count as those of the highest remaining level.
    assert sorted(machine.names()) == ["fourth", "second"]
    await machine.stop()


async def test_store_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    await machine.start()
    store = machine.store
    assert store is not None
    machine.delay("a", 1)
    machine.delay("b", 1)
    append = store.appender.append

    def refuse(*_: object) -> None:
        raise Busy("not now")

    monkeypatch.setattr(store.appender, "append", refuse)
    await machine.clock.pass_time(5)
    assert machine.names() == []
    monkeypatch.setattr(store.appender, "append", append)
    await machine.clock.pass_time(1)
    assert machine.names() == ["a", "b"]
    await machine.stop()


async def test_message_that_cannot_be_brought_back_does_not_hold_up_the_rest() -> None:
    machine = Machine()
    await machine.start()
    store = machine.store
    assert store is not None
    odd = NewRecord(
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=0,
        body=b"odd",
        properties=encode_properties({"DELAY": "1"}),
        born_at_ms=0,
        born_host=b"\0" * 8,
    )
    machine._append(odd)
    odd.properties = encode_properties({"DELAY": "1", "REAL_TOPIC": "é" * 500, "REAL_QID": "0"})
    machine._append(odd)
    machine.delay("a", 1)
    await machine.clock.pass_time(3)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_start_and_stop_follow_the_role() -> None:
    machine = Machine()
    await machine.start(delivers=False)
    machine.delay("a", 1)
    await machine.clock.pass_time(5)
    assert machine.names() == []
    assert machine.delivery is not None
    machine.delivery.start()
    machine.delivery.start()
    await machine.clock.pass_time(0.5)
    assert machine.names() == ["a"]
    await machine.delivery.stop()
    machine.delay("b", 1)
    await machine.clock.pass_time(5)
    assert machine.names() == ["a"]
    machine.delivery.settle()
    machine.delivery.start()
    await machine.clock.pass_time(1)
    # Within one process unflushed messages may be delivered again, as after a kill.
    assert set(machine.names()) == {"a", "b"}
    await machine.stop()


async def test_a_delivery_that_was_stopped_keeps_no_messages() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("a", 2)
    await machine.clock.pass_time(1)
    assert machine.delivery is not None
    levels = machine.delivery.duties[0]
    assert isinstance(levels, LevelDelivery)
    assert levels._levels[2].waiting
    await machine.delivery.stop()
    machine.delay("b", 2)
    assert not levels._levels
    machine.delivery.start()
    await machine.clock.pass_time(6)
    assert machine.names() == ["a", "b"]
    await machine.stop()


async def test_levels_are_those_of_the_store() -> None:
    machine = Machine()
    await machine.start()
    machine.delay("cut", 99)
    await machine.clock.pass_time(29)
    assert machine.names() == []
    await machine.clock.pass_time(2)
    assert machine.names() == ["cut"]
    await machine.stop()


async def test_a_damaged_message_is_lost_alone() -> None:
    machine = Machine()
    await machine.start()
    for name in "abcd":
        machine.delay(name, 2)
    assert machine.store is not None
    [_, (log_offset, _, _), *_] = machine.store.queue_entries(SCHEDULE_TOPIC, 1, 0, 4)
    [name] = machine.disk.list(ROOT / "commitlog")
    machine.disk.open(ROOT / "commitlog" / name).pwrite(log_offset, [bytes(50)])
    await machine.clock.pass_time(6)
    assert machine.names() == ["a", "c", "d"]
    await machine.stop()


async def test_a_queue_entry_with_a_size_below_zero_is_no_message() -> None:
    """It would refer to bytes beyond the end of the log."""
    machine = Machine()
    await machine.start(delivers=False)
    for name in "abc":
        machine.delay(name, 2)
    await machine.stop()
    await machine.start(delivers=False)
    for name in "de":
        machine.delay(name, 2)
    assert machine.store is not None
    queue = ROOT / "consumequeue" / SCHEDULE_TOPIC / "1"
    [name] = machine.disk.list(queue)
    size_at = QUEUE_UNIT_BYTES + 8
    machine.disk.open(queue / name).pwrite(size_at, [(-200).to_bytes(4, "big", signed=True)])
    log_offset = machine.store.queue_entries(SCHEDULE_TOPIC, 1, 3, 1)[0][0]
    [name] = machine.disk.list(ROOT / "commitlog")
    machine.disk.open(ROOT / "commitlog" / name).pwrite(log_offset, [bytes(50)])
    records, next_offset = DurableWriter(machine.store, machine.clock).read(SCHEDULE_TOPIC, 1, 0, waits=False)
    assert [record.body for record in records] == [b"a", b"c", b"e"]
    assert next_offset == 5
    await machine.stop()
