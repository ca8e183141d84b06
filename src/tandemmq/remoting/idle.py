"""Closes connections on which nothing moved for a while, by one timer for all of them."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

SWEEPS_PER_PERIOD = 12  # every 10 s for 120 s


class IdleSweep:
    """Looks at `channels` several times per period; a connection is closed at most a twelfth too late."""

    def __init__(self, clock: Clock, channels: Collection[Channel], idle_close_s: float) -> None:
        self._clock = clock
        self._channels = channels
        self._idle_close_s = idle_close_s
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._clock.call_later(self._idle_close_s / SWEEPS_PER_PERIOD, self._sweep)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        oldest = self._clock.monotonic() - self._idle_close_s
        for channel in list(self._channels):
            if channel.last_read_at <= oldest and channel.last_written_at <= oldest:
                log.info(events.CHANNEL_CLOSED_BY_IDLENESS, extra={"peer": channel.peer})
                channel.close(f"idle for {self._idle_close_s:g} s")
        self.start()
