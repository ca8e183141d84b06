from collections.abc import Sequence

import pytest
from replica_logs import checks_of, make_log

from no_history import connect
from tandemmq.protocol import speedups
from tandemmq.replication.core.effects import (
    Dial,
    Disconnect,
    Halt,
    HaltReason,
    RejectedBytes,
    Send,
    SlaveEffect,
    Store,
)
from tandemmq.replication.core.frames import BODY_BYTES_MAX, encode_head, encode_report
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import SlaveState
from tandemmq.replication.core.slave import NEVER_MS, SlaveSession

SEGMENT = 4096
MASTER = "10.0.0.1:10912"


@pytest.fixture(autouse=True)
def _without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "kernel", None)  # its runs: tests/property/test_slave_runs.py


def session() -> SlaveSession:
    return SlaveSession(options=ReplicationOptions(), segment_bytes=SEGMENT)


def connected(log_end: int, now_ms: int = 0) -> SlaveSession:
    subject = session()
    subject.on_assigned(MASTER)
    connect(subject, log_end, now_ms)
    return subject


def frame(log_offset: int, body: bytes) -> bytes:
    return encode_head(log_offset, len(body)) + body


def kinds(effects: Sequence[SlaveEffect]) -> list[type]:
    return [type(effect) for effect in effects]


def test_dials_as_soon_as_the_master_is_known() -> None:
    subject = session()
    assert subject.next_tick_ms() == NEVER_MS
    assert subject.on_assigned(MASTER) == [Dial(MASTER)]
    assert subject.on_assigned(MASTER) == []
    assert subject.state is SlaveState.DIALING


def test_first_report_leaves_at_once_and_twice() -> None:
    subject = session()
    subject.on_assigned(MASTER)
    assert connect(subject, 640, 0) == [Send(encode_report(640) * 2)]


def test_bytes_are_stored_before_they_are_reported() -> None:
    log, _ = make_log([10, 20], segment_bytes=SEGMENT)
    subject = connected(0)
    effects = subject.on_data(frame(0, log), 1)
    assert effects == [Store(0, memoryview(log), checks_of(log)), Send(encode_report(len(log)))]
    assert subject.reported == len(log)


def test_frames_of_one_read_are_reported_once() -> None:
    log, offsets = make_log([10, 20, 30], segment_bytes=SEGMENT)
    subject = connected(0)
    middle = offsets[1] + 7
    effects = subject.on_data(frame(0, log[:middle]) + frame(middle, log[middle:]), 1)
    assert kinds(effects) == [Store, Send]
    assert effects[-1] == Send(encode_report(len(log)))


def test_incomplete_record_is_neither_stored_nor_reported() -> None:
    log, offsets = make_log([10, 20], segment_bytes=SEGMENT)
    subject = connected(0)
    effects = subject.on_data(frame(0, log[:-1]), 1)
    assert effects == [
        Store(0, memoryview(log[: offsets[1]]), checks_of(log[: offsets[1]])),
        Send(encode_report(offsets[1])),
    ]
    assert subject.on_data(encode_head(len(log) - 1, 1), 2) == []
    assert kinds(subject.on_data(log[-1:], 3)) == [Store, Send]
    assert subject.reported == len(log)


def test_copy_resumes_at_the_own_end() -> None:
    log, offsets = make_log([10, 20], segment_bytes=SEGMENT)
    subject = connected(offsets[1])
    effects = subject.on_data(frame(offsets[1], log[offsets[1] :]), 1)
    assert kinds(effects) == [Store, Send]


def test_empty_slave_begins_at_the_file_that_the_master_chose() -> None:
    log, _ = make_log([10], segment_bytes=SEGMENT, start=3 * SEGMENT)
    subject = connected(0)
    assert subject.on_data(encode_head(2 * SEGMENT, 0), 1) == []  # a heartbeat does not fix the start yet
    effects = subject.on_data(frame(3 * SEGMENT, log), 1)
    assert effects[0] == Store(3 * SEGMENT, memoryview(log), checks_of(log, 3 * SEGMENT))


def test_empty_slave_refuses_to_begin_inside_a_file() -> None:
    subject = connected(0)
    halt, closing = subject.on_data(encode_head(SEGMENT // 2, 0), 1)
    assert isinstance(halt, Halt)
    assert halt.reason is HaltReason.FILE_SIZES_DIFFER
    assert isinstance(closing, Disconnect)


@pytest.mark.parametrize("shift", [-1, 1, SEGMENT])
def test_frame_at_another_offset_closes_and_stores_nothing_of_it(shift: int) -> None:
    log, offsets = make_log([10, 20], segment_bytes=SEGMENT)
    subject = connected(0)
    good = frame(0, log[: offsets[1]])
    bad = frame(offsets[1] + shift, log[offsets[1] :])
    effects = subject.on_data(good + bad, 1)
    assert kinds(effects) == [Store, Send, Disconnect]
    assert subject.state is SlaveState.PAUSED
    assert subject.on_data(b"more", 2) == []


def test_heartbeat_at_another_offset_closes_too() -> None:
    subject = connected(640)
    assert kinds(subject.on_data(encode_head(641, 0), 1)) == [Disconnect]
    assert subject.state is SlaveState.PAUSED


def test_first_heartbeat_before_our_end_means_that_we_are_ahead() -> None:
    subject = connected(640)
    halt, closing = subject.on_data(encode_head(128, 0), 1)
    assert isinstance(halt, Halt)
    assert (halt.reason, halt.log_offset) == (HaltReason.SLAVE_AHEAD, 128)
    assert isinstance(closing, Disconnect)
    assert subject.halt == halt
    assert subject.next_tick_ms() == NEVER_MS
    assert subject.on_tick(10**9) == []
    assert subject.on_assigned("10.0.0.2:10912") == [Dial("10.0.0.2:10912")]
    assert subject.halt is None


def test_frame_over_the_end_of_a_file_means_that_file_sizes_differ() -> None:
    subject = connected(SEGMENT - 100)
    halt = subject.on_data(encode_head(SEGMENT - 100, 101), 1)[0]
    assert isinstance(halt, Halt)
    assert halt.reason is HaltReason.FILE_SIZES_DIFFER
    assert connected(SEGMENT - 100).on_data(encode_head(SEGMENT - 100, 100), 1) == []


def test_impossible_size_closes() -> None:
    subject = connected(640)
    data = bytes(8) + (BODY_BYTES_MAX + 1).to_bytes(4, "big")
    assert kinds(subject.on_data(data, 1)) == [Disconnect]


def test_damage_is_not_stored_and_asked_for_again_once() -> None:
    log, offsets = make_log([10, 20], segment_bytes=SEGMENT)
    damaged = bytearray(log)
    damaged[offsets[1] + 95] ^= 1
    subject = connected(0)
    store, report, damage, closing = subject.on_data(frame(0, bytes(damaged)), 1)
    assert store == Store(0, memoryview(log[: offsets[1]]), checks_of(log[: offsets[1]]))
    assert report == Send(encode_report(offsets[1]))
    assert isinstance(damage, RejectedBytes)
    assert (damage.log_offset, damage.is_final) == (offsets[1], False)
    assert isinstance(closing, Disconnect)

    assert subject.on_tick(5_001) == [Dial(MASTER)]
    connect(subject, offsets[1], 5_001)
    effects = subject.on_data(frame(offsets[1], bytes(damaged[offsets[1] :])), 5_002)
    assert kinds(effects) == [RejectedBytes, Halt, Disconnect]
    assert subject.halt is not None
    assert subject.halt.reason is HaltReason.DAMAGED
    assert subject.halt.log_offset == offsets[1]


@pytest.mark.parametrize(
    "head",
    [encode_head(SEGMENT, 1), encode_head(SEGMENT - 8, 100)],
    ids=["at the wrong place", "across files"],
)
def test_of_damage_and_a_refused_head_behind_it_in_one_read_the_damage_decides(head: bytes) -> None:
    log, offsets = make_log([10, 20], segment_bytes=SEGMENT)
    damaged = bytearray(log)
    damaged[offsets[1] + 95] ^= 1
    subject = connected(0)
    store, report, damage, closing = subject.on_data(frame(0, bytes(damaged)) + head, 1)
    assert store == Store(0, memoryview(log[: offsets[1]]), checks_of(log[: offsets[1]]))
    assert report == Send(encode_report(offsets[1]))
    assert isinstance(damage, RejectedBytes)
    assert (damage.log_offset, damage.is_final) == (offsets[1], False)
    assert isinstance(closing, Disconnect)
    assert (subject.state, subject.halt) == (SlaveState.PAUSED, None)

    assert subject.on_tick(5_001) == [Dial(MASTER)]
    connect(subject, offsets[1], 5_001)
    effects = subject.on_data(frame(offsets[1], bytes(damaged[offsets[1] :])) + head, 5_002)
    assert kinds(effects) == [RejectedBytes, Halt, Disconnect]
    assert subject.halt is not None
    assert (subject.halt.reason, subject.halt.log_offset) == (HaltReason.DAMAGED, offsets[1])


def test_valid_records_are_stored_before_a_halt_for_different_file_sizes() -> None:
    log, _ = make_log([10, 20], segment_bytes=SEGMENT)
    subject = connected(0)
    effects = subject.on_data(frame(0, log) + encode_head(SEGMENT - 8, 100), 1)
    assert effects[:2] == [Store(0, memoryview(log), checks_of(log)), Send(encode_report(len(log)))]
    assert kinds(effects[2:]) == [Halt, Disconnect]
    assert subject.halt is not None
    assert subject.halt.reason is HaltReason.FILE_SIZES_DIFFER


def test_damage_on_the_way_heals_by_asking_again() -> None:
    log, _ = make_log([10], segment_bytes=SEGMENT)
    damaged = bytearray(log)
    damaged[95] ^= 1
    subject = connected(0)
    assert kinds(subject.on_data(frame(0, bytes(damaged)), 1)) == [RejectedBytes, Disconnect]
    subject.on_tick(5_001)
    connect(subject, 0, 5_001)
    assert kinds(subject.on_data(frame(0, log), 5_002)) == [Store, Send]


def test_heartbeat_repeats_the_last_report() -> None:
    subject = connected(640)
    assert subject.next_tick_ms() == 5_001
    assert subject.on_tick(5_000) == []
    assert subject.on_tick(5_001) == [Send(encode_report(640))]
    assert subject.on_tick(5_002) == []


def test_heartbeat_does_not_report_a_record_that_is_not_whole() -> None:
    log, _ = make_log([10], segment_bytes=SEGMENT)
    subject = connected(0)
    assert subject.on_data(frame(0, log[:-1]), 1) == []
    assert subject.on_tick(5_001) == [Send(encode_report(0))]


def test_silent_master_is_left_and_dialled_again_at_once() -> None:
    subject = connected(640)
    assert not any(isinstance(effect, Disconnect) for effect in subject.on_tick(20_000))
    assert kinds(subject.on_tick(20_001)) == [Disconnect, Dial]
    assert subject.state is SlaveState.DIALING


def test_heartbeat_of_the_master_counts_as_a_sign_of_life() -> None:
    subject = connected(640)
    subject.on_data(encode_head(640, 0), 15_000)
    assert not any(isinstance(effect, Disconnect) for effect in subject.on_tick(35_000))


def test_failure_is_followed_by_a_pause_and_another_attempt_for_ever() -> None:
    subject = session()
    subject.on_assigned(MASTER)
    now_ms = 0
    for _ in range(50):
        subject.on_failed("refused", now_ms)
        assert subject.state is SlaveState.PAUSED
        assert subject.on_tick(now_ms + 4_999) == []
        now_ms = subject.next_tick_ms()
        assert subject.on_tick(now_ms) == [Dial(MASTER)]


def test_new_address_ends_a_pause_but_keeps_a_connection_that_works() -> None:
    subject = connected(0)
    assert subject.on_assigned("10.0.0.2:10912") == []
    assert subject.state is SlaveState.TRANSFERRING
    subject.on_failed("lost", 1)
    assert subject.on_assigned("10.0.0.3:10912") == [Dial("10.0.0.3:10912")]


def test_heartbeats_alone_do_not_keep_a_connection_to_an_address_that_was_the_masters() -> None:
    subject = connected(640)
    subject.on_assigned("10.0.0.2:10912")
    for now_ms in (5_000, 10_000, 15_000, 20_000):
        subject.on_data(encode_head(640, 0), now_ms)
        assert not any(isinstance(effect, Disconnect) for effect in subject.on_tick(now_ms))
    assert subject.next_tick_ms() == 20_001
    assert kinds(subject.on_tick(20_001)) == [Disconnect, Dial]
    assert subject.state is SlaveState.DIALING
    connect(subject, 640, 20_002)
    subject.on_data(encode_head(640, 0), 40_002)  # the new address: heartbeats are sufficient
    assert not any(isinstance(effect, Disconnect) for effect in subject.on_tick(40_003))


def test_a_copy_from_an_address_that_was_the_masters_goes_on_while_bytes_come() -> None:
    log, offsets = make_log([10, 20], segment_bytes=SEGMENT)
    subject = connected(0)
    subject.on_assigned("10.0.0.2:10912")
    subject.on_data(frame(0, log[: offsets[1]]), 15_000)
    subject.on_data(encode_head(offsets[1], 0), 30_000)
    assert not any(isinstance(effect, Disconnect) for effect in subject.on_tick(35_000))
    assert kinds(subject.on_tick(35_001)) == [Disconnect, Dial]


def test_taking_the_address_away_ends_any_attempt() -> None:
    for subject in (connected(0), session()):
        if subject.state is SlaveState.UNASSIGNED:
            subject.on_assigned(MASTER)
        assert kinds(subject.on_assigned(None)) == [Disconnect]
        assert subject.state is SlaveState.UNASSIGNED
        assert subject.on_failed("late", 1) == []
        assert subject.on_assigned(MASTER) == [Dial(MASTER)]


def test_taking_the_address_away_while_pausing_or_halted() -> None:
    paused, halted = connected(0), connected(640)
    paused.on_failed("lost", 0)
    halted.on_data(encode_head(1, 0), 0)
    for subject in (paused, halted):
        assert subject.on_assigned(None) == []
        assert subject.state is SlaveState.UNASSIGNED


def test_stopped_session_does_nothing_more() -> None:
    subject = connected(0)
    assert kinds(subject.on_stopped()) == [Disconnect]
    assert subject.on_stopped() == []
    assert subject.on_assigned("10.0.0.9:1") == []
    assert subject.on_failed("late", 1) == []
    assert subject.on_tick(10**9) == []
    assert subject.next_tick_ms() == NEVER_MS
