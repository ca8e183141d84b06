from __future__ import annotations

import asyncio

import pytest

from tandemmq.runtime.tasks import TaskScope


async def forever(name: str, ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def fail() -> None:
    raise ValueError("broken")


async def test_close_ends_tasks_youngest_first() -> None:
    scope = TaskScope("broker")
    ended: list[str] = []
    tasks = [scope.start(name, forever(name, ended)) for name in ("a", "b", "c")]
    await asyncio.sleep(0)
    assert len(scope) == 3
    await scope.close()
    assert ended == ["c", "b", "a"]
    assert len(scope) == 0
    assert tasks[0].get_name() == "broker.a"
    await scope.close()


async def test_first_failure_stops_the_scope_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, BaseException]] = []
    ended: list[str] = []
    scope = TaskScope("broker", lambda name, error: told.append((name, error)))
    other = scope.start("other", forever("other", ended))
    scope.start("flusher", fail())
    scope.start("second", fail())
    await asyncio.wait([other])
    assert [name for name, _ in told] == ["broker.flusher"]
    assert isinstance(scope.failure, ValueError)
    assert ended == ["other"]
    assert [record.message for record in caplog.records] == ["task.failed"]


async def test_task_that_ends_well_is_forgotten() -> None:
    scope = TaskScope("broker")
    task = scope.start("short", asyncio.sleep(0))
    await task
    await asyncio.sleep(0)
    assert len(scope) == 0
    assert scope.failure is None


async def test_closed_scope_starts_nothing() -> None:
    scope = TaskScope("broker")
    await scope.close()
    ended: list[str] = []
    task = scope.start("late", forever("late", ended))
    await asyncio.wait([task])
    assert task.cancelled()
    assert ended == []
