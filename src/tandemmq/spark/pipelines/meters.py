"""The metrics of a running pipeline, computed from its events and served as Prometheus text on a separate
port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from tandemmq.errors import ConfigError
from tandemmq.spark.pipelines.events import (
    BatchDone,
    Event,
    Restarted,
    SideJudged,
    Started,
    Stopped,
    TopicBatch,
    TopicChanged,
    TopicEvent,
)
from tandemmq.telemetry.metrics import Metric, MetricKind, Sample
from tandemmq.telemetry.prometheus import CONTENT_TYPE, TextExporter

_PIPELINE = ("pipeline",)
_SIDE = ("pipeline", "side")
_TOPIC = ("pipeline", "topic")


def _gauge(name: str, text: str, labels: tuple[str, ...] = _PIPELINE) -> Metric:
    return Metric(f"tandemmq_pipeline_{name}", MetricKind.GAUGE, text, labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = _PIPELINE) -> Metric:
    return Metric(f"tandemmq_pipeline_{name}", MetricKind.COUNTER, text, labels)


ROWS: Final = _counter("rows_total", "messages delivered, by earlier runs too")
BYTES: Final = _counter("bytes_total", "bytes delivered, by earlier runs too")
BAD: Final = _counter("bad_records_total", "messages kept apart as bad records, by earlier runs too")
BATCHES: Final = _counter("batches_total", "batches finished since the process began")
RESTARTS: Final = _counter("restarts_total", "starts of the query after a fault that may pass")
LAG: Final = _gauge("lag_messages", "messages that were left behind the last batch")
RATE: Final = _gauge("batch_rows_per_second", "rate of the last batch")
BATCH_SECONDS: Final = _gauge("batch_seconds", "time that the last batch took")
BATCH_TIME: Final = _gauge("last_batch_time_seconds", "when the last batch was finished, Unix time")
EQUAL: Final = _gauge("audit_equal", "1 when the side held the same messages at the last audit", _SIDE)
MISSING: Final = _gauge("audit_missing_messages", "messages that the side lacks", _SIDE)
REPEATED: Final = _gauge("audit_repeated_messages", "messages that the side has more than once", _SIDE)
DIFFERENT: Final = _gauge("audit_different_messages", "messages that differ, in the ranges searched", _SIDE)
LOSS: Final = _gauge("audit_loss_seconds", "store time that is missing (RPO)", _SIDE)
TOPIC_ROWS: Final = _counter("topic_rows_total", "rows of the topic's table, of earlier runs too", _TOPIC)
TOPIC_BAD: Final = _counter(
    "topic_bad_records_total", "bad records of the topic, of earlier runs too", _TOPIC
)
TOPIC_LOST: Final = _counter(
    "topic_lost_messages_total", "messages that were gone before they were read", _TOPIC
)
TOPIC_BATCHES: Final = _counter("topic_batches_total", "batches since the process began", _TOPIC)
TOPIC_LAG: Final = _gauge("topic_lag_messages", "messages that the last batch left behind", _TOPIC)
TOPIC_P50: Final = _gauge(
    "topic_freshness_p50_seconds",
    "from the birth of a message to its visible row: median of the last batch",
    _TOPIC,
)
TOPIC_P99: Final = _gauge(
    "topic_freshness_p99_seconds", "the same, not exceeded by 99 % of the last batch's rows", _TOPIC
)
TOPIC_FAILING: Final = _gauge("topic_failing", "1 while the topic's last turn failed", _TOPIC)

_TOTALS: Final = {ROWS: "rows_total", BYTES: "bytes_total"}
_TOPIC_TOTALS: Final = {
    TOPIC_ROWS: "rows_total",
    TOPIC_BAD: "bad_total",
    TOPIC_LOST: "lost",
    TOPIC_LAG: "lag",
}
_FACTS: Final[dict[type[Event], dict[Metric, str]]] = {
    Started: _TOTALS,
    BatchDone: {**_TOTALS, BAD: "bad_total", RATE: "rate", BATCH_SECONDS: "seconds", LAG: "lag"},
    Stopped: {**_TOTALS, BAD: "bad_total"},
    SideJudged: {
        EQUAL: "is_equal",
        MISSING: "missing",
        REPEATED: "repeated",
        DIFFERENT: "differing",
        LOSS: "loss_seconds",
    },
    TopicBatch: {**_TOPIC_TOTALS, TOPIC_P50: "p50_seconds", TOPIC_P99: "p99_seconds"},
    TopicChanged: {**_TOPIC_TOTALS, TOPIC_FAILING: "is_failing"},
}
"""The metrics that take a field of an event, with its name."""

_COUNTED: Final[dict[type[Event], Metric]] = {
    BatchDone: BATCHES,
    Restarted: RESTARTS,
    TopicBatch: TOPIC_BATCHES,
}
"""The metrics that count events."""


class MetricsReporter:
    """Receives events and answers scrapes; with `port` 0 it binds a free one."""

    def __init__(self, pipeline: str, port: int, host: str = "") -> None:
        self._pipeline = pipeline
        self._values: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self._exporter = TextExporter(self.read)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self._exporter))
        except OSError as error:
            raise ConfigError(f"--metrics-port {port}: {error.strerror}") from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def report(self, event: Event) -> None:
        part = event.side if isinstance(event, SideJudged) else ""
        part = event.topic if isinstance(event, TopicEvent) else part
        labels = (self._pipeline, part) if part else (self._pipeline,)
        for metric, name in _FACTS.get(type(event), {}).items():
            if (value := getattr(event, name)) is not None:
                self._values[metric, labels] = int(value) if isinstance(value, bool) else value
        if type(event) in _COUNTED:
            counted = (_COUNTED[type(event)], labels)
            self._values[counted] = self._values.get(counted, 0) + 1
        elif isinstance(event, TopicChanged):
            self._values.setdefault((TOPIC_BATCHES, labels), 0)
        if isinstance(event, BatchDone):
            self._values[BATCH_TIME, labels] = time.time()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def read(self) -> Iterable[Sample]:
        """Returns every series that has a value."""
        return [Sample(metric, value, labels) for (metric, labels), value in list(self._values.items())]


def _handler(exporter: TextExporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] in ("/", "/metrics")
            body = exporter.render() if is_known else b"the metrics are at /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", CONTENT_TYPE if is_known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: standard error belongs to the pipeline."""

    return Handler
