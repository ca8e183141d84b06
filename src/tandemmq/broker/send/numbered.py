"""Numbered sends: a message that is already stored is not stored again, whether the whole send or its
beginning is a repeat.

A numbered send describes itself in a property that is never stored:

    __RMQ.TRANSIENT.TANDEM_SEQ = 1,<producer>,<epoch>,<unique key of the message before it, or ->

The number of a message is the end of its own UNIQ_KEY: 20 digits that name the run of numbers, then 12 digits
with the number. The log therefore holds all that is needed, and nothing is stored beside the messages.
Brokers drop names with this prefix (RocketMQ 5.x too).

Strategy: a producer's last send to a queue is kept in memory while it is useful. Otherwise (after a restart,
          on a promoted slave, beyond the bound) it is found in the log through the unique keys in the key
          index, which slaves build as well. So no state that the log holds is lost, and only messages are
          written.
Invariants: a producer's messages enter a queue in the order of their numbers, without gaps. A repeat is
            answered once everything stored so far, its own messages included, is as durable as a first answer
            promises.
At a bound: the least recently used entry is forgotten. If its messages are not yet in the index, the send is
            rejected as Busy instead.
Source: decision 010.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tandemmq.broker.delay.timers import TIMER_TOPIC
from tandemmq.broker.query import load_record
from tandemmq.broker.send.reply import SendReply
from tandemmq.errors import Busy, MessageIllegal, NotPermitted, RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.properties import CLAIM_VERSION, NO_PREDECESSOR, PREFIX_DIGITS
from tandemmq.protocol.record import NewBatch, NewRecord, Record
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.store.message_store import MessageStore
from tandemmq.store.outcomes import NOT_STORED, Appended, PutStatus

KEY_DIGITS = 32
PRODUCER_CHARS_MAX = 64
_EPOCH_DIGITS_MAX = 18
_HEX = frozenset("0123456789ABCDEF")


class Claim(NamedTuple):
    """A decoded sequence property. `after`: the unique key of the producer's message before these in this
    queue and epoch; empty if there is none.
    """

    producer: str
    epoch: int
    after: str


def parse_claim(text: str) -> Claim:
    """Decodes the sequence property.

    Raises:  MessageIllegal unless it is a valid claim of a known version.
    """
    version, _, rest = text.partition(",")
    if version != CLAIM_VERSION:
        raise MessageIllegal(
            f"unknown version {version[:16]} of numbered sends; this broker knows {CLAIM_VERSION}"
        )
    parts = rest.split(",")
    if len(parts) != 3:
        raise MessageIllegal(f"a numbered send names producer, epoch and predecessor, got {text[:64]!r}")
    producer, epoch, after = parts
    if not 0 < len(producer) <= PRODUCER_CHARS_MAX:
        raise MessageIllegal(f"the producer of a numbered send has 1 to {PRODUCER_CHARS_MAX} characters")
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= _EPOCH_DIGITS_MAX):
        raise MessageIllegal(f"the epoch of a numbered send must be a whole number, got {epoch[:32]!r}")
    after = "" if after == NO_PREDECESSOR else after
    if after:
        check_keys([after])
    return Claim(producer, int(epoch), after)


def check_keys(keys: Sequence[str]) -> None:
    """Raises MessageIllegal unless the keys belong to one run of numbers and increase."""
    before = ""
    for index, key in enumerate(keys):
        if len(key) != KEY_DIGITS or not _HEX.issuperset(key):
            raise MessageIllegal(
                f"message {index} of a numbered send: UNIQ_KEY must be {KEY_DIGITS} hexadecimal digits"
            )
        if before and (key[:PREFIX_DIGITS] != before[:PREFIX_DIGITS] or key <= before):
            raise MessageIllegal(
                f"message {index} of a numbered send: its UNIQ_KEY does not follow the one before it"
            )
        before = key


PRODUCER_QUEUES_MAX = 65_536
_CANDIDATES_MAX = 64
_NO_END_MS = 2**63 - 1
_DELAY_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)

NewRecords = NewBatch | Sequence[NewRecord]
ProducerQueue = tuple[str, str, int]
"""Producer, topic, queue."""


class _Last(NamedTuple):
    """A producer's newest send to a queue. `is_in_flight`: the store has not reported its outcome yet."""

    epoch: int
    key: str
    end_offset: int
    is_in_flight: bool


class NumberedSends:
    """The state of one broker's numbered sends, used by its send handlers."""

    def __init__(self, store: MessageStore, *, producer_queues_max: int = PRODUCER_QUEUES_MAX) -> None:
        self._store = store
        self._producer_queues_max = producer_queues_max
        self._last: dict[ProducerQueue, _Last] = {}
        # Records from before this run are found through the key index only, so only once dispatched up to
        # here.
        self._inherited_end = store.max_log_offset

    def __len__(self) -> int:
        return len(self._last)

    def append(self, claim: Claim, topic: str, queue_id: int, records: NewRecords, reply: SendReply) -> bool:
        """Appends the messages that are not yet stored. Returns True if any were appended. `reply` is
        answered in every case, now or later.

        `topic`, `queue_id`: the sender's target; the records of delayed messages name another topic and
        queue.

        Raises:  Busy while the same producer's send is in progress; RequestRejected (ILLEGAL_OPERATION) for
                an older epoch, a gap, or messages other than those stored; NotPermitted without a key index;
                the store's errors.
        """
        if not self._store.has_key_index:
            raise NotPermitted(
                "this broker has no key index (messageIndexEnable=false, or the disk refused it): it cannot"
                " tell whether a numbered send is stored"
            )
        keys = records.unique_keys if isinstance(records, NewBatch) else [one.unique_key for one in records]
        check_keys(keys)
        queue = (claim.producer, topic, queue_id)
        # Only single messages can be delayed; a repeat may arrive before or after the first one was
        # delivered.
        topics = (topic, *_DELAY_TOPICS) if len(records) == 1 else (topic,)
        last = self._recall(queue, claim)
        if last is None:
            if self._inherited_end > self._store.dispatched.value:
                raise Busy("the key index is not complete yet: try again")
            count = self._count_stored(topics, keys)
            if count == 0 and claim.after and self._find(topics, claim.after) is None:
                raise _refusal(f"there is a gap: {claim.after}, which goes before {keys[0]}, is not stored")
        else:
            count = bisect_right(keys, last.key) if keys[0][:20] == last.key[:20] else 0
            _check_continuation(last.key, claim.after, keys, count)
        if count == 0:
            self._append(queue, claim.epoch, records, keys[-1], reply, reply.done)
            return True
        stored = self._find_stored(topics, keys[0])
        confirm = partial(self._confirm, stored, reply)
        if count == len(keys):
            reply.appended = stored
            confirm(PutStatus.PUT_OK)
            return False
        # Both parts must be confirmed: a replica that holds the new messages may lack the repeated ones.
        rest = (records.records() if isinstance(records, NewBatch) else records)[count:]
        self._append(queue, claim.epoch, rest, keys[-1], reply, confirm)
        return True

    def _confirm(self, stored: Appended, reply: SendReply, status: PutStatus) -> None:
        """Answers a send whose messages from `stored` on are repeats, once those are durable."""
        if status is not PutStatus.PUT_OK:
            reply.done(status)
            return
        kept = stored.log_offsets[0] if stored.log_offsets else self._store.min_log_offset
        self._store.confirm(kept, reply.done)

    def _recall(self, queue: ProducerQueue, claim: Claim) -> _Last | None:
        """Returns the last send of this producer's epoch, or None if it is not in memory.

        Raises:  Busy while a send is in progress or an older epoch is not yet indexed; RequestRejected for an
                older epoch.
        """
        last = self._last.get(queue)
        if last is None:
            return None
        if last.is_in_flight:
            raise Busy("a send of the same producer to this queue is in progress: try again")
        if claim.epoch < last.epoch:
            raise _refusal(f"a send of epoch {claim.epoch} is late: its producer is at epoch {last.epoch}")
        if claim.epoch == last.epoch:
            return last
        if last.end_offset > self._store.dispatched.value:
            raise Busy(
                f"the producer's epoch {last.epoch} is not settled: its earlier sends are not in the key"
                " index yet: try again"
            )
        return None

    def _append(
        self,
        queue: ProducerQueue,
        epoch: int,
        records: NewRecords,
        key: str,
        reply: SendReply,
        on_done: Callable[[PutStatus], None],
    ) -> None:
        """Appends records, the last of which has the unique key `key`."""
        self._make_room(queue)
        done = partial(self._done, queue, self._last.get(queue), on_done)
        appender = self._store.appender
        if isinstance(records, NewBatch):
            appended = appender.append_batch(records, done)
        else:
            appended = appender.append(records, done)
        reply.appended = appended
        self._last.pop(queue, None)  # newest last
        self._last[queue] = _Last(epoch, key, appended.end_offset, is_in_flight=True)

    def _done(
        self,
        queue: ProducerQueue,
        before: _Last | None,
        on_done: Callable[[PutStatus], None],
        status: PutStatus,
    ) -> None:
        """Restores `before` if the send was not stored: the earlier send may not be found by its key yet."""
        last = self._last.pop(queue)
        kept = last._replace(is_in_flight=False) if status not in NOT_STORED else before
        if kept is not None:
            self._last[queue] = kept
        on_done(status)

    def _make_room(self, queue: ProducerQueue) -> None:
        if queue in self._last or len(self._last) < self._producer_queues_max:
            return
        oldest, last = next(iter(self._last.items()))
        if last.is_in_flight or last.end_offset > self._store.dispatched.value:
            raise Busy(
                f"numbered sends of {self._producer_queues_max} producers and queues are running: try again"
            )
        del self._last[oldest]

    def _count_stored(self, topics: Sequence[str], keys: Sequence[str]) -> int:
        """Returns how many of the first messages are in the log; a crash may have lost the end of a batch."""
        if self._find(topics, keys[-1]) is not None:
            return len(keys)
        return bisect_left(keys, True, hi=len(keys) - 1, key=lambda key: self._find(topics, key) is None)

    def _find_stored(self, topics: Sequence[str], key: str) -> Appended:
        """Returns the location of a repeated send's first message; queue offset -1 if its record no longer
        exists.
        """
        record = self._find(topics, key)
        if record is None:
            return Appended(-1, (), 0, 0)
        return Appended(record.queue_offset, (record.log_offset,), 0, record.stored_at_ms)

    def _find(self, topics: Sequence[str], key: str) -> Record | None:
        # Any store time matches: the wall clock may have been set back since.
        for topic in topics:
            for log_offset in self._store.query_keys(topic, key, _CANDIDATES_MAX, 0, _NO_END_MS):
                record = load_record(self._store, log_offset)
                if record is not None and record.topic == topic and record.unique_key == key:
                    return record
        return None


def _check_continuation(last_key: str, after: str, keys: Sequence[str], count: int) -> None:
    """Raises RequestRejected unless these messages repeat, overlap or directly follow the last stored one."""
    if count == len(keys):
        return
    before = keys[count - 1] if count else after
    if before == last_key:
        return
    if before > last_key and before[:20] == last_key[:20]:
        raise _refusal(f"there is a gap: {before}, which goes before {keys[count]}, is not stored")
    raise _refusal(
        f"{last_key} was stored by an earlier attempt but is missing from this one; rows must be sent in the"
        " same order on retry"
    )


def _refusal(remark: str) -> RequestRejected:
    return RequestRejected(f"exactly-once: {remark}", code=ResponseCode.ILLEGAL_OPERATION)
