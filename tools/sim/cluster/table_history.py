"""What a promoted slave must know: the tables that its master had when a whole copy of them began.

Strategy: the master's tables are noted every second with how many copies each slave had finished. When two
          more are finished the second has begun after the note, so the slave has what was noted, or newer.
          What the master itself had changed until its end is expected of nobody, and neither is it of a
          slave that is killed before it has saved what it copied. Offsets that an operator has moved since
          say nothing: they may have been copied while they were low. So it is with a queue of which a
          consumer has committed less since, at the master or, without its master, at a slave, because it did
          not know that the queue is another's now. And a slave whose log is not copied, while its tables are,
          takes progress only up to the end of its copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sim.cluster.loop import Life
from sim.cluster.nodes import BrokerNode
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.store import MessageStore

NOTES_MAX = 60
ROUNDS = 2
SAVED_S = 15.0
"""A slave has saved by then what it copied: the delays of its files, and a full disk meanwhile."""

Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class SlaveNote:
    """One slave at one moment: how many copies of the tables it had finished, where its queues ended."""

    finished: int
    ends: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, node: BrokerNode, store: MessageStore) -> SlaveNote:
        return cls(_copies_of(node), {place: store.queue_max(*place) for place in store.queue_keys()})


SlaveNotes = Mapping[Life, SlaveNote]


@dataclass(frozen=True, slots=True)
class TableNote:
    """The tables of one broker at one moment."""

    topics: Mapping[str, Any]
    groups: Mapping[str, Any]
    offsets: Offsets
    levels: Mapping[int, int]
    deleted: Mapping[str, int]
    """Where the log ended when a topic was deleted."""

    @classmethod
    def of(cls, node: BrokerNode) -> TableNote:
        assert node.broker is not None
        tables = node.broker._tables
        return cls(
            topics=dict(tables.topics.snapshot().topics),
            groups=dict(tables.groups.snapshot().groups),
            offsets={key: dict(queues) for key, queues in tables.offsets.snapshot().offsets.items()},
            levels=dict(tables.delay_offsets.snapshot().offsets),
            deleted={} if node.broker.store is None else dict(node.broker.store.deleted_topics),
        )


class TableHistory:
    """The notes of the present master."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, Life, TableNote, SlaveNotes]] = deque(maxlen=NOTES_MAX)
        self._expected: tuple[float, TableNote, SlaveNote, TableNote] | None = None

    def note(self, master: BrokerNode, slaves: Sequence[BrokerNode], now_s: float) -> None:
        """Both are asked while they run."""
        assert master.life is not None
        held = {
            slave.life: SlaveNote.of(slave, slave.store) for slave in slaves if slave.life and slave.store
        }
        self._notes.append((now_s, master.life, TableNote.of(master), held))

    def note_promotion(self, lost: BrokerNode, chosen: BrokerNode, *, now_s: float, saves_now: bool) -> None:
        """The master is gone; its slave still runs. What the slave must know as a master is now known.
        `saves_now`: it ends in order, on a disk that takes its tables.
        """
        self._expected = None
        if chosen.life is not None and chosen.store is not None:
            finished = _copies_of(chosen)
            if not saves_now:
                saved = [held for at_s, _, _, held in self._notes if at_s <= now_s - SAVED_S]
                known = saved[-1].get(chosen.life) if saved else None
                finished = 0 if known is None else known.finished
            for at_s, life, noted, slaves in reversed(self._notes):
                held = slaves.get(chosen.life)
                if life is lost.life and held is not None and finished >= held.finished + ROUNDS:
                    self._expected = at_s, noted, held, TableNote.of(lost)
                    break
        self._notes.clear()

    def check_promoted(
        self, master: BrokerNode, moved_s: Mapping[str, float], stepped_s: Mapping[tuple[str, int], float]
    ) -> Iterator[str]:
        """What is wrong with the tables of a master that was a slave. `moved_s`: when offsets of a group were
        last moved on purpose. `stepped_s`: when less was last committed of a topic@group and queue.
        """
        assert master.store is not None
        held = TableNote.of(master)
        yield from _beyond_queues(master, held, master.store)
        if self._expected is None:
            return
        (at_s, noted, slave, last), self._expected = self._expected, None
        for what, ours, theirs, newest in (
            ("topic", held.topics, noted.topics, last.topics),
            ("group", held.groups, noted.groups, last.groups),
        ):
            for name, config in theirs.items():
                if what == "topic" and noted.deleted.get(name) != last.deleted.get(name):
                    continue  # it was made again as it had been: the slave may know of the deletion only
                if newest.get(name) == config and ours.get(name) != config:
                    yield f"{master.life} has {what} {name} as {ours.get(name)}, its master had {config}"
        moved = {group for group, end_s in moved_s.items() if end_s >= at_s}
        stepped = {place for place, step_s in stepped_s.items() if step_s >= at_s}
        yield from _lower_offsets(master, held, noted, slave, last, moved, stepped)


def _copies_of(slave: BrokerNode) -> int:
    replica = None if slave.broker is None else slave.broker._replica
    return 0 if replica is None else replica.config_sync.whole_number


def _beyond_queues(master: BrokerNode, held: TableNote, store: MessageStore) -> Iterator[str]:
    """No progress is ahead of what is there."""
    for key, queues in held.offsets.items():
        topic = key.partition("@")[0]
        for queue_id, offset in queues.items():
            end = store.queue_max(topic, queue_id)
            if offset > end:
                yield f"{master.life} opens with offset {offset} of {key}, queue {queue_id} ends at {end}"
    for level, offset in held.levels.items():
        end = store.queue_max(SCHEDULE_TOPIC, level - 1)
        if offset > end:
            yield f"{master.life} opens with delay level {level} at {offset}, its queue ends at {end}"


def _lower_offsets(
    master: BrokerNode,
    held: TableNote,
    noted: TableNote,
    slave: SlaveNote,
    last: TableNote,
    moved: Set[str],
    stepped: Set[tuple[str, int]],
) -> Iterator[str]:
    """Progress that was copied does not step back, but to the end of a queue, now or when it was copied; in a
    topic that was deleted since, all begins anew. A group that was `moved`, or a queue that `stepped` back
    since, may have been copied while it was behind.
    """
    assert master.store is not None
    for key, queues in noted.offsets.items():
        topic, _, group = key.partition("@")
        if group in moved or noted.deleted.get(topic) != last.deleted.get(topic):
            continue
        for queue_id, offset in queues.items():
            if (key, queue_id) in stepped:
                continue
            newest = last.offsets.get(key, {}).get(queue_id, 0)
            copied_to = slave.ends.get((topic, queue_id), 0)
            wanted = min(offset, newest, copied_to, master.store.queue_max(topic, queue_id))
            ours = held.offsets.get(key, {}).get(queue_id, 0)
            if ours < wanted:
                yield f"{master.life} has offset {ours} of {key} queue {queue_id}, its master had {offset}"
    for level, offset in noted.levels.items():
        end = min(
            master.store.queue_max(SCHEDULE_TOPIC, level - 1), slave.ends.get((SCHEDULE_TOPIC, level - 1), 0)
        )
        ours = held.levels.get(level, 0)
        if ours < min(offset, last.levels.get(level, 0), end):
            yield f"{master.life} has delay level {level} at {ours}, its master had {offset}"
