"""Counters of one broker, and rates over the last 10 s, 1 min and 10 min. Pure; time is passed in.

Handlers add to the counters; `sample` is called every `SAMPLE_PERIOD_S`. Only what must be is counted per
message; refusals and the ends of pulls are counted by response code. Source: spec semantics 22.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from datetime import date
from typing import NamedTuple

SAMPLE_PERIOD_S = 10
WINDOWS_S = (10, 60, 600)
TOPICS_COUNTED_MAX = 4_096
GROUPS_COUNTED_MAX = 8_192


class TopicCounts:
    """Messages by topic; a topic that comes when `TOPICS_COUNTED_MAX` are counted is left out."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, topic: str, count: int) -> None:
        counts = self.counts
        before = counts.get(topic)
        if before is not None:
            counts[topic] = before + count
        elif len(counts) < TOPICS_COUNTED_MAX:
            counts[topic] = count

    def keep(self, topics: Container[str]) -> None:
        """Forget the topics that are not among these."""
        self.counts = {topic: count for topic, count in self.counts.items() if topic in topics}


class GroupCounts:
    """[messages, bytes, times] by `topic@group`, bounded as `TopicCounts` are."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}

    def add(self, key: str, count: int, size: int) -> None:
        row = self.rows.get(key)
        if row is not None:
            row[0] += count
            row[1] += size
            row[2] += 1
        elif len(self.rows) < GROUPS_COUNTED_MAX:
            self.rows[key] = [count, size, 1]

    def keep_topics(self, topics: Container[str]) -> None:
        """Forget the keys whose topic is not among these."""
        self.rows = {key: row for key, row in self.rows.items() if key.partition("@")[0] in topics}


class Counters(NamedTuple):
    """All counters at one moment."""

    at_s: float
    put_count: int
    put_bytes: int
    got_count: int
    got_bytes: int
    found_count: int
    missed_count: int
    replicated_count: int


class BrokerStats:
    """The counters; each only grows."""

    __slots__ = (
        "_day",
        "_samples",
        "ack_count",
        "acks",
        "checkpoint_count",
        "checkpoints",
        "found_count",
        "got_bytes",
        "got_count",
        "got_mornings",
        "groups_out",
        "missed_count",
        "pull_endings",
        "put_bytes",
        "put_count",
        "put_mornings",
        "replicated_bytes",
        "replicated_count",
        "send_refusals",
        "sent_back",
        "topics_out",
    )

    def __init__(self, now_s: float) -> None:
        self.put_count = 0  # messages handed to the store
        self.put_bytes = 0
        self.replicated_count = 0  # records that a slave copied; no sends
        self.replicated_bytes = 0
        self.send_refusals: dict[int, int] = {}  # sends answered before they came to the store, by code
        self.got_count = 0  # messages sent to consumers
        self.got_bytes = 0
        self.found_count = 0  # pulls that found something
        self.missed_count = 0
        self.pull_endings: dict[int, int] = {}  # pulls that got no messages, by code
        self.topics_out = TopicCounts()
        self.groups_out = GroupCounts()  # what groups got; times: pulls and pops
        self.sent_back = GroupCounts()  # what groups handed back to be consumed again
        self.checkpoints = GroupCounts()  # leases: of pops, and of changes of the invisible time
        self.acks = GroupCounts()  # of popped messages, a change is one, too
        self.checkpoint_count = 0
        self.ack_count = 0
        self._day: date | None = None
        # Users' messages in and out as they stood yesterday and today at midnight; 0 before the start.
        self.put_mornings = self.got_mornings = (0, 0)
        self._samples: deque[Counters] = deque(
            [self._now(now_s)], maxlen=WINDOWS_S[-1] // SAMPLE_PERIOD_S + 1
        )

    @property
    def refused_count(self) -> int:
        """Sends answered with an error."""
        return sum(self.send_refusals.values())

    def note_send_refusal(self, code: int) -> None:
        """A send was answered with this code before it came to the store."""
        self.send_refusals[code] = self.send_refusals.get(code, 0) + 1

    def note_checkpoint(self, topic: str, group: str) -> None:
        """A lease was stored: of a pop, or of a change of the invisible time."""
        self.checkpoint_count += 1
        self.checkpoints.add(f"{topic}@{group}", 1, 0)

    def note_acks(self, topic: str, group: str, count: int) -> None:
        """Popped messages were acknowledged."""
        self.ack_count += count
        self.acks.add(f"{topic}@{group}", count, 0)

    def note_pull_ending(self, code: int) -> None:
        """A pull was answered with this code and no messages."""
        self.pull_endings[code] = self.pull_endings.get(code, 0) + 1

    def sample(self, now_s: float) -> None:
        """Keep the counters as they stand, for `rates`; called every `SAMPLE_PERIOD_S`."""
        self._samples.append(self._now(now_s))

    def note_day(self, day: date, put_count: int, got_count: int) -> None:
        """Called with each sample; at the first one of a new day these counts of users' messages are kept."""
        if self._day is not None and day != self._day:
            self.put_mornings = (self.put_mornings[1], put_count)
            self.got_mornings = (self.got_mornings[1], got_count)
        self._day = day

    def rates(self, name: str, now_s: float) -> tuple[float, ...]:
        """Per second, over each of the windows; a young broker's windows are as long as it is old."""
        now = self._now(now_s)
        rates = []
        for window_s in WINDOWS_S:
            since = next((s for s in self._samples if s.at_s >= now_s - window_s - 0.5), self._samples[-1])
            elapsed_s = now_s - since.at_s
            grown = getattr(now, name) - getattr(since, name)
            rates.append(grown / elapsed_s if elapsed_s > 0 else 0.0)
        return tuple(rates)

    def _now(self, now_s: float) -> Counters:
        return Counters(
            now_s,
            self.put_count,
            self.put_bytes,
            self.got_count,
            self.got_bytes,
            self.found_count,
            self.missed_count,
            self.replicated_count,
        )
