"""The metrics of a proxy process in front of a real broker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from client_rig import running_rig
from prometheus_client.parser import text_string_to_metric_families
from test_health_of_servers import fetch
from test_proxy import GROUP, TOPIC, ask, receive

from ports import free_port
from tandemmq.client import Admin
from tandemmq.runtime.machine import TcpNetwork
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process

ROUTES = {"name": "routes", "holds": True}
Samples = dict[tuple[str, frozenset[str]], float]


@asynccontextmanager
async def proxy_process(namesrv: str, folder: Path, metrics_port: int) -> AsyncIterator[str]:
    """Yields the address of a proxy that serves metrics at this port; it ends in order."""
    settings = (
        "bindAddress=127.0.0.1",
        "metricsExporterType=PROM",
        f"metricsPromExporterPort={metrics_port}",
        f"proxyStorePath={folder / 'proxy'}",
    )
    command = ("proxy", "-n", namesrv, "-p", "0", *(part for text in settings for part in ("--set", text)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tandemmq", *command, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = (await process.stdout.readline()).decode()
        yield line.partition(" ready on ")[2].partition(",")[0]
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def scrape(port: int) -> Samples:
    """Returns the name and the values of the labels -> value."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: proxy\r\n\r\n")
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
    assert head.split()[1] == "200", body
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


async def test_a_proxy_process_counts_what_passes(tmp_path: Path) -> None:
    port = free_port()
    async with running_rig(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await rig.start_broker("broker-a")
        await admin.create_topic("T", queue_count=2)
        async with (
            proxy_process(rig.namesrv, tmp_path, port) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            message = {"topic": TOPIC, "body": b"twelve bytes", "system_properties": {"message_id": "01ID"}}
            await ask(channel, "SendMessage", messages=[message])
            found = [one.message for one in await receive(channel) if one.HasField("message")]
            entry = {"message_id": "01ID", "receipt_handle": found[0].system_properties.receipt_handle}
            await ask(channel, "AckMessage", group=GROUP, topic=TOPIC, entries=[entry])

            async def shows(name: str, value: float, *labels: str) -> bool:
                return (await scrape(port)).get((f"tandemmq_proxy_{name}", frozenset(labels))) == value

            for rpc in ("SendMessage", "AckMessage", "ReceiveMessage"):
                # A text is served for a second.
                await until(lambda rpc=rpc: shows("calls_total", 1, rpc, "OK"))
            ready = {"status": "ready", "conditions": [{"name": "serving", "holds": True}, ROUTES]}
            assert await fetch(TcpNetwork(), ("127.0.0.1", port), "/health/ready") == (200, ready)
            samples = await scrape(port)
            for direction in ("in", "out"):
                assert samples[f"tandemmq_proxy_messages_{direction}_total", frozenset()] == 1
                assert samples[f"tandemmq_proxy_message_{direction}_bytes_total", frozenset()] == 12
            assert samples["tandemmq_proxy_poll_seconds_count", frozenset({"ReceiveMessage"})] == 1
            assert samples["tandemmq_proxy_connections", frozenset()] == 1
            assert samples["tandemmq_process_resident_memory_bytes", frozenset()] > 0
