"""Clients and processes that fork, as those of gunicorn and of Celery's prefork pool do."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.client import BlockingProducer, Message, Producer
from tandemmq.client.blocking import shared_thread
from tandemmq.errors import ClientError
from tandemmq.testing import BlockingCluster

pytestmark = pytest.mark.process


def run_in_child(work: Callable[[], object], folder: Path) -> None:
    """Runs the function in a forked process; fails if it raises."""
    log = folder / "child.log"
    child = os.fork()
    if child == 0:
        code = 0
        try:
            work()
        except BaseException:  # noqa: BLE001  # reported by the parent
            log.write_text(traceback.format_exc())
            code = 1
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, log.read_text()


def test_a_client_of_the_parent_says_so_and_a_new_one_works(tmp_path: Path) -> None:
    with BlockingCluster() as cluster, cluster.producer() as producer:
        cluster.create_topic("Forked", queue_count=1)

        def child() -> None:
            with pytest.raises(ClientError, match="the process has forked since the client was started"):
                producer.send(Message("Forked", b"by the parent's client"))
            producer.close()
            with BlockingProducer("child", cluster.name_servers) as own:
                own.send(Message("Forked", b"child"))

        producer.send(Message("Forked", b"before"))
        run_in_child(child, tmp_path)
        producer.send(Message("Forked", b"after"))
        with cluster.consumer("Forked") as consumer:
            assert [next(consumer).body for _ in range(3)] == [b"before", b"child", b"after"]


def test_an_asyncio_client_of_the_parent_says_so_and_leaves_the_connection_alone(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    with BlockingCluster() as cluster:
        cluster.create_topic("Forked", queue_count=1)
        producer = Producer("parent", cluster.name_servers)
        loop.run_until_complete(producer.start())
        loop.run_until_complete(producer.send(Message("Forked", b"before")))

        def child() -> None:
            with pytest.raises(ClientError, match="the process has forked since the client was started"):
                asyncio.run(producer.send(Message("Forked", b"by the parent's client")))

        run_in_child(child, tmp_path)
        loop.run_until_complete(producer.send(Message("Forked", b"after")))
        loop.run_until_complete(producer.close())
        loop.close()
        with cluster.consumer("Forked") as consumer:
            assert [next(consumer).body for _ in range(2)] == [b"before", b"after"]


def test_a_fork_while_another_thread_starts_a_client(tmp_path: Path) -> None:
    with BlockingCluster() as cluster:
        cluster.create_topic("Forked", queue_count=1)
        is_held, may_go = threading.Event(), threading.Event()

        def hold() -> None:
            with shared_thread._lock:
                is_held.set()
                may_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()

        def child() -> None:
            with BlockingProducer("child", cluster.name_servers) as own:
                own.send(Message("Forked", b"child"))

        try:
            run_in_child(child, tmp_path)
        finally:
            may_go.set()
            thread.join()
