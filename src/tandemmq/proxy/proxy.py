"""`Proxy`: builds the parts of a proxy in order, starts and stops them, and has no other behaviour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandemmq.broker.access.plain_rules import read_tools_credentials
from tandemmq.client.options import parse_name_servers
from tandemmq.client.route_cache import NameServers
from tandemmq.proxy import acknowledging, offsets, receiving, routing, sending, sent_messages, sessions
from tandemmq.proxy.access import AccessControl
from tandemmq.proxy.answer_budget import AnswerBudget
from tandemmq.proxy.broker_requests import RelayedRequests
from tandemmq.proxy.brokers import CALL_S, Brokers
from tandemmq.proxy.callers import Callers
from tandemmq.proxy.certificate import ensure_tls
from tandemmq.proxy.clients import ClientLimits, Clients
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.grpc_limits import GrpcLimits
from tandemmq.proxy.grpc_server import ALPN, GrpcServer
from tandemmq.proxy.lease_calls import LeaseCalls
from tandemmq.proxy.meters import Traffic
from tandemmq.proxy.options import ProxyConfig
from tandemmq.proxy.plain_access import PlainAccess
from tandemmq.proxy.registration import BrokerRegistration
from tandemmq.proxy.renewal import Renewal, RenewalOptions
from tandemmq.proxy.rpc import SERVICE, Method, server_stream, unary
from tandemmq.proxy.service_info import Health, health_methods, reflection_methods
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.http import HttpAnswer
from tandemmq.remoting.options import parse_address
from tandemmq.remoting.tls import TlsAcceptor, make_client_tls
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.ports import Address, Machine
from tandemmq.runtime.tasks import OnFatal, TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.export_options import MetricsExporter

if TYPE_CHECKING:
    from tandemmq.remoting.metrics_port import MetricsPort

log = logging.getLogger(__name__)

CLIENT_ID_BYTES = 8


class Proxy:
    """One proxy. `on_fatal` is called when a bug has ended one of its tasks, and it must be stopped.

    metrics_address  the port of the metrics; None if disabled
    """

    metrics_address: Address | None = None
    _metrics: MetricsPort | None = None

    def __init__(
        self,
        config: ProxyConfig,
        *,
        machine: Machine,
        connections_max: int = CONNECTIONS_MAX,
        on_fatal: OnFatal | None = None,
    ) -> None:
        self._config = config
        self._machine = machine
        self._options = options = config.options
        clock, chance = machine.clock, machine.chance
        self._tasks = TaskScope("proxy", None if on_fatal is None else lambda _, error: on_fatal(error))
        self.clients = Clients(
            clock=clock,
            chance=chance,
            limits=ClientLimits(silence_s=options.client_expiry_ms / 1000, relay_s=options.relay_s),
        )
        self._credentials = config.credentials
        if options.acl_enable and self._credentials is None:
            self._credentials = read_tools_credentials(options.acl_directory, machine.disk)
        routes = RelayedRequests(self.clients, clock).routes()
        self._remoting = self._connect(routes)
        self._core = core = self._make_core()
        self.brokers = core.brokers
        self._registration = BrokerRegistration(
            core,
            client_id=f"tandemmq-proxy@{chance.token_bytes(CLIENT_ID_BYTES).hex()}",
            open_connections=lambda: self._connect(routes),
        )
        self._lease_calls = LeaseCalls(core.brokers, clock)
        times = RenewalOptions(invisible_ms=options.invisible_ms, life_ms=options.renew_ms_max)
        self._renewal = Renewal(core, self._lease_calls, times)
        self._receives = receiving.ReceiveHandlers(core, self._lease_calls, self._renewal)
        self._health = Health()
        tls = ensure_tls(config, disk=machine.disk, clock=clock)
        self._tls = TlsAcceptor(tls, disk=machine.disk, clock=clock, protocols=ALPN)
        self._plain, self._access = self._make_access()
        self._sends = sending.ProduceHandlers(core)
        self._pulls = offsets.PullConsumerHandlers(core)
        limits = GrpcLimits(
            message_bytes_max=options.message_bytes_max,
            connections_max=connections_max,
            idle_s=options.idle_close_ms / 1000,
        )
        self._server = self._make_server(limits, on_fatal)

    @property
    def address(self) -> Address:
        """The listening address. Only between `start`, and `drain` or `stop`."""
        return self._server.address

    async def start(self) -> Address:
        """Starts the proxy and returns the bound address. Name servers and brokers need not run yet.

        Raises:  OSError when the port cannot be bound; ConfigError for a certificate that cannot be used, or
                 when the port of the metrics cannot be bound. Call `stop` after an error, too.
        """
        if self._tls.options.is_served:
            self._tls.load()
        if self._plain is not None:
            self._plain.files.load()
            self._tasks.start("access rules", self._plain.files.watch())
        address = await self._server.start(self._options.listen_host, self._options.listen_port)
        await self._start_metrics()
        for name, work in (
            ("clients", self.clients.run()),
            ("registration", self._registration.run()),
            ("renewal", self._renewal.run()),
            ("certificates", self._tls.watch()),
        ):
            self._tasks.start(name, work)
        self._health.set_serving(True)
        log.info(events.PROXY_STARTED, extra={"address": address})
        return address

    async def drain(self) -> None:
        """Prepares the stop: new calls go elsewhere, held receives are answered empty, and the other calls in
        flight end, within `grpcShutdownTimeSeconds`.
        """
        self._health.set_serving(False)
        self.clients.reconnect()
        draining = self._tasks.start("drain", self._server.drain(self._options.drain_s))
        self._receives.stop()
        self.clients.close_streams()
        await asyncio.wait([draining])
        await self._receives.wait_ended(CALL_S)

    async def stop(self) -> None:
        """Closes the port and every connection. Messages that clients have not acknowledged stay leased to
        them, and can be acknowledged at another proxy.
        """
        self._health.set_serving(False)
        if self._metrics is not None:
            await self._metrics.stop()
        await self._server.stop()
        await self._tasks.close()
        await self._registration.close()
        await self._remoting.close()
        log.info(events.PROXY_STOPPED)

    def _make_server(self, limits: GrpcLimits, on_fatal: OnFatal | None) -> GrpcServer:
        return GrpcServer(
            self._machine.network,
            self._machine.clock,
            methods=self._methods(),
            tls=self._tls,
            limits=limits,
            on_fatal=on_fatal,
            balancers=self._options.balancers,
        )

    def _connect(self, routes: Mapping[int, Handler]) -> RemotingClient:
        """Creates a set of connections to name servers and brokers."""
        credentials = self._credentials
        return RemotingClient(
            network=self._machine.network,
            clock=self._machine.clock,
            routes=routes,
            signer=None if credentials is None else credentials.sign,
            tls=make_client_tls(self._config.tls.dialling),
        )

    def _make_core(self) -> ProxyCore:
        machine = self._machine
        clock, chance, traffic = machine.clock, machine.chance, Traffic()
        addresses = parse_name_servers(self._options.name_servers)
        name_servers = NameServers(self._remoting, addresses, first=chance.below(len(addresses)))
        return ProxyCore(
            options=self._options,
            clock=clock,
            chance=chance,
            tasks=self._tasks,
            clients=self.clients,
            brokers=Brokers(self._remoting, name_servers, clock=clock, chance=chance, tasks=self._tasks),
            traffic=traffic,
            answers=AnswerBudget(clock, traffic),
        )

    def _methods(self) -> list[Method]:
        """Builds the handlers; returns every rpc of the service, and those about it."""
        core = self._core
        checks = [one.check for one in (self._plain, self._access) if one is not None]
        admit = Callers(checks).admit
        routes = routing.RoutingHandlers(self.brokers, self._advertised, core.options)
        ends = sent_messages.SentMessageHandlers(core)
        receipts = acknowledging.ReceiptHandlers(core, self._lease_calls, self._renewal)
        session = sessions.SessionHandlers(core)
        return [
            unary("QueryRoute", admit, routes.handle_query_route),
            unary("QueryAssignment", admit, routes.handle_query_assignment),
            unary("SendMessage", admit, self._sends.handle_send),
            unary("EndTransaction", admit, ends.handle_end_transaction),
            unary("RecallMessage", admit, ends.handle_recall),
            server_stream("ReceiveMessage", admit, self._receives.handle_receive),
            unary("AckMessage", admit, receipts.handle_ack),
            unary("ChangeInvisibleDuration", admit, receipts.handle_change),
            unary("ForwardMessageToDeadLetterQueue", admit, receipts.handle_forward),
            server_stream("PullMessage", admit, self._pulls.handle_pull),
            unary("UpdateOffset", admit, self._pulls.handle_update),
            unary("GetOffset", admit, self._pulls.handle_get),
            unary("QueryOffset", admit, self._pulls.handle_query),
            unary("SyncLiteSubscription", admit, self._pulls.handle_lite),
            unary("Heartbeat", admit, session.handle_heartbeat),
            unary("NotifyClientTermination", admit, session.handle_termination),
            Method(SERVICE + "Telemetry", lambda call: session.serve_telemetry(call, admit), is_held=True),
            *health_methods(self._health),
            *reflection_methods(),
        ]

    def _make_access(self) -> tuple[PlainAccess | None, AccessControl | None]:
        """Returns the access control by files, and that by the users of brokers; a request must pass both."""
        options, machine = self._options, self._machine
        clock, audit = machine.clock, AccessLog(machine.clock)
        plain = None
        if options.acl_enable:
            plain = PlainAccess(
                options.acl_directory, cluster=options.cluster, disk=machine.disk, clock=clock, audit=audit
            )
        if not options.authentication_enabled:
            return plain, None
        return plain, AccessControl(self._core, audit)

    async def _start_metrics(self) -> None:
        options = self._options
        if options.metrics_exporter is MetricsExporter.DISABLE:
            return
        # Imported only if needed, as at a broker.
        from tandemmq.proxy.metrics import ProxySources, RouteProbe, read_all
        from tandemmq.remoting.metrics_port import MetricsSource
        from tandemmq.remoting.metrics_service import start_metrics

        sources = ProxySources(
            core=self._core,
            server=self._server,
            renewal=self._renewal,
            sends=self._sends,
            receives=self._receives,
            pulls=self._pulls,
            access=self._access,
        )
        machine = self._machine
        probe = RouteProbe(self.brokers.name_servers, machine.clock)
        self._tasks.start("route probe", probe.run())
        self._metrics, self.metrics_address = await start_metrics(
            MetricsSource(
                "proxy",
                lambda: (self._health.condition, probe.condition),
                read_all=lambda: read_all(sources),
                check_health=_check_health,
            ),
            options,
            listen_host=options.listen_host,
            network=machine.network,
            clock=machine.clock,
            scope=self._tasks,
        )

    def _advertised(self) -> routing.Endpoint:
        """Returns the endpoint for requests that name none."""
        if self._options.advertised:
            return parse_address(self._options.advertised)
        return self._options.local_host, self.address[1]


def _check_health() -> HttpAnswer:
    """Returns 200: a proxy that answers lives. Probes of readiness use the health service of gRPC."""
    return HttpAnswer(b"ok\n")
