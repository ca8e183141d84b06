import pytest

from tandemmq.replication.core.effects import Acknowledged, Disconnect, FellBehind, Send, TransferStarted
from tandemmq.replication.core.frames import encode_head, encode_report
from tandemmq.replication.core.master import DETECTION_MS, MasterSession
from tandemmq.replication.core.options import FirstTransfer, ReplicationOptions
from tandemmq.replication.core.progress import LogRange, MasterState, StartRule

SEGMENT = 100_000
LOG = LogRange(0, 250_000)


def session(**changes: object) -> MasterSession:
    options = ReplicationOptions(**changes)  # type: ignore[arg-type]  # tests name real fields
    return MasterSession(options=options, segment_bytes=SEGMENT, now_ms=0)


def subscribed(reported: int, log: LogRange = LOG, **changes: object) -> MasterSession:
    subject = session(**changes)
    subject.on_data(encode_report(reported), log, 0)
    return subject


def test_nothing_is_sent_before_the_first_report() -> None:
    subject = session()
    assert subject.sendable_bytes(LOG, 0, bytes_max=1000) == 0
    assert subject.on_tick(LOG, 6_000, can_write=True) == []
    assert subject.state is MasterState.SUBSCRIBING


def test_first_report_is_answered_with_an_explicit_start() -> None:
    subject = session()
    assert subject.on_data(encode_report(0), LOG, 0) == []
    assert subject.next_tick_ms(0) == DETECTION_MS + 1
    assert subject.on_tick(LOG, DETECTION_MS, can_write=True) == []
    effects = subject.on_tick(LOG, DETECTION_MS + 1, can_write=True)
    assert isinstance(effects[0], TransferStarted)
    assert effects[0].start.rule is StartRule.LAST_FILE
    assert effects[1:] == [Acknowledged(0)]
    assert subject.next_offset == 200_000
    assert subject.state is MasterState.TRANSFERRING


@pytest.mark.parametrize("cut", range(8, 17))
def test_empty_slave_of_ours_gets_everything_however_its_hello_is_cut(cut: int) -> None:
    subject = session()
    hello = encode_report(0) * 2
    log = LogRange(100_000, 250_000)
    effects = subject.on_data(hello[:cut], log, 0) + subject.on_data(hello[cut:], log, 3)
    started = effects[0]
    assert isinstance(started, TransferStarted)
    assert (started.start.rule, started.start.log_offset) == (StartRule.FIRST_FILE, 100_000)
    assert subject.is_tandem


def test_empty_slave_need_not_wait_when_both_rules_agree() -> None:
    subject = session()
    effects = subject.on_data(encode_report(0), LogRange(0, 90_000), 0)
    assert isinstance(effects[0], TransferStarted)
    assert effects[0].start.log_offset == 0


def test_a_second_report_that_comes_late_is_a_heartbeat_of_rocketmq() -> None:
    subject = session()
    subject.on_data(encode_report(0), LOG, 0)
    effects = subject.on_data(encode_report(0), LOG, 5_000)
    assert isinstance(effects[0], TransferStarted)
    assert effects[0].start.rule is StartRule.LAST_FILE
    assert not subject.is_tandem


def test_empty_slave_gets_everything_when_told_so() -> None:
    subject = subscribed(0, LogRange(100_000, 250_000), first_transfer=FirstTransfer.FIRST_FILE)
    assert subject.next_offset == 100_000


def test_report_split_over_reads_is_one_report() -> None:
    subject = session()
    report = encode_report(240_000)
    assert subject.on_data(report[:3], LOG, 0) == []
    effects = subject.on_data(report[3:], LOG, 0)
    assert Acknowledged(240_000) in effects


def test_acknowledgements_that_arrive_together_count_as_the_last() -> None:
    subject = subscribed(240_000)
    subject.frames(memoryview(bytes(3)), 0)
    effects = subject.on_data(b"".join(map(encode_report, (240_001, 240_002, 240_003))), LOG, 1)
    assert effects == [Acknowledged(240_003)]
    assert subject.acknowledged == 240_003


def test_frames_cover_the_view_in_batches_and_advance() -> None:
    subject = subscribed(0, LogRange(0, 90), transfer_bytes_max=40)
    log = bytes(range(90))
    wanted = subject.sendable_bytes(LogRange(0, 90), 0, bytes_max=1000)
    assert wanted == 90
    assert b"".join(subject.frames(memoryview(log), 0)) == (
        encode_head(0, 40) + log[:40] + encode_head(40, 40) + log[40:80] + encode_head(80, 10) + log[80:]
    )
    assert subject.next_offset == 90
    assert subject.sendable_bytes(LogRange(0, 90), 0, bytes_max=1000) == 0


def test_a_slave_of_ours_gets_long_frames_one_of_rocketmq_short_ones() -> None:
    view = memoryview(bytes(80_000))
    tandem = session()
    tandem.on_data(encode_report(0) * 2, LOG, 0)
    assert [len(piece) for piece in tandem.frames(view, 0)] == [12, 80_000]
    classic = subscribed(200_000, LogRange(0, 280_000))
    assert [len(piece) for piece in classic.frames(view, 0)] == [12, 32_768, 12, 32_768, 12, 14_464]


def test_transfer_never_crosses_a_segment() -> None:
    subject = subscribed(99_990)
    assert subject.sendable_bytes(LOG, 0, bytes_max=1000) == 10
    subject.frames(memoryview(bytes(10)), 0)
    assert subject.sendable_bytes(LOG, 0, bytes_max=10**9) == SEGMENT


def test_heartbeat_after_more_than_the_interval_without_a_write() -> None:
    subject = subscribed(240_000)
    assert subject.next_tick_ms(0) == 5_001
    assert subject.on_tick(LOG, 5_000, can_write=True) == []
    assert subject.on_tick(LOG, 5_001, can_write=False) == []
    assert subject.on_tick(LOG, 5_001, can_write=True) == [Send(encode_head(240_000, 0))]
    assert subject.on_tick(LOG, 5_002, can_write=True) == []


def test_data_puts_the_heartbeat_off() -> None:
    subject = subscribed(240_000)
    subject.frames(memoryview(b"x"), 4_000)
    assert subject.on_tick(LOG, 9_000, can_write=True) == []
    assert subject.on_tick(LOG, 9_001, can_write=True) == [Send(encode_head(240_001, 0))]


@pytest.mark.parametrize("has_reported", [False, True])
def test_silent_slave_is_dropped_after_more_than_the_limit(has_reported: bool) -> None:
    subject = subscribed(240_000) if has_reported else session()
    assert not any(isinstance(e, Disconnect) for e in subject.on_tick(LOG, 20_000, can_write=True))
    (effect,) = subject.on_tick(LOG, 20_001, can_write=True)
    assert isinstance(effect, Disconnect)
    assert subject.is_closed
    assert subject.on_tick(LOG, 30_000, can_write=True) == []


def test_any_byte_counts_as_a_sign_of_life() -> None:
    subject = subscribed(240_000)
    subject.on_data(b"\0", LOG, 15_000)
    assert not subject.is_closed
    assert not any(isinstance(e, Disconnect) for e in subject.on_tick(LOG, 35_000, can_write=False))
    assert subject.on_tick(LOG, 35_001, can_write=False) != []


def test_negative_report_ends_the_connection() -> None:
    (effect,) = session().on_data(encode_report(-1), LOG, 0)
    assert isinstance(effect, Disconnect)


def test_acknowledgement_of_bytes_never_sent_ends_the_connection() -> None:
    subject = subscribed(240_000)
    (effect,) = subject.on_data(encode_report(240_001), LOG, 0)
    assert isinstance(effect, Disconnect)
    assert subject.acknowledged == 240_000


def test_slave_of_rocketmq_that_is_ahead_gets_heartbeats_only() -> None:
    subject = session()
    (effect,) = subject.on_data(encode_report(260_000), LOG, 0)
    assert isinstance(effect, TransferStarted)
    assert effect.start.rule is StartRule.SLAVE_AHEAD
    grown = LogRange(0, 300_000)
    assert subject.sendable_bytes(grown, 1, bytes_max=1000) == 0
    assert subject.on_tick(grown, 5_001, can_write=True) == [Send(encode_head(260_000, 0))]
    assert subject.on_data(encode_report(260_000), grown, 5_002) == []
    assert subject.acknowledged == 0
    assert not subject.is_closed


@pytest.mark.parametrize("is_split", [False, True])
def test_slave_of_ours_that_is_ahead_is_told_and_refused(is_split: bool) -> None:
    subject = session()
    report = encode_report(260_000)
    effects = subject.on_data(report * (1 if is_split else 2), LOG, 0)
    if is_split:
        effects += subject.on_data(report, LOG, DETECTION_MS)
    assert isinstance(effects[0], TransferStarted)
    assert effects[1] == Send(encode_head(250_000, 0))
    assert isinstance(effects[2], Disconnect)
    assert subject.is_tandem


def test_late_repetition_is_a_heartbeat_and_no_sign_of_ours() -> None:
    subject = subscribed(260_000)
    assert subject.on_data(encode_report(260_000), LOG, DETECTION_MS + 1) == []
    assert not subject.is_tandem


def test_slave_older_than_our_log_gets_heartbeats_only() -> None:
    log = LogRange(100_000, 250_000)
    subject = subscribed(50_000, log)
    assert subject.state is MasterState.TOO_OLD
    assert subject.sendable_bytes(log, 0, bytes_max=1000) == 0
    assert subject.on_tick(log, 5_001, can_write=True) == [Send(encode_head(50_000, 0))]


def test_cleaning_past_a_slow_slave_ends_its_connection() -> None:
    subject = subscribed(50_000)
    log = LogRange(100_000, 250_000)
    assert subject.sendable_bytes(log, 1, bytes_max=1000) == 0
    behind, end = subject.on_tick(log, 1, can_write=True)
    assert behind == FellBehind(50_000, 100_000)
    assert end == Disconnect("the log no longer has the slave's next byte, 50000")
    assert subject.is_closed
    assert subject.on_tick(log, 2, can_write=True) == []


def test_flow_control_counts_heads_and_bodies_and_opens_with_the_next_second() -> None:
    subject = subscribed(0, LogRange(0, 90_000), flow_control=True, sent_bytes_per_second_max=1_000)
    log = LogRange(0, 90_000)
    assert subject.sendable_bytes(log, 100, bytes_max=5_000) == 1_000 - 12
    subject.frames(memoryview(bytes(600)), 100)
    assert subject.sendable_bytes(log, 200, bytes_max=5_000) == 1_000 - 612 - 12
    subject.frames(memoryview(bytes(376)), 200)
    assert subject.sendable_bytes(log, 999, bytes_max=5_000) == 0
    assert subject.next_tick_ms(999) == 1_000
    assert subject.sendable_bytes(log, 1_000, bytes_max=5_000) == 1_000 - 12


def test_flow_control_counts_the_head_of_every_batch() -> None:
    changes = {"flow_control": True, "sent_bytes_per_second_max": 500, "transfer_bytes_max": 100}
    subject = subscribed(0, LogRange(0, 90_000), **changes)
    wanted = subject.sendable_bytes(LogRange(0, 90_000), 0, bytes_max=5_000)
    assert sum(map(len, subject.frames(memoryview(bytes(wanted)), 0))) == 500


def test_rate_counts_what_was_sent() -> None:
    subject = subscribed(0, LogRange(0, 90_000))
    subject.frames(memoryview(bytes(100)), 500)
    assert subject.rate.per_second(1_000) == 112


def test_closing_is_allowed_in_every_state() -> None:
    for subject in (session(), subscribed(0), subscribed(260_000)):
        subject.on_closed()
        subject.on_closed()
        assert subject.is_closed
