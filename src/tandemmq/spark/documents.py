"""Small files that survive a crash: the state of sinks, lakes and replays.

A reader sees the old or the new content of a file, never a part. A file is on disk when the call that writes
it returns. If two processes write the same file, the last one wins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tandemmq.errors import ConfigError


def read_document(path: Path) -> dict[str, Any] | None:
    """Returns the JSON object in the file; None if there is no file.

    Raises:  ConfigError for a file that has something else.
    """
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(f"{path} is not a JSON object: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return document


def read_versioned(path: Path, version: int) -> dict[str, Any] | None:
    """Returns the JSON object in the file without its version; None if there is no file.

    Raises:  ConfigError for another version.
    """
    document = read_document(path)
    found = version if document is None else document.pop("version", None)
    if found != version:
        raise ConfigError(f"{path} has version {found!r}, not {version}")
    return document


def write_document(path: Path, document: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Replaces the file with a JSON object."""
    replace_file(path, json.dumps(document, indent=indent) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Replaces the file with the text, and creates its directory if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.{uuid4().hex[:12]}")
    staged.write_text(text)
    sync_file(staged)
    os.replace(staged, path)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Flushes the content of a file to disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Flushes the names in a directory to disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
