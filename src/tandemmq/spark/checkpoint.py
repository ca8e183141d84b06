"""Finds and flushes the files of a query's checkpoint: `offsets/N` has the end of batch N."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tandemmq.spark.documents import sync_directory, sync_file


def find_last_batch(directory: Path) -> int:
    """Returns the highest batch number that a directory of a checkpoint has a file of; -1 without one."""
    found = directory.iterdir() if directory.is_dir() else ()
    return max((int(path.name) for path in found if path.name.isdecimal()), default=-1)


def sync_checkpoint(location: str) -> None:
    """Flushes the end of the newest batch to disk, because Spark does not. Skips what is not on this machine.

    If a power cut took it after the rows of the batch were stored, the number of the batch would be given to
    other messages, which the sink would take for stored.
    """
    root = Path(location.removeprefix("file://").removeprefix("file:"))
    offsets = root / "offsets"
    last = find_last_batch(offsets) if location else -1
    if last < 0:
        return
    sync_file(offsets / str(last))
    with suppress(FileNotFoundError):
        sync_file(offsets / f".{last}.crc")
    for directory in (offsets, root):
        sync_directory(directory)
