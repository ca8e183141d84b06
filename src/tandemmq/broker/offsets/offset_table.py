"""Tables of progress: groups' offsets in queues, and delivery of the delay levels.

`OffsetTable` holds each group's committed and pulled offset per queue, and pending resets. `DelayOffsetTable`
holds the delivery offset of each delay level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from msgspec import UNSET, structs

from tandemmq.broker.table_file import StoredTable
from tandemmq.errors import Busy
from tandemmq.protocol.bodies.codec import DataVersion, decode_body, encode_body
from tandemmq.protocol.bodies.progress import ConsumerOffsetTable, DelayOffsets
from tandemmq.protocol.bodies.progress import DelayOffsets as Body

QueueOffsets = dict[int, int]
OffsetRow = tuple[str, Mapping[int, int], Mapping[int, int] | None]
"""A `topic@group`, its committed offsets by queue, and its next pulls."""

DROPPED_GROUPS_MAX = 10_000


class OffsetTable(StoredTable):
    """The consumer offsets of all groups; `on_change` is called after each change and must be cheap.

    Invariants: a key is `topic@group`, and '@' is in neither name; only committed offsets are persisted.
                The file records the deletions of topics that were known when it was saved. If a topic was
                deleted later, and perhaps created again, its offsets in the file belong to the deleted topic.
                If a group's progress was lost with the file, the group starts at the oldest message wherever
                it lacks an offset; a later start could skip messages.
                A group whose offsets were deleted starts anew, on slaves as well. A slave otherwise keeps
                keys its master lacks, so the time of the deletion is sent along with the offsets.
    At a bound: a commit for a new key is rejected with Busy; the oldest recorded deletion is forgotten.
    Source: spec semantics 11.2 and 16.5, spec store 18 (consumerOffset.json), spec replication 6.2.
    """

    def __init__(self, *, version_step: int = 500, key_count_max: int = 1_000_000) -> None:
        self.data_version = DataVersion()
        super().__init__()
        self.on_topic_dropped: list[Callable[[str], None]] = []
        self.on_group_dropped: list[Callable[[str], None]] = []
        self.deleted_topics: Callable[[], Mapping[str, int]] | None = None
        """Set by the owner: topic -> log offset of its last deletion."""
        self.on_reset: list[Callable[[str, str, int, int], None]] = []
        self._version_step = version_step
        self._key_count_max = key_count_max
        self._commits = 0
        self._committed: dict[str, QueueOffsets] = {}
        self._pulled: dict[str, QueueOffsets] = {}
        self._resets: dict[str, QueueOffsets] = {}
        self._last_deletions: dict[str, int] | None = {}
        """Topic -> the deletion that its offsets come after, while that is recorded; None if the file does
        not say.
        """
        self._forgotten: frozenset[str] = frozenset()
        self._dropped: dict[str, tuple[int, int]] = {}
        self.log_end: Callable[[], int] = lambda: 0
        """Set by the owner: returns the end of the log."""

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, now_ms: int, *, is_admitted: bool = False
    ) -> None:
        """Stores an offset, which may be lower than before. `is_admitted`: the log has it already, so it is
        stored in a full table, too.

        Raises:  Busy when the key is new and the table is full.
        """
        key = f"{topic}@{group}"
        offsets = self._committed.get(key)
        if offsets is None:
            if len(self._committed) >= self._key_count_max and not is_admitted:
                raise Busy(
                    f"[OVERLOAD] the broker keeps offsets of at most {self._key_count_max} topic@group keys"
                )
            offsets = self._committed[key] = {}
        offsets[queue_id] = offset
        self._commits += 1
        if self._commits % self._version_step == 0:
            self.data_version = self.data_version.next(now_ms)
        self._after_change()

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the offset to consume next, or None if the group never committed one."""
        offsets = self._committed.get(f"{topic}@{group}")
        return None if offsets is None else offsets.get(queue_id)

    def record_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Records the offset of the group's next pull; kept in memory only."""
        key = f"{topic}@{group}"
        offsets = self._pulled.get(key)
        if offsets is None:
            if len(self._pulled) >= self._key_count_max:
                return
            offsets = self._pulled[key] = {}
        offsets[queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        offsets = self._pulled.get(f"{topic}@{group}")
        return None if offsets is None else offsets.get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Sets the committed offset and moves the group's next pull or pop there (spec semantics 11.4).

        Raises:  RequestRejected when a callback of `on_reset` cannot store the reset; it is pending all the
                 same.
        """
        self.commit(group, topic, queue_id, offset, now_ms)
        self._resets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        for callback in self.on_reset:
            callback(group, topic, queue_id, offset)

    def waiting_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the offset of the queue's pending reset, which stays pending; None without one."""
        return self._resets.get(f"{topic}@{group}", {}).get(queue_id) if self._resets else None

    def consume_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the offset of the queue's pending reset and clears it; None without one."""
        key = f"{topic}@{group}"
        offsets = self._resets.get(key)
        if offsets is None:
            return None
        offset = offsets.pop(queue_id, None)
        if not offsets:
            del self._resets[key]
        return offset

    def pairs(self) -> list[tuple[str, str]]:
        """Returns (topic, group) of every committed offset."""
        return [(topic, group) for topic, _, group in map(_split, self._committed)]

    def first_rows(self, count_max: int) -> tuple[list[OffsetRow], int]:
        """Returns the offsets by the first `topic@group` keys that committed any, and the number of keys
        beyond them. The mappings are the table's own and change with it.
        """
        pulled = self._pulled
        rows: list[OffsetRow] = [
            (key, committed, pulled.get(key)) for key, committed in islice(self._committed.items(), count_max)
        ]
        return rows, len(self._committed) - len(rows)

    def row(self, key: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Returns the committed offsets and the next pulls of a `topic@group`, by queue."""
        return self._committed.get(key, {}), self._pulled.get(key, {})

    def committed_queues(self, group: str, topic: str) -> dict[int, int]:
        """Returns the committed offset by queue id, for every queue that has one."""
        return dict(self._committed.get(f"{topic}@{group}", {}))

    def groups_of(self, topic: str) -> list[str]:
        """Returns the groups that committed an offset of the topic."""
        return [group for name, _, group in map(_split, self._committed) if name == topic]

    def topics_of(self, group: str) -> list[str]:
        """Returns the topics of which the group committed an offset."""
        return [topic for topic, _, name in map(_split, self._committed) if name == group]

    def drop_topic(self, topic: str) -> None:
        """Drops the offsets of a deleted topic; later commits belong to a new topic of that name."""
        self._drop([key for key in self._keys() if key.startswith(topic + "@")])
        if self.deleted_topics is not None:
            assert self._last_deletions is not None
            deleted = self.deleted_topics()
            known = {name: end for name, end in self._last_deletions.items() if name in deleted}
            self._last_deletions = known | ({topic: deleted[topic]} if topic in deleted else {})
        for callback in self.on_topic_dropped:
            callback(topic)

    def drop_group(self, group: str, now_ms: int) -> None:
        """Drops the group's offsets, so that it starts anew; slaves learn of it with the offsets."""
        before_ms, _ = self._dropped.get(group, (0, 0))
        self._drop_groups({group: (max(now_ms, before_ms + 1), self.log_end())})

    def apply_dropped(self, groups: Mapping[str, tuple[int, int]]) -> None:
        """Applies group deletions reported by the master, on a slave and before the offsets sent along with
        them. Deletions already known are ignored.
        """
        news = {group: told for group, told in groups.items() if told > self._dropped.get(group, (0, 0))}
        if news:
            self._drop_groups(news)

    def dropped_end(self, group: str) -> int:
        """Returns the log's end at the deletion of the group's offsets; earlier records about the group are
        void. Returns 0 if no deletion is recorded.
        """
        return self._dropped[group][1] if group in self._dropped else 0

    def cut_dropped(self, log_end: int) -> None:
        """Lowers recorded log ends to `log_end`, from which the log continues with other records."""
        for group, (at_ms, end) in self._dropped.items():
            if end > log_end:
                self._dropped[group] = at_ms, log_end

    def _drop_groups(self, groups: Mapping[str, tuple[int, int]]) -> None:
        self._drop([key for key in self._keys() if _split(key)[2] in groups])
        self._forgotten -= groups.keys()
        for group, told in groups.items():
            self._dropped.pop(group, None)
            self._dropped[group] = told
        while len(self._dropped) > DROPPED_GROUPS_MAX:
            del self._dropped[next(iter(self._dropped))]
        self._after_change()
        for callback in self.on_group_dropped:
            for group in groups:
                callback(group)

    def forget_deleted(self) -> int:
        """Drops offsets that the file holds for topics from before their last deletion. Returns the number of
        keys. A file of another broker does not record deletions, so all of its offsets are kept.
        """
        assert self.deleted_topics is not None
        deleted, told = self.deleted_topics(), self._last_deletions
        self._last_deletions = dict(deleted)
        if told is None:
            return 0
        topics = {topic for topic, end in deleted.items() if end != told.get(topic)}
        keys = [key for key in self._committed if _split(key)[0] in topics]
        self._drop(keys)
        return len(keys)

    def forget_progress(self, groups: Iterable[str]) -> None:
        """Marks the progress of these groups, and of all groups known here, as lost along with a file."""
        self._forgotten = self._forgotten.union(groups, (group for _, group in self.pairs()))
        self._after_change()

    def is_forgotten(self, group: str) -> bool:
        """Returns True if the group may have had an offset where the table has none."""
        return group in self._forgotten

    def clamp(self, queue_end: Callable[[str, int], int], now_ms: int) -> int:
        """Lowers every committed offset beyond its queue's end to that end. Returns the number of changes."""
        count = 0
        for key, offsets in self._committed.items():
            topic, _, _ = _split(key)
            for queue_id, offset in offsets.items():
                end = queue_end(topic, queue_id)
                if offset > end:
                    offsets[queue_id] = end
                    count += 1
        if count:
            self.data_version = self.data_version.next(now_ms)
            self._after_change()
        return count

    def replace_from_master(
        self,
        offsets: Mapping[str, Mapping[int, int]],
        data_version: DataVersion | None,
        *,
        forgotten: Iterable[str] = (),
    ) -> None:
        """Replaces the offsets of the master's keys; keys the master lacks stay (spec replication 6.2). The
        set of `forgotten` groups becomes the master's.
        """
        for key, queues in offsets.items():
            self._committed[key] = dict(queues)
        self._forgotten = frozenset(forgotten)
        if data_version is not None:
            self.data_version = data_version
        self._after_change()

    def snapshot(self) -> ConsumerOffsetTable:
        forgotten = tuple(sorted(self._forgotten)) or UNSET
        return ConsumerOffsetTable(
            offsets=self._committed,
            data_version=self.data_version,
            forgotten=forgotten,
            dropped=self._dropped or UNSET,
        )

    def encode(self) -> bytes:
        """Returns the content of consumerOffset.json; `groupTopicMap` is only for people and is not read
        back.
        """
        topics: dict[str, list[str]] = {}
        last_deletions = self._last_deletions or {}
        deleted: dict[str, int] = {}
        for key in self._committed:
            topic, _, group = _split(key)
            topics.setdefault(group, []).append(topic)
            if topic in last_deletions:
                deleted[topic] = last_deletions[topic]
        table = self.snapshot()
        if self.deleted_topics is not None:
            table = structs.replace(table, deleted=deleted)
        return b'{"groupTopicMap":' + encode_body(topics) + b"," + encode_body(table)[1:]

    def load(self, data: bytes) -> None:
        """Loads the content of consumerOffset.json."""
        table = decode_body(data, ConsumerOffsetTable)
        self._committed = {key: dict(queues) for key, queues in table.offsets.items()}
        self.data_version = table.data_version
        self._last_deletions = None if table.deleted is UNSET else dict(table.deleted)
        self._forgotten = frozenset(table.forgotten or ())
        self._dropped = dict(table.dropped or {})

    def _keys(self) -> set[str]:
        return {*self._committed, *self._pulled, *self._resets}

    def _drop(self, keys: list[str]) -> None:
        for key in keys:
            for table in (self._committed, self._pulled, self._resets):
                table.pop(key, None)
        if keys:
            self._after_change()


def _split(key: str) -> tuple[str, str, str]:
    return key.partition("@")


class DelayOffsetTable(StoredTable):
    """The next queue offset by delay level (spec store 15 and 18: delayOffset.json); `on_change` is called
    after each change.
    """

    def __init__(self, *, version_step: int = 200) -> None:
        self.data_version = DataVersion()
        super().__init__()
        self._version_step = version_step
        self._updates = 0
        self._offsets: dict[int, int] = {}

    def update(self, level: int, offset: int, now_ms: int) -> None:
        """Sets the offset at which a level's delivery continues."""
        self._offsets[level] = offset
        self._updates += 1
        if self._updates % self._version_step == 0:
            self.data_version = self.data_version.next(now_ms)
        self._after_change()

    def get(self, level: int) -> int | None:
        """Returns the level's next offset, or None if nothing of the level was delivered yet."""
        return self._offsets.get(level)

    def clamp(self, queue_end: Callable[[int], int], now_ms: int) -> int:
        """Lowers every level beyond its queue's end to that end. Returns the number of changes."""
        ahead = {level: end for level, at in self._offsets.items() if at > (end := queue_end(level))}
        if ahead:
            self._offsets.update(ahead)
            self.data_version = self.data_version.next(now_ms)
            self._after_change()
        return len(ahead)

    def replace_all(self, offsets: Mapping[int, int], data_version: DataVersion) -> None:
        """Replaces the table by the master's, version included."""
        self._offsets = dict(offsets)
        self.data_version = data_version
        self._after_change()

    def snapshot(self) -> Body:
        return Body(offsets=self._offsets, data_version=self.data_version)

    def load(self, data: bytes) -> None:
        """Loads the content of delayOffset.json; old files have no version."""
        table = decode_body(data, DelayOffsets)
        self._offsets = dict(table.offsets)
        self.data_version = table.data_version
