"""`Http2Reader`: checks the frames of an HTTP/2 peer before `h2` parses them.

h2 buffers a frame of any announced length, parses whatever arrived in one call, and sends nothing more after
the GOAWAY of a peer that still waits for answers. The reader passes on whole frames, at most FRAMES_PER_TURN
at once, without the frames that need no parsing. Each control frame costs credit (`FrameCredit`).

At a bound: `Http2Refused` with the error code for the peer; the connection is over.
Source:     spec proxy 1.3, 10.6; RFC 9113, 4 and 10.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from h2.errors import ErrorCodes

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384
"""The most bytes of a frame's payload; the initial value of SETTINGS_MAX_FRAME_SIZE, which is not changed."""
FRAMES_PER_TURN: Final = 128
"""The most frames parsed in one turn of the loop: some ten milliseconds of new calls."""
CREDIT: Final = 1_000
CREDIT_MAX: Final = 10_000
CREDIT_PER_S: Final = 100.0

_DATA, _HEADERS, _PRIORITY, _PUSH_PROMISE, _GOAWAY, _CONTINUATION = 0, 1, 2, 5, 7, 9
_END_STREAM, _PADDED = 0x1, 0x8
_FREE: Final = frozenset({_DATA, _HEADERS, _PUSH_PROMISE, _CONTINUATION})
"""The kinds that cost no credit. h2 limits the others of these: it accepts 64 CONTINUATION frames in a row,
and no PUSH_PROMISE.
"""
_DROPPED: Final = frozenset({_PRIORITY, _GOAWAY})
_KIND_MAX: Final = 9
_PADDING_MAX: Final = 256


class Http2Refused(Exception):
    """A peer that violates a bound. `code` is the error code of the GOAWAY that it gets."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class FrameCredit:
    """The number of control frames that a peer may send: CREDIT at the start, CREDIT_PER_S more per second,
    and those granted for frames that it was sent, up to CREDIT_MAX.

    Window updates and the pings of bandwidth probes answer sent data, so a busy peer never runs out of it;
    an idle one may ping a hundred times per second.
    """

    _refilled_at: float
    _left: float = CREDIT

    def grant(self, count: int) -> None:
        self._left = min(CREDIT_MAX, self._left + count)

    def spend(self, count: int, now_s: float) -> None:
        """Raises Http2Refused when no credit is left."""
        left = self._left
        if left < CREDIT:
            left = min(CREDIT, left + CREDIT_PER_S * (now_s - self._refilled_at))
        self._refilled_at = now_s
        self._left = left - count
        if self._left < 0:
            raise Http2Refused(ErrorCodes.ENHANCE_YOUR_CALM, "too many control frames")


class Http2Reader:
    """The incoming bytes of one connection. `goes_away` is set by the peer's GOAWAY."""

    __slots__ = ("_data", "credit", "goes_away", "has_preface")

    def __init__(self, now_s: float) -> None:
        self.credit = FrameCredit(now_s)
        self.goes_away = False
        self._data = b""
        self.has_preface = False

    def add(self, data: bytes) -> None:
        """Adds received bytes; `take` returns the frames that are complete."""
        self._data = self._data + data if self._data else data

    def take(self, now_s: float) -> tuple[bytes, bool]:
        """Returns bytes for h2, and True if more complete frames may be waiting.

        Raises:  Http2Refused.
        """
        data, size = self._data, len(self._data)
        at, kept, count, cost = 0, 0, 0, 0
        if not self.has_preface:
            if not self._check_preface():
                return b"", False
            at = len(PREFACE)
        pieces: list[bytes] = []
        while size - at >= HEAD_BYTES and count < FRAMES_PER_TURN:
            length = int.from_bytes(data[at : at + 3])
            if length > FRAME_BYTES_MAX:
                raise Http2Refused(
                    ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {length} bytes; at most {FRAME_BYTES_MAX}"
                )
            end = at + HEAD_BYTES + length
            if end > size:
                break
            kind = data[at + 3]
            count += 1
            if kind not in _FREE or (
                kind == _DATA and length <= _PADDING_MAX and _is_empty(data, at, length)
            ):
                cost += 1
                if kind in _DROPPED or kind > _KIND_MAX:
                    self.goes_away |= kind == _GOAWAY
                    pieces.append(data[kept:at])
                    kept = end
            at = end
        if cost:
            self.credit.spend(cost, now_s)
        self._data = data[at:]
        pieces.append(data[kept:at])
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), count == FRAMES_PER_TURN

    def _check_preface(self) -> bool:
        """Returns True once the preface is complete. Raises Http2Refused for other bytes."""
        begin = self._data[: len(PREFACE)]
        if not PREFACE.startswith(begin):
            raise Http2Refused(ErrorCodes.PROTOCOL_ERROR, "the peer does not speak HTTP/2")
        self.has_preface = len(begin) == len(PREFACE)
        return self.has_preface


def _is_empty(data: bytes, at: int, length: int) -> bool:
    """Returns True for a DATA frame that carries no bytes and does not end the stream."""
    flags = data[at + 4]
    if flags & _END_STREAM:
        return False
    return length == 0 or bool(flags & _PADDED and length == 1 + data[at + HEAD_BYTES])
