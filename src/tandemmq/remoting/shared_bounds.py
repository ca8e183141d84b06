"""The bounds shared by all connections of one process: their number, the bytes of unfinished frames
(`FrameBudget`), the loop's time for unknown peers (`UnknownPeers`), and log lines about closed connections
(`LineLimit`).

A server with a guard knows a peer once one of its requests was let through; until then the peer is unknown. A
process has one `SharedBounds`, used by all its listening ports and their channels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.units import KIB, MIB

PIECE_BYTES: Final = 4 * KIB
"""The size in which an unknown peer's bytes are decoded and handled: a few milliseconds of requests each."""
UNKNOWN_SHARE: Final = 0.1
"""The share of the loop's time for all unknown peers together."""
UNKNOWN_BURST_S: Final = 0.1
"""The time they may use at once after a pause: the first requests of a hundred producers and more."""
LINES_MAX: Final = 20
LINES_PERIOD_S: Final = 10.0


class Closable(Protocol):
    """A connection that can be closed at once."""

    def abort(self, reason: str) -> None: ...


FRAME_BYTES_HELD_MAX: Final = 256 * MIB


class SharedBounds:
    """The bounds of one process: `connections_max`, above which one more is closed at once, and the bytes of
    unfinished frames.

    The servers count `connection_count`, and add connections of unknown peers to `unknown_channels`, the
    oldest first. A channel is removed from there when its peer becomes known.
    """

    __slots__ = ("connection_count", "connections_max", "frames", "lines", "unknown", "unknown_channels")

    def __init__(
        self,
        clock: Clock,
        *,
        connections_max: int = CONNECTIONS_MAX,
        frame_bytes_held_max: int = FRAME_BYTES_HELD_MAX,
    ) -> None:
        assert connections_max > 0, connections_max
        self.connections_max = connections_max
        self.connection_count = 0
        self.unknown_channels: dict[Closable, None] = {}
        self.frames = FrameBudget(frame_bytes_held_max)
        self.unknown = UnknownPeers(clock)
        self.lines = LineLimit(clock)


class FrameBudget:
    """The bytes of unfinished frames held by all connections.

    At the bound the connection that needs more is closed. Unknown peers have a quarter of it, so that they
    neither fill the memory nor take the share of known ones.
    """

    __slots__ = ("bytes_held", "bytes_max", "bytes_of_unknown")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.bytes_of_unknown = 0

    def add(self, size: int, *, is_known: bool) -> bool:
        """Adds `size`, which may be negative; returns False if the bound is exceeded."""
        self.bytes_held += size
        if not is_known:
            self.bytes_of_unknown += size
            if self.bytes_of_unknown > self.bytes_max // 4:
                return False
        return self.bytes_held <= self.bytes_max

    def make_known(self, size: int) -> None:
        """Counts the `size` bytes of a peer as those of a known one."""
        self.bytes_of_unknown -= size


class UnknownPeers:
    """The loop's time that unknown peers share: UNKNOWN_SHARE of it, whatever they send.

    A channel calls `may_run` before each piece of its peer's bytes, and reports the time with `spend`. If no
    time is left, it registers with `wait` and is called back in its turn. The cost of a peer is measured, so
    nothing needs to be known about expensive kinds of requests.
    """

    __slots__ = ("_clock", "_credit_s", "_refilled_at", "_timer", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._credit_s = UNKNOWN_BURST_S
        self._refilled_at = clock.monotonic()
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: TimerHandle | None = None

    def may_run(self) -> bool:
        """Returns True if time is left and no peer waits for its turn."""
        return not self._waiting and self._has_time()

    def spend(self, seconds: float) -> None:
        """Counts the time that a piece took."""
        self._credit_s -= seconds

    def wait(self, resume: Callable[[], None]) -> None:
        """Calls `resume` when it is this peer's turn; it handles one piece."""
        self._waiting.append(resume)
        if self._timer is None:
            self._schedule()

    def _has_time(self) -> bool:
        now = self._clock.monotonic()
        self._credit_s = min(UNKNOWN_BURST_S, self._credit_s + UNKNOWN_SHARE * (now - self._refilled_at))
        self._refilled_at = now
        return self._credit_s > 0

    def _schedule(self) -> None:
        delay_s = max(0.001, -self._credit_s / UNKNOWN_SHARE)
        self._timer = self._clock.call_later(delay_s, self._serve)

    def _serve(self) -> None:
        self._timer = None
        # Peers that wait again are queued after all that wait now.
        for _ in range(len(self._waiting)):
            if not self._has_time():
                break
            self._waiting.popleft()()
        if self._waiting and self._timer is None:
            self._schedule()


class LineLimit:
    """Limits log lines to LINES_MAX in LINES_PERIOD_S, so that a flood of bad peers costs neither disk nor
    time.
    """

    __slots__ = ("_clock", "_count", "_ends_at", "_suppressed")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._ends_at = 0.0
        self._suppressed = 0

    def admit(self) -> dict[str, int] | None:
        """Returns facts for the next line, with the number of lines suppressed before it; None to suppress
        this one.
        """
        now = self._clock.monotonic()
        if now >= self._ends_at:
            self._ends_at = now + LINES_PERIOD_S
            self._count = 0
        if self._count >= LINES_MAX:
            self._suppressed += 1
            return None
        self._count += 1
        suppressed, self._suppressed = self._suppressed, 0
        return {"suppressed_lines": suppressed} if suppressed else {}
