"""The times of a server's requests by request code, response code and outcome (spec metrics 3.10).

`MeasuredChannel` takes the place of `Channel` where times are kept; a server without `RpcTimes` pays nothing.
Strategy: a channel remembers when each request arrived, and completes it when a response with its opaque is
          queued by any caller. A frame that is encoded already is read for its opaque and its code.
At a bound: of a channel the oldest of `WAITING_MAX` requests is forgotten; of `UNKNOWN_MAX` combinations with
            an unknown request code, and of `ROWS_MAX` in total, further ones are not counted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, cast

from tandemmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_JSON, RequestCode, response_name
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel, OnRequest
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry.metrics import Histogram
from tandemmq.telemetry.rocketmq_metrics import RPC_BUCKETS_MS
from tandemmq.units import Buffer

WAITING_MAX: Final = 16_384
ROWS_MAX: Final = 2_048
UNKNOWN_MAX: Final = 64

SUCCESS: Final = "success"
CANCELLED: Final = "cancelled"
ONEWAY: Final = "oneway"
NO_CODE: Final = -1
"""The response code of a request that got no response."""

_KNOWN: Final = frozenset(map(int, RequestCode))
_OPAQUE: Final = b'"opaque":'
_COMPACT: Final = struct.Struct(">h3xi")

Row = tuple[int, int, bool, str]
"""Request code, response code, whether the request was held, result."""


class RpcTimes:
    """The histograms of milliseconds by row; one instance for the servers of a broker."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows: dict[Row, Histogram] = {}
        self._unknown_count = 0

    def observe(self, row: Row, arrived_at: float) -> None:
        """Counts a request that ends now."""
        histogram = self.rows.get(row)
        if histogram is None:
            histogram = self._add(row)
            if histogram is None:
                return
        histogram.observe((self.clock.monotonic() - arrived_at) * 1000)

    def _add(self, row: Row) -> Histogram | None:
        is_unknown = row[0] not in _KNOWN
        if len(self.rows) >= ROWS_MAX or (is_unknown and self._unknown_count >= UNKNOWN_MAX):
            return None
        self._unknown_count += is_unknown
        histogram = self.rows[row] = Histogram(RPC_BUCKETS_MS)
        return histogram


class MeasuredChannel(Channel):
    """A connection whose requests are measured, from the arrival of their bytes."""

    __slots__ = ("_receive", "_times", "_waiting")

    def __init__(self, on_request: OnRequest, times: RpcTimes, **settings: Any) -> None:
        super().__init__(cast(OnRequest, MeasuredChannel._begin), **settings)
        self._receive = on_request
        self._times = times
        self._waiting: dict[int, tuple[int, float, bool]] = {}

    def mark_held(self, opaque: int) -> None:
        """Counts the request as one that waits for messages."""
        begun = self._waiting.get(opaque)
        if begun is not None:
            self._waiting[opaque] = begun[0], begun[1], True

    def send_frame(self, *buffers: Buffer) -> None:
        if self._waiting and not self.is_closed:
            self._end(*read_response(buffers[0]))
        super().send_frame(*buffers)

    def begin_block(self, code: int, opaques: Sequence[int]) -> None:
        self._waiting.update(dict.fromkeys(opaques, (code, self.last_read_at, False)))
        for oldest in list(islice(self._waiting, max(0, len(self._waiting) - WAITING_MAX))):
            del self._waiting[oldest]

    def send_answers(self, opaques: Sequence[int], frames: Buffer) -> None:
        if not self.is_closed:
            for opaque in opaques:
                self._end(opaque, 0)
        super().send_frame(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        waiting, self._waiting = self._waiting, {}
        for code, arrived_at, is_held in waiting.values():
            self._times.observe((code, NO_CODE, is_held, CANCELLED), arrived_at)
        super().connection_lost(exc)

    def _queue(self, command: Command) -> None:
        super()._queue(command)
        if command.flag & FLAG_RESPONSE:
            self._end(command.opaque, command.code)

    def _begin(self, command: Command) -> None:
        arrived_at = self.last_read_at
        if command.flag & FLAG_ONEWAY:
            self._receive(self, command)
            self._times.observe((command.code, 0, False, ONEWAY), arrived_at)
            return
        waiting = self._waiting
        if len(waiting) >= WAITING_MAX:
            del waiting[next(iter(waiting))]
        waiting[command.opaque] = command.code, arrived_at, False
        self._receive(self, command)

    def _end(self, opaque: int, response_code: int) -> None:
        begun = self._waiting.pop(opaque, None)
        if begun is not None:
            code, arrived_at, is_held = begun
            self._times.observe((code, response_code, is_held, SUCCESS), arrived_at)


def read_response(frame: Buffer) -> tuple[int, int]:
    """Returns the opaque and the code of a response that we have encoded, from its frame up to the body.

    Our JSON begins with the code, and quotes in texts are escaped, so the last `"opaque":` is the field.
    """
    text = bytes(frame)
    if text[4] != SERIALIZE_JSON:
        code, opaque = _COMPACT.unpack_from(text, 8)
        return opaque, code
    begin = text.rindex(_OPAQUE) + len(_OPAQUE)
    code = 0 if text[16:18] == b"0," else int(text[16 : text.index(b",", 16)])
    return int(text[begin : text.index(b",", begin)]), code


def row_labels(row: Row) -> tuple[str, str, str, str]:
    """Returns the values of the labels of a row; an unknown code is its number."""
    code, response_code, is_held, result = row
    request = RequestCode(code).name if code in _KNOWN else str(code)
    response = "" if response_code == NO_CODE else response_name(response_code)
    return request.lower(), response.lower(), "true" if is_held else "false", result
