"""Tests record bytes to Arrow: every column equals the result of the one-at-a-time decoder."""

from __future__ import annotations

import datetime as dt
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from spark_fakes import BORN, STORED, make_record

from tandemmq.errors import ConfigError, RemoteProtocolError
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, decode_record, encode_record
from tandemmq.protocol.record_scan import scan_boundaries
from tandemmq.protocol.sys_flag import COMPRESSED, COMPRESSION_ZLIB
from tandemmq.spark.columns import (
    COLUMNS,
    SOURCE_COLUMNS,
    arrow_schema,
    project_schema,
    render_ddl,
    select_columns,
    select_source_columns,
)
from tandemmq.spark.decode import BodyFaults, DecodePlan, decode_records
from tandemmq.spark.options import PropertiesAs
from tandemmq.units import MIB

ALL = select_columns((), PropertiesAs.MAP)

hosts = st.sampled_from([BORN, STORED, encode_host("::1", 10911), encode_host("fe80::12", 5)])
property_maps = st.dictionaries(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "x"]), st.text("abcü 1", min_size=1), max_size=5
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40))
    is_packed = draw(st.booleans())
    new = NewRecord(
        topic=draw(st.sampled_from(["T", "orders", "%RETRY%" + "g" * 150])),
        queue_id=draw(st.integers(min_value=0, max_value=2**31 - 1)),
        body=zlib.compress(body) if is_packed else body,
        properties=encode_properties(draw(property_maps)),
        born_at_ms=draw(st.integers(min_value=0, max_value=2**42)),
        born_host=draw(hosts),
        flag=draw(st.integers(min_value=-(2**31), max_value=2**31 - 1)),
        sys_flag=COMPRESSED | COMPRESSION_ZLIB if is_packed else 0,
        retry_count=draw(st.integers(min_value=0, max_value=99)),
        prepared_offset=draw(st.integers(min_value=0, max_value=2**60)),
    )
    return encode_record(
        new,
        queue_offset=draw(st.integers(min_value=0, max_value=2**60)),
        log_offset=draw(st.integers(min_value=0, max_value=2**60)),
        stored_at_ms=draw(st.integers(min_value=0, max_value=2**42)),
        store_host=draw(hosts),
    )


def _decode(data: bytes, **settings: object) -> list[dict]:
    plan = DecodePlan(**{"projection": ALL, **settings})  # type: ignore[arg-type]
    count = len(scan_boundaries(data).positions)
    rows: list[dict] = decode_records(data, [("b", count)], plan).to_pylist()
    return rows


def _host(packed: tuple[str, int]) -> str:
    return f"[{packed[0]}]:{packed[1]}" if ":" in packed[0] else f"{packed[0]}:{packed[1]}"


def _time(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


@given(st.lists(records(), max_size=8))
def test_all_columns_equal_the_plain_decoder(raw: list[bytes]) -> None:
    rows = _decode(b"".join(raw), verify_crc=True)
    assert len(rows) == len(raw)
    for row, one in zip(rows, raw, strict=True):
        record = decode_record(one)
        properties = record.properties
        assert row == {
            "topic": record.topic,
            "brokerName": "b",
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "physicalOffset": record.log_offset,
            "msgId": properties.get("UNIQ_KEY", record.message_id),
            "tags": properties.get("TAGS"),
            "keys": properties.get("KEYS"),
            "body": record.content,
            "flag": record.flag,
            "sysFlag": record.sys_flag,
            "bornTimestamp": _time(record.born_at_ms),
            "storeTimestamp": _time(record.stored_at_ms),
            "bornHost": _host(record.born_address),
            "storeHost": _host(record.store_address),
            "reconsumeTimes": record.retry_count,
            "preparedTransactionOffset": record.prepared_offset,
            "properties": list(properties.items()),
        }


@given(st.lists(records(), max_size=8))
def test_no_column_that_is_declared_not_null_has_nulls(raw: list[bytes]) -> None:
    names = [column.name for column in SOURCE_COLUMNS]
    projection = select_source_columns(names, PropertiesAs.MAP)
    batch = decode_records(b"".join(raw), [("b", len(raw))], DecodePlan(projection=projection))
    batch.validate(full=True)
    nullable = {"tags", "keys", "key", "bodyFault", "headers"}
    assert {field.name for field in batch.schema if field.nullable} == nullable
    assert {field.name for field in batch.schema if batch[field.name].null_count} <= nullable


@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_any_cut_or_broken_byte_raises_nothing_but_protocol_errors(
    raw: list[bytes], data: st.DataObject
) -> None:
    joined = bytearray(b"".join(raw))
    at = data.draw(st.integers(min_value=0, max_value=len(joined) - 1))
    joined[at] ^= data.draw(st.integers(min_value=1, max_value=255))
    cut = data.draw(st.integers(min_value=0, max_value=len(joined)))
    plan = DecodePlan(projection=ALL)
    for broken in (bytes(joined), bytes(joined[:cut])):
        count = len(scan_boundaries(broken).positions)
        try:
            batch = decode_records(broken, [("b", count)], plan)
        except RemoteProtocolError:
            continue
        batch.validate(full=True)


def test_kafkas_columns_and_the_users_properties() -> None:
    mixed = {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "u",
        "__SHARDINGKEY": "s",
        "__RMQ.TRANSIENT.x": "1",
        "a": "1",
        "b": "ü",
    }
    data = b"".join(
        encode_record(
            NewRecord(
                topic="T",
                queue_id=3,
                body=b"body",
                properties=encode_properties(properties),
                born_at_ms=1,
                born_host=BORN,
            ),
            queue_offset=7,
            log_offset=0,
            stored_at_ms=5,
            store_host=STORED,
        )
        for properties in (mixed, {})
    )
    names = ("kafka", "headers", "userProperties")
    first, second = _decode(data, projection=select_columns(names, PropertiesAs.MAP))
    assert list(first.items())[:5] == [
        ("key", b"k1 k2"),
        ("value", b"body"),
        ("topic", "T"),
        ("partition", 3),
        ("offset", 7),
    ]
    assert first["timestamp"] == dt.datetime.fromtimestamp(0.005, dt.UTC)
    assert first["timestampType"] == 1
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": "ü".encode()}]
    assert first["userProperties"] == [("a", "1"), ("b", "ü")]
    assert (second["key"], second["headers"], second["userProperties"]) == (None, None, [])
    keys = project_schema([("keys", "array<string>", True)])
    assert _decode(data, projection=keys) == [{"keys": ["k1", "k2"]}, {"keys": None}]


def test_the_batch_has_exactly_the_schema_that_spark_expects() -> None:
    fields = [("queueOffset", "bigint", False), ("BODY", "string", True), ("properties", "string", True)]
    projection = project_schema(fields)
    batch = decode_records(make_record(5), [("b", 1)], DecodePlan(projection=projection))
    assert batch.schema == arrow_schema(projection)
    assert batch.to_pylist() == [{"queueOffset": 5, "BODY": "0-5", "properties": "KEYS\x01k5\x02"}]
    assert not batch.schema.field("queueOffset").nullable


@pytest.mark.parametrize(
    ("born_at_ms", "shown"),
    [
        (-(2**63), dt.datetime(1, 1, 2, tzinfo=dt.UTC)),
        (-62_135_596_800_001, dt.datetime(1, 1, 2, tzinfo=dt.UTC)),
        (-1, dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)),
        (1_000_000_000_000_000, dt.datetime(9999, 12, 31, tzinfo=dt.UTC)),
        (2**63 - 1, dt.datetime(9999, 12, 31, tzinfo=dt.UTC)),
    ],
)
def test_a_time_beyond_the_years_of_python_is_the_nearest_within(born_at_ms: int, shown: dt.datetime) -> None:
    new = NewRecord(topic="T", queue_id=0, body=b"x", properties=b"", born_at_ms=born_at_ms, born_host=BORN)
    raw = encode_record(new, queue_offset=0, log_offset=0, stored_at_ms=1, store_host=STORED)
    plan = DecodePlan(projection=select_columns(("bornTimestamp",), PropertiesAs.MAP))
    assert decode_records(raw, [("b", 1)], plan).to_pylist() == [{"bornTimestamp": shown}]


def test_rows_that_only_share_a_hash_with_a_wanted_tag_are_dropped() -> None:
    data = make_record(1, tag="Aa") + make_record(2, tag="BB") + make_record(3)
    rows = _decode(data, tags=("BB",))
    assert [row["queueOffset"] for row in rows] == [2]


def test_brokers_are_named_row_by_row() -> None:
    data = b"".join(make_record(n) for n in range(3))
    batch = decode_records(data, [("x", 1), ("y", 2)], DecodePlan(projection=ALL))
    assert batch.column("brokerName").to_pylist() == ["x", "y", "y"]


def test_a_damaged_body_is_found_when_asked_to_look() -> None:
    data = bytearray(make_record(7, body=b"hello"))
    data[data.index(b"hello")] = ord("j")
    assert _decode(bytes(data))[0]["body"] == b"jello"
    with pytest.raises(RemoteProtocolError, match="queue offset 7"):
        _decode(bytes(data), verify_crc=True)


def test_compressed_bodies_can_be_left_as_they_are() -> None:
    packed = zlib.compress(b"hello")
    new = NewRecord(
        topic="T", queue_id=0, body=packed, properties=b"", born_at_ms=0, born_host=BORN, sys_flag=COMPRESSED
    )
    plain = make_record(0)
    data = plain + encode_record(new, queue_offset=1, log_offset=0, stored_at_ms=0, store_host=STORED) + plain
    assert [row["body"] for row in _decode(data)] == [b"0-0", b"hello", b"0-0"]
    assert [row["body"] for row in _decode(data, decompress=False)] == [b"0-0", packed, b"0-0"]


@pytest.mark.parametrize(
    ("body", "kind", "fault"),
    [
        (b'{"plain": 1}', COMPRESSION_ZLIB, "message body is not a zlib stream"),
        (
            zlib.compress(b"hello")[:-6],
            COMPRESSION_ZLIB,
            "message body is a zlib stream that stops before its end",
        ),
        (zlib.compress(bytes(65 * MIB)), COMPRESSION_ZLIB, "message body inflates to more than"),
        (b"?", 7 << 8, "compression kind 0x700 of a message body is unknown"),
    ],
)
def test_a_body_that_is_not_what_its_flag_says_stays_as_it_is_with_a_mark(
    body: bytes, kind: int, fault: str
) -> None:
    """Tests that the neighbours of such a body are unaffected."""
    new = NewRecord(
        topic="T",
        queue_id=3,
        body=body,
        properties=b"",
        born_at_ms=0,
        born_host=BORN,
        sys_flag=COMPRESSED | kind,
    )
    good = structs.replace(new, body=zlib.compress(b"hello"), sys_flag=COMPRESSED)
    data = b"".join(
        encode_record(record, queue_offset=at, log_offset=0, stored_at_ms=0, store_host=STORED)
        for at, record in enumerate((good, new, good, new))
    )
    columns = select_columns(("queueOffset", "bodyFault", "body"), PropertiesAs.MAP)
    faults = BodyFaults()
    batch = decode_records(data, [("b", 4)], DecodePlan(projection=columns), faults=faults)
    assert batch["body"].to_pylist() == [b"hello", body, b"hello", body]
    reasons = batch["bodyFault"].to_pylist()
    assert [reason is None for reason in reasons] == [True, False, True, False]
    assert reasons[1] == reasons[3]
    assert reasons[1].startswith(fault)
    assert (faults.count, faults.first) == (2, f"T, queue 3, queue offset 1: {reasons[1]}")
    as_stored = decode_records(data, [("b", 4)], DecodePlan(projection=columns, decompress=False))
    assert as_stored["bodyFault"].null_count == 4


def test_bytes_that_are_no_records_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no valid record at byte"):
        _decode(make_record(1)[:-1])


def test_an_unknown_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"did you mean queueOffset\?"):
        select_columns(("queueOfset",), PropertiesAs.MAP)
    with pytest.raises(ConfigError, match="expected int, got bigint"):
        project_schema([("queueId", "bigint", True)])
    with pytest.raises(ConfigError, match="twice"):
        select_columns(("body", "BODY"), PropertiesAs.MAP)


def test_a_name_within_a_value_is_not_a_property() -> None:
    record = NewRecord(
        topic="T", queue_id=0, body=b"", properties=b"a\x01KEYS\x01k\x02", born_at_ms=0, born_host=BORN
    )
    data = encode_record(record, queue_offset=0, log_offset=0, stored_at_ms=0, store_host=STORED)
    (row,) = _decode(data)
    assert (row["keys"], row["properties"]) == (None, [("a", "KEYS\x01k")])


def test_the_schema_as_ddl() -> None:
    chosen = select_columns(("queueid", "properties"), PropertiesAs.STRING)
    assert render_ddl(chosen) == "`queueId` int, `properties` string"
    names = [column.name for column in select_columns((), PropertiesAs.NONE)]
    assert names == [column.name for column in COLUMNS if column.name != "properties"]


def test_the_columns_of_a_topic() -> None:
    """Columns that hardly differ from message to message are named, one by one or together as `all`."""
    chosen = select_source_columns((), PropertiesAs.MAP)
    assert [column.name for column in chosen] == [
        *("topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "msgId", "tags", "keys"),
        *("body", "bornTimestamp", "storeTimestamp", "properties"),
    ]
    everything = select_source_columns(("all", "bodyFault"), PropertiesAs.MAP)
    assert [column.name for column in everything] == [*(column.name for column in COLUMNS), "bodyFault"]
    assert render_ddl(select_source_columns(("TAGS", "bornHost"), PropertiesAs.MAP)) == (
        "`tags` string, `bornHost` string NOT NULL"
    )
    with pytest.raises(ConfigError, match="twice"):
        select_source_columns(("all", "topic"), PropertiesAs.MAP)


def test_a_column_declared_not_null_refuses_rows_without_a_value() -> None:
    tagged, plain = (make_record(0, tag=tag) for tag in ("a", ""))
    strict = project_schema([("tags", "string", False)])
    assert _decode(tagged, projection=strict) == [{"tags": "a"}]
    assert _decode(tagged + plain, projection=strict, tags=("a",)) == [{"tags": "a"}]
    with pytest.raises(ConfigError, match="column tags: the schema says NOT NULL, but 1 of 2 rows"):
        _decode(tagged + plain, projection=strict)
