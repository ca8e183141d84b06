"""`make failover`, short, and that its judges find what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from failover import (
    FULL_HANDED_OVER,
    TOPIC,
    Ack,
    Failover,
    History,
    NoSuchFault,
    different_logs,
    failover,
    not_linearizable,
    two_masters,
)
from spark_reader import Batch, judge_stream

from tandemmq.protocol.bodies.replica import EpochRange

TERMS = [EpochRange(end=100, epoch=1, start=0), EpochRange(end=2**63 - 1, epoch=3, start=100)]


@pytest.mark.process
def test_some_rounds_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failover(tmp_path, rounds=2, seed=1, seconds=600) == 0
    check_last_line(capsys.readouterr().out, rounds=2)


@pytest.mark.process
def test_no_send_fails_at_a_rolling_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failover(tmp_path, rounds=1, seed=1, seconds=600, only="restart_all") == 0
    out = capsys.readouterr().out
    check_last_line(out, rounds=1)
    assert re.search(r"^rolling restart: \d+ ms, 0 failed", out, re.MULTILINE)


@pytest.mark.process
def test_full_disks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert failover(tmp_path, rounds=3, seed=1, seconds=600, only="disk") == 0
    except NoSuchFault:
        pytest.skip(capsys.readouterr().out)
    out = capsys.readouterr().out
    check_last_line(out, rounds=3)
    for fault in ("controller's disk full, master killed", "master's disk full", FULL_HANDED_OVER):
        assert re.search(rf"^{fault}: \d+ ms", out, re.MULTILINE), fault


def test_a_fault_that_nobody_knows_is_named() -> None:
    with pytest.raises(NoSuchFault, match="no fault here has 'flood' in its name; there are kill_master, "):
        Failover.choose("flood", with_disks=False)
    with pytest.raises(NoSuchFault):
        Failover.choose("disk", with_disks=False)


def check_last_line(out: str, rounds: int) -> None:
    assert re.fullmatch(
        rf"FAILOVER OK rounds={rounds} acknowledged=\d+ lost=0 duplicated_offsets=0 two_masters=0"
        r" rto_killed_ms=\d+/\d+ rto_silent_ms=\d+/\d+ handover_failed_sends=0",
        out.splitlines()[-1],
    )


def ack(host: str, log_offset: int, begun_s: float) -> Ack:
    return Ack(begun_s, begun_s + 0.5, host, log_offset, "")


@pytest.mark.parametrize(
    ("acks", "found"),
    [
        pytest.param([ack("a", 0, 0), ack("b", 100, 2), ack("b", 200, 3)], 0, id="one after the other"),
        pytest.param([ack("a", 0, 0), ack("b", 50, 1)], 1, id="two of one term"),
        pytest.param([ack("b", 100, 2), ack("a", 50, 3)], 1, id="the old one goes on"),
        pytest.param([ack("b", 100, 2), ack("a", 50, 2.2)], 0, id="an answer that was late"),
    ],
)
def test_two_masters_are_found(acks: list[Ack], found: int) -> None:
    assert len(two_masters(acks, TERMS)) == found


@pytest.mark.parametrize(
    ("places", "found"),
    [
        pytest.param({0: 0, 1: 1, 2: 2}, "", id="one after the other"),
        pytest.param({0: 0, 1: 2, 2: 1}, "was answered before", id="a later send lies before an earlier one"),
        pytest.param({0: 0, 1: 1, 2: 3}, "", id="without an answer"),
        pytest.param({0: 0, 1: 3, 2: 1}, "was answered before", id="begun when a later one had its answer"),
        pytest.param({0: 0, 1: 1, 2: 1}, "", id="sent again"),
    ],
)
def test_a_history_that_no_list_has_is_found(places: dict[int, int], found: str) -> None:
    """Three sends with an answer, one after the other; the fourth has none."""
    history = History(begun_s={number: float(number) for number in range(4)})
    delivered = {}
    for offset, number in places.items():
        body = b"%d x" % number
        delivered[TOPIC, 0, offset] = body
        history.lists.delivered_s[TOPIC, 0, offset] = 9.0
        if number < 3 and body not in history.lists.promised.values():
            history.note_ack(0, offset, body, Ack(number, number + 0.5, "a", 0, ""))
    history.lists._delivered = delivered
    assert found in " ".join(not_linearizable(history))
    assert bool(not_linearizable(history)) is bool(found)


def test_what_a_stream_lost_or_read_twice_is_found() -> None:
    promised = {(0, 0): 0, (0, 1): 1, (1, 0): 2}
    begun_s = {number: float(number) for number in range(4)}
    first = Batch(0, 1.5, ((0, 0, 0), (0, 1, 1)))
    second = Batch(1, 3.25, ((1, 0, 2), (1, 1, 3)))
    sound = judge_stream([first, first, second], promised, begun_s=begun_s, faults_s=[1.25, 9.0])
    assert (sound.row_count, sound.lost, sound.duplicated, sound.waits_ms) == (4, [], [], [2000.0])
    assert sound.line() == "spark stream: rows=4 lost=0 duplicated=0 restarts=0 next_batch_ms=2000/2000"
    missing = judge_stream([first], promised, begun_s=begun_s, faults_s=[])
    assert missing.lost == ["the stream has None at (1, 0), not send 2"]
    other = judge_stream([first, Batch(1, 2.0, ((1, 0, 7),))], promised, begun_s=begun_s, faults_s=[])
    assert other.lost == ["the stream has 7 at (1, 0), not send 2"]
    twice = judge_stream([first, second, Batch(2, 4.0, ((0, 1, 1),))], promised, begun_s=begun_s, faults_s=[])
    assert twice.duplicated == ["the stream has (0, 1) 2 times"]


def test_logs_that_differ_are_found(tmp_path: Path) -> None:
    contents = {"1": b"same\0\0", "2": b"same", "3": b"else"}
    stores = [tmp_path / name for name in contents]
    for store in stores:
        (store / "commitlog").mkdir(parents=True)
        (store / "commitlog" / "0").write_bytes(contents[store.name])
    (stores[0] / "commitlog" / "6").write_bytes(bytes(6))
    assert different_logs(stores[:2]) == []
    assert len(different_logs(stores)) == 1
