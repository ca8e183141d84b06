"""Taskiq's own cases of tasks, retries, requeues and results, over our broker and a real cluster: `make
frameworks` gets Taskiq's sources.

Their in-memory broker becomes one of ours whose receiver runs in the same event loop. `EXCLUDED` lists the
cases that cannot pass, with reasons.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from taskiq import AsyncBroker, AsyncTaskiqTask, BrokerMessage, SmartRetryMiddleware
from taskiq.api import run_receiver_task

from tandemmq.integrations.taskiq_broker import TandemBroker
from tandemmq.testing import BlockingCluster
from waits import PATIENCE_S

SOURCES: Final = os.environ.get("TANDEMMQ_FRAMEWORK_SOURCES")
if not SOURCES:
    pytest.skip("`make frameworks` gets Taskiq's tests", allow_module_level=True)

ITS_OWN: Final = "about the in-memory broker itself"
ONE_REPLY: Final = "a reply is sent once, so with no_result_on_retry=False the first result stands"
EXCLUDED: Final = {
    "test_cannot_listen": ITS_OWN,
    "test_inline_awaits": ITS_OWN,
    "test_wait_all": ITS_OWN,
    "test_inmemory_success": ITS_OWN,  # it reads a private set; test_execution is the same case
    "test_wait_result_error": ONE_REPLY,
    "test_wait_result_no_result": ONE_REPLY,
    "test_startup": "the in-memory broker is client and worker at once",
    "test_shutdown": "the in-memory broker is client and worker at once",
    "test_progress_tracker_validation_error": "an error travels as JSON, which this one cannot be made from",
    "test_progress_tracker_ctx_raw": "progress is not stored: results travel as replies",
}
MODULES: Final = (
    "test_requeue",
    "test_retry_task",
    "middlewares/test_task_retry",
    "brokers/test_inmemory",
    "depends/test_progress_tracker",
)
NUMBERS: Final = count()


def _load(name: str) -> ModuleType:
    path = Path(SOURCES or "") / "taskiq" / "tests" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"taskiq_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # Taskiq looks for the module of a task
    spec.loader.exec_module(module)
    return module


for _module in map(_load, MODULES):
    for _name, _case in vars(_module).items():
        if _name.startswith("test_") and _name not in EXCLUDED:
            globals()[f"{_name}_of_{_module.__name__}"] = _case


class ReceivingBroker(TandemBroker):
    """Starts itself, and a receiver of its own, with the first task."""

    def __init__(self, name_servers: str) -> None:
        name = f"suite-{next(NUMBERS)}"
        super().__init__(name_servers, topic=name, group=name)
        self.receiver: asyncio.Task[None] | None = None
        self.with_results_by_reply()

    async def kick(self, message: BrokerMessage) -> None:
        if self._producer is None:
            await self.startup()
        if self.receiver is None:
            self.receiver = asyncio.create_task(run_receiver_task(self))
        await super().kick(message)


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with BlockingCluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
async def brokers(
    cluster: BlockingCluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """Puts our broker in the place of the in-memory one."""
    made: list[ReceivingBroker] = []

    def make() -> ReceivingBroker:
        made.append(ReceivingBroker(cluster.name_servers))
        return made[-1]

    wait_result = AsyncTaskiqTask.wait_result

    async def wait_patiently(task: Any, check_interval: float = 0.1, *_: Any, **__: Any) -> Any:
        return await wait_result(task, check_interval, timeout=PATIENCE_S)

    monkeypatch.setattr(AsyncTaskiqTask, "wait_result", wait_patiently)
    monkeypatch.setattr(SmartRetryMiddleware, "make_delay", lambda *_: 0.1)
    monkeypatch.setitem(request.function.__globals__, "InMemoryBroker", make)
    monkeypatch.setattr(AsyncBroker, "global_task_registry", {})
    yield
    for broker in made:
        if broker.receiver is not None:
            broker.receiver.cancel()
            await asyncio.wait([broker.receiver])
        await broker.shutdown()
