"""A transaction in the log and in memory: its records, its known outcome, and the verdict on an open half
message. Pure.

A half message is an ordinary record of the half topic that names its real topic. Its end is an op record with
its queue offset; a commit is a copy in the real topic. Copies keep the queue offset of the first one in
TRAN_PREPARED_QUEUE_OFFSET, so that all of them form one transaction. The format is RocketMQ's.
Source: spec semantics 17, spec store 14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from tandemmq.broker.durable import copy_record
from tandemmq.errors import MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.record import NewRecord, Record, encode_record, tag_hash_of
from tandemmq.protocol.sys_flag import TRANSACTION_COMMIT, without_transaction
from tandemmq.protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC

OP_TAG = "d"
_OP_PROPERTIES = names.encode_properties({names.TAGS: OP_TAG})
_OP_TAG_HASH = tag_hash_of(_OP_PROPERTIES)

COPY_BYTES = 128
"""The space in bytes that every half message leaves for the properties of its copies."""


def make_half(record: NewRecord) -> None:
    """Turns a message into a half message.

    Raises:  MessageIllegal without PGROUP, which every later step needs, or when its properties have no room.
    """
    raw = record.properties
    if names.find_property(raw, names.PGROUP.encode()) is None:
        raise MessageIllegal("a transactional message needs the property PGROUP, its producer group")
    raw = names.append_property(raw, names.REAL_TOPIC, record.topic)
    raw = names.append_property(raw, names.REAL_QID, str(record.queue_id))
    raw = names.append_property(raw, names.TRANSACTION_ID, record.unique_key)
    if len(raw) > names.PROPERTIES_BYTES_MAX - COPY_BYTES:
        raise MessageIllegal(
            f"the properties of a transactional message have {len(raw)} bytes, at most"
            f" {names.PROPERTIES_BYTES_MAX - COPY_BYTES} are allowed"
        )
    record.properties = raw
    record.topic, record.queue_id = HALF_TOPIC, 0
    record.sys_flag = without_transaction(record.sys_flag)


def make_commit(half: Record) -> NewRecord | None:
    """Returns the message for its real topic, or None if the half message names none.

    The properties stay as they are, TRAN_MSG and REAL_TOPIC included, as RocketMQ stores them.
    """
    topic = half.text(names.REAL_TOPIC.encode())
    if not topic or topic == HALF_TOPIC:
        return None
    sys_flag = without_transaction(half.sys_flag, TRANSACTION_COMMIT)
    return _copy(half, topic, real_queue_id(half), half.raw_properties, sys_flag, half.log_offset)


def make_copy(half: Record, *, check_times: int | None = None) -> NewRecord:
    """Returns another copy of the half message for its topic; `check_times` None leaves the count
    unchanged.
    """
    raw = _with(half.raw_properties, names.TRAN_PREPARED_QUEUE_OFFSET, str(root_of(half)))
    if check_times is not None:
        raw = _with(raw, names.TRANSACTION_CHECK_TIMES, str(check_times))
    return _copy(half, HALF_TOPIC, 0, raw, half.sys_flag, 0)


def make_discarded(half: Record, topic: str) -> NewRecord:
    """Returns the half message for the topic of discarded ones."""
    return _copy(half, topic, 0, half.raw_properties, half.sys_flag, 0)


def make_ops(offsets: Iterable[int], store_host: bytes, now_ms: int) -> list[NewRecord]:
    """Returns the marks that these half messages are done.

    Each has one offset and no comma after it: both release lines of RocketMQ accept that.
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
    """Returns the half queue offsets that an op record marks as done; other text than numbers is skipped."""
    if op.tags != OP_TAG:
        return []
    parts = (part.strip() for part in op.body.split(b","))
    return [int(part) for part in parts if part.isdigit() and len(part) < 19]


def encode_for_check(
    copy: NewRecord, half: Record, *, queue_offset: int, log_offset: int, at_ms: int
) -> bytes:
    """Returns the encoded message for a check: with the copy's offsets, and the real topic and queue."""
    asked = _copy(
        half, half.text(names.REAL_TOPIC.encode()), real_queue_id(half), copy.properties, half.sys_flag, 0
    )
    return encode_record(
        asked,
        queue_offset=queue_offset,
        log_offset=log_offset,
        stored_at_ms=at_ms,
        store_host=half.store_host,
    )


def root_of(half: Record) -> int:
    """Returns the queue offset of the first of all copies."""
    return number_of(half, names.TRAN_PREPARED_QUEUE_OFFSET, half.queue_offset)


def real_queue_id(half: Record) -> int:
    """Returns the queue id for which the half message is meant."""
    return number_of(half, names.REAL_QID, 0)


def number_of(half: Record, name: str, missing: int) -> int:
    """Returns a property that is a whole number of 0 or more, or `missing` for anything else."""
    value = names.find_property(half.raw_properties, name.encode())
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else missing


def _with(raw: bytes, name: str, value: str) -> bytes:
    return names.append_property(names.remove_property(raw, name.encode()), name, value)


def _copy(
    half: Record, topic: str, queue_id: int, properties: bytes, sys_flag: int, prepared_offset: int
) -> NewRecord:
    copy = copy_record(half, topic, queue_id, properties)
    copy.sys_flag, copy.prepared_offset = sys_flag, prepared_offset
    return copy


COUNT_MAX = 65_536


class Decided:
    """The decisions of ended transactions and the newest copies of open ones, in memory: bounded, and only an
    optimisation.

    They prevent a second delivery when a producer commits twice, or commits late for a skipped copy. After a
    restart, or with more than COUNT_MAX transactions at once, such a message may be delivered twice, as in
    RocketMQ. A decision counts as soon as it is received. Until the store has answered it is `pending`, and
    no progress may rely on it. A transaction is identified by the queue offset of its first half message
    (`root_of`).
    """

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self._count_max = count_max
        self._decisions: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._pending: set[int] = set()  # bounded by the number of unanswered appends

    def __contains__(self, root: int) -> bool:
        return root in self._decisions

    def get(self, root: int) -> int | None:
        """Returns the transaction's decision, as the number in the protocol; None if unknown."""
        return self._decisions.get(root)

    def is_pending(self, root: int) -> bool:
        """Returns True while an outcome is being stored; if that fails, the transaction is open again."""
        return root in self._pending

    def end(self, root: int, decision: int) -> None:
        """Records a decision and forgets the oldest at the bound. `settle` or `reopen` must follow."""
        self._pending.add(root)
        self._decisions[root] = decision
        _trim(self._decisions, self._count_max)

    def settle(self, root: int) -> None:
        """Records that the outcome is stored with the marks of all `offsets_to_mark`; they are dropped."""
        self._pending.discard(root)
        self._newest.pop(root, None)

    def reopen(self, root: int) -> None:
        """Forgets a decision that could not be stored; the next one marks the same `offsets_to_mark`."""
        self._pending.discard(root)
        self._decisions.pop(root, None)

    def record_copy(self, root: int, queue_offset: int) -> None:
        """Records the queue offset of the transaction's newest copy."""
        self._newest.pop(root, None)
        self._newest[root] = queue_offset
        _trim(self._newest, self._count_max)

    def offsets_to_mark(self, root: int, queue_offset: int) -> Iterator[int]:
        """Yields the half queue offsets to mark when the half message at `queue_offset` ends."""
        yield queue_offset
        newest = self._newest.get(root, queue_offset)
        if newest != queue_offset:
            yield newest


def _trim(table: dict[int, int], count_max: int) -> None:
    if len(table) > count_max:
        del table[next(iter(table))]


# The verdict on an open half message, decided from its stored fields (spec semantics 17, row by row).

_HOUR_MS = 3_600_000


class CheckVerdict(Enum):
    """The action for a half message in this round."""

    WAIT = "it is young, and so is all behind it"
    RENEW = "it is to be left alone for a time of its own"
    CHECK = "ask its producer"
    DISCARD = "no decision"


class CheckLimits(NamedTuple):
    """The limits transactionTimeOut, transactionCheckMax and fileReservedTime."""

    timeout_ms: int
    count_max: int
    reserved_hours: int


def plan_check(half: Record, now_ms: int, limits: CheckLimits) -> CheckVerdict:
    """Returns the verdict. A half message from the future (its producer's clock is ahead) is checked."""
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
    """Returns True if the producer may no longer decide by itself, but only when asked (spec semantics
    17).
    """
    immunity_ms = immunity_of(half, timeout_ms)
    return immunity_ms is not None and now_ms - half.born_at_ms > max(immunity_ms, timeout_ms)


def immunity_of(half: Record, timeout_ms: int) -> int | None:
    """Returns CHECK_IMMUNITY_TIME_IN_SECONDS in milliseconds; None without it, `timeout_ms` if it is -1 or
    not a number.
    """
    text = half.text(names.CHECK_IMMUNITY_TIME.encode())
    if not text:
        return None
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 10 else timeout_ms


def check_times(half: Record) -> int:
    """Returns how often the producer was asked about the half message so far."""
    return number_of(half, names.TRANSACTION_CHECK_TIMES, 0)
