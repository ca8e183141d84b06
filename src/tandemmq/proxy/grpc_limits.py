"""The bounds of the gRPC server (`GrpcLimits`), the parts of them that all connections share
(`SharedCalls`), and the time limits of calls (`Deadlines`).

Source: spec proxy 1.3, 3.5, 7, 10.6.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Protocol

from tandemmq.errors import ConfigError
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.meters import Limit
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.units import KIB, MIB

TICK_S: Final = 0.1
"""The time in seconds by which a call may end too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Bounds of the gRPC server. Times are in seconds."""

    message_bytes_max: int = 136_314_880
    """The most bytes of a request message; a larger one ends the call with RESOURCE_EXHAUSTED."""
    connections_max: int = CONNECTIONS_MAX
    """The most connections; one more is closed at once."""
    streams_max: int = 1_000
    """The most calls of one connection, as announced to the peer; one more gets REFUSED_STREAM."""
    calls_max: int = 4_096
    """The most unary calls in flight, over all connections; one more is answered TOO_MANY_REQUESTS."""
    held_calls_max: int = 50_000
    """The same for calls of streaming methods, which may be held for long. The handlers bound each kind of
    them more closely: 20,000 telemetry streams, and 20,000 receives.
    """
    request_bytes_max: int = 256 * MIB
    """The most bytes of requests in memory, over all connections; the call that needs more is answered
    TOO_MANY_REQUESTS. A request counts until its call ends or asks for the next one.
    """
    header_bytes_max: int = 64 * KIB
    """The most bytes of the headers of a request; a larger list closes the connection."""
    stream_window_bytes: int = 1 * MIB
    connection_window_bytes: int = 4 * MIB
    resets_max: int = 200
    """The most calls reset within `reset_young_s` of their start, in `resets_period_s`; one more closes the
    connection with ENHANCE_YOUR_CALM.
    """
    resets_period_s: float = 10.0
    reset_young_s: float = 1.0
    preface_s: float = 10.0
    """The time for the first bytes, for the TLS handshake, and for the preface of HTTP/2, each."""
    request_s: float = 30.0
    """The time for the first message of a call; without it the call ends with DEADLINE_EXCEEDED."""
    idle_s: float = 120.0
    """The time after which a connection without a call gets a graceful GOAWAY (spec proxy 1.3)."""
    write_buffer_high_bytes: int = 1 * MIB
    """The unsent bytes of a connection above which nothing more is sent and nothing is read."""
    slow_reader_s: float = 30.0
    """The time after which a peer above it that accepts no byte is disconnected; also at the end."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")


@dataclass(slots=True)
class SharedCalls:
    """The calls in flight and their bytes, over all connections of a server."""

    lines: LimitedLines
    limits: GrpcLimits
    call_count: int = 0
    held_count: int = 0
    request_bytes: int = 0
    refusals: Counter[Limit] = field(default_factory=Counter)

    def begin(self, *, is_held: bool) -> bool:
        """Counts one more call; returns False if it exceeds the bound. `end` counts it off in any case."""
        if is_held:
            self.held_count += 1
            is_admitted = self.held_count <= self.limits.held_calls_max
        else:
            self.call_count += 1
            is_admitted = self.call_count <= self.limits.calls_max
        if not is_admitted:
            self.refusals[Limit.STREAMS if is_held else Limit.CALLS] += 1
        return is_admitted

    def end(self, *, is_held: bool) -> None:
        if is_held:
            self.held_count -= 1
        else:
            self.call_count -= 1

    def reserve(self, size: int) -> bool:
        """Counts `size` more bytes of requests; returns False, counting nothing, if they exceed the bound."""
        if self.request_bytes + size > self.limits.request_bytes_max:
            self.refusals[Limit.REQUEST_BYTES] += 1
            return False
        self.request_bytes += size
        return True

    def release(self, size: int) -> None:
        self.request_bytes -= size


class Expiring(Protocol):
    """A call with a time limit. `tick` belongs to `Deadlines`; 0 without a limit."""

    tick: int

    def on_due(self) -> None:
        """Called once when the time has come; the call may be added again."""


@dataclass(slots=True)
class Deadlines:
    """Time limits of calls, in buckets of TICK_S: a held call costs memory only, no timer of its own (spec
    proxy 7).
    """

    clock: Clock
    _buckets: dict[int, dict[Expiring, None]] = field(default_factory=dict)
    _done_tick: int = 0
    _timer: TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, call: Expiring, at_s: float) -> None:
        """Sets the time limit of a call that has none."""
        if self._timer is None:
            self._done_tick = int(self.clock.monotonic() / TICK_S)
            self._timer = self.clock.call_later(TICK_S, self._advance)
        call.tick = tick = max(int(at_s / TICK_S), self._done_tick) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
        bucket[call] = None

    def remove(self, call: Expiring) -> None:
        """Removes the time limit of a call; does nothing without one."""
        bucket = self._buckets.get(call.tick)
        if bucket is not None:
            bucket.pop(call, None)
            if not bucket:
                del self._buckets[call.tick]
        call.tick = 0

    def stop(self) -> None:
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advance(self) -> None:
        self._timer = None
        if not self._buckets:
            return  # the next `add` starts the timer
        now_tick = int(self.clock.monotonic() / TICK_S)
        due: list[Expiring] = []
        while self._done_tick < now_tick:
            self._done_tick += 1
            due.extend(self._buckets.pop(self._done_tick, ()))
        self._timer = self.clock.call_later(TICK_S, self._advance)
        for call in due:
            call.tick = 0
            call.on_due()
