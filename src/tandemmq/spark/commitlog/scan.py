"""Walks one piece of a CommitLog file: runs of whole records, and what is damaged.

A record says at which offset of the log it lies, so any byte range can be read alone: the first record of a
piece is the first one that says that it lies where it lies. Each record and each damage belongs to the piece
in which it begins. Foreign bytes never raise.

Source: spec store 3, 3.2, 3.3. Must not know Spark or Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_check import check_record
from tandemmq.protocol.record_layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RecordOutcome
from tandemmq.protocol.record_scan import RecordColumns, read_columns, scan_boundaries, verify_bodies
from tandemmq.spark.commitlog.pieces import Piece
from tandemmq.store.column_rows import take_rows
from tandemmq.store.damage import data_end, find_bytes
from tandemmq.store.inspect.damage import Damage, describe_damage
from tandemmq.store.inspect.files import map_file

_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))


@dataclass(frozen=True, slots=True)
class Run:
    """Whole records of `view`; where `is_intact` is False the body does not match its checksum."""

    view: memoryview
    columns: RecordColumns
    is_intact: NDArray[np.bool_]


def scan_piece(piece: Piece, *, run_records: int, check_crc: bool) -> Iterator[Run | Damage]:
    """What begins in the piece, in the order of the log."""
    if piece.lost is not None:
        reason = f"bytes {piece.lost[0]} to {piece.lost[1]} of the log are in no file"
        yield Damage(file=piece.file, begin=0, end=0, reason=reason, lost=piece.lost)
        return
    if piece.file.size == 0:
        return
    view = memoryview(map_file(piece.file.path))
    position = 0 if piece.begin == 0 else find_sound(view, piece.file.base, piece.begin)
    while position < piece.end:
        bounds = scan_boundaries(view, position, count_max=run_records)
        columns = read_columns(view, bounds, log_offset=piece.file.base)
        whole = take_rows(columns, slice(columns.valid_count))
        if len(whole):
            # Behind the piece's end begins what the next task reads.
            whole = take_rows(whole, slice(int(np.searchsorted(whole.position, piece.end))))
            is_intact = verify_bodies(view, whole) if check_crc else whole.is_valid
            yield Run(view, whole, is_intact)
            position = int(whole.position[-1] + whole.size[-1])
        if position >= piece.end or (len(whole) == len(columns) and bounds.outcome is RecordOutcome.OK):
            continue
        if _is_finished(piece, view, position):
            return
        end = find_sound(view, piece.file.base, position + 1)
        shown_end = data_end(view, position) if end == len(view) and piece.is_last else end
        yield describe_damage(piece.file, view, position, shown_end, is_stale=False)
        position = end


def find_sound(view: memoryview, base: int, begin: int) -> int:
    """The first record or BLANK at or behind `begin` that says that it lies there, else the file's end."""
    found = {raw: find_bytes(view, raw, begin + 4) for raw in _MAGICS}
    while any(at >= 0 for at in found.values()):
        at, raw = min((at, raw) for raw, at in found.items() if at >= 0)
        position = at - 4
        record = check_record(view, position, log_offset=base + position, check_crc=False)
        if record.outcome is RecordOutcome.OK:
            return position
        if record.outcome is RecordOutcome.BLANK and record.size == len(view) - position:
            return position
        found[raw] = find_bytes(view, raw, at + 1)
    return len(view)


def _is_finished(piece: Piece, view: memoryview, position: int) -> bool:
    """True when the file ends here as it should: with a BLANK, or with zeros where no file follows."""
    if position >= len(view):
        return True
    found = check_record(view, position, log_offset=piece.file.base + position, check_crc=False)
    if found.outcome is RecordOutcome.BLANK and found.size == len(view) - position:
        return True
    return piece.is_last and data_end(view, position) == position
