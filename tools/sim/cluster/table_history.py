"""The tables that a promoted slave must know: those that its master had when a complete copy of them began.

Strategy: the master's tables are recorded every second, with the number of copies that each slave had
          completed. When two more are complete, the second began after the record was made, so the slave has
          the recorded tables, or newer ones.
          Not expected are: changes that the master itself has reverted by its end; and anything from a slave
          that is killed before it has saved its copy. Offsets that an operator has moved since prove nothing:
          they may have been copied while they were low. The same holds for a queue of which a consumer has
          committed a lower offset since, at the master or, without its master, at a slave, because it did not
          know that the queue had been reassigned. And a slave whose log is not copied, while its tables are,
          accepts progress only up to the end of its copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sim.cluster.loop import SimProcess
from sim.cluster.nodes import BrokerNode
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.store import MessageStore

SNAPSHOTS_MAX = 60
ROUNDS = 2
SAVED_S = 15.0
"""The time after which a slave has saved its copy: the delays of its files, and a full disk meanwhile."""

Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class SlaveProgress:
    """One slave at one moment: the number of table copies that it had completed, and the ends of its
    queues.
    """

    finished: int
    ends: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, node: BrokerNode, store: MessageStore) -> SlaveProgress:
        return cls(_copies_of(node), {place: store.queue_max(*place) for place in store.queue_keys()})


AllSlaveProgress = Mapping[SimProcess, SlaveProgress]


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The tables of one broker at one moment."""

    topics: Mapping[str, Any]
    groups: Mapping[str, Any]
    offsets: Offsets
    levels: Mapping[int, int]
    deleted: Mapping[str, int]
    """The end of the log when each topic was deleted."""

    @classmethod
    def of(cls, node: BrokerNode) -> TableSnapshot:
        assert node.broker is not None
        tables = node.broker._tables
        return cls(
            topics=dict(tables.topics.snapshot().topics),
            groups=dict(tables.groups.snapshot().groups),
            offsets={key: dict(queues) for key, queues in tables.offsets.snapshot().offsets.items()},
            levels=dict(tables.delay_offsets.snapshot().offsets),
            deleted={} if node.broker.store is None else dict(node.broker.store.deletions.ends),
        )


class TableHistory:
    """The recorded tables of the current master."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, SimProcess, TableSnapshot, AllSlaveProgress]] = deque(
            maxlen=SNAPSHOTS_MAX
        )
        self._expected: tuple[float, TableSnapshot, SlaveProgress, TableSnapshot] | None = None

    def note(self, master: BrokerNode, slaves: Sequence[BrokerNode], now_s: float) -> None:
        """Records the tables of the master and the progress of its slaves; all of them must be running."""
        assert master.process is not None
        held = {
            slave.process: SlaveProgress.of(slave, slave.store)
            for slave in slaves
            if slave.process and slave.store
        }
        self._notes.append((now_s, master.process, TableSnapshot.of(master), held))

    def record_promotion(
        self, lost: BrokerNode, chosen: BrokerNode, *, now_s: float, saves_now: bool
    ) -> None:
        """Computes what the slave must know as a master. The master is gone; the slave still runs.
        `saves_now`: it stops cleanly, on a disk that accepts its tables.
        """
        self._expected = None
        if chosen.process is not None and chosen.store is not None:
            finished = _copies_of(chosen)
            if not saves_now:
                saved = [held for at_s, _, _, held in self._notes if at_s <= now_s - SAVED_S]
                known = saved[-1].get(chosen.process) if saved else None
                finished = 0 if known is None else known.finished
            for at_s, process, noted, slaves in reversed(self._notes):
                held = slaves.get(chosen.process)
                if process is lost.process and held is not None and finished >= held.finished + ROUNDS:
                    self._expected = at_s, noted, held, TableSnapshot.of(lost)
                    break
        self._notes.clear()

    def check_promoted(
        self, master: BrokerNode, moved_s: Mapping[str, float], stepped_s: Mapping[tuple[str, int], float]
    ) -> Iterator[str]:
        """Yields the faults in the tables of a promoted slave. `moved_s`: when offsets of a group were last
        moved on purpose. `stepped_s`: when a lower offset was last committed for a topic@group and queue.
        """
        assert master.store is not None
        held = TableSnapshot.of(master)
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
                    continue  # it was created again as before: the slave may know the deletion only
                if newest.get(name) == config and ours.get(name) != config:
                    yield f"{master.process} has {what} {name} as {ours.get(name)}, its master had {config}"
        moved = {group for group, end_s in moved_s.items() if end_s >= at_s}
        stepped = {place for place, step_s in stepped_s.items() if step_s >= at_s}
        yield from _lower_offsets(master, held, noted, slave, last, moved, stepped)


def _copies_of(slave: BrokerNode) -> int:
    replica = None if slave.broker is None else slave.broker._replica
    return 0 if replica is None else replica.config_sync.complete_round


def _beyond_queues(master: BrokerNode, held: TableSnapshot, store: MessageStore) -> Iterator[str]:
    """Yields progress that is beyond the end of its queue."""
    for key, queues in held.offsets.items():
        topic = key.partition("@")[0]
        for queue_id, offset in queues.items():
            end = store.queue_max(topic, queue_id)
            if offset > end:
                yield f"{master.process} opens with offset {offset} of {key}, queue {queue_id} ends at {end}"
    for level, offset in held.levels.items():
        end = store.queue_max(SCHEDULE_TOPIC, level - 1)
        if offset > end:
            yield f"{master.process} opens with delay level {level} at {offset}, its queue ends at {end}"


def _lower_offsets(
    master: BrokerNode,
    held: TableSnapshot,
    noted: TableSnapshot,
    slave: SlaveProgress,
    last: TableSnapshot,
    moved: Set[str],
    stepped: Set[tuple[str, int]],
) -> Iterator[str]:
    """Yields copied progress that went back. It may go back to the end of a queue, at present or when it was
    copied; in a topic that was deleted since, everything starts anew. A group that was `moved`, or a queue
    that `stepped` back since, may have been copied while its offset was low.
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
                yield f"{master.process} has offset {ours} of {key} queue {queue_id}, its master had {offset}"
    for level, offset in noted.levels.items():
        end = min(
            master.store.queue_max(SCHEDULE_TOPIC, level - 1), slave.ends.get((SCHEDULE_TOPIC, level - 1), 0)
        )
        ours = held.levels.get(level, 0)
        if ours < min(offset, last.levels.get(level, 0), end):
            yield f"{master.process} has delay level {level} at {ours}, its master had {offset}"
