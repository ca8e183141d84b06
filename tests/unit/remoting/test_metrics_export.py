"""Metrics that are pushed to a real receiver of OTLP, over gRPC and HTTP, and into the log."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("opentelemetry.proto")
import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tandemmq.errors import ConfigError
from tandemmq.remoting.metrics_export import GRPC_METHOD, HTTP_PATH, MetricsExport
from tandemmq.remoting.metrics_port import MetricsSource
from tandemmq.remoting.metrics_service import start_metrics
from tandemmq.remoting.otel_resource import resource_of
from tandemmq.runtime.machine import LEFT_MAX, LoopClock, TcpNetwork
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import controller_metrics, events, metrics, rocketmq_metrics
from tandemmq.telemetry.export_options import ExportOptions, MetricsExporter
from tandemmq.telemetry.metrics import Histogram, Sample
from tandemmq.telemetry.otlp import POINTS_MAX, instrument_of
from waits import until

OTLP = MetricsExporter.OTLP_GRPC


def test_metrics_of_controllers_have_rocketmqs_instruments() -> None:
    assert instrument_of(controller_metrics.REQUEST_LATENCY) == ("request_latency", "us")
    assert instrument_of(controller_metrics.DISK_USAGE) == ("dledger_disk_usage", "bytes")
    assert instrument_of(controller_metrics.ROLE) == ("role", "")
    assert instrument_of(metrics.DISK_USED) == ("tandemmq_disk_used_bytes", "By")


class Receiver:
    """A collector: the requests that arrived, with the headers of each."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.target = ""

    def take(self, data: bytes, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        self.requests.append(ExportMetricsServiceRequest.FromString(data))

    def metrics(self, index: int = -1) -> dict[str, Any]:
        (of_resource,) = self.requests[index].resource_metrics
        (of_scope,) = of_resource.scope_metrics
        return {metric.name: metric for metric in of_scope.metrics}

    async def got(self, count: int) -> None:
        await until(lambda: len(self.requests) >= count, f"{count} requests arrived")


@contextmanager
def grpc_receiver(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver()

    def export(data: bytes, context: grpc.ServicerContext) -> bytes:
        receiver.take(data, dict(context.invocation_metadata()))
        return ExportMetricsServiceResponse().SerializeToString()

    service, _, method = GRPC_METHOD.strip("/").rpartition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    receiver.target = f"http://127.0.0.1:{bound}"
    server.start()
    yield receiver
    server.stop(None).wait()


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == HTTP_PATH
            receiver.take(gzip.decompress(data), dict(self.headers))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    receiver.target = f"http://127.0.0.1:{server.server_port}"
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


class Readings:
    """The readings of a server."""

    def __init__(self) -> None:
        self.count = 5.0
        self.histogram = Histogram((0.1, 1.0))
        self.histogram.observe(0.05)
        self.rows = 2

    def read_all(self) -> list[Sample]:
        return [
            Sample(metrics.HELD_PULLS, 3),
            Sample(metrics.MESSAGES_IN, self.count),
            Sample(metrics.FLUSH, self.histogram),
        ]

    def read_pieces(self) -> Iterator[list[Sample]]:
        for number in range(self.rows):
            labels = ("C", "broker", "b", f"t{number}", "g", "false", "")
            yield [Sample(rocketmq_metrics.LAG_LATENCY, 7, labels)]


class FailingReadings(Readings):
    """Readings of a file that may not be read at first."""

    is_failing = True

    def read_all(self) -> list[Sample]:
        if self.is_failing:
            raise PermissionError("statvfs")
        return super().read_all()


def options_of(receiver: Receiver, exporter: MetricsExporter = OTLP, **more: Any) -> ExportOptions:
    times = {"otlp_interval_ms": 50, "log_interval_ms": 50, "otlp_timeout_ms": 2_000}
    return ExportOptions(metrics_exporter=exporter, otlp_target=receiver.target, **{**times, **more})


@asynccontextmanager
async def exporting(readings: Readings, options: ExportOptions) -> AsyncIterator[None]:
    source = MetricsSource("broker", tuple, read_all=readings.read_all, read_pieces=readings.read_pieces)
    export = MetricsExport(options, source, clock=LoopClock())
    task = asyncio.ensure_future(export.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


def attributes(point: Any) -> dict[str, object]:
    return {
        one.key: one.value.bool_value if one.value.HasField("bool_value") else one.value.string_value
        for one in point.attributes
    }


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_collector_gets_the_readings(protocol: str) -> None:
    receiving = grpc_receiver() if protocol == "grpc" else http_receiver()
    exporter = OTLP if protocol == "grpc" else MetricsExporter.OTLP_HTTP
    with receiving as receiver:
        options = options_of(receiver, exporter, otlp_headers="Api-Key:secret, x:1")
        async with exporting(Readings(), options):
            await receiver.got(2)
    found = receiver.metrics()
    headers = {name.lower(): value for name, value in receiver.headers[0].items()}
    assert (headers["api-key"], headers["x"]) == ("secret", "1")
    resource = receiver.requests[0].resource_metrics[0].resource
    assert attributes(resource) == resource_of("broker")
    assert uuid.UUID(resource_of("broker")["service.instance.id"]).version == 4
    assert receiver.requests[0].resource_metrics[0].scope_metrics[0].scope.name == "broker-meter"
    assert found["tandemmq_held_pulls"].gauge.data_points[0].as_double == 3
    counter = found["tandemmq_messages_in_total"].sum
    assert (counter.is_monotonic, counter.aggregation_temporality) == (True, 2)
    assert counter.data_points[0].as_double == 5
    assert 0 < counter.data_points[0].start_time_unix_nano <= counter.data_points[0].time_unix_nano
    flush = found["tandemmq_store_flush_seconds"]
    (point,) = flush.histogram.data_points
    assert (flush.unit, point.count, list(point.bucket_counts)) == ("s", 1, [1, 0, 0])
    assert (list(point.explicit_bounds), point.sum) == ([0.1, 1.0], 0.05)
    lag = found["rocketmq_consumer_lag_latency"]
    assert (lag.unit, len(lag.gauge.data_points)) == ("milliseconds", 2)
    assert attributes(lag.gauge.data_points[0]) == {
        "cluster": "C",
        "node_type": "broker",
        "node_id": "b",
        "topic": "t0",
        "consumer_group": "g",
        "is_retry": False,
    }


async def test_many_points_are_cut_into_requests() -> None:
    readings = Readings()
    readings.rows = 2 * POINTS_MAX
    with grpc_receiver() as receiver:
        async with exporting(readings, options_of(receiver)):
            await receiver.got(3)
    counts = [
        len(receiver.metrics(index)["rocketmq_consumer_lag_latency"].gauge.data_points) for index in (0, 1, 2)
    ]
    assert counts == [POINTS_MAX - 3, POINTS_MAX, 3]


async def test_deltas_begin_at_the_start_and_survive_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    readings = Readings()
    with grpc_receiver() as receiver:
        port = int(receiver.target.rpartition(":")[2])
        async with exporting(readings, options_of(receiver, in_delta=True)):
            await receiver.got(1)
            first = receiver.metrics(0)["tandemmq_messages_in_total"].sum
            assert first.data_points[0].as_double == 0, "what was counted before is no difference"
            assert (first.aggregation_temporality, attributes(first.data_points[0])) == (
                1,
                {"aggregation": "delta"},
            )
            readings.count += 2
            readings.histogram.observe(5.0)

            def total(name: str) -> float:
                found = [receiver.metrics(index)[name] for index in range(len(receiver.requests))]
                return sum(
                    point.as_double if metric.HasField("sum") else point.count
                    for metric in found
                    for point in (*metric.sum.data_points, *metric.histogram.data_points)
                )

            await until(lambda: total("tandemmq_messages_in_total") == 2)
            await until(lambda: total("tandemmq_store_flush_seconds") == 1)
            caplog.set_level(logging.DEBUG, "tandemmq")
            receiver.requests.clear()

    def failures(level: int) -> int:
        found = [record.levelno for record in caplog.records if record.msg == events.METRICS_EXPORT_FAILED]
        return found.count(level)

    async with exporting(readings, options_of(receiver, in_delta=True, otlp_timeout_ms=200)):
        await until(lambda: failures(logging.WARNING) == 1, "the outage is told")
        readings.count += 4
        await until(lambda: failures(logging.DEBUG) >= 2, "further exports have failed")
        assert failures(logging.WARNING) == 1, "one line for the outage"
        with grpc_receiver(port) as again:
            await again.got(2)
            sums = [again.metrics(index)["tandemmq_messages_in_total"].sum for index in range(2)]
    assert [one.data_points[0].as_double for one in sums] == [4, 0], "what was not delivered comes later"


@pytest.mark.parametrize("in_delta", [False, True])
async def test_a_reading_that_fails_is_logged_and_tried_again(
    caplog: pytest.LogCaptureFixture, in_delta: bool
) -> None:
    readings = FailingReadings()
    with grpc_receiver() as receiver:
        async with exporting(readings, options_of(receiver, in_delta=in_delta)):
            await until(lambda: events.METRICS_EXPORT_FAILED in caplog.messages)
            readings.is_failing = False
            await receiver.got(1)
    record = next(one for one in caplog.records if one.msg == events.METRICS_EXPORT_FAILED)
    assert record.exc_info is not None
    assert record.exc_info[0] is PermissionError
    first = receiver.metrics(0)["tandemmq_messages_in_total"].sum.data_points[0].as_double
    assert first == (0 if in_delta else 5), "what was counted before is no difference"


async def test_a_collector_that_hangs_does_not_hold_up_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    turns_at_accept: list[int] = []
    turns = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turns_at_accept.append(turns)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    receiver = Receiver()
    receiver.target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = options_of(receiver, MetricsExporter.OTLP_HTTP, otlp_interval_ms=10, otlp_timeout_ms=500)
    async with exporting(Readings(), options):
        while events.METRICS_EXPORT_FAILED not in caplog.messages:
            turns += 1
            await asyncio.sleep(0)
    server.close()
    await server.wait_closed()
    assert turns - turns_at_accept[0] > 100, "the loop turned while the call waited for its answer"


async def test_an_answer_that_comes_byte_by_byte_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    is_over, open_writers = asyncio.Event(), set[asyncio.StreamWriter]()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nA: ")
        open_writers.add(writer)
        with suppress(OSError):
            while not is_over.is_set():
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.transport.abort()
        open_writers.discard(writer)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    receiver = Receiver()
    receiver.target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = options_of(receiver, MetricsExporter.OTLP_HTTP, otlp_interval_ms=10, otlp_timeout_ms=100)
    caplog.set_level(logging.DEBUG, "tandemmq")

    def reasons() -> list[str]:
        found = [one for one in caplog.records if one.msg == events.METRICS_EXPORT_FAILED]
        return [vars(one)["error"] for one in found]

    async with exporting(Readings(), options):
        await until(lambda: any(f"{LEFT_MAX} earlier calls" in reason for reason in reasons()))
    assert reasons()[0].startswith("TimeoutError")
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "calls")
    is_over.set()
    server.close()
    await until(lambda: not open_writers)
    await asyncio.sleep(0)


async def test_the_log_gets_the_readings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with exporting(Readings(), options_of(Receiver(), MetricsExporter.LOG)):
        await until(lambda: any(record.msg == events.METRICS_READ for record in caplog.records))
    record = next(record for record in caplog.records if record.msg == events.METRICS_READ)
    found = json.loads(vars(record)["otlp"])
    names = [one["name"] for one in found["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]]
    assert "rocketmq_consumer_lag_latency" in names


async def test_a_missing_target_and_a_missing_extra_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ExportOptions(metrics_exporter=OTLP)
    with pytest.raises(ConfigError, match="OTLP_GRPC needs metricsGrpcExporterTarget"):
        MetricsExport(options, MetricsSource("broker", tuple), clock=LoopClock())
    for name in ("tandemmq.remoting.metrics_export", "tandemmq.telemetry.otlp"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.common.v1.common_pb2", None)
    scope = TaskScope("test")
    with pytest.raises(ConfigError, match=r"this metricsExporterType needs .*: run `pip install .*\[otel\]"):
        await start_metrics(
            MetricsSource("broker", tuple),
            options_of(Receiver()),
            listen_host="127.0.0.1",
            network=TcpNetwork(),
            clock=LoopClock(),
            scope=scope,
        )
    await scope.close()


async def test_constant_labels_are_on_every_series() -> None:
    readings, scope = Readings(), TaskScope("test")
    with grpc_receiver() as receiver:
        port, address = await start_metrics(
            MetricsSource("broker", tuple, read_all=readings.read_all, read_pieces=readings.read_pieces),
            options_of(receiver, metric_labels="zone:a,tier:gold", metrics_port=0),
            listen_host="127.0.0.1",
            network=TcpNetwork(),
            clock=LoopClock(),
            scope=scope,
        )
        try:
            await receiver.got(1)
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            text = (await reader.read()).decode()
            writer.close()
        finally:
            await scope.close()
            await port.stop()
    points = [*receiver.metrics()["tandemmq_held_pulls"].gauge.data_points]
    assert attributes(points[0]) == {"zone": "a", "tier": "gold"}
    assert 'tandemmq_held_pulls{zone="a",tier="gold"} 3' in text
    assert 'rocketmq_consumer_lag_latency_milliseconds{zone="a",tier="gold",cluster="C"' in text
