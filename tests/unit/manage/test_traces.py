"""The trace of a message, from records of clients of all kinds."""

from __future__ import annotations

from msgspec.structs import replace

from tandemmq.manage.traces import MessageTrace, TracedEnd, TracedRecall, parse_trace
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import Record

HOST = encode_host("10.0.0.9", 4000)
EMPTY = Record("t", 0, 0, 0, 0, b"", 0, 0, 0, 0, HOST, 0, HOST, 0, 0, b"")


def record(*lines: str) -> Record:
    body = "".join(line.replace("|", "\x01") + "\x02" for line in lines)
    return replace(EMPTY, body=body.encode())


def test_the_parts_of_a_trace_are_matched_whatever_their_order() -> None:
    trace = parse_trace(
        "K",
        [
            record("SubAfter|r1|K|7|true|key|0|1010|readers", "SubAfter|r2|K|9|false|key|4|"),
            record("SubBefore|1000|eu|readers|r1|K|2|key", "SubBefore|1000|eu|readers|r3|OTHER|2|key"),
            record("Pub|900|eu|makers|t|K|tag|key|10.0.0.1:10911|5|3|3|ID|true|10.0.0.8"),
            record(
                "EndTransaction|950|eu|makers|t|K|||h|1|tx|COMMIT_MESSAGE|true", "Recall|960|eu|m|t|K|false"
            ),
            record("nonsense", "Pub|x", "", "Pub|no|eu|makers|t|K|tag|key|b|5|no|9|ID|yes"),
        ],
    )
    assert [(one.kind, one.sent_at_ms, one.is_ok) for one in trace.sends] == [
        ("delayed", 900, True),
        ("9", 0, False),
    ]
    first, second = trace.handlings
    assert (first.begun_at_ms, first.ended_at_ms, first.retry_count, first.outcome) == (
        1000,
        1010,
        2,
        "success",
    )
    assert (second.begun_at_ms, second.group, second.outcome) == (None, "", "failed")
    assert trace.ends == (TracedEnd("makers", "10.0.0.9", 950, "COMMIT_MESSAGE", is_from_check=True),)
    assert trace.recalls == (TracedRecall("m", "10.0.0.9", 960, is_ok=False),)
    assert trace


def test_no_record_is_no_trace() -> None:
    assert not parse_trace("K", [])
    assert not MessageTrace()
