"""The body of REGISTER_BROKER, plain and compressed (spec remoting 11.5; spec nameserver 3.1)."""

from __future__ import annotations

import struct
import zlib

import pytest

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies import DataVersion
from tandemmq.protocol.bodies import register as register_module
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.register import (
    RegisterBrokerBody,
    body_crc32,
    decode_register_broker_body,
    encode_register_broker_body,
)
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable

EXAMPLE = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":0,'
    b'"timestamp":1700000000000},"topicConfigTable":{"TBW102":{"attributes":{},"order":false,"perm":7,'
    b'"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TBW102","topicSysFlag":0,"writeQueueNums":8},'
    b'"T1":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"T1","topicSysFlag":0,"writeQueueNums":4}}}}'
)
BODY = RegisterBrokerBody(
    filter_servers=(),
    topics=TopicConfigTable(
        data_version=DataVersion(counter=1, timestamp_ms=1700000000000),
        topics={
            "TBW102": TopicConfig(name="TBW102", permission=7, read_queue_count=8, write_queue_count=8),
            "T1": TopicConfig(name="T1", read_queue_count=4, write_queue_count=4),
        },
    ),
)


def piece(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed(*lines: bytes, count: int | None = None, tail: bytes = b"") -> bytes:
    head = piece(b'{"counter":1,"timestamp":1700000000000}')
    number = struct.pack(">i", len(lines) if count is None else count)
    return zlib.compress(head + number + b"".join(map(piece, lines)) + piece(b"[]") + tail)


def test_example_of_the_spec() -> None:
    assert len(EXAMPLE) == 451
    assert body_crc32(EXAMPLE) == 1869451055
    assert decode_register_broker_body(EXAMPLE) == BODY
    assert encode_register_broker_body(BODY) == EXAMPLE


def test_check_sums() -> None:
    assert body_crc32(b"123456789") == 1274296614
    assert body_crc32(b"") == 0


@pytest.mark.parametrize("is_compressed", [True, False])
def test_compressed_body_is_read_whatever_the_header_says(is_compressed: bool) -> None:
    data = encode_register_broker_body(BODY, is_compressed=True)
    assert data[:2] == b"\x78\xda"
    assert decode_register_broker_body(data, is_compressed=is_compressed) == BODY


@pytest.mark.parametrize("version", [409, 413])
def test_mapping_section_only_from_5_0_on(version: int) -> None:
    data = zlib.decompress(encode_register_broker_body(BODY, is_compressed=True, version=version))
    assert data.endswith(piece(b"[]") + (struct.pack(">i", 0) if version >= 413 else b""))
    assert decode_register_broker_body(zlib.compress(data, 9), version=version) == BODY


def test_topic_lines_of_all_versions() -> None:
    data = compressed(
        b"A 4 8 6 SINGLE_TAG",
        b'B 1 1 7 MULTI_TAG {"message.type":"FIFO","x":"a b"}',
        b"C 1 1 6 SINGLE_TAG {broken",
        tail=struct.pack(">i", 1) + piece(b'{"topic":"ST"}'),
    )
    topics = decode_register_broker_body(data).topics.topics
    assert topics["A"] == TopicConfig(name="A", read_queue_count=4, write_queue_count=8)
    assert topics["B"].attributes == {"message.type": "FIFO", "x": "a b"}
    assert topics["B"].filter_type == "MULTI_TAG"
    assert topics["C"].attributes == {}


def test_a_registration_that_inflates_without_measure_is_refused() -> None:
    lines = [b"T%d 8 8 6 SINGLE_TAG {}" % number for number in range(30_000)]
    assert len(decode_register_broker_body(compressed(*lines)).topics.topics) == 30_000
    with pytest.raises(RemoteProtocolError, match="beyond the limit"):
        decode_register_broker_body(compressed(*([b"T 8 8 6 SINGLE_TAG {}"] * 300_000)))


def test_attributes_survive_compression() -> None:
    table = TopicConfigTable(topics={"B": TopicConfig(name="B", attributes={"message.type": "FIFO"})})
    data = encode_register_broker_body(RegisterBrokerBody(topics=table), is_compressed=True)
    assert decode_register_broker_body(data).topics == table


def test_absent_body_clears_filter_servers_and_missing_list_leaves_them() -> None:
    assert decode_register_broker_body(b"") == RegisterBrokerBody(filter_servers=())
    assert decode_register_broker_body(b"{}").filter_servers is None
    assert b"filterServerList" not in encode_register_broker_body(RegisterBrokerBody())


def test_very_old_broker_sends_the_bare_table() -> None:
    data = encode_body(BODY.topics)
    assert decode_register_broker_body(data, version=36) == BODY


UNREADABLE = {
    "no JSON": b"hello",
    "list": b"[]",
    "no zlib": b"\x78nonsense",
    "cut zlib": compressed(b"A 4 8 6 SINGLE_TAG")[:-4],
    "empty zlib": zlib.compress(b""),
    "few fields": compressed(b"A 4 8"),
    "no numbers": compressed(b"A x 8 6 SINGLE_TAG"),
    "more lines announced": compressed(b"A 4 8 6 SINGLE_TAG", count=1000),
    "negative piece": zlib.compress(struct.pack(">i", -1)),
    "huge piece": zlib.compress(struct.pack(">i", 2**31 - 1) + b"x"),
    "no UTF-8": compressed(b"\xff 4 8 6 SINGLE_TAG"),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_body_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_register_broker_body(data)


def test_uncompressed_body_with_compressed_header_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_register_broker_body(EXAMPLE, is_compressed=True)


def test_inflation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_module, "INFLATED_BYTES_MAX", 100_000)
    with pytest.raises(RemoteProtocolError, match="beyond the limit"):
        decode_register_broker_body(zlib.compress(bytes(1_000_000)))
