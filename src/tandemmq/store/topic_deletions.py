"""Deletes the queues of topics, and applies the deletions of a master.

`MessageStore` builds one `TopicDeletions` as `store.deletions`. The broker calls `drop` on a master; a slave
calls `apply` with the deletions that its master reports, and `begin_copy` before it copies.

Invariants: a deletion is on disk before a queue is changed. Neither a restart nor a slave rebuilds a deleted
            queue. The records stay in the log until retention deletes its files.
Knows not:  topics as the broker knows them: only names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tandemmq.store.appender import Appender
from tandemmq.store.core import StoreCore
from tandemmq.store.table_flusher import TableFlusher

DELETION_ROUNDS_MAX = 3


@dataclass(eq=False)
class TopicDeletions:
    """The deleted topics of one store. `accepted_end()` returns the end of all accepted sends."""

    core: StoreCore
    appender: Appender
    table_flusher: TableFlusher
    accepted_end: Callable[[], int]

    def __post_init__(self) -> None:
        self._in_progress: set[str] = set()

    @property
    def ends(self) -> Mapping[str, int]:
        """Topic -> log offset: records of the topic below that offset are deleted."""
        return self.core.queues.deletions.ends

    @property
    def done(self) -> dict[str, int]:
        """The deletions to report to slaves, without those that are still being written.

        During the write this broker still has the offsets of the topic. A slave that had already dropped its
        own offsets would copy them again.
        """
        return {topic: end for topic, end in self.ends.items() if topic not in self._in_progress}

    async def drop(self, topics: Collection[str]) -> None:
        """Deletes the queues of these topics with everything sent so far.

        Strategy: messages sent while the deletion is written require another write; under constant sends the
                  last of them may reappear after a restart. A cancelled caller still waits for the end, since
                  two concurrent writes would remove each other's file.
        Raises:   OSError when it cannot be written: then nothing is dropped. ServiceNotAvailable if the store
                  is closed or fails: the deletion may then be in effect when the store is opened again.
        """
        self.core.admission.require_open()
        await self.core.tasks.run_to_completion("drop_topics", self._drop(topics))

    async def _drop(self, topics: Collection[str]) -> None:
        self._in_progress.update(topics)
        try:
            await self._record(topics)
        finally:
            self._in_progress.difference_update(topics)
        for topic in topics:
            self.core.queues.drop_topic(topic)

    async def _record(self, topics: Collection[str]) -> None:
        queues = self.core.queues
        for number in range(DELETION_ROUNDS_MAX):
            self.appender.write_staged()
            before, end = queues.next_offsets(topics), self.accepted_end()
            ends = dict.fromkeys((topic for topic, _ in before), end)
            try:
                if ends:
                    await queues.deletions.record(ends, log_begin=self.core.log.begin)
            except OSError:
                if number == 0:
                    raise
                return
            self.core.admission.require_open()
            if queues.next_offsets(topics) == before:
                return

    def begin_copy(self) -> None:
        """Prepares a slave to copy a master's bytes from the end of the log on.

        The new master may have a different history, so deletions reported beyond our log end are discarded.
        That happens if a shorter slave became master, or the master came back shorter. The master reports its
        own deletions again.
        """
        if self.core.queues.deletions.lower(self.core.log.end):
            self.core.tasks.start("save_deletions", self.table_flusher.save_deletions())

    async def apply(self, deleted: Mapping[str, int]) -> list[str]:
        """Applies the master's deletions on a slave; returns the topics that were not known as deleted.

        A cancelled caller still waits for the end, as in `drop`.
        Raises:  OSError when it cannot be written, ServiceNotAvailable: then nothing is dropped.
        """
        self.core.admission.require_open()
        known, begin = self.ends, self.core.log.begin
        new = {topic: end for topic, end in deleted.items() if end > max(begin, known.get(topic, 0))}
        if new:
            await self.core.tasks.run_to_completion("apply_deletions", self._apply(new, begin))
        return list(new)

    async def _apply(self, new: Mapping[str, int], log_begin: int) -> None:
        await self.core.queues.deletions.record(new, log_begin=log_begin)
        self.core.admission.require_open()
        self.core.queues.drop_deleted()
