"""All ConsumeQueues of a store: find, create, load, drop.

Invariants: `table` holds each queue once, in the order of loading (by name) and then of creation, so every
            walk over it is the same in each run. What is built from the log has no entries of deleted
            records.
Knows not:  the log; who appends or reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from tandemmq.runtime.ports import Disk
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.deletions import Deletions
from tandemmq.store.options import StoreOptions
from tandemmq.store.paths import StorePaths, parse_queue_id
from tandemmq.store.segment import OpenFiles

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

QueueKey = tuple[str, int]


class ConsumeQueues:
    """The queues by (topic, queue_id)."""

    __slots__ = ("_disk", "_files", "_options", "_paths", "deletions", "table")

    def __init__(self, options: StoreOptions, paths: StorePaths, disk: Disk, files: OpenFiles) -> None:
        self._options = options
        self._paths = paths
        self._disk = disk
        self._files = files
        self.deletions = Deletions(paths.deletions, disk)
        self.table: dict[QueueKey, ConsumeQueue] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(tuple(self.table.values()))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def directory(self) -> Path:
        return self._paths.consume_queues

    def load(self, *, stale_bytes_max: int) -> None:
        """Take up every queue on disk; directories that are no queue number are skipped (spec store 12)."""
        for topic in self._disk.list(self._paths.consume_queues):
            for name in self._disk.list(self._paths.consume_queues / topic):
                queue_id = parse_queue_id(name)
                if queue_id is not None:
                    self.get_or_create((topic, queue_id)).load(stale_bytes_max=stale_bytes_max)

    def get_or_create(self, key: QueueKey) -> ConsumeQueue:
        """The queue; a new one is empty and has no file yet."""
        queue = self.table.get(key)
        if queue is None:
            topic, queue_id = key
            queue = self.table[key] = ConsumeQueue(
                key,
                self._paths.consume_queue(topic, queue_id),
                self._options.consume_queue_file_bytes,
                self._files,
                is_schedule=topic == SCHEDULE_TOPIC,
            )
        return queue

    @property
    def end_log_offset(self) -> int:
        """Where the newest record that any queue knows ends; -1 when none does (spec store 12)."""
        return max((queue.end_log_offset for queue in self.table.values()), default=-1)

    def distrust(self, log_offset: int) -> None:
        """After a crash: in every queue, drop the entries of records from `log_offset` on."""
        for queue in self:
            queue.write()
            queue.distrust(log_offset)

    def truncate(self, log_end: int) -> int:
        """Drop entries behind the end of the log, in every queue; how many."""
        return sum(queue.truncate(log_end) for queue in self)

    def begin_life(self) -> None:
        """What the queues have now is what the log kept of an earlier life."""
        for queue in self:
            queue.life_start = queue.next_offset

    def raise_min(self, log_begin: int) -> None:
        """Let every queue begin at the first entry whose record is still kept."""
        ends = self.deletions.ends
        for queue in self:
            queue.raise_min(max(log_begin, ends.get(queue.key[0], 0)))

    def is_deleted(self, topic: str, log_offset: int) -> bool:
        """True when the record at `log_offset` belongs to a former life of its topic, or to none."""
        ends = self.deletions.ends
        return bool(ends) and log_offset < ends.get(topic, 0)

    def next_offsets(self, topics: Collection[str]) -> dict[QueueKey, int]:
        """What the next append to each queue of these topics gets."""
        return {key: queue.next_offset for key, queue in self.table.items() if key[0] in topics}

    def drop_deleted(self) -> None:
        """Delete the queues that hold entries of deleted records only, and hide such entries of others."""
        ends = self.deletions.ends
        topics = dict.fromkeys(key[0] for key in self.table if key[0] in ends)
        for topic in topics:
            end = ends[topic]
            for key in [key for key in self.table if key[0] == topic]:
                if self.table[key].end_log_offset <= end:
                    self.table.pop(key).remove()
                else:
                    self.table[key].raise_min(end)
            self._remove_empty(topic)

    def drop_topic(self, topic: str) -> int:
        """Delete every queue of a topic; how many. Its records stay in the log (spec store 19)."""
        keys = [key for key in self.table if key[0] == topic]
        for key in keys:
            self.table.pop(key).remove()
        self._remove_empty(topic)
        return len(keys)

    def remove_all(self) -> None:
        """Delete every queue: the log that they point into is gone."""
        for topic in dict.fromkeys(key[0] for key in self.table):
            self.drop_topic(topic)

    def _remove_empty(self, topic: str) -> None:
        directory = self._paths.topic(topic)
        if self._disk.exists(directory) and not self._disk.list(directory):
            self._disk.remove(directory)
