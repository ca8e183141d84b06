"""The settings of a server's metrics and health pages: the same of brokers, proxies, name servers and
controllers (spec metrics 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class MetricsExporter(Enum):
    """The way in which a server exports its metrics (metricsExporterType). Every one but DISABLE has the port
    with the pages.
    """

    DISABLE = "DISABLE"
    OTLP_GRPC = "OTLP_GRPC"
    PROM = "PROM"
    LOG = "LOG"
    OTLP_HTTP = "OTLP_HTTP"  # ours

    @property
    def pushes(self) -> bool:
        return self not in (MetricsExporter.DISABLE, MetricsExporter.PROM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The settings of the metrics. `remoting.settings.option_keys` maps RocketMQ's keys to the fields."""

    metrics_exporter: MetricsExporter = field(
        default=MetricsExporter.DISABLE, metadata={"key": "metricsExporterType"}
    )
    metrics_host: str = field(default="", metadata={"key": "metricsPromExporterHost"})
    """The address of the port for metrics and health; empty: the address at which the server listens."""
    metrics_port: int = field(default=5557, metadata={"key": "metricsPromExporterPort"})
    """The port of /metrics and of the health pages; 0 picks a free one. Of a proxy with workers: of the first
    worker.
    """
    metric_labels: str = field(default="", metadata={"key": "metricsLabel"})
    """`name:value,name:value`: labels of every series."""
    otlp_target: str = field(default="", metadata={"key": "metricsGrpcExporterTarget"})
    """The address of the collector; https unless it begins with http://."""
    otlp_headers: str = field(default="", repr=False, metadata={"key": "metricsGrpcExporterHeader"})
    """`name:value,name:value`: headers of each export."""
    otlp_timeout_ms: int = field(default=3_000, metadata={"key": "metricGrpcExporterTimeOutInMills"})
    otlp_interval_ms: int = field(default=60_000, metadata={"key": "metricGrpcExporterIntervalInMills"})
    log_interval_ms: int = field(default=10_000, metadata={"key": "metricLoggingExporterIntervalInMills"})
    in_delta: bool = field(default=False, metadata={"key": "metricsInDelta"})
    """True if counters and histograms are exported as differences."""


def parse_pairs(text: str) -> dict[str, str]:
    """Returns the pairs of `name:value,name:value`. Raises ValueError for any other text."""
    pairs: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, colon, value = piece.partition(":")
        if not colon or not name.strip():
            raise ValueError(piece)
        pairs[name.strip()] = value.strip()
    return pairs
