"""The leases of popped messages that are not yet acknowledged, and their records in the revive topic. Pure.

`Leases` is the table. `LeaseRecords` encodes check points, acks and positions as messages of the revive
topic, and `read_change` decodes them. `lease_log.py` joins both.
Source: spec semantics 14.4 (RocketMQ: PopCheckPoint).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.bodies.progress import Ack, CheckPoint, Position
from tandemmq.protocol.properties import TAGS, UNIQ_KEY, encode_properties, find_property
from tandemmq.protocol.record import NewRecord, Record, tag_hash_of
from tandemmq.protocol.topic_names import REVIVE_TOPIC_PREFIX

LEASE_COUNT_MAX: Final = 200_000
FINISHED_COUNT_MAX: Final = 32_768
"""The highest number of finished leases that are remembered, so that a repeated ack is known as one."""
MESSAGE_COUNT_MAX: Final = 32
"""The highest number of messages in one check point: RocketMQ's bit map has 32 bits."""

QueueKey = tuple[str, str, int]
"""Topic, group, queue id."""


class LeaseKey(NamedTuple):
    """The lease that a receipt handle names. The broker name is left out because it is always this broker."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int


@dataclass(slots=True, eq=False)
class Lease:
    """A lease on some messages of one queue: the messages are invisible to the group until `ends_at_ms`."""

    key: LeaseKey
    offsets: Sequence[int]
    _: KW_ONLY
    invisible_ms: int
    revive_queue_id: int
    end_offset: int  # the group's next pop of the queue starts here
    bits: int = 0  # bit i is set once offsets[i] is acknowledged
    grace_ms: InitVar[int] = 0
    put_again_count: int = 0
    # the messages were not tried, so redelivery leaves their counts unchanged
    is_suspended: bool = False
    ends_at_ms: int = field(init=False)
    # offset of the lease's check point in its revive queue; -1 until it is written
    revive_offset: int = field(default=-1, init=False)
    is_reviving: bool = field(default=False, init=False)
    # bit i is set once offsets[i] is in another lease or in the retry topic, and thus not acknowledged
    moved_bits: int = field(default=0, init=False)

    def __post_init__(self, grace_ms: int) -> None:
        assert 0 < len(self.offsets) <= MESSAGE_COUNT_MAX, len(self.offsets)
        self.offsets = tuple(self.offsets)
        self.ends_at_ms = self.key.pop_time_ms + self.invisible_ms + grace_ms

    def index(self, offset: int) -> int | None:
        """Returns the index of the message within the lease, or None if the lease does not contain it."""
        try:
            return self.offsets.index(offset)
        except ValueError:
            return None

    def is_open(self, index: int) -> bool:
        return not self.bits >> index & 1

    def is_moved(self, index: int) -> bool:
        return bool(self.moved_bits >> index & 1)

    def mark_moved(self, indexes: Iterable[int]) -> None:
        """Marks messages as moved to another lease or to the retry topic."""
        for index in indexes:
            self.moved_bits |= 1 << index

    def is_acknowledged(self, offset: int) -> bool:
        """Returns True if the message was acknowledged under this lease."""
        index = self.index(offset)
        return index is not None and not self.is_open(index) and not self.is_moved(index)

    @property
    def is_finished(self) -> bool:
        return self.bits == (1 << len(self.offsets)) - 1

    def open_offsets(self) -> list[int]:
        return [offset for index, offset in enumerate(self.offsets) if self.is_open(index)]


class Leases:
    """All leases of a broker, indexed by key, by end time and by the offset of their check point.

    Invariants: a lease is in the table while at least one of its messages is neither acknowledged nor moved.
                Once its check point is written, the lease is indexed under the offset of that check point in
                its revive queue.
    At a bound: `has_room` is False and nothing is popped. `on_room` notifies waiting pops only once a tenth
                of the table is free; otherwise they would retry at the end of every lease.
    """

    def __init__(self, count_max: int = LEASE_COUNT_MAX) -> None:
        self._count_max = count_max
        self._by_key: dict[LeaseKey, Lease] = {}
        self._by_end: list[tuple[int, int, Lease]] = []
        self._added = 0
        # By queue of the revive topic: its leases, ordered by the offset of their check points.
        self._written: dict[int, dict[int, Lease]] = {}
        self._finished: dict[LeaseKey, Lease] = {}  # the last ones, in the order of their end
        self._is_room_awaited = False
        self.on_room: Callable[[], None] = lambda: None

    def clear(self) -> None:
        """Empties the table; `LeaseLog.recover` then reads the leases from the log again."""
        self._by_key.clear()
        self._finished.clear()
        self._by_end.clear()
        self._written.clear()

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    @property
    def has_room(self) -> bool:
        return len(self._by_key) < self._count_max

    def await_room(self) -> None:
        """Requests one call of `on_room` once the table has room again."""
        self._is_room_awaited = True

    def get(self, key: LeaseKey) -> Lease | None:
        return self._by_key.get(key)

    def is_acknowledged(self, key: LeaseKey, offset: int) -> bool:
        """Returns True if the message was acknowledged under the lease, which may have finished recently."""
        lease = self._by_key.get(key) or self._finished.get(key)
        return lease is not None and lease.is_acknowledged(offset)

    def add(self, lease: Lease) -> None:
        assert lease.key not in self._by_key, lease.key
        self._by_key[lease.key] = lease
        self._queue_up(lease)

    def record_written(self, lease: Lease, revive_offset: int) -> None:
        """Records the offset of the lease's check point in its queue of the revive topic; offsets mostly
        rise.
        """
        written = self._written.setdefault(lease.revive_queue_id, {})
        if lease.revive_offset >= 0:
            written.pop(lease.revive_offset, None)
        is_lower = bool(written) and revive_offset < next(reversed(written))
        lease.revive_offset = revive_offset
        if self._by_key.get(lease.key) is lease:
            written[revive_offset] = lease
            if is_lower:
                self._written[lease.revive_queue_id] = dict(sorted(written.items()))

    def finish(self, lease: Lease, indexes: Iterable[int]) -> bool:
        """Marks messages of the lease as done. Returns True if no message is left; the lease is then
        dropped.
        """
        for index in indexes:
            lease.bits |= 1 << index
        if lease.is_finished:
            self.drop(lease)
            self._finished[lease.key] = lease
            if len(self._finished) > FINISHED_COUNT_MAX:
                del self._finished[next(iter(self._finished))]
            return True
        return False

    def drop(self, lease: Lease) -> None:
        """Removes a lease that has no messages left to deliver."""
        if self._by_key.pop(lease.key, None) is None:
            return
        if self._is_room_awaited and len(self._by_key) < self._count_max - self._count_max // 10:
            self._is_room_awaited = False
            self.on_room()
        if lease.revive_offset >= 0:
            self._written[lease.revive_queue_id].pop(lease.revive_offset, None)
        if len(self._by_end) > 1024 and len(self._by_end) > 4 * len(self._by_key):
            self._by_end = [entry for entry in self._by_end if self._is_current(entry)]
            heapify(self._by_end)

    def renew(self, lease: Lease, invisible_ms: int) -> None:
        """Moves the end of a lease to `invisible_ms` after its pop."""
        lease.invisible_ms = invisible_ms
        self.put_back(lease, lease.key.pop_time_ms + invisible_ms)

    def put_back(self, lease: Lease, ends_at_ms: int) -> None:
        """Reschedules a lease that could not be revived, or that is renewed: it ends at `ends_at_ms`."""
        lease.is_reviving = False
        lease.ends_at_ms = ends_at_ms
        self._queue_up(lease)

    def list_ended(self, now_ms: int, count_max: int) -> list[Lease]:
        """Returns up to `count_max` leases that have ended, earliest end first; they stay in the table until
        dropped.
        """
        ended: list[Lease] = []
        while self._by_end and len(ended) < count_max:
            entry = self._by_end[0]
            if self._is_current(entry):
                if entry[0] > now_ms:
                    break
                entry[2].is_reviving = True
                ended.append(entry[2])
            heappop(self._by_end)
        return ended

    def next_end_ms(self) -> int | None:
        """Returns the time at which the first lease ends, or None if no lease is pending."""
        while self._by_end and not self._is_current(self._by_end[0]):
            heappop(self._by_end)
        return self._by_end[0][0] if self._by_end else None

    def oldest_written(self, revive_queue_id: int) -> Lease | None:
        """Returns the lease with the lowest check point offset in a queue of the revive topic, or None."""
        written = self._written.get(revive_queue_id)
        return next(iter(written.values())) if written else None

    def all(self) -> list[Lease]:
        return list(self._by_key.values())

    def _queue_up(self, lease: Lease) -> None:
        self._added += 1
        heappush(self._by_end, (lease.ends_at_ms, self._added, lease))

    def _is_current(self, entry: tuple[int, int, Lease]) -> bool:
        lease = entry[2]
        return entry[0] == lease.ends_at_ms and not lease.is_reviving and self._by_key.get(lease.key) is lease


# Check points, acks and positions as messages of the revive topic.
#
# TandemMQ writes these records at once; RocketMQ delays them through its timer until they are due (decision
# 008). Both kinds are read.

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
POSITION_TAG: Final = "tandemPosition"

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
LATE_ACK_MS: Final = 3_000
"""The grace period for acks of RocketMQ: they pass through its timer and arrive about this long after their
check point's end.
"""


def revive_topic(cluster: str) -> str:
    """Returns the name of the topic that stores the leases of a cluster's brokers (spec semantics 14)."""
    return REVIVE_TOPIC_PREFIX + cluster


class NewLease(NamedTuple):
    """A lease read from a check point. `position` is the offset of the group's next pop, None if not
    recorded.
    """

    lease: Lease
    position: int | None
    is_late: bool


class Finished(NamedTuple):
    """Messages of a lease that will not be delivered again."""

    key: LeaseKey
    offsets: Sequence[int]
    is_moved: bool = False


Change = NewLease | Finished | Position


class LeaseRecords:
    """Builds the revive topic's records for one broker."""

    def __init__(self, *, cluster: str, broker_name: str) -> None:
        self.topic = revive_topic(cluster)
        self._broker_name = broker_name
        self.host = bytes(8)

    def check_point(self, lease: Lease, *, moves_position: bool, now_ms: int) -> NewRecord:
        """Builds the check point of a new lease; with `moves_position` it also records the offset of the next
        pop.
        """
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
            is_suspended=lease.is_suspended or None,
            end_offset=lease.end_offset if moves_position else None,
            moved_bits=_signed(lease.moved_bits) or None,
        )
        name = self._name(key, key.start_offset, CHECK_POINT_TAG)
        return self._record(CHECK_POINT_TAG, encode_body(body), lease.revive_queue_id, name, now_ms)

    def ack(self, lease: Lease, offsets: Sequence[int], now_ms: int, *, is_moved: bool = False) -> NewRecord:
        """Builds the record that ends one or more messages of a lease. `is_moved`: no ack ended them."""
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
            is_moved=is_moved or None,
        )
        tag = ACK_TAG if is_one else BATCH_ACK_TAG
        name = self._name(key, offsets[0], ACK_TAG)
        return self._record(tag, encode_body(body), lease.revive_queue_id, name, now_ms)

    def position(
        self, topic: str, group: str, queue_id: int, offset: int, *, revive_queue_id: int, now_ms: int
    ) -> NewRecord:
        body = Position(topic=topic, group=group, queue_id=queue_id, offset=offset)
        return self._record(POSITION_TAG, encode_body(body), revive_queue_id, "", now_ms)

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
    """Decodes a record of the revive topic. Returns None if the record is malformed or of an unknown kind."""
    tag = find_property(record.raw_properties, TAGS.encode())
    try:
        if tag == CHECK_POINT_TAG.encode():
            return _read_check_point(record)
        if tag in (ACK_TAG.encode(), BATCH_ACK_TAG.encode()):
            ack = decode_body(record.body, Ack)
            key = LeaseKey(ack.topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_time_ms)
            offsets = [ack.offset] if ack.offsets is None else ack.offsets
            return Finished(key, offsets, bool(ack.is_moved))
        if tag == POSITION_TAG.encode():
            return decode_body(record.body, Position)
    except RemoteProtocolError:
        pass
    return None


def _read_check_point(record: Record) -> NewLease | None:
    body = decode_body(record.body, CheckPoint)
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
        is_suspended=bool(body.is_suspended),
    )
    lease.moved_bits = lease.bits & (body.moved_bits or 0)
    return NewLease(lease, body.end_offset, is_late)


def _signed(bits: int) -> int:
    """Returns the bits as a signed 32-bit integer, as Java's int holds them."""
    return bits - (1 << 32) if bits >> 31 & 1 else bits
