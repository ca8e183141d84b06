"""A small file system of its own, which can be full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

_PIECE = bytes(1 << 16)
_LAST_PIECE = bytes(1 << 12)


class SmallDisk:
    """A tmpfs of `size` bytes at `place`, mounted with its making.

    Raises:  MountRefused, for anybody but root, and in many containers.
    """

    def __init__(self, place: Path, size: int) -> None:
        self.place = place
        self._ballast = place / "ballast"
        place.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tandemmq-test", str(place)]
        try:
            done = subprocess.run(mount, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise MountRefused(str(error)) from error
        if done.returncode != 0:
            raise MountRefused(done.stderr.strip())

    @property
    def free_bytes(self) -> int:
        usage = os.statvfs(self.place)
        return usage.f_bavail * usage.f_frsize

    def fill(self, *, leave: int = 0) -> None:
        """No more than `leave` bytes are free."""
        with self._ballast.open("ab", buffering=0) as file:
            for piece in (_PIECE, _LAST_PIECE):
                while self.free_bytes > leave and _is_written(file.fileno(), piece, self.free_bytes - leave):
                    pass

    def free(self) -> None:
        """There is room again."""
        self._ballast.unlink(missing_ok=True)

    def close(self, *, keep: bool = False) -> None:
        """Nothing is mounted any more. `keep`: what was on the disk is in the directory then."""
        self.free()
        kept = self.place.with_name(f"{self.place.name}.kept")
        if keep:
            shutil.copytree(self.place, kept)
        subprocess.run(["umount", "-l", str(self.place)], check=True)
        if keep:
            self.place.rmdir()
            kept.rename(self.place)


class MountRefused(Exception):
    """No file system can be mounted here; the text says why."""


def _is_written(file: int, piece: bytes, room: int) -> bool:
    """Returns True if bytes were written; a full disk accepts none."""
    if room < len(piece):
        return False
    try:
        return os.write(file, piece) > 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
