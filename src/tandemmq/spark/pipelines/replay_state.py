"""What a replay has done, in one small file: so that it goes on where it was, and only as the same replay.

The file is replaced as a whole. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import sync_dir, sync_file

VERSION = 1


@dataclass(slots=True)
class ReplayState:
    """`plan`: what makes two replays the same one; `done`: rows and bytes of each part that is sent."""

    path: Path
    plan: Mapping[str, str]
    done: dict[str, tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.done.values())

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.done.values())

    def mark(self, part: str, rows: int, size_bytes: int) -> None:
        """Writes down that a part is sent; it is on disk afterwards."""
        self.done[part] = (rows, size_bytes)
        self.write()

    def write(self) -> None:
        """Puts the state on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.path.with_name(f"{self.path.name}.new")
        document = {"version": VERSION, "plan": dict(self.plan), "done": self.done}
        staged.write_text(json.dumps(document, indent=1) + "\n")
        sync_file(staged)
        os.replace(staged, self.path)
        sync_dir(self.path.parent)


def load_state(path: Path, plan: Mapping[str, str]) -> ReplayState:
    """The state in the file; an empty one where there is none.

    Raises:  ConfigError when the file belongs to another replay: some messages would be sent by neither plan.
    """
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return ReplayState(path=path, plan=plan, done={})
    except ValueError as error:
        raise ConfigError(f"{path} is no record of a replay: {error}") from error
    if document.get("version") != VERSION:
        raise ConfigError(f"{path} has version {document.get('version')!r}; this version knows {VERSION}")
    changed = sorted(name for name in plan if document["plan"].get(name) != plan[name])
    if changed:
        raise ConfigError(
            f"{path} belongs to a replay with other options ({', '.join(changed)}); give them again, or "
            "another file with --state"
        )
    done = {part: (int(rows), int(size)) for part, (rows, size) in document["done"].items()}
    return ReplayState(path=path, plan=plan, done=done)
