"""Records: round trips, agreement of the two readers, and arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_items import split_batch
from sim.workload import make_batch
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.hashes import java_hash, java_hashes, key_hash, key_head
from tandemmq.protocol.message_id import decode_host, encode_host
from tandemmq.protocol.properties import decode_properties, encode_properties, find_property
from tandemmq.protocol.record import (
    NewRecord,
    RecordError,
    RecordOutcome,
    batch_sizes,
    check_record,
    decode_record,
    decode_records,
    encode_batch_records,
    encode_record,
    encode_sealed_record,
    record_size,
)
from tandemmq.protocol.record_scan import (
    bodies,
    raw_properties,
    read_columns,
    scan_boundaries,
    tag_hashes,
    topic_names,
    verify_bodies,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.builds(
    encode_host,
    st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str)),
    st.integers(0, 65535),
)
PLAIN = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=30
)
PROPERTIES = st.dictionaries(
    st.one_of(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY"]), PLAIN), PLAIN, max_size=5
)
RECORDS = st.builds(
    NewRecord,
    topic=st.text("abcXYZ%_-|0123456789", min_size=1, max_size=255),
    queue_id=INT32,
    body=st.binary(max_size=300),
    properties=PROPERTIES.map(encode_properties),
    born_at_ms=INT64,
    born_host=HOSTS,
    flag=INT32,
    sys_flag=st.integers(0, 0x7FF).map(lambda flag: flag & ~0x30),
    retry_count=INT32,
    prepared_offset=INT64,
)


@given(RECORDS, INT64, INT64, INT64, HOSTS)
def test_record_survives_the_round_trip(
    new: NewRecord, queue_offset: int, log_offset: int, stored_at_ms: int, store_host: bytes
) -> None:
    place = {"queue_offset": queue_offset, "log_offset": log_offset, "stored_at_ms": stored_at_ms}
    raw = encode_record(new, **place, store_host=store_host)
    record = decode_record(raw, log_offset=log_offset)
    for name in (
        "topic",
        "queue_id",
        "body",
        "born_at_ms",
        "born_host",
        "flag",
        "retry_count",
        "prepared_offset",
    ):
        assert getattr(record, name) == getattr(new, name)
    for name, value in place.items():
        assert getattr(record, name) == value
    assert (record.store_host, record.raw_properties) == (store_host, new.properties)
    assert record.sys_flag & ~0x30 == new.sys_flag
    assert record.size == len(raw) == record_size(new, len(store_host))
    check = check_record(raw)
    assert (check.outcome, check.size, check.keys) == (RecordOutcome.OK, len(raw), record.keys)
    assert check.unique_key == record.unique_key
    sealed = encode_sealed_record(new, **place, store_host=store_host)
    assert check_record(sealed, require_seal=True).outcome is RecordOutcome.OK


@given(st.lists(RECORDS, min_size=1, max_size=6), INT64, HOSTS)
def test_records_of_a_batch_are_encoded_as_if_each_came_alone(
    records: list[NewRecord], stored_at_ms: int, store_host: bytes
) -> None:
    first = records[0]
    for record in records:
        record.topic, record.sys_flag, record.born_host = first.topic, first.sys_flag, first.born_host
        record.retry_count, record.prepared_offset = first.retry_count, 0
    batch = make_batch(records)
    assert batch is not None
    queue_offsets = [7 + 3 * index for index in range(len(records))]
    sizes = batch_sizes(batch, len(store_host))
    places = [1000 + sum(sizes[:index]) for index in range(len(sizes))]
    alone = [
        encode_record(
            record,
            queue_offset=queue_offsets[index],
            log_offset=places[index],
            stored_at_ms=stored_at_ms,
            store_host=store_host,
        )
        for index, record in enumerate(records)
    ]
    together = encode_batch_records(
        batch, sizes, places, queue_offsets=queue_offsets, stored_at_ms=stored_at_ms, store_host=store_host
    )
    assert sizes == list(map(len, alone))
    assert together == b"".join(alone)


@given(st.lists(RECORDS, max_size=8), HOSTS, st.binary(max_size=120))
def test_both_readers_agree_on_a_log(news: list[NewRecord], store_host: bytes, tail: bytes) -> None:
    log = b""
    for number, new in enumerate(news):
        log += encode_record(
            new, queue_offset=number, log_offset=len(log), stored_at_ms=number, store_host=store_host
        )
    boundaries = scan_boundaries(log)
    columns = read_columns(log, boundaries, log_offset=0)
    records = list(decode_records(log))
    assert columns.position.tolist() == [record.log_offset for record in records]
    assert verify_bodies(log, columns).all()
    assert topic_names(log, columns) == [new.topic for new in news]
    assert bodies(log, columns) == [new.body for new in news]
    assert columns.stored_at_ms.tolist() == [record.stored_at_ms for record in records]
    hashes = tag_hashes(raw_properties(log, columns)).tolist()
    assert hashes == [java_hash(record.tags) for record in records]
    assert scan_boundaries(log + tail).positions.tolist()[: len(news)] == columns.position.tolist()


@given(RECORDS, st.data())
def test_changed_and_cut_records_give_only_the_documented_outcomes(
    new: NewRecord, data: st.DataObject
) -> None:
    raw = bytearray(
        encode_record(new, queue_offset=1, log_offset=2, stored_at_ms=3, store_host=encode_host("1.2.3.4", 5))
    )
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    require_same_judgement(cut)


@given(st.binary(max_size=300))
def test_garbage_gives_only_the_documented_outcomes(garbage: bytes) -> None:
    require_same_judgement(garbage)
    require_same_judgement(b"\x00\x00\x00\x64\xda\xa3\x20\xa7" + garbage)
    require_same_judgement(b"\x00\x00\x00\x70\xda\xa3\x20\xab" + garbage)


def require_same_judgement(data: bytes) -> None:
    check = check_record(memoryview(data))
    if check.outcome is RecordOutcome.OK:
        assert decode_record(data).size == check.size
    else:
        with pytest.raises(RecordError) as caught:
            decode_record(data)
        assert caught.value.outcome is check.outcome
    columns = read_columns(data, scan_boundaries(data))
    is_good = len(columns) > 0 and bool(columns.is_valid[0]) and bool(verify_bodies(data, columns)[0])
    name_is_good = is_good and topic_names(data, columns)[0] != ""
    assert name_is_good == (check.outcome is RecordOutcome.OK)


@given(PROPERTIES)
def test_properties_survive_the_round_trip(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == decode_properties(raw[:-1]) == properties
    assert {name: (find_property(raw, name.encode()) or b"").decode() for name in properties} == properties


@given(st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"\xff", b"ab"]), max_size=30).map(b"".join))
def test_one_property_is_found_as_all_are_decoded(raw: bytes) -> None:
    decoded = decode_properties(raw)
    for name in ("a", "b", "ab"):
        found = find_property(raw, name.encode())
        assert (None if found is None else found.decode("utf-8", "replace")) == decoded.get(name)


@given(
    st.one_of(
        st.lists(st.text(max_size=50), max_size=20),
        st.integers(0, 40).flatmap(lambda n: st.lists(st.text("aZ0#~", min_size=n, max_size=n), max_size=9)),
    )
)
def test_hashes_agree_with_the_definition(texts: list[str]) -> None:
    for text in texts:
        assert java_hash(text) == naive_hash(text)
        assert key_hash("topic", text) == (abs(naive_hash(f"topic#{text}")) & 0x7FFFFFFF)
    assert java_hashes(texts).tolist() == [naive_hash(text) for text in texts]
    heads = [key_head(f"t{number % 3}") for number in range(len(texts))]
    whole = [f"t{number % 3}#{text}" for number, text in enumerate(texts)]
    assert java_hashes(texts, heads).tolist() == [naive_hash(text) for text in whole]


def naive_hash(text: str) -> int:
    wide = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(wide), 2):
        value = (value * 31 + int.from_bytes(wide[index : index + 2], "big")) % 2**32
    return value - 2**32 if value >= 2**31 else value


@given(
    st.lists(st.tuples(INT32, st.binary(max_size=40), st.binary(max_size=40)), min_size=1, max_size=6),
    st.data(),
)
def test_batches_survive_the_round_trip_and_no_cut(
    items: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    raw = encode_batch(items)
    assert [(item.flag, bytes(item.body), item.properties) for item in split_batch(raw)] == items
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    try:
        whole = split_batch(cut)
    except MessageIllegal:
        return
    assert [(item.flag, bytes(item.body), item.properties) for item in whole] == items[: len(whole)]


@given(st.binary(max_size=200))
def test_garbage_is_no_batch(garbage: bytes) -> None:
    try:
        split_batch(garbage)
    except MessageIllegal:
        return


@given(HOSTS)
def test_hosts_survive_the_round_trip(packed: bytes) -> None:
    assert encode_host(*decode_host(packed)) == packed
