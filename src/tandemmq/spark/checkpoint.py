"""Reads and flushes the checkpoint of a query.

Spark's layout: `metadata` has the id of the query, `offsets/N` the end of batch N, `commits/N` says that
batch N is done.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandemmq.errors import ConfigError
from tandemmq.spark.documents import read_document, sync_directory, sync_file


def read_query_id(checkpoint: Path) -> str | None:
    """Returns the id of the query that a checkpoint belongs to; None if there is no checkpoint."""
    document = read_document(checkpoint / "metadata")
    return None if document is None else str(document["id"])


def find_last_batch(directory: Path) -> int:
    """Returns the highest batch number that a directory of a checkpoint has a file of; -1 without one."""
    found = directory.iterdir() if directory.is_dir() else ()
    return max((int(path.name) for path in found if path.name.isdecimal()), default=-1)


def read_end(checkpoint: Path, batch: int) -> dict[str, Any]:
    """Returns the end of a batch: the last line of its file, after the version and Spark's settings.

    Raises:  FileNotFoundError; ConfigError for a file that was cut or has something else.
    """
    path = checkpoint / "offsets" / str(batch)
    try:
        document: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{path} does not end with the offsets of a batch: {error}") from error
    return document


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
    for path in (offsets / str(last), offsets / f".{last}.crc", root / "metadata"):
        with suppress(FileNotFoundError):
            sync_file(path)
    for directory in (offsets, root):
        sync_directory(directory)
