"""A real broker's /metrics and /healthz report what was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from broker_rig import (
    Peer,
    consumer,
    make_broker,
    records_of,
    running_broker,
    running_name_server,
)
from prometheus_client.parser import text_string_to_metric_families

from tandemmq import __version__
from tandemmq.broker.broker import Broker
from tandemmq.errors import ConfigError, StoreError
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.remoting import metrics_port
from tandemmq.store import BrokerRole, FlushMode
from tandemmq.telemetry.export_options import MetricsExporter
from tandemmq.telemetry.metrics import HISTORY_DIFFERED, HISTORY_DOUBTED, TABLE
from tandemmq.telemetry.rocketmq_metrics import PAIRS_WITHOUT_SERIES, ROCKETMQ_TABLE
from waits import PATIENCE_S, until

Samples = dict[tuple[str, ...], float]

PROM = {"metrics_exporter": MetricsExporter.PROM, "metrics_port": 0}


@pytest.fixture(autouse=True)
def _every_scrape_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "RENDER_S_MIN", 0.0)


async def fetch(broker: Broker, path: str) -> tuple[int, str]:
    """Returns status and body of one page."""
    assert broker.metrics_address is not None
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*broker.metrics_address)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: broker\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
    return int(head.split()[1]), body


async def scrape(broker: Broker) -> Samples:
    """Returns (name, label values...) -> value."""
    status, body = await fetch(broker, "/metrics")
    assert status == 200, body
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


async def shows(broker: Broker, key: tuple[str, ...], value: float) -> bool:
    return (await scrape(broker))[key] == value


def names_of(samples: Samples) -> set[str]:
    """Returns names as in the table: a histogram's series count as one metric."""
    suffixes = ("_bucket", "_count", "_sum")
    histograms = {name[0].removesuffix("_bucket") for name in samples if name[0].endswith("_bucket")}
    return {
        next((name[0].removesuffix(s) for s in suffixes if name[0].removesuffix(s) in histograms), name[0])
        for name in samples
    }


async def test_sends_and_pulls_are_counted(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        for number in range(5):
            await peer.send_ok("T", b"12345", queue_id=number % 2)
        batch = encode_batch([(0, b"a", b""), (0, b"b", b"")])
        await peer.send_ok("T", batch, is_batch=True)
        await peer.send("T", b"")
        await peer.send("T", b"x", queue_id=99)
        await peer.send("T", b"x" * 40_000)
        await peer.heartbeat("c1", consumer("CG", "T"))
        got = len(records_of(await peer.pull("T")))
        await peer.pull("T", queue_offset=99)
        await peer.pull("none")
        samples = await scrape(broker)

    illegal = ("tandemmq_sends_total", "MESSAGE_ILLEGAL")
    expected = {
        ("tandemmq_sends_total", "SUCCESS"): 6,
        illegal: 2,
        ("tandemmq_sends_total", "INVALID_PARAMETER"): 1,
        ("tandemmq_pulls_total", "SUCCESS"): 1,
        ("tandemmq_pulls_total", "PULL_OFFSET_MOVED"): 1,
        ("tandemmq_pulls_total", "TOPIC_NOT_EXIST"): 1,
        ("tandemmq_messages_in_total",): 7,
        ("tandemmq_messages_out_total",): got,
        ("tandemmq_topic_messages_in_total", "T"): 7,
        ("tandemmq_topic_messages_out_total", "T"): got,
        ("tandemmq_topics_without_series",): 0,
        ("tandemmq_consumer_groups",): 1,
        ("tandemmq_connections", "main"): 1,
        ("tandemmq_store_queues",): 2,
        ("tandemmq_store_log_files",): 1,
        ("tandemmq_store_writeable",): 1,
        ("tandemmq_store_min_offset_bytes",): 0,
        ("tandemmq_store_dispatch_behind_bytes",): 0,
        ("tandemmq_held_pulls",): 0,
    }
    assert {key: samples.get(key) for key in expected} == expected
    assert got == 5
    end = samples[("tandemmq_store_appended_offset_bytes",)]
    assert end == samples[("tandemmq_store_max_offset_bytes",)]
    assert end == samples[("tandemmq_store_dispatched_offset_bytes",)]
    flushed = samples[("tandemmq_store_flushed_offset_bytes",)]
    assert samples[("tandemmq_store_unflushed_bytes",)] == end - flushed
    assert 1 <= samples[("tandemmq_store_append_batch_seconds_count",)] <= 6
    assert samples[("tandemmq_message_in_bytes_total",)] == 5 * 5 + len(batch)
    assert 0 < samples[("tandemmq_disk_used_ratio",)] < 1
    assert samples[("tandemmq_process_cpu_seconds_total",)] > 0
    assert samples[("tandemmq_process_resident_memory_bytes",)] > 10 << 20


async def test_held_pull_is_seen_until_it_is_answered(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        await peer.send_ok("T")
        pull = asyncio.create_task(
            peer.pull("T", queue_offset=1, sys_flag=0x4 | 0x2, suspend_timeout_ms=100_000)
        )
        await until(partial(shows, broker, ("tandemmq_held_pulls",), 1), "the pull is held")
        await peer.send_ok("T")
        assert len(records_of(await pull)) == 1
        samples = await scrape(broker)
    assert samples[("tandemmq_held_pulls",)] == 0
    assert samples[("tandemmq_pulls_total", "SUCCESS")] == 1


async def test_fsyncs_and_the_wait_for_them_are_measured(tmp_path: Path) -> None:
    settings = {"flush_mode": FlushMode.SYNC_FLUSH}
    async with running_broker(tmp_path, store=settings, **PROM) as broker, Peer(broker) as peer:
        for _ in range(3):
            await peer.send_ok("T")
        samples = await scrape(broker)
    assert samples[("tandemmq_store_flush_seconds_count",)] == 3
    assert samples[("tandemmq_store_flush_wait_seconds_count",)] == 3
    assert samples[("tandemmq_store_flush_wait_seconds_bucket", "+Inf")] == 3
    assert samples[("tandemmq_store_ack_wait_seconds_count",)] == 0
    waited = samples[("tandemmq_store_flush_wait_seconds_sum",)]
    assert waited >= samples[("tandemmq_store_flush_seconds_sum",)] > 0


async def test_send_that_gets_no_ack_is_seen_waiting_and_counted_by_its_code(tmp_path: Path) -> None:
    settings = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2}
    patient = {**settings, "slave_timeout_ms": 100_000}
    async with running_broker(tmp_path / "a", store=patient, **PROM) as broker, Peer(broker) as peer:
        send = asyncio.create_task(peer.send("T"))
        await until(partial(shows, broker, ("tandemmq_sends_waiting", "acks"), 1), "the send waits")
        send.cancel()
    hasty = {**settings, "slave_timeout_ms": 50}
    async with running_broker(tmp_path / "b", store=hasty, **PROM) as broker, Peer(broker) as peer:
        assert (await peer.send("T")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        samples = await scrape(broker)
    assert samples[("tandemmq_sends_waiting", "acks")] == 0
    assert samples[("tandemmq_sends_total", "FLUSH_SLAVE_TIMEOUT")] == 1
    assert samples[("tandemmq_sends_total", "SUCCESS")] == 0


async def test_topic_counts_outlive_a_restart_and_end_with_the_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        for _ in range(3):
            await peer.send_ok("T")
        await peer.pull("T")
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        samples = await scrape(broker)
        assert samples[("tandemmq_topic_messages_in_total", "T")] == 3
        assert samples[("tandemmq_topic_messages_out_total", "T")] == 0
        assert samples[("tandemmq_messages_in_total",)] == 0
        await peer.pull("T")
        assert (await scrape(broker))[("tandemmq_topic_messages_out_total", "T")] == 3
        await broker.store.deletions.drop(["T"])  # type: ignore[union-attr]  # it is open
        assert ("tandemmq_topic_messages_in_total", "T") not in await scrape(broker)


async def test_topics_beyond_the_bound_are_in_the_totals_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.broker.metrics.TOPIC_SERIES_MAX", 3)
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        for number in range(5):
            await peer.send_ok(f"T{number}")
        before = await scrape(broker)
        await peer.send_ok("T4")
        after = await scrape(broker)
    for samples in (before, after):
        topics = [key[1] for key in samples if key[0] == "tandemmq_topic_messages_in_total"]
        assert topics == ["T0", "T1", "T2"]
        assert samples[("tandemmq_topics_without_series",)] == 2
    assert after[("tandemmq_messages_in_total",)] == 6


async def test_texts_are_made_once_per_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "RENDER_S_MIN", 3600.0)
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        before = await scrape(broker)
        await peer.send_ok("T")
        assert await scrape(broker) == before


async def test_broker_without_exporter_listens_on_no_port_for_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        assert broker.metrics_address is None


async def test_other_pages_are_not_found(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker:
        assert await fetch(broker, "/") == (404, "pages: /metrics /healthz /health/live /health/ready\n")


async def test_health_is_that_of_the_store(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker:
        assert await fetch(broker, "/healthz") == (200, "ok\n")
        store = broker.store
        assert store is not None
        store._on_fatal = None
        store._fail(StoreError("the disk is gone"))
        assert await fetch(broker, "/healthz") == (503, "the store has failed\n")
        assert (await scrape(broker))[("tandemmq_store_writeable",)] == 0


async def test_taken_port_is_told(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "a", **PROM) as first:
        assert first.metrics_address is not None
        settings = {**PROM, "metrics_port": first.metrics_address[1]}
        second = make_broker(tmp_path / "b", **settings)
        with pytest.raises(ConfigError, match=r"port \d+ of 127.0.0.1 .*metricsPromExporterPort"):
            await second.start()
        await second.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    """Runs a synchronous master with a pool and its slave, connected."""
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server(tmp_path))
        settings = {**PROM, "name_servers": (name_server,), "broker_name": "pair"}
        sync = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2, "transient_pool_enable": True}
        master = await stack.enter_async_context(running_broker(tmp_path / "m", store=sync, **settings))
        slave = await stack.enter_async_context(
            running_broker(tmp_path / "s", broker_id=1, slave_read_enable=True, **settings)
        )
        role = master._replica
        assert role is not None
        await until(lambda: role.master.status().in_sync_count == 1, "the slave is in sync")
        yield master, slave


async def test_master_tells_how_far_its_slave_is(pair: tuple[Broker, Broker]) -> None:
    master, _ = pair
    async with Peer(master) as peer:
        for _ in range(4):
            await peer.send_ok("T")
        samples = await scrape(master)
    expected = {
        ("tandemmq_slave_connections",): 1,
        ("tandemmq_slaves_in_sync",): 1,
        ("tandemmq_slave_lag_bytes", "127.0.0.1"): 0,
        ("tandemmq_slave_lag_seconds", "127.0.0.1"): 0,
        ("tandemmq_store_ack_wait_seconds_count",): 4,
        ("tandemmq_sends_total", "SUCCESS"): 4,
    }
    assert {key: samples.get(key) for key in expected} == expected
    (info,) = (key for key in samples if key[0] == "tandemmq_broker_info")
    assert set(info[1:]) == {"DefaultCluster", "pair", "0", "SYNC_MASTER", __version__}


async def test_slave_tells_how_it_follows(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    async with Peer(master) as peer:
        await peer.send_ok("T")
    role = slave._replica
    assert role is not None
    await until(lambda: role.config_sync.synced_at is not None, "the tables were copied")
    samples = await scrape(slave)
    expected = {
        ("tandemmq_master_connected",): 1,
        ("tandemmq_replica_halted",): 0,
        ("tandemmq_store_writeable",): 0,
        ("tandemmq_topic_messages_in_total", "T"): 1,
        ("tandemmq_messages_in_total",): 0,
    }
    assert {key: samples.get(key) for key in expected} == expected
    assert 0 <= samples[("tandemmq_config_sync_age_seconds",)] < 60
    assert 0 <= samples[("tandemmq_master_silence_seconds",)] < 60
    assert samples[("tandemmq_store_append_batch_seconds_count",)] >= 1
    health = await fetch(slave, "/healthz")
    assert health == (200, "ok, but the broker is a slave; it accepts no messages\n")


async def test_master_shows_its_pool_and_how_far_back_pulls_read(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    async with Peer(master) as peer:
        await peer.send_ok("T")
        await until(lambda: master.store.queue_max("T", 0) == 1, "it is dispatched")
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS
        samples = await scrape(master)
    assert samples[("tandemmq_store_commit_seconds_count",)] >= 1
    assert samples[("tandemmq_store_uncommitted_bytes",)] == 0
    assert samples[("tandemmq_store_pool_free_buffers",)] == 4
    size = master.store.max_log_offset
    assert samples[("tandemmq_store_read_distance_bytes",)] == size
    assert samples[("tandemmq_store_memory_window_bytes",)] > size
    assert samples[("tandemmq_store_reads_beyond_memory_total",)] == 0
    assert ("tandemmq_store_pool_free_buffers",) not in await scrape(slave)


async def test_every_metric_of_the_table_is_served_and_no_other(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    async with Peer(master) as peer:
        await peer.send_ok("T")
        await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        await peer.pull("Nowhere")
    role = slave._replica
    assert role is not None
    await until(lambda: role.config_sync.synced_at is not None, "the tables were copied")
    served = names_of(await scrape(master)) | names_of(await scrape(slave))
    elected_only = {HISTORY_DOUBTED.name, HISTORY_DIFFERED.name}  # test_elected_brokers.py
    # test_rocketmq_metrics.py and test_consumer_lag_metrics.py show those with RocketMQ's names.
    of_rocketmq = {name for name in served if name.startswith("rocketmq_")}
    assert of_rocketmq < {metric.name for metric in ROCKETMQ_TABLE}
    assert served - of_rocketmq == {metric.name for metric in (*TABLE, PAIRS_WITHOUT_SERIES)} - elected_only
