"""The list of all changes made in this console: the latest in memory, all of them in a file when asked.

An entry is written before the change and another one after it, so a change that ended the console itself is
recorded, too. If the file cannot be written, no change is made.
"""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tandemmq.errors import ConfigError
from tandemmq.runtime.ports import Clock

ENTRIES_MAX: Final = 1000
"""Changes kept in memory; the oldest is forgotten."""
VALUE_LENGTH_MAX: Final = 500
"""Longest value in an entry, in characters; longer ones are truncated with an ellipsis."""

BEGUN: Final = "begun"
DONE: Final = "done"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: the user, the action and its values, and its outcome (BEGUN, DONE, or the error)."""

    number: int
    at_ms: int
    user: str
    address: str
    action: str
    path: str
    values: Mapping[str, str]
    outcome: str = BEGUN


class AuditLog:
    """The changes of this run. Secrets must not be in the values."""

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        """Opens the file for appending, readable by its owner only. Raises ConfigError if that fails."""
        self._clock = clock
        self._entries: deque[AuditEntry] = deque(maxlen=ENTRIES_MAX)
        self._count = 0
        self._file = -1
        self._is_torn = False
        if path is not None:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError as error:
                raise ConfigError(f"--audit-log {path}: {error.strerror}") from error

    @property
    def entries(self) -> list[AuditEntry]:
        """The latest changes, the newest first."""
        return list(reversed(self._entries))

    def begin(self, user: str, address: str, action: str, path: str, values: Mapping[str, str]) -> AuditEntry:
        """Records that a change is about to be made. Raises OSError when the file cannot be written."""
        self._count += 1
        shown = {name: _shorten(value) for name, value in values.items()}
        entry = AuditEntry(self._count, self._clock.now_ms(), user, address, action, path, shown)
        self._write(entry)
        self._entries.append(entry)
        return entry

    def finish(self, entry: AuditEntry, outcome: str) -> None:
        """Records the outcome of a change. Raises OSError when the file cannot be written."""
        ended = replace(entry, outcome=_shorten(outcome))
        for place, held in enumerate(self._entries):
            if held.number == entry.number:
                self._entries[place] = ended
        self._write(replace(ended, at_ms=self._clock.now_ms()))

    def close(self) -> None:
        """Closes the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write(self, entry: AuditEntry) -> None:
        if self._file < 0:
            return
        # A full disk accepts the beginning of a line; the next entry begins a line of its own.
        line = ("\n" if self._is_torn else "") + json.dumps(asdict(entry)) + "\n"
        self._is_torn = os.write(self._file, line.encode()) < len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _shorten(text: str) -> str:
    return text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 1] + "…"
