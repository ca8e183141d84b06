"""Fixtures and rules of all tests."""

from __future__ import annotations

import functools
import gc
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

import late_sockets
from tandemmq.protocol import speedups
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.speedups import load_speedups

# What a user has set for his own brokers and terminal must not reach those that tests start.
for _name in (
    *("NAMESRV_ADDR", "ROCKETMQ_HOME", "TANDEMMQ_TLS_CA", "TANDEMMQ_CONTEXT", "TANDEMMQ_SPEEDUPS"),
    *("COLUMNS", "LINES", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE"),
):
    os.environ.pop(_name, None)
# The user's `tandemmq contexts` have clusters that tests must not touch.
_CONFIG = tempfile.TemporaryDirectory(prefix="tandemmq-config-")
os.environ["XDG_CONFIG_HOME"] = _CONFIG.name

# A busy machine must not decide whether a property holds, so nothing here is timed. The same examples in
# every run keep the gate steady; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile(
    "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Typer reads the signatures of all commands of a group before it runs one. A process of a user does that
# once, a test that runs a dozen commands a dozen times.
typer.main.get_params_from_function = functools.cache(typer.main.get_params_from_function)

if _seed := os.environ.get("TANDEMMQ_LATE_SOCKETS"):
    late_sockets.install(int(_seed))

if os.environ.get("TANDEMMQ_TEST_SPEEDUPS"):  # `make test SPEEDUPS=1`
    load_speedups()
    if speedups.state != "used":
        raise pytest.UsageError(f"tandemmq-speedups is {speedups.state}; `make test SPEEDUPS=1` builds it")

LONG = (
    "crash/test_kill_under_load.py",
    "crash/test_power_cuts.py",
    "demo/test_demo.py",
    "faults/test_changed_logs.py",
    "faults/test_client_soak.py",
    "faults/test_failover.py",
    "faults/test_grpc_chaos.py",
    "faults/test_process_faults.py",
    "faults/test_soak.py",
    "scenario/test_celery.py",
    "scenario/test_cli_document.py",
    "scenario/test_example_applications.py",
    "simulation/test_reconnect_for_ever.py",
    "spark/test_spark_audit.py",
    "spark/test_spark_bench.py",
    "spark/test_spark_contract.py",
    "spark/test_spark_dead_letters.py",
    "spark/test_spark_docs.py",
    "spark/test_spark_exactly_once.py",
    "spark/test_spark_examples.py",
    "spark/test_spark_lake_formats.py",
    "spark/test_spark_landing.py",
    "spark/test_spark_pipeline_processes.py",
    "spark/test_spark_replay.py",
    "spark/test_spark_tables.py",
    "spark/test_spark_transactional.py",
    "unit/sim/test_planted_bugs.py",
)
"""Real processes that are killed, and Spark sessions: few tests, and more than half of the time of all. Some
tests of other files have the mark themselves.
"""


class FileSchedule(LoadFileScheduling):
    """A schedule by files. The files of `tests/spark` belong to one process, because each process that runs
    one of them starts Spark and a cluster; the long ones stay apart: they take longer than a start. The first
    process begins with the simulations: they compute, while the tests that come before them, in
    `tests/scenario`, mostly wait.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is self.nodes[0]:
            computing = next((name for name in self.workqueue if name >= "tests/simulation"), None)
            if computing is not None:
                self.workqueue.move_to_end(computing, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        name = super()._split_scope(nodeid)
        folder = "tests/spark"
        return folder if name.startswith(f"{folder}/") and name.removeprefix("tests/") not in LONG else name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileSchedule | None:
    return FileSchedule(config, log) if config.getvalue("dist") == "loadfile" else None


gc.disable()  # what is imported and collected lives until the end


def pytest_collection_finish() -> None:
    """Spares the garbage collector the imported modules and the collected tests."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` leaves out what is marked here, `make test-long` runs it."""
    tests = Path(__file__).parent
    long = {str(tests / name) for name in LONG}
    for item in items:
        if str(item.path) in long:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """A command run inside a test configures logging; the next test must not write to its streams."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.disable(disabled)


def _sync_nothing(descriptor: int) -> None:
    """Stands for `os.fsync`: no test of this process can see what a power cut would take, and the disk takes
    milliseconds. Tests of power cuts have disks in memory, or brokers in other processes.
    """
    os.fstat(descriptor)  # a closed file is an error still


os.fsync = os.fdatasync = _sync_nothing


def half_full(_disk: RealDisk, _path: Path) -> tuple[int, int]:
    return 2 << 40, 1 << 40


@pytest.fixture(autouse=True)
def disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every test a disk with room: above 75 % brokers delete files, above 90 % they refuse sends."""
    monkeypatch.setattr(RealDisk, "usage", half_full)
