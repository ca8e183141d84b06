"""A transaction in the log and in memory: its records, what is known of its end, and the verdict on a half
message that is not done. Pure.

A half message is an ordinary record of the half topic that names its real topic; the end of it is an op
record with its queue offset; a commit is a copy of it in the real topic. Copies keep the queue offset of the
first one in TRAN_PREPARED_QUEUE_OFFSET, so that all of them are one transaction. All is stored as RocketMQ
stores it.
Source: spec semantics 17, spec store 14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from tandemmq.errors import MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import (
    PROPERTIES_BYTES_MAX,
    append_property,
    encode_properties,
    find_property,
    remove_property,
)
from tandemmq.protocol.record import NewRecord, Record, encode_record, tag_hash_of
from tandemmq.protocol.sys_flag import TRANSACTION_COMMIT, without_transaction
from tandemmq.protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC

OP_TAG = "d"
_OP_PROPERTIES = encode_properties({names.TAGS: OP_TAG})
_OP_TAG_HASH = tag_hash_of(_OP_PROPERTIES)

COPY_BYTES = 128
"""Room that every half message leaves for the properties of its copies."""


def make_half(record: NewRecord) -> None:
    """Turn a message into a half message.

    Raises:  MessageIllegal without PGROUP, which every later step needs, or when its properties have no room.
    """
    raw = record.properties
    if find_property(raw, names.PGROUP.encode()) is None:
        raise MessageIllegal("a transactional message needs the property PGROUP, its producer group")
    raw = append_property(raw, names.REAL_TOPIC, record.topic)
    raw = append_property(raw, names.REAL_QID, str(record.queue_id))
    raw = append_property(raw, names.TRANSACTION_ID, record.unique_key)
    if len(raw) > PROPERTIES_BYTES_MAX - COPY_BYTES:
        raise MessageIllegal(
            f"the properties of a transactional message have {len(raw)} bytes, at most"
            f" {PROPERTIES_BYTES_MAX - COPY_BYTES} are allowed"
        )
    record.properties = raw
    record.topic, record.queue_id = HALF_TOPIC, 0
    record.sys_flag = without_transaction(record.sys_flag)


def make_commit(half: Record) -> NewRecord | None:
    """The message for its real topic; None when the half message names none.

    The properties stay as they are, TRAN_MSG and REAL_TOPIC included: that is what RocketMQ stores.
    """
    topic = text_of(half, names.REAL_TOPIC)
    if not topic or topic == HALF_TOPIC:
        return None
    sys_flag = without_transaction(half.sys_flag, TRANSACTION_COMMIT)
    return _copy(half, topic, real_queue_id(half), half.raw_properties, sys_flag, half.log_offset)


def make_copy(half: Record, *, check_times: int | None = None) -> NewRecord:
    """The half message once more at the end of its topic; `check_times` None leaves the count as it is."""
    raw = _with(half.raw_properties, names.TRAN_PREPARED_QUEUE_OFFSET, str(root_of(half)))
    if check_times is not None:
        raw = _with(raw, names.TRANSACTION_CHECK_TIMES, str(check_times))
    return _copy(half, HALF_TOPIC, 0, raw, half.sys_flag, 0)


def make_discarded(half: Record, topic: str) -> NewRecord:
    """The half message for the topic of those that nobody decided about."""
    return _copy(half, topic, 0, half.raw_properties, half.sys_flag, 0)


def make_ops(offsets: Iterable[int], store_host: bytes, now_ms: int) -> list[NewRecord]:
    """The marks that these half messages are done.

    One offset each and no comma behind it: both lines of RocketMQ read that.
    """
    return [
        NewRecord(
            topic=OP_HALF_TOPIC,
            queue_id=0,
            body=str(offset).encode(),
            properties=_OP_PROPERTIES,
            born_at_ms=now_ms,
            born_host=store_host,
            tag_hash=_OP_TAG_HASH,
            wait_stored=False,
            is_internal=True,
        )
        for offset in offsets
    ]


def ended_by(op: Record) -> list[int]:
    """The half queue offsets that an op record marks as done; what is not a number is passed over."""
    if op.tags != OP_TAG:
        return []
    parts = (part.strip() for part in op.body.split(b","))
    return [int(part) for part in parts if part.isdigit() and len(part) < 19]


def encode_for_check(
    copy: NewRecord, half: Record, *, queue_offset: int, log_offset: int, at_ms: int
) -> bytes:
    """The message that a producer is asked about: the copy's place, the real topic and queue."""
    asked = _copy(
        half, text_of(half, names.REAL_TOPIC), real_queue_id(half), copy.properties, half.sys_flag, 0
    )
    return encode_record(
        asked,
        queue_offset=queue_offset,
        log_offset=log_offset,
        stored_at_ms=at_ms,
        store_host=half.store_host,
    )


def root_of(half: Record) -> int:
    """The queue offset of the first of all copies."""
    return number_of(half, names.TRAN_PREPARED_QUEUE_OFFSET, half.queue_offset)


def real_queue_id(half: Record) -> int:
    """The queue that a half message is for."""
    return number_of(half, names.REAL_QID, 0)


def text_of(half: Record, name: str) -> str:
    """A property; empty without it."""
    value = find_property(half.raw_properties, name.encode())
    return "" if value is None else str(value, "utf-8", "replace")


def number_of(half: Record, name: str, missing: int) -> int:
    """A property that is a whole number of 0 or more; `missing` for anything else."""
    value = find_property(half.raw_properties, name.encode())
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else missing


def _with(raw: bytes, name: str, value: str) -> bytes:
    return append_property(remove_property(raw, name.encode()), name, value)


def _copy(
    half: Record, topic: str, queue_id: int, properties: bytes, sys_flag: int, prepared_offset: int
) -> NewRecord:
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=half.body,
        properties=properties,
        born_at_ms=half.born_at_ms,
        born_host=half.born_host,
        tag_hash=tag_hash_of(properties),
        flag=half.flag,
        sys_flag=sys_flag,
        retry_count=half.retry_count,
        prepared_offset=prepared_offset,
        keys=half.keys,
        unique_key=half.unique_key,
        wait_stored=False,
        is_internal=True,
    )


COUNT_MAX = 65_536


class Decided:
    """Decisions of ended transactions and the newest copies of open ones, in memory: bounded, and never
    needed.

    It spares consumers a second copy when a producer says commit twice, or late for a copy that was passed
    over; after a restart, or for more than COUNT_MAX at once, such a message may be delivered twice, as in
    RocketMQ. A decision counts as soon as it is said, but nothing is known of its end until the store has
    answered: until then it is `pending`, and no progress may rely on it. Every transaction goes by the queue
    offset of its first half message (`root_of`).
    """

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self._count_max = count_max
        self._decisions: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._pending: set[int] = set()  # bounded by what the store takes in before it answers

    def __contains__(self, root: int) -> bool:
        return root in self._decisions

    def get(self, root: int) -> int | None:
        """How the transaction ended, by the wire's number; None when that is not known."""
        return self._decisions.get(root)

    def is_pending(self, root: int) -> bool:
        """True while an end is being stored: it may yet fail, and then the transaction is open again."""
        return root in self._pending

    def end(self, root: int, decision: int) -> None:
        """Remember; the oldest is forgotten at the bound. `settle` or `reopen` must follow."""
        self._pending.add(root)
        self._decisions[root] = decision
        _trim(self._decisions, self._count_max)

    def settle(self, root: int) -> None:
        """The end is stored, with the marks of all `places`, so the places can be forgotten."""
        self._pending.discard(root)
        self._newest.pop(root, None)

    def reopen(self, root: int) -> None:
        """The end could not be stored; the next one marks the same `places`."""
        self._pending.discard(root)
        self._decisions.pop(root, None)

    def note_copy(self, root: int, queue_offset: int) -> None:
        """The transaction waits at this offset from now on."""
        self._newest.pop(root, None)
        self._newest[root] = queue_offset
        _trim(self._newest, self._count_max)

    def places(self, root: int, queue_offset: int) -> Iterator[int]:
        """The half queue offsets to mark when the half message at `queue_offset` ends."""
        yield queue_offset
        newest = self._newest.get(root, queue_offset)
        if newest != queue_offset:
            yield newest


def _trim(table: dict[int, int], count_max: int) -> None:
    if len(table) > count_max:
        del table[next(iter(table))]


# The verdict: what to do with a half message that is not done, decided from what is stored of it (spec
# semantics 17, row by row).

_HOUR_MS = 3_600_000


class CheckVerdict(Enum):
    """What becomes of a half message in this round."""

    WAIT = "it is young, and so is all behind it"
    RENEW = "it is to be left alone for a time of its own"
    CHECK = "ask its producer"
    DISCARD = "nobody decided"


class CheckLimits(NamedTuple):
    """transactionTimeOut, transactionCheckMax, fileReservedTime."""

    timeout_ms: int
    count_max: int
    reserved_hours: int


def plan_check(half: Record, now_ms: int, limits: CheckLimits) -> CheckVerdict:
    """The verdict. A message from the future (its producer's clock is ahead) is asked about."""
    age_ms = now_ms - half.born_at_ms
    if check_times(half) >= limits.count_max or age_ms > limits.reserved_hours * _HOUR_MS:
        return CheckVerdict.DISCARD
    if age_ms < 0:
        return CheckVerdict.CHECK
    immunity_ms = immunity_of(half, limits.timeout_ms)
    if immunity_ms is None:
        return CheckVerdict.WAIT if age_ms <= limits.timeout_ms else CheckVerdict.CHECK
    return CheckVerdict.RENEW if age_ms < immunity_ms else CheckVerdict.CHECK


def is_late(half: Record, now_ms: int, timeout_ms: int) -> bool:
    """True when the producer itself may no longer decide, but only when it is asked (spec semantics 17)."""
    immunity_ms = immunity_of(half, timeout_ms)
    return immunity_ms is not None and now_ms - half.born_at_ms > max(immunity_ms, timeout_ms)


def immunity_of(half: Record, timeout_ms: int) -> int | None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS in milliseconds; `timeout_ms` for -1 or what is not a number."""
    text = text_of(half, names.CHECK_IMMUNITY_TIME)
    if not text:
        return None
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 10 else timeout_ms


def check_times(half: Record) -> int:
    """How often the producer was asked about a half message so far."""
    return number_of(half, names.TRANSACTION_CHECK_TIMES, 0)
