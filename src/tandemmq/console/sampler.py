"""The latest reading of the cluster and the rates of the last hour, read for all pages of one user.

Strategy: one read of all brokers every INTERVAL_S, with that user's keys, whatever the number of browsers. A
          page that needs only rates, roles or addresses costs the cluster nothing.
At a bound: the oldest sample (SAMPLES_MAX) and the oldest event (EVENTS_MAX) are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.errors import NotPermitted, TandemError
from tandemmq.manage.cluster import BrokerReading, ClusterReading, LagReading, read_cluster, read_lag
from tandemmq.manage.settings import is_tandem
from tandemmq.manage.tools import Tools
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope, TimedEvent

INTERVAL_S: Final = 5.0
LAG_EVERY: Final = 6
"""The lag of all groups is read with every sixth reading, and less often if that takes long."""
LAG_SHARE: Final = 0.05
"""Largest share of the time in which brokers are asked for the lag."""
SAMPLES_MAX: Final = 720
"""One hour."""
EVENTS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class RateSample:
    """The message rates of the cluster at one moment."""

    at_ms: int
    in_rate: float
    out_rate: float
    lag: int | None


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
        self._first = TimedEvent(clock)
        self._last_masters: dict[str, str] = {}
        self.latest: ClusterReading | None = None
        self.lag: LagReading | None = None
        """The latest lag of consumers; None before the first answer, or if no broker answers for it."""
        self.is_guarded = False
        """True if a server refused the latest reading: for a visitor, whose requests are unsigned, this means
        that the cluster has access control. It stays so while no broker answers.
        """
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
        count, lag_due = 0, 0.0
        while True:
            await self.read()
            self._first.set()
            now = self._clock.monotonic()
            if count % LAG_EVERY == 0 and now >= lag_due and self.latest is not None:
                await self.read_lag()
                taken = self._clock.monotonic() - now
                lag_due = now + taken / LAG_SHARE
            count += 1
            await self._clock.sleep(INTERVAL_S)

    async def read(self) -> None:
        """Reads the cluster once."""
        try:
            reading = await read_cluster(self._tools, self._clock.now_ms())
        except TandemError as error:
            self.error = str(error)
            self.is_guarded |= isinstance(error, NotPermitted)
            return
        self.error = ""
        if self.latest is not None:
            self.events.extend(_changes(self.latest, reading, self._last_masters))
        self._last_masters |= _masters(reading)
        self.latest = reading
        if reading.answering:
            self.is_guarded = any(one.is_denied for one in reading.brokers)
        lag = None if self.lag is None else self.lag.total
        self.samples.append(RateSample(reading.at_ms, reading.in_rate, reading.out_rate, lag))

    async def read_lag(self) -> None:
        """Reads the lag of all groups once. Without the right to do so, or an answer, the lag is unknown."""
        if self.latest is None:
            return
        masters = self.latest.masters
        found = await read_lag(self._tools, masters, self._clock.now_ms())
        self.lag = None if len(found.errors) == len(masters) else found


def _changes(
    before: ClusterReading, after: ClusterReading, last_masters: Mapping[str, str]
) -> list[ClusterEvent]:
    """Returns the differences that an operator wants to see. `last_masters` are the latest known masters,
    also of groups that have none now.
    """
    found: list[ClusterEvent] = []

    def add(broker: str, text: str, *, is_bad: bool) -> None:
        found.append(ClusterEvent(after.at_ms, broker, text, is_bad))

    had, has = _masters(before), _masters(after)
    for name in sorted({*had, *has}):
        old, new = last_masters.get(name), has.get(name)
        if new is None:
            if name in had:
                add(name, f"has no master; it was {old}", is_bad=True)
        elif old != new:
            add(name, f"new master {new}{_reason(old, before, after)}", is_bad=False)
        elif name not in had:
            add(name, f"{new} is its master again", is_bad=False)
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
        elif _is_restarted(earlier, one):
            add(name, "restarted", is_bad=False)
    left = {one.address for one in after.brokers}
    for one in before.brokers:
        if one.address not in left:
            add(f"{one.target.broker_name} {one.address}", "is no longer registered", is_bad=True)
    return found


def _reason(old: str | None, before: ClusterReading, after: ClusterReading) -> str:
    """Returns why the master changed, as far as the readings show it."""
    if old is None:
        return ", the first"
    earlier = next((one for one in before.brokers if one.address == old), None)
    now = next((one for one in after.brokers if one.address == old), None)
    if now is None or now.error:
        return f": {old} does not answer"
    if earlier is not None and not earlier.error and _is_restarted(earlier, now):
        return f": {old} was restarted"
    return f": {old} is a slave now and answers, so it handed over, was restarted or lost its lease"


def _is_restarted(before: BrokerReading, after: BrokerReading) -> bool:
    """Returns True if the broker has surely been started anew: our brokers also begin anew, in the same
    process, when their role changes.
    """
    if after.error or after.started_at_ms == before.started_at_ms:
        return False
    return after.is_master == before.is_master or not is_tandem(after.facts)


def _masters(reading: ClusterReading) -> dict[str, str]:
    return {one.target.broker_name: one.address for one in reading.brokers if one.is_master}
