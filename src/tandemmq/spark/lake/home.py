"""A lake: its kind, the location of its table's files and log, and its writer.

A lake is always a directory that the driver can write to: it contains the owner, the lock, the checkpoint and
the bad records. The files of a table may be elsewhere, because a table becomes visible by its log alone: at
`s3://`, `gs://`, `abfss://` or `hdfs://` addresses, or in another directory (`file://`). An Iceberg table may
belong to a catalog with other readers. The file `_tandemmq/table.json` records the location without
credentials; these come from the environment of driver and executors, or from the settings of `pyiceberg`.

A Parquet lake becomes visible by renaming a directory, which object stores cannot do.

The writer is one process at a time (`hold_directory`), and always the same query, with the checkpoint and the
table with which the lake was begun (`check_writer`). Must not know Spark.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from tandemmq.errors import ConfigError, install_hint
from tandemmq.spark.checkpoint import find_last_batch, read_query_id
from tandemmq.spark.documents import read_document, write_document
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, CONTROL_DIR, list_batches, read_owner
from tandemmq.spark.lake.summaries import list_committed

HOME_FILE = "table.json"
LOCK_FILE = "lock"
CATALOG_FILE = "catalog.db"
"""The catalog of an Iceberg table in the lake's directory."""

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FORBIDDEN = re.compile(r"[?#%\s]|//")


def refuse_address(root: Path | str) -> None:
    """Raises ConfigError if an address is given instead of a lake's directory."""
    if _ADDRESS.match(str(root)):
        raise ConfigError(
            f"{root} is an address, a lake is a directory: it holds the checkpoint and the lock, and object"
            " stores can do neither. Give a local or shared directory, and the address of the table's files"
            " with --data (of the sink: the option data); delta and iceberg lakes take one, parquet lakes"
            " do not"
        )


def check_address(address: str) -> str:
    """Returns the address without a slash at its end.

    Raises:  ConfigError for an address that the libraries interpret differently.
    """
    scheme, found, place = address.partition("://")
    if not found or not scheme or not place.strip("/") or _FORBIDDEN.search(place.rstrip("/")):
        raise ConfigError(
            f"data: expected an address as s3://bucket/orders or file:///data/orders, got {address!r};"
            " credentials and endpoints come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...)"
        )
    if scheme == "file" and not place.startswith("/"):
        raise ConfigError(
            f"data: a file address needs the whole path, as file:///data/orders, got {address!r}"
        )
    return address.rstrip("/")


class LakeFormat(StrEnum):
    """The kind of a lake."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


_PACKAGES = {LakeFormat.DELTA: "deltalake", LakeFormat.ICEBERG: "pyiceberg"}


def parse_format(text: str) -> LakeFormat:
    """Returns the kind; raises ConfigError for an unknown one, or one whose package is not installed."""
    try:
        kind = LakeFormat(text.lower())
    except ValueError:
        raise ConfigError(f"format: expected one of {', '.join(LakeFormat)}, got {text!r}") from None
    package = _PACKAGES.get(kind)
    if package and find_spec(package) is None:
        raise ConfigError(f"format {kind} needs {package}: {install_hint('spark', kind)}")
    return kind


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake: its directory, its kind, and the location of its table. `address`: of the table's files, empty
    for the directory; `catalog`: the name of an Iceberg catalog in the settings of `pyiceberg`, empty for the
    lake's own; `table`: the table's name there.
    """

    root: Path
    kind: LakeFormat
    address: str = ""
    catalog: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        if self.address:
            object.__setattr__(self, "address", check_address(self.address))
        if self.kind is LakeFormat.PARQUET and self.address:
            raise ConfigError(
                "data: a parquet lake becomes visible by renaming a directory, which object stores cannot do;"
                " delta and iceberg lakes may have their files at an address"
            )
        if bool(self.catalog) != bool(self.table) or (self.catalog and self.kind is not LakeFormat.ICEBERG):
            raise ConfigError("catalog and table are given together, and for iceberg lakes only")
        if self.table and "." not in self.table:
            raise ConfigError(f"table: expected NAMESPACE.NAME, got {self.table!r}")

    @property
    def is_elsewhere(self) -> bool:
        """True if the table is not in the lake's directory."""
        return bool(self.address or self.catalog)

    @property
    def data(self) -> DataFiles:
        """The files of the table."""
        return DataFiles(self.address or str(self.root.absolute()))

    @property
    def bad_records(self) -> Lake:
        """The lake of the bad records: Parquet files in the directory of every kind of lake."""
        return Lake(self.root / BAD_RECORDS_DIR, LakeFormat.PARQUET)

    def describe_place(self) -> str:
        """Returns the location of the table, for error texts."""
        if not self.is_elsewhere:
            return "in that directory"
        named = f" ({self.table} of the catalog {self.catalog})" if self.catalog else ""
        return f"at {self.address}{named}"

    def save(self) -> None:
        """Stores the table's location before anything of it is committed; nothing is stored for the lake's
        directory.
        """
        path = self.root / CONTROL_DIR / HOME_FILE
        if self.is_elsewhere and not path.exists():
            names = ("kind", "address", "catalog", "table")
            write_document(path, {name: getattr(self, name) for name in names})


def make_lake(root: Path, kind: str, data: str, catalog: str, table: str) -> Lake:
    """Returns the lake in `root` with its table at `data`, or where the catalog says.

    Raises:  ConfigError for an impossible combination, and as `parse_format`.
    """
    lake = Lake(root, parse_format(kind), data, catalog, table)
    if not catalog:
        return lake
    from tandemmq.spark.lake.catalogs import find_location

    location = find_location(catalog, table)
    if location is None and not lake.address:
        raise ConfigError(f"catalog {catalog} has no table {table}; set the address of its files with --data")
    address = lake.address if location is None else location.rstrip("/")
    if lake.address and address != lake.address:
        raise ConfigError(f"{table} of the catalog {catalog} is at {address}, not at {lake.address}")
    return replace(lake, address=address)


def find_lake(root: Path) -> Lake | None:
    """Returns the lake in a directory; None if nothing is written yet.

    Raises:  ConfigError for an address.
    """
    refuse_address(root)
    document = read_document(root / CONTROL_DIR / HOME_FILE)
    if document is not None:
        return Lake(root, LakeFormat(document.pop("kind")), **document)
    if (root / "_delta_log").is_dir():
        return Lake(root, LakeFormat.DELTA)
    if (root / CATALOG_FILE).exists():
        return Lake(root, LakeFormat.ICEBERG)
    return Lake(root, LakeFormat.PARQUET) if list_batches(root) else None


def require_lake(root: Path) -> Lake:
    """Returns the lake in a directory; raises ConfigError for a directory that is not a lake. One with bad
    records only has no table yet, and is returned as a Parquet lake.
    """
    lake = find_lake(root)
    if lake is None and list_committed(root):
        return Lake(root, LakeFormat.PARQUET)
    if lake is None:
        raise ConfigError(f"{root} is not a lake: it has no batches and no table")
    return lake


@contextmanager
def hold_directory(out: Path) -> Iterator[None]:
    """Locks the directory for this process; the lock is released when the process ends in any way.

    Raises:  ConfigError if another pipeline holds it, or an address is given.
    """
    refuse_address(out)
    control = out / CONTROL_DIR
    control.mkdir(parents=True, exist_ok=True)
    with (control / LOCK_FILE).open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another pipeline writes to {out} right now") from error
        yield


def check_table(lake: Lake) -> None:
    """Rejects a table that another lake has written, because its rows would silently be doubled.

    Raises:  ConfigError for such a table, and for a lake of another kind or whose table is elsewhere.
    """
    known = find_lake(lake.root)
    if known is None:
        _check_unused(lake)
    elif known.kind is not lake.kind:
        raise ConfigError(
            f"{lake.root} is a {known.kind} lake, not {lake.kind}: give its format, or another directory"
        )
    elif known != lake:
        raise ConfigError(
            f"the table of {lake.root} is {known.describe_place()}, not {lake.describe_place()}: give the"
            " same --data, --catalog and --table as before, or another directory"
        )


def _check_unused(lake: Lake) -> None:
    """Raises ConfigError if the table of a new lake has been written."""
    if lake.catalog:
        from tandemmq.spark.lake.catalogs import find_writers

        writers = find_writers(lake.catalog, lake.table)
    elif lake.address:
        writers = [name for name in ("_delta_log", "metadata") if lake.data.has(name)]
    else:
        return
    if writers:
        raise ConfigError(
            f"{lake.table or lake.address} was written by another landing ({', '.join(writers)}), and"
            f" {lake.root} is new: give the directory of that landing, or another table"
        )


def check_writer(lake: Lake, checkpoint_dir: Path) -> None:
    """Rejects a query that may not continue the lake: one with the checkpoint of another lake, with another
    table, or in a directory with files of others.

    Raises:  ConfigError, because rows would silently be doubled or skipped.
    """
    check_table(lake)
    out = lake.root
    planned, query = find_last_batch(checkpoint_dir / "offsets"), read_query_id(checkpoint_dir)
    landed = list_committed(out)
    last = max([*landed, *list_batches(out / BAD_RECORDS_DIR)], default=-1)
    owner = read_owner(out)
    if owner is not None and owner != query:
        found = "is empty" if query is None else f"belongs to query {query}"
        raise ConfigError(
            f"{out} was written with another checkpoint (query {owner}); {checkpoint_dir} {found}. Give the"
            " old one with --checkpoint, or another directory with --out."
        )
    if owner is None and landed:
        raise ConfigError(f"{out} holds batches but not the record of the query that wrote them")
    foreign = None if owner is not None else next(out.glob("*.parquet"), None)
    if foreign is not None:
        raise ConfigError(
            f"{out} holds {foreign.name}, which no landing wrote: readers of the directory would take its"
            " rows for messages. Give a directory of its own with --out."
        )
    if last > planned:
        raise ConfigError(
            f"{checkpoint_dir} ends with batch {planned}, and {out} has batch {last}: the newest files of"
            " the checkpoint are missing. The next batch would get the number of one that the lake has, and"
            " be dropped. Restore the files, or land the topic again in another directory with --out."
        )
