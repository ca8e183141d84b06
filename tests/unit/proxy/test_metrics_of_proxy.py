"""The readings of a proxy: those of a whole proxy in memory, scraped through its port, and their rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from http2_client import Http2Client
from prometheus_client.parser import text_string_to_metric_families

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.errors import ConfigError
from tandemmq.proxy.metrics import in_milliseconds
from tandemmq.proxy.options import ProxyConfig, ProxyOptions
from tandemmq.proxy.proxy import Proxy
from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import message_class
from tandemmq.remoting import metrics_port
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.ports import Address, Machine
from tandemmq.telemetry.export_options import MetricsExporter
from tandemmq.telemetry.metrics import Histogram, MetricKind
from tandemmq.telemetry.proxy_metrics import (
    CALL_BUCKETS_S,
    POLL_BUCKETS_S,
    PROXY_TABLE,
)
from tandemmq.telemetry.rocketmq_metrics import RPC_BUCKETS_MS
from waits import until

HEARTBEAT = SERVICE + "Heartbeat"
NODE = ("C", "proxy", "p1")
SETTINGS = message_class("TelemetryCommand")(settings={"publishing": {"topics": [{"name": "T"}]}})
HEADERS = (("x-mq-client-id", "c1"), ("x-mq-language", "GOLANG"), ("x-mq-client-version", "5.1.2"))

Samples = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def _every_scrape_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "RENDER_S_MIN", 0.0)


def labels_of(name: str, labels: dict[str, str]) -> list[str]:
    """Returns the names of labels in the order of the table; the text has them sorted."""
    order = [label for metric in PROXY_TABLE if metric.name.startswith(name) for label in metric.labels]
    return sorted(labels, key=[*order, "le"].index)


class World:
    """A proxy without brokers, and its clients and scrapers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.address: Address = ("", 0)

    def make_proxy(self, exporter: MetricsExporter = MetricsExporter.PROM) -> Proxy:
        options = ProxyOptions(
            listen_port=0,
            cluster_label="C",
            name="p1",
            metrics_exporter=exporter,
            metrics_port=0,
            makes_certificate=False,
        )
        return Proxy(
            ProxyConfig(options=options, tls=TlsOptions(mode=TlsMode.DISABLED)),
            machine=Machine(self.network, MemoryDisk(), self.clock, SeededRandom(1)),
        )

    async def fetch(self, address: Address, path: str) -> tuple[int, str]:
        """Returns status and body of one page."""
        reader = asyncio.StreamReader()
        transport = await self.network.connect(*address, lambda: asyncio.StreamReaderProtocol(reader), 5.0)
        transport.write(f"GET {path} HTTP/1.1\r\nHost: proxy\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        return int(head.split()[1]), body

    async def scrape(self, proxy: Proxy) -> Samples:
        """Returns (name, label values...) -> value."""
        assert proxy.metrics_address is not None
        status, body = await self.fetch(proxy.metrics_address, "/metrics")
        assert status == 200, body
        return {
            (
                sample.name,
                *(sample.labels[label] for label in labels_of(family.name, sample.labels)),
            ): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }


@asynccontextmanager
async def running() -> AsyncIterator[tuple[World, Proxy, Http2Client]]:
    world = World()
    proxy = world.make_proxy()
    address = await proxy.start()
    client = await Http2Client.connect(world.network, address)
    try:
        yield world, proxy, client
    finally:
        await proxy.stop()


async def test_calls_are_counted_with_the_code_of_their_answer() -> None:
    async with running() as (world, proxy, client):
        for headers in (HEADERS, HEADERS, ()):
            await client.ends(client.call(HEARTBEAT, b"", headers=headers))
        samples = await world.scrape(proxy)
        assert samples["tandemmq_proxy_calls_total", "Heartbeat", "UNRECOGNIZED_CLIENT_TYPE"] == 2
        assert samples["tandemmq_proxy_calls_total", "Heartbeat", "CLIENT_ID_REQUIRED"] == 1
        assert samples["tandemmq_proxy_call_seconds_count", "Heartbeat"] == 3
        latency = "rocketmq_rpc_latency_milliseconds_count"
        assert samples[latency, *NODE, "grpc", "heartbeat", "false"] == 3
        assert samples["rocketmq_proxy_up", *NODE, "cluster"] == 1
        assert not any(key[0].startswith("tandemmq_proxy_poll_seconds") for key in samples)


async def test_a_call_that_fails_is_counted_with_its_grpc_status() -> None:
    async with running() as (world, proxy, client):
        await client.ends(client.call(HEARTBEAT, headers=HEADERS))
        cancelled = client.open(SERVICE + "ReceiveMessage", *HEADERS)
        await until(lambda: proxy._server.shared.held_count == 1)
        client.http2.reset_stream(cancelled)
        client.flush()
        await until(lambda: proxy._server.shared.held_count == 0)
        samples = await world.scrape(proxy)
        assert samples["tandemmq_proxy_calls_total", "Heartbeat", "INTERNAL"] == 1
        assert samples["tandemmq_proxy_calls_total", "ReceiveMessage", "CANCELLED"] == 1
        assert samples["tandemmq_proxy_poll_seconds_count", "ReceiveMessage"] == 1
        assert (
            samples["rocketmq_rpc_latency_milliseconds_count", *NODE, "grpc", "receive_message", "true"] == 1
        )


async def test_clients_and_their_streams_are_shown() -> None:
    async with running() as (world, proxy, client):
        telemetry = client.call(
            SERVICE + "Telemetry", SETTINGS.SerializeToString(), headers=HEADERS, ends=False
        )
        await until(lambda: telemetry in client.data)
        samples = await world.scrape(proxy)
        assert samples["tandemmq_proxy_connections",] == 1
        assert samples["tandemmq_proxy_clients", "GO"] == 1
        assert samples["tandemmq_proxy_telemetry_streams",] == 1
        assert samples["tandemmq_proxy_open_calls", "stream"] == 1
        assert samples["tandemmq_proxy_open_calls", "unary"] == 0


async def test_every_metric_but_those_of_access_control_has_a_series() -> None:
    async with running() as (world, proxy, client):
        stream = client.call(SERVICE + "Telemetry", SETTINGS.SerializeToString(), headers=HEADERS, ends=False)
        await until(lambda: stream in client.data)
        await client.ends(client.call(HEARTBEAT, headers=HEADERS))
        await client.ends(client.call(SERVICE + "ReceiveMessage", headers=HEADERS))
        samples = await world.scrape(proxy)
    histograms = {metric.name for metric in PROXY_TABLE if metric.kind is MetricKind.HISTOGRAM}
    expected = {metric.name for metric in PROXY_TABLE if metric.name not in histograms}
    found = {key[0] for key in samples if not key[0].startswith("tandemmq_process_")}
    assert found == expected | {f"{name}_{end}" for name in histograms for end in ("bucket", "count", "sum")}
    assert {key[1] for key in samples if key[0] == "tandemmq_proxy_cache_hits_total"} == {
        "routes",
        "topics",
        "groups",
    }


async def test_a_failed_query_is_counted() -> None:
    async with running() as (world, proxy, client):
        request = message_class("QueryRouteRequest")(topic={"name": "T"})
        call = client.call(SERVICE + "QueryRoute", request.SerializeToString(), headers=HEADERS)
        await until(lambda: call in client.ended)
        samples = await world.scrape(proxy)
        assert samples["tandemmq_proxy_cache_queries_total", "routes"] == 1
        assert samples["tandemmq_proxy_cache_failures_total", "routes"] == 1


async def test_the_port_answers_probes_and_is_closed_with_the_proxy() -> None:
    async with running() as (world, proxy, _):
        address = proxy.metrics_address
        assert address is not None
        assert await world.fetch(address, "/healthz") == (200, "ok\n")
    with pytest.raises(ConnectionError):
        await world.fetch(address, "/healthz")


def test_each_worker_has_a_port_for_its_metrics() -> None:
    assert [ProxyOptions().of_worker(number).metrics_port for number in (1, 2)] == [5557, 5558]
    assert ProxyOptions(metrics_port=0).of_worker(2).metrics_port == 0


async def test_without_an_exporter_there_is_no_port() -> None:
    world = World()
    proxy = world.make_proxy(MetricsExporter.DISABLE)
    await proxy.start()
    assert proxy.metrics_address is None
    await proxy.stop()


@pytest.mark.parametrize("bounds", [CALL_BUCKETS_S, POLL_BUCKETS_S])
def test_the_buckets_of_rocketmq_count_the_same_times(bounds: tuple[float, ...]) -> None:
    seconds = Histogram(bounds)
    values = [0.0001, 0.001, 0.0015, 0.003, 0.0099, 0.05, 0.7, 2.5, 3.0, 4.0, 100.0]
    for value in values:
        seconds.observe(value)
    found = in_milliseconds(seconds, RPC_BUCKETS_MS)
    naive = [sum(value * 1000 <= bound for value in values) for bound in RPC_BUCKETS_MS]
    assert found.cumulative() == [*naive, len(values)]
    assert found.total == pytest.approx(sum(values) * 1000)


async def test_a_port_in_use_ends_the_start_with_the_name_of_the_setting() -> None:
    world = World()
    first, second = world.make_proxy(), world.make_proxy()
    await first.start()
    assert first.metrics_address is not None
    occupied = ProxyOptions(
        listen_port=0,
        metrics_exporter=MetricsExporter.PROM,
        metrics_port=first.metrics_address[1],
        makes_certificate=False,
    )
    second = Proxy(
        ProxyConfig(options=occupied, tls=TlsOptions(mode=TlsMode.DISABLED)),
        machine=Machine(world.network, MemoryDisk(), world.clock, SeededRandom(2)),
    )
    with pytest.raises(ConfigError, match="metricsPromExporterPort"):
        await second.start()
    await second.stop()
    await first.stop()
