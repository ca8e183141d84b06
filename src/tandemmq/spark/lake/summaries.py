"""The sizes of a lake's batches, for a lake of any kind.

A batch of a Parquet lake has a summary in its directory (`files`). A batch of a table, and a batch without
rows but with bad records, has one in the directory of control: `_tandemmq/batches/00000012.json`. Must not
know Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tandemmq.spark.documents import read_document, write_document
from tandemmq.spark.lake.files import (
    BAD,
    BAD_RECORDS_DIR,
    CONTROL_DIR,
    SUMMARY_FILE,
    StagedFile,
    Totals,
    batch_dir,
    list_batches,
    read_summary,
    summarize,
)

SUMMARIES_DIR = "batches"


def list_committed(root: Path) -> list[int]:
    """Returns the numbers of the committed batches that had rows, ascending; for a table, those that its
    writer recorded.
    """
    found = set(list_batches(root))
    directory = root / CONTROL_DIR / SUMMARIES_DIR
    if directory.is_dir():
        found.update(int(entry.stem) for entry in directory.glob("*.json"))
    return sorted(found)


def is_begun(root: Path) -> bool:
    """Returns True if anything has been landed, good rows or bad records."""
    return bool(list_committed(root) or list_batches(root / BAD_RECORDS_DIR))


def read_committed(root: Path, batch_id: int) -> Totals:
    """Returns the size of a batch in any kind of lake."""
    document = read_document(_summary_path(root, batch_id))
    if document is None:
        return read_summary(root, batch_id)
    return Totals(rows=int(document["rows"]), size_bytes=int(document["bytes"]))


def _summary_path(root: Path, batch_id: int) -> Path:
    return root / CONTROL_DIR / SUMMARIES_DIR / f"{batch_id:08d}.json"


def record_summary(root: Path, batch_id: int, files: Sequence[StagedFile], bad_rows: int = 0) -> None:
    """Records the size of a committed batch; a replay has the same rows and records it again."""
    write_document(_summary_path(root, batch_id), summarize(files, bad_rows))


def read_bad_rows(root: Path, batch_id: int) -> int:
    """Returns the number of bad records of a committed batch; 0 if an earlier release committed it."""
    paths = (_summary_path(root, batch_id), batch_dir(root, batch_id) / SUMMARY_FILE)
    return max(int((read_document(path) or {}).get(BAD, 0)) for path in paths)


Measure = Callable[[Path, int], Totals]
"""A function that returns the messages and bytes of a batch of a lake."""


class LakeMeter:
    """Measures the rows and bytes of a lake, and its bad records; each batch is read once."""

    def __init__(self, root: Path, measure: Measure = read_committed) -> None:
        self._root = root
        self._measure = measure
        self._seen: set[int] = set()
        self._seen_bad: set[int] = set()
        self._total = Totals()

    def measure_batch(self, batch_id: int) -> Totals:
        return self._measure(self._root, batch_id) + self._count_bad(batch_id)

    def _count_bad(self, batch_id: int) -> Totals:
        return Totals(bad=read_summary(self._root / BAD_RECORDS_DIR, batch_id).rows)

    def measure_all(self) -> Totals:
        committed = list_committed(self._root)
        batches = set(committed) - self._seen
        # In a compacted lake the batch numbers of bad records differ from those of the lake.
        last = max(committed, default=-1)
        found = list_batches(self._root / BAD_RECORDS_DIR)
        bad = {batch_id for batch_id in found if batch_id <= last} - self._seen_bad
        self._seen |= batches
        self._seen_bad |= bad
        for part in (*(self._measure(self._root, batch) for batch in batches), *map(self._count_bad, bad)):
            self._total += part
        return self._total
