"""Reading and completing the properties of a send (spec semantics 5, 6.1, 18.1)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.broker.delay.postpone import DelayRule, make_room_in_dead_letter
from tandemmq.broker.delay.timers import TimerLimits
from tandemmq.broker.send.assembly import (
    Inspected,
    find_value,
    inspect,
    is_unusual,
    with_pair,
)
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC

names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "xTAGS", "TAGSx", "a"])
values = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)), min_size=1, max_size=5
)


def text_of(**pairs: str) -> str:
    return encode_properties(pairs).decode()


@given(st.lists(st.tuples(names, st.one_of(values, st.just(""))), max_size=6), st.booleans(), names)
@example([("TAGS", "a"), ("TAGS", "")], False, "TAGS")  # a pair without a value does not count
def test_found_value_is_what_a_reader_sees(pairs: list[tuple[str, str]], is_cut: bool, name: str) -> None:
    text = "".join(f"{key}\x01{value}\x02" for key, value in pairs)
    if is_cut:
        text = text[:-1]
    assert find_value(text, name + "\x01") == decode_properties(text.encode()).get(name, "")


@given(st.lists(st.tuples(names, values), max_size=4), st.booleans(), names, values)
def test_added_pair_wins(pairs: list[tuple[str, str]], is_cut: bool, name: str, value: str) -> None:
    text = "".join(f"{key}\x01{value}\x02" for key, value in pairs)
    longer = with_pair(text[:-1] if is_cut else text, name, value)
    assert decode_properties(longer.encode())[name] == value


@pytest.mark.parametrize(
    ("text", "sys_flag"),
    [
        (text_of(DELAY="3"), 0),
        (text_of(TRAN_MSG="true"), 0),
        (text_of(POP_CK="x"), 0),
        (text_of(TIMER_DELIVER_MS="5"), 0),
        (text_of(TIMER_DELAY_MS="5"), 0),
        (text_of(INNER_BASE="5"), 0),
        ("__CRC32#\x010123456789\x02", 0),
        (text_of(_SYS_MSG_PRIORITY_="0"), 0),
        ("", 0x4),
        ("", 0x80),
    ],
)
def test_unusual_properties_are_detected(text: str, sys_flag: int) -> None:
    assert is_unusual(text, sys_flag)


def test_ordinary_messages_are_not_unusual() -> None:
    assert not is_unusual(text_of(TAGS="a", KEYS="k", UNIQ_KEY="u", WAIT="true", a="b"), 0x1 | 0x300)


def look(
    text: str, sys_flag: int = 0, *, is_retry: bool = False, recall_topic: str | None = "T"
) -> Inspected:
    return inspect(text, sys_flag, delay_level_max=18, is_retry=is_retry, recall_topic=recall_topic)


@pytest.mark.parametrize(
    ("level", "expected"), [("0", 0), ("-1", 0), ("1", 1), ("18", 18), ("19", 18), ("9" * 30, 18), ("00", 0)]
)
def test_delay_levels_are_cut_to_the_highest(level: str, expected: int) -> None:
    assert look(text_of(DELAY=level))[1] == expected


@pytest.mark.parametrize("level", ["x", "1.5", "٣", "--1"])
def test_delay_that_is_no_number_is_refused(level: str) -> None:
    with pytest.raises(MessageIllegal, match="DELAY"):
        look(text_of(DELAY=level))


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        ("0", 0),
        ("7", 7),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("-1", None),
        ("x", None),
        ("٣", None),
    ],
)
def test_priorities_are_whole_numbers_from_zero(value: str, priority: int | None) -> None:
    found = look(text_of(_SYS_MSG_PRIORITY_=value))
    assert found.priority == priority
    assert decode_properties(found.text.encode()) == {"_SYS_MSG_PRIORITY_": value}


@pytest.mark.parametrize(
    "other",
    [
        {"TRAN_MSG": "true"},
        {"DELAY": "0"},
        {"TIMER_DELAY_SEC": "9"},
        {"TIMER_DELAY_MS": "9"},
        {"TIMER_DELIVER_MS": "9"},
        {"__SHARDINGKEY": "k"},
    ],
)
def test_a_priority_falls_away_beside_another_kind(other: dict[str, str]) -> None:
    found = look(text_of(_SYS_MSG_PRIORITY_="5", a="b", **other))
    assert found.priority is None
    assert decode_properties(found.text.encode()) == {"a": "b", **other}


def test_names_of_the_broker_are_taken_out() -> None:
    text, level, _ = look(
        text_of(POP_CK="x", a="b") + "__CRC32#\x010123456789\x02__RMQ.TRANSIENT.x\x011\x02"
    )[:3]
    assert (decode_properties(text.encode()), level) == ({"a": "b"}, 0)


def test_wishes_for_a_time_fall_away_beside_a_delay_level() -> None:
    text, level, timer_properties = look(text_of(DELAY="2", TIMER_DELAY_SEC="9"))[:3]
    assert (decode_properties(text.encode()), level, timer_properties) == ({"DELAY": "2"}, 2, {})


def test_wishes_for_a_time_are_found_and_kept() -> None:
    text, level, timer_properties = look(text_of(TIMER_DELAY_SEC="9", TIMER_DEL_UNIQKEY="T+u", a="b"))[:3]
    assert (level, timer_properties) == (0, {"TIMER_DELAY_SEC": "9", "TIMER_DEL_UNIQKEY": "T+u"})
    assert decode_properties(text.encode())["TIMER_DELAY_SEC"] == "9"
    assert look(text_of(TIMER_DELAY_SEC="9", TIMER_OUT_MS="5")).timer_properties == {}


@pytest.mark.parametrize(
    ("target", "recall_topic"), [("B+u", "T"), ("T+u", None), ("TT+u", "T"), ("T", "T"), ("+u", "T")]
)
@pytest.mark.parametrize("half", [{}, {"TRAN_MSG": "true"}])
def test_a_cancellation_of_another_topic_or_while_recalls_are_off_is_none(
    target: str, recall_topic: str | None, half: dict[str, str]
) -> None:
    text, _, timer_properties = look(
        text_of(TIMER_DELAY_SEC="9", TIMER_DEL_UNIQKEY=target, **half), recall_topic=recall_topic
    )[:3]
    assert "TIMER_DEL_UNIQKEY" not in {**timer_properties, **decode_properties(text.encode())}
    assert decode_properties(text.encode())["TIMER_DELAY_SEC"] == "9"


NAMES = ["a", "DELAY", "TAGS", "POP_CK", "POP_CKX", "__CRC32#", "__RMQ.TRANSIENT.x", "TIMER_DELAY_SEC", ""]
PIECES = st.builds(
    lambda name, mark, value, end: name + mark + value + end,
    st.sampled_from(NAMES),
    st.sampled_from(["\x01", "\x01", "\x01", ""]),
    st.sampled_from(["1", "2", "", "v\x01w", "ä", "\ud800"]),
    st.sampled_from(["\x02", "\x02", "\x02", "", "\x02\x02"]),
)


@given(st.lists(PIECES, max_size=6).map("".join))
def test_properties_come_out_as_their_kept_pairs_written_anew(text: str) -> None:
    pairs = decode_properties(text.encode("utf-8", "replace"))
    dropped = {"POP_CK", "__CRC32#"}
    try:
        found = look(text)
    except MessageIllegal:
        return
    if found.delay_level:
        dropped |= {"TIMER_DELAY_SEC"}
    kept = {
        name: value
        for name, value in pairs.items()
        if name not in dropped and not name.startswith("__RMQ.TRANSIENT.")
    }
    assert found.text == encode_properties(kept).decode()


def test_half_of_a_character_is_a_question_mark_to_all_who_read_it() -> None:
    # So the hash of the tags matches the stored tags.
    assert look("DELAY\x011\x02TAGS\x01a\ud800\x02").text == "DELAY\x011\x02TAGS\x01a?\x02"


def test_half_messages_are_told_from_their_retries() -> None:
    assert look(text_of(TRAN_MSG="TRUE", DELAY="3")).is_half
    assert not look(text_of(TRAN_MSG="true", DELAY="3"), is_retry=True).is_half
    assert look(text_of(TRAN_MSG="true", DELAY="3"), is_retry=True)[1] == 3
    assert look(text_of(TRAN_MSG="false"))[1] == 0


@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_flags_that_would_hide_the_message_are_refused(sys_flag: int) -> None:
    with pytest.raises(MessageIllegal, match="sysFlag"):
        look("", sys_flag)
    assert look("", 0x8)[:3] == ("", 0, {})


def retry_with(bytes_used: int) -> NewRecord:
    """Returns a message returned for a retry, with properties of `bytes_used` bytes."""
    pairs = {"big": "", "WAIT": "false", "ORIGIN_MESSAGE_ID": "A" * 32, "RETRY_TOPIC": "T", "DELAY": "3"}
    used = len(encode_properties({**pairs, "big": "v"})) - 1
    pairs["big"] = "v" * (bytes_used - used)
    properties = encode_properties(pairs)
    assert len(properties) == bytes_used
    return NewRecord(
        topic="%RETRY%G", queue_id=0, body=b"x", properties=properties, born_at_ms=0, born_host=bytes(8)
    )


SPARE = len(encode_properties({"WAIT": "false", "ORIGIN_MESSAGE_ID": "A" * 32}))
TARGET = len(encode_properties({"REAL_TOPIC": "%RETRY%G", "REAL_QID": "0"}))
DELAY = len(encode_properties({"DELAY": "3"}))


@pytest.mark.parametrize(
    ("bytes_used", "topic", "dropped"),
    [
        (PROPERTIES_BYTES_MAX - TARGET, SCHEDULE_TOPIC, set()),
        (PROPERTIES_BYTES_MAX - TARGET + 1, SCHEDULE_TOPIC, {"ORIGIN_MESSAGE_ID"}),
        (PROPERTIES_BYTES_MAX - TARGET + SPARE, SCHEDULE_TOPIC, {"ORIGIN_MESSAGE_ID", "WAIT"}),
        (PROPERTIES_BYTES_MAX - TARGET + SPARE + 1, "%RETRY%G", {"ORIGIN_MESSAGE_ID", "DELAY"}),
        (PROPERTIES_BYTES_MAX + SPARE + DELAY, "%RETRY%G", {"ORIGIN_MESSAGE_ID", "WAIT", "DELAY"}),
        (PROPERTIES_BYTES_MAX + SPARE + DELAY + 1, None, set()),
    ],
)
def test_a_retry_drops_what_no_consumer_needs_then_its_delay(
    bytes_used: int, topic: str | None, dropped: set[str]
) -> None:
    rule = DelayRule([1_000] * 18, TimerLimits())
    record = retry_with(bytes_used)
    before = decode_properties(record.properties)
    assert rule.postpone_retry(record, 3, 0) is (topic is not None)
    assert record.topic == (topic or "%RETRY%G")
    after = decode_properties(record.properties)
    assert before.keys() - after.keys() == dropped
    assert after["big"] == before["big"]
    assert after["RETRY_TOPIC"] == "T"
    assert topic is None or len(record.properties) <= PROPERTIES_BYTES_MAX


def test_a_dead_letter_without_room_does_not_say_where_it_comes_from() -> None:
    raw = retry_with(PROPERTIES_BYTES_MAX).properties
    assert make_room_in_dead_letter(raw) == raw
    long = retry_with(PROPERTIES_BYTES_MAX + SPARE + DELAY + 1).properties
    made = make_room_in_dead_letter(long)
    assert len(made) <= PROPERTIES_BYTES_MAX
    assert decode_properties(made).keys() == {"big"}
