"""Checks of a store that was just opened: nothing acknowledged is lost, nothing is invented, and the tables
match the log.

Strategy: the log is read through the store and decoded record by record; each record must equal, byte for
          byte, a send of the ledger. The tables implied by the log, ConsumeQueues and key index, are rebuilt
          and compared with the files. This code is written from the format (spec store 5, 8), independently
          of the store's own code, so that both must have the same bug to agree. Differences are reported as
          texts; no text means equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from sim.disk import SimDisk
from sim.ledger import Ledger, Send
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.record import (
    Record,
    RecordError,
    RecordOutcome,
    check_record,
    consume_tag,
    decode_record,
    decode_records,
)
from tandemmq.store import GetStatus, MessageStore

QUEUE_UNIT = Struct(">qiq")
_INDEX_HEADER = Struct(">qqqqii")
_INDEX_ENTRY = Struct(">iqii")
_SLOT = Struct(">i")
_UNQUEUED = 0x4
_ROLLBACK = 0xC

QueueKey = tuple[str, int]


def queued_records(records: Sequence[Record]) -> dict[QueueKey, list[Record]]:
    """Returns the records of each queue in log order; prepared and rolled back ones are in none."""
    queues: dict[QueueKey, list[Record]] = {}
    for record in records:
        if not record.sys_flag & _UNQUEUED:
            queues.setdefault((record.topic, record.queue_id), []).append(record)
    return queues


def queue_faults(key: QueueKey, records: Sequence[Record], files: Mapping[int, bytes]) -> list[str]:
    """Returns the faults in one queue's files, which are given as first byte -> content.

    Entries of records that the log dropped may precede the first record.
    """
    name = f"ConsumeQueue {key[0]}/{key[1]}"
    offsets = [record.queue_offset for record in records]
    if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
        return [f"{name}: queue offsets in the log are not dense: {offsets}"]
    if not files:
        return [f"{name}: no files for {len(records)} records"]
    base = min(files)
    content = b"".join(files[at] for at in sorted(files))
    faults = []
    for record in records:
        at = record.queue_offset * QUEUE_UNIT.size - base
        tag = consume_tag(record.topic, record.raw_properties, record.stored_at_ms)
        wanted = QUEUE_UNIT.pack(record.log_offset, record.size, tag)
        if at < 0 or content[at : at + QUEUE_UNIT.size] != wanted:
            found = content[max(0, at) : at + QUEUE_UNIT.size]
            said = str(QUEUE_UNIT.unpack(found)) if len(found) == QUEUE_UNIT.size else "nothing"
            faults.append(f"{name}: entry {record.queue_offset} says {said}, not {QUEUE_UNIT.unpack(wanted)}")
    end = (offsets[-1] + 1) * QUEUE_UNIT.size - base
    if any(content[end:]):
        faults.append(f"{name}: bytes behind the last entry {offsets[-1]}")
    return faults


def index_keys(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Returns (hash, log offset) of every key, in index order."""
    found = []
    for record in records:
        if record.sys_flag & _ROLLBACK == _ROLLBACK:
            continue
        for key in (record.unique_key, *record.keys.split(" ")):
            if key:
                found.append((_index_hash(f"{record.topic}#{key}"), record.log_offset))
    return found


def _index_hash(text: str) -> int:
    hashed = abs(java_hash(text))
    return 0 if hashed > 0x7FFFFFFF else hashed


def index_faults(
    records: Sequence[Record],
    files: Mapping[Path, bytes],
    *,
    slot_count: int,
    file_bytes: int,
    log_begin: int,
) -> list[str]:
    """Returns the faults in the key index files, given by name; entries below `log_begin` may be left
    over.
    """
    faults: list[str] = []
    found: list[tuple[int, int]] = []
    for path in sorted(files):
        if len(files[path]) == file_bytes:  # shorter: its creation was interrupted, and it is unused
            found += _file_entries(path, files[path], slot_count, faults)
    found = [entry for entry in found if entry[1] >= log_begin]
    wanted = index_keys(records)
    if found != wanted:
        missing = [entry for entry in wanted if entry not in found]
        surplus = [entry for entry in found if entry not in wanted]
        faults.append(
            f"key index: {len(found)} entries, not {len(wanted)}; "
            f"missing {missing[:3]}, surplus {surplus[:3]}"
        )
    return faults


def _file_entries(path: Path, content: bytes, slot_count: int, faults: list[str]) -> list[tuple[int, int]]:
    """Returns the (hash, log offset) pairs of one file, and checks its chains."""
    next_entry = max(1, _INDEX_HEADER.unpack_from(content)[5])
    first = _INDEX_HEADER.size + _SLOT.size * slot_count
    newest = [0] * slot_count
    entries = []
    for number in range(1, next_entry):
        hashed, log_offset, _, previous = _INDEX_ENTRY.unpack_from(
            content, first + number * _INDEX_ENTRY.size
        )
        place = hashed % slot_count
        if previous != newest[place]:
            faults.append(f"key index {path.name}: entry {number} names {previous}, not {newest[place]}")
        newest[place] = number
        entries.append((hashed, log_offset))
    slots = [_SLOT.unpack_from(content, _INDEX_HEADER.size + _SLOT.size * i)[0] for i in range(slot_count)]
    if slots != newest:
        faults.append(f"key index {path.name}: slots do not name the newest entries")
    return entries


GET_COUNT = 32


@dataclass(slots=True)
class Faults:
    """The faults found by a run, as texts; the kinds are those of the last line that a run prints."""

    lost: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    divergent: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # anything else: a wrong failure guarantee, an exception

    def __bool__(self) -> bool:
        return bool(self.lost or self.phantom or self.divergent or self.broken)

    def lines(self) -> list[str]:
        """Returns one line per fault."""
        kinds = (("lost", self.lost), ("phantom", self.phantom))
        more = (("divergent", self.divergent), ("broken", self.broken))
        return [f"{kind}: {text}" for kind, texts in (*kinds, *more) for text in texts]


@dataclass(slots=True)
class StoreCheck:
    """One check of a store that was opened on `disk`. `is_index_complete` False: index writes had failed."""

    store: MessageStore
    disk: SimDisk
    ledger: Ledger
    faults: Faults
    after_power_cut: bool
    is_index_complete: bool = True

    def run(self) -> list[Send]:
        """Runs all checks and returns the sends that the log holds, oldest first."""
        records = self._decode_log()
        kept = self._match(records)
        self._check_required(kept)
        self._check_tail()
        # Deliberately deleted files may be back; the tables need not cover them any more.
        records = [record for record in records if record.log_offset >= self.ledger.begin]
        self._check_queues(self._without_deleted(records, kept))
        self._check_index(records)
        return kept

    def _decode_log(self) -> list[Record]:
        store = self.store
        records: list[Record] = []
        position, end = store.min_log_offset, store.max_log_offset
        while position < end:
            view = store.log.valid_view(position, end - position)
            checked = check_record(view, 0, log_offset=position)
            if checked.outcome is RecordOutcome.BLANK:
                segment = store.options.commit_log_file_bytes
                position = position - position % segment + segment
                continue
            if checked.outcome is not RecordOutcome.OK:
                self.faults.broken.append(f"the log at {position} of {end} is {checked.outcome.value}")
                break
            records.append(decode_record(view, log_offset=position))
            position += checked.size
        return records

    def _match(self, records: list[Record]) -> list[Send]:
        kept = []
        for record in records:
            data = bytes(self.store.log.valid_view(record.log_offset, record.size))
            candidates = self.ledger.candidates(record.log_offset)
            send = next((send for send in candidates if send.data == data), None)
            if send is None:
                what = f"{record.topic}/{record.queue_id}, {record.size} bytes"
                near = ", ".join(map(str, self.ledger.by_offset.get(record.log_offset, [])))
                self.faults.phantom.append(
                    f"record at {record.log_offset} ({what}); sent there: {near or '-'}"
                )
            else:
                kept.append(send)
        return kept

    def _check_required(self, kept: list[Send]) -> None:
        present = {id(send) for send in kept}
        required = self.ledger.required(after_power_cut=self.after_power_cut)
        self.faults.lost += [str(send) for send in required if id(send) not in present]

    def _check_tail(self) -> None:
        """Checks that the files have their full length, and hold zeros from the log end on (spec store
        21.11).
        """
        store = self.store
        size, end = store.options.commit_log_file_bytes, store.max_log_offset
        for path, content in self._files(store.options.log_dir).items():
            base = int(path.name)
            if len(content) != size:
                self.faults.broken.append(f"log file {base} has {len(content)} bytes, not {size}")
            if any(content[max(0, end - base) :]):
                self.faults.broken.append(f"log file {base} is not zero behind the end {end}")

    def _files(self, directory: Path) -> dict[Path, bytes]:
        return {
            path: bytes(node.data) for path, node in self.disk.image.files.items() if path.parent == directory
        }

    def _without_deleted(self, records: list[Record], kept: list[Send]) -> list[Record]:
        """Returns the records that the queues must have. A deletion during which the machine was lost has
        happened, or not at all.
        """
        deleted = self.store.deletions.ends
        for send in kept:
            if send.is_deleted is None:
                send.is_deleted = send.log_offset < deleted.get(send.record.topic, 0)
        gone = {send.log_offset for send in kept if send.is_deleted}
        return [record for record in records if record.log_offset not in gone]

    def _check_queues(self, records: list[Record]) -> None:
        store = self.store
        queues = queued_records(records)
        directory = store.options.root / "consumequeue"
        for key, found in queues.items():
            files = self._files(directory / key[0] / str(key[1]))
            contents = {int(path.name): content for path, content in files.items()}
            self.faults.divergent += queue_faults(key, found, contents)
            first, end = found[0].queue_offset, found[-1].queue_offset + 1
            low, high = store.queue_min(*key), store.queue_max(*key)
            is_older_back = low < first and store.min_log_offset < self.ledger.begin
            if (low, high) != (first, end) and not (is_older_back and high == end):
                self.faults.divergent.append(f"{key}: offsets {low}..{high}, in the log {first}..{end}")
            elif not self._can_read(key, found):
                self.faults.divergent.append(f"{key}: reading does not give what the log holds")
        for key in store.queue_keys():
            is_whole = store.min_log_offset >= self.ledger.begin
            if is_whole and key not in queues and store.queue_min(*key) != store.queue_max(*key):
                self.faults.divergent.append(f"{key}: entries without records")

    def _can_read(self, key: tuple[str, int], wanted: list[Record]) -> bool:
        found: list[Record] = []
        offset = wanted[0].queue_offset
        while True:
            result = self.store.reader.get(*key, offset, count_max=GET_COUNT)
            if result.status is not GetStatus.FOUND:
                return found == wanted
            try:
                found += [record for view in result.slices for record in decode_records(view)]
            except RecordError:
                return False
            offset = result.next_offset

    def _check_index(self, records: list[Record]) -> None:
        options = self.store.options
        faults = index_faults(
            records,
            self._files(options.root / "index"),
            slot_count=options.key_index_slot_count,
            file_bytes=40 + 4 * options.key_index_slot_count + 20 * options.key_index_entry_count,
            log_begin=max(self.store.min_log_offset, self.ledger.begin),
        )
        if self.is_index_complete:
            self.faults.divergent += faults
