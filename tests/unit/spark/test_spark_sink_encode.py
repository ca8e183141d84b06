"""Tests rows to batch bodies: splitting a body like a broker yields the content of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from batch_items import split_batch
from tandemmq.client.producer.sender import queue_by_key
from tandemmq.errors import ConfigError, MessageIllegal
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.properties import decode_properties
from tandemmq.spark.sink.columns import SinkColumns, find_sink_columns, make_keys, make_prefix
from tandemmq.spark.sink.encode import BatchEncoder, RowShipment
from tandemmq.spark.sink.options import EmptyBodies, SinkOptions, parse_sink_options

PREFIX = make_prefix("query", 7, 1)


def queues(topic: str) -> Sequence[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=name, queue_id=n) for name in "ab" for n in range(3)]


def make_options(**given: str) -> SinkOptions:
    return parse_sink_options({"nameServer": "h:1", "topic": "T", **given})


def encode(columns: dict[str, Any], *, topic: str = "T", batch_bytes: int = 1 << 19) -> list[RowShipment]:
    batch = pa.RecordBatch.from_pydict(columns)
    encoder = BatchEncoder(
        SinkColumns({name: place for place, name in enumerate(columns)}),
        make_options(topic=topic, batchBytes=str(batch_bytes)),
        key_prefix=PREFIX,
        queues=queues,
    )
    return list(encoder.encode(batch))


def unpack(shipment: RowShipment) -> list[tuple[int, bytes, dict[str, str]]]:
    items = split_batch(shipment.body)
    assert len(items) == shipment.count
    return [(item.flag, bytes(item.body), decode_properties(item.properties)) for item in items]


def test_a_row_becomes_a_message() -> None:
    (shipment,) = encode(
        {
            "body": pa.array([b"one", "zwei — 2".encode()], pa.binary()),
            "tags": pa.array(["a", None]),
            "keys": pa.array([["k1", "k2"], []], pa.list_(pa.string())),
            "shardingKey": pa.array([None, None], pa.string()),
            "flag": pa.array([5, None], pa.int32()),
            "properties": pa.array(
                [[("x", "1"), ("TAGS", "no"), ("none", None), ("empty", "")], None],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )
    assert (shipment.topic, shipment.queue, shipment.is_batch) == ("T", None, True)
    keys = make_keys(PREFIX, 0, 2).to_pylist()
    assert unpack(shipment) == [
        (5, b"one", {"x": "1", "KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": keys[0].decode()}),
        (0, "zwei — 2".encode(), {"UNIQ_KEY": keys[1].decode()}),
    ]


def test_arrows_large_types_say_the_same() -> None:
    columns = {
        "body": pa.array([b"one", b"two"], pa.binary()),
        "keys": pa.array([["k1", None, "k2"], None], pa.list_(pa.string())),
        "shardingKey": pa.array([b"a", b"k\xc3\xa9"], pa.binary()),
        "tags": pa.array(["t", None], pa.string()),
        "properties": pa.array([[("x", "1")], None], pa.map_(pa.string(), pa.string())),
    }
    large = {
        "body": pa.large_binary(),
        "keys": pa.list_(pa.large_string()),
        "shardingKey": pa.large_binary(),
        "tags": pa.large_string(),
        "properties": pa.map_(pa.large_string(), pa.large_string()),
    }
    wide = encode({name: pa.array(column.to_pylist(), large[name]) for name, column in columns.items()})
    assert [(s.queue, bytes(s.body)) for s in wide] == [(s.queue, bytes(s.body)) for s in encode(columns)]


def test_entries_behind_a_null_map_belong_to_no_row() -> None:
    whole = pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], pa.map_(pa.string(), pa.string()))
    _, offsets, *_ = whole.buffers()
    pairs = pa.StructArray.from_arrays([whole.keys, whole.items], fields=list(whole.type.field(0).type))
    masked = pa.Array.from_buffers(whole.type, 3, [pa.py_buffer(b"\x05"), offsets], children=[pairs])
    (shipment,) = encode({"body": pa.array([b"1", b"2", b"3"]), "properties": masked})
    assert [sorted(set(found) - {"UNIQ_KEY"}) for _, _, found in unpack(shipment)] == [["a"], [], ["c"]]


def test_keys_name_the_row_and_repeat() -> None:
    keys = [key.decode() for key in make_keys(PREFIX, 65_534, 4).to_pylist()]
    assert [key[:20] for key in keys] == [PREFIX.decode()] * 4
    assert [int(key[20:], 16) for key in keys] == [65_534, 65_535, 65_536, 65_537]
    assert all(len(key) == 32 and key == key.upper() for key in keys)
    assert make_prefix("query", 7, 1) == PREFIX
    assert make_prefix("query", 71) != PREFIX


def test_row_numbers_go_on_over_batches() -> None:
    encoder = BatchEncoder(
        SinkColumns({"body": 0}), make_options(batchBytes="1000"), key_prefix=PREFIX, queues=queues
    )
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * 3)})
    found = [unpack(s)[n][2]["UNIQ_KEY"] for _ in range(2) for s in encoder.encode(batch) for n in range(3)]
    assert found == [key.decode() for key in make_keys(PREFIX, 0, 6).to_pylist()]


def test_batches_end_near_the_limit_and_hold_at_least_one() -> None:
    bodies = [bytes([65 + n]) * (50 if n != 3 else 900) for n in range(8)]
    shipments = encode({"body": pa.array(bodies)}, batch_bytes=300)
    assert [body for s in shipments for _, body, _ in unpack(s)] == bodies
    assert all(len(s.body) <= 300 or s.count == 1 for s in shipments)
    assert len(shipments) < 8


def test_rows_are_grouped_by_topic_and_queue_in_their_order() -> None:
    shipments = encode(
        {
            "topic": pa.array(["S", "T", "S", "T", "S"]),
            "body": pa.array([b"0", b"1", b"2", b"3", b"4"]),
            "queueId": pa.array([None, 2, None, None, 1], pa.int32()),
            "shardingKey": pa.array(["k", None, "k", None, "k"]),
        },
        topic="",
    )
    found = {(s.topic, s.queue): [body for _, body, _ in unpack(s)] for s in shipments}
    assert found == {
        ("S", queue_by_key(queues("S"), java_hash("k"))): [b"0", b"2"],
        ("S", queues("S")[1]): [b"4"],
        ("T", queues("T")[2]): [b"1"],
        ("T", None): [b"3"],
    }
    assert all(
        props["__SHARDINGKEY"] == "k" for s in shipments if s.topic == "S" for _, _, props in unpack(s)
    )


def test_delayed_rows_travel_alone() -> None:
    at = datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC)
    shipments = encode(
        {
            "body": pa.array([b"0", b"1", b"2", b"3"]),
            "delayLevel": pa.array([None, 3, 0, None], pa.int32()),
            "deliverAt": pa.array([None, None, None, at], pa.timestamp("us", tz="UTC")),
        }
    )
    alone = [s for s in shipments if not s.is_batch]
    assert [bytes(s.body) for s in alone] == [b"1", b"3"]
    assert decode_properties(alone[0].properties.encode())["DELAY"] == "3"
    assert decode_properties(alone[1].properties.encode())["TIMER_DELIVER_MS"] == "2000000000000"
    (batch,) = [s for s in shipments if s.is_batch]
    assert [(body, set(props)) for _, body, props in unpack(batch)] == [
        (b"0", {"UNIQ_KEY"}),
        (b"2", {"UNIQ_KEY"}),
    ]


def test_properties_as_stored_and_given_keys() -> None:
    (shipment,) = encode(
        {
            "body": pa.array([b"0", b"1"]),
            "properties": pa.array(["x\x011\x02UNIQ_KEY\x01OLD\x02WAIT\x01true", None]),
            "uniqueKey": pa.array(["MINE", None]),
        }
    )
    (_, _, first), (_, _, second) = unpack(shipment)
    assert first == {"x": "1", "UNIQ_KEY": "MINE"}
    assert second == {"UNIQ_KEY": make_keys(PREFIX, 1, 1)[0].as_py().decode()}


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"body": pa.array([b"x", None])}, "row 1 .* no body"),
        ({"body": pa.array([b"x", b""])}, "row 1 .* no body"),
        ({"body": pa.array([b"x"]), "tags": pa.array(["a\x02b"])}, "TAGS holds the byte 2"),
        ({"body": pa.array([b"x"]), "queueId": pa.array([9])}, "no writable queue 9"),
        ({"body": pa.array([b"x" * (4 << 20)])}, "row 0 .* at most"),
        ({"body": pa.array([b"x"]), "keys": pa.array(["k" * 40_000])}, "more than 32767 bytes"),
        (
            {
                "body": pa.array([b"x"]),
                "properties": pa.array([[("a\x01", "b")]], pa.map_(pa.string(), pa.string())),
            },
            "name holds",
        ),
    ],
)
def test_rows_that_no_broker_would_store_are_named(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(MessageIllegal, match=why):
        encode(columns)


@pytest.mark.parametrize("has_nulls", [True, False])
def test_keys_are_a_list_of_texts_of_any_kind(has_nulls: bool) -> None:
    lists = [["k0"], ["k1", "k2"], [], ["k3"]]
    if has_nulls:
        lists = [["k0"], ["k1", None, "k2", ""], None, [None, "k3"]]
    keys = pa.array(lists, pa.list_(pa.field("element", pa.string(), nullable=has_nulls)))
    (shipment,) = encode({"body": pa.array([b"1", b"2", b"3"]), "keys": keys.slice(1)})
    assert [properties.get("KEYS") for _, _, properties in unpack(shipment)] == ["k1 k2", None, "k3"]


def test_rows_without_a_body_are_skipped_or_diverted_and_counted() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"0", None, b"2", b"", b"4"]),
            "topic": pa.array(["T", "T", "S", "S", "T"]),
            "queueId": pa.array([1, 77, None, 77, 1], pa.int32()),
        }
    )

    def encode_as(chosen: EmptyBodies, spread: int | None = None) -> dict[Any, list[tuple[bytes, str]]]:
        diverted = "Empty" if chosen is EmptyBodies.DIVERT else ""
        encoder = BatchEncoder(
            SinkColumns({"body": 0, "topic": 1, "queueId": 2}),
            make_options(topic="", emptyBodies=chosen.value, emptyBodiesTopic=diverted),
            key_prefix=PREFIX,
            queues=queues,
            spread=spread,
        )
        shipments = list(encoder.encode(batch))
        assert (encoder.row_count, encoder.empty_count) == (5, 2)
        # Whatever happens to the other rows, a row keeps its number and therefore its key.
        return {s.topic: [(body, p["UNIQ_KEY"][-1]) for _, body, p in unpack(s)] for s in shipments}

    kept = {"T": [(b"0", "0"), (b"4", "4")], "S": [(b"2", "2")]}
    assert encode_as(EmptyBodies.SKIP) == kept
    empty = [(b'{"topic": "T", "body": null}', "1"), (b'{"topic": "S", "body": ""}', "3")]
    assert encode_as(EmptyBodies.DIVERT) == {**kept, "Empty": empty}
    assert encode_as(EmptyBodies.DIVERT, spread=1) == {**kept, "Empty": empty}


def test_columns_are_found_or_refused() -> None:
    fields = [("Value", "string"), ("topic", "string"), ("queueOffset", "bigint"), ("Tags", "string")]
    assert find_sink_columns(fields, has_topic_option=False).places == {"body": 0, "topic": 1, "tags": 3}
    for bad, why in (
        ([("body", "string"), ("tag", "string")], "did you mean tags"),
        ([("topic", "string")], "body"),
        ([("body", "int")], "expected string or binary, got int"),
        ([("body", "string"), ("value", "string")], "twice"),
        ([("body", "string")], "option topic"),
    ):
        with pytest.raises(ConfigError, match=why):
            find_sink_columns(bad, has_topic_option=False)


def test_rows_in_kafkas_form() -> None:
    headers = pa.array(
        [
            [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "UNIQ_KEY", "value": b"x"}],
            None,
        ],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    columns = {
        "key": pa.array([b"k1", None]),
        "value": pa.array([b"1", b"2"]),
        "headers": headers,
        "partition": pa.array([None, 2], pa.int32()),
        "offset": pa.array([7, 8]),
    }
    types = ("string", "binary", "array<struct<key:string,value:binary>>", "int", "bigint")
    places = find_sink_columns(list(zip(columns, types, strict=True)), has_topic_option=True)
    encoder = BatchEncoder(places, make_options(), key_prefix=PREFIX, queues=queues)
    by_key, by_number = sorted(
        encoder.encode(pa.RecordBatch.from_pydict(columns)), key=lambda sent: bytes(sent.body), reverse=True
    )
    assert by_key.queue == queue_by_key(queues("T"), java_hash("k1"))
    assert by_number.queue == queues("T")[2]
    (first,), (second,) = (split_batch(bytes(sent.body)) for sent in (by_key, by_number))
    found = decode_properties(first.properties)
    assert {name: found[name] for name in found if name != "UNIQ_KEY"} == {
        "a": "1",
        "KEYS": "k1",
        "__SHARDINGKEY": "k1",
    }
    assert found["UNIQ_KEY"] != "x"
    assert list(decode_properties(second.properties)) == ["UNIQ_KEY"]
    bad = pa.RecordBatch.from_pydict({**columns, "key": pa.array([b"\xff", None])})
    with pytest.raises(MessageIllegal, match="key is not UTF-8"):
        list(encoder.encode(bad))
