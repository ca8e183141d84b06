"""Power cuts for real broker processes: `unsynced.c` records writes, and this module undoes those that no
fsync covered.

A cut is a SIGKILL followed by `PowerLayer.cut`. Each unsynced sector or page has either its old or its new
content afterwards. File names whose directory was not fsynced are as they were before some moment, because
file systems keep their order. The machine has a new boot id. Everything covered by a successful fsync stays.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_NOTE = struct.Struct("=10Q")
_SOURCE = Path(__file__).with_name("unsynced.c")
_KEEP_PERCENT = (0, 20, 50, 80)
_UNIT_BYTES = (512, 4096)


class Kind(IntEnum):
    """The kind of a note; the numbers are those of `unsynced.c`."""

    WRITE = 1
    SIZE = 2
    SYNC = 3
    CREATE = 4
    RENAME = 5
    UNLINK = 6
    LINK = 7
    MKDIR = 8
    RMDIR = 9
    SYNC_DIRECTORY = 10


_OF_CONTENT = frozenset({Kind.WRITE, Kind.SIZE})
_OF_SYNC = frozenset({Kind.SYNC, Kind.SYNC_DIRECTORY})


@dataclass(frozen=True, slots=True)
class Note:
    """One change or fsync. `first`: old content, or a path; `second`: the new name of a rename."""

    sequence: int
    kind: Kind
    inode: tuple[int, int]
    offset: int
    old_size: int
    covered: int
    saved: int
    first: bytes
    second: bytes

    @property
    def directory(self) -> str:
        """The directory whose fsync makes a change of names durable."""
        return os.path.dirname(self.second or self.first).decode()


@dataclass(frozen=True, slots=True)
class CutReport:
    """The numbers of undone changes of content and of names."""

    contents: int
    names: int


class PowerLayer:
    """The layer below one store directory; every run of the process gets a journal of its own."""

    def __init__(self, work: Path, root: Path, library: Path) -> None:
        self._root = root
        self._journals = work / "unsynced"
        self._boot_id = work / "boot_id"
        self._library = library
        self._life = 0
        root.mkdir(parents=True, exist_ok=True)
        self._new_boot_id()

    def environment(self) -> dict[str, str]:
        """Returns the variables of the next run."""
        shutil.rmtree(self._journals, ignore_errors=True)
        self._journals.mkdir(parents=True)
        return {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "UNSYNCED_ROOT": str(self._root),
            "UNSYNCED_JOURNAL": str(self._journals),
            "UNSYNCED_BOOT_ID": str(self._boot_id),
        }

    def cut(self, chance: random.Random, *, trusts_fsync: bool = True) -> CutReport:
        """Undoes everything unsynced; the process must have been killed.

        `trusts_fsync` False simulates a disk that loses everything although its fsyncs succeeded.
        """
        notes = list(_read_notes(self._journals / "journal"))
        syncs = [note for note in notes if note.kind in _OF_SYNC] if trusts_fsync else []
        contents_synced: dict[tuple[int, int], int] = {}
        names_synced: dict[str, int] = {}
        for note in syncs:
            if note.kind is Kind.SYNC:
                contents_synced[note.inode] = max(contents_synced.get(note.inode, 0), note.covered)
            else:
                path = note.first.decode()
                names_synced[path] = max(names_synced.get(path, 0), note.covered)
        contents = {
            note.sequence
            for note in notes
            if note.kind in _OF_CONTENT and note.sequence > contents_synced.get(note.inode, 0)
        }
        names = [
            note.sequence
            for note in notes
            if note.kind not in _OF_CONTENT | _OF_SYNC and note.sequence > names_synced.get(note.directory, 0)
        ]
        lost_names = set(names[chance.randrange(len(names) + 1) :]) if trusts_fsync else set(names)
        self._undo(notes, contents, lost_names, chance, keeps_some=trusts_fsync)
        self._new_boot_id()
        return CutReport(len(contents), len(lost_names))

    def _undo(
        self,
        notes: list[Note],
        contents: set[int],
        names: set[int],
        chance: random.Random,
        *,
        keeps_some: bool,
    ) -> None:
        keep_percent = chance.choice(_KEEP_PERCENT) if keeps_some else 0
        torn = Tearing(chance, keep_percent=keep_percent, unit_bytes=chance.choice(_UNIT_BYTES))
        wanted = {note.inode for note in notes if note.sequence in contents}
        files = self._open_all(wanted)
        try:
            for note in reversed(notes):
                if note.sequence in names:
                    self._undo_name(note)
                elif note.sequence in contents and note.inode in files:
                    torn.undo(files[note.inode], note)
        finally:
            for descriptor in files.values():
                os.close(descriptor)

    def _open_all(self, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for top in (self._root, self._journals):
            for directory, _, names in os.walk(top):
                for name in names:
                    path = os.path.join(directory, name)
                    state = os.stat(path)
                    inode = (state.st_dev, state.st_ino)
                    if inode in wanted and inode not in found:
                        found[inode] = os.open(path, os.O_RDWR)
        return found

    def _undo_name(self, note: Note) -> None:
        path = Path(note.first.decode())
        saved = self._journals / str(note.saved)
        match note.kind:
            case Kind.CREATE | Kind.LINK:
                path.unlink(missing_ok=True)
            case Kind.MKDIR:
                shutil.rmtree(path, ignore_errors=True)
            case Kind.RMDIR:
                path.mkdir(exist_ok=True)
            case Kind.UNLINK:
                if path.parent.exists() and note.saved and not path.exists():
                    os.link(saved, path)
            case Kind.RENAME:
                target = Path(note.second.decode())
                if target.exists() and path.parent.exists():
                    os.rename(target, path)
                if note.saved and target.parent.exists():
                    os.link(saved, target)

    def _new_boot_id(self) -> None:
        self._life += 1
        self._boot_id.write_text(f"00000000-0000-4000-8000-{self._life:012d}\n")


class Tearing:
    """Decides which part of an unsynced write is on the disk: each sector or page has one of its versions."""

    def __init__(self, chance: random.Random, *, keep_percent: int, unit_bytes: int) -> None:
        self._chance = chance
        self._keep_percent = keep_percent
        self._unit_bytes = unit_bytes
        self._settled: set[tuple[tuple[int, int], int]] = set()  # where the disk has the newer version

    def undo(self, descriptor: int, note: Note) -> None:
        """Undoes one write, or a part of it. Call it for the newest first."""
        size = note.covered if note.kind is Kind.WRITE else 0
        position, end = note.offset, note.offset + size
        while position < end:
            unit = position // self._unit_bytes
            stop = min(end, (unit + 1) * self._unit_bytes)
            if self._is_undone(note.inode, unit):
                old = note.first[position - note.offset : stop - note.offset]
                os.pwrite(descriptor, old.ljust(stop - position, b"\0"), position)
            position = stop
        is_longer = note.kind is Kind.SIZE or end > note.old_size
        if is_longer and self._is_undone(note.inode, -1):
            os.ftruncate(descriptor, note.old_size)

    def _is_undone(self, inode: tuple[int, int], unit: int) -> bool:
        key = (inode, unit)
        if key in self._settled:
            return False
        if self._chance.randrange(100) < self._keep_percent:
            self._settled.add(key)
            return False
        return True


def build_library(directory: Path) -> Path | None:
    """Returns the compiled layer; None without a C compiler or without Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not os.path.exists("/proc/self/fd"):
        return None
    library = directory / "unsynced.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return library


def _read_notes(path: Path) -> Iterator[Note]:
    """Returns every whole note; the kill may have truncated the last one."""
    raw = path.read_bytes()
    at = 0
    while at + _NOTE.size <= len(raw):
        sequence, kind, device, inode, offset, old_size, covered, saved, a_bytes, b_bytes = _NOTE.unpack_from(
            raw, at
        )
        at += _NOTE.size
        if at + a_bytes + b_bytes > len(raw):
            return
        first, second = raw[at : at + a_bytes], raw[at + a_bytes : at + a_bytes + b_bytes]
        at += a_bytes + b_bytes
        yield Note(sequence, Kind(kind), (device, inode), offset, old_size, covered, saved, first, second)
