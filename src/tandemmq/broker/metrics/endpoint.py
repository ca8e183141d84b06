"""MetricsEndpoint: /metrics for Prometheus and /healthz for a supervisor, on a port of their own.

At a bound: the text is made at most once per `RENDER_S_MIN`; whoever asks more often gets the same again, so
            that scrapers cannot take the loop from the clients.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tandemmq import __version__
from tandemmq.broker.metrics.readings import MetricSources, read_replication, read_store, read_traffic
from tandemmq.remoting.http import HttpAnswer, HttpServer
from tandemmq.runtime.ports import Address, Network
from tandemmq.telemetry import events, metrics
from tandemmq.telemetry.metrics import Reading
from tandemmq.telemetry.prometheus import CONTENT_TYPE, TextExporter

log = logging.getLogger(__name__)

RENDER_S_MIN = 1.0


class MetricsEndpoint:
    """Reads the parts of one broker when it is asked to."""

    def __init__(self, sources: MetricSources, *, network: Network) -> None:
        self._sources = sources
        self._exporter = TextExporter(self._read_all)
        self._text = b""
        self._rendered_at = float("-inf")
        pages = {"/metrics": self._serve_metrics, "/healthz": self._serve_health}
        self._server = HttpServer(pages, network=network, clock=sources.clock)

    async def start(self, host: str, port: int) -> Address:
        """The bound address; port 0 picks a free one. Raises OSError when it cannot be bound."""
        address = await self._server.start(host, port)
        log.info(events.METRICS_STARTED, extra={"address": address})
        return address

    async def stop(self) -> None:
        """Stop answering."""
        await self._server.stop()

    def _read_all(self) -> Iterator[Reading]:
        sources = self._sources
        options, store = sources.options, sources.store
        yield Reading(
            metrics.BROKER_INFO,
            1,
            (
                options.cluster_name,
                options.broker_name,
                str(options.broker_id),
                store.options.role.value,
                __version__,
            ),
        )
        yield from read_store(store, sources.disk)
        yield from read_traffic(sources)
        if sources.replica is not None:
            yield from read_replication(sources.replica, store, sources.clock)

    def _serve_metrics(self) -> HttpAnswer:
        now = self._sources.clock.monotonic()
        if now - self._rendered_at >= RENDER_S_MIN:
            self._text = self._exporter.render()
            self._rendered_at = now
        return HttpAnswer(self._text, CONTENT_TYPE)

    def _serve_health(self) -> HttpAnswer:
        """200 while the store can be trusted, whether it takes sends now or not."""
        facts = self._sources.store.facts()
        if facts.is_failed:
            return HttpAnswer(f"{facts.refusal}\n".encode(), status=503)
        return HttpAnswer(b"ok\n" if facts.refusal is None else f"ok, but {facts.refusal}\n".encode())
