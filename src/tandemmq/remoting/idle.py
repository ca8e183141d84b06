"""Closes idle connections, and those with a frame that never ends; one timer serves all of them."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

SWEEPS_PER_PERIOD = 12  # every 10 s for 120 s


class IdleSweep:
    """Checks `channels` several times per period; a connection is closed at most a twelfth too late.

    A frame must be complete within the same period, even if its bytes keep trickling in. A peer therefore
    cannot hold a connection by sending single bytes.
    """

    def __init__(self, clock: Clock, channels: Collection[Channel], idle_close_s: float) -> None:
        self._clock = clock
        self._channels = channels
        self._idle_close_s = idle_close_s
        self._timer: TimerHandle | None = None
        self._unfinished: dict[Channel, tuple[int, float]] = {}
        """The unfinished frame of each such channel, and the time since when it is known."""

    def start(self) -> None:
        self._timer = self._clock.call_later(self._idle_close_s / SWEEPS_PER_PERIOD, self._sweep)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        oldest = now - self._idle_close_s
        unfinished: dict[Channel, tuple[int, float]] = {}
        for channel in list(self._channels):
            if channel.last_read_at <= oldest and channel.last_written_at <= oldest:
                log.info(events.CHANNEL_CLOSED_BY_IDLENESS, extra={"peer": channel.peer})
                channel.close(f"idle for {self._idle_close_s:g} s")
            elif channel.unfinished_frame:
                frame, since = self._unfinished.get(channel, (0, now))
                if frame != channel.unfinished_frame:
                    frame, since = channel.unfinished_frame, now
                if since <= oldest:
                    log.warning(events.CHANNEL_CLOSED_BY_SLOW_FRAME, extra={"peer": channel.peer})
                    channel.abort(f"a frame took more than {self._idle_close_s:g} s")
                else:
                    unfinished[channel] = frame, since
        self._unfinished = unfinished
        self.start()
