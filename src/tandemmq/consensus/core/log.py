"""RaftLog: the entries after a snapshot, in memory. Pure.

Invariants: indexes are consecutive from the snapshot's index on; terms never decrease; the members in force
            are those of the newest MEMBERS entry, confirmed or not, or else those of the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from tandemmq.consensus.core.messages import EntryKind, LogEntry, Members, Snapshot, decode_members


class RaftLog:
    """The log of one server. It grows until `compact` is called."""

    __slots__ = ("_entries", "_members", "snapshot")

    def __init__(self, snapshot: Snapshot, entries: Sequence[LogEntry] = ()) -> None:
        self.snapshot = snapshot
        self._entries: list[LogEntry] = []
        self._members: list[tuple[int, Members]] = []
        self._begin(snapshot, entries)

    def _begin(self, snapshot: Snapshot, entries: Sequence[LogEntry]) -> None:
        self.snapshot = snapshot
        self._entries = []
        self._members = [(snapshot.index, snapshot.members)]
        self.append(entries)

    @property
    def first_index(self) -> int:
        """The index of the first entry in the log; of the next entry if the log is empty."""
        return self.snapshot.index + 1

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot.term

    @property
    def members(self) -> Members:
        """The members in force."""
        return self._members[-1][1]

    @property
    def members_index(self) -> int:
        """The index at which the members in force were written."""
        return self._members[-1][0]

    def members_at(self, index: int) -> Members:
        """Returns the members that were in force at an entry or at the snapshot."""
        return next(members for at, members in reversed(self._members) if at <= index)

    def term_at(self, index: int) -> int | None:
        """Returns the term of an entry; None before the snapshot and after the end."""
        if index == self.snapshot.index:
            return self.snapshot.term
        at = index - self.first_index
        return self._entries[at].term if 0 <= at < len(self._entries) else None

    def entry_at(self, index: int) -> LogEntry | None:
        """Returns an entry; None up to the snapshot and after the end."""
        at = index - self.first_index
        return self._entries[at] if 0 <= at < len(self._entries) else None

    def checksum_at(self, index: int) -> int:
        """Returns the checksum of an entry's content; -1 if the entry is unknown."""
        entry = self.entry_at(index)
        return -1 if entry is None else crc32(entry.data, entry.kind)

    def entries_from(self, index: int, *, count_max: int, bytes_max: int) -> tuple[LogEntry, ...]:
        """Returns the entries from `index` on within both bounds, but at least one."""
        at = index - self.first_index
        assert at >= 0, (index, self.first_index)
        chosen = self._entries[at : at + count_max]
        total = 0
        for count, entry in enumerate(chosen):
            total += len(entry.data)
            if total > bytes_max and count:
                return tuple(chosen[:count])
        return tuple(chosen)

    def between(self, first: int, last: int) -> tuple[LogEntry, ...]:
        """Returns the entries `first` to `last`, both included."""
        return tuple(self._entries[first - self.first_index : last + 1 - self.first_index])

    def append(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            assert entry.index == self.last_index + 1, (entry.index, self.last_index)
            assert entry.term >= self.last_term, (entry.term, self.last_term)
            self._entries.append(entry)
            if entry.kind is EntryKind.MEMBERS:
                self._members.append((entry.index, decode_members(entry.data)))

    def cut(self, index: int) -> None:
        """Removes the entries from `index` on."""
        assert index >= self.first_index, (index, self.first_index)
        del self._entries[index - self.first_index :]
        while self._members[-1][0] >= index and len(self._members) > 1:
            self._members.pop()

    def last_index_below(self, index: int, term: int) -> int:
        """Returns the last index up to `index` whose term is at most `term`, but at least the snapshot's
        index. A log whose entry at `index` has this term can agree with this log up to there at most.
        """
        index = min(index, self.last_index)
        while index > self.snapshot.index and self._entries[index - self.first_index].term > term:
            index -= 1
        return index

    def compact(self, index: int, data: bytes) -> None:
        """Replaces everything up to `index` by a snapshot of the machine after `index`."""
        term = self.term_at(index)
        assert term is not None
        assert index > self.snapshot.index
        rest = self.between(index + 1, self.last_index)
        self._begin(Snapshot(index=index, term=term, members=self.members_at(index), data=data), rest)

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces the log's beginning by another server's snapshot. Entries after it remain only if they
        continue it.
        """
        rest: tuple[LogEntry, ...] = ()
        if self.term_at(snapshot.index) == snapshot.term:
            rest = self.between(snapshot.index + 1, self.last_index)
        self._begin(snapshot, rest)
