"""Three brokers, a controller and a name server as processes: the master is killed under load, another one
replaces it, no acknowledged message is lost, and the old master comes back as its slave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from tandemmq.api.broker_admin import query_ha_status
from tandemmq.api.calls import call
from tandemmq.api.controller import find_leader
from tandemmq.client import (
    Admin,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    StartFrom,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.bodies.replica import GroupSyncState, SyncStateData
from tandemmq.protocol.codes import RequestCode
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process

NAME = "group"
GAP_S_MAX = 3.0
READ_S_MAX = 15.0


class Cluster:
    """Processes by name; `broker-1` to `broker-3` have a directory each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.controller = f"127.0.0.1:{free_port()}"
        self.name_server = f"127.0.0.1:{free_port()}"
        self.ports = {number: free_port(neighbours=(1,)) for number in (1, 2, 3)}

    def start(self, name: str, command: str, **settings: object) -> None:
        parts = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "tandemmq", command, "--set", "bindAddress=127.0.0.1", *parts],
                stdout=log,
                stderr=log,
            )

    def start_others(self) -> None:
        self.start(
            "namesrv",
            "namesrv",
            listenPort=self.name_server.rpartition(":")[2],
            kvConfigPath=self.root / "kv.json",
        )
        self.start(
            "controller",
            "controller",
            controllerDLegerPeers=f"n0-{self.controller}",
            controllerDLegerSelfId="n0",
            controllerStorePath=self.root / "controller",
        )

    def start_broker(self, number: int, **settings: object) -> None:
        self.start(
            f"broker-{number}",
            "broker",
            brokerName=NAME,
            brokerIP1="127.0.0.1",
            listenPort=self.ports[number],
            fastListen="false",
            namesrvAddr=self.name_server,
            storePathRootDir=self.root / f"store-{number}",
            mappedFileSizeCommitLog=1 << 20,
            maxHashSlotNum=1000,
            maxIndexNum=4000,
            enableControllerMode="true",
            controllerAddr=self.controller,
            allAckInSyncStateSet="true",
            **settings,
        )

    def kill(self, number: int) -> None:
        process = self.running[f"broker-{number}"]
        process.kill()
        process.wait()

    def stop(self, number: int) -> int:
        """Ends a broker by SIGTERM; returns its exit code."""
        process = self.running[f"broker-{number}"]
        process.terminate()
        return process.wait()

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def hand_over(self) -> dict[str, dict[str, Any]]:
        """Returns the group before and after, as the operator's command reports it."""
        command = ["admin", "handover", "-a", self.controller, "-b", NAME, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "tandemmq", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return {row["when"]: row for row in json.loads(done.stdout)["masters"]}

    async def state(self, client: RemotingClient) -> GroupSyncState | None:
        leader = await find_leader(client, self.controller)
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        answer = await call(client, leader, code, body=encode_body([NAME]))
        return decode_body(answer.body, SyncStateData).groups.get(NAME)

    async def in_sync(self, client: RemotingClient, count: int) -> int:
        """Waits until `count` brokers are in the set; returns the number of the master."""
        found: list[int] = []

        async def is_so() -> bool:
            state = await self.state(client)
            if state is None or state.master_address is None or len(state.in_sync) != count:
                return False
            port = int(state.master_address.rpartition(":")[2])
            found[:] = [number for number, own in self.ports.items() if own == port]
            return True

        await until(is_so, f"{count} in sync", not_yet=(TandemError,))
        return found[0]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    subject = Cluster(tmp_path)
    yield subject
    subject.close()


async def test_a_killed_master_is_replaced_and_comes_back_as_slave(cluster: Cluster) -> None:
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    cluster.start_others()
    for number in (1, 2, 3):
        cluster.start_broker(number)
    master = await cluster.in_sync(client, 3)
    async with Admin(cluster.name_server) as admin:

        async def is_made() -> bool:
            await admin.create_topic("T", queue_count=2)
            return True

        await until(is_made, "the topic", not_yet=(TandemError,))
    status = await query_ha_status(client, f"127.0.0.1:{cluster.ports[master]}")
    assert status.is_master
    assert [(one.is_in_sync, one.lag_bytes) for one in status.connections] == [(True, 0)] * 2
    acknowledged: list[int] = []
    longest_s = 0.0
    options = ProducerOptions(timeout_s=PATIENCE_S)
    async with Producer("P", cluster.name_server, options=options) as producer:
        last_s = time.monotonic()
        for number in range(600):
            if number == 300:
                cluster.kill(master)
            result = await producer.send(Message(topic="T", body=b"%d" % number))
            if result.is_ok:
                acknowledged.append(number)
            longest_s = max(longest_s, time.monotonic() - last_s)
            last_s = time.monotonic()
    assert longest_s < GAP_S_MAX, f"nobody could send for {longest_s:.2f} s"
    assert await cluster.in_sync(client, 2) != master
    cluster.start_broker(master)
    second = await cluster.in_sync(client, 3)
    assert second != master
    handed = await asyncio.to_thread(cluster.hand_over)
    assert handed["before"]["address"] == f"127.0.0.1:{cluster.ports[second]}"
    assert await cluster.in_sync(client, 3) != second
    assert handed["after"]["master_epoch"] == handed["before"]["master_epoch"] + 1
    seen: set[int] = set()
    consumer = Consumer("C", cluster.name_server, options=ConsumerOptions(start_from=StartFrom.FIRST))
    consumer.subscribe("T", "*")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READ_S_MAX), consumer:
            while not seen.issuperset(acknowledged):
                seen.update(int(message.body) for message in await consumer.poll(100, 0.5))
    assert sorted(set(acknowledged) - seen) == [], "acknowledged and lost"
    await client.close()


async def test_brokers_restart_one_after_the_other_and_no_attempt_of_a_send_fails(cluster: Cluster) -> None:
    """Each stop is only a SIGTERM, as an orchestrator sends it. The producer looks its route up once a second
    and repeats nothing.
    """
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    cluster.start_others()
    linger = {"handoverStopLingerMillis": 2500}
    for number in (1, 2):
        cluster.start_broker(number, **linger)
    await cluster.in_sync(client, 2)
    async with Admin(cluster.name_server) as admin:

        async def is_made() -> bool:
            await admin.create_topic("T", queue_count=2)
            return True

        await until(is_made, "the topic", not_yet=(TandemError,))
    client_options = ClientOptions(route_refresh_s=1.0)
    options = ProducerOptions(retry_count_max=0, client=client_options)
    sent = 0

    async def send() -> None:
        nonlocal sent
        while True:
            assert (await producer.send(Message(topic="T", body=b"%d" % sent))).is_ok
            sent += 1
            await asyncio.sleep(0)

    async with Producer("P", cluster.name_server, options=options) as producer:
        sending = asyncio.create_task(send())
        masters = []
        for _ in range(2):
            masters.append(await cluster.in_sync(client, 2))
            assert await asyncio.to_thread(cluster.stop, masters[-1]) == 0
            before = sent
            await until(lambda: sent > before + 20 or sending.done(), "it sends on")  # noqa: B023
            cluster.start_broker(masters[-1], **linger)
        await cluster.in_sync(client, 2)
        assert not sending.done(), sending.exception()
        sending.cancel()
    assert sorted(masters) == [1, 2]
    await client.close()
