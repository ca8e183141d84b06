"""The settings of a server's metrics and health pages: the same of brokers, proxies, name servers and
controllers (spec metrics 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class MetricsExporter(Enum):
    """The way in which a server exports its metrics (metricsExporterType)."""

    DISABLE = "DISABLE"
    PROM = "PROM"


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
