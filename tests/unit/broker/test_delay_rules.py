"""The pure rules of delays and timers: due times, slots and stored properties (spec store 15, 16)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.delay.delivery import ARRIVAL_COUNT_MAX, ArrivalTimes, LevelPlan, plan_level
from tandemmq.broker.delay.recall import RecallHandle, decode_recall_handle, encode_recall_handle
from tandemmq.broker.delay.timers import (
    CANCELLING,
    FILE_BYTES,
    TimerCheck,
    TimerKey,
    TimerLimits,
    decode_timer_answer,
    decode_timer_file,
    encode_timer_answer,
    encode_timer_file,
    plan_timer,
    read_timer,
    slot_of,
    slots_over,
)
from tandemmq.broker.durable import Progress, restore, restore_timer, roll_timer, safe_end
from tandemmq.errors import MessageIllegal, RemoteProtocolError, RequestRejected
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.properties import decode_properties, encode_properties
from tandemmq.protocol.record import NewRecord, Record, decode_record, encode_record

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
NOW = 1_700_000_000_500


def stored(
    topic: str = "W",
    *,
    offset: int = 3,
    stored_at_ms: int = NOW,
    properties: dict[str, str] | None = None,
    raw: bytes | None = None,
) -> Record:
    new = NewRecord(
        topic=topic,
        queue_id=0,
        body=b"body",
        properties=encode_properties(properties or {}) if raw is None else raw,
        born_at_ms=5,
        born_host=HOST,
        flag=7,
        sys_flag=0x1,
        retry_count=2,
    )
    return decode_record(
        encode_record(new, queue_offset=offset, log_offset=99, stored_at_ms=stored_at_ms, store_host=HOST)
    )


# Delay levels.


def plan(stored_ats: list[int], now_ms: int, *, monotonic_ms: int = 0, delay_ms: int = 1000) -> LevelPlan:
    waiting = [stored(offset=offset, stored_at_ms=at) for offset, at in enumerate(stored_ats)]
    return plan_level(
        waiting, ArrivalTimes(delay_ms), delay_ms=delay_ms, now_ms=now_ms, monotonic_ms=monotonic_ms
    )


def test_messages_are_due_their_delay_after_they_were_stored() -> None:
    assert plan([0, 5, 6], 1004) == LevelPlan(1, 1)
    assert plan([0, 5, 6], 1006) == LevelPlan(3, None)
    assert plan([0], 999) == LevelPlan(0, 1)
    assert plan([], 0) == LevelPlan(0, None)


def test_head_that_is_not_due_holds_back_the_rest() -> None:
    assert plan([500, 0], 1400) == LevelPlan(0, 100)


def test_clock_set_back_holds_a_message_no_longer_than_its_delay() -> None:
    arrivals = ArrivalTimes(1000)
    arrivals.add_sample(1, 5_000)
    waiting = [stored(offset=0)]
    set_back = NOW - 3_600_000
    early = plan_level(waiting, arrivals, delay_ms=1000, now_ms=set_back, monotonic_ms=5_999)
    assert early == LevelPlan(0, 1)
    due = plan_level(waiting, arrivals, delay_ms=1000, now_ms=set_back + 1000, monotonic_ms=6_000)
    assert due == LevelPlan(1, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5_000)), max_size=60), st.integers(1, 100_000))
def test_arrivals_are_never_dated_too_early(steps: list[tuple[int, int]], delay_ms: int) -> None:
    arrivals = ArrivalTimes(delay_ms)
    arrived: list[int] = []
    monotonic_ms = 0
    for count, pause_ms in steps:
        monotonic_ms += pause_ms
        arrived += [monotonic_ms] * count
        arrivals.add_sample(len(arrived), monotonic_ms)
    for offset, at_ms in enumerate(arrived):
        since_ms = arrivals.known_since(offset)
        assert since_ms is None or since_ms >= at_ms


def test_arrivals_are_bounded() -> None:
    arrivals = ArrivalTimes(10_000_000)
    for number in range(3 * ARRIVAL_COUNT_MAX):
        arrivals.add_sample(number, number * 10_000)
    assert len(arrivals) <= ARRIVAL_COUNT_MAX + 1


# Restoring.


def test_restored_message_is_the_one_that_was_sent() -> None:
    pairs = {"REAL_TOPIC": "T", "REAL_QID": "4", "DELAY": "1", "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "u"}
    record = stored(properties=pairs)
    new = restore(record)
    assert new is not None
    assert (new.topic, new.queue_id, new.body, new.flag, new.sys_flag) == ("T", 4, b"body", 7, 0x1)
    assert new.properties == record.raw_properties
    assert (new.born_at_ms, new.born_host, new.retry_count) == (5, HOST, 2)
    assert (new.keys, new.unique_key, new.wait_stored) == ("k", "u", False)
    assert new.tag_hash == 97


@pytest.mark.parametrize("pairs", [{}, {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"}])
def test_message_without_a_usable_target_is_not_restored(pairs: dict[str, str]) -> None:
    assert restore(stored(properties=pairs)) is None


def test_queue_that_is_no_number_becomes_the_first() -> None:
    new = restore(stored(properties={"REAL_TOPIC": "T", "REAL_QID": "x"}))
    assert new is not None
    assert new.queue_id == 0


def test_timer_message_tells_when_it_waited() -> None:
    new = restore_timer(stored(properties={"REAL_TOPIC": "T", "REAL_QID": "1"}), NOW + 9)
    assert new is not None
    pairs = decode_properties(new.properties)
    assert (pairs["TIMER_ENQUEUE_MS"], pairs["TIMER_DEQUEUE_MS"]) == (str(NOW), str(NOW + 9))


def test_message_without_room_for_its_times_is_delivered_all_the_same() -> None:
    pairs = {"REAL_TOPIC": "T", "REAL_QID": "1", "x": "y" * 32_730}
    record = stored(properties=pairs)
    new = restore_timer(record, NOW)
    assert new is not None
    assert new.properties == record.raw_properties


def test_rolled_message_counts_its_rolls_and_stays_in_its_topic() -> None:
    once = roll_timer(stored("W", properties={"TIMER_OUT_MS": "9", "REAL_TOPIC": "T"}), NOW)
    assert (once.topic, decode_properties(once.properties)["TIMER_ROLL_TIMES"]) == ("W", "1")
    twice = roll_timer(stored("W", raw=once.properties), NOW)
    assert decode_properties(twice.properties)["TIMER_ROLL_TIMES"] == "2"
    assert twice.properties.count(b"TIMER_ROLL_TIMES") == 1


# Times.


@given(st.integers(1, 10**15))
def test_slot_is_over_at_the_wished_time_or_within_the_second_after(at_ms: int) -> None:
    slot_ms = slot_of(at_ms)
    first_over = slot_ms + 1000
    assert at_ms <= first_over < at_ms + 1000
    assert slot_ms < slots_over(first_over)
    assert not slot_ms < slots_over(first_over - 1)


def test_slots_are_those_of_rocketmq() -> None:
    assert slot_of(10_300) == 10_000
    assert slot_of(10_000) == 9_000


@pytest.mark.parametrize(
    ("timer_properties", "slot_ms"),
    [
        ({"TIMER_DELAY_SEC": "5"}, NOW + 4_500),
        ({"TIMER_DELAY_MS": "5000"}, NOW + 4_500),
        ({"TIMER_DELIVER_MS": str(NOW + 5_000)}, NOW + 4_500),
        ({"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"}, NOW + 4_500),
        ({"TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": "1"}, NOW + 4_500),
        ({"TIMER_DELAY_SEC": "0"}, None),
        ({"TIMER_DELAY_SEC": "-4"}, None),
        ({"TIMER_DELIVER_MS": str(NOW)}, None),
        ({"TIMER_DELAY_SEC": "259200"}, NOW + 259_200_000 - 500),
    ],
)
def test_timer_properties_become_slots(timer_properties: dict[str, str], slot_ms: int | None) -> None:
    assert plan_timer(timer_properties, NOW, TimerLimits()) == slot_ms


@pytest.mark.parametrize(
    "timer_properties",
    [
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_SEC": "1.5"},
        {"TIMER_DELAY_MS": "٣"},
        {"TIMER_DELIVER_MS": "9" * 19},
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELIVER_MS": str(NOW - 1), "TIMER_DEL_UNIQKEY": "T+u"},
    ],
)
def test_illegal_timer_properties_name_themselves(timer_properties: dict[str, str]) -> None:
    with pytest.raises(MessageIllegal, match=next(iter(timer_properties))):
        plan_timer(timer_properties, NOW, TimerLimits())


def test_wishes_are_refused_while_timers_are_off() -> None:
    with pytest.raises(RequestRejected, match="timerWheelEnable") as caught:
        plan_timer({"TIMER_DELAY_SEC": "5"}, NOW, TimerLimits(is_enabled=False))
    assert caught.value.code == 1


def test_stored_timer_message_is_read() -> None:
    timed = read_timer(stored(properties={"TIMER_OUT_MS": "17000"}))
    assert timed is not None
    assert (timed.key, timed.is_roll, timed.cancels) == (TimerKey(17_000, 3), False, "")
    recall = {"TIMER_OUT_MS": "17000", "TIMER_DEL_UNIQKEY": "T+u", "REAL_TOPIC": "T"}
    timed = read_timer(stored(properties=recall))
    assert timed is not None
    assert (timed.key, timed.cancels) == (TimerKey(17_000, CANCELLING + 3), "T+u")
    for topic in ("Other", "T+u", ""):
        timed = read_timer(stored(properties={**recall, "REAL_TOPIC": topic}))
        assert timed is not None
        assert (timed.key, timed.cancels) == (TimerKey(17_000, 3), ""), topic
    assert read_timer(stored(properties={})) is None
    assert read_timer(stored(properties={"TIMER_OUT_MS": "-1"})) is None


def test_message_that_waits_long_is_rolled_first() -> None:
    far = read_timer(stored(stored_at_ms=NOW, properties={"TIMER_OUT_MS": str(NOW + 10_000_500)}), 60_000)
    assert far is not None
    assert far.is_roll
    assert far.key.slot_ms == slot_of(NOW + 60_000)


# The checkpoint.


def test_timer_file_is_read_back() -> None:
    check = TimerCheck(TimerKey(17_000, 5), 40, 12, 3_600_000)
    data = encode_timer_file(check, DataVersion(counter=3, timestamp_ms=9))
    assert len(data) == FILE_BYTES
    assert struct.unpack_from(">7q", data) == (17_000, 0, 12, 12, 0, 9, 3)
    assert decode_timer_file(data) == check


def test_timer_file_of_rocketmq_is_read() -> None:
    data = struct.pack(">7q", 17_000, 520, 40, 40, 0, 9, 3).ljust(FILE_BYTES, b"\0")
    assert decode_timer_file(data) == TimerCheck(TimerKey(17_000, 0), 40, 0)
    with pytest.raises(RemoteProtocolError):
        decode_timer_file(b"\0" * 60)


def test_timer_answer_says_nothing_that_is_not_done() -> None:
    check = TimerCheck(TimerKey(17_000, 5), 40, 12)
    body = encode_timer_answer(check, DataVersion())
    assert struct.unpack_from(">7q", body)[:4] == (17_000, 0, 40, 40)
    heard = decode_timer_answer(body)
    assert heard == TimerCheck(TimerKey(17_000, 0), 40, 0)
    assert decode_timer_answer(body[:32]) == decode_timer_answer(body[:56]) == heard
    rolled = TimerCheck(TimerKey(17_000, 0), 40, 0, 3_600_000)
    assert decode_timer_answer(encode_timer_answer(rolled, DataVersion())) == rolled
    with pytest.raises(RemoteProtocolError):
        decode_timer_answer(body[:31])


def test_done_is_what_lies_before_both_marks() -> None:
    check = TimerCheck(TimerKey(2_000, 5), 10, 0)
    assert check.is_done(TimerKey(2_000, 4))
    assert check.is_done(TimerKey(1_000, 9))
    assert not check.is_done(TimerKey(2_000, 5))
    assert not check.is_done(TimerKey(1_000, 10))


# Progress.


def test_progress_waits_for_the_log() -> None:
    progress: Progress[str] = Progress()
    progress.add(10, "a")
    progress.add(20, "b")
    progress.add(20, "c", replaces=True)
    assert progress.settle(9) == []
    assert progress.settle(15) == ["a"]
    assert progress.settle(20) == ["c"]


def test_log_is_safe_where_disk_and_near_slaves_have_it() -> None:
    assert safe_end(flushed=50, appended=100, acknowledged=[], gap_bytes_max=80) == 50
    assert safe_end(flushed=50, appended=100, acknowledged=[40, 90], gap_bytes_max=80) == 40
    assert safe_end(flushed=50, appended=100, acknowledged=[10, 120], gap_bytes_max=80) == 50


# The recall handle.


def test_recall_handle_is_read_back() -> None:
    text = encode_recall_handle("T", "broker-a", 17_001, "AB")
    assert decode_recall_handle(text) == RecallHandle("T", "broker-a", 17_001, "AB")
    assert decode_recall_handle(text.rstrip("=")) == RecallHandle("T", "broker-a", 17_001, "AB")


@pytest.mark.parametrize("text", ["", "x", "é", "djIgYSBiIDEgYw==", "djEgYSBiIHggYw==", "A" * 2_000])
def test_text_that_is_no_handle_is_noticed(text: str) -> None:
    assert decode_recall_handle(text) is None


@given(st.binary(max_size=60))
def test_any_bytes_give_a_handle_or_none(data: bytes) -> None:
    decode_recall_handle(data.decode("latin-1"))


def test_a_turned_bit_in_the_timer_file_skips_no_timer() -> None:
    check = TimerCheck(TimerKey(17_000, 3), 60, 40, 3_000)
    data = encode_timer_file(check, DataVersion(counter=9, timestamp_ms=1_700_000_000_000))
    for bit in range(8 * 160):
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        read = decode_timer_file(bytes(turned))
        assert read in (check, TimerCheck(TimerKey(17_000, 0), 40, 0)), bit


def test_timer_file_changed_by_rocketmq_is_not_a_bit_flip() -> None:
    ours = encode_timer_file(TimerCheck(TimerKey(17_000, 3), 60, 40), DataVersion(counter=9))
    theirs = struct.pack(">7q", 18_000, 52, 70, 70, 0, 1_700_000_000_000, 10) + ours[56:]
    assert decode_timer_file(theirs) == TimerCheck(TimerKey(18_000, 0), 70, 0)
