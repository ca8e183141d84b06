"""Reading for pops: `PopReader` reads the messages a pop may get, `PopPolls` holds the pop while there are
none.

Source: spec semantics 14.1, spec rocketmq55 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.pop.lease_log import LeaseLog
from tandemmq.broker.pop.leases import MESSAGE_COUNT_MAX, QueueKey
from tandemmq.broker.pull.long_poll import PollChannel
from tandemmq.broker.topics.attributes import has_priorities, priority_factor
from tandemmq.protocol import pop_receipts as receipts
from tandemmq.protocol.properties import CRC32, PROPERTIES_BYTES_MAX, append_property, remove_property
from tandemmq.protocol.record import NewRecord, decode_record, encode_record
from tandemmq.protocol.requests.consume import INIT_MIN
from tandemmq.protocol.sql92 import SqlFilter
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.store import GET_BYTES_MAX
from tandemmq.store.outcomes import GetResult, GetStatus

ANY = -1

PollKey = tuple[str, str]
"""Topic and group."""


TRIES_MAX: Final = 64
"""The highest number of held requests tried in one turn of the loop; the rest follow in the next turn."""


@dataclass(slots=True, eq=False, kw_only=True)
class HeldPop:
    """A held request; with `queue_id` -1 it waits for any queue.

    `kind` identifies what the request asks for. Of two requests of one kind, either both find something or
    neither does, unless their attempts differ. `attempt_id` is empty unless the pop is ordered. `poll_id` is
    the name of the request on its connection, or empty.
    """

    channel: PollChannel
    key: PollKey
    queue_id: int
    deadline_s: float
    request: Any
    on_wake: Callable[[HeldPop, bool], bool]
    kind: Hashable = None
    attempt_id: str = ""
    poll_id: str = ""
    number: int = field(default=0, init=False)
    timer: TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.kind = (self.queue_id, self.kind)


@dataclass(slots=True, eq=False)
class _Waiting:
    """The held requests of one topic and group, by kind, each kind in the order of arrival."""

    topics: tuple[str, ...]
    count: int = 0
    kinds: dict[Hashable, dict[HeldPop, None]] = field(default_factory=dict)


@dataclass(eq=False)
class PopPolls:
    """Pops and notifications that wait for messages: held by topic and group, served first come first served.
    `on_wake(held, is_over)` answers a request, or returns False to keep it waiting.

    Invariants: a held request is in the table once and leaves it once: when served, when expired, or with its
                connection. A request that finds nothing does not block requests of another kind.
    Strategy: when a queue gets messages or becomes free, the groups waiting for it are tried in the next turn
              of the loop. Kinds are tried in the order of their oldest request, each kind in order of arrival
              until one request finds nothing. After that, only requests are tried whose attempt holds
              messages in order, because such an attempt gets its messages again.
    At a bound: `hold` returns False (POLLING_FULL). After TRIES_MAX tries the next turn of the loop
                continues.
    """

    _: KW_ONLY
    clock: Clock
    count_max: int
    count_per_group_max: int
    attempts_of: Callable[[PollKey], Collection[str]] = lambda _key: ()

    def __post_init__(self) -> None:
        self._count = 0
        self._number = 0
        self._by_key: dict[PollKey, _Waiting] = {}
        self._by_channel: dict[PollChannel, dict[HeldPop, None]] = {}
        self._by_poll_id: dict[tuple[PollChannel, str], HeldPop] = {}
        # True: the topic is a retry topic of the key
        self._keys_of_topic: dict[str, dict[PollKey, bool]] = {}
        self._touched: dict[PollKey, set[int]] = {}
        self._rounds: dict[PollKey, Iterator[None]] = {}  # in progress, at most one per key
        self._is_wake_planned = False
        self.is_closed = False

    def __len__(self) -> int:
        return self._count

    def count(self, key: PollKey, queue_id: int) -> int:
        """Returns the number of requests held for exactly this queue id."""
        waiting = self._by_key.get(key)
        if waiting is None:
            return 0
        return sum(held.queue_id == queue_id for of_kind in waiting.kinds.values() for held in of_kind)

    def hold(self, held: HeldPop, retry_topics: Iterable[str]) -> bool:
        """Holds a request. Returns False at a bound or after `close`."""
        waiting = self._by_key.get(held.key)
        if (
            self.is_closed
            or self._count >= self.count_max
            or (waiting is not None and waiting.count >= self.count_per_group_max)
        ):
            return False
        if waiting is None:
            waiting = self._by_key[held.key] = _Waiting((held.key[0], *retry_topics))
            for topic in waiting.topics:
                self._keys_of_topic.setdefault(topic, {})[held.key] = topic != held.key[0]
        self._number += 1
        held.number = self._number
        waiting.kinds.setdefault(held.kind, {})[held] = None
        waiting.count += 1
        of_channel = self._by_channel.get(held.channel)
        if of_channel is None:
            of_channel = self._by_channel[held.channel] = {}
            if self.drop_channel not in held.channel.on_close:
                held.channel.on_close.append(self.drop_channel)
        of_channel[held] = None
        if held.poll_id:
            self._by_poll_id[held.channel, held.poll_id] = held
        self._count += 1
        delay_s = max(held.deadline_s - self.clock.monotonic(), 0.0)
        held.timer = self.clock.call_later(delay_s, self._on_deadline, held)
        return True

    def on_dispatch(self, newest: Iterable[tuple[str, int]]) -> None:
        """Schedules a try, in the next turn of the loop, of the pops that wait for these queues."""
        keys_of_topic = self._keys_of_topic
        if not keys_of_topic:
            return
        for topic, queue_id in newest:
            for key, is_retry in keys_of_topic.get(topic, {}).items():
                self.touch(key, ANY if is_retry else queue_id)

    def touch(self, key: PollKey, queue_id: int) -> None:
        """Schedules a try of the group's requests: this queue (-1: any queue) may have messages for them."""
        if key in self._by_key:
            self._touched.setdefault(key, set()).add(queue_id)
            self._plan_wake()

    def touch_all(self) -> None:
        """Schedules a try of all held requests."""
        for key in self._by_key:
            self.touch(key, ANY)

    def take(self, channel: PollChannel, poll_id: str) -> HeldPop | None:
        """Removes the request that the connection named so, and returns it; None if it is not held."""
        held = self._by_poll_id.get((channel, poll_id))
        if held is not None:
            self._remove(held)
        return held

    def drop_channel(self, channel: PollChannel) -> None:
        """Drops the requests of a closed connection."""
        for held in list(self._by_channel.get(channel, ())):
            self._remove(held)

    def close(self) -> None:
        """Answers every held request and accepts no more."""
        self.is_closed = True
        for held in [held for of_channel in self._by_channel.values() for held in of_channel]:
            self._on_deadline(held)

    def _plan_wake(self) -> None:
        if not self._is_wake_planned:
            self._is_wake_planned = True
            self.clock.call_soon(self._wake_touched)

    def _wake_touched(self) -> None:
        self._is_wake_planned = False
        for key in [key for key in self._touched if key not in self._rounds]:
            self._rounds[key] = self._try_held(key, self._touched.pop(key))
        remaining = TRIES_MAX
        for key, tries in list(self._rounds.items()):
            for _ in tries:
                remaining -= 1
                if not remaining:
                    break
            else:
                del self._rounds[key]
            if not remaining:
                break
        if self._rounds or self._touched:
            self._plan_wake()

    def _try_held(self, key: PollKey, queue_ids: set[int]) -> Iterator[None]:
        """Tries the group's requests that may find something in these queues; yields after each try."""
        waiting = self._by_key.get(key)
        if waiting is None:
            return
        for of_kind in sorted(waiting.kinds.values(), key=lambda of_kind: next(iter(of_kind)).number):
            attempts: Collection[str] | None = None
            for held in list(of_kind):
                if held not in of_kind or (attempts is not None and held.attempt_id not in attempts):
                    continue
                if ANY not in queue_ids and held.queue_id != ANY and held.queue_id not in queue_ids:
                    break
                if held.on_wake(held, False):
                    self._remove(held)
                elif attempts is None:
                    attempts = self.attempts_of(key)
                    if not attempts:
                        yield
                        break
                yield

    def _on_deadline(self, held: HeldPop) -> None:
        self._remove(held)
        held.on_wake(held, True)

    def _remove(self, held: HeldPop) -> None:
        waiting = self._by_key.get(held.key)
        of_kind = None if waiting is None else waiting.kinds.get(held.kind)
        if waiting is None or of_kind is None or of_kind.pop(held, 0) == 0:
            return
        self._count -= 1
        waiting.count -= 1
        if held.timer is not None:
            held.timer.cancel()
        if not of_kind:
            del waiting.kinds[held.kind]
        if not waiting.count:
            del self._by_key[held.key]
            for topic in waiting.topics:
                del self._keys_of_topic[topic][held.key]
                if not self._keys_of_topic[topic]:
                    del self._keys_of_topic[topic]
        if self._by_poll_id.get((held.channel, held.poll_id)) is held:
            del self._by_poll_id[held.channel, held.poll_id]
        of_channel = self._by_channel[held.channel]
        del of_channel[held]
        if not of_channel:
            del self._by_channel[held.channel]


SCANS_MAX: Final = 32
"""The highest number of reads in one scan that find no wanted message and only move the position; the next
scan continues from there.
"""
_QUEUE_OFFSET_AT: Final = 20
_AT_QUEUE_END: Final = (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE)


class PoppedQueue(NamedTuple):
    """A queue to read, and the flag that its messages carry."""

    topic: str
    queue_id: int
    flag: str


@dataclass(slots=True)
class PopParams:
    """The parameters of a pop."""

    topic: str
    group: str
    queue_id: int
    count_max: int
    invisible_ms: int = 0
    init_mode: int = INIT_MIN
    message_filter: frozenset[int] | SqlFilter | None = None
    is_ordered: bool = False
    attempt_id: str = ""
    is_renewable: bool | None = None
    poll_id: str = ""


class PoppedBatch(NamedTuple):
    """Messages of one queue: whole records, their offsets, and the offset after them."""

    source: PoppedQueue
    start_offset: int
    offsets: list[int]
    end_offset: int
    records: list[memoryview]


@dataclass(slots=True)
class Found:
    """The result of a scan over all queues.

    `is_cut`: the filter rejected SCANS_MAX reads, and there are more messages after them.
    """

    batches: list[PoppedBatch] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    scans_left: int = 0
    is_cut: bool = False


@dataclass(slots=True)
class PopReader:
    """Reads the messages a pop, a peek or a notification may get, from the topic's queues and the group's pop
    retry topics. Changes nothing but positions.
    """

    core: BrokerCore
    lease_log: LeaseLog

    def retry_topics(self, group: str, topic: str) -> list[tuple[str, str]]:
        """Returns the names and flags of the topics that may hold the group's ended leases of the topic."""
        options = self.core.options
        found = (
            [(receipts.pop_retry_v2(group, topic), receipts.FLAG_RETRY_V2)] if options.pop_retry_v2 else []
        )
        if not options.pop_retry_v2 or options.pop_reads_retry_v1:
            found.append((receipts.pop_retry_v1(group, topic), receipts.FLAG_RETRY_V1))
        return found

    def sources(self, params: PopParams, queue_count: int) -> Sequence[PoppedQueue]:
        """Returns the queues in the order in which they are read. A pop by priority reads level by level,
        each level's retries before its new messages (decision 028).
        """
        options, chance = self.core.options, self.core.chance.below(100)
        is_by_priority = self._is_by_priority(params)
        start = 0 if is_by_priority else chance
        numbers = self._walk(queue_count, start) if params.queue_id == ANY else [params.queue_id]
        queues = [PoppedQueue(params.topic, number, receipts.FLAG_NORMAL) for number in numbers]
        retries: list[PoppedQueue] = []
        if not params.is_ordered:
            queue_max = self.core.store.queue_max
            for topic, flag in self.retry_topics(params.group, params.topic):
                config = self.core.topics.get(topic)
                # A kill may lose the growth of a retry topic, but not that of its topic.
                count = max(queue_count, 1 if config is None else config.read_queue_count)
                numbers = [number for number in self._walk(count, start) if queue_max(topic, number)]
                retries += [PoppedQueue(topic, number, flag) for number in numbers]
        if chance < (options.priority_retry_percent if is_by_priority else options.pop_retry_percent):
            return retries + queues
        if is_by_priority:
            return sorted(retries + queues, key=_level, reverse=options.priority_order_asc)
        return queues + retries

    def _is_by_priority(self, params: PopParams) -> bool:
        """Returns True if the pop follows the priorities of its topic; `priority.factor` gives the share of
        such pops.
        """
        if params.queue_id != ANY or params.is_ordered:
            return False
        if not has_priorities(self.core.topics.get(params.topic)):
            return False
        return self.core.chance.below(100) < priority_factor(self.core.groups.get(params.group))

    def _walk(self, count: int, start: int) -> list[int]:
        """Returns the numbers of `count` queues: downwards from below `start`, or upwards from `start`."""
        first = start % max(count, 1)
        if self.core.options.priority_order_asc:
            return [*range(first - 1, -1, -1), *range(count - 1, first - 1, -1)]
        return [*range(first, count), *range(first)]

    def read(self, params: PopParams, queue_count: int, now_ms: int) -> Found:
        """Reads messages for a pop. Positions move past messages that the filter rejects, not past those
        found.
        """
        found = Found(scans_left=SCANS_MAX)
        for source in self.sources(params, queue_count):
            key = (source.topic, params.group, source.queue_id)
            if found.count >= params.count_max:
                found.rest += self._remaining(key)
                continue
            if self._blocked_until_ms(key, params, now_ms) is not None:
                found.rest += self._remaining(key)
                continue
            self._collect(source, key, params, found)
        return found

    def peek(self, params: PopParams, queue_count: int) -> Found:
        """Reads as `read` does, without moving any position."""
        found = Found()
        for source in self.sources(params, queue_count):
            if found.count >= params.count_max:
                break
            start = self.lease_log.position((source.topic, params.group, source.queue_id))
            low = self.core.store.queue_min(source.topic, source.queue_id)
            start = max(low, start if start is not None else low)
            got = self._get(source, start, params, params.count_max - found.count)
            if got.status is GetStatus.FOUND:
                self._add(found, source, start, got, params)
        return found

    def has_message(self, params: PopParams, queue_count: int, now_ms: int) -> bool:
        """Returns True if a pop would find a message, or would have to read further to know."""
        for source in self.sources(params, queue_count):
            key = (source.topic, params.group, source.queue_id)
            if self._blocked_until_ms(key, params, now_ms) is None and self._may_find(source, key, params):
                return True
        return False

    def blocked(self, params: PopParams, queue_count: int, now_ms: int) -> Iterator[tuple[QueueKey, int]]:
        """Yields the queues that an ordered pop may not read yet, each with the time at which it becomes
        free.
        """
        queue_ids = range(queue_count) if params.queue_id == ANY else (params.queue_id,)
        for queue_id in queue_ids if params.is_ordered else ():
            key = (params.topic, params.group, queue_id)
            until_ms = self._blocked_until_ms(key, params, now_ms)
            if until_ms is not None:
                yield key, until_ms

    def _blocked_until_ms(self, key: QueueKey, params: PopParams, now_ms: int) -> int | None:
        return (
            self.core.tables.orders.blocked_until_ms(key, params.attempt_id, now_ms)
            if params.is_ordered
            else None
        )

    def _may_find(self, source: PoppedQueue, key: QueueKey, params: PopParams) -> bool:
        """Returns False if one read shows that the queue has no message left that the filter accepts."""
        remaining = self._remaining(key)
        if remaining <= 0 or params.message_filter is None or source.flag != receipts.FLAG_NORMAL:
            return remaining > 0
        start = self.core.store.queue_max(source.topic, source.queue_id) - remaining
        got = self._get(source, start, params, MESSAGE_COUNT_MAX)
        if got.status is GetStatus.FOUND:
            message_filter = params.message_filter
            if not isinstance(message_filter, SqlFilter) or any(
                message_filter.matches_record(record) for record in split_records(got.slices)
            ):
                return True
        return got.next_offset < self.core.store.queue_max(source.topic, source.queue_id)

    def _collect(self, source: PoppedQueue, key: QueueKey, params: PopParams, found: Found) -> None:
        start = self._start(source, key, params)
        while True:
            got = self._get(source, start, params, params.count_max - found.count)
            if got.status is GetStatus.FOUND and self._add(found, source, start, got, params):
                return
            if got.next_offset == start or got.status in _AT_QUEUE_END:
                return
            start = got.next_offset
            self.lease_log.move(key, start)
            if not found.scans_left:
                break
            found.scans_left -= 1
        rest = max(0, self.core.store.queue_max(source.topic, source.queue_id) - start)
        found.rest += rest
        found.is_cut |= rest > 0

    def _get(self, source: PoppedQueue, start: int, params: PopParams, count_max: int) -> GetResult:
        # Messages of retry topics were filtered at their first pop (filterSupportRetry is off).
        tag_hashes = params.message_filter if source.flag == receipts.FLAG_NORMAL else None
        if isinstance(tag_hashes, SqlFilter):
            tag_hashes = None  # `_add` applies the SQL filter
        return self.core.store.reader.get(
            source.topic,
            source.queue_id,
            start,
            count_max=count_max,
            bytes_max=GET_BYTES_MAX,
            tag_hashes=tag_hashes,
        )

    def _add(self, found: Found, source: PoppedQueue, start: int, got: GetResult, params: PopParams) -> bool:
        """Adds what was read. Returns False if the filter rejects all of it."""
        records = list(split_records(got.slices))
        if isinstance(params.message_filter, SqlFilter) and source.flag == receipts.FLAG_NORMAL:
            records = [record for record in records if params.message_filter.matches_record(record)]
            if not records:
                return False
        offsets = [_offset_of(record) for record in records]
        found.batches.append(PoppedBatch(source, start, offsets, got.next_offset, records))
        found.count += len(records)
        found.rest += max(0, got.max_offset - got.next_offset)
        return True

    def _start(self, source: PoppedQueue, key: QueueKey, params: PopParams) -> int:
        """Returns the offset at which the group's next pop of the queue begins; applies a pending operator's
        reset.

        A group without progress in the topic begins in all its queues now. A queue in which a group of the
        topic has none is new, and begins at its first message.

        Raises:  Busy for a new group while the table of offsets is full.
        """
        topic, group, queue_id = key
        position = self.lease_log.position(key)
        if position is not None:
            if self.core.offsets.waiting_reset(group, topic, queue_id) is not None:
                self.lease_log.put_position(key, position)
                self.core.offsets.consume_reset(group, topic, queue_id)
            return position
        offsets, now_ms = self.core.offsets, self.core.clock.now_ms()
        is_from_last = source.flag == receipts.FLAG_NORMAL and params.init_mode != INIT_MIN
        if is_from_last and not offsets.is_forgotten(group) and not self._has_begun(topic, group):
            starts = [self._newest(topic, number) for number in range(self._queue_count(topic))]
            for number, start in enumerate(starts):
                offsets.commit(group, topic, number, start, now_ms)
            for number, start in enumerate(starts):
                if start > self.core.store.queue_min(topic, number):
                    # After a kill or a failover, which may lose the offset, the queue would count as new.
                    self.lease_log.put_position((topic, group, number), start)
            return self._newest(topic, queue_id)
        start = self.core.store.queue_min(topic, queue_id)
        if self.core.store.queue_max(topic, queue_id):
            offsets.commit(group, topic, queue_id, start, now_ms)
        return start

    def _has_begun(self, topic: str, group: str) -> bool:
        """Returns True if the group has a position in any queue of the topic."""
        position = self.lease_log.position
        return any(position((topic, group, number)) is not None for number in range(self._queue_count(topic)))

    def _queue_count(self, topic: str) -> int:
        config = self.core.topics.get(topic)
        return 0 if config is None else config.read_queue_count

    def _newest(self, topic: str, queue_id: int) -> int:
        """Returns the offset of the queue's last message; 0 if the whole queue is still in memory, as for a
        young topic.
        """
        is_young = (
            self.core.store.queue_min(topic, queue_id) <= 0 and self.core.options.pop_init_checks_memory
        )
        if is_young and not self.core.store.reader.get(topic, queue_id, 0, count_max=1).suggest_slave:
            return 0
        return max(0, self.core.store.queue_max(topic, queue_id) - 1)

    def _remaining(self, key: QueueKey) -> int:
        topic, _, queue_id = key
        start = self.lease_log.position(key)
        if start is None:
            start = self.core.store.queue_min(topic, queue_id)
        return max(0, self.core.store.queue_max(topic, queue_id) - start)


def _level(queue: PoppedQueue) -> int:
    return queue.queue_id


def split_records(slices: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yields the records of a read one by one; their checksums were verified when they were stored."""
    for view in slices:
        position = 0
        while position < len(view):
            size = int.from_bytes(view[position : position + 4], "big")
            yield view[position : position + size]
            position += size


def with_handle(record: memoryview, topic: str, handle: receipts.Handle) -> memoryview | bytes:
    """Returns a message of a pop retry topic in the form that a client of `topic` expects, with its handle. A
    message whose properties have no room for the handle is returned as stored; clients then derive the handle
    from the answer's lists.
    """
    stored = decode_record(record, check_crc=False)
    properties = remove_property(stored.raw_properties, CRC32.encode())
    properties = remove_property(properties, b"POP_CK")
    properties = append_property(properties, "POP_CK", receipts.render_handle(handle))
    if len(properties) > PROPERTIES_BYTES_MAX:
        return record
    new = NewRecord(
        topic=topic,
        queue_id=stored.queue_id,
        body=stored.body,
        properties=properties,
        born_at_ms=stored.born_at_ms,
        born_host=stored.born_host,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        retry_count=stored.retry_count,
        prepared_offset=stored.prepared_offset,
    )
    return encode_record(
        new,
        queue_offset=stored.queue_offset,
        log_offset=stored.log_offset,
        stored_at_ms=stored.stored_at_ms,
        store_host=stored.store_host,
    )


def _offset_of(record: memoryview) -> int:
    return int.from_bytes(record[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], "big")
