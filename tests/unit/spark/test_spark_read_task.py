"""A task's reading: Spark's worker has little to collect after it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from tandemmq.spark import read_task


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    read_task._freeze_imports.cache_clear()
    yield
    read_task._freeze_imports.cache_clear()
    gc.unfreeze()


def test_a_worker_of_spark_no_longer_collects_among_its_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    before = len(gc.get_objects())
    read_task._freeze_imports()
    assert gc.get_freeze_count() >= before
    assert len(gc.get_objects()) < before / 10


def test_other_processes_keep_their_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    before = gc.get_freeze_count()
    read_task._freeze_imports()
    assert gc.get_freeze_count() == before
