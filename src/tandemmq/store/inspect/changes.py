"""What differs between the derived files that a store has and those built anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tandemmq.store.inspect.index_check import list_index_files
from tandemmq.store.inspect.queue_files import ENTRIES_PER_READ, QueueFiles, is_filler
from tandemmq.units import MIB

Key = tuple[str, int]


def compare_queues(old: Mapping[Key, QueueFiles], new: Mapping[Key, QueueFiles], log_begin: int) -> list[str]:
    """One line per queue that differs; empty when the old queues may stay."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        name = f"{key[0]}/{key[1]}"
        if key not in new:
            if old[key].end > old[key].first:
                lines.append(f"{name}: dropped, none of its {old[key].end - old[key].first} entries is true")
        elif key not in old:
            lines.append(f"{name}: made, {new[key].end} entries")
        else:
            change = _compare_queue(old[key], new[key], log_begin)
            if change:
                lines.append(f"{name}: {change}")
    return lines


def _compare_queue(old: QueueFiles, new: QueueFiles, log_begin: int) -> str:
    changed = 0
    common = min(old.end, new.end)
    for first in range(new.first, common, ENTRIES_PER_READ):
        count = min(ENTRIES_PER_READ, common - first)
        before, after = old.read(first, count), new.read(first, count)
        # Where the new queue has fillers the old one may still say where expired records were.
        is_expired = is_filler(after) & (before["log_offset"].astype(np.int64) + before["size"] <= log_begin)
        changed += int(((before != after) & ~(is_expired & (before["size"] > 0))).sum())
    parts = []
    if changed:
        parts.append(f"{changed} entries corrected")
    if new.end > old.end:
        parts.append(f"{new.end - old.end} entries added")
    if new.end < old.end:
        parts.append(f"{old.end - new.end} entries dropped")
    if not parts and {f.size for f in old.all.files} != {f.size for f in new.all.files}:
        parts.append("files of other lengths")
    return ", ".join(parts)


def compare_indexes(old: Path, new: Path) -> str:
    """What is different about the key index; empty when the files are equal."""
    olds, news = list_index_files(old), list_index_files(new)
    if len(olds) == len(news) and all(map(_is_equal, olds, news)):
        return ""
    return f"key index: {len(news)} files made, there were {len(olds)}"


def _is_equal(one: Path, other: Path) -> bool:
    if one.name != other.name or one.stat().st_size != other.stat().st_size:
        return False
    with open(one, "rb") as first, open(other, "rb") as second:
        while block := first.read(MIB):
            if block != second.read(MIB):
                return False
    return True
