"""Faults planted in copies of a topic: each is small, and the audit must find and report it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from proof_processes import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """The audit's expected report on a side: its counts, and the first differences."""

    side: str
    problem: str
    missing: int = 0
    behind: int = 0
    repeated: int = 0
    differing: int = 0
    place: tuple[int, int] | None = None
    """The queue and offset that must be reported."""

    def check(self, events: list[Event]) -> list[str]:
        """Returns the deviations of the audit's report from the planted fault."""
        verdict = next((e for e in events if e["event"] == "verdict" and e["side"] == self.side), None)
        if verdict is None:
            return [f"{self.side}: no verdict"]
        wanted = {
            "missing": self.missing,
            "behind": self.behind,
            "repeated": self.repeated,
            "differing": self.differing,
        }
        found = {name: verdict[name] for name in wanted}
        reasons = [] if found == wanted else [f"{self.side}: planted {wanted}, found {found}"]
        named = [e for e in events if e["event"] == "difference" and e["side"] == self.side]
        if not named or {e["problem"] for e in named} != {self.problem}:
            reasons.append(f"{self.side}: {self.problem} was planted, named is {named}")
        elif self.place is not None and (named[0]["queue"], named[0]["offset"]) != self.place:
            reasons.append(f"{self.side}: {self.problem} was planted at {self.place}, named is {named[0]}")
        return reasons


def find_middle(log: Path, body: bytes) -> tuple[Path, int]:
    """Returns the file of a CommitLog and the position in it of the middle of a body."""
    for path in sorted(log.iterdir()):
        at = path.read_bytes().find(body)
        if at >= 0:
            return path, at + len(body) // 2
    raise AssertionError(f"no file of {log} holds {body!r}")


def flip_bit(path: Path, at: int) -> None:
    """Flips one bit of a file; a second call flips it back."""
    with path.open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ 1]))


def copy_lake(lake: Path, target: Path) -> Path:
    """Copies a lake; the files are hard links."""
    for file in lake.glob("batch=*/**/*.parquet"):
        copy = target / file.relative_to(lake)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            copy.hardlink_to(file)
    return target


def cut_record(lake: Path) -> tuple[int, int]:
    """Removes one record from the middle of the largest file; returns its queue and offset."""
    file = _largest(lake)
    table = pq.ParquetFile(file).read()
    at = table.num_rows // 2
    file.unlink()
    pq.write_table(pa.concat_tables([table.slice(0, at), table.slice(at + 1)]), file)
    return table["queueId"][at].as_py(), table["queueOffset"][at].as_py()


def double_file(lake: Path) -> int:
    """Duplicates one file in the lake; returns its number of rows."""
    file = min(lake.glob("batch=*/**/*.parquet"), key=lambda path: (path.stat().st_size, path))
    shutil.copy(file, file.with_name("part-again.parquet"))
    return int(pq.ParquetFile(file).metadata.num_rows)


def _largest(lake: Path) -> Path:
    return max(lake.glob("batch=*/**/*.parquet"), key=lambda path: path.stat().st_size)
