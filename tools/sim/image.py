"""The content of a disk and its page cache, and the part of it that survives a power cut.

Owns:    the file contents, with every version of a sector since it was last made durable, and the directory
         changes that are not durable yet.
Rules of the model:
      - a sector of 512 bytes is never torn; of a write of many sectors, any part may arrive, in any order;
      - an fsync covers the writes made before it was requested, not those made while it runs;
      - an fsync that fails may drop pages: readers still see them, no later fsync ever writes them (Linux);
      - changes of one directory become durable in order, as in journaling file systems; an fsync of a file
        does not cover its directory entry;
      - a created file whose entry is not durable may come back short, and then it is empty.
Knows not: faults, time, which component writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sim.dice import Dice

SECTOR_BYTES = 512
PAGE_BYTES = 4096

WriteNumber = int
"""Writes are numbered across the whole disk; the state of a sector is "all writes up to number n"."""


class Node:
    """The content of one file. `dirty`: for each sector, the content that each write replaced, if it is not
    durable.
    """

    __slots__ = ("data", "dirty", "is_synced", "stale")

    def __init__(self, data: bytearray, *, is_synced: bool = False) -> None:
        self.data = data
        self.is_synced = is_synced  # at least the length is durable
        self.dirty: dict[int, list[tuple[WriteNumber, bytes]]] = {}
        self.stale: dict[int, bytes] = {}  # sectors that a failed fsync dropped: their content on the platter

    def clone(self) -> Node:
        twin = Node(bytearray(self.data), is_synced=self.is_synced)
        twin.dirty = {sector: list(versions) for sector, versions in self.dirty.items()}
        twin.stale = dict(self.stale)
        return twin

    def write(self, offset: int, data: bytes, number: WriteNumber) -> None:
        if not data:
            return
        for sector in range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1):
            before = self.stale.pop(sector, None)
            if before is None:
                before = bytes(self.data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])
            self.dirty.setdefault(sector, []).append((number, before))
        self.data[offset : offset + len(data)] = data

    def sync(self, up_to: WriteNumber, since: WriteNumber) -> None:
        """Makes writes durable: those up to `up_to`, and those after `since`, which the syncing thread itself
        made.
        """
        self.is_synced = True
        for sector, versions in list(self.dirty.items()):
            is_newest_ours = versions[-1][0] > since
            self._keep(sector, [] if is_newest_ours else [v for v in versions if v[0] > up_to])

    def drop(self, up_to: WriteNumber) -> None:
        """Models a failed fsync: the kernel forgets that these writes are not on the platter."""
        for sector, versions in list(self.dirty.items()):
            if versions[0][0] > up_to:
                continue
            platter = versions[0][1]
            later = [v for v in versions if v[0] > up_to]
            if later:
                later[0] = (later[0][0], platter)
            else:
                self.stale[sector] = platter
            self._keep(sector, later)

    def _keep(self, sector: int, versions: list[tuple[WriteNumber, bytes]]) -> None:
        if versions:
            self.dirty[sector] = versions
        else:
            del self.dirty[sector]

    def cut(self, arrived: Callable[[int], WriteNumber]) -> None:
        """Keeps only the writes of each sector up to number `arrived(sector)`."""
        for sector in sorted(self.dirty):
            limit = arrived(sector)
            for number, before in self.dirty[sector]:
                if number > limit:
                    self._restore(sector, before)
                    break
        for sector, platter in self.stale.items():
            self._restore(sector, platter)
        self.dirty.clear()
        self.stale.clear()

    def _restore(self, sector: int, content: bytes) -> None:
        self.data[sector * SECTOR_BYTES : sector * SECTOR_BYTES + len(content)] = content


@dataclass(frozen=True, slots=True)
class Change:
    """A file that was added to a directory, or removed from it (`is_removal`)."""

    path: Path
    node: Node
    is_removal: bool


class Tear(Enum):
    """The part of the non-durable writes that survives a power cut."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    IN_ORDER = "all writes up to some moment"
    SECTORS = "any version of each sector"
    PAGES = "any version of each page"


class Image:
    """All files of one machine."""

    def __init__(self) -> None:
        self.files: dict[Path, Node] = {}
        self.directories: set[Path] = set()
        self.write_number: WriteNumber = 0
        self.boot_count = 1
        self._changes: dict[Path, list[Change]] = {}

    def clone(self) -> Image:
        """Returns an independent copy."""
        nodes = [*self.files.values(), *(c.node for changes in self._changes.values() for c in changes)]
        twins = {id(node): node.clone() for node in nodes}
        copy = Image()
        copy.files = {path: twins[id(node)] for path, node in self.files.items()}
        copy.directories = set(self.directories)
        copy.write_number = self.write_number
        copy.boot_count = self.boot_count
        copy._changes = {
            directory: [Change(change.path, twins[id(change.node)], change.is_removal) for change in changes]
            for directory, changes in self._changes.items()
        }
        return copy

    def create(self, path: Path, size: int) -> Node:
        node = self.files[path] = Node(bytearray(size))
        self._changes.setdefault(path.parent, []).append(Change(path, node, False))
        return node

    def remove(self, path: Path) -> None:
        node = self.files.pop(path)
        self._changes.setdefault(path.parent, []).append(Change(path, node, True))

    def replace(self, path: Path, data: bytes) -> None:
        """Replaces a file: the new one is written beside it, synced and renamed, and its directory is
        synced.
        """
        self.sync_directory(path.parent)
        self.files[path] = Node(bytearray(data), is_synced=True)

    def write(self, node: Node, offset: int, data: bytes) -> None:
        self.write_number += 1
        node.write(offset, data, self.write_number)

    def sync_directory(self, directory: Path) -> None:
        """Makes the directory's entries durable, and those of its parents."""
        for path in (directory, *directory.parents):
            self._changes.pop(path, None)

    def power_cut(self, dice: Dice, tear: Tear) -> None:
        """Reduces the image to what survives on the platter; the dice decide about everything that is not
        durable.
        """
        self.boot_count += 1
        for directory in sorted(self._changes):
            self._cut_directory(self._changes[directory], dice, tear)
        self._changes.clear()
        moment = dice.between(0, self.write_number)
        for path in sorted(self.files):
            self.files[path].cut(_chooser(dice, tear, self.write_number, moment))

    def _cut_directory(self, changes: list[Change], dice: Dice, tear: Tear) -> None:
        kept = len(changes)
        if tear is Tear.NOTHING:
            kept = 0
        elif tear is not Tear.EVERYTHING:
            kept = dice.between(0, len(changes))
        for change in reversed(changes[kept:]):
            if change.is_removal:
                self.files[change.path] = change.node
            else:
                self.files.pop(change.path, None)
        if kept and not changes[kept - 1].is_removal and tear is not Tear.EVERYTHING and dice.happens(20):
            self._shorten(changes[kept - 1].path, dice)

    def _shorten(self, path: Path, dice: Dice) -> None:
        """Models an entry that arrived without all of its blocks: then none of its bytes can have arrived."""
        node = self.files.get(path)
        if node is not None and not node.is_synced:
            self.files[path] = Node(bytearray(dice.between(0, len(node.data))))


def _chooser(
    dice: Dice, tear: Tear, newest: WriteNumber, moment: WriteNumber
) -> Callable[[int], WriteNumber]:
    """Returns a function that returns the last write of each sector of one file that arrived."""
    pages: dict[int, WriteNumber] = {}

    def by_page(sector: int) -> WriteNumber:
        page = sector * SECTOR_BYTES // PAGE_BYTES
        if page not in pages:
            pages[page] = _any_version(dice, newest)
        return pages[page]

    if tear is Tear.NOTHING:
        return lambda _: 0
    if tear is Tear.EVERYTHING:
        return lambda _: newest
    if tear is Tear.IN_ORDER:
        return lambda _: moment
    if tear is Tear.PAGES:
        return by_page
    return lambda _: _any_version(dice, newest)


def _any_version(dice: Dice, newest: WriteNumber) -> WriteNumber:
    """Returns mostly all or nothing, which is what leaves holes; sometimes a version in between."""
    return dice.pick_weighted(((4, 0), (4, newest), (2, dice.between(0, newest))))
