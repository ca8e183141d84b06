"""`MetricsPort`: serves /metrics for Prometheus and the health pages for a supervisor on a port of their own.

Each server may have one. The readings are taken on request; the port knows nothing of them.
Strategy:   readings of many series come piece by piece. A scrape spreads them over turns of the loop of about
            `SLICE_S` each, and scrapers that wait at the same time share one round.
At a bound: the text is rendered at most once per `RENDER_S_MIN`; further requests get the same text, so that
            scrapers cannot starve clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from tandemmq.errors import ConfigError
from tandemmq.remoting.health import Conditions, live_page, ready_page
from tandemmq.remoting.http import CONNECTION_S_MAX, HttpAnswer, HttpServer, Page, PageSteps
from tandemmq.runtime.ports import Address, Clock, Network
from tandemmq.telemetry import events
from tandemmq.telemetry.metrics import ConstantLabels, Sample
from tandemmq.telemetry.prometheus import CONTENT_TYPE, ReadAll, SeriesText, TextExporter

log = logging.getLogger(__name__)

RENDER_S_MIN = 1.0

SLICE_S: Final = 0.001
ReadPieces = Callable[[], Iterator[Iterable[Sample]]]


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """The readings of one server. `server` is its kind.

    read_ready    the conditions of /health/ready
    read_pieces   yields the readings of families with many series
    check_health  the answer to /healthz
    """

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


class MetricsPort:
    """The port of one process."""

    def __init__(self, source: MetricsSource, *, network: Network, clock: Clock) -> None:
        self._exporter = TextExporter(source.read_all)
        self._read_pieces = source.read_pieces
        self._clock = clock
        self._text = b""
        self._rendered_at = float("-inf")
        self._render_count = 0
        self._round: Iterator[None] | None = None
        self._round_began_at = 0.0
        pages: dict[str, Page] = {
            "/metrics": self._serve_metrics,
            "/healthz": source.check_health,
            "/health/live": live_page,
            "/health/ready": lambda: ready_page(source.read_ready()),
        }
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

    def _serve_metrics(self) -> PageSteps:
        is_old = self._clock.monotonic() - self._rendered_at >= RENDER_S_MIN
        count = self._render_count
        while is_old and self._render_count == count:
            self._advance()
            if self._round is not None:
                yield None
        yield HttpAnswer(self._text, CONTENT_TYPE)

    def _advance(self) -> None:
        """Continues the round for `SLICE_S`; begins one if none is in progress."""
        began_at = self._clock.monotonic()
        current = self._round
        # No scraper waits any more for a round that is older than a connection can be.
        if current is None or began_at - self._round_began_at >= CONNECTION_S_MAX:
            current = self._round = self._render()
            self._round_began_at = began_at
        try:
            for _ in current:
                if self._clock.monotonic() - began_at >= SLICE_S:
                    return
        except Exception:
            self._round = None
            raise
        self._round = None

    def _render(self) -> Iterator[None]:
        series = SeriesText()
        for piece in self._read_pieces():
            series.add(piece)
            yield
        text = series.render()
        yield
        self._text = self._exporter.render() + text
        self._rendered_at = self._clock.monotonic()
        self._render_count += 1
