"""NameServer: composes the route table, its requests and the port they come in by.

Name servers do not know each other; each holds what brokers told it. Routes live in memory only, the KV
configuration on disk (spec nameserver 1). `build_routes` is the whole interface: another code is answered 3.
"""

from __future__ import annotations

import logging

from tandemmq.nameserver.kv_config import KvConfig
from tandemmq.nameserver.min_id_notices import MinIdNotices
from tandemmq.nameserver.options import FIXED_KEYS, NameServerOptions
from tandemmq.nameserver.queries import QueryHandlers
from tandemmq.nameserver.registration import RegistrationHandlers
from tandemmq.nameserver.route_table import RouteTable
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler, OnFatal
from tandemmq.remoting.options import ServerOptions
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.settings import Settings
from tandemmq.remoting.tls_door import TlsDoor, make_client_tls
from tandemmq.remoting.tls_options import PLAIN, TlsOptions
from tandemmq.runtime.ports import Address, Clock, Disk, Network
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


def build_routes(
    registration: RegistrationHandlers,
    queries: QueryHandlers,
    kv: KvConfig,
    settings: Settings[NameServerOptions],
) -> dict[int, Handler]:
    """Handlers by request code (spec nameserver 3 to 10)."""
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
        RequestCode.GET_UNIT_TOPIC_LIST: queries.handle_unit_topics,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: queries.handle_unit_sub_topics,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: queries.handle_unit_sub_topics_outside_units,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: queries.handle_delete_topic,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: queries.handle_wipe_write_permission,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: queries.handle_add_write_permission,
        RequestCode.UPDATE_NAMESRV_CONFIG: settings.handle_update,
        RequestCode.GET_NAMESRV_CONFIG: settings.handle_get,
    }


FIRST_SCAN_S = 5.0


class NameServer:
    """One name server. `on_fatal` is called when it can no longer be trusted and must be stopped."""

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
    ) -> None:
        """`credentials`: what it signs with when it tells brokers something."""
        self._tls = TlsDoor(tls, disk=disk, clock=clock)
        self._clock = clock
        self._settings = Settings(
            options, fixed_keys=FIXED_KEYS, event=events.NAMESERVER_CONFIG_CHANGED, disk=disk
        )
        self._kv = KvConfig(options.kv_config_path, disk=disk)
        table = RouteTable()
        on_failure = None if on_fatal is None else lambda _, error: on_fatal(error)
        self._scope = TaskScope("nameserver", on_failure)
        self._client = RemotingClient(
            network=network,
            clock=clock,
            signer=None if credentials is None else credentials.sign,
            tls=make_client_tls(tls.dialling),
        )
        self._registration = RegistrationHandlers(
            table,
            self._kv.table,
            clock=clock,
            options=lambda: self._settings.options,
            notices=MinIdNotices(table, client=self._client, scope=self._scope),
        )
        self._queries = QueryHandlers(
            table, self._kv.table, clock=clock, options=lambda: self._settings.options
        )
        routes = build_routes(self._registration, self._queries, self._kv, self._settings)
        self.served_codes = frozenset(routes)
        self._server = RemotingServer(
            routes,
            network=network,
            clock=clock,
            options=ServerOptions(idle_close_s=options.idle_close_s),
            on_fatal=on_fatal,
            tls=self._tls,
        )

    @property
    def address(self) -> Address:
        """Where it listens. Only between `start` and `stop`."""
        return self._server.address

    async def start(self) -> Address:
        """The bound address.

        Raises:  OSError when the port cannot be bound; ConfigError when the KV configuration cannot be read.
        """
        self._kv.load()
        self._tls.load()
        options = self._settings.options
        self._queries.started_at_s = self._clock.monotonic()
        address = await self._server.start(options.listen_host, options.listen_port)
        self._scope.start("scan", self._scan())
        self._scope.start("watch_certificates", self._tls.watch())
        log.info(events.NAMESERVER_STARTED, extra={"address": address})
        return address

    async def stop(self) -> None:
        """Closes the port and every connection; the KV configuration is on disk already."""
        await self._scope.close()
        await self._server.stop()
        await self._client.close()
        log.info(events.NAMESERVER_STOPPED)

    async def _scan(self) -> None:
        """Looks for silent brokers (spec nameserver 5)."""
        await self._clock.sleep(FIRST_SCAN_S)
        while True:
            self._registration.expire()
            await self._clock.sleep(self._settings.options.scan_period_ms / 1000)
