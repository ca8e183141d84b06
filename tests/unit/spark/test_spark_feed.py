"""Tests the batches of one topic without Spark: kills between any two steps, losses, freshness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from spark_fakes import FakeNet, FakeQueue

from tandemmq.errors import ConfigError, OffsetOutOfRange
from tandemmq.spark.lake.home import hold_directory
from tandemmq.spark.pipelines.feed import SLOT_MS, BatchLog, Feed, NumberedTask, StagedRows, find_age
from tandemmq.spark.pipelines.history import find_seam
from tandemmq.spark.pipelines.options import LandingOptions

Work = Callable[[NumberedTask], StagedRows]


class Killed(BaseException):
    """A kill of the process, which nothing may catch."""


def run_here(work: Work, tasks: Sequence[NumberedTask]) -> list[StagedRows]:
    return [work(task) for task in tasks]


def make_feed(
    out: Path, *, key: str = "", ttl_days: int | None = None, is_compacted: bool = False, **more: Any
) -> Feed:
    given = {"batch_records_max": 10, "starting_offsets": "earliest", **more}
    options = LandingOptions(name_servers="ns:1", topic="T", out=out, **given)
    return Feed(options, key=key, ttl_days=ttl_days, is_compacted=is_compacted)


def read_places(out: Path) -> list[tuple[int, int]]:
    rows = pq.read_table(out, columns=["queueId", "queueOffset"]).to_pylist()
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


def land_all(feed: Feed) -> int:
    """Returns the number of rows that were landed by all further batches."""
    count = 0
    while (result := feed.run_batch(run_here)) is not None:
        count += result.done.rows
    return count


def test_every_message_is_landed_once_and_new_queues_are_found(net: FakeNet, tmp_path: Path) -> None:
    queue = FakeQueue(0, 25)
    net.add_master(T_0=queue)
    feed = make_feed(tmp_path)
    result = feed.run_batch(run_here)
    assert result is not None
    assert (result.batch, result.done.rows, result.lag, result.lost) == (0, 10, 15, 0)
    assert land_all(feed) == 15
    queue.end = 30
    net.add_master("c", T_0=FakeQueue(0, 4))
    assert land_all(feed) == 9
    assert read_places(tmp_path) == sorted([(0, n) for n in range(30)] + [(0, n) for n in range(4)])
    assert feed.run_batch(run_here) is None


@pytest.mark.parametrize("step", ["before the tasks", "after the tasks", "after the lake"])
def test_a_killed_batch_is_repeated_with_its_own_messages(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    queue = FakeQueue(0, 7)
    net.add_master(T_0=queue)

    def killed(*arguments: object) -> list[StagedRows]:
        if step == "after the tasks":
            run_here(*arguments)  # type: ignore[arg-type]
        raise Killed

    feed = make_feed(tmp_path)
    with monkeypatch.context() as patch:
        if step == "after the lake":
            patch.setattr(BatchLog, "commit", killed)
        with pytest.raises(Killed):
            feed.run_batch(run_here if step == "after the lake" else killed)
    queue.end = 9
    again = make_feed(tmp_path)
    result = again.run_batch(run_here)
    assert result is not None
    assert (result.batch, again.total.rows) == (0, 7)
    assert land_all(again) == 2
    assert read_places(tmp_path) == [(0, n) for n in range(9)]


def test_the_log_is_that_of_a_landing(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(T_0=FakeQueue(0, 7))
    land_all(make_feed(tmp_path))
    assert list(find_seam(tmp_path).positions.values()) == [7]


def test_old_offsets_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.spark.pipelines.feed.BATCHES_KEPT", 3)
    log = BatchLog(tmp_path)
    for number in range(10):
        log.plan({"n": number})
        log.commit()
    assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == ["7", "8", "9"]
    again = BatchLog(tmp_path)
    assert (again.query_id, again.planned, again.committed) == (log.query_id, 9, 9)
    assert again.read_end(9) == {"n": 9}


@pytest.mark.parametrize("content", ["", 'v1\n{}\n{"n":', "v1\n\xff"])
def test_a_broken_file_of_offsets_is_named(tmp_path: Path, content: str) -> None:
    log = BatchLog(tmp_path)
    log.plan({"n": 0})
    (tmp_path / "offsets" / "0").write_text(content)
    with pytest.raises(ConfigError, match=r"offsets/0 does not end with the offsets of a batch"):
        log.read_end(0)


def test_a_lake_is_written_by_one_process_at_a_time(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(T_0=FakeQueue(0, 7))
    (tmp_path / "_checkpoint").mkdir(parents=True)
    land_all(make_feed(tmp_path))
    (tmp_path / "_checkpoint" / "metadata").write_text('{"id": "another"}')
    with pytest.raises(ConfigError, match="another checkpoint"):
        make_feed(tmp_path).run_batch(run_here)


def test_losses_fail_the_turn_or_are_counted(net: FakeNet, tmp_path: Path) -> None:
    queue = FakeQueue(0, 5)
    net.add_master(T_0=queue)
    feed = make_feed(tmp_path)
    land_all(feed)
    queue.begin, queue.end = 8, 10
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        feed.run_batch(run_here)
    allowed = make_feed(tmp_path, source=(("failOnDataLoss", "false"),))
    result = allowed.run_batch(run_here)
    assert result is not None
    assert (result.done.rows, result.lost) == (2, 3)


def test_freshness_is_measured_from_birth_to_the_visible_row() -> None:
    born = Counter({100: 98, 60: 1, 20: 1})
    now_ms = 101 * SLOT_MS
    assert find_age(born, 0.5, now_ms) == SLOT_MS / 1000
    assert find_age(born, 0.99, now_ms) == 41 * SLOT_MS / 1000
    assert find_age(Counter(), 0.5, now_ms) is None


def test_a_lake_is_compacted_and_expired_between_batches(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = FakeQueue(0, 60)
    net.add_master(T_0=queue)
    monkeypatch.setattr("tandemmq.spark.pipelines.feed.UPKEEP_S", 1e-9)
    compacted = make_feed(tmp_path / "compacted", is_compacted=True)
    compacted.maintain()
    land_all(compacted)
    compacted.maintain()
    # Five batches became one; the newest stays as it is, because it may be repeated.
    assert len(list((tmp_path / "compacted").glob("batch=*"))) == 2
    queue.end = 65
    assert land_all(compacted) == 5
    assert read_places(tmp_path / "compacted") == [(0, n) for n in range(65)]
    expired = make_feed(tmp_path / "expired", ttl_days=1)
    land_all(expired)
    expired.maintain()
    # The messages of this test were stored in 1970.
    assert read_places(tmp_path / "expired") == [(0, n) for n in range(60, 65)]
    assert land_all(expired) == 0


@pytest.mark.skipif(find_spec("deltalake") is None, reason="no deltalake")
def test_a_table_by_key_survives_a_kill(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    def read_keys() -> list[tuple[str, int]]:
        rows = DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["tags", "queueOffset"]).to_pylist()
        return sorted((row["tags"], row["queueOffset"]) for row in rows)

    def tag_of(offset: int) -> str:
        return "" if offset == 6 else "abcd"[offset % 4]

    queue = FakeQueue(0, 5, tag_of=tag_of)
    net.add_master(T_0=queue)
    given = {"lake_format": "delta", "key": "tags"}
    assert land_all(make_feed(tmp_path, **given)) == 5
    assert read_keys() == [("a", 4), ("b", 1), ("c", 2), ("d", 3)]
    queue.end = 8

    def killed(log: BatchLog) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(BatchLog, "commit", killed)
        with pytest.raises(Killed):
            make_feed(tmp_path, **given).run_batch(run_here)
    result = make_feed(tmp_path, **given).run_batch(run_here)
    assert result is not None
    # The message without a tag is a bad record.
    assert (result.done.rows, result.done.bad, result.lost) == (2, 1, 0)
    assert read_keys() == [("a", 4), ("b", 5), ("c", 2), ("d", 7)]


def test_the_lock_is_free_between_turns(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(T_0=FakeQueue(0, 7))
    land_all(make_feed(tmp_path))
    with hold_directory(tmp_path):
        pass
