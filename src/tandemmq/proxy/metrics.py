"""The metrics of a proxy: readings from its parts, which `remoting.metrics_port` serves.

The parts count what happens (`meters`); everything else is read at a scrape. The names are those of
`telemetry.proxy_metrics`. `RouteProbe` is for /health/ready on the same port.
At a bound: a scrape reads each client once, at most 20,000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandemmq import __version__
from tandemmq.api.nameserver import query_cluster_info
from tandemmq.client.route_cache import NameServers
from tandemmq.errors import TandemError
from tandemmq.proxy.access import AccessControl
from tandemmq.proxy.cache import Cached
from tandemmq.proxy.clients import Clients
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.grpc_server import GrpcServer
from tandemmq.proxy.meters import CallMeter, Limit, ending_label
from tandemmq.proxy.offsets import PullConsumerHandlers
from tandemmq.proxy.receiving import ReceiveHandlers
from tandemmq.proxy.renewal import Renewal
from tandemmq.proxy.sending import ProduceHandlers
from tandemmq.remoting.health import Condition
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import proxy_metrics as metrics
from tandemmq.telemetry.metrics import Histogram, Sample
from tandemmq.telemetry.rocketmq_metrics import RPC_BUCKETS_MS

PROBE_PERIOD_S: Final = 5.0
PROBE_ANSWER_S: Final = 2.0
_UNASKED: Final = Condition("routes", "no name server has answered yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySources:
    """The parts of one proxy. `access` is None without access control."""

    core: ProxyCore
    server: GrpcServer
    renewal: Renewal
    sends: ProduceHandlers
    receives: ReceiveHandlers
    pulls: PullConsumerHandlers
    access: AccessControl | None


def read_all(sources: ProxySources) -> Iterator[Sample]:
    """Yields every reading of a proxy."""
    options = sources.core.options
    node = (options.cluster_label, "proxy", options.name)
    yield Sample(metrics.PROXY_UP, 1, (*node, "cluster"))
    yield Sample(metrics.PROXY_INFO, 1, (options.cluster_label, options.name, __version__))
    yield from read_calls(sources.server.meter, node)
    yield from read_server(sources.server)
    for limit, count in refusals(sources).items():
        yield Sample(metrics.REFUSED, count, (limit.value,))
    yield from _read_messages(sources)
    yield from _read_clients(sources.core.clients)
    renewal = sources.renewal
    yield Sample(metrics.RENEWED_MESSAGES, len(renewal))
    yield Sample(metrics.RENEWALS, renewal.renewed_count)
    yield Sample(metrics.RENEWALS_FAILED, renewal.failed_count)
    yield Sample(metrics.RELEASES, renewal.released_count)
    yield from _read_caches(sources)


def read_calls(meter: CallMeter, node: tuple[str, str, str]) -> Iterator[Sample]:
    """Yields the readings of calls; an rpc that was never called has none."""
    for method in meter:
        for ending, count in sorted(method.endings.items()):
            yield Sample(metrics.CALLS, count, (method.name, ending_label(ending)))
        if method.endings and method.seconds is not None:
            seconds = metrics.POLL_SECONDS if method.is_poll else metrics.CALL_SECONDS
            yield Sample(seconds, method.seconds, (method.name,))
            latency = in_milliseconds(method.seconds, RPC_BUCKETS_MS)
            labels = (*node, "grpc", _snake_case(method.name), str(method.is_poll).lower())
            yield Sample(metrics.RPC_LATENCY, latency, labels)


def in_milliseconds(seconds: Histogram, bounds_ms: tuple[float, ...]) -> Histogram:
    """Returns the histogram with other buckets; each bound must be one of `seconds`."""
    found, below = Histogram(bounds_ms), 0
    cumulative = seconds.cumulative()
    for index, bound in enumerate(bounds_ms):
        count = cumulative[seconds.bounds.index(bound / 1000)]
        found.counts[index], below = count - below, count
    found.counts[-1] = cumulative[-1] - below
    found.total = seconds.total * 1000
    return found


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def read_server(server: GrpcServer) -> Iterator[Sample]:
    """Yields the readings of the port for clients."""
    shared = server.shared
    yield Sample(metrics.OPEN_CALLS, shared.call_count, ("unary",))
    yield Sample(metrics.OPEN_CALLS, shared.held_count, ("stream",))
    yield Sample(metrics.REQUEST_BYTES, shared.request_bytes)
    yield Sample(metrics.CONNECTIONS, server.connection_count)


def refusals(sources: ProxySources) -> Mapping[Limit, int]:
    """Returns the refusals by limit, also of limits that were never reached."""
    counts: Counter[Limit] = Counter(dict.fromkeys(Limit, 0))
    counts.update(sources.server.shared.refusals)
    counts.update(sources.core.traffic.refusals)
    counts[Limit.CONNECTIONS] = sources.server.refused_count
    counts[Limit.CLIENTS] = sources.core.clients.refused_count
    counts[Limit.RENEWALS] = sources.renewal.unwatched_count
    counts[Limit.USERS] = 0 if sources.access is None else sources.access.refused_count
    return counts


def _read_messages(sources: ProxySources) -> Iterator[Sample]:
    traffic = sources.core.traffic
    yield Sample(metrics.MESSAGES_IN, traffic.messages_in)
    yield Sample(metrics.BYTES_IN, traffic.bytes_in)
    yield Sample(metrics.MESSAGES_OUT, traffic.messages_out)
    yield Sample(metrics.BYTES_OUT, traffic.bytes_out)
    yield Sample(metrics.SEND_BYTES, sources.sends.bytes_in_flight)
    yield Sample(metrics.ANSWER_BYTES, sources.core.answers.byte_count)
    yield Sample(metrics.HELD_RECEIVES, sources.receives.held_count)
    yield Sample(metrics.HELD_PULLS, sources.pulls.held_count)


def _read_clients(clients: Clients) -> Iterator[Sample]:
    for language, count in sorted(Counter(client.language for client in clients).items()):
        yield Sample(metrics.CLIENTS, count, (language,))
    yield Sample(metrics.TELEMETRY_STREAMS, sum(client.stream is not None for client in clients))
    yield Sample(metrics.DROPPED_COMMANDS, clients.dropped_count)


def _read_caches(sources: ProxySources) -> Iterator[Sample]:
    brokers = sources.core.brokers
    caches: dict[str, Cached[str, Any]] = {
        "routes": brokers.topics,
        "topics": brokers.kinds,
        "groups": brokers.groups,
    }
    if sources.access is not None:
        caches["users"] = sources.access.users
    for name, cache in caches.items():
        yield Sample(metrics.CACHE_HITS, cache.hit_count, (name,))
        yield Sample(metrics.CACHE_QUERIES, cache.query_count, (name,))
        yield Sample(metrics.CACHE_FAILURES, cache.failure_count, (name,))


@dataclass(slots=True)
class RouteProbe:
    """Asks the name servers whether there are brokers. A proxy asks for routes only when clients need them,
    so without traffic it would not notice that no name server answers.
    """

    name_servers: NameServers
    clock: Clock
    condition: Condition = _UNASKED

    async def run(self) -> None:
        """Asks every `PROBE_PERIOD_S`. Never returns."""
        while True:
            self.condition = Condition("routes", await self._find_fault())
            await self.clock.sleep(PROBE_PERIOD_S)

    async def _find_fault(self) -> str:
        try:
            found = await self.name_servers.ask(
                lambda client, address: query_cluster_info.within(PROBE_ANSWER_S, client, address),
                knows=lambda info: bool(info.brokers),
            )
        except TandemError as error:
            return str(error)
        asked = ", ".join(self.name_servers.addresses)
        return "" if found.brokers else f"no broker is registered at {asked}"
