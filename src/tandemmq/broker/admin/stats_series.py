"""VIEW_BROKER_STATS_DATA: what each topic and group did in the last minute, hour and day. Pure.

Shape:      a series keeps (time, messages, bytes, times) as they stood, every 10 s for the minute, 10 min for
            the hour and 1 h for the day, as RocketMQ does; a figure is the difference of two of them.
At a bound: `SERIES_MAX` series of about 1.5 KiB; a topic or group that comes then has none until others are
            forgotten, which happens when the topic is gone or nothing came for a day.
Source:     spec semantics 22.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Mapping
from typing import Final, NamedTuple

from tandemmq.protocol.bodies.stats import BrokerStats, BrokerStatsItem

SERIES_MAX: Final = 8_192
MINUTE_STEP_S: Final = 10
HOUR_STEP_S: Final = 600
DAY_STEP_S: Final = 3_600
DAY_S: Final = 86_400
KEYS_PER_STEP: Final = 256
_WINDOWS: Final = ((MINUTE_STEP_S, 7), (HOUR_STEP_S, 7), (DAY_STEP_S, 25))
_ROW: Final = 4  # time, count, bytes, times


class Totals(NamedTuple):
    """What something did since the broker began to count. `times`: the pulls or sends that it took."""

    messages: float = 0
    bytes: float = 0
    times: float = 0


class Series:
    """One topic or group."""

    __slots__ = ("_rows", "changed_at_s", "totals")

    def __init__(self, at_s: float, totals: Totals) -> None:
        """`totals`: from where on it counts, as they stood at `at_s`."""
        self.totals = totals
        self.changed_at_s = at_s
        self._rows = tuple(array("d", (at_s, *totals)) for _ in _WINDOWS)

    def note(self, at_s: float, totals: Totals) -> None:
        """Takes in how the totals stand now; called every `MINUTE_STEP_S`."""
        if totals != self.totals:
            self.totals, self.changed_at_s = totals, at_s
        for rows, (step_s, row_max) in zip(self._rows, _WINDOWS, strict=True):
            # Half a second of slack: a timer that fired early must not skip a step.
            if at_s - rows[-_ROW] >= step_s - 0.5:
                rows.extend((at_s, *totals))
                if len(rows) > row_max * _ROW:
                    del rows[:_ROW]

    def figures(self, *, is_bytes: bool) -> BrokerStats:
        """The three spans up to the last sample; `is_bytes` chooses sizes over counts."""
        minute, hour, day = (self._figure(rows, is_bytes) for rows in self._rows)
        return BrokerStats(minute=minute, hour=hour, day=day)

    def _figure(self, rows: array[float], is_bytes: bool) -> BrokerStatsItem:
        field = 2 if is_bytes else 1
        grown = self.totals[field - 1] - rows[field]
        times = self.totals.times - rows[3]
        elapsed_s = max(self._rows[0][-_ROW] - rows[0], 0.0)
        return BrokerStatsItem(
            sum=int(grown),
            tps=round(grown / elapsed_s, 4) if elapsed_s > 0 else 0.0,
            average=round(grown / times, 4) if times > 0 else 0.0,
        )


class SeriesTable:
    """The series of one kind, by key. What never grew has none: RocketMQ answers that it is unknown."""

    def __init__(self, *, count_max: int = SERIES_MAX) -> None:
        self._series: dict[str, Series] = {}
        self._count_max = count_max
        self._last_sample_s: float | None = None

    def __len__(self) -> int:
        return len(self._series)

    def get(self, key: str) -> Series | None:
        return self._series.get(key)

    def sample(self, at_s: float, totals: Mapping[str, Totals]) -> None:
        """As `steps`, all at once."""
        for _ in self.steps(at_s, totals):
            pass

    def steps(self, at_s: float, totals: Mapping[str, Totals]) -> Iterator[None]:
        """All totals as they stand; a key that is seen for the first time began to count at the last sample.

        Yields where others may run. Totals that went back (a topic deleted and made again) begin anew.
        """
        began_s = at_s if self._last_sample_s is None else self._last_sample_s
        for number, (key, now) in enumerate(totals.items(), start=1):
            if number % KEYS_PER_STEP == 0:
                yield
            series = self._series.get(key)
            if series is not None and now.messages < series.totals.messages:
                del self._series[key]
                series = None
            if series is None:
                if len(self._series) >= self._count_max or not now.messages:
                    continue
                series = self._series[key] = Series(began_s, Totals())
            series.note(at_s, now)
        self._last_sample_s = at_s

    def keep(self, keys: Container[str], at_s: float) -> None:
        """Forget what is not among the keys, and what did nothing for a day."""
        self._series = {
            key: series
            for key, series in self._series.items()
            if key in keys and at_s - series.changed_at_s < DAY_S
        }
