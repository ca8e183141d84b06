"""NameServer: composes the route table, its request handlers and the listening port; answers queries about
brokers and topics.

Name servers do not know each other; each has only what brokers registered at it. Routes are in memory only,
the KV configuration is on disk (spec nameserver 1). `build_routes` is the whole interface: another code is
answered 3. Queries, and the operator's changes, are 105, 106, 205, 206, 216, 224, 304, 311 to 313, 327, 901
(spec nameserver 6 and 7).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from dataclasses import replace as replace_field
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tandemmq.errors import RequestRejected, TopicNotFound
from tandemmq.nameserver.kv_config import KvConfig, KvTable
from tandemmq.nameserver.network_views import ADDRESSES_NAMESPACE, Networks, check_given
from tandemmq.nameserver.options import FIXED_KEYS, NameServerOptions
from tandemmq.nameserver.registration import MinIdNotices, RegistrationHandlers
from tandemmq.nameserver.route_table import RouteTable, select_zone
from tandemmq.protocol.bodies.route import encode_cluster_info, encode_member_group, encode_topic_route
from tandemmq.protocol.bodies.tables import TOPIC_UNIT, TOPIC_UNIT_SUBSCRIPTION, encode_topic_list
from tandemmq.protocol.codes import VERSION_STANDARD_JSON, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.networks import INTERNAL
from tandemmq.protocol.requests import route as headers
from tandemmq.protocol.signature import Credentials
from tandemmq.protocol.topic_names import ORDER_TOPICS
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.health import Condition, Conditions
from tandemmq.remoting.options import PLAIN, ServerOptions, TlsOptions, is_open_to_everybody, render_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.settings import Settings
from tandemmq.remoting.shared_bounds import SharedBounds
from tandemmq.remoting.tls import TlsAcceptor, make_client_tls
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.ports import Address, Clock, Disk, Network
from tandemmq.runtime.tasks import OnFatal, TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.controller_metrics import NAMESERVER_READY
from tandemmq.telemetry.export_options import MetricsExporter
from tandemmq.telemetry.metrics import Sample

if TYPE_CHECKING:
    from tandemmq.remoting.metrics_port import MetricsPort

log = logging.getLogger(__name__)

FIRST_SCAN_S = 5.0
REGISTRATION_S = 30.0
"""The period of brokers' registrations (their registerNameServerPeriod): every running broker has registered
this long after the start.
"""


@dataclass(slots=True, eq=False)
class RouteHandlers:
    """The handlers that read the route table; `started_at_s` is the monotonic time at which the server began
    to listen.
    """

    table: RouteTable
    orders: KvTable
    _: KW_ONLY
    clock: Clock
    options: Callable[[], NameServerOptions]
    networks: Networks
    listener: str = ""
    """The network of the listener that these handlers serve; empty: the one of listenPort."""
    started_at_s: float = 0.0

    def handle_route(self, channel: Channel, command: Command) -> Command:
        """Handles GET_ROUTEINFO_BY_TOPIC (105), in the JSON dialect that the client's version or request asks
        for.
        """
        header = command.decode(headers.RouteRequest)
        options = self.options()
        age_s = self.clock.monotonic() - self.started_at_s
        if options.wait_for_service and age_s < options.wait_for_service_s:
            raise RequestRejected("the name server waits for brokers to register")
        route = self.table.route(header.topic, shows_acting_master=options.acting_master_enable)
        if route is None:
            raise TopicNotFound(f"no route of topic {header.topic}: no broker has registered it")
        if options.order_message_enable:
            route = replace(route, order_topic_conf=self.orders.get(ORDER_TOPICS, header.topic))
        if header.is_zone_mode and header.zone_name and header.zone_name.strip():
            route = select_zone(route, header.zone_name)
        network = self.networks.network_of(channel, header.zone_name, self.listener)
        mapped = self.networks.map_route(route, network)
        if route.brokers and not mapped.brokers:
            raise TopicNotFound(f"no broker of topic {header.topic} has an address in the network {network}")
        is_strict = _reads_strict_json(command) or bool(header.accepts_standard_json)
        return command.reply(body=encode_topic_route(mapped, is_strict=is_strict))

    def handle_cluster_info(self, channel: Channel, command: Command) -> Command:
        """Handles GET_BROKER_CLUSTER_INFO (106)."""
        zone_name = command.decode(headers.ClusterInfoRequest).zone_name
        network = self.networks.network_of(channel, zone_name, self.listener)
        info = self.networks.map_cluster(self.table.cluster_info(), network)
        body = encode_cluster_info(info, is_strict=_reads_strict_json(command))
        if network == INTERNAL:
            return command.reply(body=body)
        unmapped = ";".join(self.networks.unmapped(network))
        return command.reply(
            header=headers.ClusterInfoResponse(network=network, unmapped=unmapped or None), body=body
        )

    def handle_member_group(self, channel: Channel, command: Command) -> Command:
        """Handles GET_BROKER_MEMBER_GROUP (901): the replicas of a broker name; none when it is unknown."""
        header = command.decode(headers.MemberGroupRequest)
        group = self.table.member_group(header.cluster_name, header.broker_name)
        return command.reply(body=encode_member_group(group))

    def handle_all_topics(self, channel: Channel, command: Command) -> Command:
        """Handles GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        if not self.options().all_topic_list_enable:
            raise RequestRejected("enableAllTopicList is false")
        return command.reply(body=encode_topic_list(self.table.topics()))

    def handle_topics_of_cluster(self, channel: Channel, command: Command) -> Command:
        """Handles GET_TOPICS_BY_CLUSTER (224)."""
        header = command.decode(headers.TopicsByClusterRequest)
        return self._topic_list(command, self.table.topics_of_cluster(header.cluster))

    def handle_system_topics(self, channel: Channel, command: Command) -> Command:
        """Handles GET_SYSTEM_TOPIC_LIST_FROM_NS (304): clusters, brokers, and the address of one broker for
        further queries.
        """
        names, broker_address = self.table.system_topics()
        return command.reply(body=encode_topic_list(names, broker_address))

    def list_by_flag(self, set_bits: int, clear_bits: int = 0) -> Handler:
        """Returns the handler of a list of the topics with these bits in their sys flag."""

        def handle(_: Channel, command: Command) -> Command:
            topics = self.table.topics_with_flag(set_bits=set_bits, clear_bits=clear_bits)
            return self._topic_list(command, topics)

        return handle

    def handle_delete_topic(self, channel: Channel, command: Command) -> Command:
        """Handles DELETE_TOPIC_IN_NAMESRV (216): deletes from one cluster, or from all when none is named."""
        header = command.decode(headers.DeleteTopicInNameServerRequest)
        self.table.delete_topic(header.topic, header.cluster_name or None)
        return command.reply()

    def handle_wipe_write_permission(self, channel: Channel, command: Command) -> Command:
        """Handles WIPE_WRITE_PERM_OF_BROKER (205); answers with the number of the broker's topics."""
        header = command.decode(headers.WipeWritePermissionRequest)
        count = self.table.wipe_write_permission(header.broker_name)
        return command.reply(header=headers.WipeWritePermissionResponse(topic_count=count))

    def handle_add_write_permission(self, channel: Channel, command: Command) -> Command:
        """Handles ADD_WRITE_PERM_OF_BROKER (327); answers with the number of the broker's topics."""
        header = command.decode(headers.AddWritePermissionRequest)
        count = self.table.add_write_permission(header.broker_name)
        return command.reply(header=headers.AddWritePermissionResponse(topic_count=count))

    def _topic_list(self, command: Command, topics: Iterable[str]) -> Command:
        if not self.options().topic_list_enable:
            raise RequestRejected("enableTopicList is false")
        return command.reply(body=encode_topic_list(topics))


def _reads_strict_json(command: Command) -> bool:
    return command.version >= VERSION_STANDARD_JSON


def build_routes(
    registration: RegistrationHandlers,
    queries: RouteHandlers,
    kv: KvConfig,
    settings: Settings[NameServerOptions],
) -> dict[int, Handler]:
    """Returns the handlers by request code (spec nameserver 3 to 10)."""
    return {
        RequestCode.PUT_KV_CONFIG: kv.handle_put,
        RequestCode.GET_KV_CONFIG: kv.handle_get,
        RequestCode.DELETE_KV_CONFIG: kv.handle_delete,
        RequestCode.GET_KVLIST_BY_NAMESPACE: kv.handle_list,
        RequestCode.REGISTER_BROKER: registration.handle_register_broker,
        RequestCode.UNREGISTER_BROKER: registration.handle_unregister_broker,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: registration.handle_register_topic,
        RequestCode.QUERY_DATA_VERSION: registration.handle_query_data_version,
        RequestCode.BROKER_HEARTBEAT: registration.handle_heartbeat,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: queries.handle_route,
        RequestCode.GET_BROKER_CLUSTER_INFO: queries.handle_cluster_info,
        RequestCode.GET_BROKER_MEMBER_GROUP: queries.handle_member_group,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: queries.handle_all_topics,
        RequestCode.GET_TOPICS_BY_CLUSTER: queries.handle_topics_of_cluster,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: queries.handle_system_topics,
        RequestCode.GET_UNIT_TOPIC_LIST: queries.list_by_flag(TOPIC_UNIT),
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: queries.list_by_flag(TOPIC_UNIT_SUBSCRIPTION),
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: queries.list_by_flag(
            TOPIC_UNIT_SUBSCRIPTION, clear_bits=TOPIC_UNIT
        ),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: queries.handle_delete_topic,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: queries.handle_wipe_write_permission,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: queries.handle_add_write_permission,
        RequestCode.UPDATE_NAMESRV_CONFIG: settings.handle_update,
        RequestCode.GET_NAMESRV_CONFIG: settings.handle_get,
    }


class NameServer:
    """One name server. `on_fatal` is called when it can no longer be trusted and must be stopped.

    metrics_address  the port of the metrics and of the health pages; None if disabled
    more_conditions  set by the owner: the conditions of a controller in the same process
    more_metrics     set by the owner: the readings of that controller, piece by piece
    """

    metrics_address: Address | None = None
    more_conditions: Conditions = tuple
    more_metrics: Callable[[], Iterable[Iterable[Sample]]] = tuple
    _metrics: MetricsPort | None = None

    def __init__(
        self,
        options: NameServerOptions,
        *,
        network: Network,
        disk: Disk,
        clock: Clock,
        on_fatal: OnFatal | None = None,
        tls: TlsOptions = PLAIN,
        credentials: Credentials | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """Creates the name server. `credentials` sign its notifications to brokers."""
        self._tls = TlsAcceptor(tls, disk=disk, clock=clock)
        self._network, self._clock = network, clock
        event = events.NAMESERVER_CONFIG_CHANGED
        self._settings = Settings(options, fixed_keys=FIXED_KEYS, event=event, disk=disk)
        self._kv = KvConfig(options.kv_config_path, disk=disk, checks={ADDRESSES_NAMESPACE: check_given})
        self._table = table = RouteTable()
        on_failure = None if on_fatal is None else lambda _, error: on_fatal(error)
        self._scope = TaskScope("nameserver", on_failure)
        self._client = RemotingClient(
            network=network,
            clock=clock,
            signer=None if credentials is None else credentials.sign,
            tls=make_client_tls(tls.dialling),
        )
        channels: set[Channel] = set()
        kv, live = self._kv.table, self._settings
        networks = Networks(table, kv, options=lambda: live.options, broker_channels=channels)
        self._registration = RegistrationHandlers(
            table,
            kv,
            clock=clock,
            options=lambda: live.options,
            notices=MinIdNotices(table, client=self._client, scope=self._scope),
            networks=networks,
            channels=channels,
        )
        self._queries = RouteHandlers(table, kv, clock=clock, options=lambda: live.options, networks=networks)
        self.served_codes = frozenset(self._routes(self._queries))
        self._make_server = partial(
            RemotingServer,
            network=network,
            clock=clock,
            options=ServerOptions(idle_close_s=options.idle_close_s),
            on_fatal=on_fatal,
            tls=self._tls,
            shared=SharedBounds(clock, connections_max=connections_max),
        )
        self._server = self._make_server(self._routes(self._queries))
        self._network_servers: list[tuple[str, RemotingServer]] = []

    def _routes(self, queries: RouteHandlers) -> dict[int, Handler]:
        return build_routes(self._registration, queries, self._kv, self._settings)

    @property
    def address(self) -> Address:
        """The listening address. Only between `start` and `stop`."""
        return self._server.address

    @property
    def network_addresses(self) -> list[tuple[str, Address]]:
        """The listeners of networks: (network, listening address). Only between `start` and `stop`."""
        return [(network, server.address) for network, server in self._network_servers]

    async def start(self) -> Address:
        """Starts the name server and returns the bound address of listenPort.

        Raises:  OSError when a port cannot be bound; ConfigError when the KV configuration cannot be read.
        """
        self._kv.load()
        self._tls.load()
        options = self._settings.options
        self._queries.started_at_s = self._clock.monotonic()
        address = await self._server.start(options.listen_host, options.listen_port)
        for network, listeners in options.listener_networks.items():
            for host, port in listeners:
                server = self._make_server(self._routes(replace_field(self._queries, listener=network)))
                self._network_servers.append((network, server))
                await server.start(host, port)
        await self._start_metrics()
        self._scope.start("scan", self._scan())
        self._scope.start("watch_certificates", self._tls.watch())
        networks = [f"{network}={render_address(bound)}" for network, bound in self.network_addresses]
        log.info(events.NAMESERVER_STARTED, extra={"address": address, "networks": networks})
        for bound in (address, *(bound for _, bound in self.network_addresses)):
            if is_open_to_everybody(bound, self._tls.options):
                log.warning(events.NAMESERVER_OPEN, extra={"address": bound})
        return address

    async def stop(self) -> None:
        """Closes the ports and every connection; the KV configuration is already on disk."""
        if self._metrics is not None:
            await self._metrics.stop()
        await self._scope.close()
        for _, server in self._network_servers:
            await server.stop()
        self._network_servers.clear()
        await self._server.stop()
        await self._client.close()
        log.info(events.NAMESERVER_STOPPED)

    async def _start_metrics(self) -> None:
        options = self._settings.options
        if options.metrics_exporter is MetricsExporter.DISABLE:
            return
        # Imported only if needed, as at a broker.
        from tandemmq.remoting.metrics_port import MetricsSource
        from tandemmq.remoting.metrics_service import start_metrics

        self._metrics, self.metrics_address = await start_metrics(
            MetricsSource(
                "name-server",
                self._read_conditions,
                read_all=self._read_metrics,
                read_pieces=lambda: iter(self.more_metrics()),
            ),
            options,
            listen_host=options.listen_host,
            network=self._network,
            clock=self._clock,
            scope=self._scope,
        )

    def _read_metrics(self) -> Iterator[Sample]:
        """Yields the name server's own readings."""
        yield from self._queries.networks.read_metrics()
        yield Sample(NAMESERVER_READY, int(not any(one.fault for one in self._read_conditions())))

    def _read_conditions(self) -> Iterator[Condition]:
        """Yields the conditions under which the name server is ready: it has the routes of known brokers, or
        brokers have had the time to register since its start.
        """
        brokers, fault = self._table.cluster_info().brokers, ""
        if brokers and not self._table.topics():
            fault = f"no topic of {', '.join(brokers)} is registered"
        elif not brokers and self._clock.monotonic() - self._queries.started_at_s < REGISTRATION_S:
            fault = f"no broker has registered in the first {REGISTRATION_S:.0f} s since the start"
        yield Condition("routes", fault)
        yield from self.more_conditions()

    async def _scan(self) -> None:
        """Removes silent brokers periodically (spec nameserver 5)."""
        await self._clock.sleep(FIRST_SCAN_S)
        while True:
            self._registration.expire()
            await self._clock.sleep(self._settings.options.scan_period_ms / 1000)
