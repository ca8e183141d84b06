"""A consistent view of a lake of any kind: its files, and its last batch.

Audit, replay and history read through it, so all of them see the same rows: those of the lake and those of
`_bad_records`, whose bodies could not be parsed but which are messages like all others. A batch is complete
as soon as the lake has it, because its bad records are committed first. Bad records of later batches
therefore do not count yet. Must not know Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import (
    BAD_RECORDS_DIR,
    batch_dir,
    list_batches,
    read_key,
    read_owner,
    read_range,
)
from tandemmq.spark.lake.formats import find_table
from tandemmq.spark.lake.home import Lake, LakeFormat, find_lake, refuse_address
from tandemmq.spark.lake.summaries import list_committed

_BATCH_FILE = re.compile(r"(\d{8,})-\d{5}-[0-9a-f]{12}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePiece:
    """Files of a lake that belong together: a batch, or a file of a table that was merged from several.

    `name` identifies the piece to a replay that records its progress. `places`: the files (paths or
    addresses) or the directory of the batch for Spark to read; `bad_places`: the same of `_bad_records`.
    `last`: for a batch that maintenance has merged from several, the number of the last one, else its own.
    """

    name: str
    places: tuple[Path | str, ...] = ()
    bad_places: tuple[Path, ...] = ()
    last: int = -1

    @property
    def is_batch(self) -> bool:
        return self.name.isdecimal()


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeView:
    """The state of a lake. `pieces`: in the order in which they were landed; `last_batch`: the last batch up
    to which all are complete, if any.

    `partitions`: values of columns that the files lack, by the name of the file (Delta).
    """

    lake: Lake
    pieces: tuple[LakePiece, ...] = ()
    last_batch: int | None = None
    partitions: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)


def view_lake(root: Path) -> LakeView:
    """Returns the current state of the lake; a directory without batches is an empty Parquet lake.

    Raises:  ConfigError for a lake that cannot be read as files, or that does not have every message.
    """
    refuse_address(root)
    if key := read_key(root):
        raise ConfigError(f"{root} has a row per value of {key}: audit, replay and history need all messages")
    root = root.absolute()
    lake = find_lake(root) or Lake(root, LakeFormat.PARQUET)
    # Read first: a batch committed meanwhile is included below, or is later than `last_batch`.
    known = list_committed(root)
    if lake.kind is LakeFormat.PARQUET:
        batches = list_batches(root)
        last = max([*known, *batches], default=None)
        ranges = {batch: read_range(root, batch) for batch in batches}
        good = {batch: (batch_dir(root, batch),) for batch in batches if _has_files(batch_dir(root, batch))}
        return LakeView(lake=lake, pieces=_add_bad_records(root, good, ranges, last), last_batch=last)
    in_log, partitions, names = find_table(lake.kind).read_table_state(lake, read_owner(root) or "")
    last = max([*known, *([] if in_log is None else [in_log])], default=None)
    files, merged = _sort_files(lake.data, names)
    pieces = (*merged, *_add_bad_records(root, files, {}, last))
    return LakeView(lake=lake, pieces=pieces, last_batch=last, partitions=partitions)


def _has_files(directory: Path) -> bool:
    """Returns False for a batch whose rows have all expired."""
    return next(directory.rglob("*.parquet"), None) is not None


def _sort_files(
    data: DataFiles, names: Iterable[str]
) -> tuple[dict[int, tuple[str, ...]], tuple[LakePiece, ...]]:
    """Returns the files of each batch, and one piece for each file that maintenance has merged from
    several.
    """
    batches: dict[int, tuple[str, ...]] = {}
    merged = []
    for name in sorted(names):
        match = _BATCH_FILE.fullmatch(name.rpartition("/")[2])
        if match is None:
            merged.append(name)
        else:
            number = int(match[1])
            batches[number] = (*batches.get(number, ()), data.locate(name))
    merged.sort(key=lambda name: (data.modified_ns(name), name))
    return batches, tuple(
        LakePiece(name=name.rpartition("/")[2], places=(data.locate(name),)) for name in merged
    )


def _add_bad_records(
    root: Path, good: Mapping[int, Sequence[Path | str]], ranges: Mapping[int, range], last: int | None
) -> tuple[LakePiece, ...]:
    """Returns the pieces of the batches, with their bad records."""
    bad: dict[int, list[Path]] = {}
    bad_root = root / BAD_RECORDS_DIR
    for batch in list_batches(bad_root):
        if last is not None and batch <= last and _has_files(batch_dir(bad_root, batch)):
            home = next((other for other, covered in ranges.items() if batch in covered), batch)
            bad.setdefault(home, []).append(batch_dir(bad_root, batch))
    return tuple(
        LakePiece(
            name=str(batch),
            places=tuple(good.get(batch, ())),
            bad_places=tuple(bad.get(batch, ())),
            last=ranges.get(batch, range(batch, batch + 1))[-1],
        )
        for batch in sorted({*good, *bad})
    )
