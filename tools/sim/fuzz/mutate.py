"""Mutates a valid request into the bytes of an invalid one.

Some mutations keep the frame readable and put nonsense into its fields or body; those reach the handlers. The
others damage the frame itself and reach the decoder. The same dice yield the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from sim.dice import Dice
from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame

HEAD_BYTES = 8
_LENGTH = struct.Struct(">i")

NASTY_TEXTS = (
    "",
    " ",
    "-1",
    "0",
    "1e9",
    "2147483647",
    "2147483648",
    "-9223372036854775808",
    "9223372036854775807",
    "99999999999999999999999",
    "NaN",
    "true",
    "null",
    "../../../etc/passwd",
    "..",
    "/",
    "a/b",
    "a\x00b",
    "a\x01b\x02c\x01",
    "\x02\x02\x01\x01",
    "%RETRY%FuzzGroup",
    "%DLQ%FuzzGroup",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "TBW102",
    "*",
    "||",
    "a || b || ||",
    "a > 1 AND (b IS NULL OR",
    "NOT " * 200 + "TRUE",
    "((((((((" * 40,
    "ä€𝄞",
    "\ud7ff\ufffe",
    "x" * 127,
    "x" * 255,
    "x" * 40_000,
    "{}",
    '{"a":[1,2,{"b":null}]}',
    "[" * 500,
    "2026-11-21T00:00:00",
)


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes to send. `is_last`: nothing can be read after them, and the connection is to end."""

    data: bytes
    is_last: bool = False


def mutate(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    """Returns the bytes of a mutation of `command`; `corpus` provides other bodies and codes."""
    change = dice.pick_weighted(_MUTATIONS)
    return change(_copy(command), corpus, dice)


def _copy(command: Command) -> Command:
    return Command(
        code=command.code,
        flag=command.flag,
        language=command.language,
        version=command.version,
        remark=command.remark,
        serialize_type=command.serialize_type,
        body=command.body,
        extra_fields=dict(command.extra_fields or {}),
    )


def _nothing(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    return Sent(encode_frame(command))


def _fields(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    """Fills one to three fields with nonsense, removes them, or adds those of another request."""
    fields = dict(command.extra_fields or {})
    for _ in range(dice.between(1, 3)):
        if not fields:
            break
        name = dice.pick(list(fields))
        if dice.happens(15):
            del fields[name]
        else:
            fields[name] = dice.pick(NASTY_TEXTS)
    if dice.happens(10):
        fields |= dict(dice.pick(corpus).extra_fields or {})
    if dice.happens(10):
        fields[dice.pick(NASTY_TEXTS)] = dice.pick(NASTY_TEXTS)
    command.extra_fields = fields
    return _encoded(command)


def _body(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    """Damages, cuts or doubles the body, or takes another request's."""
    body = bytes(command.body)
    kind = dice.below(5)
    if kind == 0 or not body:
        body = bytes(dice.pick(corpus).body)
    elif kind == 1:
        body = body[: dice.below(len(body))]
    elif kind == 2:
        body += body
    else:
        body = flip(body, dice)
    command.body = body
    return Sent(encode_frame(command))


def _head_values(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    """Changes the code, flag, version, language or remark."""
    command.code = dice.pick(corpus).code if dice.happens(60) else dice.between(-5, 1000)
    command.flag = dice.pick((0, 1, 2, 3, 0x7FFFFFFF))
    command.version = dice.pick((0, 1, 399, 475, 2**31 - 1))
    command.remark = dice.pick((None, *NASTY_TEXTS))
    return _encoded(command)


def _header_bytes(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    """Flips bits of the header; the frame's lengths stay valid."""
    frame = encode_frame(command)
    header_end = HEAD_BYTES + int.from_bytes(frame[5:8], "big")
    data = frame[:HEAD_BYTES] + flip(frame[HEAD_BYTES:header_end], dice) + frame[header_end:]
    return Sent(data, is_last=not _is_readable(data))


def _lengths(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    """Falsifies the frame's lengths or its form."""
    frame = bytearray(encode_frame(command))
    kind = dice.below(4)
    if kind == 0:
        frame[:4] = _LENGTH.pack(dice.pick((0, 3, -1, 2**31 - 1, len(frame) + 1000, len(frame) // 2)))
    elif kind == 1:
        frame[5:8] = dice.pick((b"\xff\xff\xff", b"\x00\x00\x00", b"\x00\x00\x01"))
    elif kind == 2:
        frame[4] = dice.below(256)
    else:
        del frame[dice.below(len(frame)) :]
    return Sent(bytes(frame), is_last=True)


def _noise(command: Command, corpus: list[Command], dice: Dice) -> Sent:
    return Sent(bytes(dice.below(256) for _ in range(dice.between(1, 200))), is_last=True)


def _is_readable(data: bytes) -> bool:
    """Returns True if a server can continue to read after these bytes."""
    try:
        FrameDecoder().feed(data)
    except RemoteProtocolError:
        return False
    return True


def _encoded(command: Command) -> Sent:
    """Returns the frame; nothing if this library's encoder refuses it."""
    try:
        return Sent(encode_frame(command))
    except LocalProtocolError:
        return Sent(b"")


def flip(data: bytes, dice: Dice) -> bytes:
    """Returns the data with a few bits flipped, and bytes inserted or removed."""
    changed = bytearray(data)
    for _ in range(dice.between(1, 4)):
        position = dice.below(len(changed) + 1)
        kind = dice.below(4)
        if kind == 0:
            changed.insert(position, dice.below(256))
        elif position < len(changed):
            if kind == 1:
                del changed[position]
            else:
                changed[position] ^= 1 << dice.below(8)
    length = len(data)
    # The length stays, because the surrounding frame contains it.
    return bytes(changed[:length]).ljust(length, b"\x00")


Mutation = Callable[[Command, list[Command], Dice], Sent]

_MUTATIONS: tuple[tuple[int, Mutation], ...] = (
    (180, _nothing),
    (450, _fields),
    (200, _body),
    (80, _head_values),
    (20, _header_bytes),
    (4, _lengths),
    (1, _noise),
)

FENCE_CODE = 32_001
"""A code that no server supports: its refusal shows that everything before it was handled."""


def fence(opaque: int) -> bytes:
    """Returns a request whose answer ends a batch."""
    return encode_frame(Command(code=FENCE_CODE, opaque=opaque, serialize_type=SERIALIZE_ROCKETMQ))
