"""The directory of a lake: its staged files, and the commit that makes a batch visible in one step.

    OUT/batch=00000012/part-00000.parquet      committed: visible to readers
    OUT/batch=00000012/_summary.json            its number of rows, bytes and bad records
    OUT/batch=00000013/dt=2025-01-31/part-00001.parquet
    OUT/_tandemmq/staging/...                   files of batches that are not committed
    OUT/_tandemmq/owner.json                    the query that may write here

A batch is committed by one atomic rename of its whole directory. A plain reader therefore never sees half a
batch, and killing any process at any point leaves only staged files behind. A rename onto an existing
directory fails, so a batch that is replayed after a crash is dropped instead of doubled (Spark promises the
same rows for the same batch number, spec spark SP-52, SP-53). Names that begin with `_` are invisible to
Spark, pyarrow and pandas; `batch` is a partition column to all three.

The file system must have an atomic rename (a local disk, NFS); object stores have none. Must not
know Spark or Parquet.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from uuid import uuid4

from tandemmq.errors import ConfigError
from tandemmq.spark.documents import read_document, read_versioned, sync_directory, sync_file, write_document

CONTROL_DIR = "_tandemmq"
STAGING_DIR = "staging"
BAD_RECORDS_DIR = "_bad_records"
"""A separate lake for rows whose bodies could not be parsed as requested."""

OWNER_FILE = "owner.json"
SUMMARY_FILE = "_summary.json"
LAYOUT_VERSION = 1
AFTER = "after"
"""The key of a summary under which a batch names the batch that was committed before it."""
BAD = "bad"
"""The key of a summary with the number of bad records in BAD_RECORDS_DIR; absent if there are none."""

_BATCH_NAME = re.compile(r"batch=(\d{8,})")
_STAGED_NAME = re.compile(r"(\d{8,})-.*")


class CommitOutcome(Enum):
    """The result of a commit."""

    COMMITTED = "the batch became visible now"
    ALREADY_COMMITTED = "the batch was visible before; the new files were dropped"
    EMPTY = "the batch has no rows and no directory"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file that readers do not see: `staged` is its path in the lake, `target` its future path in
    the batch directory.
    """

    staged: str
    target: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The rows and bytes of files, batches or sends; `bad`: bad records."""

    rows: int = 0
    size_bytes: int = 0
    bad: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.rows + other.rows, self.size_bytes + other.size_bytes, self.bad + other.bad)


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file of a table: `name` below the table's home, and its size as the table's log has it; `rows` is
    None if the log has no count.
    """

    name: str
    rows: int | None
    size_bytes: int


Partitions = dict[str, dict[str, str | None]]
"""The values of columns that the files of a table lack, by the name of the file."""


def batch_dir(root: Path, batch_id: int) -> Path:
    """Returns the directory of a committed batch."""
    return root / f"batch={batch_id:08d}"


def staging_dir(root: Path) -> Path:
    """Returns the directory in which tasks write files that are not committed yet."""
    return root / CONTROL_DIR / STAGING_DIR


def new_staged_path(root: Path, batch_id: int, partition_id: int) -> Path:
    """Returns a path that no other attempt of the same task uses, and creates its directory."""
    directory = staging_dir(root)
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{batch_id:08d}-{partition_id:05d}-{uuid4().hex[:12]}.staged"


def commit_batch(
    root: Path, batch_id: int, query_id: str, files: Sequence[StagedFile], bad_rows: int = 0
) -> CommitOutcome:
    """Makes all `files` visible at once as batch `batch_id`, unless the batch is visible already.
    `bad_rows`: the number of its bad records.

    Raises:  ConfigError if the lake belongs to another query.
    """
    claim_lake(root, query_id)
    target = batch_dir(root, batch_id)
    if not files:
        return CommitOutcome.EMPTY
    if target.exists():
        discard_files(root, files)
        return CommitOutcome.ALREADY_COMMITTED
    prepared = staging_dir(root) / f"{batch_id:08d}-commit-{uuid4().hex[:12]}"
    for file in files:
        place = prepared / file.target
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(root / file.staged, place)
    # The chain of predecessors shows later if a whole directory is missing.
    last = max(list_batches(root), default=None)
    after = {} if last is None else {AFTER: last}
    write_document(prepared / SUMMARY_FILE, {**summarize(files, bad_rows), **after})
    for directory, _, _ in os.walk(prepared):
        sync_directory(Path(directory))
    outcome = _rename_into_place(prepared, target)
    sync_directory(root)
    _discard_staged_before(root, batch_id)
    return outcome


def discard_files(root: Path, files: Iterable[StagedFile]) -> None:
    """Removes staged files that were not committed; committed files have left the staging directory."""
    for file in files:
        (root / file.staged).unlink(missing_ok=True)


def claim_lake(root: Path, query_id: str, key: str = "") -> None:
    """Records the query that writes here; afterwards every other query is rejected, and every other `key`.

    A new checkpoint on an old directory would number its batches from 0 again and read the topic from its
    start: rows would be silently doubled or lost (spec spark 12.20). With another key, the lake would
    mix rows per message, or per old key, with rows per new key.
    """
    path = root / CONTROL_DIR / OWNER_FILE
    if read_owner(root) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f"{OWNER_FILE}.{uuid4().hex[:12]}")
        staged.write_text(json.dumps({"version": LAYOUT_VERSION, "query": query_id, "key": key}) + "\n")
        sync_file(staged)
        with suppress(FileExistsError):
            os.link(staged, path)
        staged.unlink()
        sync_directory(path.parent)
    # A lake of an earlier release did not record its key.
    owner, known = read_owner(root), read_key(root, key)
    if owner != query_id:
        raise ConfigError(
            f"{root} was written by query {owner}, this is query {query_id}: its checkpoint is new or "
            "belongs to another directory. Give the old checkpoint, or another output directory."
        )
    if known != key:
        before, now = (f"a row per value of {name}" if name else "a row per message" for name in (known, key))
        raise ConfigError(f"{root} has {before}, this run writes {now}: use another directory for that")


def read_owner(root: Path) -> str | None:
    """Returns the id of the query that writes this lake; None before the first commit.

    Raises:  ConfigError for a layout of another version.
    """
    document = read_versioned(root / CONTROL_DIR / OWNER_FILE, LAYOUT_VERSION)
    return None if document is None else str(document["query"])


def read_key(root: Path, unknown: str = "") -> str:
    """Returns the column that identifies the rows of the lake, empty if each message is a row; `unknown` if
    no key is recorded.
    """
    return str((read_document(root / CONTROL_DIR / OWNER_FILE) or {}).get("key", unknown))


def list_batches(root: Path) -> list[int]:
    """Returns the numbers of the committed batches, ascending."""
    if not root.is_dir():
        return []
    matches = (_BATCH_NAME.fullmatch(entry.name) for entry in os.scandir(root))
    return sorted(int(match[1]) for match in matches if match)


def summarize(files: Sequence[StagedFile], bad_rows: int) -> dict[str, int]:
    """Returns the document that records the size of a batch; `read_summary` reads it."""
    size = {"rows": sum(file.rows for file in files), "bytes": sum(file.size_bytes for file in files)}
    return {**size, BAD: bad_rows} if bad_rows else size


def read_summary(root: Path, batch_id: int) -> Totals:
    """Returns the size of a batch; zeros for one that had no rows and therefore has no directory."""
    document = read_document(batch_dir(root, batch_id) / SUMMARY_FILE) or {"rows": 0, "bytes": 0}
    return Totals(rows=int(document["rows"]), size_bytes=int(document["bytes"]))


def read_range(root: Path, batch: int) -> range:
    """Returns the batches that a directory contains: more than one after a compaction."""
    document = read_document(batch_dir(root, batch) / SUMMARY_FILE) or {}
    first, last = document.get("batches", (batch, batch))
    return range(first, last + 1)


def _rename_into_place(prepared: Path, target: Path) -> CommitOutcome:
    try:
        os.rename(prepared, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(prepared, ignore_errors=True)
        return CommitOutcome.ALREADY_COMMITTED
    return CommitOutcome.COMMITTED


def _discard_staged_before(root: Path, batch_id: int) -> None:
    # Batches are committed in order, so files staged for an earlier one belong to a killed attempt.
    for entry in list(os.scandir(staging_dir(root))):
        match = _STAGED_NAME.fullmatch(entry.name)
        if match is None or int(match[1]) >= batch_id:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


Crash = Callable[[str], None]
"""A function called with the name of each step; tests kill the process, or raise, in it."""


def no_crash(step: str) -> None: ...
