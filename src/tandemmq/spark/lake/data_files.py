"""The files of a lake's table, in a directory or an object store, by their names. Must not know Spark."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tandemmq.errors import ConfigError
from tandemmq.spark.documents import sync_directory, sync_file

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

DATA_DIR = "data"
"""The directory of a table's files."""

_S3_SCHEMES = ("s3", "s3a")


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

    def list_parquet(self, under: str = DATA_DIR) -> list[str]:
        """Returns the names of all Parquet files below a directory, sorted."""
        from pyarrow.fs import FileSelector

        chosen = FileSelector(self.path(under), recursive=True, allow_not_found=True)
        found = [info.path for info in self.system.get_file_info(chosen) if info.path.endswith(".parquet")]
        return sorted(path.removeprefix(f"{self._base}/") for path in found)

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
