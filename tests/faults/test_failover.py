"""`make failover`, short, and tests that its judges find faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from failover import (
    FULL_HANDED_OVER,
    HANDED_OVER,
    KILLED,
    OURS,
    TOPIC,
    Ack,
    Failover,
    History,
    NoSuchFault,
    Round,
    by_client,
    client_line,
    different_logs,
    failover,
    not_linearizable,
    report,
    short_reason,
    two_masters,
)
from java_senders import NUMBERS, JavaSend, body_of, client_of, read_sends
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
        pytest.param([ack("b", 100, 2), ack("a", 50, 3)], 1, id="the old one continues"),
        pytest.param([ack("b", 100, 2), ack("a", 50, 2.2)], 0, id="an answer that was late"),
    ],
)
def test_two_masters_are_found(acks: list[Ack], found: int) -> None:
    assert len(two_masters(acks, TERMS)) == found


@pytest.mark.parametrize(
    ("places", "found"),
    [
        pytest.param({0: 0, 1: 1, 2: 2}, "", id="one after the other"),
        pytest.param({0: 0, 1: 2, 2: 1}, "was answered before", id="a later send is before an earlier one"),
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
        history.ledger.delivered_s[TOPIC, 0, offset] = 9.0
        if number < 3 and body not in history.ledger.promised.values():
            history.record_ack(0, offset, body, Ack(number, number + 0.5, "a", 0, ""))
    history.ledger._delivered = delivered
    assert found in " ".join(not_linearizable(history))
    assert bool(not_linearizable(history)) is bool(found)


def test_judge_stream_finds_lost_and_duplicated_messages() -> None:
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


def test_java_producer_output_is_parsed() -> None:
    lines = [
        "BEGUN 7 1000000000",
        "OK 7 1500000000 2 40 7F00000200002B670000000000000064",
        "BEGUN 8 2000000000",
        "FAILED 8 2250000000 an.Exception: CODE: 14 DESC: nobody leads",
        "an exception of the JVM",
        "BEGUN 9 3000000000",
        "OK",
    ]
    assert read_sends(lines) == [
        JavaSend(7, 1.0, 1.5, 2, 40, "7F00000200002B670000000000000064"),
        JavaSend(8, 2.0, 2.25, reason="an.Exception: CODE: 14 DESC: nobody leads"),
        JavaSend(9, 3.0),
    ]
    assert [client_of(number) for number in (0, NUMBERS, 2 * NUMBERS + 5)] == [OURS, "java 4.9", "java 5.x"]


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        (
            "org.apache.MQBrokerException: CODE: 14 DESC: the disk is full BROKER: 127.0.2.1:1 For more",
            "MQBrokerException: CODE: 14 DESC: the disk is full",
        ),
        (
            "org.apache.RemotingConnectException: connect to 127.0.2.2:12624 failed",
            "RemotingConnectException: connect to failed",
        ),
        ("FLUSH_SLAVE_TIMEOUT", "FLUSH_SLAVE_TIMEOUT"),
    ],
)
def test_why_a_java_send_failed_is_told_in_short(reason: str, short: str) -> None:
    assert short_reason(reason) == short


JAVA_ID = "7F00000200002B670000000000000064"


def java_history(cause: str, sends: list[JavaSend], delivered: dict[int, int]) -> History:
    """One round from 1 to 9 s, with one answer for the TandemMQ client; `delivered`: number by offset, of
    queue 1.
    """
    history = History(rounds=[Round(cause, 0.0, 0, 1.0, 9.0)], begun_s={0: 1.25})
    history.record_ack(0, 0, body_of(0), Ack(1.25, 1.5, "a", 0, cause))
    history.record_java(sends)
    places = {(TOPIC, 0, 0): 0, **{(TOPIC, 1, offset): number for offset, number in delivered.items()}}
    history.ledger._delivered = {place: body_of(number) for place, number in places.items()}
    history.ledger.delivered_s.update(dict.fromkeys(places, 10.0))
    return history


def test_each_client_is_counted_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = NUMBERS, NUMBERS + 1, NUMBERS + 2
    sends = [
        JavaSend(first, 0.5, 0.75, 1, 0, JAVA_ID),
        JavaSend(second, 2.0, 4.5, reason="refused"),
        JavaSend(third, 5.0, 6.0, 1, 2, JAVA_ID),
    ]
    history = java_history(KILLED, sends, {0: first, 1: second, 2: third, 3: third})
    found = by_client(history)
    assert found["java 4.9", KILLED].rto_ms == [5000.0]
    assert (found["java 4.9", KILLED].failed, found["java 4.9", KILLED].stored_twice) == (1, 1)
    assert found[OURS, KILLED].rto_ms == [7500.0]
    assert client_line("java 4.9", 2, found) == (
        "java 4.9: acknowledged=2 failed=1 lost=0 stored_twice=1 rto_killed_ms=5000/5000 rto_silent_ms=0/0"
    )
    assert report(history, [], has_java=True) == 0
    assert "acknowledged=3 lost=0 duplicated_offsets=0" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("send", "delivered", "cause", "found"),
    [
        pytest.param(JavaSend(NUMBERS, 2.0, 3.0, 1, 0, JAVA_ID), {}, KILLED, "lost=1", id="lost"),
        pytest.param(
            JavaSend(NUMBERS, 2.0, 3.0, 1, 0, JAVA_ID), {0: NUMBERS + 1}, KILLED, "lost=1", id="another one"
        ),
        pytest.param(
            JavaSend(NUMBERS, 2.0, 3.0, 0, 0, JAVA_ID), {}, KILLED, "duplicated_offsets=1", id="our place"
        ),
        pytest.param(
            JavaSend(NUMBERS, 2.0, 3.0, reason="refused"),
            {},
            HANDED_OVER,
            "1 sends of Java's clients failed",
            id="failed at a hand-over",
        ),
    ],
)
def test_report_finds_denied_java_sends(
    send: JavaSend, delivered: dict[int, int], cause: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unanswered = JavaSend(NUMBERS + 1, 2.0)
    assert report(java_history(cause, [send, unanswered], delivered), [], has_java=True) == 1
    assert found in capsys.readouterr().out


def test_logs_that_differ_are_found(tmp_path: Path) -> None:
    contents = {"1": b"same\0\0", "2": b"same", "3": b"else"}
    stores = [tmp_path / name for name in contents]
    for store in stores:
        (store / "commitlog").mkdir(parents=True)
        (store / "commitlog" / "0").write_bytes(contents[store.name])
    (stores[0] / "commitlog" / "6").write_bytes(bytes(6))
    assert different_logs(stores[:2]) == []
    assert len(different_logs(stores)) == 1
