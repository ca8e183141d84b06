"""The bodies that `tandemmq produce` sends: lines, texts, whole files or generated ones, and their pace.

A source yields lists of bodies as soon as there are some; an empty body is not sent.
"""

from __future__ import annotations

import binascii
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import structs

from tandemmq.client import Message
from tandemmq.errors import TandemError
from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import is_reserved, parse_priority
from tandemmq.units import MIB

Bodies = Iterator[list[bytes]]

READ_BYTES: Final = MIB
BODY_BYTES_MAX: Final = 4 * MIB
_COUNT_AT_ONCE: Final = 1_000
_TICK_S: Final = 0.05
"""The time between two parts of a paced source."""


class UnusableInput(TandemError):
    """The input cannot be sent as messages."""


def read_lines(source: int) -> Bodies:
    """Yields the available lines as soon as there are some; the last one may lack its line end.

    Raises:  UnusableInput for a line that is longer than a message may be.
    """
    rest = b""
    while chunk := os.read(source, READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > BODY_BYTES_MAX:
            raise UnusableInput(
                f"a line is longer than {BODY_BYTES_MAX} bytes, the most that a message can hold"
            )
        if lines:
            yield lines
    if rest:
        yield [rest]


def read_whole(source: int, name: str) -> Bodies:
    """Yields all of the input as one body. Raises UnusableInput if a message cannot hold it."""
    body = bytearray()
    while chunk := os.read(source, READ_BYTES):
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise UnusableInput(
                f"{name} is longer than {BODY_BYTES_MAX} bytes, the most that a message can hold"
            )
    yield [bytes(body)]


def repeat_bodies(bodies: Sequence[bytes], count: int) -> Bodies:
    """Yields `count` bodies, in turn from these."""
    turns = (bodies[number % len(bodies)] for number in range(count))
    while part := list(islice(turns, _COUNT_AT_ONCE)):
        yield part


def limit_bodies(source: Bodies, count: int) -> Bodies:
    """Yields the source until it has had `count` bodies that are not empty."""
    left = count
    for part in source:
        kept: list[bytes] = []
        for body in part:
            kept.append(body)
            left -= bool(body)
            if not left:
                yield kept
                return
        yield kept


def pace_bodies(
    source: Bodies,
    per_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Bodies:
    """Yields the source at this rate. Time that the reader loses is not made up for."""
    at_once = max(1, int(per_s * _TICK_S))
    due = now()
    for part in source:
        for begin in range(0, len(part), at_once):
            piece = part[begin : begin + at_once]
            wait = due - now()
            if wait > 0:
                sleep(wait)
            yield piece
            due = max(due, now() - _TICK_S) + len(piece) / per_s


def split_key(line: bytes, delimiter: bytes, every: Message) -> Message:
    """Returns the message of a line with its key before the delimiter. Raises UnusableInput without one."""
    key, found, body = line.partition(delimiter)
    if not found:
        raise UnusableInput(f"the line {_shown(line)} has no {delimiter.decode()!r} between key and body")
    try:
        return structs.replace(every, body=body, keys=[*every.keys, key.decode()])
    except UnicodeDecodeError:
        raise UnusableInput(f"the key of the line {_shown(line)} is not UTF-8") from None


def read_json(line: bytes, every: Message) -> Message:
    """Returns the message of a line that `tail --json` wrote. Tag, keys and properties of `every` win; what
    brokers set is left out. Raises UnusableInput for another line.
    """
    try:
        fields = json.loads(line)
        body, properties = _body_of(fields), dict(fields.get("properties") or {})
        return structs.replace(
            every,
            body=body,
            tags=every.tags or fields.get("tags") or "",
            keys=every.keys or fields.get("keys") or (),
            properties={name: text for name, text in properties.items() if not is_reserved(name)}
            | dict(every.properties),
            priority=parse_priority(properties.get(names.PRIORITY))
            if every.priority is None
            else every.priority,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnusableInput(
            f"the line {_shown(line)} is not a message as `tail --json` prints it: a JSON object with body or"
            " body_base64"
        ) from None


def _body_of(fields: Any) -> bytes:
    text = fields.get("body")
    if text is None:
        return binascii.a2b_base64(fields["body_base64"], strict_mode=True)
    return bytes(text.encode())


def _shown(line: bytes) -> str:
    return repr(line[:40].decode("utf-8", "replace")) + ("..." if len(line) > 40 else "")
