"""`tandemmq proxy --workers 2`: real processes that share a port, in front of a real broker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from client_rig import running_rig
from test_proxy import GROUP, METADATA, TOPIC, ask, receive

from tandemmq.client import Admin
from tandemmq.launcher import Server
from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code
from waits import until

pytestmark = pytest.mark.process

MESSAGE: dict[str, Any] = {"topic": TOPIC, "body": b"one"}


def worker_pids(server: Server) -> list[int]:
    """Returns the processes of the workers, oldest first."""
    return [int(one) for one in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]


def any_runs(pids: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def command(folder: Path, namesrv: str, port: int = 0) -> list[str]:
    settings = ("bindAddress=127.0.0.1", f"proxyStorePath={folder / 'proxy'}", "proxyWorkers=2")
    overrides = [piece for setting in settings for piece in ("--set", setting)]
    return ["proxy", "-n", namesrv, "-p", str(port), *overrides]


@asynccontextmanager
async def running_workers(folder: Path) -> AsyncIterator[Server]:
    """A proxy with two workers in front of a broker with the topic T."""
    async with running_rig(folder) as rig, Admin(rig.namesrv) as admin:
        await rig.start_broker("broker-a")
        await admin.create_topic("T", queue_count=2)
        server = Server("proxy", command(folder, rig.namesrv), folder / "proxy.log")
        await asyncio.to_thread(server.start)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)


class Client:
    """A client with its connection and its telemetry stream."""

    def __init__(self, address: str, client_id: str) -> None:
        # Channels with equal options share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.metadata = (("x-mq-client-id", client_id), *METADATA[1:])
        self.telemetry = self.channel.stream_stream(SERVICE + "Telemetry")(metadata=self.metadata)

    async def send_settings(self) -> None:
        shape = message_class("TelemetryCommand")
        await self.telemetry.write(shape(settings={"publishing": {"topics": [TOPIC]}}).SerializeToString())
        assert await self.telemetry.read() is not grpc.aio.EOF


@asynccontextmanager
async def two_clients(address: str) -> AsyncIterator[tuple[Client, Client]]:
    """Two clients, one at each worker."""
    one, two = Client(address, "c1"), Client(address, "c2")
    async with one.channel, two.channel:
        await one.send_settings()
        await two.send_settings()
        yield one, two


async def send(channel: grpc.aio.Channel, message_id: str) -> int:
    message = {**MESSAGE, "system_properties": {"message_id": message_id}}
    sent = await ask(channel, "SendMessage", messages=[message])
    return int(sent.entries[0].status.code)


async def test_a_killed_worker_is_replaced_while_the_clients_of_the_other_continue(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as server, two_clients(server.address) as clients:
        pids = worker_pids(server)
        assert len(pids) == 2
        assert await send(clients[0].channel, "01A") == Code.OK
        _, *found, _ = await receive(clients[0].channel)
        handle = found[0].message.system_properties.receipt_handle

        os.kill(pids[0], signal.SIGKILL)
        ended = [asyncio.ensure_future(client.telemetry.code()) for client in clients]
        done, [alive] = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [grpc.StatusCode.UNAVAILABLE]
        other = clients[ended.index(alive)].channel
        entry = {"message_id": "01A", "receipt_handle": handle}
        acked = await ask(other, "AckMessage", group=GROUP, topic=TOPIC, entries=[entry])
        assert acked.status.code == Code.OK, "a handle of either worker is valid at the other one"

        log = tmp_path / "proxy.log"
        sent = 0
        while "proxy_worker.ready worker=1" not in log.read_text():
            assert await send(other, f"01B{sent}") == Code.OK
            sent += 1
        assert "proxy_worker.died worker=1" in log.read_text()
        assert pids[1] in worker_pids(server)
        assert len(worker_pids(server)) == 2
        assert not alive.done(), "the client of the other worker keeps its stream"
        alive.cancel()
        async with two_clients(server.address) as later:
            assert [await send(one.channel, "01C") for one in later] == [Code.OK] * 2
    assert [path.name for path in (tmp_path / "proxy").iterdir()] == ["proxy-tls.pem"]


@pytest.mark.parametrize("is_for_all", [False, True], ids=["to_the_parent", "to_all_processes"])
async def test_a_signal_lets_every_worker_drain(tmp_path: Path, is_for_all: bool) -> None:
    """Managers of services, such as systemd, send the signal to all processes."""
    async with running_workers(tmp_path) as server, two_clients(server.address) as clients:
        pids = worker_pids(server)
        receiving = [asyncio.ensure_future(receive(client.channel)) for client in clients]
        for client in clients:  # a call behind the receive on each connection
            await ask(client.channel, "QueryRoute", topic=TOPIC)
        for pid in [server.pid, *(pids if is_for_all else ())]:
            os.kill(pid, signal.SIGTERM)
        for answers in await asyncio.gather(*receiving):
            assert [one.status.code for one in answers[:1]] == [Code.MESSAGE_NOT_FOUND]
        for client in clients:
            assert await client.telemetry.code() == grpc.StatusCode.OK
        process = server._process
        assert process is not None
        assert await asyncio.to_thread(process.wait, 60) == 0
        assert not any_runs(pids)
        log = (tmp_path / "proxy.log").read_text()
        for number in (1, 2):
            assert f"proxy.stopped worker={number}\n" in log, "each worker names itself in its lines"


async def test_workers_end_without_their_parent(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as server:
        pids = worker_pids(server)
        await asyncio.to_thread(server.kill)
        await until(lambda: not any_runs(pids), "the workers end")


def test_a_port_in_use_and_settings_without_sense_are_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = command(tmp_path, "127.0.0.1:1", port)
        ended = subprocess.run(
            [sys.executable, "-m", "tandemmq", *arguments], capture_output=True, text=True, check=False
        )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"tandemmq: cannot listen on 127.0.0.1:{port}: address already in use\n"
    for settings, sentence in (
        (["--workers", "65"], "proxyWorkers=65 must be within 1..64"),
        (
            ["--workers", "2", "--set", "metricsPromExporterPort=65535"],
            "metricsPromExporterPort=65535 must leave a port for each of 2 workers",
        ),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "tandemmq", "proxy", *settings],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (1, "")
        assert sentence in ended.stderr
