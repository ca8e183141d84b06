"""Delivery of timer messages on a machine in memory: at their time, and once (spec store 16)."""

from __future__ import annotations

import random

import pytest
from delay_machine import ROOT, Machine

from tandemmq.broker.delay.timers import TimerKey, decode_timer_file
from tandemmq.broker.durable import BATCH_COUNT_MAX
from tandemmq.protocol.properties import decode_properties

TIMER_TOPIC = "rmq_sys_wheel_timer"


def at(machine: Machine, seconds: float) -> dict[str, str]:
    return {"TIMER_DELIVER_MS": str(machine.clock.now_ms() + round(seconds * 1000))}


async def test_messages_come_in_the_order_of_their_times() -> None:
    machine = Machine()
    await machine.start()
    for name, seconds in (("c", 7.5), ("a", 2.5), ("b", 4.5)):
        machine.time(name, at(machine, seconds))
    await machine.clock.pass_time(2.49)
    assert machine.names() == []
    await machine.clock.pass_time(1.1)
    assert machine.names() == ["a"]
    await machine.clock.pass_time(6)
    assert machine.names() == ["a", "b", "c"]
    await machine.stop()


async def test_time_on_the_edge_of_a_second_is_met_exactly() -> None:
    machine = Machine()
    await machine.start()
    machine.time("a", at(machine, 3))
    await machine.clock.pass_time(2.999)
    assert machine.names() == []
    await machine.clock.pass_time(0.01)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_message_sent_late_within_its_second_comes() -> None:
    machine = Machine()
    await machine.start()
    machine.time("a", at(machine, 0.9))
    await machine.clock.pass_time(0.95)
    machine.time("b", at(machine, 0.02))
    await machine.clock.pass_time(1.2)
    assert sorted(machine.names()) == ["a", "b"]
    await machine.stop()


async def test_delivery_goes_on_when_all_of_a_full_progress_became_valid_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandemmq.broker.durable.PROGRESS_COUNT_MAX", 2)
    machine = Machine()
    await machine.start()
    for name in "abcd":
        machine.time(name, at(machine, 1))
        machine.slave_has_all()
        await machine.clock.pass_time(3)
    await machine.clock.pass_time(10)
    assert machine.names() != ["a", "b", "c", "d"]
    machine.slave_has_all()
    await machine.clock.pass_time(5)
    machine.slave_has_all()
    await machine.clock.pass_time(5)
    assert machine.names() == ["a", "b", "c", "d"]
    await machine.stop()


async def test_cancelled_message_never_comes_also_when_it_was_cancelled_before_a_stop() -> None:
    machine = Machine()
    await machine.start()
    when = at(machine, 5)
    for name in ("kept", "gone", "gone later"):
        machine.time(name, when)
    machine.time("x", {**when, "TIMER_DEL_UNIQKEY": "T+gone"})
    await machine.clock.pass_time(2)
    await machine.stop()
    await machine.start()
    machine.time("y", {**when, "TIMER_DEL_UNIQKEY": "T+gone later"})
    machine.time("z", {**when, "TIMER_DEL_UNIQKEY": "Other+kept"})
    await machine.clock.pass_time(10)
    assert machine.names() == ["kept", "z"], "a cancellation of another topic's message is a message"
    await machine.stop()


async def test_a_cancellation_holds_for_every_batch_of_its_second() -> None:
    """More messages than one append accepts are due in one second: the last of them are cancelled."""
    machine = Machine()
    await machine.start()
    when = at(machine, 3)
    names = [f"{number:02}" for number in range(BATCH_COUNT_MAX + 2)]
    for name in names:
        machine.time(name, when)
    machine.time("x", {**when, "TIMER_DEL_UNIQKEY": f"T+{names[-1]}"})
    await machine.clock.pass_time(6)
    assert machine.names() == names[:-1]
    await machine.stop()


async def test_wheel_with_little_room_delivers_everything_in_order() -> None:
    machine = Machine(count_max=5)
    await machine.start()
    times = list(range(1, 60))
    random.Random(5).shuffle(times)
    for seconds in times:
        machine.time(f"{seconds:02}", at(machine, seconds))
        machine.time(f"{seconds:02}", at(machine, seconds))
    await machine.clock.pass_time(70)
    assert machine.names() == [f"{second:02}" for second in range(1, 60) for _ in range(2)]
    await machine.stop()


async def test_cancelling_works_beyond_the_horizon() -> None:
    machine = Machine(count_max=4)
    await machine.start()
    whens = [at(machine, 2 + number) for number in range(20)]
    for number, when in enumerate(whens):
        machine.time(f"{number}", when)
    for number, when in enumerate(whens):
        if number % 3 == 0:
            machine.time(f"x{number}", {**when, "TIMER_DEL_UNIQKEY": f"T+{number}"})
    await machine.clock.pass_time(40)
    assert machine.names() == [f"{number}" for number in range(20) if number % 3]
    await machine.stop()


async def test_more_messages_for_one_second_than_the_wheel_holds() -> None:
    machine = Machine(count_max=6)
    await machine.start()
    when = at(machine, 2)
    for number in range(50):
        machine.time(f"{number:02}", when)
    await machine.clock.pass_time(5)
    assert machine.names() == [f"{number:02}" for number in range(50)]
    await machine.stop()
    await machine.start()
    await machine.clock.pass_time(5)
    assert len(machine.names()) == 50
    await machine.stop()


async def test_message_that_waits_long_is_stored_anew_and_comes_once() -> None:
    machine = Machine(roll_after_ms=20_000)
    await machine.start()
    machine.time("far", at(machine, 70))
    machine.time("gone", at(machine, 70))
    machine.time("x", {**at(machine, 70), "TIMER_DEL_UNIQKEY": "T+gone"})
    await machine.clock.pass_time(69)
    assert machine.names() == []
    stored = machine.delivered(TIMER_TOPIC)
    rolls = [decode_properties(record.raw_properties).get("TIMER_ROLL_TIMES") for record in stored]
    assert rolls.count("3") == 3  # including the cancellation
    await machine.stop()
    await machine.start()
    await machine.clock.pass_time(10)
    assert machine.names() == ["far"]
    await machine.stop()


async def pass_hour(machine: Machine) -> None:
    """Lets an hour of the wall clock pass, in which the log grows by some files and retention checks all of
    them.
    """
    machine.clock.skew_ms += 3_590_000
    await machine.clock.pass_time(10)
    for number in range(20):
        machine.time(f"{number}", {"TIMER_DELAY_MS": "0"}, topic="Other")
    assert machine.store is not None
    machine.store.cleaner.clean(at_any_hour=True)


@pytest.mark.parametrize("reserved_hours", [3, 24])
async def test_message_that_waits_longer_than_the_log_is_kept_comes(reserved_hours: int) -> None:
    machine = Machine(file_reserved_hours=reserved_hours, commit_log_file_bytes=4_096)
    await machine.start()
    for hours in (40, 72):
        when = at(machine, hours * 3600)
        machine.time(f"{hours}", when)
        machine.time(f"gone {hours}", when)
        machine.time(f"x{hours}", {**when, "TIMER_DEL_UNIQKEY": f"T+gone {hours}"})
    came: list[str] = []
    for hour in range(1, 75):
        await pass_hour(machine)
        if hour % 20 == 0:
            await machine.stop()
            await machine.start()
        came += [name for name in machine.names() if name not in came]
        assert set(came) <= {f"{due}" for due in (40, 72) if due <= hour}
    assert came == ["40", "72"]
    assert machine.store is not None
    assert machine.store.min_log_offset > 10 * 4_096  # retention had something to do
    await machine.stop()


async def test_retention_that_is_shortened_holds_for_what_waits() -> None:
    machine = Machine(file_reserved_hours=72, commit_log_file_bytes=4_096)
    await machine.start()
    machine.time("far", at(machine, 60 * 3600))
    for hour in range(60):
        assert machine.names() == []
        assert machine.store is not None
        if hour == 20:
            object.__setattr__(machine.store.options, "file_reserved_hours", 22)
        await pass_hour(machine)
    assert machine.names() == ["far"]
    await machine.stop()


async def test_checkpoint_is_saved_every_second_and_only_says_what_is_on_disk() -> None:
    machine = Machine()
    await machine.start()
    machine.time("a", at(machine, 2))
    machine.time("b", at(machine, 500))
    await machine.clock.pass_time(30)
    check = decode_timer_file(machine.disk.read_bytes(ROOT / "config" / "timercheck"))
    assert check.read_offset == 2
    assert check.low_offset == 1
    await machine.kill()
    await machine.start()
    await machine.clock.pass_time(5)
    assert machine.names() == ["a"]
    await machine.stop()


async def test_without_a_checkpoint_everything_in_the_topic_is_due() -> None:
    machine = Machine()
    await machine.start()
    machine.time("a", at(machine, 2))
    await machine.clock.pass_time(5)
    await machine.stop()
    machine.disk.remove(ROOT / "config" / "timercheck")
    if machine.disk.exists(ROOT / "config" / "timercheck.bak"):
        machine.disk.remove(ROOT / "config" / "timercheck.bak")
    await machine.start()
    await machine.clock.pass_time(1)
    assert machine.names() == ["a", "a"]
    await machine.stop()


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("how", ["stop", "kill", "power_cut"])
async def test_random_lives_lose_nothing_and_repeat_only_after_a_death(seed: int, how: str) -> None:
    dice = random.Random(seed)
    machine = Machine(count_max=dice.choice([3, 10, 1_000]), roll_after_ms=dice.choice([8_000, 10**9]))
    await machine.start()
    wanted: dict[str, int] = {}
    cancelled: set[str] = set()
    count = 0
    for _life in range(4):
        assert machine.store is not None
        safe_names = set(wanted)
        for _step in range(dice.randrange(1, 25)):
            kind = dice.random()
            if kind < 0.6:
                seconds = dice.choice([0.05, 0.3, 1.0, 2.7, dice.uniform(0.01, 40)])
                when = at(machine, seconds)
                machine.time(f"{count}", when)
                wanted[f"{count}"] = int(when["TIMER_DELIVER_MS"])
                count += 1
            elif kind < 0.7 and wanted:
                name = dice.choice(sorted(wanted))
                if wanted[name] > machine.clock.now_ms() + 2_000 and how == "stop":
                    cancel = {"TIMER_DELIVER_MS": str(wanted[name]), "TIMER_DEL_UNIQKEY": f"T+{name}"}
                    machine.time(f"x{name}", cancel)
                    cancelled.add(name)
            else:
                await machine.clock.pass_time(dice.choice([0.01, 0.2, 0.99, 1.0, 4.0]))
        if how == "stop":
            await machine.stop()
        elif how == "kill":
            await machine.kill()
        else:
            safe = machine.store.flushed.value
            kept = {
                record.body.decode()
                for record in machine.delivered(TIMER_TOPIC)
                if record.log_offset + record.size <= safe
            }
            for name in set(wanted) - kept - safe_names:
                del wanted[name]
            await machine.power_cut()
        machine.roll_after_ms = dice.choice([2_000, 8_000, 10**9])  # a different fileReservedTime
        await machine.start()
    await machine.clock.pass_time(60)
    records = machine.delivered()
    names = [record.body.decode() for record in records]
    assert set(wanted) - cancelled <= set(names)
    assert not cancelled & set(names)
    for record in records:
        if record.body.decode() in wanted:
            assert record.stored_at_ms >= wanted[record.body.decode()]
    if how == "stop":
        assert len(names) == len(set(names))
    await machine.stop()
    await machine.start()
    await machine.clock.pass_time(3)
    assert machine.names() == names
    await machine.stop()


async def test_slave_that_becomes_master_goes_on_where_its_master_was() -> None:
    machine = Machine()
    await machine.start(delivers=False)
    machine.time("done by the master", at(machine, 2))
    machine.time("pending", at(machine, 20))
    await machine.clock.pass_time(10)
    from tandemmq.broker.delay.timers import TimerCheck, decode_timer_answer, encode_timer_answer
    from tandemmq.protocol.bodies.codec import DataVersion

    first = decode_properties(machine.delivered(TIMER_TOPIC)[1].raw_properties)["TIMER_OUT_MS"]
    check = TimerCheck(TimerKey(int(first), 1), 2, 1)
    heard = decode_timer_answer(encode_timer_answer(check, DataVersion()))
    machine.tables.timer_progress.replace(heard, machine.clock.now_ms())
    assert machine.delivery is not None
    machine.delivery.start()
    await machine.clock.pass_time(20)
    assert machine.names() == ["pending"]
    await machine.stop()
