"""The bodies that `tandemmq produce` sends: limits, pace, keys, and the JSON of `tail`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tandemmq.client import Message
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.message import check_message
from tandemmq.shell import sources
from tandemmq.shell.sources import (
    UnusableInput,
    limit_bodies,
    pace_bodies,
    read_json,
    read_lines,
    read_whole,
    repeat_bodies,
    split_key,
)

EVERY = Message("T", b"", tags="", properties={"own": "1"})


def test_a_count_ends_the_source_and_skips_empty_bodies() -> None:
    parts = [[b"a", b""], [b"", b"b", b"c"], [b"d"]]
    assert list(limit_bodies(iter(parts), 2)) == [[b"a", b""], [b"", b"b"]]
    assert list(limit_bodies(iter(parts), 9)) == parts


def test_texts_are_repeated_in_turn() -> None:
    found = [body for part in repeat_bodies([b"a", b"b"], 2_501) for body in part]
    assert len(found) == 2_501
    assert found[:3] == [b"a", b"b", b"a"]


def test_a_rate_is_kept_and_a_pause_of_the_reader_is_not_made_up_for() -> None:
    time_s = 0.0
    sent: list[tuple[float, int]] = []

    def now() -> float:
        return time_s

    def sleep(seconds: float) -> None:
        nonlocal time_s
        time_s += seconds

    bodies = iter([[b"x"] * 100, [b"x"] * 100])
    for part in pace_bodies(bodies, 100.0, now=now, sleep=sleep):
        sent.append((round(time_s, 2), len(part)))
        if len(sent) == 20:
            time_s += 10.0
    assert max(count for _, count in sent) == 5
    assert sent[19][0] == 0.95  # 100 messages in a second
    assert sent[-1][0] >= 11.8


@pytest.mark.parametrize("size", [10, 3 * sources.READ_BYTES])
def test_a_whole_input_is_one_body(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"a\n" * (size // 2))
    with open(tmp_path / "f", "rb") as file:
        assert list(read_whole(file.fileno(), "f")) == [[b"a\n" * (size // 2)]]


def test_an_input_that_no_message_can_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BODY_BYTES_MAX", 4)
    (tmp_path / "f").write_bytes(b"12345")
    for read in (read_lines, lambda source: read_whole(source, "f")):
        source = os.open(tmp_path / "f", os.O_RDONLY)
        with pytest.raises(UnusableInput, match="longer than 4 bytes"):
            list(read(source))
        os.close(source)


def test_the_json_of_tail_becomes_the_same_message() -> None:
    line = {
        "body": "é",
        "tags": "paid",
        "keys": ["k1", "k2"],
        "properties": {"a": "b", "UNIQ_KEY": "x", "_SYS_MSG_PRIORITY_": "3"},
        "offset": 7,
    }
    made = read_json(json.dumps(line).encode(), EVERY)
    assert made == Message(
        "T", "é".encode(), tags="paid", keys=["k1", "k2"], properties={"a": "b", "own": "1"}, priority=3
    )
    assert read_json(b'{"body_base64": "/wA="}', EVERY).body == b"\xff\x00"
    assert read_json(json.dumps(line).encode(), Message("T", b"", tags="own")).tags == "own"


@pytest.mark.parametrize("line", [b"x", b"[]", b"{}", b'{"body": 1}', b'{"body_base64": "?"}', b"\xff"])
def test_another_line_is_refused_with_its_begin(line: bytes) -> None:
    with pytest.raises(UnusableInput, match="body or body_base64"):
        read_json(line, EVERY)


def test_values_of_a_line_keep_their_types_and_the_producer_refuses_wrong_ones() -> None:
    for fields, fault in (({"tags": ["a"]}, "tags must be str, not list"), ({"keys": 5}, "keys")):
        with pytest.raises(MessageIllegal, match=fault):
            check_message(read_json(json.dumps({"body": "x", **fields}).encode(), Message("T", b"x")))


def test_a_key_is_before_the_delimiter() -> None:
    assert split_key(b"k:a:b", b":", Message("T", b"", keys=["own"])) == Message(
        "T", b"a:b", keys=["own", "k"]
    )
    with pytest.raises(UnusableInput, match="'nokey' has no ':'"):
        split_key(b"nokey", b":", EVERY)
    with pytest.raises(UnusableInput, match="not UTF-8"):
        split_key(b"\xff:x", b":", EVERY)
