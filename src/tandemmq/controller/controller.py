"""Controller: composes the consensus, the groups that it agrees on, and the port that serves requests.
`Peers` transports the messages of the consensus.

A controller runs alone or in the process of a name server, in both cases with its own port and store. Its
peers communicate over ordinary remoting connections.
Strategy:   each controller sends over its own connections, which are opened on demand. A message that cannot
            be sent at once is dropped, as the consensus allows. A connection to a peer that was silent for a
            while is replaced, because the peer's machine may be gone without a notice.
Invariants: only messages of controllers of the group are accepted; with a shared secret each message carries
            a proof. At most one connection attempt per peer is in progress.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from tandemmq.consensus.core.messages import Message, decode_message, encode_message
from tandemmq.consensus.shell.files import RaftFiles
from tandemmq.consensus.shell.server import RaftServer
from tandemmq.controller.elections import Elections
from tandemmq.controller.groups import Groups
from tandemmq.controller.guard import ControllerGuard
from tandemmq.controller.handlers import ControllerHandlers
from tandemmq.controller.history_keeper import HistoryKeeper
from tandemmq.controller.metering import ControllerSources, read_controller
from tandemmq.controller.options import FIXED_KEYS, ControllerConfig, ControllerOptions
from tandemmq.errors import NotPermitted, RequestRejected, TandemError
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.controller import RaftMessageHeader
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.health import Condition
from tandemmq.remoting.options import is_open_to_everybody, parse_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.settings import Settings
from tandemmq.remoting.shared_bounds import SharedBounds
from tandemmq.remoting.tls import TlsAcceptor, make_client_tls
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.ports import Address, Clock, Disk, Network, Random
from tandemmq.runtime.tasks import OnFatal, TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.export_options import MetricsExporter
from tandemmq.telemetry.metrics import Sample

if TYPE_CHECKING:
    from tandemmq.remoting.metrics_port import MetricsPort

log = logging.getLogger(__name__)

SILENT_S = 2.0
CONNECT_TIMEOUT_S = 1.0
HAND_OVER_S_MAX = 1.0
HISTORY = "history"
"""The capability that controllers announce to each other: support of the commands and fields of histories."""


class Controller:
    """One controller. `on_fatal` is called when the controller can no longer be trusted and must be
    stopped.

    metrics_address  the port of the metrics and of the health pages; None if disabled
    """

    metrics_address: Address | None = None
    _metrics: MetricsPort | None = None

    def __init__(
        self,
        config: ControllerConfig,
        *,
        network: Network,
        disk: Disk,
        clock: Clock,
        chance: Random,
        on_fatal: OnFatal | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        options, credentials = config.options, config.credentials
        self._settings = Settings(
            options, fixed_keys=FIXED_KEYS, event=events.CONTROLLER_CONFIG_CHANGED, disk=disk
        )
        self._network, self._clock = network, clock
        self._tls = TlsAcceptor(config.tls, disk=disk, clock=clock)
        self._scope = TaskScope("controller", None if on_fatal is None else lambda _, error: on_fatal(error))
        self._client = RemotingClient(
            network=network,
            clock=clock,
            signer=None if credentials is None else credentials.sign,
            tls=make_client_tls(config.tls.dialling),
        )
        self._configured = options.peer_addresses
        self.groups = Groups()
        self._peers = Peers(
            options,
            address_of=self._address_of,
            raft=lambda: self.raft,
            client=self._client,
            scope=self._scope,
            clock=clock,
        )
        self.raft = self._build_raft(options, disk, chance, on_fatal)
        self.history = HistoryKeeper(
            self.groups,
            self.raft,
            self._supports_history,
            lambda: self._peers.reported_id,
            chance=chance,
            clock=clock,
            scope=self._scope,
        )
        self.heartbeats = self.history.heartbeats
        self._elections = Elections(
            self.history,
            options=lambda: self._settings.options,
            client=self._client,
            network=network,
            clock=clock,
            scope=self._scope,
        )
        self._audit = AccessLog(clock)
        self._guard = ControllerGuard(options, credentials, audit=self._audit, clock=clock)
        self._server = self._build_server(self._build_routes(options), network, connections_max, on_fatal)

    def _build_raft(
        self, options: ControllerOptions, disk: Disk, chance: Random, on_fatal: OnFatal | None
    ) -> RaftServer:
        return RaftServer(
            RaftFiles(options.store_path, group=options.group, name=options.self_id, disk=disk),
            self._configured,
            machine=self.groups,
            send=self._peers.send,
            on_failure=lambda _, error: None if on_fatal is None else on_fatal(error),
            clock=self._clock,
            random=chance,
            options=options.raft,
        )

    def _build_server(
        self,
        routes: Mapping[int, Handler],
        network: Network,
        connections_max: int,
        on_fatal: OnFatal | None,
    ) -> RemotingServer:
        self.served_codes = frozenset(routes)
        return RemotingServer(
            routes,
            network=network,
            clock=self._clock,
            shared=SharedBounds(self._clock, connections_max=connections_max),
            on_fatal=on_fatal,
            tls=self._tls,
            guard=self.history.meter.guard(self._guard.check),
        )

    @property
    def address(self) -> Address:
        """The bound address. Available only between `start` and `stop`."""
        return self._server.address

    async def start(self) -> Address:
        """Starts the controller and returns the bound address.

        Raises:  OSError if the port cannot be bound; what `RaftFiles.open` raises.
        """
        options = self._settings.options
        self._tls.load()
        await self.raft.start()
        port = parse_address(self._configured[options.self_id])[1]
        address = await self._server.start(options.listen_host, port)
        await self._start_metrics()
        self._scope.start("watch_masters", self._elections.watch())
        self._scope.start("watch_certificates", self._tls.watch())
        log.info(
            events.CONTROLLER_STARTED,
            extra={"address": address, "group": options.group, "server": options.self_id},
        )
        if not self._guard.is_closed and is_open_to_everybody(address, self._tls.options):
            log.warning(events.CONTROLLER_OPEN, extra={"address": address})
        return address

    async def stop(self) -> None:
        """Stops the controller. A leader hands over first, so that the others need not wait for an election
        timeout.
        """
        await self._hand_over()
        if self._metrics is not None:
            await self._metrics.stop()
        await self._scope.close()
        await self._server.stop()
        await self.raft.stop()
        await self._client.close()
        self._audit.close()
        log.info(events.CONTROLLER_STOPPED)

    async def _start_metrics(self) -> None:
        options = self._settings.options
        if options.metrics_exporter is MetricsExporter.DISABLE:
            return
        # Imported only if needed, as at a broker.
        from tandemmq.remoting.metrics_port import MetricsSource
        from tandemmq.remoting.metrics_service import start_metrics

        self._metrics, self.metrics_address = await start_metrics(
            MetricsSource("controller", self.read_conditions, read_pieces=self.read_metrics),
            options,
            listen_host=options.listen_host,
            network=self._network,
            clock=self._clock,
            scope=self._scope,
        )

    def read_conditions(self) -> Iterator[Condition]:
        """Yields the conditions under which the controller is ready: it knows the leader of its group."""
        if self.raft.role is None:
            yield Condition("leader", "the controller has not started yet")
        elif self.raft.is_leader or self.raft.leader is not None:
            yield Condition("leader")
        else:
            voters = ", ".join(sorted(self.raft.members.voters))
            yield Condition("leader", f"the controllers {voters} have elected no leader")

    def read_metrics(self) -> Iterator[Iterable[Sample]]:
        """Yields every reading of the controller, piece by piece."""
        sources = ControllerSources(
            options=self._settings.options,
            raft=self.raft,
            groups=self.groups,
            heartbeats=self.heartbeats,
            meter=self.history.meter,
            clock=self._clock,
        )
        return read_controller(sources)

    async def _hand_over(self) -> None:
        if not self.raft.is_leader:
            return
        others = sorted(self.raft.members.voters.keys() - {self.raft.name})
        heard = [name for name in others if self._peers.is_heard(name)]
        if not heard:
            return
        deadline = self._clock.monotonic() + HAND_OVER_S_MAX
        try:
            await self.raft.submit(lambda node, now_ms: node.hand_over(heard[0], now_ms), HAND_OVER_S_MAX)
        except RequestRejected:
            return
        while self.raft.is_leader and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.01)

    def _supports_history(self) -> bool:
        """Returns True if every controller supports the commands and fields of histories. A silent controller
        is assumed to support them if the group has used them.
        """
        has_used = bool(self.groups.controllers_id)
        others = self.raft.members.others(self.raft.name)
        return all(self._peers.supports_history(one, otherwise=has_used) for one in others)

    def _address_of(self, name: str) -> str | None:
        """Prefers the configured address: a controller may have moved since the group was created."""
        members = self.raft.members
        if members.address(name) is None and members.voters and self.raft.node.is_proven:
            return None  # before that, the members may be those of an older disk
        return self._configured.get(name) or members.address(name)

    def _build_routes(self, options: ControllerOptions) -> Mapping[int, Handler]:
        """Returns the handlers by request code (spec controller 2)."""
        handlers = ControllerHandlers(
            self._elections,
            group_name=options.group,
            address_of=self._address_of,
            clock=self._clock,
        )
        return {
            Code.BROKER_HEARTBEAT: handlers.handle_heartbeat,
            Code.CONTROLLER_ALTER_SYNC_STATE_SET: handlers.handle_alter_set,
            Code.CONTROLLER_ELECT_MASTER: handlers.handle_elect,
            Code.CONTROLLER_REGISTER_BROKER: handlers.handle_register,
            Code.CONTROLLER_GET_REPLICA_INFO: handlers.handle_replica_info,
            Code.CONTROLLER_GET_METADATA_INFO: handlers.handle_metadata,
            Code.CONTROLLER_GET_SYNC_STATE_DATA: handlers.handle_sync_state_data,
            Code.UPDATE_CONTROLLER_CONFIG: self._settings.handle_update,
            Code.GET_CONTROLLER_CONFIG: self._settings.handle_get,
            Code.CLEAN_BROKER_DATA: handlers.handle_clean,
            Code.CONTROLLER_GET_NEXT_BROKER_ID: handlers.handle_next_id,
            Code.CONTROLLER_APPLY_BROKER_ID: handlers.handle_apply_id,
            Code.TANDEM_CHANGE_CONTROLLERS: handlers.handle_change_controllers,
            Code.TANDEM_RAFT_MESSAGE: self._peers.handle_message,
        }


@dataclass(slots=True, eq=False)
class Peers:
    """Sends and receives the messages of `RaftServer`."""

    options: ControllerOptions
    _: KW_ONLY
    address_of: Callable[[str], str | None]
    """Returns the address of a controller of the group; None for any other name."""
    raft: Callable[[], RaftServer]
    client: RemotingClient
    scope: TaskScope
    clock: Clock
    _connecting: set[str] = field(default_factory=set)
    _connected_s: dict[str, float] = field(default_factory=dict)
    _heard_s: dict[str, float] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _capabilities: dict[str, bool] = field(default_factory=dict)
    reported_id: str = field(default="", init=False)
    """The id of the controllers' group in the newest message that had one."""

    def supports_history(self, name: str, *, otherwise: bool) -> bool:
        """Returns True if the newest message of the controller announced the capability; `otherwise` if there
        was none.
        """
        return self._capabilities.get(name, otherwise)

    def send(self, to: str, message: Message) -> None:
        address = self.address_of(to)
        if address is None:
            return
        channel = self.client.open_channel(address)
        now_s = self.clock.monotonic()
        if channel is not None:
            since_s = max(self._connected_s.get(to, 0.0), self._heard_s.get(to, 0.0))
            if now_s - since_s < SILENT_S:
                channel.send(self._command(message))
                return
            channel.abort(f"no message from {to} for {now_s - since_s:.0f} s")
        if to not in self._connecting:
            self._connecting.add(to)
            self.scope.start(f"connect-{to}", self._connect(to, address, message))

    async def _connect(self, to: str, address: str, message: Message) -> None:
        try:
            channel = await self.client.channel(address, CONNECT_TIMEOUT_S)
            self._connected_s[to] = self.clock.monotonic()
            channel.send(self._command(message))
        except TandemError:
            pass  # lost, as any message may be; the next one tries again
        finally:
            self._connecting.discard(to)

    def is_heard(self, name: str) -> bool:
        """True if the peer has sent a message recently."""
        return self.clock.monotonic() - self._heard_s.get(name, -SILENT_S) < SILENT_S

    def handle_message(self, channel: Channel, command: Command) -> None:
        """TANDEM_RAFT_MESSAGE (30001).

        Raises:  NotPermitted if the sender is not a controller of the group; RemoteProtocolError.
        """
        header = command.decode(RaftMessageHeader)
        body = bytes(command.body)
        proof = self._prove(header.sender, body)
        if (
            header.group != self.options.group
            or header.sender == self.options.self_id
            or self.address_of(header.sender) is None
            or not hmac.compare_digest(header.proof.encode(), proof.encode())
        ):
            self._refuse(channel, header)
        own = self.raft().identity
        if own and header.controllers_id not in (None, own):
            self._refuse(channel, header, f"the sender's group has the id {header.controllers_id}, not {own}")
        message = decode_message(body)
        if message.sender != header.sender:
            self._refuse(channel, header)
        if self.options.shared_secret:
            channel.make_known()
        self._capabilities[header.sender] = HISTORY in (header.caps or "").split(",")
        self._heard_s[header.sender] = self.clock.monotonic()
        self.reported_id = header.controllers_id or self.reported_id
        self.raft().receive(message)

    def _refuse(self, channel: Channel, header: RaftMessageHeader, reason: str = "") -> None:
        """Refuses the message; each name is logged once."""
        if header.sender not in self._refused and len(self._refused) < 64:
            self._refused.add(header.sender)
            log.log(
                logging.ERROR if reason else logging.WARNING,
                events.CONTROLLER_PEER_REFUSED,
                extra={
                    "peer": channel.peer,
                    "sender": header.sender,
                    "group": header.group,
                    "reason": reason or "the sender is not a controller of this group",
                },
            )
        raise NotPermitted(reason or "the sender is not a controller of this group")

    def _command(self, message: Message) -> Command:
        body = encode_message(message)
        header = RaftMessageHeader(
            group=self.options.group,
            sender=self.options.self_id,
            proof=self._prove(self.options.self_id, body),
            caps=HISTORY,
            controllers_id=self.raft().identity or None,
        )
        return Command.request(Code.TANDEM_RAFT_MESSAGE, header, body=body, oneway=True)

    def _prove(self, sender: str, body: bytes) -> str:
        if not self.options.shared_secret:
            return ""
        text = f"{self.options.group}\0{sender}\0".encode() + body
        return hmac.new(self.options.shared_secret.encode(), text, "sha256").hexdigest()
