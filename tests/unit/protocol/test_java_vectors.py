"""Frames that Java clients, name servers and brokers sent: each is read, written again and read back.

The files were made by `tests/interop/capture.py`; one RocketMQ release line each.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batch_items import split_batch
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.bodies import client, codec, progress, route, stats, tables
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.catalogue import CATALOGUE
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.header_codec import codec_of
from tandemmq.protocol.record import NewRecord, decode_records, encode_record


def shaped(shape: type[Any]) -> Callable[[Any], Any]:
    """Returns the decoder of a body without a spelling of its own."""
    return lambda data: decode_body(data, shape)


FOLDER = Path(__file__).parent / "vectors"
VECTORS = [
    pytest.param(row, id=f"{path.stem}-{row['code']}-{row['kind']}-{index}")
    for path in sorted(FOLDER.glob("java-*.json"))
    for index, row in enumerate(json.loads(path.read_text()))
]
Codec = tuple[Callable[[Any], Any], Callable[[Any], bytes]]


BODIES: dict[tuple[int, str], Codec] = {
    (RequestCode.HEART_BEAT, "request"): (shaped(client.Heartbeat), encode_body),
    (RequestCode.CHECK_CLIENT_CONFIG, "request"): (
        shaped(client.ClientConfigCheck),
        encode_body,
    ),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "response"): (
        client.decode_consumer_list,
        client.encode_consumer_list,
    ),
    (RequestCode.LOCK_BATCH_MQ, "request"): (shaped(client.LockRequest), encode_body),
    (RequestCode.UNLOCK_BATCH_MQ, "request"): (shaped(client.LockRequest), encode_body),
    (RequestCode.LOCK_BATCH_MQ, "response"): (client.decode_lock_answer, client.encode_lock_answer),
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, "response"): (
        shaped(client.ConsumerConnections),
        encode_body,
    ),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, "response"): (
        client.decode_producer_connections,
        client.encode_producer_connections,
    ),
    (RequestCode.GET_BROKER_CLUSTER_INFO, "response"): (
        shaped(route.ClusterInfo),
        route.encode_cluster_info,
    ),
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, "response"): (shaped(route.TopicRoute), route.encode_topic_route),
    (RequestCode.GET_BROKER_MEMBER_GROUP, "response"): (route.decode_member_group, route.encode_member_group),
    (RequestCode.QUERY_DATA_VERSION, "request"): (shaped(codec.DataVersion), encode_body),
    (RequestCode.REGISTER_BROKER, "response"): (codec.decode_kv_table, codec.encode_kv_table),
    (RequestCode.GET_BROKER_RUNTIME_INFO, "response"): (codec.decode_kv_table, codec.encode_kv_table),
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "response"): (
        tables.decode_topic_list,
        tables.encode_topic_list,
    ),
    (RequestCode.GET_TOPICS_BY_CLUSTER, "response"): (tables.decode_topic_list, tables.encode_topic_list),
    (RequestCode.GET_ALL_TOPIC_CONFIG, "response"): (
        shaped(tables.TopicConfigTable),
        encode_body,
    ),
    (RequestCode.GET_TOPIC_STATS_INFO, "response"): (stats.decode_topic_stats, stats.encode_topic_stats),
    (RequestCode.GET_CONSUME_STATS, "response"): (stats.decode_consume_stats, stats.encode_consume_stats),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "response"): (
        shaped(tables.SubscriptionGroupTable),
        encode_body,
    ),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "request"): (
        shaped(tables.SubscriptionGroupConfig),
        encode_body,
    ),
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "response"): (
        shaped(tables.SubscriptionGroupConfig),
        encode_body,
    ),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, "response"): (
        tables.decode_group_list,
        tables.encode_group_list,
    ),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, "response"): (
        shaped(progress.ConsumerOffsetTable),
        encode_body,
    ),
    (RequestCode.GET_ALL_DELAY_OFFSET, "response"): (
        shaped(progress.DelayOffsets),
        encode_body,
    ),
    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "response"): (
        progress.decode_reset_offsets,
        progress.encode_reset_offsets,
    ),
    (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, "request"): (
        progress.decode_reset_offsets,
        progress.encode_reset_offsets,
    ),
    (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, "response"): (
        progress.decode_consumer_status,
        progress.encode_consumer_status,
    ),
    (RequestCode.QUERY_ASSIGNMENT, "request"): (
        shaped(client.AssignmentQuery),
        encode_body,
    ),
    (RequestCode.QUERY_ASSIGNMENT, "response"): (
        shaped(client.Assignments),
        encode_body,
    ),
    (RequestCode.SET_MESSAGE_REQUEST_MODE, "request"): (
        shaped(client.RequestMode),
        encode_body,
    ),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, "response"): (
        shaped(client.RequestModes),
        encode_body,
    ),
    (RequestCode.BATCH_ACK_MESSAGE, "request"): (shaped(progress.BatchAck), encode_body),
}
RECORDS = {
    (RequestCode.PULL_MESSAGE, "response"),
    (RequestCode.LITE_PULL_MESSAGE, "response"),
    (RequestCode.POP_MESSAGE, "response"),
    (RequestCode.QUERY_MESSAGE, "response"),
    (RequestCode.VIEW_MESSAGE_BY_ID, "response"),
}


def command_of(vector: dict[str, Any]) -> Command:
    (command,) = FrameDecoder().feed(base64.b64decode(vector["frame"]))
    return command


def key_of(vector: dict[str, Any]) -> tuple[int, str]:
    return vector["code"], vector["kind"]


def test_there_are_vectors_of_both_lines() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {"java-4.9", "java-5.x"}
    seen = {key_of(vector.values[0]) for vector in VECTORS}
    assert {(code, "request") for code in (103, 105, 34, 310, 320, 11, 15, 36, 39, 326)} <= seen
    assert len(seen) > 100


@pytest.mark.parametrize("vector", VECTORS)
def test_frame(vector: dict[str, Any]) -> None:
    """A frame that was read and written again has the same content; a binary header is equal to the byte."""
    command = command_of(vector)
    assert command.is_response == (vector["kind"] == "response")
    again = msgspec.structs.replace(command, extra_fields=dict(command.fields), fields_json=b"")
    frame = encode_frame(again)
    if command.serialize_type == SERIALIZE_ROCKETMQ:
        assert frame == base64.b64decode(vector["frame"])
    (back,) = FrameDecoder().feed(frame)
    for name in ("code", "opaque", "flag", "language", "version", "remark", "body", "fields"):
        assert getattr(back, name) == getattr(command, name), name


@pytest.mark.parametrize("vector", VECTORS)
def test_header(vector: dict[str, Any]) -> None:
    """The typed header of the catalogue reads it, and writes every known field as Java wrote it."""
    command, entry = command_of(vector), CATALOGUE.get(vector["code"])
    shape = entry and (entry.request if vector["kind"] == "request" else entry.response)
    if shape is None or vector.get("status"):
        assert not vector.get("status") or command.code == vector["status"]
        return
    written = codec_of(shape).encode_map(command.decode(shape))
    known = {name: text for name, text in command.fields.items() if name in shape.__struct_encode_fields__}
    assert {name: written.get(name) for name in known} == known


@pytest.mark.parametrize("vector", [each for each in VECTORS if key_of(each.values[0]) in BODIES])
def test_body(vector: dict[str, Any]) -> None:
    """A body that was read and written again has the same content for a reader."""
    command = command_of(vector)
    decode, encode = BODIES[key_of(vector)]
    if command.body:
        value = decode(command.body)
        assert decode(encode(value)) == value


@pytest.mark.parametrize("vector", [each for each in VECTORS if key_of(each.values[0]) in RECORDS])
def test_records_in_answers(vector: dict[str, Any]) -> None:
    """Our encoder creates the same bytes for the same message."""
    body = command_of(vector).body
    assert b"".join(map(encode_again, decode_records(body))) == body


def encode_again(record: Any) -> bytes:
    new = NewRecord(
        topic=record.topic,
        queue_id=record.queue_id,
        body=record.body,
        properties=record.raw_properties,
        born_at_ms=record.born_at_ms,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        retry_count=record.retry_count,
        prepared_offset=record.prepared_offset,
    )
    return encode_record(
        new,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        stored_at_ms=record.stored_at_ms,
        store_host=record.store_host,
    )


@pytest.mark.parametrize("vector", [each for each in VECTORS if each.values[0]["code"] == 320])
def test_batches(vector: dict[str, Any]) -> None:
    command = command_of(vector)
    if not command.is_response:
        items = split_batch(command.body)
        assert encode_batch((item.flag, item.body, item.properties) for item in items) == command.body
