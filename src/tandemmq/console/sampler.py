"""The latest reading of the cluster and the rates of the last hour, read for all pages of one user.

Strategy: one read of all brokers every INTERVAL_S, with that user's keys, whatever the number of browsers. A
          page that needs only rates, roles or addresses costs the cluster nothing.
At a bound: the oldest sample (SAMPLES_MAX) and the oldest event (EVENTS_MAX) are dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from tandemmq.errors import TandemError
from tandemmq.manage.cluster import ClusterReading, read_cluster
from tandemmq.manage.tools import Tools
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope, TimedEvent

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
SAMPLES_MAX: Final = 720
"""One hour."""
EVENTS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class RateSample:
    """The message rates of the cluster at one moment."""

    at_ms: int
    in_rate: float
    out_rate: float


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A change between two readings: a new master, a broker that went or came."""

    at_ms: int
    broker: str
    text: str
    is_bad: bool


class Sampler:
    """Reads the cluster until it is closed. `latest` is None before the first answer."""

    def __init__(self, tools: Tools, clock: Clock) -> None:
        self._tools = tools
        self._clock = clock
        self._scope = TaskScope("sampler")
        self._due = TimedEvent(clock)
        self._first = TimedEvent(clock)
        self.latest: ClusterReading | None = None
        self.error = ""
        """The reason why there is no newer reading; empty after a success."""
        self.samples: deque[RateSample] = deque(maxlen=SAMPLES_MAX)
        self.events: deque[ClusterEvent] = deque(maxlen=EVENTS_MAX)

    def start(self) -> None:
        """Begins to read."""
        self._scope.start("read", self._run())

    async def close(self) -> None:
        """Stops reading."""
        await self._scope.close()

    async def ready(self, wait_s: float) -> ClusterReading | None:
        """Returns the latest reading; waits for the first one at most `wait_s`."""
        if self.latest is None and not self.error:
            await self._first.wait(wait_s)
        return self.latest

    async def _run(self) -> None:
        while True:
            await self.read()
            self._first.set()
            self._due.clear()
            await self._due.wait(INTERVAL_S)

    async def read(self) -> None:
        """Reads the cluster once."""
        try:
            reading = await read_cluster(self._tools, self._clock.now_ms())
        except TandemError as error:
            self.error = str(error)
            return
        self.error = ""
        if self.latest is not None:
            self.events.extend(_changes(self.latest, reading))
        self.latest = reading
        self.samples.append(RateSample(reading.at_ms, reading.in_rate, reading.out_rate))


def _changes(before: ClusterReading, after: ClusterReading) -> list[ClusterEvent]:
    """Returns the differences that an operator wants to see."""
    found: list[ClusterEvent] = []

    def add(broker: str, text: str, *, is_bad: bool) -> None:
        found.append(ClusterEvent(after.at_ms, broker, text, is_bad))

    masters = (_masters(before), _masters(after))
    for name in sorted({*masters[0], *masters[1]}):
        old, new = (known.get(name) for known in masters)
        if new is None:
            add(name, f"has no master; it was {old}", is_bad=True)
        elif old != new:
            add(name, f"new master {new}" + (f", before {old}" if old else ""), is_bad=False)
    known = {one.address: one for one in before.brokers}
    for one in after.brokers:
        earlier = known.get(one.address)
        name = f"{one.target.broker_name} {one.address}"
        if earlier is None:
            add(name, "is registered", is_bad=False)
        elif one.error and not earlier.error:
            add(name, f"does not answer: {one.error}", is_bad=True)
        elif earlier.error and not one.error:
            add(name, "answers again", is_bad=False)
        elif one.started_at_ms != earlier.started_at_ms and not one.error:
            add(name, "restarted", is_bad=False)
    left = {one.address for one in after.brokers}
    for one in before.brokers:
        if one.address not in left:
            add(f"{one.target.broker_name} {one.address}", "is no longer registered", is_bad=True)
    return found


def _masters(reading: ClusterReading) -> dict[str, str]:
    return {one.target.broker_name: one.address for one in reading.brokers if one.is_master}
