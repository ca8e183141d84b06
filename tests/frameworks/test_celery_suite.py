"""Celery's own integration tests over our transport, with a Redis server for results: `make frameworks` gets
Celery's sources and the server.

Their worker runs in a thread of this process. `EXCLUDED` lists the cases that cannot pass, with reasons.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from celery.contrib.testing.app import TestApp, setup_default_app
from celery.contrib.testing.manager import Manager
from celery.contrib.testing.worker import start_worker
from celery.worker import state

from ports import free_port
from tandemmq.integrations import kombu_transport
from tandemmq.testing import BlockingCluster
from waits import PATIENCE_S, until_blocking

SOURCES: Final = os.environ.get("TANDEMMQ_FRAMEWORK_SOURCES")
if not SOURCES:
    pytest.skip("`make frameworks` gets Celery's tests", allow_module_level=True)

kombu_transport.register()
REDIS_PORT: Final = free_port()
os.environ["REDIS_PORT"] = str(REDIS_PORT)
os.environ["TEST_BACKEND"] = f"redis://127.0.0.1:{REDIS_PORT}/0"  # read when Celery's tests are imported

BY_CELERY: Final = "Celery itself skips it"
EXCLUDED: Final = {
    "test_tasks.test_multiprocess_producer": BY_CELERY,
    "test_tasks.test_multithread_producer": BY_CELERY,
    "test_tasks.test_task_accepted": BY_CELERY,
    "test_task_replacement.test_replaced_task_nesting_level_0": "clears what the worker may have set already",
    "test_chord.test_chord_error_propagation_with_different_body_types": "revokes and fails tasks at once",
    "test_trace_log_arguments": "waits 10 ms for a log line of another process",
    "test_security, test_serialization, test_worker, test_mem_leak": "do not wait for a task of a worker",
    "modules of RabbitMQ and Azure": "need those",
    "test_Inspect.test_scheduled": "a task with an ETA waits at the broker, so its worker does not list it",
}

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]


def _load(name: str) -> Any:
    """Imports a module of Celery's tests, whose package is `t`. Its cases wait at least as patiently as
    ours.
    """
    if "t" not in sys.modules:
        package = types.ModuleType("t")
        package.__path__ = [str(Path(SOURCES or "").resolve() / "celery" / "t")]
        sys.modules["t"] = package
    module = importlib.import_module(f"t.integration.{name}")
    vars(module).update({"TIMEOUT": 4 * PATIENCE_S} if "TIMEOUT" in vars(module) else {})
    return module


def _collect(module: str, *names: str) -> None:
    """Makes the classes of a module cases of this one, without the excluded cases."""
    for name in names:
        cases = getattr(_load(module), name)
        for method, case in list(vars(cases).items()):
            if f"{name}.{method}" in EXCLUDED:
                delattr(cases, method)
            elif hasattr(case, "pytestmark"):  # neither Celery's time limits nor its repetitions
                case.pytestmark = [one for one in case.pytestmark if one.name not in {"timeout", "flaky"}]
        globals()[f"Test_{module}_{name}"] = cases


# First, as their workers must not share the queue with the one of the other cases.
_collect("test_dedup_chain_dispatch", "test_dedup_chain_dispatch")
_collect("test_prefork_shutdown", "test_prefork_shutdown")
_collect(
    "test_tasks",
    "test_class_based_tasks",
    "test_tasks",
    "test_apply_tasks",
    "test_task_redis_result_backend",
    "test_task_replacement",
)
_collect(
    "test_canvas",
    "test_link_error",
    "test_chain",
    "test_result_set",
    "test_group",
    "test_chord",
    "test_signature_serialization",
    "test_stamping_mechanism",
)
_collect("test_inspect", "test_Inspect")
_collect("test_loader", "test_loader")
inspect = _load("test_inspect").inspect
heartbeat_worker = _load("test_prefork_shutdown").heartbeat_worker


@contextmanager
def redis_server(folder: Path) -> Iterator[None]:
    """Runs a Redis server that stores nothing on the disk."""
    program = shutil.which("redis-server")
    assert program is not None, "the cases need redis-server: `make frameworks` installs it"
    command = [program, "--port", str(REDIS_PORT), "--save", "", "--bind", "127.0.0.1"]
    from redis import ConnectionError as RedisConnectionError
    from redis import Redis

    def answers() -> bool:
        try:
            return bool(Redis(port=REDIS_PORT).ping())
        except RedisConnectionError:
            return False

    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            until_blocking(answers, "the Redis server answers")
            yield
        finally:
            server.terminate()
            server.wait()


@pytest.fixture(scope="module")
def celery_session_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with BlockingCluster() as cluster, redis_server(tmp_path_factory.mktemp("redis")):
        broker = f"tandemmq://{cluster.name_servers}"
        os.environ["TEST_BROKER"] = broker  # read by Celery's `start_worker`
        config = {"broker_url": broker, "result_backend": os.environ["TEST_BACKEND"], "result_extended": True}
        app = TestApp(set_as_current=False, enable_logging=True, config=config)
        with setup_default_app(app):
            app.set_default()
            app.set_current()
            yield app
            gc.collect()  # results unsubscribe when they are collected, which needs the Redis server
        del os.environ["TEST_BROKER"]


@pytest.fixture(scope="module")
def celery_session_worker(celery_session_app: Any) -> Iterator[Any]:
    tasks = _load("tasks")
    celery_session_app.register_task(tasks.ClassBasedAutoRetryTask)
    state.should_stop = None  # the case of the shutdown has set it
    with start_worker(
        celery_session_app, pool="prefork", ping_task_timeout=60, shutdown_timeout=60
    ) as worker:
        yield worker


@pytest.fixture
def dedup_worker(celery_session_app: Any) -> Iterator[Any]:
    """Runs Celery's worker that acknowledges late and repeats no finished task.

    Celery's own fixture configures late acknowledgements. A task copies that for good when it is first used,
    and four tasks of a later case would then fill the worker's prefetch until its fifth has expired.
    """
    tasks = list(celery_session_app.tasks.values())
    celery_session_app.conf.worker_deduplicate_successful_tasks = True
    for task in tasks:
        task.acks_late = True
    with start_worker(
        celery_session_app, pool="solo", perform_ping_check=False, shutdown_timeout=60
    ) as worker:
        yield worker
    for task in tasks:
        del task.acks_late
    celery_session_app.conf.worker_deduplicate_successful_tasks = False


@pytest.fixture(autouse=True)
def app(celery_session_app: Any) -> Any:
    celery_session_app.set_current()
    celery_session_app.set_default()
    # Celery's sender sends no signal if it was made while the signal had no handler.
    celery_session_app.amqp.__dict__.pop("send_task_message", None)
    return celery_session_app


@pytest.fixture
def manager(app: Any, celery_session_worker: Any) -> Iterator[Manager]:
    yield Manager(app)
    with app.connection_for_read() as connection:
        channel = connection.default_channel

        def is_idle() -> bool:
            """Returns True if no task of the case is left; an ending task may have sent its errback."""
            # The worker is of this process, so its tables say which tasks have not ended.
            has_ended = not state.reserved_requests
            is_empty = not channel.queue_declare("celery", passive=True).message_count
            return has_ended and is_empty and not state.reserved_requests

        until_blocking(is_idle, "the worker is idle", 4 * PATIENCE_S)
