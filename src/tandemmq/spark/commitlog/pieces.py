"""Which bytes of which CommitLog file one task reads.

A piece is a range of bytes; the records that *begin* in it belong to it, so pieces need not end between two
records. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.store.inspect.files import OffsetFile, list_offset_files
from tandemmq.store.inspect.log_walk import used_count
from tandemmq.store.paths import parse_offset_file_name

LOG_DIR = "commitlog"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `begin` to `end` of the file; `is_last`: no file of the log follows.

    `lost` instead names bytes of the log that lie in no file, in front of `file`.
    """

    file: OffsetFile
    begin: int
    end: int
    is_last: bool
    lost: tuple[int, int] | None = None


def find_files(path: Path) -> tuple[OffsetFile, ...]:
    """The CommitLog files of a store, of its `commitlog` directory, or the one file that `path` is.

    Raises:  ConfigError when there are none.
    """
    base = parse_offset_file_name(path.name)
    if path.is_file():
        if base is None:
            raise ConfigError(f"{path}: the name of a CommitLog file is its first offset in 20 digits")
        return (OffsetFile(path=path, base=base, size=path.stat().st_size),)
    for directory in (path / LOG_DIR, path):
        files = list_offset_files(directory).files
        if files:
            return files
    raise ConfigError(f"{path} is neither a CommitLog file nor a directory of them nor a store")


def cut_pieces(files: Sequence[OffsetFile], piece_bytes: int) -> list[Piece]:
    """The pieces of all files, in the order of the log; files at the end that are all zero are left out."""
    used = files[: used_count(files)]
    pieces: list[Piece] = []
    for index, file in enumerate(used):
        expected = used[index - 1].end if index else file.base
        if file.base > expected:
            pieces.append(Piece(file, 0, 0, is_last=False, lost=(expected, file.base)))
        pieces += [
            Piece(file, begin, min(begin + piece_bytes, file.size), is_last=file is used[-1])
            for begin in range(0, file.size, piece_bytes)
        ]
    return pieces
