"""Starts what serves a server's metrics and health by its settings: the port, and the export of OTLP."""

from __future__ import annotations

from tandemmq.remoting.metrics_port import MetricsPort, MetricsSource
from tandemmq.runtime.ports import Address, Clock, Network
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry.export_options import ExportOptions, parse_pairs


async def start_metrics(
    source: MetricsSource,
    options: ExportOptions,
    *,
    listen_host: str,
    network: Network,
    clock: Clock,
    scope: TaskScope,
) -> tuple[MetricsPort, Address]:
    """Starts the port, and a push in `scope` if the settings want one; returns the port and its address.

    Raises:  ConfigError for a port that cannot be bound, a missing target, or a missing extra.
    """
    source = source.labelled(parse_pairs(options.metric_labels))
    if options.metrics_exporter.pushes:
        # Imported only if needed: the libraries cost tens of milliseconds.
        from tandemmq.remoting.metrics_export import MetricsExport

        export = MetricsExport(options, source, clock=clock)
        scope.start("metrics_export", export.run())
    port = MetricsPort(source, network=network, clock=clock)
    return port, await port.start(options.metrics_host or listen_host, options.metrics_port)
