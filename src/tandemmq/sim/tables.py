"""The tables that a log implies, built anew and compared with the files: ConsumeQueues and key index.

Strategy:   written from the format (spec store 5, 8) without the store's own code, so that both must err
            alike to agree. What differs is told in words; nothing told means equal.
Knows not:  the store's objects: records and bytes of files come in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct

from tandemmq.protocol.java_hash import java_hash
from tandemmq.protocol.record import Record, consume_tag

QUEUE_UNIT = Struct(">qiq")
_INDEX_HEADER = Struct(">qqqqii")
_INDEX_ENTRY = Struct(">iqii")
_SLOT = Struct(">i")
_UNQUEUED = 0x4
_ROLLBACK = 0xC

QueueKey = tuple[str, int]


def queued_records(records: Sequence[Record]) -> dict[QueueKey, list[Record]]:
    """The records of each queue in the order of the log; prepared and rolled back ones are in none."""
    queues: dict[QueueKey, list[Record]] = {}
    for record in records:
        if not record.sys_flag & _UNQUEUED:
            queues.setdefault((record.topic, record.queue_id), []).append(record)
    return queues


def queue_faults(key: QueueKey, records: Sequence[Record], files: Mapping[int, bytes]) -> list[str]:
    """What is wrong with one queue's files, given as first byte -> content.

    Entries of records that the log dropped may stand before the first record.
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
    """(hash, log offset) of every key, in the order in which the index has them."""
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
    """What is wrong with the key index files, given by name; entries below `log_begin` may be left over."""
    faults: list[str] = []
    found: list[tuple[int, int]] = []
    for path in sorted(files):
        if len(files[path]) == file_bytes:  # shorter: its creation was cut short, nobody uses it
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
    """The (hash, log offset) pairs of one file; its chains are checked on the way."""
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
