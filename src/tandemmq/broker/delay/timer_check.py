"""How far the delivery of timer messages has got: config/timercheck and the answer to GET_TIMER_CHECK_POINT.

The file has RocketMQ's form, 4096 bytes that begin with seven numbers (spec store 16), and ours behind them.
RocketMQ would go on at `low_offset` and deliver some messages again, but lose none; from its file we take
over what it says in the same way. It leaves our part as it is, in which its seven numbers stand once more:
they tell a turned bit from what it has written since.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from tandemmq.broker.delay.timer_rule import ROLL_AFTER_MS
from tandemmq.broker.delay.timer_wheel import TimerKey
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.checksum import crc32

FILE_BYTES = 4096
_COMMON = struct.Struct(">7q")  # next slot, timerlog position, two queue offsets, version
_OWN = struct.Struct(">8sqqq")  # mark, read offset, rank of the next message within its slot, roll window
_COPY = struct.Struct(">56sI")  # the seven numbers once more, the checksum of our part
_OWN_ANSWER = struct.Struct(">8sq")  # mark, roll window
_MARK = b"TandemMQ"
_FIRST_KEY = TimerKey(0, 0)
SHORT_BYTES = 32
"""An answer without the version, as old brokers give it."""


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """Messages below `read_offset` are done if they come before `next_key`; below `low_offset` all are done.

    Keys are those under this `roll_after_ms`: under another, a message that was stored anew could look
    pending, or a pending one done.
    """

    next_key: TimerKey = _FIRST_KEY
    read_offset: int = 0
    low_offset: int = 0
    roll_after_ms: int = ROLL_AFTER_MS

    def is_done(self, key: TimerKey) -> bool:
        """True for a message that was delivered, rolled or taken back already."""
        return key.queue_offset < self.read_offset and key < self.next_key


def encode_timer_file(check: TimerCheck, version: DataVersion) -> bytes:
    """The content of config/timercheck."""
    slot_ms, rank = check.next_key
    common = _COMMON.pack(slot_ms, 0, check.low_offset, check.low_offset, *_version(version))
    own = _OWN.pack(_MARK, check.read_offset, rank, check.roll_after_ms)
    return (common + own + _COPY.pack(common, crc32(own + common))).ljust(FILE_BYTES, b"\0")


def decode_timer_file(data: bytes) -> TimerCheck:
    """What a file of ours or of RocketMQ says. A turned bit leaves what the rest of the file says: the copy
    of the seven numbers, or these without our part.

    Raises:  RemoteProtocolError when it is too short.
    """
    if len(data) < _COMMON.size + _OWN.size:
        raise RemoteProtocolError(f"timercheck has {len(data)} bytes, {FILE_BYTES} are expected")
    common, own = data[: _COMMON.size], data[_COMMON.size : _COMMON.size + _OWN.size]
    is_ours = own.startswith(_MARK)
    if len(data) >= _COMMON.size + _OWN.size + _COPY.size:
        copy, checksum = _COPY.unpack_from(data, _COMMON.size + _OWN.size)
        if checksum:  # older files have none
            is_ours = checksum == crc32(own + copy)
            if is_ours and common != copy:
                difference = int.from_bytes(common, "big") ^ int.from_bytes(copy, "big")
                is_ours = difference.bit_count() == 1
                common = copy if is_ours else common
    slot_ms, _, queue_offset, _, *_ = _COMMON.unpack(common)
    if not is_ours:
        # RocketMQ's: pending messages may lie anywhere below its offset.
        return TimerCheck(TimerKey(max(0, slot_ms), 0), max(0, queue_offset), 0)
    _, read_offset, rank, roll_after_ms = _OWN.unpack(own)
    return TimerCheck(TimerKey(slot_ms, rank), read_offset, queue_offset, _window(roll_after_ms))


def encode_timer_answer(check: TimerCheck, version: DataVersion) -> bytes:
    """The body that slaves of either kind ask for: done before the slot, of what lies below the offsets.

    RocketMQ reads no further than its seven numbers.
    """
    slot_ms, read_offset = check.next_key.slot_ms, check.read_offset
    common = _COMMON.pack(slot_ms, 0, read_offset, read_offset, *_version(version))
    return common + _OWN_ANSWER.pack(_MARK, check.roll_after_ms)


def decode_timer_answer(body: bytes) -> TimerCheck:
    """A master's progress; how far all is done it does not say.

    Raises:  RemoteProtocolError when it is too short.
    """
    if len(body) < SHORT_BYTES:
        raise RemoteProtocolError(
            f"the timer checkpoint has {len(body)} bytes, at least {SHORT_BYTES} belong"
        )
    slot_ms, _, _, read_offset = struct.unpack_from(">4q", body)
    roll_after_ms = 0
    if len(body) >= _COMMON.size + _OWN_ANSWER.size:
        mark, number = _OWN_ANSWER.unpack_from(body, _COMMON.size)
        roll_after_ms = number if mark == _MARK else 0
    return TimerCheck(TimerKey(max(0, slot_ms), 0), max(0, read_offset), 0, _window(roll_after_ms))


def _window(number: int) -> int:
    """RocketMQ, and brokers that did not write it yet, roll after two days."""
    return number if 0 < number < ROLL_AFTER_MS else ROLL_AFTER_MS


def _version(version: DataVersion) -> tuple[int, int, int]:
    return version.state_version, version.timestamp_ms, version.counter


class TimerProgress:
    """The valid checkpoint of this broker; a slave's is its master's."""

    def __init__(self) -> None:
        self.check = TimerCheck()
        self.data_version = DataVersion()
        self.on_change: list[Callable[[], None]] = []

    def replace(self, check: TimerCheck, now_ms: int) -> None:
        """Take over a newer one."""
        if check == self.check:
            return
        self.check = check
        self.data_version = self.data_version.next(now_ms)
        for callback in self.on_change:
            callback()

    def clamp(self, queue_end: int, now_ms: int) -> int:
        """Lower what lies behind the end of the timer topic to that end; 1 when something did, else 0."""
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

    def encode(self) -> bytes:
        """The content of config/timercheck."""
        return encode_timer_file(self.check, self.data_version)

    def load(self, data: bytes) -> None:
        """Take over the content of config/timercheck."""
        self.check = decode_timer_file(data)
