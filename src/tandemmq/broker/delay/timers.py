"""Timer messages: their times, the wheel of the nearest ones, and the progress of their delivery.

A message's time is rounded down to slots of PRECISION_MS. A message is delivered when its slot is over: never
before its time, and at most PRECISION_MS after it. A time on a slot's edge belongs to the slot that ends
there.
`TimerWheel` holds the nearest messages by slot; `TimerProgress` holds the contents of config/timercheck.
Source: spec store 16, spec semantics 18.2. timerPrecisionMs is fixed, because a slot stored with one
        precision would be early under a finer one.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tandemmq.broker.table_file import StoredTable
from tandemmq.errors import MessageIllegal, RemoteProtocolError, RequestRejected
from tandemmq.protocol import topic_names
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.properties import REAL_TOPIC, find_property
from tandemmq.protocol.record import Record

TIMER_TOPIC: Final = topic_names.TIMER_TOPIC
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
DELIVERY_TIME_NAMES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The timer properties a sender may set, by precedence."""

PRECISION_MS: Final = 1_000
_HOUR_MS: Final = 3_600_000
ROLL_AFTER_MS: Final = 2 * 24 * _HOUR_MS
"""RocketMQ's timerRollWindowSlot: a message that waits longer is stored anew before retention reaches it."""
_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerLimits:
    """The limits of timer messages: enabled or not, and the longest delay (timerWheelEnable,
    timerMaxDelaySec).
    """

    is_enabled: bool = True
    delay_s_max: int = 259_200


def has_delivery_time(pairs: Mapping[str, str]) -> bool:
    """Returns True if the message asks for its own delivery time and does not have a slot yet."""
    return TIMER_OUT_MS not in pairs and any(name in pairs for name in DELIVERY_TIME_NAMES)


def plan_timer(pairs: Mapping[str, str], now_ms: int, limits: TimerLimits) -> int | None:
    """Returns the slot of a message with a timer property, or None if its time has come and it is stored at
    once.

    Raises:  MessageIllegal for a time that is not a number or too far ahead, or a cancellation that comes too
            late; RequestRejected (SYSTEM_ERROR) while timers are switched off.
    """
    name = next(name for name in DELIVERY_TIME_NAMES if name in pairs)
    at_ms = _number(name, pairs[name])
    if name == TIMER_DELAY_SEC:
        at_ms = now_ms + at_ms * 1000
    elif name == TIMER_DELAY_MS:
        at_ms += now_ms
    if not limits.is_enabled:
        raise RequestRejected(
            f"{name}: timer messages are switched off on this broker (timerWheelEnable=false);"
            " use DELAY with a delay level"
        )
    if at_ms <= now_ms:
        if TIMER_DEL_UNIQKEY in pairs:
            raise MessageIllegal(f"{name}: the time of the message to cancel has passed")
        return None
    if at_ms - now_ms > limits.delay_s_max * 1000:
        raise MessageIllegal(
            f"{name} {pairs[name]} is {(at_ms - now_ms) // 1000} s ahead,"
            f" at most {limits.delay_s_max} s are allowed (timerMaxDelaySec)"
        )
    return slot_of(at_ms)


def slot_of(at_ms: int) -> int:
    """Returns the slot that ends at or right after `at_ms`: the value of TIMER_OUT_MS."""
    return (at_ms - 1) // PRECISION_MS * PRECISION_MS


def slots_over(now_ms: int) -> int:
    """Returns the first slot that is not over; messages of earlier slots are due."""
    return now_ms // PRECISION_MS * PRECISION_MS


def cancel_name(topic: str, unique_key: str) -> str:
    """Returns the name by which a cancellation refers to its message: the value of TIMER_DEL_UNIQKEY."""
    return f"{topic}+{unique_key}"


def may_cancel(topic: str, name: str) -> bool:
    """Returns True if a message of `topic` may cancel the message of this name. Only messages of the same
    topic may be cancelled, because rights to send are granted by topic.
    """
    return name.startswith(cancel_name(topic, ""))


@dataclass(frozen=True, slots=True)
class Timed:
    """The delivery data of a stored timer message.

    `key`: the time of handling; the message is then delivered, or stored anew if `is_roll`. `slot_ms`: the
    slot of its delivery time. `cancels`: the name of the message it cancels; a cancellation itself is never
    delivered.
    """

    key: TimerKey
    slot_ms: int
    cancels: str

    @property
    def is_roll(self) -> bool:
        return self.key.slot_ms < self.slot_ms


def roll_window_ms(file_reserved_hours: int) -> int:
    """Returns how long a message may wait in one record: at most half the retention time (fileReservedTime).
    The other half remains for a broker that was down when it had to store the message anew.
    """
    return min(ROLL_AFTER_MS, file_reserved_hours * _HOUR_MS // 2)


def read_timer(record: Record, roll_after_ms: int = ROLL_AFTER_MS) -> Timed | None:
    """Decodes a record of the timer topic. Returns None if the record has no valid slot. A cancellation of
    another topic's message is treated as an ordinary timer message.
    """
    raw = find_property(record.raw_properties, TIMER_OUT_MS.encode())
    if raw is None or not raw.isdigit() or len(raw) > _DIGITS_MAX:
        return None
    slot_ms = int(raw)
    handled_ms = min(slot_ms, slot_of(record.stored_at_ms + roll_after_ms))
    cancels = record.text(TIMER_DEL_UNIQKEY.encode())
    if cancels and may_cancel(record.text(REAL_TOPIC.encode()), cancels):
        key = TimerKey(handled_ms, CANCELLING + record.queue_offset)
        return Timed(key, slot_ms, cancels)
    return Timed(TimerKey(handled_ms, record.queue_offset), slot_ms, "")


def _number(name: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
        raise MessageIllegal(f"{name} {value[:32]!r} must be a whole number")
    return int(value)


# The wheel: the nearest timer messages, by the time slot in which they are due.
#
# It holds numbers only: slot and queue offset, and slot and key of cancelled messages. `TimerKey` orders all
# messages of a broker; the wheel holds every pending one below `horizon` and none from there on.
# Invariants: the wheel holds at most `count_max` messages and as many cancellations per slot. Beyond that it
# forgets the farthest messages and the horizon moves nearer. Nothing is lost: the messages are in the timer
# topic and are read again when the wheel has run empty (`wants_refill`).
# Bound: about 100 bytes per message and 200 per cancellation, so 100,000 messages take 10 MB. Cancellations
# of one slot beyond `count_max` are ignored, and their messages are delivered.

COUNT_MAX = 100_000


CANCELLING = 1 << 62
"""The bit added to the queue offset of a cancellation. It sorts last in its slot, so that it stays pending,
and is read again if needed, as long as the message it cancels may be pending.
"""


class TimerKey(NamedTuple):
    """The position of a timer message in the order of delivery: by slot, then by rank."""

    slot_ms: int
    rank: int

    @property
    def queue_offset(self) -> int:
        """The offset of the message in the timer topic."""
        return self.rank & ~CANCELLING


class TimerWheel:
    """The pending messages below the horizon, which is None while all pending messages are held."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        assert count_max > 0
        self._count_max = count_max
        self._slots: dict[int, list[int]] = {}  # by slot: ranks, ascending
        self._cancelled: dict[int, set[str]] = {}
        self._heap: list[int] = []  # every slot of _slots, and removed slots
        self._count = 0
        self.horizon: TimerKey | None = None
        self._far_offset: int | None = None  # the lowest forgotten queue offset

    def __len__(self) -> int:
        return self._count

    def add(self, key: TimerKey) -> None:
        """Adds a pending message; beyond the horizon only its offset is recorded."""
        if self.horizon is not None and key >= self.horizon:
            self._record_far(key.queue_offset)
            return
        ranks = self._slots.get(key.slot_ms)
        if ranks is None:
            self._slots[key.slot_ms] = [key.rank]
            heapq.heappush(self._heap, key.slot_ms)
        else:
            insort(ranks, key.rank)
        self._count += 1
        if self._count > self._count_max:
            self._forget_farthest()

    def cancel(self, slot_ms: int, name: str) -> None:
        """Marks the message called `name` as cancelled, so that it is not delivered in its slot.

        A cancellation is a pending message too: add it with its CANCELLING key.
        """
        if self.horizon is not None and slot_ms > self.horizon.slot_ms:
            return  # read again together with its slot
        names = self._cancelled.setdefault(slot_ms, set())
        if len(names) < self._count_max:
            names.add(name)

    def is_cancelled(self, slot_ms: int, name: str) -> bool:
        names = self._cancelled.get(slot_ms)
        return names is not None and name in names

    @property
    def has_cancelled(self) -> bool:
        return bool(self._cancelled)

    def next_key(self) -> TimerKey | None:
        """Returns the key of the first pending message held, or None."""
        heap = self._heap
        while heap and heap[0] not in self._slots:
            heapq.heappop(heap)
        return TimerKey(heap[0], self._slots[heap[0]][0]) if heap else None

    def peek(self, slot_ms_end: int, count_max: int) -> list[TimerKey]:
        """Returns up to `count_max` messages of the earliest slot, if that slot is below `slot_ms_end`."""
        first = self.next_key()
        if first is None or first.slot_ms >= slot_ms_end:
            return []
        return [TimerKey(first.slot_ms, rank) for rank in self._slots[first.slot_ms][:count_max]]

    def remove(self, keys: list[TimerKey]) -> None:
        """Removes delivered messages; `keys` is the result of `peek`, with nothing added in between."""
        if not keys:
            return
        slot_ms = keys[0].slot_ms
        ranks = self._slots[slot_ms]
        assert ranks[: len(keys)] == [key.rank for key in keys]
        del ranks[: len(keys)]
        self._count -= len(keys)
        if not ranks:
            del self._slots[slot_ms]

    def forget_cancelled_below(self, slot_ms: int) -> None:
        """Forgets cancellations of slots that are over."""
        for old in [slot for slot in self._cancelled if slot < slot_ms]:
            del self._cancelled[old]

    @property
    def wants_refill(self) -> bool:
        """True if the wheel has run empty and forgotten messages remain."""
        return self._count == 0 and self._far_offset is not None

    def first_offset(self) -> int | None:
        """Returns the lowest queue offset of a pending message, held or not; None if none is pending."""
        held = min(map(_lowest_offset, self._slots.values()), default=None)
        known = [offset for offset in (held, self._far_offset) if offset is not None]
        return min(known, default=None)

    def held(self) -> Iterator[TimerKey]:
        """Yields the keys of all held messages, in order."""
        for slot_ms in sorted(self._slots):
            for rank in self._slots[slot_ms]:
                yield TimerKey(slot_ms, rank)

    def counts_by_slot(self) -> Iterator[tuple[int, int]]:
        """Yields slots in milliseconds with the number of held messages, cancellations included; other tasks
        may run meanwhile.
        """
        for slot_ms in list(self._slots):
            yield slot_ms, len(self._slots.get(slot_ms, ()))

    def _forget_farthest(self) -> None:
        """Forgets the farthest half, so that this is not repeated for every message."""
        keep = self._count_max // 2
        for slot_ms in sorted(self._slots, reverse=True):
            ranks = self._slots[slot_ms]
            cut = max(0, len(ranks) - (self._count - keep))
            self._record_far(_lowest_offset(ranks, cut))
            self.horizon = TimerKey(slot_ms, ranks[cut])
            self._count -= len(ranks) - cut
            if cut:
                del ranks[cut:]
            else:
                del self._slots[slot_ms]
            if self._count <= keep:
                break
        self._heap = sorted(self._slots)
        assert self.horizon is not None
        for slot_ms in [slot for slot in self._cancelled if slot > self.horizon.slot_ms]:
            del self._cancelled[slot_ms]

    def _record_far(self, queue_offset: int) -> None:
        if self._far_offset is None or queue_offset < self._far_offset:
            self._far_offset = queue_offset


def _lowest_offset(ranks: list[int], start: int = 0) -> int:
    """Returns the lowest queue offset among the ranks from `start` on; at least one must exist."""
    lowest = ranks[start] & ~CANCELLING
    cancelling = bisect_left(ranks, CANCELLING, start)
    return min(lowest, ranks[cancelling] - CANCELLING) if cancelling < len(ranks) else lowest


# The progress: config/timercheck and the answer to GET_TIMER_CHECK_POINT.
#
# The file has RocketMQ's format, 4096 bytes that begin with seven numbers (spec store 16), followed by
# TandemMQ's part. RocketMQ would continue at `low_offset`: it delivers some messages again, but loses none. A
# file of RocketMQ is read the same way. RocketMQ leaves TandemMQ's part as it is. That part repeats the seven
# numbers, which distinguishes a bit flip from a later change by RocketMQ.

FILE_BYTES = 4096
_COMMON = struct.Struct(">7q")  # next slot, timerlog position, two queue offsets, version
_TANDEM_PART = struct.Struct(">8sqqq")  # mark, read offset, rank of the next message in its slot, roll window
_COPY = struct.Struct(">56sI")  # the seven numbers again, checksum of TandemMQ's part
_TANDEM_ANSWER = struct.Struct(">8sq")  # mark, roll window
_MARK = b"TandemMQ"
_FIRST_KEY = TimerKey(0, 0)
SHORT_BYTES = 32
"""The length of an answer without the version, as sent by old brokers."""


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """A checkpoint. Messages below `read_offset` are done if they come before `next_key`; below `low_offset`
    all are.

    Keys are computed with this `roll_after_ms`. Under another window, a message stored anew could look
    pending, or a pending message done.
    """

    next_key: TimerKey = _FIRST_KEY
    read_offset: int = 0
    low_offset: int = 0
    roll_after_ms: int = ROLL_AFTER_MS

    def is_done(self, key: TimerKey) -> bool:
        """Returns True if the message was already delivered, stored anew or cancelled."""
        return key.queue_offset < self.read_offset and key < self.next_key


def encode_timer_file(check: TimerCheck, version: DataVersion) -> bytes:
    """Returns the content of config/timercheck."""
    slot_ms, rank = check.next_key
    common = _COMMON.pack(slot_ms, 0, check.low_offset, check.low_offset, *_version(version))
    tandem_part = _TANDEM_PART.pack(_MARK, check.read_offset, rank, check.roll_after_ms)
    return (common + tandem_part + _COPY.pack(common, crc32(tandem_part + common))).ljust(FILE_BYTES, b"\0")


def decode_timer_file(data: bytes) -> TimerCheck:
    """Decodes a file written by TandemMQ or RocketMQ. After a bit flip the intact part of the file is used:
    the copy of the seven numbers, or the numbers without TandemMQ's part.

    Raises:  RemoteProtocolError when the file is too short.
    """
    if len(data) < _COMMON.size + _TANDEM_PART.size:
        raise RemoteProtocolError(f"timercheck has {len(data)} bytes, {FILE_BYTES} are expected")
    common, tandem_part = data[: _COMMON.size], data[_COMMON.size : _COMMON.size + _TANDEM_PART.size]
    is_tandem = tandem_part.startswith(_MARK)
    if len(data) >= _COMMON.size + _TANDEM_PART.size + _COPY.size:
        copy, checksum = _COPY.unpack_from(data, _COMMON.size + _TANDEM_PART.size)
        if checksum:  # absent (0) in older files
            is_tandem = checksum == crc32(tandem_part + copy)
            if is_tandem and common != copy:
                difference = int.from_bytes(common, "big") ^ int.from_bytes(copy, "big")
                is_tandem = difference.bit_count() == 1
                common = copy if is_tandem else common
    slot_ms, _, queue_offset, _, *_ = _COMMON.unpack(common)
    if not is_tandem:
        # Written by RocketMQ: messages anywhere below its offset may be pending.
        return TimerCheck(TimerKey(max(0, slot_ms), 0), max(0, queue_offset), 0)
    _, read_offset, rank, roll_after_ms = _TANDEM_PART.unpack(tandem_part)
    return TimerCheck(TimerKey(slot_ms, rank), read_offset, queue_offset, _window(roll_after_ms))


def encode_timer_answer(check: TimerCheck, version: DataVersion) -> bytes:
    """Returns the body of the answer to slaves of either kind: messages before the slot and below the offsets
    are done. RocketMQ reads no further than its seven numbers.
    """
    slot_ms, read_offset = check.next_key.slot_ms, check.read_offset
    common = _COMMON.pack(slot_ms, 0, read_offset, read_offset, *_version(version))
    return common + _TANDEM_ANSWER.pack(_MARK, check.roll_after_ms)


def decode_timer_answer(body: bytes) -> TimerCheck:
    """Decodes a master's progress, which does not include the offset below which everything is done.

    Raises:  RemoteProtocolError when the body is too short.
    """
    if len(body) < SHORT_BYTES:
        raise RemoteProtocolError(
            f"the timer checkpoint has {len(body)} bytes; at least {SHORT_BYTES} are expected"
        )
    slot_ms, _, _, read_offset = struct.unpack_from(">4q", body)
    roll_after_ms = 0
    if len(body) >= _COMMON.size + _TANDEM_ANSWER.size:
        mark, number = _TANDEM_ANSWER.unpack_from(body, _COMMON.size)
        roll_after_ms = number if mark == _MARK else 0
    return TimerCheck(TimerKey(max(0, slot_ms), 0), max(0, read_offset), 0, _window(roll_after_ms))


def _window(number: int) -> int:
    """Returns the roll window; two days if not stated, as for RocketMQ and older brokers."""
    return number if 0 < number < ROLL_AFTER_MS else ROLL_AFTER_MS


def _version(version: DataVersion) -> tuple[int, int, int]:
    return version.state_version, version.timestamp_ms, version.counter


class TimerProgress(StoredTable):
    """The safe checkpoint of this broker; on a slave, its master's."""

    def __init__(self) -> None:
        self.check = TimerCheck()
        self.data_version = DataVersion()
        super().__init__()

    def replace(self, check: TimerCheck, now_ms: int) -> None:
        """Replaces the checkpoint by a newer one."""
        if check == self.check:
            return
        self.check = check
        self.data_version = self.data_version.next(now_ms)
        self._after_change()

    def clamp(self, queue_end: int, now_ms: int) -> int:
        """Lowers offsets beyond the end of the timer topic to that end. Returns 1 if any was lowered, else
        0.
        """
        check = self.check
        if max(check.read_offset, check.low_offset) <= queue_end:
            return 0
        self.replace(
            replace(
                check,
                read_offset=min(check.read_offset, queue_end),
                low_offset=min(check.low_offset, queue_end),
            ),
            now_ms,
        )
        return 1

    def snapshot(self) -> TimerCheck:
        return self.check

    def encode(self) -> bytes:
        return encode_timer_file(self.check, self.data_version)

    def load(self, data: bytes) -> None:
        """Loads the content of config/timercheck."""
        self.check = decode_timer_file(data)
