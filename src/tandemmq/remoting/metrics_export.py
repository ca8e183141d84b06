"""`MetricsExport`: pushes a server's metrics to a collector by OTLP, or writes them to the log.

Strategy:   samples are read and encoded on the loop in slices of `SLICE_S`, as a scrape is. Serialization and
            the call run in a thread of their own, so that a slow collector holds up nothing.
At a bound: one export at a time; the next one begins a period after the start of the last one, or at once if
            that took longer. A call that fails is not repeated: the next export has the present values, and
            with deltas those since the last one that arrived. One line in the log per outage.
Source:     spec metrics 7.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final, Protocol
from urllib.request import Request, urlopen

from tandemmq.errors import ConfigError, install_hint
from tandemmq.remoting.metrics_port import MetricsSource
from tandemmq.remoting.otel_resource import resource_of
from tandemmq.runtime.machine import CallThread
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events
from tandemmq.telemetry.export_options import ExportOptions, MetricsExporter, parse_pairs
from tandemmq.telemetry.log_lines import Outages
from tandemmq.telemetry.metrics import Sample

try:
    from google.protobuf.json_format import MessageToJson
    from google.protobuf.message import Message

    from tandemmq.telemetry.otlp import OtlpEncoder, OtlpExport
except ImportError as error:
    raise ConfigError(f"this metricsExporterType needs {error.name}: {install_hint('otel')}") from None

log = logging.getLogger(__name__)

SLICE_S: Final = 0.001
PIECE: Final = 32
"""The samples that are encoded between two looks at the clock."""
GRPC_METHOD: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
HTTP_PATH: Final = "/v1/metrics"
ANSWER_BYTES_MAX: Final = 65_536


class Sink(Protocol):
    """The destination of exports. Called in a thread."""

    def send(self, request: Message) -> None:
        """Sends one request. Raises any exception if it did not arrive."""

    def close(self) -> None: ...


class GrpcSink:
    """A collector's OTLP port for gRPC."""

    def __init__(self, target: str, headers: Mapping[str, str], timeout_s: float) -> None:
        import grpc

        scheme, _, place = target.rpartition("://")
        place = place.rstrip("/")
        if scheme == "http":
            self._channel = grpc.insecure_channel(place)
        else:
            self._channel = grpc.secure_channel(place, grpc.ssl_channel_credentials())
        self._call = self._channel.unary_unary(GRPC_METHOD)
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._options = {"timeout": timeout_s, "compression": grpc.Compression.Gzip}

    def send(self, request: Message) -> None:
        self._call(request.SerializeToString(), metadata=self._metadata, **self._options)

    def close(self) -> None:
        self._channel.close()


class HttpSink:
    """A collector's OTLP port for HTTP."""

    def __init__(self, target: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._url = target if target.endswith(HTTP_PATH) else target.rstrip("/") + HTTP_PATH
        kinds = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        self._headers = {**headers, **kinds}
        self._timeout_s = timeout_s

    def send(self, request: Message) -> None:
        data = gzip.compress(request.SerializeToString())
        with urlopen(Request(self._url, data, self._headers), timeout=self._timeout_s) as answer:
            answer.read(ANSWER_BYTES_MAX)

    def close(self) -> None:
        """Does nothing: each request has a connection of its own."""


class LogSink:
    """The log of the process: a line of OTLP's JSON per request."""

    def send(self, request: Message) -> None:
        log.info(events.METRICS_READ, extra={"otlp": MessageToJson(request, indent=None)})

    def close(self) -> None:
        """Does nothing."""


class MetricsExport:
    """The export of one server. `run` is its task."""

    def __init__(self, options: ExportOptions, source: MetricsSource, *, clock: Clock) -> None:
        """Creates the export. Raises ConfigError without a collector's address."""
        self._source = source
        self._clock = clock
        self._target, self._sink = _make_sink(options)
        is_log = options.metrics_exporter is MetricsExporter.LOG
        self._period_s = (options.log_interval_ms if is_log else options.otlp_interval_ms) / 1000
        self._encoder = OtlpEncoder(
            resource=resource_of(source.server),
            scope="controller" if source.server == "controller" else "broker-meter",
            is_delta=options.in_delta,
            began_ns=self._now_ns(),
        )
        self._call_s_max = 2 * options.otlp_timeout_ms / 1000
        """The most time of a call; the time-outs of a library may be for each of its steps."""
        self._is_baseless = options.in_delta
        """True until the readings are known from which differences begin: some counts are older."""
        self._outages = Outages()

    async def run(self) -> None:
        """Exports after each period. Never returns."""
        with CallThread() as thread:
            try:
                if self._is_baseless:
                    await self._export(thread)
                due_s = self._clock.monotonic() + self._period_s
                while True:
                    await self._clock.sleep(max(0.0, due_s - self._clock.monotonic()))
                    due_s = self._clock.monotonic() + self._period_s
                    await self._export(thread)
            finally:
                self._sink.close()

    async def _export(self, thread: CallThread) -> None:
        export = None
        try:
            export = await self._encode()
            for request in () if self._is_baseless else export.requests:
                await thread.run(partial(self._sink.send, request), self._call_s_max)
        except Exception as error:  # noqa: BLE001  # of a reading, a library, the network; the next period tries
            facts = {"target": self._target, "error": f"{type(error).__name__}: {_reason_of(error)}"}
            trace = error if export is None else None  # failures of the network need one line
            self._outages.record_failure(
                log, events.METRICS_EXPORT_FAILED, self._target, facts, exc_info=trace
            )
        else:
            self._outages.record_success(events.METRICS_EXPORT_FAILED, self._target)
            self._encoder.commit(export)
            self._is_baseless = False

    async def _encode(self) -> OtlpExport:
        """Returns everything encoded; the loop turns after each slice."""
        export = self._encoder.begin(self._now_ns())
        began_s = self._clock.monotonic()
        for piece in self._pieces():
            export.add(piece)
            if self._clock.monotonic() - began_s >= SLICE_S:
                await self._clock.sleep(0)
                began_s = self._clock.monotonic()
        return export

    def _pieces(self) -> Iterator[Iterable[Sample]]:
        samples = list(self._source.read_all())
        yield from (samples[begin : begin + PIECE] for begin in range(0, len(samples), PIECE))
        yield from self._source.read_pieces()

    def _now_ns(self) -> int:
        return self._clock.now_ms() * 1_000_000


def _make_sink(options: ExportOptions) -> tuple[str, Sink]:
    """Returns the name of the destination, and the destination."""
    exporter, target = options.metrics_exporter, options.otlp_target
    if exporter is MetricsExporter.LOG:
        return "log", LogSink()
    if not target:
        raise ConfigError(
            f"metricsExporterType={exporter.value} needs metricsGrpcExporterTarget,"
            " the address of a collector such as http://127.0.0.1:4317"
        )
    make = HttpSink if exporter is MetricsExporter.OTLP_HTTP else GrpcSink
    if "://" not in target:
        target = f"https://{target}"
    return target, make(target, parse_pairs(options.otlp_headers), options.otlp_timeout_ms / 1000)


def _reason_of(error: Exception) -> str:
    """Returns one line about an error; that of a gRPC call is its code and details."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if callable(code) and callable(details):
        return f"{code().name}: {details()}"
    return str(error)
