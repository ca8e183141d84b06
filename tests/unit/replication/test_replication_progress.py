from types import SimpleNamespace
from typing import cast

import pytest

from tandemmq.errors import ConfigError
from tandemmq.replication.core.effects import TransferStarted
from tandemmq.replication.core.frames import encode_report
from tandemmq.replication.core.options import FirstTransfer, ReplicationOptions
from tandemmq.replication.core.progress import (
    LogRange,
    RateMeter,
    StartRule,
    is_in_sync,
    plan_start,
)
from tandemmq.replication.shell.master import KnownAhead, ReplicationMaster
from tandemmq.runtime.ports import Clock, Network
from tandemmq.store.message_store import MessageStore

SEGMENT = 1024
LAST, FIRST = FirstTransfer.LAST_FILE, FirstTransfer.FIRST_FILE


@pytest.mark.parametrize(
    ("reported", "log", "mode", "start", "rule"),
    [
        (0, LogRange(0, 0), LAST, 0, StartRule.LAST_FILE),
        (0, LogRange(0, 2500), LAST, 2048, StartRule.LAST_FILE),
        (0, LogRange(0, 2048), LAST, 2048, StartRule.LAST_FILE),
        (0, LogRange(1024, 2500), FIRST, 1024, StartRule.FIRST_FILE),
        (7, LogRange(0, 2500), LAST, 7, StartRule.RESUMED),
        (7, LogRange(0, 2500), FIRST, 7, StartRule.RESUMED),
        (2500, LogRange(0, 2500), LAST, 2500, StartRule.RESUMED),
        (2501, LogRange(0, 2500), LAST, 2501, StartRule.SLAVE_AHEAD),
        (1, LogRange(0, 0), LAST, 1, StartRule.SLAVE_AHEAD),
        (1023, LogRange(1024, 2500), LAST, 1023, StartRule.SLAVE_TOO_OLD),
        (1024, LogRange(1024, 2500), LAST, 1024, StartRule.RESUMED),
    ],
)
def test_start_of_a_transfer(
    reported: int, log: LogRange, mode: FirstTransfer, start: int, rule: StartRule
) -> None:
    planned = plan_start(reported, log, segment_bytes=SEGMENT, first_transfer=mode)
    assert (planned.reported, planned.log_offset, planned.rule) == (reported, start, rule)
    assert planned.master_end == log.end


def test_slave_once_found_ahead_stays_refused_when_our_log_has_grown_past_it() -> None:
    planned = plan_start(
        100, LogRange(0, 500), segment_bytes=SEGMENT, first_transfer=LAST, known_ahead={100: 60}
    )
    assert planned.rule is StartRule.SLAVE_AHEAD
    assert planned.master_end == 60


def test_a_copy_that_the_master_has_taken_over_is_ahead_no_more() -> None:
    """A copy that holds more than the master took over stays refused."""
    known = KnownAhead()
    for end in (100, 500, 501):
        known.add("10.0.0.1", plan_start(end, LogRange(0, 60), segment_bytes=SEGMENT, first_transfer=LAST))
    known.forget_below(500)
    assert known.ends_of("10.0.0.1") == {501: 60}


@pytest.mark.parametrize("is_known", [True, False])
def test_whether_a_copy_is_known_to_be_ahead_is_asked_when_it_reports(is_known: bool) -> None:
    """It is not asked when the connection is accepted: in between a master may settle, or refuse the copy
    elsewhere.
    """
    store = SimpleNamespace(options=SimpleNamespace(commit_log_file_bytes=SEGMENT), max_log_offset=500)
    master = ReplicationMaster(
        cast(MessageStore, store),
        ReplicationOptions(),
        network=cast(Network, None),
        clock=cast(Clock, None),
    )
    refused = plan_start(100, LogRange(0, 60), segment_bytes=SEGMENT, first_transfer=LAST)
    if not is_known:
        master._known_ahead.add("10.0.0.1", refused)
    session = master.new_session("10.0.0.1", 0)
    if is_known:
        master._known_ahead.add("10.0.0.1", refused)
    else:
        master.on_settled()
    started = session.on_data(encode_report(100), LogRange(0, 500), 1)[0]
    assert isinstance(started, TransferStarted)
    assert started.start.rule is (StartRule.SLAVE_AHEAD if is_known else StartRule.RESUMED)


def test_in_sync_gap_is_strict() -> None:
    assert is_in_sync(LogRange(0, 100), 1, gap_bytes_max=100)
    assert not is_in_sync(LogRange(0, 100), 0, gap_bytes_max=100)


@pytest.mark.parametrize("acknowledged", [0, 49, 101])
def test_slave_outside_the_masters_log_is_never_in_sync(acknowledged: int) -> None:
    assert not is_in_sync(LogRange(50, 100), acknowledged, gap_bytes_max=1_000)


@pytest.mark.parametrize(("is_tandem", "start"), [(True, 1024), (False, 2048)])
def test_empty_slave_starts_by_whose_it_is(is_tandem: bool, start: int) -> None:
    planned = plan_start(
        0,
        LogRange(1024, 2500),
        segment_bytes=SEGMENT,
        first_transfer=FirstTransfer.NEGOTIATED,
        is_tandem=is_tandem,
    )
    assert planned.log_offset == start
    assert planned.rule is (StartRule.FIRST_FILE if is_tandem else StartRule.LAST_FILE)


def test_rate_is_that_of_the_last_complete_second() -> None:
    meter = RateMeter()
    meter.add(100, 10_000)
    meter.add(50, 10_999)
    assert (meter.this_second(10_999), meter.per_second(10_999)) == (150, 0)
    assert (meter.this_second(11_000), meter.per_second(11_500)) == (0, 150)
    assert meter.per_second(13_000) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"heartbeat_interval_ms": 0},
        {"transfer_bytes_max": 0},
        {"transfer_bytes_max": 4 * 1024 * 1024 - 11},
        {"heartbeat_interval_ms": 20_000},
        {"record_bytes_max": 0},
    ],
)
def test_option_out_of_range_is_named(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        ReplicationOptions(**change)  # type: ignore[arg-type]  # only integers are changed
