"""`tandemmq broker --proxy`: a broker that serves gRPC clients in its own process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from test_proxy import TOPIC, ask, receive

from tandemmq.client import Admin
from tandemmq.errors import TandemError
from tandemmq.launcher import Server, stopping
from tandemmq.proxy.statuses import Code
from tandemmq.shell import local
from tandemmq.shell.local import ServerPlan
from waits import until

pytestmark = pytest.mark.process

MESSAGE = {"topic": TOPIC, "body": b"one", "system_properties": {"message_id": "01A"}}


class ProxyBroker(Server):
    """The process of a broker with a proxy; `proxy_address` is on its ready line."""

    proxy_address = ""

    def _read_address(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        found = re.search(r"ready on (\S+), .*, proxy on (\S+)$", line.strip())
        assert found, line or self._log_path.read_text()
        self.proxy_address = found[2]
        return found[1]


@asynccontextmanager
async def running(plans: Sequence[ServerPlan]) -> AsyncIterator[ProxyBroker]:
    """The name server and the broker of a minimal cluster, the broker with a proxy."""
    names, broker = plans
    server = ProxyBroker("broker", [*broker.command, "--proxy", "--proxy-port", "0"], broker.log_path)
    started = [Server("names", list(names.command), names.log_path), server]
    with stopping(started):
        for one in started:
            await asyncio.to_thread(one.start)
        yield server


@pytest.mark.parametrize("is_elected", [False, True], ids=["classic", "elected"])
async def test_a_broker_serves_grpc_clients_and_the_proxy_drains_first(
    tmp_path: Path, is_elected: bool
) -> None:
    plans = local.make_plan(tmp_path, is_minimal=True, is_elected=is_elected, port_base=local.AUTO)
    async with running(plans) as server:
        async with Admin(plans[0].address) as admin:

            async def create() -> bool:
                await admin.create_topic("T", queue_count=2)
                return True

            # An elected broker registers when it is the master.
            await until(create, "the topic exists", not_yet=(TandemError,))
        async with grpc.aio.insecure_channel(server.proxy_address) as channel:
            sent = await ask(channel, "SendMessage", messages=[MESSAGE])
            assert [entry.status.code for entry in sent.entries] == [Code.OK]
            _, *found, _ = await receive(channel)
            assert [one.message.body for one in found] == [b"one"]
            receiving = asyncio.ensure_future(receive(channel))
            await ask(channel, "QueryRoute", topic=TOPIC)  # behind the receive on this connection
            os.kill(server.pid, signal.SIGTERM)
            assert [one.status.code for one in (await receiving)[:1]] == [Code.MESSAGE_NOT_FOUND]
        process = server._process
        assert process is not None
        assert await asyncio.to_thread(process.wait, 60) == 0
        log = plans[1].log_path.read_text()
        assert log.index("broker.started") < log.index("proxy.started")
        assert log.index("proxy.stopped") < log.rindex("broker.stopped")


def ended(*arguments: str, folder: Path, **environment: str) -> str:
    """Returns the error with which a broker ends at once."""
    settings = ("--set", f"storePathRootDir={folder / 'store'}", "--set", "listenPort=0")
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq", "broker", *arguments, *settings],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_a_proxy_needs_a_name_server_and_its_extra(tmp_path: Path) -> None:
    sentence = ended("--proxy", folder=tmp_path)
    assert "tandemmq: enableProxy=true needs namesrvAddr" in sentence
    (tmp_path / "h2.py").write_text("raise ModuleNotFoundError(name='h2')\n")
    sentence = ended("--proxy", "-n", "127.0.0.1:1", folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert sentence.startswith("tandemmq: the proxy needs h2: run `pip install ")
    assert not (tmp_path / "store").exists()
