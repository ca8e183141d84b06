"""Taskiq with a worker process: results by reply, errors, delays, a worker that was killed, a lost master."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from taskiq import TaskiqMessage
from taskiq.exceptions import ResultGetError, SendTaskError

from tandemmq.client import Admin, Producer
from tandemmq.client.consumer.pop import PopConsumer
from tandemmq.errors import BadRequest, BrokerUnreachable, NotPermitted, RequestRejected
from tandemmq.integrations import taskiq_broker
from tandemmq.integrations.taskiq_broker import TandemBroker
from tandemmq.protocol.codes import ResponseCode
from tandemmq.testing import Cluster
from waits import PATIENCE_S, until

HERE = Path(__file__).parent


@contextmanager
def running_worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a worker, as the command `taskiq worker` does; its log is in `folder`."""
    command = [sys.executable, "-m", "taskiq", "worker", "taskiq_app:broker", "--workers", "1"]
    with (folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(command, cwd=HERE, stdout=log, stderr=log, start_new_session=True)
        try:
            yield worker
        finally:
            worker.terminate()
            try:
                worker.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                raise


@asynccontextmanager
async def application(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModuleType]:
    """Imports the application anew, with this cluster, and starts its broker."""
    monkeypatch.setenv("TASKIQ_SERVERS", cluster.name_servers)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delitem(sys.modules, "taskiq_app", raising=False)
    import taskiq_app

    await taskiq_app.broker.startup()
    try:
        yield taskiq_app
    finally:
        await taskiq_app.broker.shutdown()


@pytest.mark.process
async def test_results_errors_and_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster, application(cluster, monkeypatch) as tasks:
        with running_worker(tmp_path):
            sums = [await tasks.add.kiq(number, 1) for number in range(20)]
            results = [await one.wait_result(timeout=PATIENCE_S) for one in sums]
            assert [one.return_value for one in results] == list(range(1, 21))
            failed = await (await tasks.fail.kiq()).wait_result(timeout=PATIENCE_S)
            assert failed.is_err
            assert "on purpose" in str(failed.error)
            sent_at = time.time()
            later = await tasks.finished_at.kicker().with_labels(delay=1).kiq()
            assert (await later.wait_result(timeout=PATIENCE_S)).return_value >= sent_at + 1
            with pytest.raises(ResultGetError):
                await tasks.broker.result_backend.get_result("unknown")


@pytest.mark.process
async def test_the_sender_of_a_task_that_runs_again_gets_its_last_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker sends a retry and a requeue: their replies must not go to the worker."""
    async with Cluster() as cluster, application(cluster, monkeypatch) as tasks:
        with running_worker(tmp_path):
            retried, requeued = await tasks.succeed_at_third.kiq(), await tasks.requeue_once.kiq()
            assert (await retried.wait_result(timeout=PATIENCE_S)).return_value == 2
            assert (await requeued.wait_result(timeout=PATIENCE_S)).return_value == "1"


@pytest.mark.process
async def test_a_worker_that_stops_in_order_ends_and_acknowledges_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker commits a pop once it is flushed.
    async with (
        Cluster(settings={"flushCommitLogLeastPages": 0}) as cluster,
        application(cluster, monkeypatch) as tasks,
    ):
        mark = tmp_path / "mark"
        with running_worker(tmp_path) as worker:
            task = await tasks.nap.kiq(str(mark))
            await until(mark.exists)
            worker.terminate()
            assert (await task.wait_result(timeout=PATIENCE_S)).return_value == "rested"
            assert await asyncio.to_thread(worker.wait, PATIENCE_S) == 0
        async with Admin(cluster.name_servers) as admin:

            async def is_acknowledged() -> bool:
                return await admin.lag("taskiq", "taskiq") == 0

            await until(is_acknowledged)
        assert mark.read_text() == "begun\n"


async def test_tasks_that_were_sent_before_the_first_worker_are_read() -> None:
    """Without the setting a broker gives a new group all messages of a topic that is still in memory."""
    settings = {"initPopOffsetByCheckMsgInMem": False}
    async with Cluster(settings=settings) as cluster, asyncio.timeout(PATIENCE_S):
        await cluster.create_topic("taskiq", queue_count=1)
        broker = TandemBroker(cluster.name_servers)
        await broker.startup()
        for number in range(3):
            task = TaskiqMessage(task_id=str(number), task_name="t", labels={}, args=[], kwargs={})
            await broker.kick(broker.formatter.dumps(task))
        async with aclosing(broker.listen()) as tasks:
            found = [broker.formatter.loads((await anext(tasks)).data).task_id for _ in range(3)]
        assert found == ["0", "1", "2"]
        await broker.shutdown()


async def test_startups_at_the_same_time_share_a_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker and a scheduler of one process may both start the broker."""
    started: list[Producer] = []

    async def start(producer: Producer) -> Producer:
        started.append(producer)
        return await real_start(producer)

    real_start = Producer.start
    monkeypatch.setattr(Producer, "start", start)
    async with Cluster() as cluster, asyncio.timeout(PATIENCE_S):
        broker = TandemBroker(cluster.name_servers)
        await asyncio.gather(broker.startup(), broker.startup())
        assert started == [broker.producer]
        await broker.shutdown()


@pytest.mark.parametrize(
    "final",
    [BadRequest("never valid"), RequestRejected("no pops", code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)],
)
async def test_a_worker_waits_at_refusals_until_one_is_final(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, final: RequestRejected
) -> None:
    monkeypatch.setattr(taskiq_broker, "PAUSE_S_MIN", 0.01)
    caplog.set_level(logging.WARNING)  # Celery's worker of other cases hides warnings
    refusals = iter([NotPermitted("no right yet"), RequestRejected("a failure"), final])

    async def receive(*_: object) -> None:
        raise next(refusals)

    monkeypatch.setattr(PopConsumer, "receive", receive)
    async with Cluster() as cluster, asyncio.timeout(PATIENCE_S):
        broker = TandemBroker(cluster.name_servers)
        await broker.startup()
        with pytest.raises(RequestRejected) as raised:
            await anext(broker.listen())
        assert raised.value is final
        assert caplog.text.count("tasks cannot be read now: ") == 2
        assert f"tasks cannot be read: {final}" in caplog.text
        await broker.shutdown()


@pytest.mark.process
async def test_tasks_survive_a_killed_worker_and_a_lost_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(elected=True) as cluster, application(cluster, monkeypatch) as tasks:
        with running_worker(tmp_path) as victim:
            first = await tasks.add.kiq(1, 1)
            assert (await first.wait_result(timeout=PATIENCE_S)).return_value == 2
            os.killpg(victim.pid, signal.SIGKILL)
        sent = [await tasks.add.kiq(number, 1) for number in range(10)]
        with running_worker(tmp_path):
            await cluster.lose_master()
            sent += [await tasks.add.kiq(number, 1) for number in range(10, 20)]
            results = [await one.wait_result(timeout=PATIENCE_S) for one in sent]
        assert [one.return_value for one in results] == list(range(1, 21))


async def test_a_broker_that_is_not_started_or_finds_no_server_says_so() -> None:
    broker = TandemBroker("127.0.0.1:1")

    @broker.task
    async def nothing() -> None: ...

    with pytest.raises(SendTaskError) as refused:
        await nothing.kiq()
    assert "call `await broker.startup()` first" in str(refused.value.__cause__)
    with pytest.raises(BrokerUnreachable):
        async with asyncio.timeout(PATIENCE_S):
            await broker.startup()
    await broker.shutdown()
