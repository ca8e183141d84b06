"""The progress of consumers: tables of offsets, and the pushes that reset or query them; and the state of pop
consumption.

Source:  spec remoting 6, 8.5, 11.11 and 12.7; spec semantics 14.3 to 14.5; spec store 18.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping

from msgspec import UNSET, UnsetType, field

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import (
    Body,
    DataVersion,
    MessageQueue,
    convert,
    convert_queue_map,
    decode_object,
    encode_body,
    encode_queue_map,
)
from tandemmq.protocol.loose_json import LARGE_TEXT
from tandemmq.units import Buffer


class ConsumerOffsetTable(Body, frozen=True, kw_only=True):
    """The committed offsets: `topic@group` -> queue id -> next offset; also the shape of consumerOffset.json.

    The other fields are ours, and ignored by RocketMQ. `deleted`: in the file, recreated topics -> the log
    offset of the deletion, after which their offsets were committed. `forgotten`: groups whose progress was
    lost. `dropped`: groups whose offsets were deleted -> the time, and the log end then.
    """

    TEXT_BOUND = LARGE_TEXT

    data_version: DataVersion = field(name="dataVersion", default=DataVersion())
    offsets: dict[str, dict[int, int]] = field(name="offsetTable", default_factory=dict)
    deleted: dict[str, int] | UnsetType = field(name="tandemDeletedTopics", default=UNSET)
    forgotten: tuple[str, ...] | UnsetType = field(name="tandemForgottenGroups", default=UNSET)
    dropped: dict[str, tuple[int, int]] | UnsetType = field(name="tandemDroppedGroups", default=UNSET)


class DelayOffsets(Body, frozen=True, kw_only=True):
    """The progress of each delay level: level -> queue offset. Also the shape of `delayOffset.json`."""

    TEXT_BOUND = LARGE_TEXT

    data_version: DataVersion = field(name="dataVersion", default=DataVersion())
    offsets: dict[int, int] = field(name="offsetTable", default_factory=dict)


class _QueueOffset(Body, frozen=True, kw_only=True):
    """One row of the list form of reset offsets, for clients in C++."""

    broker_name: str = field(name="brokerName", default="")
    offset: int = 0
    queue_id: int = field(name="queueId", default=0)
    topic: str = ""


class ConsumerStatus(Body, frozen=True, kw_only=True):
    """The offsets of one client, or of each client of a group."""

    clients: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    queues: dict[MessageQueue, int] = field(default_factory=dict)


def encode_reset_offsets(offsets: Mapping[MessageQueue, int], *, as_list: bool = False) -> bytes:
    """Encodes the body of RESET_CONSUMER_CLIENT_OFFSET (220) and of the answer to 222.

    Not JSON on purpose: on valid JSON, Go expects another shape and panics. C++ needs a list.
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
    """Returns the offsets from any of the forms: objects as keys, texts as keys, rows, or pairs.

    Raises:  RemoteProtocolError.
    """
    value = decode_object(data, LARGE_TEXT).get("offsetTable")
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
    """Encodes the answer to QUERY_CORRECTION_OFFSET (308): queue id -> offset."""
    return encode_body({"correctionOffsets": dict(offsets)})


def encode_consumer_status(status: ConsumerStatus) -> bytes:
    """Encodes the answer to 221 and 223 (RocketMQ: GetConsumerStatusBody)."""
    clients = [encode_body(name) + b":" + encode_queue_map(queues) for name, queues in status.clients.items()]
    queues = encode_queue_map(status.queues)
    return b'{"consumerTable":{' + b",".join(clients) + b'},"messageQueueTable":' + queues + b"}"


def decode_consumer_status(data: Buffer) -> ConsumerStatus:
    value = decode_object(data, LARGE_TEXT)
    clients = value.get("consumerTable") or {}
    if not isinstance(clients, dict):
        raise RemoteProtocolError("consumerTable is not a JSON object")
    return ConsumerStatus(
        clients={name: convert_queue_map(queues, int) for name, queues in clients.items()},
        queues=convert_queue_map(value.get("messageQueueTable"), int),
    )


# Pop consumption: check points and acks in the revive topic, batch acks, ordered progress. The one-letter
# names are the wire's own.


class CheckPoint(Body, frozen=True, kw_only=True):
    """One pop of one queue, as a message with the tag `ck`.

    Units:   offset_steps are distances from start_offset, one per message; bits: the messages acknowledged at
             the time of writing.
    """

    bits: int = field(name="bm", default=0)
    broker_name: str = field(name="bn", default="")
    group: str = field(name="c", default="")
    offset_steps: list[int] = field(name="d", default_factory=list)
    invisible_ms: int = field(name="it", default=0)
    count: int = field(name="n", default=0)
    pop_time_ms: int = field(name="pt", default=0)
    queue_id: int = field(name="q", default=0)
    revive_offset: int = field(name="ro", default=0)
    put_again_count: str = field(name="rp", default="0")
    start_offset: int = field(name="so", default=0)
    is_suspended: bool | None = field(name="sp", default=None)
    """5.5: true if the next delivery of the messages does not count as a retry."""
    topic: str = field(name="t", default="")
    # Ours: the next offset of the group's pops; absent if the message was popped before (a change, a
    # repetition).
    end_offset: int | None = field(name="tandemEnd", default=None)
    # Ours: those of `bits` that no ack ended (`Ack.is_moved`).
    moved_bits: int | None = field(name="tandemMoved", default=None)


class Ack(Body, frozen=True, kw_only=True):
    """One acknowledged message (tag `ack`), or several of one check point (tag `bAck`, with `offsets`).

    `is_moved` (ours): they were not acknowledged, but are in another lease or in the retry topic now.
    """

    offset: int = field(name="ao", default=-1)
    offsets: list[int] | None = field(name="aol", default=None)
    broker_name: str = field(name="bn", default="")
    group: str = field(name="c", default="")
    pop_time_ms: int = field(name="pt", default=0)
    queue_id: int = field(name="q", default=0)
    start_offset: int = field(name="so", default=0)
    topic: str = field(name="t", default="")
    is_moved: bool | None = field(name="tandemMoved", default=None)


class Position(Body, frozen=True, kw_only=True):
    """The next offset of a group's pops of a queue, which overrides earlier records (ours, tag
    `tandemPosition`).
    """

    group: str = field(name="c", default="")
    queue_id: int = field(name="q", default=0)
    offset: int = field(name="so", default=0)
    topic: str = field(name="t", default="")


class BatchAckEntry(Body, frozen=True, kw_only=True):
    """Acks of one check point: bit i is the offset start_offset + i. `topic` is the requested topic."""

    bits: str = field(name="b", default="")
    group: str = field(name="c", default="")
    invisible_ms: int = field(name="it", default=0)
    pop_time_ms: int = field(name="pt", default=0)
    queue_id: int = field(name="q", default=0)
    retry_flag: str = field(name="r", default="0")
    revive_queue_id: int = field(name="rq", default=0)
    start_offset: int = field(name="so", default=0)
    topic: str = field(name="t", default="")


class BatchAck(Body, frozen=True, kw_only=True):
    """The body of BATCH_ACK_MESSAGE."""

    entries: list[BatchAckEntry] = field(name="acks", default_factory=list)
    broker_name: str = field(name="brokerName", default="")


class OrderState(Body, frozen=True, kw_only=True):
    """One queue in consumerOrderInfo.json: the messages a group has popped in order and not acknowledged.

    Units:   offsets: the first absolute, the others as distances from it; bits as for a check point.
    """

    attempt_id: str = field(name="a", default="")
    bits: int = field(name="cm", default=0)
    consumed_counts: dict[int, int] = field(name="oc", default_factory=dict)
    invisible_ms: int = field(name="i", default=0)
    consumed_at_ms: int = field(name="l", default=0)
    visible_at_ms: dict[int, int] = field(name="ot", default_factory=dict)
    offsets: list[int] = field(name="o", default_factory=list)
    pop_time_ms: int = field(name="popTime", default=0)
    postponed: list[int] | None = field(name="tandemPostponed", default=None)
    """The absolute offsets of messages postponed without a try (ours)."""


class OrderStates(Body, frozen=True, kw_only=True):
    """The content of consumerOrderInfo.json: `topic@group` -> queue id -> state."""

    TEXT_BOUND = LARGE_TEXT

    table: dict[str, dict[int, OrderState]] = field(default_factory=dict)


def encode_bits(numbers: list[int]) -> str:
    """Encodes Java's BitSet as bytes, little endian, in Base64."""
    value = 0
    for number in numbers:
        value |= 1 << number
    return b64encode(value.to_bytes(-(-value.bit_length() // 8), "little")).decode()


def decode_bits(text: str, bytes_max: int) -> list[int]:
    """Returns the numbers of the set bits.

    Raises:  RemoteProtocolError for a text that is not Base64 or holds more than `bytes_max` bytes.
    """
    try:
        raw = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise RemoteProtocolError("the bit set of a batch ack is not Base64") from None
    if len(raw) > bytes_max:
        raise RemoteProtocolError(
            f"the bit set of a batch ack has {len(raw)} bytes, at most {bytes_max} allowed"
        )
    value = int.from_bytes(raw, "little")
    return [number for number in range(value.bit_length()) if value >> number & 1]
