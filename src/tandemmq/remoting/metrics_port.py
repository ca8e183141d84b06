"""`MetricsPort`: serves /metrics for Prometheus and /healthz for a supervisor on a port of their own.

Brokers and gRPC proxies have one each. The readings are taken on request; the port knows nothing of them.
At a bound: the text is rendered at most once per `RENDER_S_MIN`; further requests get the same text, so that
            scrapers cannot starve clients.
"""

from __future__ import annotations

import logging

from tandemmq.errors import ConfigError
from tandemmq.remoting.http import HttpAnswer, HttpServer, Page
from tandemmq.runtime.ports import Address, Clock, Network
from tandemmq.telemetry import events
from tandemmq.telemetry.prometheus import CONTENT_TYPE, ReadAll, TextExporter

log = logging.getLogger(__name__)

RENDER_S_MIN = 1.0


class MetricsPort:
    """The port of one process. `check_health` returns the answer to /healthz."""

    def __init__(self, read_all: ReadAll, check_health: Page, *, network: Network, clock: Clock) -> None:
        self._exporter = TextExporter(read_all)
        self._clock = clock
        self._text = b""
        self._rendered_at = float("-inf")
        pages = {"/metrics": self._serve_metrics, "/healthz": check_health}
        self._server = HttpServer(pages, network=network, clock=clock)

    async def start(self, host: str, port: int) -> Address:
        """Returns the bound address; port 0 picks a free one. Raises ConfigError when it cannot be bound."""
        try:
            address = await self._server.start(host, port)
        except OSError as error:
            raise ConfigError(
                f"port {port} of {host} cannot be listened on: {error.strerror or error}"
                " (metricsPromExporterPort)"
            ) from error
        log.info(events.METRICS_STARTED, extra={"address": address})
        return address

    async def stop(self) -> None:
        """Stops serving."""
        await self._server.stop()

    def _serve_metrics(self) -> HttpAnswer:
        now = self._clock.monotonic()
        if now - self._rendered_at >= RENDER_S_MIN:
            self._text = self._exporter.render()
            self._rendered_at = now
        return HttpAnswer(self._text, CONTENT_TYPE)
