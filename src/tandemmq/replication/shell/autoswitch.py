"""Replication with an elected master, as used by the component that talks to the controllers.

A broker has one role in one term at a time: master (`begin_term`), slave (`follow`) or neither (`end_term`).
A change of term closes every connection of the previous term on both sides, so every acknowledgement that
arrives belongs to the current term.
Source:  spec controller 3.5 to 3.7, 4, 10.6, 10.8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from tandemmq.errors import FlushFailed, StaleTerm
from tandemmq.replication.core.epochs import UNKNOWN_ID, EpochList, Handshake
from tandemmq.replication.core.master import MasterSession
from tandemmq.replication.core.options import ReplicationOptions, SetOptions
from tandemmq.replication.core.progress import SlaveState, StartRule, TransferStart
from tandemmq.replication.core.sync_state_set import SyncStateSet
from tandemmq.replication.core.term_sessions import MasterHistory, TermMasterSession, TermSlaveSession
from tandemmq.replication.core.verifier import TailVerdict
from tandemmq.replication.shell.master_status import MasterStatus
from tandemmq.replication.shell.slave import ReplicationSlave, ReplicationSlaveStatus
from tandemmq.replication.shell.slave_connection import SlaveConnection, SlaveServer
from tandemmq.runtime.ports import Address, Clock, Network, TimerHandle
from tandemmq.runtime.tasks import OnFatal
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import ReplicaId

log = logging.getLogger(__name__)

RECONNECT_MS_MAX: Final = 500
"""The longest pause before reconnecting. A new master listens soon; the 5 s of the classic mode would
dominate the duration of a failover.
"""
SET_CHECK_MS: Final = 500
CONFIRM_DELAY_MS: Final = 10
"""The maximum delay before an idle slave learns the confirmed offset."""

OnPropose = Callable[[frozenset[int], int], None]
"""(members, set_epoch): asks the controllers to replace the SyncStateSet of `set_epoch` with `members`.
`set_committed` or `set_refused` answers; until then the outcome counts as unknown.
"""


class HistoryComparer(Protocol):
    """The exchange with the master on its remoting port, before a byte is copied."""

    @property
    def group_id(self) -> str | None:
        """The id of this broker's group; None while it is unknown."""

    async def ask(self) -> MasterHistory | None:
        """Returns the master's history, or None if the master does not support it. Raises TandemError."""

    async def compare(self, point: int, confirm_offset: int) -> TailVerdict:
        """Compares the bytes of both logs below `point`. Never raises for anything that a peer can cause."""


class AutoSwitchReplication(SlaveServer):
    """The AutoSwitch channel of one broker, in any role.

    Invariants: an acknowledgement of a slave counts while its connection lasts, which is within one term; the
                store identifies slaves by the ids that the controllers assigned, so a slave counts once.
    """

    def __init__(
        self,
        store: MessageStore,
        broker_id: int,
        options: ReplicationOptions,
        set_options: SetOptions,
        comparer: HistoryComparer,
        *,
        network: Network,
        clock: Clock,
        on_fatal: OnFatal | None = None,
    ) -> None:
        assert store.has_terms
        options = replace(options, reconnect_delay_ms=min(options.reconnect_delay_ms, RECONNECT_MS_MAX))
        super().__init__(store, options, network=network, clock=clock, on_fatal=on_fatal)
        self._broker_id = broker_id
        self._on_fatal = on_fatal
        self._set_options = set_options
        self._comparer = comparer
        self._handshake = Handshake(
            broker_id, from_last_file=set_options.from_last_file, is_learner=set_options.is_learner
        )
        self._set: SyncStateSet | None = None
        self._slave: ReplicationSlave | None = None
        self._session: TermSlaveSession | None = None
        self._followed: tuple[str, int, int] | None = None
        self._timer: TimerHandle | None = None
        self._confirm_timer: TimerHandle | None = None
        self.on_propose: OnPropose = lambda _members, _set_epoch: None
        self.may_join: Callable[[int], bool] = lambda _broker_id: True
        """Returns True if a slave that holds the log also has everything else that an electable member needs.
        """
        self.history_differed_count = 0
        """The number of times that a master's log had a different history under equal terms."""
        self.on_following: Callable[[], None] = lambda: None
        """Called when a master's bytes are to follow the end of this log. State reported for the old log may
        then be invalid.
        """

    async def start(self, host: str, port: int) -> Address:
        """Listens for slaves and returns the HA address. Slaves are served only while this broker is
        master.
        """
        self._store.terms.limit_reads()
        return await super().start(host, port)

    async def stop(self) -> None:
        await self._stop_listening()
        await self.end_term()
        assert not self._connections, "a stopped master accepts no slaves"

    async def begin_term(
        self, epoch: int, members: frozenset[int], set_epoch: int, term_id: int = UNKNOWN_ID
    ) -> None:
        """Makes this broker the master of `epoch`; also if it was the master of an earlier one.

        When `begin_term` returns, the slave side has ended, and the entry of the term is on disk, and with
        SYNC_FLUSH the log before it too. Only then may the store become a master's (`store.become`).
        Raises:  StaleTerm for an epoch that is not above all that the log knows: refuse the promotion.
                 OSError if the entry cannot be written. FlushFailed: the store has failed.
        """
        store = self._store
        self._require_newer(epoch)
        await self.end_term()
        begin = store.max_log_offset  # no slave received in the previous term what this master may add
        if store.confirmed.value < begin:
            # SYNC_FLUSH: slaves learn the log's end as far as it is on disk. A slave that holds more
            # confirmed bytes than that would truncate them or halt, and one that holds less would be admitted
            # to the set.
            await store.sync()
            if store.confirmed.value < begin:
                raise FlushFailed(f"the log could not be flushed up to {begin}, where term {epoch} begins")
        self._require_newer(epoch)  # tasks in progress may have brought the list of a newer master
        await store.terms.save_epochs(store.terms.epochs.append(epoch, begin, term_id))
        assert self._slave is None, "the slave side has ended"
        assert self._set is None, "one term at a time"
        assert not self._connections, "slaves are served during a term only"
        assert store.terms.epochs.last_epoch == epoch, (store.terms.epochs.last_epoch, epoch)
        store.terms.limit_reads(until=store.max_log_offset)
        self._set = SyncStateSet(
            self._broker_id,
            members,
            set_epoch,
            now_ms=self._now_ms(),
            confirm_offset=store.terms.confirm_offset,
            options=self._set_options,
            may_join=lambda one: self.may_join(one),
        )
        self._on_set_changed()
        self._check_set()

    async def follow(self, master_ha_address: str, master_epoch: int, master_id: int) -> None:
        """Makes this broker a slave in `master_epoch`, as the store is. Repeating the same arguments changes
        nothing.
        """
        followed = master_ha_address, master_epoch, master_id
        if self._followed == followed:
            return
        await self.end_term()
        assert self._set is None, "a slave leads no term"
        assert self._slave is None, "one master is followed at a time"
        assert not self._connections, "slaves are served during a term only"
        store, comparer = self._store, self._comparer
        session = self._session = TermSlaveSession(
            options=self._options,
            segment_bytes=store.options.commit_log_file_bytes,
            handshake=self._handshake,
            master_epoch=master_epoch,
            epochs=store.terms.epochs,
            confirm_offset=store.terms.confirm_offset,
        )

        async def compare(point: int) -> TailVerdict:
            return await comparer.compare(point, session.confirm_offset)

        self._followed = followed
        self._slave = ReplicationSlave(
            store,
            self._options,
            compare,
            network=self._network,
            clock=self._clock,
            on_fatal=self._on_fatal,
            session=session,
            request_history=comparer.ask,
        )
        self._slave.on_history_differs = self._count_difference
        self._slave.on_following = self._begin_copy
        self._slave.set_master(master_ha_address)
        await self._slave.start()

    def _count_difference(self) -> None:
        self.history_differed_count += 1

    def _begin_copy(self) -> None:
        self._store.deletions.begin_copy()
        self.on_following()

    async def end_term(self) -> None:
        """Handles the state without a known master: closes every connection and acknowledges nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
            self._confirm_timer = None
        self._store.terms.limit_reads()
        if self._set is not None:
            self._set = None
            self._store.set_replica_shortage("")
            # The required acknowledgements stay: requiring fewer would answer sends that members of this term
            # lack.
        # What these connections still deliver belongs to no term: it must not count in the next one.
        connections = list(self._connections)
        self._connections.clear()
        for connection in connections:
            one = _slave_of(connection)
            if one is not None:
                self._store.replies.acks.forget(_replica(one))
            connection.close("the term has ended")
        assert not self._connections, "no slave connects while the others are closed"
        assert self._timer is None, "no set is checked without a term"
        slave, self._slave, self._followed = self._slave, None, None
        if slave is not None:
            await slave.stop()

    def set_committed(self, members: frozenset[int], set_epoch: int) -> None:
        """Handles a set that the controllers have, from one of their answers or a poll."""
        if self._set is not None and self._set.is_reverted(members, set_epoch):
            facts = {
                "sync_set": sorted(self._set.members),
                "set_epoch": self._set.epoch,
                "told_set": sorted(members),
                "told_set_epoch": set_epoch,
            }
            log.error(events.SYNC_SET_REVERTED, extra=facts)
        if self._set is not None and self._set.on_committed(members, set_epoch):
            self._on_set_changed()
            self._propose()

    def set_refused(self, set_epoch: int) -> None:
        """Handles the definite refusal of the proposal against `set_epoch`; a time-out is not a refusal."""
        if self._set is not None:
            self._set.on_refused(set_epoch)
            self._on_set_changed()

    @property
    def required(self) -> frozenset[int] | None:
        """The other members of the set, or of its union with open proposals; None if this broker is not the
        master.
        """
        return None if self._set is None else self._set.required

    @property
    def set_epoch(self) -> int | None:
        """The epoch of the set that the controllers have, as far as known; None if this broker is not the
        master.
        """
        return None if self._set is None else self._set.epoch

    def master_status(self) -> MasterStatus | None:
        """Returns the state of a master's slaves; None if this broker is not the master."""
        if self._set is None:
            return None
        end, members = self._store.max_log_offset, self._set.members
        assert self._broker_id in members, (self._broker_id, members)
        slaves = []
        for connection in self._connections:
            one = _slave_of(connection)
            replica = None if one is None else _replica(one)
            slaves.append(connection.status(end, replica=replica, is_in_sync=one in members))
        return MasterStatus(
            log_start=self._store.min_log_offset,
            log_end=end,
            in_sync_count=len(members) - 1,
            slaves=tuple(slaves),
            departed=(),
            now_ms=self._now_ms(),
        )

    def slave_status(self) -> ReplicationSlaveStatus | None:
        """Returns the state of a slave's copy; None if it follows no master."""
        return None if self._slave is None else self._slave.status()

    @property
    def epochs(self) -> EpochList:
        """The terms of the log, for elections and for GET_BROKER_EPOCH_CACHE. Terms of which a copy has the
        entries but no byte yet are left out: an election must not see them.
        """
        return self._store.terms.epochs.cut_suffix(self._store.max_log_offset + 1)

    @property
    def confirm_offset(self) -> int:
        """The offset below which every member of the set holds all bytes."""
        return self._store.terms.confirm_offset

    @property
    def is_caught_up(self) -> bool:
        """True if a slave holds everything that its master held when the copy began."""
        status = self.slave_status()
        return (
            status is not None
            and self._session is not None
            and status.state is SlaveState.TRANSFERRING
            and self._store.max_log_offset >= self._session.master_end
        )

    @property
    def halt_reason(self) -> str:
        """The reason why the copy is halted until an operator acts; empty if it is not."""
        halt = None if self._slave is None else self._slave.status().halt
        return "" if halt is None else f"{halt.reason.value}: {halt.detail}"

    def _require_newer(self, epoch: int) -> None:
        known = self._store.terms.epochs.last_epoch
        if epoch <= known:
            raise StaleTerm(f"term {epoch} cannot begin: the log already has term {known}")

    # Callbacks of the connections.

    def new_session(self, host: str, now_ms: int) -> MasterSession:
        return TermMasterSession(
            options=self._options,
            segment_bytes=self._store.options.commit_log_file_bytes,
            now_ms=now_ms,
            epochs=self._store.terms.epochs,
            confirm_offset=lambda: self._store.terms.confirm_offset,
            group_id=self._comparer.group_id,
        )

    def on_accepted(self, connection: SlaveConnection) -> bool:
        is_allowed = self._allowed.allows(connection.peer[0])
        has_room = len(self._connections) < self._options.connection_count_max
        if self._is_stopped or self._set is None or not is_allowed or not has_room:
            reason = "" if is_allowed else "not in haAllowedSlaves"
            facts = {
                "slave": connection.peer[0],
                "reason": reason or "no term as master, or too many connections",
            }
            log.log(logging.WARNING if reason else logging.INFO, events.SLAVE_REFUSED, extra=facts)
            return False
        assert connection not in self._connections, connection.peer
        self._connections.append(connection)
        return True

    def on_started(self, connection: SlaveConnection, start: TransferStart) -> None:
        """Replaces an older connection of the same slave, whatever the slave can be sent. Bytes that the
        older connection acknowledged may be lost, so they no longer count.
        """
        assert connection.session.start is start, start
        peer_id = _peer_id(connection)
        assert peer_id is not None, "a slave sends its id before it reports"
        for other in list(self._connections):
            if other is not connection and _peer_id(other) == peer_id:
                self._forget(other)
                other.close("the slave has reconnected")
        one = _slave_of(connection)
        if one is not None and connection in self._connections:
            self._store.replies.acks.forget(_replica(one))
            if start.rule is StartRule.SLAVE_TOO_OLD:
                self._discount(one)

    def on_subscribed(self, connection: SlaveConnection) -> None:
        start = connection.session.start
        assert start is not None
        assert start.reported <= self._store.confirmed.value, start
        one = _slave_of(connection)
        if self._set is not None and one is not None and connection in self._connections:
            self._set.on_connected(one, start.reported, self._now_ms())
            self._on_set_changed()
            self._propose()

    def on_ahead(self, connection: SlaveConnection) -> None:
        raise AssertionError("a slave that is ahead is closed by its session")

    def on_acknowledged(self, connection: SlaveConnection, log_offset: int) -> None:
        one = _slave_of(connection)
        if self._set is None or one is None or connection not in self._connections:
            return
        before = self._set.required
        self._set.on_acknowledged(one, log_offset, self._store.confirmed.value, self._now_ms())
        self._raise_confirm_offset(self._set.confirm_offset)
        if self._set.required != before:
            self._on_set_changed()
        start = connection.session.start
        begins_at = 0 if start is None or start.reported else start.log_offset
        held_from = 0 if begins_at <= self._store.min_log_offset else begins_at
        self._store.replies.acks.report(_replica(one), log_offset, start=held_from)
        if one not in self._set.members:
            self._propose()

    def on_fell_behind(self, connection: SlaveConnection) -> None:
        one = _slave_of(connection)
        if one is not None and connection in self._connections:
            self._discount(one)

    def on_lost(self, connection: SlaveConnection) -> None:
        self._forget(connection)

    def _forget(self, connection: SlaveConnection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        one = _slave_of(connection)
        if one is not None and not any(_slave_of(other) == one for other in self._connections):
            self._discount(one)

    def _discount(self, one: int) -> None:
        """Stops counting the slave until it reconnects."""
        self._store.replies.acks.forget(_replica(one))
        if self._set is not None:
            self._set.on_closed(one)
            self._on_set_changed()
            self._propose()

    def _on_set_changed(self) -> None:
        """Makes sends wait for the new union, if they wait for the whole set.

        While the set is too small, sends are refused. Waiting sends keep waiting for the members that have
        left: if answered now, they would be in fewer copies than the operator requires.
        """
        if self._set is None:
            return
        size, needed = self._set.size, self._set_options.copy_count_min
        remark = f"the SyncStateSet has {size} copies of minInSyncReplicas={needed}"
        self._store.set_replica_shortage(remark if size < needed else "")
        self._raise_confirm_offset(self._set.raise_confirm(self._store.confirmed.value))
        if self._set_options.waits_for_all and size >= needed:
            self._store.replies.require(frozenset(map(_replica, self._set.required)))

    def _propose(self) -> None:
        if self._set is None:
            return
        proposal = self._set.propose(self._store.confirmed.value, self._now_ms())
        self._on_set_changed()
        if proposal is not None:
            self.on_propose(proposal, self._set.epoch)

    def _check_set(self) -> None:
        self._timer = None
        if self._set is None:
            return
        self._propose()
        self._timer = self._clock.call_later(SET_CHECK_MS / 1000, self._guard.run, self._check_set)

    def _on_confirmed(self, end: int) -> None:
        if self._set is not None:
            self._raise_confirm_offset(self._set.raise_confirm(end))
        self._pump.wake()

    def _raise_confirm_offset(self, log_offset: int) -> None:
        """Raises confirmOffset: bytes that the whole set holds may be read, also at the slaves. The slaves
        learn it with the next bytes, or from a head without a body if no bytes follow soon.
        """
        self._store.terms.raise_confirm_offset(log_offset)
        assert self._store.terms.confirm_offset >= log_offset, "what all of the set hold is in the log"
        if self._connections:
            self._schedule_confirm_heads()

    def _schedule_confirm_heads(self) -> None:
        if self._confirm_timer is None:
            delay_s = CONFIRM_DELAY_MS / 1000
            self._confirm_timer = self._clock.call_later(delay_s, self._guard.run, self._send_confirm_heads)

    def _send_confirm_heads(self) -> None:
        self._confirm_timer = None
        for connection in list(self._connections):
            session = connection.session
            assert isinstance(session, TermMasterSession)
            if session.has_unsent_confirm_offset:
                connection.send_head()
            if session.has_unsent_confirm_offset:  # the socket accepts nothing now
                self._schedule_confirm_heads()


def _slave_of(connection: SlaveConnection) -> int | None:
    """Returns the id of a slave that may count; None for a learner, and before the handshake."""
    session = connection.session
    assert isinstance(session, TermMasterSession)
    return None if session.slave is None or session.slave.is_learner else session.slave.slave_id


def _peer_id(connection: SlaveConnection) -> int | None:
    """Returns the id of any slave, including a learner; None before the handshake."""
    session = connection.session
    assert isinstance(session, TermMasterSession)
    return None if session.slave is None else session.slave.slave_id


def _replica(broker_id: int) -> ReplicaId:
    return ReplicaId(f"broker {broker_id}")
