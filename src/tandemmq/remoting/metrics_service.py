"""Starts what serves a server's metrics and health by its settings: the port, and the export of OTLP."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

from tandemmq.remoting.health import Conditions, live_page
from tandemmq.remoting.http import Page
from tandemmq.remoting.metrics_port import MetricsPort, ReadPieces
from tandemmq.runtime.ports import Address, Clock, Network
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry.export_options import ExportOptions, parse_pairs
from tandemmq.telemetry.metrics import ConstantLabels
from tandemmq.telemetry.prometheus import ReadAll


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """The readings of one server. `server` is its kind; the others are as in `MetricsPort`."""

    server: str
    read_ready: Conditions
    _: KW_ONLY
    read_all: ReadAll = tuple
    read_pieces: ReadPieces = lambda: iter(())
    check_health: Page = live_page

    def labelled(self, labels: dict[str, str]) -> MetricsSource:
        """Returns the source with further labels on every series."""
        if not labels:
            return self
        add = ConstantLabels(labels).add
        return replace(
            self,
            read_all=lambda: add(self.read_all()),
            read_pieces=lambda: map(add, self.read_pieces()),
        )


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

        export = MetricsExport(
            options, source.read_all, source.read_pieces, server=source.server, clock=clock
        )
        scope.start("metrics_export", export.run())
    port = MetricsPort(
        source.read_all,
        source.check_health,
        network=network,
        clock=clock,
        read_ready=source.read_ready,
        read_pieces=source.read_pieces,
    )
    return port, await port.start(options.metrics_host or listen_host, options.metrics_port)
