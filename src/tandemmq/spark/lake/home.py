"""The location of a table's files and log: the lake's directory, or an object store.

A lake is always a directory that the driver can write to: it contains the owner, the lock, the checkpoint and
the bad records. The files of a table may be elsewhere, because a table becomes visible by its log alone: at
`s3://`, `gs://`, `abfss://` or `hdfs://` addresses, or in another directory (`file://`). An Iceberg table may
belong to a catalog with other readers. The file `_tandemmq/table.json` records the location without
credentials; these come from the environment of driver and executors, or from the settings of `pyiceberg`.

A Parquet lake becomes visible by renaming a directory, which object stores cannot do. Must not know Spark.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tandemmq.errors import ConfigError
from tandemmq.spark.documents import read_document, sync_directory, sync_file, write_document
from tandemmq.spark.lake.files import CONTROL_DIR, list_batches

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

HOME_FILE = "table.json"
LOCK_FILE = "lock"
CATALOG_FILE = "catalog.db"
"""The catalog of an Iceberg table in the lake's directory."""
DATA_DIR = "data"

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FORBIDDEN = re.compile(r"[?#%\s]|//")
_S3_SCHEMES = ("s3", "s3a")


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


Partitions = dict[str, dict[str, str | None]]
"""The values of columns that the files lack, by the name of the file."""


class DataFiles:
    """The files below a directory or an address, by their names relative to it."""

    def __init__(self, place: str) -> None:
        self.place = place.removeprefix("file://")
        self.system, self._base = _open_system(self.place)

    @property
    def is_local(self) -> bool:
        return self.place.startswith("/")

    def path(self, name: str) -> str:
        """Returns the path of the file for the Arrow file system."""
        return f"{self._base}/{name}"

    def locate(self, name: str) -> str:
        """Returns the path or address of the file for other programs. A file outside of this place has no
        name here, so its whole address is returned.
        """
        return name if "://" in name else f"{self.place}/{name}"

    def uri(self, name: str) -> str:
        located = self.locate(name)
        return f"file://{located}" if located.startswith("/") else located

    def name_of(self, uri: str) -> str:
        """Returns the name of a file from its path or address; a file outside of this place keeps its
        address.
        """
        return uri.removeprefix("file://").removeprefix(f"{self.place}/")

    def make_room(self, name: str) -> None:
        """Creates the directories of a file; object stores have none."""
        if self.is_local:
            Path(self.path(name)).parent.mkdir(parents=True, exist_ok=True)

    def sync(self, name: str) -> None:
        """Flushes the content of the file to disk; an object is durable as soon as it is written."""
        if self.is_local:
            sync_file(Path(self.path(name)))

    def sync_parents(self, name: str) -> None:
        """Flushes the names of the file and of its directories to disk."""
        if self.is_local:
            for directory in Path(self.path(name)).parents:
                if directory.is_relative_to(self._base):
                    sync_directory(directory)

    def size(self, name: str) -> int:
        return int(self.system.get_file_info(self.path(name)).size)

    def modified_ns(self, name: str) -> int:
        return int(self.system.get_file_info(self.path(name)).mtime_ns or 0)

    def delete(self, name: str) -> None:
        """Removes a file, if it exists."""
        try:
            self.system.delete_file(self.path(name))
        except FileNotFoundError:
            return

    def list_parquet(self, under: str = DATA_DIR) -> Iterator[str]:
        """Yields the names of all Parquet files below a directory, sorted."""
        from pyarrow.fs import FileSelector

        chosen = FileSelector(self.path(under), recursive=True, allow_not_found=True)
        found = [info.path for info in self.system.get_file_info(chosen) if info.path.endswith(".parquet")]
        yield from sorted(path.removeprefix(f"{self._base}/") for path in found)

    def has(self, directory: str) -> bool:
        """Returns True if the directory contains a file."""
        from pyarrow.fs import FileSelector

        chosen = FileSelector(self.path(directory), allow_not_found=True)
        return bool(self.system.get_file_info(chosen))


@lru_cache(maxsize=16)
def _open_system(place: str) -> tuple[FileSystem, str]:
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem, S3FileSystem

    if place.startswith("/"):
        return LocalFileSystem(), place.rstrip("/")
    scheme, _, rest = place.partition("://")
    if scheme in _S3_SCHEMES:
        settings = s3_settings()
        return S3FileSystem(
            endpoint_override=settings.get("s3.endpoint"), region=settings.get("s3.region")
        ), rest
    try:
        system, base = FileSystem.from_uri(place)
    except (ArrowInvalid, NotImplementedError):
        # fsspec may know a scheme that Arrow does not, if the package for the scheme is installed.
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            other, base = url_to_fs(place)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"no file system for {place}: {error}") from error
        system = PyFileSystem(FSSpecHandler(other))
    return system, str(base).rstrip("/")


def s3_settings() -> dict[str, str]:
    """Returns endpoint and region of S3 from the environment, under the names that `pyiceberg` uses."""
    named = {
        "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    }
    found = {
        setting: next((os.environ[name] for name in names if os.environ.get(name)), "")
        for setting, names in named.items()
    }
    return {setting: value for setting, value in found.items() if value}


class LakeFormat(StrEnum):
    """The kind of a lake."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True)
class TableHome:
    """The kind and the location of a table. `address`: of its files, empty for the lake's directory;
    `catalog`: the name of an Iceberg catalog in the settings of `pyiceberg`, empty for the lake's own;
    `table`: its name there.
    """

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
        return bool(self.address or self.catalog)

    def files(self, root: Path) -> DataFiles:
        """Returns the files of the table of the lake in `root`."""
        return DataFiles(self.address.rstrip("/") or str(root.absolute()))


def find_home(root: Path) -> TableHome | None:
    """Returns the kind of a lake and the location of its table; None if nothing is written yet.

    Raises:  ConfigError for an address.
    """
    refuse_address(root)
    document = read_document(root / CONTROL_DIR / HOME_FILE)
    if document is not None:
        return TableHome(LakeFormat(document.pop("kind")), **document)
    if (root / "_delta_log").is_dir():
        return TableHome(LakeFormat.DELTA)
    if (root / CATALOG_FILE).exists():
        return TableHome(LakeFormat.ICEBERG)
    return TableHome(LakeFormat.PARQUET) if list_batches(root) else None


def find_files(root: Path) -> DataFiles:
    """Returns the files of a lake's table, at any location."""
    home = find_home(root)
    return DataFiles(str(root.absolute())) if home is None else home.files(root)


def save_home(root: Path, home: TableHome) -> None:
    """Stores the table's location before anything of it is committed; nothing is stored for the lake's
    directory.
    """
    if not home.is_elsewhere or find_home(root) == home:
        return
    write_document(root / CONTROL_DIR / HOME_FILE, asdict(home))


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
