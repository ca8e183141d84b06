"""The parallel rebuild gives the same bytes as broker and repair; without Spark: tasks run one by one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from inspect_rig import flip, log_files, make_store, queue_file

import tandemmq.spark.pipelines.rebuild
from tandemmq.errors import ConfigError, StoreError
from tandemmq.runtime.disk import RealDisk
from tandemmq.spark.pipelines.rebuild import Rebuild, RebuildOptions, claim_output, plan_rebuild
from tandemmq.spark.pipelines.rebuild_parts import scan_segment
from tandemmq.spark.pipelines.runner import StopFlag
from tandemmq.store.inspect import InspectOptions, RepairOptions, repair_store

COUNT = 120


class FakeSpark:
    """As much of a session as a rebuild asks for; `broken_after`: the task that fails, counted from 0."""

    def __init__(self, broken_after: int | None = None) -> None:
        self._left = broken_after
        self.sparkContext = SimpleNamespace(
            parallelize=self._parallelize,
            statusTracker=lambda: SimpleNamespace(getActiveStageIds=list),
        )

    def createDataFrame(self, rows: object, schema: str) -> None: ...

    def _parallelize(self, items: list[Any], slices: int) -> Any:
        def call(work: Callable[[Any], Any]) -> list[Any]:
            results = []
            for item in items:
                if self._left == 0:
                    raise RuntimeError("the executor was lost")
                self._left = None if self._left is None else self._left - 1
                results.append(work(item))
            return results

        return SimpleNamespace(map=lambda work: SimpleNamespace(collect=lambda: call(work)))


class Recorder:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def report(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("rebuild") / "store", COUNT)


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def _rebuild(root: Path, out: Path, spark: FakeSpark | None = None) -> tuple[int, Any]:
    options = RebuildOptions(store=root, out=out)
    plan = plan_rebuild(options)
    claim_output(options, plan)
    recorder = Recorder()
    code = Rebuild(cast(Any, spark or FakeSpark()), options, plan, recorder, StopFlag()).run()
    return code, recorder.events[-1]


def _derived(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("consumequeue", "index")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def test_the_bytes_are_those_of_the_broker(root: Path, tmp_path: Path) -> None:
    code, end = _rebuild(root, tmp_path / "out")
    assert (code, end.rows_total) == (0, COUNT)
    assert len(log_files(root)) > 2
    assert _derived(tmp_path / "out") == _derived(root)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["consumequeue", "index"]


def test_the_bytes_are_those_of_a_repair_where_the_store_has_lost_its_own(root: Path, tmp_path: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "A")
    for path in (root / "index").iterdir():
        flip(path, 60, 4)
    assert _rebuild(root, tmp_path / "out")[0] == 0
    repair_store(RepairOptions(inspect=InspectOptions(root=root)), RealDisk())
    assert _derived(tmp_path / "out") == _derived(root)


def test_expired_segments_leave_the_offsets_of_their_queues(root: Path, tmp_path: Path) -> None:
    log_files(root)[0].unlink()
    # A repair leaves queues that are only richer than what the log still says; one wrong entry replaces all.
    flip(queue_file(root, index=-1), 7)
    assert _rebuild(root, tmp_path / "out")[0] == 0
    repair_store(RepairOptions(inspect=InspectOptions(root=root)), RealDisk())
    assert _derived(tmp_path / "out") == _derived(root)


def test_a_torn_tail_ends_the_log_as_it_does_for_a_repair(root: Path, tmp_path: Path) -> None:
    last = next(path for path in reversed(log_files(root)) if path.read_bytes().strip(b"\0"))
    end = len(last.read_bytes().rstrip(b"\0"))
    with last.open("r+b") as file:
        file.seek(end - 40)
        file.write(bytes(40))
    assert _rebuild(root, tmp_path / "out")[0] == 0
    repair_store(RepairOptions(inspect=InspectOptions(root=root)), RealDisk())
    assert _derived(tmp_path / "out") == _derived(root)


def test_damage_in_the_middle_is_refused(root: Path, tmp_path: Path) -> None:
    flip(log_files(root)[0], 4)
    code, end = _rebuild(root, tmp_path / "out")
    assert code == 1
    assert "the log is damaged in 1 places" in end.error
    assert "store repair" in end.error


def test_what_was_killed_goes_on_with_the_parts_that_are_missing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[int] = []

    def count(segment: Any, **more: Any) -> Any:
        scanned.append(segment.file.base)
        return scan_segment(segment, **more)

    monkeypatch.setattr(tandemmq.spark.pipelines.rebuild, "scan_segment", count)
    for broken_after in range(1, 40, 3):
        code, end = _rebuild(root, tmp_path / "out", FakeSpark(broken_after))
        if code == 0:
            break
        assert "the executor was lost" in end.error
    assert code == 0
    assert len(scanned) == len(set(scanned))
    assert _derived(tmp_path / "out") == _derived(root)


def test_foreign_outputs_and_logs_with_gaps_are_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(ConfigError, match="not empty"):
        _rebuild(root, tmp_path / "out")
    code, _ = _rebuild(root, tmp_path / "other", FakeSpark(1))
    assert code == 1
    document = json.loads((tmp_path / "other" / "_work" / "plan.json").read_text())
    document["plan"]["log"] = "another"
    (tmp_path / "other" / "_work" / "plan.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="log"):
        _rebuild(root, tmp_path / "other")
    log_files(root)[1].unlink()
    with pytest.raises(StoreError, match="gap"):
        _rebuild(root, tmp_path / "third")
