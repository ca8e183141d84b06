"""Check points, acks and positions as messages of the revive topic. Pure (spec semantics 14.4).

They lie there from the moment they are made; RocketMQ puts them there through its timer, when they are due
(decision 008). Both kinds are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tandemmq.broker.pop.leases import MESSAGE_COUNT_MAX, Lease, LeaseKey
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.pop import (
    Ack,
    CheckPoint,
    Position,
    decode_ack,
    decode_check_point,
    decode_position,
    encode_ack,
    encode_check_point,
    encode_position,
)
from tandemmq.protocol.properties import TAGS, UNIQ_KEY, encode_properties, find_property
from tandemmq.protocol.record import NewRecord, Record, tag_hash_of

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
POSITION_TAG: Final = "tandemPosition"

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
LATE_ACK_MS: Final = 3_000
"""RocketMQ's acks come through its timer, about as late as this after their check point's end."""


def revive_topic(cluster: str) -> str:
    """Where the leases of a cluster's brokers are kept (spec semantics 14)."""
    return f"rmq_sys_REVIVE_LOG_{cluster}"


class NewLease(NamedTuple):
    """A lease that a check point tells of, and where the group's pops go on (None: it does not say)."""

    lease: Lease
    position: int | None
    is_late: bool


class Finished(NamedTuple):
    """Messages of a lease that come no more."""

    key: LeaseKey
    offsets: Sequence[int]


Change = NewLease | Finished | Position


class LeaseRecords:
    """Makes the records of one broker."""

    def __init__(self, *, cluster: str, broker_name: str) -> None:
        self.topic = revive_topic(cluster)
        self._broker_name = broker_name
        self.host = bytes(8)

    def check_point(self, lease: Lease, *, moves_position: bool, now_ms: int) -> NewRecord:
        """The record of a new lease; `moves_position`: it also says where pops of the queue go on."""
        key = lease.key
        body = CheckPoint(
            bits=_signed(lease.bits),
            broker_name=self._broker_name,
            group=key.group,
            offset_steps=[offset - key.start_offset for offset in lease.offsets],
            invisible_ms=lease.invisible_ms,
            count=len(lease.offsets),
            pop_time_ms=key.pop_time_ms,
            queue_id=key.queue_id,
            put_again_count=str(lease.put_again_count),
            start_offset=key.start_offset,
            topic=key.topic,
            end_offset=lease.end_offset if moves_position else None,
        )
        name = self._name(key, key.start_offset, CHECK_POINT_TAG)
        return self._record(CHECK_POINT_TAG, encode_check_point(body), lease.revive_queue_id, name, now_ms)

    def ack(self, lease: Lease, offsets: Sequence[int], now_ms: int) -> NewRecord:
        """The record of one or more acks of a lease."""
        key = lease.key
        is_one = len(offsets) == 1
        body = Ack(
            offset=offsets[0] if is_one else -1,
            offsets=None if is_one else list(offsets),
            broker_name=self._broker_name,
            group=key.group,
            pop_time_ms=key.pop_time_ms,
            queue_id=key.queue_id,
            start_offset=key.start_offset,
            topic=key.topic,
        )
        tag = ACK_TAG if is_one else BATCH_ACK_TAG
        name = self._name(key, offsets[0], ACK_TAG)
        return self._record(tag, encode_ack(body), lease.revive_queue_id, name, now_ms)

    def position(
        self, topic: str, group: str, queue_id: int, offset: int, *, revive_queue_id: int, now_ms: int
    ) -> NewRecord:
        body = Position(topic=topic, group=group, queue_id=queue_id, offset=offset)
        return self._record(POSITION_TAG, encode_position(body), revive_queue_id, "", now_ms)

    def _name(self, key: LeaseKey, offset: int, kind: str) -> str:
        parts = (key.topic, key.queue_id, offset, key.group, key.pop_time_ms, self._broker_name, kind)
        return "@".join(map(str, parts))

    def _record(self, tag: str, body: bytes, queue_id: int, name: str, now_ms: int) -> NewRecord:
        properties = encode_properties({TAGS: tag, UNIQ_KEY: name})
        return NewRecord(
            topic=self.topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            born_at_ms=now_ms,
            born_host=self.host,
            tag_hash=tag_hash_of(properties),
            is_internal=True,
        )


def read_change(record: Record) -> Change | None:
    """What a record of the revive topic says; None when it says nothing that we know."""
    tag = find_property(record.raw_properties, TAGS.encode())
    try:
        if tag == CHECK_POINT_TAG.encode():
            return _read_check_point(record)
        if tag in (ACK_TAG.encode(), BATCH_ACK_TAG.encode()):
            ack = decode_ack(record.body)
            key = LeaseKey(ack.topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_time_ms)
            return Finished(key, [ack.offset] if ack.offsets is None else ack.offsets)
        if tag == POSITION_TAG.encode():
            return decode_position(record.body)
    except RemoteProtocolError:
        pass
    return None


def _read_check_point(record: Record) -> NewLease | None:
    body = decode_check_point(record.body)
    steps = body.offset_steps or list(range(body.count))
    if not 0 < len(steps) <= MESSAGE_COUNT_MAX:
        return None
    is_late = find_property(record.raw_properties, b"TIMER_OUT_MS") is not None
    lease = Lease(
        LeaseKey(body.topic, body.group, body.queue_id, body.start_offset, body.pop_time_ms),
        [body.start_offset + step for step in steps],
        invisible_ms=body.invisible_ms,
        revive_queue_id=record.queue_id,
        end_offset=body.start_offset + steps[-1] + 1,
        bits=body.bits & ((1 << len(steps)) - 1),
        grace_ms=LATE_ACK_MS if is_late else 0,
        put_again_count=int(body.put_again_count) if body.put_again_count.isdecimal() else 0,
    )
    return NewLease(lease, body.end_offset, is_late)


def _signed(bits: int) -> int:
    """As Java's int holds it."""
    return bits - (1 << 32) if bits >> 31 & 1 else bits
