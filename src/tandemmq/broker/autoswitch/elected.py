"""ElectedBroker: a broker whose role is decided by the controllers, for the lifetime of its process.

Owns:       the store, the id, the copy of the log, the communication with the controllers; and one `Broker`
            at a time, composed for its role in the current term.
Invariants: a term is accepted only if its masterEpoch is above the known one, so late, repeated and reordered
            messages do no harm; unsolicited messages only make the broker ask the controllers.
            - A master writes only while it has a lease, or while all other members of its set promise to stay
              slaves. Both belong to the current term and are checked at each request.
Strategy:   before its first role a broker is a slave without a master. A change of role stops one composition
            and starts the other over the same open store; ports, log and heartbeats stay.
Bounds:     one role change at a time; one open proposal for the set.
Source:     spec controller 3, 10.5, 10.6, 10.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from msgspec.structs import asdict

from tandemmq.api.controller import (
    ControllerHeartbeat,
    MasterFacts,
    controller_signer,
    read_master_notice,
)
from tandemmq.api.replica import fetch_master_ha_info
from tandemmq.broker.access.service import own_credentials, warn_if_open
from tandemmq.broker.autoswitch.controllers import (
    Controllers,
    Heartbeats,
    MasterLease,
    PeerLeaseHolder,
    PeerLeases,
)
from tandemmq.broker.autoswitch.forwarding import Forwarding
from tandemmq.broker.autoswitch.history import ControllerMismatch, newest_term, report_history
from tandemmq.broker.autoswitch.identity import (
    GROUP_FILE,
    IDENTITY_FILE,
    ForeignGroup,
    GroupIdentity,
    IdentityFiles,
    obtain_id,
)
from tandemmq.broker.autoswitch.meeting import Meeting
from tandemmq.broker.autoswitch.term import Term
from tandemmq.broker.broker import Broker, ha_port_of
from tandemmq.broker.options import OPEN, AccessOptions, BrokerOptions, ElectionOptions
from tandemmq.errors import Busy, ClientError, ConfigError, NotLeader, RequestRejected, StaleTerm, TandemError
from tandemmq.protocol.bodies.replica import BrokerEpochs, EpochRange, encode_broker_epochs
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.controller import (
    HandOverRequest,
    HistoryFacts,
    MasterResponse,
    RegisterReplicaRequest,
    VouchRequest,
    VouchResponse,
)
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import PLAIN, TlsOptions, render_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.tls import make_client_tls
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.shell.autoswitch import AutoSwitch, AutoSwitchReplication
from tandemmq.runtime.ports import Address, Clock, Disk, Network, Random
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole, StoreOptions
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
FIND_MASTER_PAUSE_S: Final = 0.1
FIND_MASTER_TIMEOUT_S: Final = 0.5
GATE_PERIOD_S: Final = 0.1
"""The period at which background duties check whether their master is fenced; requests check each time."""
LEASE_SHORT_S: Final = 0.7
"""A lease with less than this left may not be renewed in time: the slaves are asked for promises."""
PROPOSAL_PAUSE_S: Final = 0.2
TABLES_S_MAX: Final = 3.0
"""The time after which a slave that does not send TANDEM_VOUCH may be elected; it needs the time to copy the
tables.
"""
COPY_S_MAX: Final = 1.0
"""The longest time for which a master that hands over waits for the others to hold its whole log. It accepts
nothing meanwhile.
"""
COPY_POLL_S: Final = 0.005
OPEN_END: Final = 2**63 - 1

MakeReplication = Callable[[MessageStore, int], AutoSwitch]
"""Creates the log replication of the broker with this id."""

_NO_MASTER_YET: Final = frozenset(
    (ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE)
)
_UNKNOWN_HERE: Final = frozenset(
    (
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    )
)
_SET_REFUSED: Final = frozenset(
    (ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE)
)
"""Error codes by which a proposal for the set has definitely failed: the epoch of the set was compared."""
_SET_MOVED: Final = frozenset(
    (
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    )
)
"""The set has changed, or already is the proposed one: an earlier attempt may have changed it."""
_REPLACED: Final = frozenset(
    (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER)
)
"""Another broker is master, perhaps one that an earlier attempt brought into the set."""


_NOT_OF_THE_GROUP: Final = ResponseCode.CONTROLLER_INVALID_REQUEST
UNASKED: Final = "the controllers have not confirmed yet that it belongs to the group"
UNASKED_S_MAX: Final = 2.0
"""The time for which a newly started broker serves no reads while the controllers have not answered; they may
be unavailable for long.
"""


class _TermNotKept(Exception):
    """The start of a term could not be written to disk."""


class _IdInUse(Exception):
    """The controllers know this broker's id at another address: its identity was copied."""


class ElectedBroker:
    """One broker of an elected group. `on_fatal` as in `Broker`."""

    ha_address: Address
    broker_id: int
    """The id that the controllers assigned; known once `start` has returned."""

    def __init__(
        self,
        options: BrokerOptions,
        store_options: StoreOptions,
        replication_options: ReplicationOptions,
        election: ElectionOptions,
        *,
        make_replication: MakeReplication | None = None,
        network: Network,
        disk: Disk,
        clock: Clock,
        chance: Random,
        on_fatal: Callable[[BaseException], None],
        access: AccessOptions = OPEN,
        tls: TlsOptions = PLAIN,
    ) -> None:
        if not options.listen_port:
            raise ConfigError("listenPort must be given in controller mode: the controllers keep it")
        self._options = options
        self._store_options = replace(store_options, role=BrokerRole.SLAVE, transient_pool_enable=False)
        self._replication_options = replication_options
        self._election = election
        self._make_replication = make_replication or self._make_autoswitch
        self._network = network
        self._disk = disk
        self._clock = clock
        self._chance = chance
        self._on_fatal = on_fatal
        self._access = access
        self._tls = tls
        credentials = own_credentials(access, disk)
        self._client = RemotingClient(
            network=network,
            clock=clock,
            signer=controller_signer(
                election.shared_secret, None if credentials is None else credentials.sign
            ),
            tls=make_client_tls(tls.dialling),
        )
        self._scope = TaskScope("elected", lambda _name, error: on_fatal(error))
        own = (options.advertised_host, options.listen_port)
        self._own_address = render_address(own)
        self._identity_path = election.identity_path or self._store_options.root / IDENTITY_FILE
        self._name = f"{options.broker_name} of {options.cluster_name} at {self._own_address}"
        self._group = GroupIdentity(
            self._identity_path.with_name(GROUP_FILE), broker=f"the broker {self._name}", disk=disk
        )
        self._mismatch = ControllerMismatch(self._name)
        self._foreign = UNASKED  # why this broker may belong to another group
        self._started_s = clock.monotonic()
        self._controllers = Controllers(
            election,
            cluster=options.cluster_name,
            name=options.broker_name,
            address=self._own_address,
            client=self._client,
            clock=clock,
            group=self._group,
        )
        self._heartbeats = Heartbeats(
            election,
            make=self._make_heartbeat,
            on_answer=self._on_heartbeat_answer,
            client=self._client,
            clock=clock,
            scope=self._scope,
        )
        self._servers: dict[int, RemotingServer] = {}
        self._forwarding = Forwarding(
            name=options.broker_name,
            linger_s=election.linger_ms / 1000,
            client=self._client,
            clock=clock,
            scope=self._scope,
        )
        self._lease = MasterLease()
        self._peer_leases = PeerLeases()
        self._peer_lease = PeerLeaseHolder(
            client=self._client, clock=clock, period_s=election.heartbeat_ms / 1000
        )
        self.store: MessageStore | None = None
        self._replication: AutoSwitch | None = None
        self._broker: Broker | None = None
        self._assigned: MasterFacts | None = None
        self._epoch = 0  # of the term that is accepted, or being accepted
        self._is_master = False  # the composition is a master's, and its term has begun
        self._is_registered = False  # the controllers know that this process has started
        self._is_paused = False
        self._is_handing_over = False  # accepts no writes; until the next term, or until it failed
        self._is_drained = False  # and every accepted write is confirmed
        self._vouching: set[int] = set()  # slaves that sent TANDEM_VOUCH in this term
        self._joining_s: dict[int, float] = {}  # since when other slaves hold the log
        self._poll_due = asyncio.Event()
        self._term_due = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._proposing: asyncio.Task[None] | None = None
        self._logged_refusals: set[str] = set()

    # Start and stop.

    @property
    def address(self) -> Address:
        return self._options.listen_host, self._options.listen_port

    @property
    def broker(self) -> Broker:
        """The composition of the current term. Only after `start`; each role change replaces it."""
        assert self._broker is not None
        return self._broker

    @property
    def is_master(self) -> bool:
        return self._is_master

    @property
    def replication(self) -> AutoSwitch:
        assert self._replication is not None
        return self._replication

    async def start(self) -> None:
        """Starts the broker as a slave without a master; returns when it serves requests. A broker without an
        id first waits for the controllers.

        Raises:  ConfigError or OSError for problems that a user can fix; StoreError. Call `stop` then, too.
        """
        options = self._options
        files = IdentityFiles(
            self._identity_path, cluster=options.cluster_name, name=options.broker_name, disk=self._disk
        )
        files.load_id()  # reports a bad file before a long recovery
        self._group.load()
        self.store = await MessageStore.open(
            self._store_options,
            disk=self._disk,
            clock=self._clock,
            on_fatal=self._on_fatal,
            has_terms=True,
            epoch_file=self._election.epoch_path,
        )
        self.broker_id = await self._obtain_id(files)
        replication = self._replication = self._make_replication(self.store, self.broker_id)
        replication.on_propose = self._on_propose
        replication.may_join = self._may_join
        self._meeting = replication.comparer = Meeting(
            self.store,
            self._group,
            broker_id=self.broker_id,
            address=self._own_address,
            master_epoch=lambda: self._epoch,
            client=self._client,
            disk=self._disk,
        )
        self.ha_address = await replication.start(options.listen_host, ha_port_of(options))
        self._started_s = self._clock.monotonic()
        await self._compose(is_master=False, epoch=0)
        warn_if_open((options.listen_host, options.listen_port), self._access, self._tls)
        self._scope.start("steer", self._run_terms())
        self._scope.start("look", self._poll_controllers())
        self._scope.start("watch_gate", self._watch_gate())

    async def retire(self) -> None:
        """Prepares a stop. A master hands over to a member of its set. A broker that has handed over, or that
        does so already, forwards sends for a while, then until each of them is answered. A slave, a master
        that cannot hand over, and a master whose settings forbid it do nothing; the controllers then elect a
        successor after the stop.
        """
        others = self.replication.required
        if self._election.hands_over_at_stop and self.may_write() and others:
            try:
                await self._hand_over(min(others), "stop")
            except RequestRejected:
                return  # the log has the reason
        if self._forwarding.is_open:
            await self._clock.sleep(self._election.stop_linger_ms / 1000)
            await self._forwarding.drain()

    async def stop(self) -> None:
        self._is_master = False
        self._forwarding.end()
        await self._scope.close()
        if self._broker is not None:
            await self._broker.stop()
        for server in self._servers.values():
            await server.stop()
        if self._replication is not None:
            await self._replication.stop()
        await self._client.close()
        if self.store is not None:
            await self.store.close()

    async def _obtain_id(self, files: IdentityFiles) -> int:
        while True:
            try:
                return await obtain_id(files, self._controllers, address=self._own_address, clock=self._clock)
            except (ClientError, RequestRejected) as error:
                self._log_refusal("id", error)
                await self._clock.sleep(RETRY_S)

    def _make_autoswitch(self, store: MessageStore, broker_id: int) -> AutoSwitch:
        election = self._election
        return AutoSwitchReplication(
            store,
            broker_id,
            self._replication_options,
            network=self._network,
            clock=self._clock,
            on_fatal=self._on_fatal,
            waits_for_all=election.waits_for_all,
            is_learner=election.is_learner,
            from_last_file=election.from_last_file,
            lag_ms_max=election.lag_ms_max,
            join_ms_max=election.join_ms_max,
            copy_count_min=election.copy_count_min,
        )

    async def _compose(self, *, is_master: bool, epoch: int) -> None:
        """Composes and starts the broker of this role over the store, which already has the role."""
        assert self.store is not None
        before = self._options if self._broker is None else self._broker.options
        role = BrokerRole.SYNC_MASTER if is_master else BrokerRole.SLAVE
        broker = self._broker = Broker(
            replace(before, broker_id=0 if is_master else self.broker_id),
            replace(self._store_options, role=role),
            self._replication_options,
            network=self._network,
            disk=self._disk,
            clock=self._clock,
            chance=self._chance,
            on_fatal=self._on_fatal,
            access=self._access,
            tls=self._tls,
            term=Term(
                epoch=epoch,
                store=self.store,
                client=self._client,
                ha_address=self.ha_address,
                may_write=self.may_write,
                routes=self._routes(),
                copying=self.replication,
                mismatch=lambda: self._mismatch.reason or self._meeting.mismatch,
                foreign=self._foreign_reason,
                forwarding=self._forwarding,
                servers=self._servers,
                unsaved_tables={} if self._broker is None else self._broker.unsaved_tables,
            ),
        )
        await broker.start()

    def _routes(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.handle_epochs,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.handle_notice,
            RequestCode.TANDEM_HAND_OVER: self.handle_hand_over,
            RequestCode.TANDEM_VOUCH: self.handle_peer_lease,
            RequestCode.TANDEM_HISTORY: self._meeting.handle_history,
        }

    def may_write(self) -> bool:
        """Returns True if a master may currently serve requests that change its log or its tables."""
        if not self._is_master or self._is_handing_over:
            return False
        if not self._lease.is_needed:
            return True
        now_s = self._clock.monotonic()
        if self._lease.is_valid(now_s):
            return True
        others = self.replication.required
        return others is not None and self._peer_leases.have_all(others, now_s)

    def handle_peer_lease(self, channel: Channel, command: Command) -> Command:
        """TANDEM_VOUCH (30107): a slave of this term reports that it is one."""
        header, now_s = command.decode(VouchRequest), self._clock.monotonic()
        if not self._is_master or header.master_epoch != self._epoch:
            raise RequestRejected(f"this broker is not a master in term {header.master_epoch}")
        self._vouching.add(header.broker_id)
        if header.token is not None:
            self._peer_leases.record(header.broker_id, header.token, channel, now_s)
            self._serve_parked()
        lease_requested = self._lease.is_needed and not self._lease.is_valid(now_s + LEASE_SHORT_S)
        return command.reply(
            header=VouchResponse(token=self._peer_leases.new_token(now_s), lease_requested=lease_requested)
        )

    async def handle_hand_over(self, channel: Channel, command: Command) -> Command:
        """TANDEM_HAND_OVER (30106): hands the master role over to the requested broker."""
        target = command.decode(HandOverRequest).broker_id
        successor = await self._hand_over(target, render_address(channel.peer))
        header = MasterResponse(
            broker_name=self._options.broker_name,
            master_id=successor.master_id,
            master_address=successor.master_address,
            master_epoch=successor.master_epoch,
            set_epoch=successor.set_epoch,
        )
        return command.reply(header=header)

    async def _hand_over(self, target: int, requester: str) -> MasterFacts:
        """Stops accepting writes, waits until the set holds the whole log, and has `target` elected; returns
        the new term. Meanwhile sends are parked, for the next master or for this one. If anything fails, this
        master continues as soon as it has a lease or the slaves' promises.

        Raises:  RequestRejected.
        """
        epoch, started_s = self._epoch, self._clock.monotonic()
        if not self.may_write():
            raise RequestRejected("this broker is not a master, or it is fenced or already hands over")
        if target == self.broker_id:
            raise RequestRejected(f"broker {target} is already the master")
        facts = {
            "broker": self._options.broker_name,
            "target": target,
            "peer": requester,
            "master_epoch": epoch,
        }
        log.warning(events.BROKER_HAND_OVER_STARTED, extra=facts)
        self._is_handing_over = True
        self._forwarding.hold()
        try:
            await self._wait_for_copies()
            self._is_drained = True
            successor = await self._controllers.elect_successor(target, epoch)
        except (ClientError, RequestRejected) as error:
            log.warning(events.BROKER_HAND_OVER_FAILED, extra={**facts, "reason": str(error)})
            raise RequestRejected(f"the outcome of the handover is unknown: {error}") from error
        else:
            took_ms = round((self._clock.monotonic() - started_s) * 1000)
            extra = {**facts, "new_epoch": successor.master_epoch, "took_ms": took_ms}
            log.warning(events.BROKER_HANDED_OVER, extra=extra)
            self._accept_master(successor)
            return successor
        finally:
            if self._epoch == epoch and not self._is_replaced(epoch):
                if self._is_drained:
                    # The controllers did not wait for the lease to end, and the outcome of the request may be
                    # unknown.
                    self._lease.end(self._clock.monotonic())
                self._is_handing_over = self._is_drained = False
                self._serve_parked()
                self._heartbeats.soon()
                self._poll_due.set()

    def _serve_parked(self) -> None:
        """Serves the parked sends if this broker may serve them."""
        if self._forwarding.is_open and self.may_write():
            self._forwarding.release(self._servers[self._options.listen_port].serve)

    def _is_replaced(self, epoch: int) -> bool:
        return self._assigned is not None and self._assigned.master_epoch > epoch

    async def _wait_for_copies(self) -> None:
        """Waits until the set holds the whole log. Raises Busy."""
        assert self.store is not None
        await self._clock.sleep(
            0
        )  # sends that were accepted in this turn of the loop are written in the next
        end = self.store.max_log_offset
        ends_at_s = self._clock.monotonic() + COPY_S_MAX
        while self.replication.confirm_offset < end:
            if not self._is_master or self._clock.monotonic() > ends_at_s:
                raise Busy(f"the in-sync set does not hold the log up to {end} within {COPY_S_MAX:g} s")
            await self._clock.sleep(COPY_POLL_S)

    async def _watch_gate(self) -> None:
        """Suspends the duties of a fenced master, and resumes them."""
        while True:
            await self._clock.sleep(GATE_PERIOD_S)
            self._serve_parked()
            if not self._is_master or self._is_paused != self.may_write():
                continue
            self._is_paused = not self._is_paused
            event = events.BROKER_FENCED if self._is_paused else events.BROKER_REINSTATED
            log.warning(event, extra={"broker": self._options.broker_name, "master_epoch": self._epoch})
            await self.broker.pause(is_paused=self._is_paused)

    def _make_heartbeat(self) -> BrokerHeartbeatRequest:
        assert self.store is not None
        options, replication = self._options, self.replication
        if self.store.may_lack_tail and replication.is_caught_up:
            self.store.trust_tail()
        return BrokerHeartbeatRequest(
            cluster_name=options.cluster_name,
            broker_address=self._own_address,
            broker_name=options.broker_name,
            broker_id=self.broker_id,
            epoch=replication.epochs.last_epoch,
            max_log_offset=self.store.max_log_offset,
            confirmed_offset=replication.confirm_offset,
            heartbeat_timeout_ms=self._election.silence_ms_max,
            election_priority=self._election.priority,
            **asdict(self._report_history()),
        )

    def _make_registration(self) -> RegisterReplicaRequest:
        assert self.store is not None
        return RegisterReplicaRequest(
            cluster_name=self._options.cluster_name,
            broker_name=self._options.broker_name,
            broker_id=self.broker_id,
            broker_address=self._own_address,
            epoch=self.replication.epochs.last_epoch,
            max_log_offset=self.store.max_log_offset,
            confirmed_offset=self.replication.confirm_offset,
            **asdict(self._report_history()),
        )

    def _report_history(self) -> HistoryFacts:
        assert self.store is not None
        accepted = self._assigned
        return report_history(
            self.store,
            self.replication,
            group_id=self._group.group_id,
            broker_id=self.broker_id,
            accepted=accepted,
            is_master=self._is_master and accepted is not None and accepted.master_epoch == self._epoch,
        )

    def _on_heartbeat_answer(self, answer: ControllerHeartbeat, sent_s: float) -> None:
        if answer.master_epoch is None:
            return
        try:
            self._group.check(answer.group_id, "a controller")
        except ForeignGroup as error:
            self._on_foreign_group(error)
            return
        self._lease.is_needed = True
        if answer.master_epoch > self._epoch or (self._assigned is None and not answer.master_id):
            self._poll_due.set()
        elif (answer.master_epoch, answer.master_id) == (self._epoch, self.broker_id) and answer.lease_ms:
            self._lease.extend(sent_s, answer.lease_ms)
            self._serve_parked()

    def handle_notice(self, _channel: Channel, command: Command) -> Command | None:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): any host can send it, so it only makes the broker ask the
        controllers.
        """
        if read_master_notice(command).master_epoch > self._epoch:
            self._poll_due.set()
        return None if command.is_oneway else command.reply()

    async def _poll_controllers(self) -> None:
        """Registers this process with the controllers, then polls them for the master. Never returns."""
        has_begun = False
        while True:
            self._poll_due.clear()
            try:
                if not self._is_registered:
                    await self._register()
                if not has_begun:
                    self._heartbeats.start()
                    has_begun = True
                elif self._is_registered:
                    await self._read_master()
            except TandemError as error:
                if not isinstance(error, (ClientError, RequestRejected)):
                    raise
                self._log_refusal("master", error)
                self._on_foreign_group(error)
                if isinstance(error, RequestRejected) and error.code in _UNKNOWN_HERE:
                    self._is_registered = False
                    assert self.store is not None
                    self._mismatch.miss_group(newest_term(self.store, self._assigned), str(error))
                    if not has_begun:
                        # Controllers that have lost the group restore it from the reports of its brokers.
                        self._heartbeats.start()
                        has_begun = True
            else:
                self._logged_refusals.clear()
            timer = self._clock.call_later(self._election.poll_ms / 1000, self._poll_due.set)
            try:
                await self._poll_due.wait()
            finally:
                timer.cancel()

    async def _register(self) -> None:
        """Registers at the controllers. Raises ClientError, RequestRejected."""
        try:
            facts = await self._controllers.register(self._make_registration())
        except RequestRejected as error:
            if error.code not in _UNKNOWN_HERE or not self._election.reapplies_id:
                raise
            check_code = f"{self._own_address};{self._clock.now_ms()}"
            await self._controllers.apply_id(self.broker_id, check_code)
            facts = await self._controllers.register(self._make_registration())
        self._is_registered = True
        self._foreign = ""
        self._accept_master(facts)

    async def _read_master(self) -> None:
        """Asks for the master, or for an election if there is none. Raises ClientError, RequestRejected."""
        facts = await self._controllers.read_master()
        if facts.master_id is None:
            try:
                facts = await self._controllers.elect(self.broker_id)
            except RequestRejected as error:
                if error.code not in _NO_MASTER_YET:
                    raise
                return
        self._accept_master(facts)

    def _accept_master(self, facts: MasterFacts) -> None:
        assert self.store is not None
        self._mismatch.compare(facts, newest_term(self.store, self._assigned))
        if facts.master_id is None:
            return
        assigned = self._assigned
        if assigned is None or facts.master_epoch > assigned.master_epoch:
            self._assigned = facts
            self._term_due.set()
        elif facts.master_epoch == self._epoch and self._is_master and facts.sync_set:
            self.replication.set_committed(frozenset(facts.sync_set), facts.set_epoch)

    def _foreign_reason(self) -> str:
        """Returns the reason why this broker may belong to another group; empty if it does not, as far as is
        known. The controllers have UNASKED_S_MAX to object, and are not needed once its master has proven the
        group.
        """
        if self._meeting.is_verified:
            return ""
        if self._foreign == UNASKED and self._clock.monotonic() - self._started_s > UNASKED_S_MAX:
            return self._meeting.mismatch
        return self._foreign or self._meeting.mismatch

    def _on_foreign_group(self, error: TandemError) -> None:
        """Records that the controllers refuse a broker of another group. While none can be asked, its own
        files count.
        """
        is_refused = isinstance(error, RequestRejected) and error.code == _NOT_OF_THE_GROUP
        if is_refused or isinstance(error, ForeignGroup):
            self._foreign = str(error)
            self._mismatch.raise_(events.BROKER_GROUP_REFUSED, str(error))
        elif self._foreign == UNASKED:
            self._foreign = ""

    def _log_refusal(self, subject: str, error: TandemError) -> None:
        """Logs one line per reason, until a request succeeds."""
        reason = f"{subject}: {error}"
        if reason in self._logged_refusals:
            return
        if len(self._logged_refusals) > 16:
            self._logged_refusals.clear()
        self._logged_refusals.add(reason)
        log.warning(events.CONTROLLER_REQUEST_REFUSED, extra={"reason": reason})

    async def _run_terms(self) -> None:
        """Runs one term after the other. Never returns."""
        while True:
            await self._term_due.wait()
            self._term_due.clear()
            facts = self._assigned
            assert facts is not None
            if facts.master_epoch > self._epoch:
                await self._apply_term(facts)

    async def _apply_term(self, facts: MasterFacts) -> None:
        started_s, epoch_before = self._clock.monotonic(), self._epoch
        is_own = facts.master_id == self.broker_id
        if self._is_master and not is_own:
            self._forwarding.linger()
        if self._is_master or self._forwarding.is_open or is_own:
            self._forwarding.hold()
        keeps_clients = self._is_drained
        self._is_master = False  # accepts nothing more under the term that ends
        self._is_handing_over = self._is_drained = False
        self._epoch = facts.master_epoch
        self._lease.end(started_s)
        self._heartbeats.soon()  # a new master needs a lease, and the ends of all logs must be reported
        if self._following is not None:
            self._following.cancel()
            self._following = None
        try:
            if not is_own:
                await self._become_slave(facts, keeps_clients=keeps_clients)
            elif facts.master_address == self._own_address:
                await self._become_master(facts)
            else:
                await self._deactivate(keeps_clients=False)
                self._forwarding.end()
                self.broker.set_master(None)
                raise _IdInUse(
                    f"the id {self.broker_id} of this broker belongs to the one at {facts.master_address}:"
                    f" give each a {IDENTITY_FILE} and a store of its own"
                )
        except (StaleTerm, _IdInUse) as error:
            # The controllers lost state, or this broker was elected for a term that it has already had.
            log.error(
                events.BROKER_ROLE_REFUSED, extra={"master_epoch": facts.master_epoch, "reason": str(error)}
            )
            self._is_registered = False
            self._forwarding.end()
            self._poll_due.set()
            return
        except _TermNotKept as error:
            # The disk is full or failing: this broker retries, unless another one is elected first.
            log.error(
                events.BROKER_ROLE_REFUSED, extra={"master_epoch": facts.master_epoch, "reason": str(error)}
            )
            self._epoch = epoch_before
            self._clock.call_later(RETRY_S, self._term_due.set)
            return
        if is_own and not self._is_master:
            return  # another term is already known
        log.warning(
            events.BROKER_ROLE_CHANGED,
            extra={
                "broker": self._options.broker_name,
                "broker_id": self.broker_id,
                "role": "master" if self._is_master else "slave",
                "master": facts.master_id,
                "master_epoch": facts.master_epoch,
                "sync_set": facts.sync_set,
                "took_ms": round((self._clock.monotonic() - started_s) * 1000),
            },
        )

    async def _become_master(self, facts: MasterFacts) -> None:
        """Raises StaleTerm, _TermNotKept: the composition then stays as it is, without a master. The same
        happens if another term becomes known before this one has begun; that one is accepted next.
        """
        assert self.store is not None
        if self.broker.options.is_slave:
            self.broker.set_master(None)
        await self._peer_lease.wait()
        if self._is_replaced(facts.master_epoch):
            return
        try:
            await self.replication.begin_term(
                facts.master_epoch, frozenset(facts.sync_set), facts.set_epoch, facts.term_id
            )
        except OSError as error:
            raise _TermNotKept(str(error)) from error
        if self._is_replaced(facts.master_epoch):
            # The disk stalled until then. The log may still lack messages of the group.
            await self.replication.end_term()
            return
        self.store.trust_tail()
        # Clients reconnect and identify themselves; connections that are currently sending to this broker
        # stay.
        await self.broker.stop(keeps=self._forwarding.is_used_by)
        if not await self._change_role(BrokerRole.SYNC_MASTER, facts.master_epoch):
            await self.replication.end_term()
            await self._change_role(BrokerRole.SLAVE)
            await self._compose(is_master=False, epoch=self._epoch)
            return
        await self._compose(is_master=True, epoch=facts.master_epoch)
        self._is_paused = False
        self._peer_leases.begin_term(self._clock.monotonic())
        self._vouching.clear()
        self._joining_s.clear()
        self._is_master = True
        self.broker.activate()
        self._serve_parked()

    async def _deactivate(self, *, keeps_clients: bool) -> None:
        """Composes a slave. Clients keep their connections if every request of theirs has been answered."""
        assert self.store is not None
        await self.replication.end_term()
        if not self.broker.options.is_slave:
            await self.broker.stop(keeps=lambda _: keeps_clients)
            await self._change_role(BrokerRole.SLAVE)
            await self._compose(is_master=False, epoch=self._epoch)

    async def _change_role(self, role: BrokerRole, epoch: int | None = None) -> bool:
        """Sets the role of the store, retrying while its disk fails to write or open a file. Returns False if
        the term `epoch` was replaced before; the store then has its old role.
        """
        assert self.store is not None
        while True:
            try:
                self.store.begin_role(role)
                return True
            except OSError as error:
                extra = {"master_epoch": self._epoch, "reason": str(error)}
                log.error(events.BROKER_ROLE_REFUSED, extra=extra)
            await self._clock.sleep(RETRY_S)
            if epoch is not None and self._is_replaced(epoch):
                return False

    async def _become_slave(self, facts: MasterFacts, *, keeps_clients: bool) -> None:
        await self._deactivate(keeps_clients=keeps_clients)
        if not self.broker.is_active:
            self.broker.activate()
        self.broker.set_master(facts.master_address)
        self._following = self._scope.start("follow", self._follow(facts))

    async def _follow(self, facts: MasterFacts) -> None:
        """Asks the master itself for its HA address: a name server may only know the previous one. Then
        follows it.
        """
        assert facts.master_id is not None
        while True:
            try:
                info = await fetch_master_ha_info(
                    self._client, facts.master_address, timeout_s=FIND_MASTER_TIMEOUT_S
                )
            except (ClientError, RequestRejected):
                pass  # it is still becoming master, or has gone again
            else:
                if info.ha_address and info.epoch in (None, facts.master_epoch):
                    self._forwarding.send_to(facts.master_address)
                    self._meeting.master = facts.master_address
                    await self.replication.follow(info.ha_address, facts.master_epoch, facts.master_id)
                    break
            await self._clock.sleep(FIND_MASTER_PAUSE_S)
        await self._peer_lease.keep(
            facts.master_address,
            lambda token: VouchRequest(
                broker_id=self.broker_id, master_epoch=facts.master_epoch, token=token
            ),
        )

    def _may_join(self, broker_id: int) -> bool:
        """Returns True if a slave may join the set. A member may be elected at once, so it must also have the
        topics and groups. A RocketMQ slave does not report what it has: it is admitted after some time.
        """
        if not self._is_master:
            return False
        if self.broker.has_tables(broker_id):
            return True
        now_s = self._clock.monotonic()
        since_s = self._joining_s.setdefault(broker_id, now_s)
        return broker_id not in self._vouching and now_s - since_s >= TABLES_S_MAX

    def _on_propose(self, members: frozenset[int], set_epoch: int) -> None:
        if self._proposing is not None:
            self._proposing.cancel()
        self._proposing = self._scope.start("propose", self._propose(self._epoch, members, set_epoch))

    async def _propose(self, epoch: int, members: frozenset[int], set_epoch: int) -> None:
        """Repeats the proposal until its outcome is certain. Repeating it is harmless: the controllers
        compare the epoch of the set that it replaces.
        """
        while self._is_master and self._epoch == epoch:
            try:
                told = await self._controllers.alter_set(self.broker_id, epoch, members, set_epoch)
            except RequestRejected as error:
                if error.code in _SET_MOVED:
                    if await self._adopt_set(set_epoch):
                        return
                elif error.code in _REPLACED:
                    self._log_refusal("set", error)
                    self._poll_due.set()
                    return
                elif error.code in _SET_REFUSED:
                    self._log_refusal("set", error)
                    self.replication.set_refused(set_epoch)
                    self._poll_due.set()
                    return
            except ClientError as error:
                self._log_refusal("set", error)
            else:
                if self._is_master and self._epoch == epoch:
                    self.replication.set_committed(frozenset(told.ids), told.epoch)
                return
            await self._clock.sleep(PROPOSAL_PAUSE_S + self._chance.below(200) / 1000)

    async def _adopt_set(self, set_epoch: int) -> bool:
        """Handles a set that has changed: by this proposal, whose answer was lost, or back, if the
        controllers lost part of their state. Returns True if the current set is known and determines the next
        proposal.
        """
        try:
            facts = await self._controllers.read_master()
        except (ClientError, NotLeader, RequestRejected):
            return False
        self._accept_master(facts)
        return facts.master_epoch != self._epoch or facts.set_epoch != set_epoch

    def handle_epochs(self, _channel: Channel, command: Command) -> Command:
        """GET_BROKER_EPOCH_CACHE (1007)."""
        assert self.store is not None
        entries = self.replication.epochs.entries
        ends = [entry.start for entry in entries[1:]] + [OPEN_END]
        body = BrokerEpochs(
            broker_id=0 if self._is_master else self.broker_id,
            broker_name=self._options.broker_name,
            cluster=self._options.cluster_name,
            epochs=[
                EpochRange(end=end, epoch=entry.epoch, start=entry.start)
                for entry, end in zip(entries, ends, strict=True)
            ],
            max_log_offset=self.store.max_log_offset,
        )
        return command.reply(body=encode_broker_epochs(body))
