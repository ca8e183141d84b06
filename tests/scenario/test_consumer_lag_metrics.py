"""The lag of groups at a broker's /metrics is that of `tandemmq admin consumerProgress`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from broker_rig import Peer, consumer, records_of
from client_rig import FLUSHED_SOON, Rig, running_rig
from pop_rig import ack, pop
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from tandemmq.broker.broker import Broker
from tandemmq.cli import app
from tandemmq.remoting import metrics_port
from tandemmq.telemetry.export_options import MetricsExporter
from waits import PATIENCE_S, until

PREFIX = "rocketmq_consumer_"


@pytest.fixture(autouse=True)
def _every_scrape_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "RENDER_S_MIN", 0.0)


async def scrape(broker: Broker) -> dict[tuple[str, str, str, str], float]:
    """Returns the series of consumers by name, topic, group and is_retry."""
    assert broker.metrics_address is not None
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*broker.metrics_address)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n")
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
    assert head.startswith("HTTP/1.1 200 ")
    found = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            if sample.name.startswith(PREFIX) and "is_retry" in sample.labels:
                labels = sample.labels
                assert (labels["cluster"], labels["node_type"], labels["node_id"], labels["is_system"]) == (
                    "DefaultCluster",
                    "broker",
                    "broker-a",
                    "false",
                )
                key = (sample.name, labels["topic"], labels["consumer_group"], labels["is_retry"])
                found[(key[0].removeprefix(PREFIX), *key[1:])] = sample.value
    return found


async def progress(rig: Rig, group: str) -> tuple[int, int]:
    """Returns lag and messages in flight of the group in topic T."""
    arguments = ["admin", "consumerProgress", "-g", group, "-t", "T", "-n", rig.namesrv, "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0, result.output
    queues: list[dict[str, Any]] = json.loads(result.stdout)["queues"]
    return sum(row["lag"] for row in queues), sum(row["in_flight"] for row in queues)


async def test_lag_of_a_group_that_pulls_is_that_of_consumer_progress(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        broker = await rig.start_broker(metrics_exporter=MetricsExporter.PROM, metrics_port=0)
        async with Peer(broker) as peer:
            for number in range(12):
                await peer.send_ok("T", queue_id=number % 2)
            assert not await scrape(broker)
            await peer.heartbeat("c1", consumer("CG", "T"))
            for queue_id, offset, committed in ((0, 0, 0), (0, 3, 2), (1, 0, 0)):
                answer = await peer.pull(
                    "T",
                    queue_id=queue_id,
                    queue_offset=offset,
                    committed_offset=committed,
                    count_max=3,
                    sys_flag=0x4 | 0x1,
                )
                assert len(records_of(answer)) == 3
            found = await scrape(broker)
            assert await progress(rig, "CG") == (10, 7)
            assert found["lag_messages", "T", "CG", "false"] == 10
            assert found["inflight_messages", "T", "CG", "false"] == 7
            assert found["ready_messages", "T", "CG", "false"] == 3
            ages = [found[f"{name}_latency_milliseconds", "T", "CG", "false"] for name in ("lag", "queueing")]
            assert ages[0] >= ages[1] >= 0
            assert len(found) == 5
            await peer.heartbeat("c1", consumer("CG", "other"))
            assert not await scrape(broker)


async def test_lag_of_a_group_that_pops_has_its_leases_in_flight(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        broker = await rig.start_broker(
            metrics_exporter=MetricsExporter.PROM, metrics_port=0, store=FLUSHED_SOON
        )
        async with Peer(broker) as peer:
            for _ in range(9):
                await peer.send_ok("T")
            await peer.heartbeat("c1", consumer("CG", "T"))
            popped = await pop(peer, "T", count_max=4)
            assert len(popped) == 4
            await ack(peer, popped[0])

            async def is_committed() -> bool:
                return await progress(rig, "CG") == (5, 0)

            await until(is_committed, "the pop is committed, and consumerProgress counts no lease")
            found = await scrape(broker)
            names = ("lag", "inflight", "ready")
            assert [found[f"{name}_messages", "T", "CG", "false"] for name in names] == [8, 3, 5]
            assert [found[f"{name}_messages", "T", "CG", "true"] for name in names] == [0, 0, 0]
