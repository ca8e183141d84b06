"""Compares ConsumeQueues with the records of the log.

`rows_of` derives the entries that a run of records should have, `QueueCheck` compares them, and `Leftovers`
judges the entries without a record.

Invariants: a record's entry must hold its log offset, size and tag hash. An entry that no record of its queue
            accounts for must be a filler, or belong to an expired record.
Strategy:   each run's entries are compared with the files' in arrays. Matched entries are remembered as
            intervals; the others are judged at the end, when the log's bounds and damage are known. Fillers
            and entries of expired records are correct. An entry that points into damage identifies the queue
            of the damaged record. All others point to nothing of this queue.
Source:     spec store 5, 5.2, 6, 12, 15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_check import RecordCheck
from tandemmq.protocol.record_layout import RecordOutcome
from tandemmq.protocol.record_scan import Ints
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from tandemmq.store.inspect.files import Entries, QueueFiles, is_expired, is_filler
from tandemmq.store.inspect.findings import Findings, StorePart, damage_at
from tandemmq.store.inspect.log_walk import LogWalk, Run
from tandemmq.store.options import QUEUE_UNIT_BYTES

INNER_BATCH = 0x80
"""The flag of records whose entries are in `batchconsumequeue`, which only RocketMQ has."""
EXT_ADDRESS_MAX = -(2**31) - 1
"""The largest tag that is an address into `consumequeue_ext`, which only RocketMQ writes (spec store 7)."""
LIGHT_QUEUE = "%LMQ%"
_WRONG_OFFSET, _WRONG_SIZE, _WRONG_TAG, _EMPTY = 1, 2, 4, 8
_FAULTS = {
    _WRONG_OFFSET: "points to another place of the log than its record's",
    _WRONG_SIZE: "has another size than its record",
    _WRONG_TAG: "has another tag hash than its record",
    _EMPTY: "is missing",
}
assert sum(_FAULTS) == _WRONG_OFFSET | _WRONG_SIZE | _WRONG_TAG | _EMPTY, "each fault has a bit and a text"

Key = tuple[str, int]

RecordAt = Callable[[int], RecordCheck]
"""Returns the check of the record at a log offset; END outside the log."""

EntryFault = tuple[int, int, str, bool]
"""First and end queue offset, the fault of these entries, and True if a crash explains it."""


@dataclass(eq=False)
class QueueCheck:
    """All queues of one store.

    `has_abort`: the store was not closed, so queues may lag behind the log or be ahead of it; the next start
    repairs that.
    """

    queues: Mapping[Key, QueueFiles]
    directory: Path
    findings: Findings
    _: KW_ONLY
    has_abort: bool
    known_topics: frozenset[str] | None

    def __post_init__(self) -> None:
        self._states = {key: _State(files) for key, files in self.queues.items()}
        self.entry_count = 0

    def ends(self) -> dict[Key, int]:
        """Returns the queue offset after the newest record of each queue."""
        return {key: max(state.next_offset, 0) for key, state in self._states.items()}

    # During the scan.

    def check(self, rows: QueueRows) -> None:
        """Compares the entries of these records."""
        state = self._states.get(rows.key)
        if state is None:
            state = self._states[rows.key] = _State(None)
        assert len(rows.queue_offset), rows.key
        self.entry_count += len(rows.queue_offset)
        offsets = rows.queue_offset
        starts = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
        for begin, end in zip([0, *starts], [*starts, len(offsets)], strict=True):
            self._check_dense(state, rows.part(begin, end))

    def _check_dense(self, state: _State, rows: QueueRows) -> None:
        """Compares records with consecutive queue offsets."""
        first = int(rows.queue_offset[0])
        if state.next_offset >= 0 and first != state.next_offset:
            if first == 0:
                self._restart(state, rows)
            else:
                place = int(rows.log_offset[0])
                state.jumps.append((state.next_offset, first, state.previous_at, place))
        state.next_offset = max(first, 0) + len(rows.queue_offset)
        state.previous_at = int(rows.log_offset[-1])
        if first >= 0:
            self._compare(state, first, rows)

    def _restart(self, state: _State, rows: QueueRows) -> None:
        """Restarts the queue of a deleted and recreated topic; its earlier entries are gone for good."""
        state.faults.clear()
        state.jumps.clear()
        state.covered.clear()
        state.behind = None
        state.behind_count = 0
        topic, queue_id = rows.key
        reason = "the queue restarts here, as after its topic was deleted and created again"
        facts = {"topic": topic, "queue_id": queue_id, "log_offset": int(rows.log_offset[0])}
        self.findings.note(StorePart.QUEUE, self._path(state, rows.key), reason, **facts)

    def _path(self, state: _State, key: Key) -> Path:
        return self.directory / key[0] / str(key[1]) if state.files is None else state.files.directory

    def _compare(self, state: _State, first: int, rows: QueueRows) -> None:
        assert first >= 0, (rows.key, first)
        files = state.files
        count = len(rows.queue_offset)
        present = 0 if files is None else max(0, min(count, files.end - first))
        if present < count:
            if state.behind is None:
                state.behind = (first + present, int(rows.log_offset[present]))
            state.behind_count += count - present
        if not present or files is None:
            return
        entries = files.read(first, present)
        state.cover(first, first + present)
        faults = _find_faults(entries, rows.part(0, present))
        bad = np.flatnonzero(faults)
        assert len(faults) == present <= count, (rows.key, len(faults), present, count)
        if len(bad):
            breaks = np.flatnonzero((np.diff(bad) > 1) | (np.diff(faults[bad]) != 0)) + 1
            for run in np.split(bad, breaks):
                state.add_fault(first + int(run[0]), first + int(run[-1]) + 1, int(faults[run[0]]))

    # After the scan.

    def finish(self, walk: LogWalk, record_at: RecordAt) -> None:
        """Reports the faults of every queue."""
        for key, state in self._states.items():
            self._report_jumps(key, state, walk)
            self._report_faults(key, state)
            self._report_behind(key, state)
            if state.files is not None and key[0].startswith(LIGHT_QUEUE):
                reason = "not checked: a light queue has entries for records of other topics"
                facts = {"topic": key[0], "queue_id": key[1]}
                self.findings.note(StorePart.QUEUE, state.files.directory, reason, **facts)
            elif state.files is not None:
                rest = Leftovers(state.files, walk, record_at, has_abort=self.has_abort)
                for begin, end, reason, is_expected in rest.find_faults(state.covered):
                    self._report(state, begin, end, reason, is_expected=is_expected)

    def _report_jumps(self, key: Key, state: _State, walk: LogWalk) -> None:
        lost_ranges = [(damage.log_offset, damage.log_end) for damage in walk.damages] + walk.sealed
        for expected, found, before, after in state.jumps:
            is_explained = found > expected and any(
                before < end and begin < after for begin, end in lost_ranges
            )
            if is_explained:
                continue
            reason = f"a record has queue offset {found} where {expected} follows"
            facts = {"topic": key[0], "queue_id": key[1], "queue_offset": found, "log_offset": after}
            self.findings.damage(StorePart.QUEUE, self._path(state, key), reason, **facts)

    def _report_faults(self, key: Key, state: _State) -> None:
        for begin, end, what in state.faults:
            reasons = [text for bit, text in _FAULTS.items() if what & bit]
            assert reasons, (key, begin, end, what)
            is_about_delays = key[0] == SCHEDULE_TOPIC and what == _WRONG_TAG
            if is_about_delays:
                reasons = ["is due at another time than by these delay levels"]
            self._report(state, begin, end, " and ".join(reasons), is_expected=is_about_delays)

    def _report_behind(self, key: Key, state: _State) -> None:
        if state.behind is None:
            return
        first, log_offset = state.behind
        assert min(first, log_offset) >= 0, (key, state.behind)
        count = state.behind_count
        assert count > 0, (key, state.behind)
        is_known = self.known_topics is None or key[0] in self.known_topics
        if state.files is None and not is_known:
            reason = f"no queue for {count} records: config/topics.json does not know the topic (deleted?)"
            is_expected = True
        else:
            what = "has no files" if state.files is None else "is behind the log"
            reason = f"the queue {what}: {count} records without entry"
            is_expected = self.has_abort
        path, at = (self._path(state, key), 0) if state.files is None else state.files.place(first)
        self.findings.report(
            StorePart.QUEUE,
            path,
            reason,
            is_expected=is_expected,
            offset=at,
            size_bytes=count * QUEUE_UNIT_BYTES,
            topic=key[0],
            queue_id=key[1],
            queue_offset=first,
            log_offset=log_offset,
        )

    def _report(self, state: _State, begin: int, end: int, what: str, *, is_expected: bool = False) -> None:
        assert state.files is not None
        path, at = state.files.place(begin)
        count = end - begin
        assert count > 0, (state.files.key, begin, end)
        subject = "the entry" if count == 1 else f"each of {count} entries"
        self.findings.report(
            StorePart.QUEUE,
            path,
            f"{subject} {what}",
            is_expected=is_expected,
            offset=at,
            size_bytes=count * QUEUE_UNIT_BYTES,
            topic=state.files.key[0],
            queue_id=state.files.key[1],
            queue_offset=begin,
        )


@dataclass(slots=True)
class _State:
    """The state of one queue so far."""

    files: QueueFiles | None
    next_offset: int = -1
    previous_at: int = -1  # the log offset of the queue's newest record
    covered: list[tuple[int, int]] = field(default_factory=list)
    faults: list[tuple[int, int, int]] = field(default_factory=list)  # (first, end, what)
    jumps: list[tuple[int, int, int, int]] = field(default_factory=list)  # queue and log offsets at a gap
    behind: tuple[int, int] | None = None  # queue offset and log offset of the first record without entry
    behind_count: int = 0

    def cover(self, begin: int, end: int) -> None:
        assert 0 <= begin < end, (begin, end)
        if self.covered and self.covered[-1][1] == begin:
            self.covered[-1] = (self.covered[-1][0], end)
        else:
            self.covered.append((begin, end))

    def add_fault(self, begin: int, end: int, what: int) -> None:
        assert begin < end, (begin, end)
        assert what, (begin, end)
        if self.faults and self.faults[-1][1:] == (begin, what):
            self.faults[-1] = (self.faults[-1][0], end, what)
        else:
            self.faults.append((begin, end, what))


def _find_faults(entries: Entries, rows: QueueRows) -> NDArray[np.int64]:
    """Returns the fault bits of each entry; 0 if it is right."""
    assert len(entries) == len(rows.queue_offset), (len(entries), len(rows.queue_offset))
    tag = entries["tag_hash"]
    faults = (entries["log_offset"] != rows.log_offset) * _WRONG_OFFSET
    faults |= (entries["size"] != rows.size) * _WRONG_SIZE
    faults |= ((tag != rows.tag_hash) & (tag > EXT_ADDRESS_MAX)) * _WRONG_TAG
    is_empty = (entries["log_offset"] == 0) & (entries["size"] == 0) & (tag == 0)
    faults = np.where(is_empty, _EMPTY, faults)
    # A repair writes fillers for unreadable records.
    result: NDArray[np.int64] = np.where(is_filler(entries) & ~rows.is_intact, 0, faults)
    return result


class QueueRows(NamedTuple):
    """The records of one queue in a run, in log order; one array item each."""

    key: tuple[str, int]
    queue_offset: Ints
    log_offset: Ints
    size: Ints
    tag_hash: Ints
    is_intact: NDArray[np.bool_]

    def part(self, begin: int, end: int) -> QueueRows:
        """Returns rows `[begin, end)`."""
        assert 0 <= begin <= end <= len(self.queue_offset), (self.key, begin, end)
        return QueueRows._make((self.key, *(column[begin:end] for column in self[1:])))


def rows_of(
    run: Run, delays_ms: Sequence[int] = DELAY_LEVELS_MS, *, deleted: Mapping[str, int]
) -> Iterator[QueueRows]:
    """Yields the records of a run by queue; records without an entry are left out.

    `delays_ms`: the broker's delay levels. `deleted`: the log end at the deletion of each deleted topic.
    """
    block, columns = run.block, run.block.columns
    for key, found in block.queues(0, len(block)):
        rows = found[columns.log_offset[found] >= deleted.get(key[0], 0)]
        rows = rows[columns.sys_flag[rows] & INNER_BATCH == 0]
        if not len(rows):
            continue
        is_schedule = key[0] == SCHEDULE_TOPIC
        queue_rows = QueueRows(
            key=key,
            queue_offset=columns.queue_offset[rows],
            log_offset=columns.log_offset[rows],
            size=columns.size[rows],
            tag_hash=block.due_times(rows, delays_ms) if is_schedule else block.tag_hash[rows],
            is_intact=run.is_intact[rows],
        )
        assert (np.diff(queue_rows.log_offset) > 0).all(), key  # a queue's records come in log order
        yield queue_rows


class Leftovers:
    """The entries of one queue outside the given intervals."""

    def __init__(self, files: QueueFiles, walk: LogWalk, record_at: RecordAt, *, has_abort: bool) -> None:
        self._files = files
        self._walk = walk
        self._record_at = record_at
        self._has_abort = has_abort

    def find_faults(self, covered: Sequence[tuple[int, int]]) -> Iterator[EntryFault]:
        """Yields the faults of entries outside `covered`, neighbours with the same fault together."""
        at = self._files.first
        for begin, end in [*sorted(covered), (self._files.end, self._files.end)]:
            assert 0 <= begin <= end <= self._files.end, (self._files.key, begin, end)
            for first, entries in self._files.blocks(at, begin):
                yield from self._block_faults(first, entries)
            at = max(at, end)

    def _block_faults(self, first: int, entries: Entries) -> Iterator[EntryFault]:
        assert self._files.first <= first < first + len(entries) <= self._files.end, (self._files.key, first)
        pending: EntryFault | None = None
        for row in np.flatnonzero(~is_filler(entries) & ~is_expired(entries, self._walk.begin)).tolist():
            queue_offset = first + row
            log_offset, size = int(entries["log_offset"][row]), int(entries["size"][row])
            reason, is_expected = self._entry_fault(queue_offset, log_offset, size)
            if not reason:
                continue
            if pending is not None and pending[1:] == (queue_offset, reason, is_expected):
                pending = (pending[0], queue_offset + 1, reason, is_expected)
                continue
            if pending is not None:
                yield pending
            pending = (queue_offset, queue_offset + 1, reason, is_expected)
        if pending is not None:
            yield pending

    def _entry_fault(self, queue_offset: int, log_offset: int, size: int) -> tuple[str, bool]:
        if size <= 0 or log_offset < 0:
            return "is empty or not an entry", False
        damage = damage_at(self._walk.damages, log_offset)
        if damage is not None:
            if damage.topic is None:
                damage.topic, damage.queue_id = self._files.key
                damage.queue_offset = queue_offset
            return "", False
        if log_offset + size > self._walk.intact_end:
            return "is ahead of the log: it points behind the log's end", self._has_abort
        found = self._record_at(log_offset)
        if found.outcome is RecordOutcome.OK:
            owner = f"{found.topic}/{found.queue_id} at queue offset {found.queue_offset}"
            return f"points to a record of {owner}", False
        return "points to no record", False
