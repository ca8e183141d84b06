"""ElectedBroker: the broker of one process whose role the controllers decide.

Owns:       the store, the broker id, the replication of the log, the leases; and one `Broker` at a time,
            built for the role in the current term. Registration, polls and proposals are in `membership.py`.
Invariants: a term is accepted only if its masterEpoch is above the known one, so late, repeated and reordered
            messages do no harm; unsolicited messages only make the broker ask the controllers.
            - A master writes only while it holds a lease from the controllers, or leases from all other
              members of its set. Both belong to the current term and are checked at each request.
Strategy:   `roles.py` is the table of states; this module reports the events and carries the effects out.
            Before its first term the broker is a slave without a master. A change of role stops the old
            `Broker` and starts the new one over the same open store; ports, log and heartbeats continue.
Bounds:     one role change at a time.
Source:     spec controller 3, 10.5, 10.6, 10.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from msgspec.structs import asdict

from tandemmq.api.controller import ControllerHeartbeat, MasterFacts, controller_signer, read_master_facts
from tandemmq.api.replica import fetch_master_ha_info
from tandemmq.broker.access.service import own_credentials, warn_if_open
from tandemmq.broker.autoswitch.controllers import MasterLease, PeerLeaseHolder, PeerLeases
from tandemmq.broker.autoswitch.forwarding import Forwarding
from tandemmq.broker.autoswitch.history import KnownTerm, newest_term, report_history
from tandemmq.broker.autoswitch.history_check import HistoryCheck
from tandemmq.broker.autoswitch.identity import (
    GROUP_FILE,
    IDENTITY_FILE,
    ForeignGroup,
    GroupIdentity,
    IdentityFiles,
)
from tandemmq.broker.autoswitch.membership import RETRY_S, GroupMembership
from tandemmq.broker.autoswitch.roles import MASTER_STATES, RoleEffect, RoleEvent, RoleState, next_role
from tandemmq.broker.autoswitch.term import Term
from tandemmq.broker.broker import Broker, ha_port_of
from tandemmq.broker.options import BrokerConfig
from tandemmq.errors import Busy, ClientError, ConfigError, RequestRejected, StaleTerm
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.replica import BrokerEpochs, EpochRange
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import controller as requests
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import render_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.tls import make_client_tls
from tandemmq.replication.shell.autoswitch import AutoSwitchReplication
from tandemmq.runtime.ports import Address, Clock, Disk, Machine, Network, Random
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

FIND_MASTER_PAUSE_S: Final = 0.1
FIND_MASTER_TIMEOUT_S: Final = 0.5
GATE_PERIOD_S: Final = 0.1
"""The period at which background duties check whether their master is fenced; requests check each time."""
LEASE_SHORT_S: Final = 0.7
"""A lease with less than this left may not be renewed in time, so the master requests leases of its slaves.
"""
COPY_S_MAX: Final = 1.0
"""The longest time for which a master that hands over waits until its set holds the whole log. Sends are
parked meanwhile.
"""
COPY_POLL_S: Final = 0.005
OPEN_END: Final = 2**63 - 1


class _TermNotKept(Exception):
    """The start of a term could not be written to disk."""


class _IdInUse(Exception):
    """The controllers record this broker's id at another address: its identity file was copied."""


class ElectedBroker:
    """One broker of an elected group. `on_fatal` as in `Broker`."""

    ha_address: Address
    broker_id: int
    """The id that the controllers assigned; known once `start` has returned."""
    store: MessageStore | None = None
    epoch = 0
    """The epoch of the newest term that this broker has accepted, or is accepting."""
    state = RoleState.UNASSIGNED
    _is_retiring = False
    _assigned: MasterFacts | None = None
    _replication: AutoSwitchReplication | None = None
    _broker: Broker | None = None
    _following: asyncio.Task[None] | None = None

    def __init__(
        self,
        config: BrokerConfig,
        *,
        network: Network,
        disk: Disk,
        clock: Clock,
        chance: Random,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        options = config.broker
        if not options.listen_port:
            raise ConfigError("listenPort must be set in controller mode, because the controllers store it")
        store_options = replace(config.store, role=BrokerRole.SLAVE, transient_pool_enable=False)
        self._config = replace(config, store=store_options)
        self._network = network
        self._disk = disk
        self._clock = clock
        self._chance = chance
        self._on_fatal = on_fatal
        credentials = own_credentials(config.access, disk)
        sign = None if credentials is None else credentials.sign
        self._client = RemotingClient(
            network=network,
            clock=clock,
            signer=controller_signer(config.election.shared_secret, sign),
            tls=make_client_tls(config.tls.dialling),
        )
        self._scope = TaskScope("elected", lambda _name, error: on_fatal(error))
        self.own_address = render_address((options.advertised_host, options.listen_port))
        self.name = f"{options.broker_name} of {options.cluster_name} at {self.own_address}"
        self._identity_path = config.election.identity_path or store_options.root / IDENTITY_FILE
        self._group = GroupIdentity(
            self._identity_path.with_name(GROUP_FILE), broker=f"the broker {self.name}", disk=disk
        )
        self._membership = GroupMembership(
            self, config, self._group, client=self._client, clock=clock, chance=chance, scope=self._scope
        )
        self._servers: dict[int, RemotingServer] = {}
        self._forwarding = Forwarding(
            name=options.broker_name,
            linger_s=config.election.linger_ms / 1000,
            client=self._client,
            clock=clock,
            scope=self._scope,
        )
        self._lease = MasterLease()
        self._peer_leases = PeerLeases()
        self._peer_lease = PeerLeaseHolder(
            client=self._client, clock=clock, period_s=config.election.heartbeat_ms / 1000
        )
        self._term_due = asyncio.Event()
        self._effects = self._map_effects()

    def _map_effects(self) -> dict[RoleEffect, Callable[[], object]]:
        forwarding, membership = self._forwarding, self._membership
        return {
            RoleEffect.PARK_SENDS: forwarding.hold,
            RoleEffect.PARK_AGAIN: forwarding.park_again,
            RoleEffect.FORWARD_SENDS: forwarding.linger,
            RoleEffect.SERVE_PARKED: self._serve_parked,
            RoleEffect.END_FORWARDING: forwarding.end,
            RoleEffect.KEEP_CLIENTS: lambda: None,
            RoleEffect.END_LEASE: lambda: self._lease.end(self._clock.monotonic()),
            RoleEffect.UNFOLLOW: self._unfollow,
            RoleEffect.REPORT: membership.heartbeats.soon,
            RoleEffect.REGISTER: membership.register_again,
            RoleEffect.POLL: membership.poll,
        }

    def _on(self, event: RoleEvent) -> tuple[RoleEffect, ...]:
        """Moves to the next state and carries out the effects of the transition; returns the effects."""
        self.state, effects = next_role(self.state, event)
        for effect in effects:
            self._effects[effect]()
        return effects

    # Start and stop.

    @property
    def address(self) -> Address:
        return self._config.broker.listen_host, self._config.broker.listen_port

    @property
    def broker(self) -> Broker:
        """The `Broker` of the current term. Only after `start`; each role change replaces it."""
        assert self._broker is not None
        return self._broker

    @property
    def is_master(self) -> bool:
        return self.state in MASTER_STATES

    @property
    def replication(self) -> AutoSwitchReplication:
        assert self._replication is not None
        return self._replication

    @property
    def _log(self) -> MessageStore:
        assert self.store is not None
        return self.store

    async def start(self) -> None:
        """Starts the broker as a slave without a master; returns when it serves requests. A broker without an
        id first waits for the controllers.

        Raises:  ConfigError or OSError for problems that a user can fix; StoreError. Call `stop` then, too.
        """
        config, options = self._config, self._config.broker
        files = IdentityFiles(
            self._identity_path, cluster=options.cluster_name, name=options.broker_name, disk=self._disk
        )
        files.load_id()  # reports a bad file before a long recovery
        self._group.load()
        self.store = await MessageStore.open(
            config.store,
            disk=self._disk,
            clock=self._clock,
            on_fatal=self._on_fatal,
            has_terms=True,
            epoch_file=config.election.epoch_path,
        )
        self.broker_id = await self._membership.obtain_id(files)
        self._history_check = HistoryCheck(
            self.store,
            self._group,
            broker_id=self.broker_id,
            address=self.own_address,
            master_epoch=lambda: self.epoch,
            client=self._client,
            disk=self._disk,
        )
        replication = self._replication = AutoSwitchReplication(
            self.store,
            self.broker_id,
            config.replication,
            config.election,
            self._history_check,
            network=self._network,
            clock=self._clock,
            on_fatal=self._on_fatal,
        )
        replication.on_propose = self._membership.propose
        replication.may_join = self._may_join
        self.ha_address = await replication.start(options.listen_host, ha_port_of(options))
        await self._compose(BrokerRole.SLAVE)
        warn_if_open(self.address, config.access, config.tls)
        self._scope.start("run_terms", self._run_terms())
        self._membership.start()
        self._scope.start("watch_gate", self._watch_gate())

    async def retire(self) -> None:
        """Prepares a stop: a master hands over to a member of its set.

        After a hand-over, also one that was requested before, the broker forwards sends for a while and then
        until all of them are answered. A slave does nothing. Neither does a master that cannot hand over or
        whose settings forbid it; the controllers then elect a successor after the stop.
        """
        self._is_retiring = True
        others = self.replication.required
        election = self._config.election
        if election.hands_over_at_stop and self.may_write() and others:
            try:
                await self._hand_over(min(others), "stop")
            except RequestRejected:
                return  # the log has the reason
        if self._forwarding.is_open:
            await self._clock.sleep(election.stop_linger_ms / 1000)
            await self._forwarding.drain()

    async def stop(self) -> None:
        self._on(RoleEvent.STOPPED)
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

    async def _compose(self, role: BrokerRole) -> None:
        """Builds and starts the `Broker` for this role over the open store, which already has the role."""
        config, before = self._config, self._broker
        options = config.broker if before is None else before.options
        broker = self._broker = Broker(
            replace(options, broker_id=self.broker_id if role is BrokerRole.SLAVE else 0),
            replace(config.store, role=role),
            config.replication,
            machine=Machine(self._network, self._disk, self._clock, self._chance),
            on_fatal=self._on_fatal,
            access=config.access,
            tls=config.tls,
            term=Term(
                epoch=self.epoch,
                store=self._log,
                client=self._client,
                ha_address=self.ha_address,
                may_write=self.may_write,
                role_fault=self._role_fault,
                routes=self._routes(),
                copying=self.replication,
                mismatch=lambda: self._membership.mismatch.reason or self._history_check.mismatch,
                foreign=self._foreign_reason,
                forwarding=self._forwarding,
                servers=self._servers,
                unsaved_tables={} if before is None else before.unsaved_tables,
            ),
        )
        await broker.start()

    def _routes(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.handle_epochs,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.handle_notice,
            RequestCode.TANDEM_HAND_OVER: self.handle_hand_over,
            RequestCode.TANDEM_VOUCH: self.handle_peer_lease,
            RequestCode.TANDEM_HISTORY: self._history_check.handle_history,
        }

    def may_write(self) -> bool:
        """Returns True if this broker may now serve requests that change its log or its tables."""
        if self.state is not RoleState.LEADING:
            return False
        if not self._lease.is_needed:
            return True
        now_s = self._clock.monotonic()
        if self._lease.is_valid(now_s):
            return True
        others = self.replication.required
        return others is not None and self._peer_leases.have_all(others, now_s)

    def _role_fault(self) -> str:
        """Returns the reason why this broker is neither an active master nor a slave; empty if it is."""
        if self._is_retiring:
            return "the broker stops"
        if self.state is RoleState.LEADING:
            return "" if self.may_write() else "a master without a lease of controllers or of its whole set"
        return "" if self.state is RoleState.FOLLOWING else self.state.value

    def handle_peer_lease(self, channel: Channel, command: Command) -> Command:
        """TANDEM_VOUCH (30107): a slave of this term grants a lease, or asks if one is requested."""
        header, now_s = command.decode(requests.VouchRequest), self._clock.monotonic()
        if not self.is_master or header.master_epoch != self.epoch:
            raise RequestRejected(f"this broker is not a master in term {header.master_epoch}")
        self._peer_leases.heard.add(header.broker_id)
        if header.token is not None:
            self._peer_leases.record(header.broker_id, header.token, channel, now_s)
            self._serve_parked()
        lease_requested = self._lease.is_needed and not self._lease.is_valid(now_s + LEASE_SHORT_S)
        return command.reply(
            header=requests.VouchResponse(
                token=self._peer_leases.new_token(now_s), lease_requested=lease_requested
            )
        )

    async def handle_hand_over(self, channel: Channel, command: Command) -> Command:
        """TANDEM_HAND_OVER (30106): hands the master role over to the requested broker."""
        target = command.decode(requests.HandOverRequest).broker_id
        successor = await self._hand_over(target, render_address(channel.peer))
        header = requests.MasterResponse(
            broker_name=self._config.broker.broker_name,
            master_id=successor.master_id,
            master_address=successor.master_address,
            master_epoch=successor.master_epoch,
            set_epoch=successor.set_epoch,
        )
        return command.reply(header=header)

    async def _hand_over(self, target: int, requester: str) -> MasterFacts:
        """Stops accepting writes, waits until the set holds the whole log, and has `target` elected; returns
        the new term.

        Sends are parked meanwhile, and served by the next master or by this one. If anything fails and no
        newer term is known, this master continues as soon as it has a lease of the controllers or of its
        whole set.
        Raises:  RequestRejected.
        """
        epoch, started_s = self.epoch, self._clock.monotonic()
        if not self.may_write():
            raise RequestRejected("this broker is not a master, or it is fenced or already hands over")
        if target == self.broker_id:
            raise RequestRejected(f"broker {target} is already the master")
        facts = {
            "broker": self._config.broker.broker_name,
            "target": target,
            "peer": requester,
            "master_epoch": epoch,
        }
        log.warning(events.BROKER_HAND_OVER_STARTED, extra=facts)
        self._on(RoleEvent.HAND_OVER)
        try:
            await self._wait_for_copies(epoch)
            self._on(RoleEvent.COPIED)
            successor = await self._membership.controllers.elect_successor(target, epoch)
        except (ClientError, RequestRejected) as error:
            log.warning(events.BROKER_HAND_OVER_FAILED, extra={**facts, "reason": str(error)})
            raise RequestRejected(f"the outcome of the handover is unknown: {error}") from error
        else:
            took_ms = round((self._clock.monotonic() - started_s) * 1000)
            extra = {**facts, "new_epoch": successor.master_epoch, "took_ms": took_ms}
            log.warning(events.BROKER_HANDED_OVER, extra=extra)
            self._membership.accept(successor)
            return successor
        finally:
            if self.epoch == epoch and not self._is_replaced():
                self._on(RoleEvent.HAND_OVER_FAILED)

    def _serve_parked(self) -> None:
        """Serves the parked sends here if this broker may write."""
        if self._forwarding.is_open and self.may_write():
            self._forwarding.release(self._servers[self.address[1]].serve)

    def _is_replaced(self) -> bool:
        """Returns True if a newer term than `epoch` is known."""
        return self._assigned is not None and self._assigned.master_epoch > self.epoch

    async def _wait_for_copies(self, epoch: int) -> None:
        """Waits until the set holds the whole log. Raises Busy, also if the term has ended."""
        # Sends that were accepted in this turn of the loop are written in the next.
        await self._clock.sleep(0)
        end = self._log.max_log_offset
        ends_at_s = self._clock.monotonic() + COPY_S_MAX
        while True:
            is_held = self.replication.confirm_offset >= end
            has_ended = not self.is_master or self.epoch != epoch
            if has_ended or (not is_held and self._clock.monotonic() > ends_at_s):
                raise Busy(f"the in-sync set does not hold the log up to {end} within {COPY_S_MAX:g} s")
            if is_held:
                return
            await self._clock.sleep(COPY_POLL_S)

    async def _watch_gate(self) -> None:
        """Suspends the duties of a master while it is fenced. Never returns."""
        while True:
            await self._clock.sleep(GATE_PERIOD_S)
            self._serve_parked()
            broker, is_paused = self.broker, not self.may_write()
            if not self.is_master or broker.is_paused == is_paused:
                continue
            event = events.BROKER_FENCED if is_paused else events.BROKER_REINSTATED
            extra = {"broker": self._config.broker.broker_name, "master_epoch": self.epoch}
            log.warning(event, extra=extra)
            await broker.pause(is_paused=is_paused)

    def make_heartbeat(self) -> BrokerHeartbeatRequest:
        if self._log.terms.may_lack_tail and self.replication.is_caught_up:
            self._log.terms.trust_tail()
        election = self._config.election
        return BrokerHeartbeatRequest(
            **self._report(),
            heartbeat_timeout_ms=election.silence_ms_max,
            election_priority=election.priority,
        )

    def make_registration(self) -> requests.RegisterReplicaRequest:
        return requests.RegisterReplicaRequest(**self._report())

    def _report(self) -> dict[str, Any]:
        """Returns the fields that a registration and a heartbeat share."""
        options, replication, assigned = self._config.broker, self.replication, self._assigned
        history = report_history(
            self._log,
            replication,
            group_id=self._group.group_id,
            broker_id=self.broker_id,
            accepted=assigned,
            is_master=self.is_master and assigned is not None and assigned.master_epoch == self.epoch,
        )
        return {
            "cluster_name": options.cluster_name,
            "broker_name": options.broker_name,
            "broker_id": self.broker_id,
            "broker_address": self.own_address,
            "epoch": replication.epochs.last_epoch,
            "max_log_offset": self._log.max_log_offset,
            "confirmed_offset": replication.confirm_offset,
            **asdict(history),
        }

    def known_term(self) -> KnownTerm:
        return newest_term(self._log, self._assigned)

    def on_heartbeat_answer(self, answer: ControllerHeartbeat, sent_s: float) -> None:
        if answer.master_epoch is None:
            return
        try:
            self._group.check(answer.group_id, "a controller")
        except ForeignGroup as error:
            self._membership.on_error(error)
            return
        self._lease.is_needed = True
        if answer.master_epoch > self.epoch or (self._assigned is None and not answer.master_id):
            self._membership.poll()
        elif (answer.master_epoch, answer.master_id) == (self.epoch, self.broker_id) and answer.lease_ms:
            self._lease.extend(sent_s, answer.lease_ms)
            self._serve_parked()

    def handle_notice(self, _channel: Channel, command: Command) -> Command | None:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): any host can send it, so it only makes the broker ask the
        controllers.
        """
        if read_master_facts(command).master_epoch > self.epoch:
            self._membership.poll()
        return None if command.is_oneway else command.reply()

    def on_master(self, facts: MasterFacts) -> None:
        assigned = self._assigned
        if assigned is None or facts.master_epoch > assigned.master_epoch:
            self._assigned = facts
            self._term_due.set()
        elif facts.master_epoch == self.epoch and self.is_master and facts.sync_set:
            self.replication.set_committed(frozenset(facts.sync_set), facts.set_epoch)

    def _foreign_reason(self) -> str:
        """Returns the reason why this broker may belong to another group; empty if there is none. A master
        that has proven its group suffices, without the controllers.
        """
        if self._history_check.is_verified:
            return ""
        return self._membership.foreign or self._history_check.mismatch

    async def _run_terms(self) -> None:
        """Applies the terms, one after the other; skips those that were replaced meanwhile. Never returns."""
        while True:
            await self._term_due.wait()
            self._term_due.clear()
            facts = self._assigned
            assert facts is not None
            if facts.master_epoch > self.epoch:
                await self._apply_term(facts)

    async def _apply_term(self, facts: MasterFacts) -> None:
        started_s, epoch_before = self._clock.monotonic(), self.epoch
        is_own, extra = facts.master_id == self.broker_id, {"master_epoch": facts.master_epoch}
        self.epoch = facts.master_epoch
        effects = self._on(RoleEvent.SELF_ELECTED if is_own else RoleEvent.OTHER_ELECTED)
        try:
            if not is_own:
                await self._become_slave(facts, keeps_clients=RoleEffect.KEEP_CLIENTS in effects)
            elif facts.master_address == self.own_address:
                await self._become_master(facts)
            else:
                await self._deactivate(keeps_clients=False)
                self.broker.set_master(None)
                raise _IdInUse(
                    f"the id {self.broker_id} of this broker belongs to the one at {facts.master_address}:"
                    f" give each a {IDENTITY_FILE} and a store of its own"
                )
        except (StaleTerm, _IdInUse) as error:
            # The controllers lost state, or this broker was elected for a term that it has already had.
            log.error(events.BROKER_ROLE_REFUSED, extra={**extra, "reason": str(error)})
            self._on(RoleEvent.REFUSED)
            return
        except _TermNotKept as error:
            # The disk is full or failing: this broker retries, unless another one is elected first.
            log.error(events.BROKER_ROLE_REFUSED, extra={**extra, "reason": str(error)})
            self.epoch = epoch_before
            self._on(RoleEvent.POSTPONED)
            self._clock.call_later(RETRY_S, self._term_due.set)
            return
        if is_own and not self.is_master:
            return  # this term was replaced before it began; the newer one is applied next
        log.warning(
            events.BROKER_ROLE_CHANGED,
            extra={
                **extra,
                "broker": self._config.broker.broker_name,
                "broker_id": self.broker_id,
                "role": "master" if self.is_master else "slave",
                "master": facts.master_id,
                "sync_set": facts.sync_set,
                "took_ms": round((self._clock.monotonic() - started_s) * 1000),
            },
        )

    async def _become_master(self, facts: MasterFacts) -> None:
        """Begins a term of this broker, unless a newer term becomes known first; that one is applied next.

        Raises:  StaleTerm, _TermNotKept; the `Broker` then stays as it was, and accepts no writes.
        """
        if self.broker.options.is_slave:
            self.broker.set_master(None)
        await self._peer_lease.wait()
        if self._is_replaced():
            return
        try:
            await self.replication.begin_term(
                facts.master_epoch, frozenset(facts.sync_set), facts.set_epoch, facts.term_id
            )
        except OSError as error:
            raise _TermNotKept(str(error)) from error
        if self._is_replaced():
            # The disk stalled until the newer term was known, so this log may lack its messages.
            await self.replication.end_term()
            return
        self._log.terms.trust_tail()
        # Clients must reconnect, because consumers identify themselves only then. Connections with a parked
        # or forwarded send stay, so that the send is answered.
        await self.broker.stop(keeps=self._forwarding.is_used_by)
        if not await self._change_role(BrokerRole.SYNC_MASTER):
            await self.replication.end_term()
            await self._change_role(BrokerRole.SLAVE)
            await self._compose(BrokerRole.SLAVE)
            return
        await self._compose(BrokerRole.SYNC_MASTER)
        self._peer_leases.begin_term(self._clock.monotonic())
        self.broker.activate()
        self._on(RoleEvent.LED)

    async def _deactivate(self, *, keeps_clients: bool) -> None:
        """Makes this broker a slave. `keeps_clients`: clients keep their connections, because all their
        requests have been answered.
        """
        await self.replication.end_term()
        if not self.broker.options.is_slave:
            await self.broker.stop(keeps=lambda _: keeps_clients)
            await self._change_role(BrokerRole.SLAVE)
            await self._compose(BrokerRole.SLAVE)

    async def _change_role(self, role: BrokerRole) -> bool:
        """Sets the role of the store, and retries while its disk fails to write or to open a file. Returns
        False if the broker was to become master and its term was replaced meanwhile; the store keeps its old
        role.
        """
        while True:
            try:
                self._log.become(role)
                self._log.detach()
                return True
            except OSError as error:
                extra = {"master_epoch": self.epoch, "reason": str(error)}
                log.error(events.BROKER_ROLE_REFUSED, extra=extra)
            await self._clock.sleep(RETRY_S)
            if role is not BrokerRole.SLAVE and self._is_replaced():
                return False

    async def _become_slave(self, facts: MasterFacts, *, keeps_clients: bool) -> None:
        await self._deactivate(keeps_clients=keeps_clients)
        if not self.broker.is_active:
            self.broker.activate()
        self.broker.set_master(facts.master_address)
        self._on(RoleEvent.FOLLOWED)
        self._following = self._scope.start("follow", self._follow(facts))

    def _unfollow(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self, facts: MasterFacts) -> None:
        """Asks the master for its HA address until it has one in this term, then copies its log and grants it
        leases. Never returns. A name server is not asked, because it may still list the previous master.
        """
        assert facts.master_id is not None
        while True:
            try:
                info = await fetch_master_ha_info.within(
                    FIND_MASTER_TIMEOUT_S, self._client, facts.master_address
                )
            except (ClientError, RequestRejected):
                pass  # the master has not begun its term yet, or is gone; retry
            else:
                if info.ha_address and info.epoch in (None, facts.master_epoch):
                    self._forwarding.send_to(facts.master_address)
                    self._history_check.master = facts.master_address
                    await self.replication.follow(info.ha_address, facts.master_epoch, facts.master_id)
                    break
            await self._clock.sleep(FIND_MASTER_PAUSE_S)
        await self._peer_lease.keep(
            facts.master_address,
            lambda token: requests.VouchRequest(
                broker_id=self.broker_id, master_epoch=facts.master_epoch, token=token
            ),
        )

    def _may_join(self, broker_id: int) -> bool:
        """Returns True if a slave may join the set. It may be elected at once, so it must hold the current
        topics and groups, too. A RocketMQ slave does not report its tables, and is admitted after a fixed
        time.
        """
        if not self.is_master:
            return False
        return self.broker.has_tables(broker_id) or self._peer_leases.has_waited(
            broker_id, self._clock.monotonic()
        )

    def handle_epochs(self, _channel: Channel, command: Command) -> Command:
        """GET_BROKER_EPOCH_CACHE (1007)."""
        entries = self.replication.epochs.entries
        ends = [entry.start for entry in entries[1:]] + [OPEN_END]
        body = BrokerEpochs(
            broker_id=0 if self.is_master else self.broker_id,
            broker_name=self._config.broker.broker_name,
            cluster=self._config.broker.cluster_name,
            epochs=[
                EpochRange(end=end, epoch=entry.epoch, start=entry.start)
                for entry, end in zip(entries, ends, strict=True)
            ],
            max_log_offset=self._log.max_log_offset,
        )
        return command.reply(body=encode_body(body))
