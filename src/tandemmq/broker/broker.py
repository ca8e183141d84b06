"""The broker: builds its parts in order, starts them and stops them; it has no behaviour of its own.

Order of start: store, tables, core and handlers, listeners, replication, a master's duties, registration.
`stop` may always be called, and cleans up after a start that failed. A master whose log may lack acknowledged
messages serves none at first; its duties and its registration begin once it has those messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tandemmq.api.nameserver import BrokerIdentity, Registered, unregister_broker
from tandemmq.broker.access.service import AccessService, warn_if_open
from tandemmq.broker.admin.settings import HaHandlers
from tandemmq.broker.autoswitch.term import (
    ElectedReplica,
    Term,
    copied_routes,
    fenced_routes,
    forwarded_routes,
    refused_writes,
    verified_routes,
)
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.durable import DutyTasks
from tandemmq.broker.options import OPEN, AccessOptions, BrokerOptions
from tandemmq.broker.parts import Parts, build_routes, fast_routes, make_duties, marked_routes
from tandemmq.broker.registration import Registration
from tandemmq.broker.replica.replica import GroupReplica
from tandemmq.broker.replica.role import ReplicaRole
from tandemmq.broker.replica.tail_check import closed_routes
from tandemmq.broker.second_master import ASK_TIMEOUT_S, MasterClaim
from tandemmq.broker.stats import SAMPLE_PERIOD_S, StatsItems
from tandemmq.broker.tables import Tables
from tandemmq.errors import ConfigError, LocalProtocolError, TandemError
from tandemmq.protocol import speedups
from tandemmq.protocol.bodies import codec
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.topic_names import HALF_TOPIC
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import PLAIN, TlsOptions, render_address
from tandemmq.remoting.rpc_times import RpcTimes
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.shared_bounds import SharedBounds
from tandemmq.remoting.tls import TlsAcceptor, make_client_tls
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.ports import Address, Machine
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole, StoreOptions
from tandemmq.telemetry import events
from tandemmq.telemetry.export_options import MetricsExporter

if TYPE_CHECKING:
    from tandemmq.remoting.metrics_port import MetricsPort

log = logging.getLogger(__name__)

FAST_PORT_DISTANCE = 2
FORGET_EVERY = 360
"""The number of 10 s samples after which deleted topics and groups are dropped from the statistics."""


def _raise_fatal(error: BaseException) -> None:
    raise error


class Broker:
    """One broker. After `start`, `address`, `ha_address` and `metrics_address` (None if disabled) are its
    listening addresses.

    `on_fatal` is called when the broker can no longer be trusted; its owner must then stop the process.
    """

    address: Address
    ha_address: Address
    metrics_address: Address | None = None
    served_codes: frozenset[int] = frozenset()
    is_active = False
    """True once the owner of an elected broker has called `activate`."""
    is_paused = False
    _is_stopping = False
    store: MessageStore | None = None
    _parts: Parts | None = None
    _replica: ReplicaRole | None = None
    _elected: ElectedReplica | None = None
    _registration: Registration | None = None
    _metrics: MetricsPort | None = None
    _duties: DutyTasks | None = None

    def __init__(
        self,
        options: BrokerOptions,
        store_options: StoreOptions,
        replication_options: ReplicationOptions | None = None,
        *,
        machine: Machine,
        on_fatal: Callable[[BaseException], None] = _raise_fatal,
        access: AccessOptions = OPEN,
        tls: TlsOptions = PLAIN,
        term: Term | None = None,
    ) -> None:
        """Builds a broker. `term`: set if controllers decide the broker's role; its owner then provides the
        store and the client, and calls `activate`.
        """
        _check_role(options, store_options)
        self.options = options
        self._store_options = store_options
        self._replication_options = replication_options or ReplicationOptions()
        self._machine = machine
        self._clock = clock = machine.clock
        disk = machine.disk
        self._on_fatal = on_fatal
        self._scope = TaskScope("broker", lambda _name, error: on_fatal(error))
        self._waiting = TaskScope("broker", lambda _name, error: on_fatal(error))
        self._tables = Tables(
            options,
            store_options.root / "config",
            disk=disk,
            clock=clock,
            unsaved=None if term is None else term.unsaved_tables,
            is_guarded=access.is_on,
        )
        self._access_options = access
        self._access = AccessService(access, options, self._tables, machine, self._advertised_address)
        self._tls = TlsAcceptor(tls, disk=disk, clock=clock)
        self._term = term
        self._client = (
            RemotingClient(
                network=machine.network,
                clock=clock,
                signer=self._access.signer,
                tls=make_client_tls(tls.dialling),
            )
            if term is None
            else term.client
        )
        self._servers: list[RemotingServer] = []
        self._times = self._find_times()
        self._shared_bounds = SharedBounds(
            clock,
            connections_max=options.connections_max,
            frame_bytes_held_max=options.frame_bytes_held_max,
        )
        self._claim = MasterClaim(
            options,
            client=self._client,
            own_address=self._advertised_address,
            chance=machine.chance,
        )

    async def start(self) -> None:
        """Starts the broker. Returns when requests are served and every name server was tried once.

        Raises:  ConfigError or OSError for problems that a user can solve; StoreError. Call `stop` after an
                error as well.
        """
        options, clock = self.options, self._clock
        term = self._term
        if term is not None:
            store = self.store = term.store
        else:
            await self._claim.require_first()
            store = self.store = await MessageStore.open(
                self._store_options, disk=self._machine.disk, clock=clock, on_fatal=self._on_fatal
            )
        self._tables.load(delay_level_count=len(self._store_options.delay_levels_ms))
        self._tables.follow(store)
        self._access.load()
        self._access.bind(store.read_record)
        self._tls.load()
        if not options.is_slave and not store.unverified_reason:
            self._tables.begin_run(store)
            if term is not None:
                self._tables.begin_term(term.epoch)
        store.appender.store_host = self._packed_host(options.listen_port)
        core = BrokerCore.build(
            options,
            store=store,
            tables=self._tables,
            client=self._client,
            machine=self._machine,
            own_address=self._advertised_address,
            may_commit=self._may_commit,
        )
        if term is None:
            await self._start_classic(core)
        else:
            await self._start_elected(core, term)
        log.info(
            events.BROKER_STARTED,
            extra={
                "broker": options.broker_name,
                "address": self.address,
                "ha_address": self.ha_address,
                "speedups": speedups.state,
            },
        )
        if term is None:
            warn_if_open(self.address, self._access_options, self._tls.options)

    def _find_times(self) -> RpcTimes | None:
        """Returns the times of requests, which outlive a role as the servers do; None if not measured."""
        if self._term is not None and self._term.servers:
            return next(iter(self._term.servers.values())).times
        is_served = self.options.metrics_exporter is not MetricsExporter.DISABLE
        return RpcTimes(self._clock) if is_served and self.options.remoting_metrics else None

    def _may_commit(self) -> bool:
        if self._term is None:
            return not self._claim.yielded_to
        return self.options.is_slave or self._term.may_write()

    def _build_parts(self, core: BrokerCore, replica: GroupReplica) -> Parts:
        registration = self._registration = Registration(
            core,
            scope=self._scope,
            on_answer=self._on_registered,
            is_disconnected=lambda: replica.is_disconnected,
            may_register=self._claim.may_register if self._claim.is_watched and self._term is None else None,
        )
        parts = self._parts = Parts(core, self._access_options, replica, registration, self._rejections)
        self._claim.started_at_ms = parts.runtime_info.booted_at_ms
        return parts

    async def _start_classic(self, core: BrokerCore) -> None:
        store, network = core.store, self._machine.network
        replica = self._replica = ReplicaRole(
            core, self._replication_options, self._on_fatal, network=network, claim=self._claim
        )
        parts = self._build_parts(core, replica)
        of_replicas = replica.routes() | self._ha_handlers(store).routes()
        routes = self._client_routes(parts) | of_replicas
        served, fast = dict(routes), dict[int, Handler]()
        if store.unverified_reason:
            kept = of_replicas | self._access.routes()
            served |= closed_routes(routes, kept, lambda: replica.tail_wait.reason)
        await self._serve(store, parts, served, fast)

        def cede() -> None:
            served.update(refused_writes(served, self._claim.refusal))
            fast.update(refused_writes(fast, self._claim.refusal))
            self._waiting.start("cede", self._cede())

        self._claim.on_yield = cede
        self.ha_address = await replica.start(self.options.listen_host, ha_port_of(self.options))
        self._start_tasks(parts)
        await self._start_metrics(parts)
        if store.unverified_reason:

            def reopen() -> None:
                served.update(routes)
                fast.update(fast_routes(routes))

            self._waiting.start("tail_wait", self._wait_for_tail(store, parts, replica, reopen))
        else:
            await self._start_role(store, parts)

    async def _cede(self) -> None:
        """Stops the duties and unregisters, because another master of this name continues."""
        if self._duties is not None:
            await self._duties.stop()
        if self._registration is not None:
            await self._registration.stop()

    async def _start_elected(self, core: BrokerCore, term: Term) -> None:
        """Starts a broker with an elected role; it registers and begins its duties with `activate`."""
        store = core.store
        elected = self._elected = ElectedReplica(core, self._replication_options, self._on_fatal, term)
        parts = self._build_parts(core, elected)
        store.terms.on_cut = lambda: self._tables.clamp(store)
        self.ha_address = term.ha_address
        routes = self._client_routes(parts)
        routes |= elected.routes() | self._ha_handlers(store).routes()
        if self.options.is_slave:
            routes = verified_routes(forwarded_routes(routes, term.forwarding), term.foreign)
        else:
            copied = copied_routes(routes, elected.wait_copied)
            routes = fenced_routes(copied, term.may_write, term.forwarding)
        await self._serve(store, parts, routes | term.routes, {})
        elected.start()
        self._start_tasks(parts)
        await self._start_metrics(parts)

    def _client_routes(self, parts: Parts) -> dict[int, Handler]:
        """Returns the handlers of clients' and tools' requests."""
        routes = build_routes(parts) | self._access.routes()
        if self._times is not None:
            routes |= marked_routes(routes, parts)
        if self.options.traces_exporter is MetricsExporter.DISABLE:
            return routes
        from tandemmq.broker.send.spans import traced_routes

        return routes | traced_routes(routes, self.options)

    async def _serve(
        self, store: MessageStore, parts: Parts, served: dict[int, Handler], fast: dict[int, Handler]
    ) -> None:
        options = self.options
        self.served_codes = frozenset(served)
        self.address = await self._listen(served, options.listen_port)
        store.appender.store_host = self._packed_host(self.address[1])
        parts.reply_form.bind(store.appender.store_host)
        if options.fast_listen and options.listen_port > FAST_PORT_DISTANCE:
            fast.update(fast_routes(served))
            await self._listen(fast, options.listen_port - FAST_PORT_DISTANCE)

    async def _start_role(self, store: MessageStore, parts: Parts) -> None:
        """Starts a master's duties and registers, so that clients find this broker."""
        if not self.options.is_slave:
            make = partial(make_duties, parts, self._access.may_publish)
            self._duties = DutyTasks(store, make, self._on_fatal)
            self._duties.start()
        assert self._registration is not None
        if self._replica is not None:
            self._replica.on_master_lost = self._registration.register_soon
        await self._registration.start(self._identity())

    # Methods for the owner of an elected broker.

    def activate(self) -> None:
        """Begins the role of this term: starts the duties of a master, and registers with the name servers as
        soon as they are reachable.
        """
        assert self.store is not None
        assert self._parts is not None
        self.is_active = True
        self._scope.start("activate", self._start_role(self.store, self._parts))

    def set_master(self, address: str | None) -> None:
        """Sets the address of the master whose tables this slave copies, or None without a master."""
        assert self._elected is not None
        assert self._parts is not None
        self._elected.set_master(address)
        self._parts.pulls.set_has_master(address is not None)
        if address is not None:
            # They would hold the queues again in this broker's next term, for as long as a proxy renews them.
            self._tables.orders.drop_all()

    def has_tables(self, broker_id: int) -> bool:
        """Returns True if the slave holds the current topics and groups. Only on a master."""
        assert self._elected is not None
        return self._elected.has_tables(broker_id)

    async def pause(self, *, is_paused: bool) -> None:
        """Pauses or resumes the duties: a fenced master does none, and later continues where it stopped."""
        self.is_paused = is_paused
        if self._duties is None:
            return
        if is_paused:
            await self._duties.stop()
        else:
            self._duties.start()

    async def _wait_for_tail(
        self, store: MessageStore, parts: Parts, replica: ReplicaRole, reopen: Callable[[], None]
    ) -> None:
        """Waits until the log's tail is complete. Until then clients behave as if the master were absent, and
        read from a slave if that is allowed.
        """
        for address in dict.fromkeys(self.options.name_servers):
            # The entry of the previous run may still be registered.
            with suppress(TandemError):
                await unregister_broker.within(ASK_TIMEOUT_S, self._client, address, self._identity())
        await replica.wait_for_tail()
        self._tables.begin_run(store)
        reopen()
        await self._start_role(store, parts)

    @property
    def unsaved_tables(self) -> dict[Path, bytes]:
        """The contents of tables that could not be written yet, by path."""
        return self._tables.saver.unsaved()

    @property
    def stats_items(self) -> StatsItems:
        """The statistics of topics and groups. Available after `start`."""
        assert self._parts is not None
        return self._parts.core.items

    async def stop(self, *, keeps: Callable[[Channel], bool] | None = None) -> None:
        """Stops the broker: everything accepted is stored, all tables are saved, no task is left running.

        `keeps` is set for an elected broker that continues in another role: it stays registered, and keeps
        its ports and the connections for which `keeps` is True.
        """
        self._is_stopping = True
        await self._waiting.close()
        if self._registration is not None and keeps is None:
            await self._registration.stop()
        if self._parts is not None:
            self._parts.core.long_polls.close()
            self._parts.pop.polls.close()
        if self._metrics is not None:
            await self._metrics.stop()
        for server in reversed(self._servers):
            await (server.stop() if keeps is None else server.pause(keeps))
        self._servers.clear()
        if self._duties is not None:
            await self._duties.stop()
        if self._replica is not None:
            await self._replica.stop()
        if self._elected is not None:
            await self._elected.stop()
        self._access.close()
        await self._tables.saver.close()
        await self._scope.close()
        if self._term is None:
            await self._client.close()
            if self.store is not None:
                await self.store.close()
        if self.store is not None and self._duties is not None:
            if self._term is not None:
                await self.store.sync()
            self._duties.settle()
            await self._tables.saver.close()
        log.info(events.BROKER_STOPPED, extra={"broker": self.options.broker_name})

    def _ha_handlers(self, store: MessageStore) -> HaHandlers:
        assert self._registration is not None
        return HaHandlers(
            is_slave=self.options.is_slave,
            first_end=store.max_log_offset,
            own_addresses=lambda: (self._advertised_address(), self._advertised_ha_address()),
            register_soon=self._registration.register_soon,
            master_epoch=None if self._term is None else self._term.epoch,
        )

    async def _listen(self, routes: dict[int, Handler], port: int) -> Address:
        lasting = {} if self._term is None else self._term.servers
        if port in lasting:
            lasting[port].resume(routes, guard=self._access.check, tls=self._tls)
            self._servers.append(lasting[port])
            return lasting[port].address
        server = RemotingServer(
            routes,
            network=self._machine.network,
            clock=self._clock,
            on_fatal=self._on_fatal,
            guard=self._access.check,
            tls=self._tls,
            shared=self._shared_bounds,
        )
        server.times = self._times
        try:
            address = await server.start(self.options.listen_host, port)
        except OSError as error:
            raise ConfigError(
                f"port {port} of {self.options.listen_host} cannot be listened on: {error.strerror or error}"
                " (listenPort, and listenPort - 2 unless fastListen=false)"
            ) from error
        self._servers.append(server)
        lasting[port] = server
        return address

    def _rejections(self) -> dict[str, str]:
        """Returns the rejections by access control, listeners' bounds and history checks, for the runtime
        info.
        """
        audit, elected, history = self._access.audit, self._elected, {}
        if elected is not None:
            history = {
                codec.HISTORY_DOUBT_KEY: elected.history_mismatch,
                codec.HISTORY_DIFFERED_KEY: str(elected.history_differed_count),
            }
        return {
            **history,
            codec.DENIALS_KEY: str(audit.denied_count),
            codec.NEWEST_DENIAL_KEY: audit.newest,
            codec.REFUSED_CONNECTIONS_KEY: str(sum(server.refused_count for server in self._servers)),
            **self._claim.facts(),
        }

    async def _start_metrics(self, parts: Parts) -> None:
        if self.options.metrics_exporter is MetricsExporter.DISABLE:
            return
        # Imported only if needed: the library costs a broker 30 ms and 4 MiB.
        from tandemmq.broker.health import BrokerHealth
        from tandemmq.broker.metrics import MetricSources, metrics_source
        from tandemmq.remoting.metrics_service import start_metrics

        listeners = dict(zip(("main", "fast"), self._servers, strict=False))
        replica = self._replica or self._elected
        assert replica is not None
        assert self._registration is not None
        health = BrokerHealth(
            parts.core.store,
            replica,
            self._registration,
            is_slave=self.options.is_slave,
            is_stopping=lambda: self._is_stopping,
            role_fault=self._role_fault,
        )
        sources = MetricSources(parts.core, parts.pop, listeners, replica, self._times)
        self._metrics, self.metrics_address = await start_metrics(
            metrics_source(sources, health.read),
            self.options,
            listen_host=self.options.listen_host,
            network=self._machine.network,
            clock=self._clock,
            scope=self._scope,
        )

    def _role_fault(self) -> str:
        if self._term is not None:
            return self._term.role_fault()
        other = self._claim.yielded_to
        return f"the master at {other} has the name of this broker, too, and continues" if other else ""

    def _start_tasks(self, parts: Parts) -> None:
        self._scope.start("save_tables", self._tables.saver.run())
        self._scope.start("watch_access_rules", self._access.watch())
        self._scope.start("watch_certificates", self._tls.watch())
        self._scope.start("drop_silent_clients", self._drop_silent_clients(parts))
        self._scope.start("sample_stats", self._sample_stats(parts))

    def _on_registered(self, answer: Registered) -> None:
        # The master of an elected group is known from the controllers, and earlier.
        if self._replica is not None:
            assert self._parts is not None
            self._replica.on_registered(answer.master_address, answer.master_ha_address)
            self._parts.pulls.set_has_master(self._replica.is_master_known)

    def _identity(self) -> BrokerIdentity:
        return BrokerIdentity(
            cluster_name=self.options.cluster_name,
            broker_name=self.options.broker_name,
            broker_id=self.options.broker_id,
            broker_address=self._advertised_address(),
            ha_address=self._advertised_ha_address(),
        )

    async def _drop_silent_clients(self, parts: Parts) -> None:
        while True:
            await self._clock.sleep(self.options.client_scan_period_ms / 1000)
            parts.clients.drop_silent()

    async def _sample_stats(self, parts: Parts) -> None:
        count = 0
        while True:
            await self._clock.sleep(SAMPLE_PERIOD_S)
            now_s = self._clock.monotonic()
            parts.core.stats.sample(now_s)
            parts.runtime_info.sample()
            day = datetime.fromtimestamp(self._clock.now_ms() / 1000).date()
            parts.core.stats.note_day(
                day, parts.core.items.users_put_count(), parts.core.items.users_got_count()
            )
            half_end = parts.core.store.queue_max(HALF_TOPIC, 0)
            for _ in chain(parts.core.stats.fold(half_end), parts.core.items.steps(now_s)):
                await self._clock.sleep(0)
            count += 1
            if count % FORGET_EVERY == 0:
                parts.core.items.forget(now_s)
                parts.core.stats.keep_topics(frozenset(parts.core.topics.names))

    def _advertised_address(self) -> str:
        return render_address((self.options.advertised_host, self.address[1]))

    def _advertised_ha_address(self) -> str:
        host = self.options.ha_advertised_host or self.options.advertised_host
        return render_address((host, self.ha_address[1]))

    def _packed_host(self, port: int) -> bytes:
        try:
            return encode_host(self.options.store_ip or self.options.advertised_host, port)
        except LocalProtocolError:
            raise ConfigError(
                f"brokerIP1 {self.options.advertised_host!r}: a host name needs the numeric address of it,"
                " because message ids hold it"
            ) from None


def _check_role(options: BrokerOptions, store_options: StoreOptions) -> None:
    if options.is_slave != (store_options.role is BrokerRole.SLAVE):
        raise ConfigError(
            f"brokerId {options.broker_id} contradicts brokerRole {store_options.role.value}:"
            " a master has id 0, a slave an id above 0"
        )


def ha_port_of(options: BrokerOptions) -> int:
    """Returns haListenPort if set, else listenPort + 1, else 0 for any port (spec decisions 1)."""
    if options.ha_listen_port or not options.listen_port:
        return options.ha_listen_port
    return options.listen_port + 1
