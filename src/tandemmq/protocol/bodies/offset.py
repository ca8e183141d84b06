"""Tables of offsets, and the pushes that reset or ask for them.

Source:  spec remoting 6, 8.5 and 11.11; spec store 18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType, field

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import (
    Body,
    DataVersion,
    MessageQueue,
    convert,
    convert_queue_map,
    decode_body,
    decode_plain,
    encode_body,
    encode_queue_map,
)
from tandemmq.protocol.command import Buffer


class ConsumerOffsetTable(Body, frozen=True, kw_only=True):
    """Committed offsets: `topic@group` -> queue id -> next offset; also the shape of consumerOffset.json.

    Ours, and ignored by RocketMQ: `deleted`: in the file, topics that were deleted and made again -> the log
    offset of the deletion that their offsets come after; `forgotten`: groups whose progress was lost.
    """

    data_version: DataVersion = field(name="dataVersion", default=DataVersion())
    offsets: dict[str, dict[int, int]] = field(name="offsetTable", default_factory=dict)
    deleted: dict[str, int] | UnsetType = field(name="tandemDeletedTopics", default=UNSET)
    forgotten: tuple[str, ...] | UnsetType = field(name="tandemForgottenGroups", default=UNSET)


class DelayOffsetTable(Body, frozen=True, kw_only=True):
    """Where each delay level has got to: level -> queue offset. Also the shape of `delayOffset.json`."""

    data_version: DataVersion = field(name="dataVersion", default=DataVersion())
    offsets: dict[int, int] = field(name="offsetTable", default_factory=dict)


class _QueueOffset(Body, frozen=True, kw_only=True):
    """One row of the list form of reset offsets, for clients in C++."""

    broker_name: str = field(name="brokerName", default="")
    offset: int = 0
    queue_id: int = field(name="queueId", default=0)
    topic: str = ""


class ConsumerStatus(Body, frozen=True, kw_only=True):
    """Offsets of one client, or of each client of a group."""

    clients: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    queues: dict[MessageQueue, int] = field(default_factory=dict)


def encode_consumer_offsets(table: ConsumerOffsetTable) -> bytes:
    return encode_body(table)


def decode_consumer_offsets(data: Buffer) -> ConsumerOffsetTable:
    return decode_body(data, ConsumerOffsetTable)


def encode_delay_offsets(table: DelayOffsetTable) -> bytes:
    return encode_body(table)


def decode_delay_offsets(data: Buffer) -> DelayOffsetTable:
    return decode_body(data, DelayOffsetTable)


def encode_reset_offsets(offsets: Mapping[MessageQueue, int], *, as_list: bool = False) -> bytes:
    """The body of RESET_CONSUMER_CLIENT_OFFSET (220) and of the answer to 222.

    Not JSON on purpose: a body that is JSON makes Go expect another shape and panic. C++ wants a list.
    """
    if as_list:
        rows = [
            _QueueOffset(
                broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic
            )
            for queue, offset in offsets.items()
        ]
        return b'{"offsetTable":' + encode_body(rows) + b"}"
    return b'{"offsetTable":' + encode_queue_map(offsets) + b"}"


def decode_reset_offsets(data: Buffer) -> dict[MessageQueue, int]:
    """The offsets, from any of the forms: objects as keys, texts as keys, rows, or pairs.

    Raises:  RemoteProtocolError.
    """
    value = _table(data).get("offsetTable")
    if not isinstance(value, list):
        return convert_queue_map(value, int)
    offsets: dict[MessageQueue, int] = {}
    for row in value:
        if isinstance(row, list) and len(row) == 2:
            offsets[convert(row[0], MessageQueue)] = convert(row[1], int)
        else:
            offsets[convert(row, MessageQueue)] = convert(row, _QueueOffset).offset
    return offsets


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    """The answer to QUERY_CORRECTION_OFFSET (308): queue id -> offset."""
    return encode_body({"correctionOffsets": dict(offsets)})


def encode_consumer_status(status: ConsumerStatus) -> bytes:
    """The answer to 221 and 223 (RocketMQ: GetConsumerStatusBody)."""
    clients = [encode_body(name) + b":" + encode_queue_map(queues) for name, queues in status.clients.items()]
    queues = encode_queue_map(status.queues)
    return b'{"consumerTable":{' + b",".join(clients) + b'},"messageQueueTable":' + queues + b"}"


def decode_consumer_status(data: Buffer) -> ConsumerStatus:
    value = _table(data)
    clients = value.get("consumerTable") or {}
    if not isinstance(clients, dict):
        raise RemoteProtocolError("consumerTable is not a JSON object")
    return ConsumerStatus(
        clients={name: convert_queue_map(queues, int) for name, queues in clients.items()},
        queues=convert_queue_map(value.get("messageQueueTable"), int),
    )


def _table(data: Buffer) -> dict[str, Any]:
    value = decode_plain(data)
    if not isinstance(value, dict):
        raise RemoteProtocolError("the body is not a JSON object")
    return value
