"""`tandemmq.testing`: clusters for tests of applications, their faults, and that they leave nothing
behind.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tandemmq.api import controller
from tandemmq.client import BlockingAdmin, Message, SendStatus
from tandemmq.errors import ConfigError, TandemError
from tandemmq.protocol.requests.controller import ElectMasterRequest
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.testing import BlockingCluster, Cluster, ClusterFailed
from tandemmq.testing.cluster import BROKER_NAME
from waits import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "testing.md"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        env={**ENVIRONMENT, **environment},
        cwd=cwd,
        check=False,
    )


def left() -> tuple[int, int, list[str]]:
    """Returns open descriptors, threads except those of executors, and folders."""
    threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
    folders = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("tandemmq-")]
    return len(os.listdir("/proc/self/fd")), len(threads), folders


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("options", [{"slave": True}, {"elected": True}], ids=["paired", "elected"])
@pytest.mark.usefixtures("own_temporary_folder")
async def test_cluster_leaves_nothing_running_after_any_fault(options: dict[str, bool]) -> None:
    async def life() -> None:
        async with Cluster(**options) as cluster, cluster.producer() as producer:
            await cluster.create_topic("T")
            assert (await producer.send(Message(topic="T", body=b"1"))).is_ok
            await cluster.delay_answers(30)
            late = asyncio.ensure_future(producer.send(Message(topic="T", body=b"2"), timeout_s=0.1))
            with pytest.raises(TandemError):
                await late
            await cluster.fill_disk()
            await cluster.stop_slave()
            await cluster.lose_master()

    await life()  # opens what a first run opens permanently
    tasks, before = len(asyncio.all_tasks()), left()
    await life()
    await until(lambda: len(asyncio.all_tasks()) == tasks, "no task is left")
    await until(lambda: left() == before, "no socket, file, thread or folder is left")


async def test_acknowledged_messages_survive_the_loss_of_the_master() -> None:
    async with Cluster() as cluster, cluster.producer() as producer:
        await cluster.create_topic("T")
        for number in range(20):
            await producer.send(Message(topic="T", body=b"%d" % number))
        address = cluster.master_address
        await cluster.lose_master()
        with pytest.raises(ClusterFailed, match="master does not run"):
            await cluster.lose_master()
        await cluster.restart_master()
        assert cluster.master_address == address
        async with cluster.consumer("T") as consumer:
            bodies = {message.body for message in await _take(consumer, 20)}
        assert bodies == {b"%d" % number for number in range(20)}


async def test_every_fault_ends_with_heal() -> None:
    async with Cluster(slave=True) as cluster, cluster.producer() as producer:
        await cluster.create_topic("T")
        message = Message(topic="T", body=b"x")
        await cluster.delay_acks(0.2)
        clock = asyncio.get_running_loop()
        begin = clock.time()
        assert (await producer.send(message)).status is SendStatus.SEND_OK
        assert clock.time() - begin >= 0.2
        await cluster.fill_disk()
        with pytest.raises(TandemError):
            await producer.send(message, timeout_s=0.3)
        await cluster.cut_connections()
        await cluster.stop_slave()
        await cluster.lose_master()
        await cluster.heal()
        for _ in range(8):
            assert (await producer.send(message)).status is SendStatus.SEND_OK


async def test_an_elected_cluster_replaces_each_lost_master() -> None:
    async with Cluster(elected=True) as cluster, cluster.producer() as producer:
        await cluster.create_topic("T", queue_count=1)
        addresses = []
        for number in range(3):
            addresses.append(cluster.master_address)
            assert (await producer.send(Message(topic="T", body=b"%d" % (2 * number)))).is_ok
            await cluster.lose_master()
            assert cluster.master_address != addresses[-1] == cluster.slave_address
            assert (await producer.send(Message(topic="T", body=b"%d" % (2 * number + 1)))).is_ok
            await cluster.start_slave()
        assert addresses == [addresses[0], addresses[1], addresses[0]]
        await cluster.restart_master()
        assert cluster.master_address == addresses[0]
        async with cluster.consumer("T") as consumer:
            assert [message.body for message in await _take(consumer, 6)] == [b"%d" % n for n in range(6)]


async def test_an_elected_cluster_heals_when_nobody_is_left() -> None:
    async with Cluster(elected=True) as cluster, cluster.producer() as producer:
        await cluster.create_topic("T")
        await cluster.lose_master()
        await cluster.lose_master()
        with pytest.raises(TandemError):
            await producer.send(Message(topic="T", body=b"1"), timeout_s=0.3)
        await cluster.heal()
        assert (await producer.send(Message(topic="T", body=b"2"))).is_ok
        await cluster.cut_connections()
        await cluster.stop_slave()
        assert (await producer.send(Message(topic="T", body=b"3"))).is_ok


async def test_a_cluster_follows_an_election_that_it_did_not_cause() -> None:
    async with Cluster(elected=True) as cluster, cluster.producer() as producer:
        await cluster.create_topic("T")
        slave = cluster.slave_address
        client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
        try:
            leader = await controller.find_leader(client, cluster.controller_address)
            group = (await controller.read_sync_states(client, leader, [BROKER_NAME]))[BROKER_NAME]
            (target,) = [one.broker_id for one in group.in_sync if one.address == slave]
            header = ElectMasterRequest(broker_name=BROKER_NAME, broker_id=target, is_designated=True)
            await controller.elect_master(client, leader, header, LoopClock().now_ms())
        finally:
            await client.close()
        await cluster.heal()
        assert cluster.master_address == slave
        assert (await producer.send(Message(topic="T", body=b"1"))).is_ok


async def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="did you mean slaveTimeout"):
        Cluster(settings={"slaveTimeot": 5})
    cluster = Cluster(settings={"traceOn": False})
    with pytest.raises(ClusterFailed, match="not started"):
        await cluster.lose_master()
    async with cluster:
        with pytest.raises(ClusterFailed, match=re.escape("Cluster(elected=True)")):
            _ = cluster.controller_address
        with pytest.raises(ClusterFailed, match=re.escape("Cluster(slave=True)")):
            await cluster.stop_slave()
        with pytest.raises(ClusterFailed, match="from 0 to 3600"):
            await cluster.delay_answers(-1)
    with pytest.raises(ClusterFailed, match="make another"):
        await cluster.start()


def test_a_blocking_cluster_is_used_from_plain_threads() -> None:
    with BlockingCluster() as cluster, cluster.producer() as producer:
        cluster.create_topic("T", queue_count=1)
        producer.send(Message(topic="T", body=b"1"))
        cluster.restart_master()
        cluster.cut_connections()
        producer.send(Message(topic="T", body=b"2"))
        with cluster.consumer("T") as consumer:
            assert [next(consumer).body for _ in range(2)] == [b"1", b"2"]


async def _take(consumer: object, count: int) -> list[Message]:
    messages: list[Message] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(messages) < count:
            messages += await consumer.poll(count - len(messages), 0.5)  # type: ignore[attr-defined]
    return messages


@pytest.mark.process
def test_the_tests_of_the_document_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == DOCUMENT.read_text().count("```python")
    for name, source in blocks:
        (tmp_path / name).write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    plugins = ("-p", "tandemmq.pytest_plugin", "-p", "pytest_asyncio.plugin")
    done = run("-m", "pytest", *plugins, cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


@pytest.mark.process
def test_a_running_cluster_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "test_outside.py").write_text(
        """
import pytest
from tandemmq.client import Message
from tandemmq.testing import ClusterFailed

def test_send(topic, producer, consumer, published):
    producer.send(Message(topic, b"order 1"))
    assert consumer.poll(1, timeout_s=10)[0].body == published(topic)[0].body == b"order 1"

def test_faults(tandemmq_cluster):
    for fault in ("lose_master", "cut_connections", "fill_disk"):
        with pytest.raises(ClusterFailed, match="runs outside of this test"):
            getattr(tandemmq_cluster, fault)()
    with pytest.raises(ClusterFailed, match="runs outside of this test"):
        tandemmq_cluster.travel(1)
"""
    )
    with BlockingCluster() as cluster, BlockingAdmin(cluster.name_servers) as admin:
        before = admin.topics()
        options = ("-p", "tandemmq.pytest_plugin", "--tandemmq-url", cluster.name_servers)
        done = run("-m", "pytest", *options, cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 passed" in done.stdout
        assert {one for one in admin.topics() if not one.startswith("%RETRY%")} <= set(before)


@pytest.mark.process
def test_another_language_is_served_by_the_module(tmp_path: Path) -> None:
    (script,) = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    words = script.replace("python -m", f"{sys.executable} -m")
    done = subprocess.run(
        ["sh", "-c", words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=ENVIRONMENT,
        cwd=tmp_path,
        check=False,
    )
    address, *answers = done.stdout.splitlines()
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address), done.stderr
    assert answers == ["ok"] * 4


@pytest.mark.process
def test_the_example_passes_with_this_package_and_pytest_alone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "billing", tmp_path / "billing")
    done = run(
        *("-W", "error", "-m", "pytest", "-p", "tandemmq.pytest_plugin"),
        cwd=tmp_path / "billing",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
