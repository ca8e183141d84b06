"""Tests the lake's directory: a batch is either complete or absent, whatever fails in between."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import (
    CommitOutcome,
    StagedFile,
    Totals,
    batch_dir,
    commit_batch,
    discard_files,
    list_batches,
    new_staged_path,
    read_owner,
    read_summary,
    staging_dir,
)

QUERY = "query-1"


class Crash(BaseException):
    """A stand-in for SIGKILL: no handler catches it."""


def _stage(root: Path, batch_id: int, rows: int = 3, parts: int = 2) -> list[StagedFile]:
    files = []
    for part in range(parts):
        path = new_staged_path(root, batch_id, part)
        pq.write_table(pa.table({"id": [batch_id * 1000 + part * 100 + n for n in range(rows)]}), path)
        files.append(
            StagedFile(str(path.relative_to(root)), f"part-{part:05d}.parquet", rows, path.stat().st_size)
        )
    return files


def _read(root: Path) -> list[int]:
    """Returns the rows that plain readers see; the readers must agree."""
    if not list_batches(root):
        return []
    found = pq.read_table(root)["id"].to_pylist()
    assert sorted(found) == sorted(pd.read_parquet(root)["id"])
    return sorted(found)


def test_a_committed_batch_is_seen_and_a_staged_one_is_not(tmp_path: Path) -> None:
    files = _stage(tmp_path, 0)
    _stage(tmp_path, 1)
    assert commit_batch(tmp_path, 0, QUERY, files) is CommitOutcome.COMMITTED
    assert _read(tmp_path) == [0, 1, 2, 100, 101, 102]
    assert read_summary(tmp_path, 0) == Totals(rows=6, size_bytes=sum(file.size_bytes for file in files))


def test_a_replay_changes_nothing(tmp_path: Path) -> None:
    commit_batch(tmp_path, 0, QUERY, _stage(tmp_path, 0))
    before = _read(tmp_path)
    assert commit_batch(tmp_path, 0, QUERY, _stage(tmp_path, 0)) is CommitOutcome.ALREADY_COMMITTED
    assert _read(tmp_path) == before
    assert list(staging_dir(tmp_path).iterdir()) == []


def test_a_batch_without_rows_has_no_directory(tmp_path: Path) -> None:
    assert commit_batch(tmp_path, 0, QUERY, []) is CommitOutcome.EMPTY
    assert list_batches(tmp_path) == []
    assert read_summary(tmp_path, 0) == Totals(rows=0, size_bytes=0)


def test_an_abort_after_the_commit_destroys_nothing(tmp_path: Path) -> None:
    files = _stage(tmp_path, 0)
    commit_batch(tmp_path, 0, QUERY, files)
    discard_files(tmp_path, files)
    assert len(_read(tmp_path)) == 6


@pytest.mark.parametrize("call", ["rename", "fsync", "link", "open"])
@pytest.mark.parametrize("count", range(10))
def test_a_crash_at_any_call_leaves_all_or_nothing_and_a_replay_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    commit_batch(tmp_path, 0, QUERY, _stage(tmp_path, 0))
    first = _read(tmp_path)
    files = _stage(tmp_path, 1)
    real, seen = getattr(os, call), [0]

    def crashing(*args: object, **kwargs: object) -> object:
        seen[0] += 1
        if seen[0] > count:
            raise Crash
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, crashing)
    try:
        commit_batch(tmp_path, 1, QUERY, files)
    except Crash:
        pass
    monkeypatch.undo()
    whole = sorted([*first, 1000, 1001, 1002, 1100, 1101, 1102])
    assert _read(tmp_path) in (first, whole)
    commit_batch(tmp_path, 1, QUERY, _stage(tmp_path, 1))
    assert _read(tmp_path) == whole


def test_the_loser_of_two_commits_of_one_batch_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = _stage(tmp_path, 0), _stage(tmp_path, 0)
    real = os.rename

    def rename(source: object, target: object) -> None:
        if target == batch_dir(tmp_path, 0) and not batch_dir(tmp_path, 0).exists():
            monkeypatch.setattr(os, "rename", real)
            commit_batch(tmp_path, 0, QUERY, theirs)
        real(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename)
    assert commit_batch(tmp_path, 0, QUERY, mine) is CommitOutcome.ALREADY_COMMITTED
    assert len(_read(tmp_path)) == 6


def test_leftovers_of_killed_attempts_go_with_the_next_commit(tmp_path: Path) -> None:
    _stage(tmp_path, 0)
    commit_batch(tmp_path, 0, QUERY, _stage(tmp_path, 0))
    commit_batch(tmp_path, 1, QUERY, _stage(tmp_path, 1))
    assert list(staging_dir(tmp_path).iterdir()) == []


def test_another_query_is_refused(tmp_path: Path) -> None:
    commit_batch(tmp_path, 0, QUERY, _stage(tmp_path, 0))
    assert read_owner(tmp_path) == QUERY
    with pytest.raises(ConfigError, match="was written by query query-1, this is query query-2"):
        commit_batch(tmp_path, 1, "query-2", _stage(tmp_path, 1))
    assert len(_read(tmp_path)) == 6


def test_a_layout_of_another_version_is_refused(tmp_path: Path) -> None:
    commit_batch(tmp_path, 0, QUERY, _stage(tmp_path, 0))
    (tmp_path / "_tandemmq" / "owner.json").write_text(json.dumps({"version": 9, "query": QUERY}))
    with pytest.raises(ConfigError, match="version 9"):
        read_owner(tmp_path)
