"""Proves that two workers read nearly twice as fast as one if the processors are not the limit.

    python -m pytest -s tests/spark_proof/prove_two_workers.py

Both workers share this machine, and one alone can keep two cores busy. The broker is therefore placed behind
links of LINK_BYTES per second and connection: a task waits for its link, and the processors are idle. This is
measured, not assumed: all processes together must have used a small part of the available processor time. It
takes minutes, so it is not part of the usual run: `make spark` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from proof_processes import Standalone, standalone
from slow_links import slow_links

from bench.processes import tree_seconds
from bench.spark_read import fill_topic
from tandemmq.errors import ConfigError
from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.spark.java import find_java
from tandemmq.units import MIB

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

TOPIC = "TwoWorkers"
QUEUES = 8
LINK_BYTES = 2 * MIB
BODY_BYTES = 4096
ROWS = 48 * LINK_BYTES // BODY_BYTES
BROKER, LINKS = "127.0.0.1", "127.0.0.2"
SHARE_MAX = 0.5
"""The maximum share of one core's time, on a machine with at least two cores."""


class Read(NamedTuple):
    """The duration of a read of the topic, and the processor time of all processes meanwhile."""

    seconds: float
    processor_seconds: float


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """Yields the address of a name server whose broker is registered with the address of the slow links."""
    server = Server("name server", ["namesrv", "--set", "listenPort=0"], tmp_path / "namesrv.log")
    with stopping([server]):
        address = server.start().replace("0.0.0.0", BROKER)
        settings = {
            "namesrvAddr": address,
            "brokerName": "b",
            "brokerIP1": LINKS,
            "bindAddress": BROKER,
            "listenPort": 0,
            "storePathRootDir": tmp_path / "store",
        }
        conf = write_properties(tmp_path / "broker.conf", settings)
        broker = Server("broker", ["broker", "-c", str(conf)], tmp_path / "broker.log")
        with stopping([broker]):
            port = int(broker.start().rpartition(":")[2])
            at = f"{BROKER}:{port}"
            fill_topic(at, f"{TOPIC}Small", rows=16 * QUEUES, body_bytes=BODY_BYTES, queue_count=QUEUES)
            fill_topic(at, TOPIC, rows=ROWS, body_bytes=BODY_BYTES, queue_count=QUEUES)
            with slow_links((LINKS, port), (BROKER, port), bytes_per_second=LINK_BYTES):
                yield address


def _read(cluster: Standalone, name_server: str, workers: int, log: Path) -> Read:
    script = Path(__file__).with_name("read_timed.py")
    command = [sys.executable, str(script), cluster.url, name_server, TOPIC, str(workers)]
    paths = [str(script.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "SPARK_LOCAL_IP": BROKER, "PYTHONPATH": os.pathsep.join(paths)}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as driver,
    ):
        assert driver.stdout is not None
        before = 0.0
        for line in driver.stdout:
            # The relay runs in this process; its children are everything else.
            used = tree_seconds(os.getpid()) + time.process_time()
            if line.startswith("begun"):
                before = used
            elif line.startswith("ended"):
                result = Read(float(line.split()[1]), used - before)
        driver.wait(120)
    assert driver.returncode == 0, log.read_text(errors="replace")[-4000:]
    return result


def test_two_workers_read_nearly_twice_as_fast_as_one(name_server: str, tmp_path: Path) -> None:
    try:
        find_java()
    except ConfigError as error:
        pytest.skip(str(error))
    with standalone(tmp_path) as cluster:
        one, two = (_read(cluster, name_server, n, tmp_path / f"driver-{n}.log") for n in (1, 2))
    print(f"one worker {one}, two workers {two}, {one.seconds / two.seconds:.2f} times")
    for read in (one, two):
        assert read.processor_seconds < SHARE_MAX * read.seconds, (one, two)
    assert one.seconds >= ROWS * BODY_BYTES / LINK_BYTES, "the link was no limit"
    assert one.seconds / two.seconds >= 1.8, (one, two)
