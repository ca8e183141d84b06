"""The settings of a server's metrics and health pages: the same of brokers, proxies, name servers and
controllers (spec metrics 7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.setting_kinds import ValueKind, setting


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


def parse_pairs(text: str) -> dict[str, str]:
    """Returns the pairs of `name:value,name:value`. Raises ValueError for any other text."""
    pairs: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, colon, value = piece.partition(":")
        if not colon or not name.strip():
            raise ValueError(piece)
        pairs[name.strip()] = value.strip()
    return pairs


def _parse_exporter(text: str) -> Any:
    numbers = {"0": "DISABLE", "1": "OTLP_GRPC", "2": "PROM", "3": "LOG"}
    return _EXPORTER_NAME.parse(numbers.get(text, text))


def _parse_traces_exporter(text: str) -> MetricsExporter:
    found = MetricsExporter(text.upper())
    if found in (MetricsExporter.PROM, MetricsExporter.LOG):
        raise ValueError
    return found


def _are_pairs(text: str) -> bool:
    return parse_pairs(text) is not None and text.isprintable()


def _are_labels(text: str) -> bool:
    from tandemmq.telemetry.label_names import is_free  # only if needed: the tables of all metrics

    return _are_pairs(text) and all(map(is_free, parse_pairs(text)))


_EXPORTER_NAME: Final = kinds.choice(MetricsExporter)
EXPORTER: Final = ValueKind(_EXPORTER_NAME.allowed, _parse_exporter)
"""The kind of exporters; RocketMQ allows their numbers, too."""
TRACES_EXPORTER: Final = ValueKind("one of DISABLE, OTLP_GRPC, OTLP_HTTP", _parse_traces_exporter)
PAIRS: Final = ValueKind("name:value, several separated by commas, or empty", kinds.checked(_are_pairs))
LABELS: Final = ValueKind(
    "name:value, several separated by commas, or empty; a name has ASCII letters, digits and _, does not"
    " begin with a digit or __, and is not a label that a metric has, such as cluster, topic, group or le",
    kinds.checked(_are_labels),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The settings of the metrics."""

    metrics_exporter: MetricsExporter = setting("metricsExporterType", MetricsExporter.DISABLE, EXPORTER)
    metrics_host: str = setting("metricsPromExporterHost", "", kinds.OPTIONAL_IP)
    """The address of the port for metrics and health; empty: the address at which the server listens."""
    metrics_port: int = setting("metricsPromExporterPort", 5557, kinds.PORT)
    """The port of /metrics and of the health pages; 0 picks a free one. Of a proxy with workers: of the first
    worker.
    """
    metric_labels: str = setting("metricsLabel", "", LABELS)
    """`name:value,name:value`: labels of every series."""
    otlp_target: str = setting("metricsGrpcExporterTarget", "", kinds.COLLECTOR)
    """The address of the collector; https unless it begins with http://."""
    otlp_headers: str = setting("metricsGrpcExporterHeader", "", replace(PAIRS, is_secret=True))
    """`name:value,name:value`: headers of each export."""
    otlp_timeout_ms: int = setting("metricGrpcExporterTimeOutInMills", 3_000)
    otlp_interval_ms: int = setting("metricGrpcExporterIntervalInMills", 60_000)
    log_interval_ms: int = setting("metricLoggingExporterIntervalInMills", 10_000)
    in_delta: bool = setting("metricsInDelta", False)
    """True if counters and histograms are exported as differences."""
