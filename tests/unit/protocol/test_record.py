"""One CommitLog record: the worked examples of the spec, every layout, and bytes that are not a record."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import append_property, encode_properties
from tandemmq.protocol.record import (
    NewRecord,
    RecordError,
    RecordOutcome,
    check_record,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    encode_sealed_record,
    record_size,
)

EXAMPLE = bytes.fromhex(
    """
    000000aedaa320a769c865ed00000001 00000000000000000000000000000000 00000000000000000000018bcfe56800
    0a0000010000d4310000018bcfe5687b c0a8000a00002a9f0000000000000000 000000000000000e48656c6c6f20526f
    636b65744d5109546f70696354657374 003c4b455953016b3102554e49515f4b 45590130413030303030313146393031
    38423441414332303030303030303030 30303102544147530154616741 02
    """
)
"""Spec store 3.1: accepted and indexed by the Java store."""

EXAMPLE_PROPERTIES = {"KEYS": "k1", "UNIQ_KEY": "0A0000011F9018B4AAC2000000000001", "TAGS": "TagA"}
STORE_HOST = encode_host("192.168.0.10", 10911)
STORED_AT_MS = 1700000000123

PULLED = bytes.fromhex(
    "00000075DAA320A73610A6860000000300000000000000000000000700000000000004D2000000000000018BCFE56800"
    "7F00000100009C400000018BCFE568017F00000100002A9F0000000000000000000000000000000568656C6C6F06546F"
    "70696341000F4B455953016B310254414753017402"
)
"""Spec remoting 12.1."""


def example(**changes: object) -> NewRecord:
    new = NewRecord(
        topic="TopicTest",
        queue_id=1,
        body=b"Hello RocketMQ",
        properties=encode_properties(EXAMPLE_PROPERTIES),
        born_at_ms=1700000000000,
        born_host=encode_host("10.0.0.1", 54321),
    )
    return msgspec.structs.replace(new, **changes)


def encode(new: NewRecord, *, log_offset: int = 0, store_host: bytes = STORE_HOST) -> bytes:
    return encode_record(
        new, queue_offset=0, log_offset=log_offset, stored_at_ms=STORED_AT_MS, store_host=store_host
    )


def seal(new: NewRecord) -> bytes:
    return encode_sealed_record(
        new, queue_offset=0, log_offset=0, stored_at_ms=STORED_AT_MS, store_host=STORE_HOST
    )


def with_bytes(record: bytes, position: int, replacement: bytes) -> bytes:
    return record[:position] + replacement + record[position + len(replacement) :]


def test_worked_example_is_encoded_byte_for_byte() -> None:
    assert encode(example()) == EXAMPLE
    assert record_size(example()) == len(EXAMPLE) == 174


def test_worked_example_is_decoded() -> None:
    record = decode_record(EXAMPLE, log_offset=0)
    assert (record.topic, record.queue_id, record.body) == ("TopicTest", 1, b"Hello RocketMQ")
    assert record.properties == EXAMPLE_PROPERTIES
    assert (record.keys, record.tags) == ("k1", "TagA")
    assert record.unique_key == "0A0000011F9018B4AAC2000000000001"
    assert record.body_crc == 0x69C865ED
    assert (record.born_at_ms, record.stored_at_ms) == (1700000000000, STORED_AT_MS)
    assert record.born_address == ("10.0.0.1", 54321)
    assert record.store_address == ("192.168.0.10", 10911)
    assert record.message_id == "C0A8000A00002A9F0000000000000000"
    assert record.content == record.body


def test_worked_example_gives_the_dispatcher_its_fields() -> None:
    check = check_record(EXAMPLE, log_offset=0)
    assert check.outcome is RecordOutcome.OK
    assert (check.size, check.topic, check.queue_id, check.queue_offset) == (174, "TopicTest", 1, 0)
    assert (check.tag_hash, check.keys) == (2598919, "k1")
    assert check.unique_key == "0A0000011F9018B4AAC2000000000001"
    assert (check.stored_at_ms, check.message_count) == (STORED_AT_MS, 1)


def test_pulled_example_is_decoded() -> None:
    record = decode_record(PULLED)
    assert (record.topic, record.body, record.queue_id) == ("TopicA", b"hello", 3)
    assert (record.queue_offset, record.log_offset) == (7, 1234)
    assert record.message_id == "7F00000100002A9F00000000000004D2"


def test_worked_example_is_sealed_byte_for_byte() -> None:
    sealed = seal(example())
    assert len(sealed) == 0xC2
    assert sealed[-20:] == bytes.fromhex("5f5f4352433332230134323839303332343132 02")
    assert zlib.crc32(sealed[:-20]) & 0x7FFFFFFF == 2142309824
    assert check_record(sealed, require_seal=True).outcome is RecordOutcome.OK
    assert decode_record(sealed, check_seal=True).properties["__CRC32#"] == "4289032412"


def test_seal_replaces_an_older_one_and_closes_the_last_pair() -> None:
    open_ended = encode_properties(EXAMPLE_PROPERTIES)[:-1]
    stale = append_property(open_ended, "__CRC32#", "0123456789")
    expected = seal(example())
    assert seal(example(properties=open_ended)) == seal(example(properties=stale)) == expected


def test_seal_finds_a_change_outside_the_body() -> None:
    sealed = seal(example())
    changed = with_bytes(sealed, 16, b"\x01")
    assert check_record(changed).outcome is RecordOutcome.OK
    assert check_record(changed, require_seal=True).outcome is RecordOutcome.BAD_CRC
    assert check_record(EXAMPLE, require_seal=True).outcome is RecordOutcome.BAD_CRC
    with pytest.raises(RecordError, match="checksum"):
        decode_record(changed, check_seal=True)


@pytest.mark.parametrize("born", ["10.0.0.1", "fe80::1"])
@pytest.mark.parametrize("store", ["192.168.0.10", "2001:db8::7"])
def test_hosts_of_either_family_are_kept(born: str, store: str) -> None:
    new = example(born_host=encode_host(born, 1), sys_flag=0x31)
    store_host = encode_host(store, 2)
    raw = encode(new, store_host=store_host)
    record = decode_record(raw)
    assert len(raw) == 174 + 12 * (":" in born) + 12 * (":" in store) == record_size(new, len(store_host))
    assert (record.born_address, record.store_address) == ((born, 1), (store, 2))
    assert record.sys_flag == 0x1 | 0x10 * (":" in born) | 0x20 * (":" in store)
    assert len(record.message_id) == (56 if ":" in store else 32)
    assert check_record(raw).stored_at_ms == STORED_AT_MS


@pytest.mark.parametrize(
    ("length", "magic", "extra"), [(127, 0xDAA320A7, 0), (128, 0xDAA320AB, 1), (255, 0xDAA320AB, 1)]
)
def test_long_topics_need_version_two(length: int, magic: int, extra: int) -> None:
    topic = "%RETRY%" + "g" * (length - 7)
    raw = encode(example(topic=topic))
    assert int.from_bytes(raw[4:8], "big") == magic
    assert len(raw) == 91 + extra + 14 + length + 60
    assert decode_record(raw).topic == check_record(raw).topic == topic


@pytest.mark.parametrize("topic", ["", "x" * 256])
def test_topics_that_no_record_can_hold_are_our_fault(topic: str) -> None:
    with pytest.raises(LocalProtocolError, match="topic"):
        encode(example(topic=topic))


def test_properties_that_no_record_can_hold_are_our_fault() -> None:
    assert decode_record(encode(example(properties=b"a\x01" + b"x" * 32765))).properties["a"] == "x" * 32765
    with pytest.raises(LocalProtocolError, match="properties"):
        encode(example(properties=bytes(32768)))


def test_empty_body_has_no_checksum() -> None:
    raw = encode(example(body=b""))
    assert raw[8:12] == bytes(4)
    assert check_record(with_bytes(raw, 8, b"\x01\x02\x03\x04")).outcome is RecordOutcome.OK


@pytest.mark.parametrize(
    ("data", "outcome", "size"),
    [
        (b"", RecordOutcome.END, 0),
        (bytes(7), RecordOutcome.END, 0),
        (bytes(200), RecordOutcome.END, 0),
        (encode_blank(4096) + bytes(50), RecordOutcome.BLANK, 4096),
        (with_bytes(encode_blank(8), 0, (7).to_bytes(4, "big")), RecordOutcome.BAD_LENGTH, 0),
        (b"\xff" * 200, RecordOutcome.BAD_MAGIC, 0),
        (EXAMPLE[:-1], RecordOutcome.TRUNCATED, 174),
        (EXAMPLE[:8], RecordOutcome.TRUNCATED, 174),
        (with_bytes(EXAMPLE, 0, (90).to_bytes(4, "big")), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 0, (173).to_bytes(4, "big")), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 84, (2**31 - 1).to_bytes(4, "big")), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 84, b"\xff\xff\xff\xff"), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 0x66, b"\xff"), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 0x66, b"\x00"), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 0x70, b"\xff\xff"), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 39, b"\x30"), RecordOutcome.BAD_LENGTH, 0),
        (with_bytes(EXAMPLE, 0x67, b"\xff"), RecordOutcome.BAD_TOPIC, 0),
        (with_bytes(EXAMPLE, 0x58, b"h"), RecordOutcome.BAD_CRC, 0),
    ],
)
def test_bytes_that_are_no_record_have_a_named_outcome(
    data: bytes, outcome: RecordOutcome, size: int
) -> None:
    check = check_record(data)
    assert (check.outcome, check.size) == (outcome, size)
    with pytest.raises(RecordError) as caught:
        decode_record(data)
    assert caught.value.outcome is outcome
    assert isinstance(caught.value, RemoteProtocolError)


def test_record_in_another_place_than_it_says_is_refused() -> None:
    check = check_record(EXAMPLE, log_offset=174)
    assert (check.outcome, check.size) == (RecordOutcome.WRONG_OFFSET, 174)
    with pytest.raises(RecordError, match="is not its position"):
        decode_record(EXAMPLE, log_offset=174)


def test_checksum_is_only_compared_on_demand() -> None:
    changed = with_bytes(EXAMPLE, 0x58, b"h")
    assert check_record(changed, check_crc=False).outcome is RecordOutcome.OK
    assert decode_record(changed, check_crc=False).body == b"hello RocketMQ"


def test_record_is_read_in_the_middle_of_a_buffer() -> None:
    data = memoryview(bytearray(b"abc" + EXAMPLE + PULLED))
    assert check_record(data, 3, log_offset=0).size == 174
    assert decode_record(data, 3 + 174).topic == "TopicA"


def test_pull_body_is_read_record_by_record() -> None:
    assert [record.topic for record in decode_records(PULLED + EXAMPLE + PULLED)] == [
        "TopicA",
        "TopicTest",
        "TopicA",
    ]
    assert list(decode_records(b"")) == []


def test_pull_body_that_is_cut_short_yields_what_is_whole() -> None:
    records = decode_records(PULLED + EXAMPLE[:100])
    assert next(records).topic == "TopicA"
    with pytest.raises(RecordError, match="continues beyond"):
        next(records)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("1", STORED_AT_MS + 1000),
        ("5", STORED_AT_MS + 60_000),
        ("18", STORED_AT_MS + 7_200_000),
        ("99", STORED_AT_MS + 7_200_000),
        ("0", java_hash("TagA")),
        ("x", java_hash("TagA")),
    ],
)
def test_tag_of_a_delayed_message_is_when_it_is_due(level: str, expected: int) -> None:
    properties = encode_properties({"DELAY": level, "TAGS": "TagA"})
    raw = encode(example(topic="SCHEDULE_TOPIC_XXXX", properties=properties))
    assert check_record(raw).tag_hash == expected
    assert check_record(encode(example(properties=properties))).tag_hash == java_hash("TagA")


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        ({"INNER_NUM": "5", "INNER_BASE": "0"}, 5),
        ({"INNER_NUM": "5"}, 1),
        ({"INNER_NUM": "-3", "INNER_BASE": "0"}, 1),
    ],
)
def test_inner_batch_takes_as_many_queue_offsets_as_messages(properties: dict[str, str], count: int) -> None:
    assert check_record(encode(example(properties=encode_properties(properties)))).message_count == count
