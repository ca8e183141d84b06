"""JSON of pop consumption: check points and acks in the revive topic, batch acks, ordered progress.

Source:  spec semantics 14.3 to 14.5, spec remoting 12.7. The one-letter names are the wire's own.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from msgspec import field

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.command import Buffer


class CheckPoint(Body, frozen=True, kw_only=True):
    """One pop of one queue, as a message with the tag `ck`.

    Units:   offset_steps are distances from start_offset, one per message; bits: those acknowledged when it
             was written.
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
    topic: str = field(name="t", default="")
    # Ours: where the group's pops go on; absent when the message was popped before (a change, a repetition).
    end_offset: int | None = field(name="tandemEnd", default=None)


class Ack(Body, frozen=True, kw_only=True):
    """One acknowledged message (tag `ack`), or several of one check point (tag `bAck`, with `offsets`)."""

    offset: int = field(name="ao", default=-1)
    offsets: list[int] | None = field(name="aol", default=None)
    broker_name: str = field(name="bn", default="")
    group: str = field(name="c", default="")
    pop_time_ms: int = field(name="pt", default=0)
    queue_id: int = field(name="q", default=0)
    start_offset: int = field(name="so", default=0)
    topic: str = field(name="t", default="")


class Position(Body, frozen=True, kw_only=True):
    """Ours, tag `tandemPosition`: where a group's pops of a queue go on, whatever earlier records say."""

    group: str = field(name="c", default="")
    queue_id: int = field(name="q", default=0)
    offset: int = field(name="so", default=0)
    topic: str = field(name="t", default="")


class BatchAckEntry(Body, frozen=True, kw_only=True):
    """Acks of one check point: bit i is the offset start_offset + i. `topic` is what was asked for."""

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
    """One queue in consumerOrderInfo.json: what a group has popped in order and not finished.

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


class OrderStates(Body, frozen=True, kw_only=True):
    """consumerOrderInfo.json: `topic@group` -> queue id -> state."""

    table: dict[str, dict[int, OrderState]] = field(default_factory=dict)


def encode_check_point(check_point: CheckPoint) -> bytes:
    return encode_body(check_point)


def decode_check_point(data: Buffer) -> CheckPoint:
    return decode_body(data, CheckPoint)


def encode_ack(ack: Ack) -> bytes:
    return encode_body(ack)


def decode_ack(data: Buffer) -> Ack:
    return decode_body(data, Ack)


def encode_position(position: Position) -> bytes:
    return encode_body(position)


def decode_position(data: Buffer) -> Position:
    return decode_body(data, Position)


def encode_batch_ack(batch: BatchAck) -> bytes:
    return encode_body(batch)


def decode_batch_ack(data: Buffer) -> BatchAck:
    return decode_body(data, BatchAck)


def encode_order_states(states: OrderStates) -> bytes:
    return encode_body(states)


def decode_order_states(data: Buffer) -> OrderStates:
    return decode_body(data, OrderStates)


def encode_bits(numbers: list[int]) -> str:
    """Java's BitSet as bytes, little endian, in Base64."""
    value = 0
    for number in numbers:
        value |= 1 << number
    return b64encode(value.to_bytes(-(-value.bit_length() // 8), "little")).decode()


def decode_bits(text: str, bytes_max: int) -> list[int]:
    """The numbers of the bits that are set.

    Raises:  RemoteProtocolError for a text that is no Base64 or holds more than `bytes_max` bytes.
    """
    try:
        raw = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise RemoteProtocolError("the bit set of a batch ack is no Base64") from None
    if len(raw) > bytes_max:
        raise RemoteProtocolError(
            f"the bit set of a batch ack has {len(raw)} bytes, at most {bytes_max} allowed"
        )
    value = int.from_bytes(raw, "little")
    return [number for number in range(value.bit_length()) if value >> number & 1]
