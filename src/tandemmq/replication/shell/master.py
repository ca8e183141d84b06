"""The master's end of replication. `ReplicationMaster` listens for slaves, follows `confirmed` and reports
acknowledgements to the store. `KnownAhead` remembers slaves that were ahead of it; `InSyncLog` logs which
slaves enter and leave sync.
Slaves found ahead of their master are remembered: their copies stay refused when its log has grown past them.
A slave is identified by its host here (spec replication 4.1), and its copy by its end: another slave of the
host, or the same one emptied, reports a different end. At the bound the oldest is forgotten.

Owns:       the listener, the connections, which replica each belongs to. Every broker listens, slaves too
            (spec replication 3).
Invariants: if sends wait for the disk, a slave is sent only bytes that are on the master's disk. Otherwise,
            after a power failure of the master, the slave would serve records that the master lost.
Source:     spec replication 4, spec decisions 2.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, TypeVar

from tandemmq.replication.core.master import MasterSession
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import (
    LogRange,
    MasterState,
    SlaveNotice,
    StartRule,
    TransferStart,
    is_in_sync,
)
from tandemmq.replication.core.replicas import ReplicaDirectory
from tandemmq.replication.shell.master_status import DepartedSlave, DepartedSlaves, MasterStatus, SlaveStatus
from tandemmq.replication.shell.slave_connection import SlaveConnection, SlaveServer
from tandemmq.runtime.ports import Address, Clock, Network
from tandemmq.runtime.tasks import OnFatal
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import ReplicaId

log = logging.getLogger(__name__)

HOST_COUNT_MAX: Final = 64
END_COUNT_MAX: Final = 64
"""The most ends remembered per host."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class ReplicationMaster(SlaveServer):
    """Serves the log of `store` to any number of slaves."""

    def __init__(
        self,
        store: MessageStore,
        options: ReplicationOptions,
        *,
        network: Network,
        clock: Clock,
        on_fatal: OnFatal | None = None,
    ) -> None:
        super().__init__(store, options, network=network, clock=clock, on_fatal=on_fatal)
        self._directory = ReplicaDirectory()
        self._reported: dict[ReplicaId, LogRange] = {}
        self._known_ahead = KnownAhead()
        self._departed = DepartedSlaves()
        self._in_sync = InSyncLog(options.in_sync_gap_bytes_max)
        self._highest_acknowledged = 0

    async def stop(self) -> None:
        """Stops accepting slaves and starts closing every connection."""
        await self._stop_listening()
        for connection in list(self._connections):
            connection.close("the master stops")

    def status(self) -> MasterStatus:
        now_ms = self._now_ms()
        log_range = self.log_range()
        acknowledged = [connection.session.acknowledged for connection in self._connections]
        assert max(acknowledged, default=0) <= self._highest_acknowledged, acknowledged
        return MasterStatus(
            log_start=log_range.start,
            log_end=log_range.end,
            in_sync_count=self._in_sync.count(self._directory.positions(), log_range),
            slaves=tuple(self._status_of(connection, log_range) for connection in self._connections),
            departed=self._departed.list(now_ms),
            now_ms=now_ms,
        )

    def _status_of(self, connection: SlaveConnection, log_range: LogRange) -> SlaveStatus:
        session = connection.session
        gap = self._options.in_sync_gap_bytes_max
        is_counted = session.state is MasterState.TRANSFERRING
        return connection.status(
            log_range.end,
            replica=connection.record.id,
            is_in_sync=is_counted and is_in_sync(log_range, session.acknowledged, gap_bytes_max=gap),
        )

    def on_notice(self, notice: SlaveNotice) -> None:
        """Records the name of a slave and whether it has halted. Nothing is acknowledged or counted by it."""
        for connection in self._connections:
            if connection.peer == notice.ha_address and connection.name != notice.name:
                connection.name = notice.name
                start = connection.session.start
                if start is not None:  # the notice is a separate request, so it may follow the first report
                    self._departed.remove_returned(notice.name, connection.peer[0], start.reported)
        self._departed.set_name(notice.ha_address, notice.name, self._now_ms())
        if notice.halt is not None:
            self._departed.set_halt(notice, self._now_ms())
        elif notice.is_copying:
            self._departed.clear_halt(notice.name)

    def wake(self) -> None:
        """Resumes connections that wait for bytes which have become readable."""
        self._pump.wake()

    def on_settled(self) -> None:
        """Handles a master that came back without the end of its log: it has recovered it, or continues
        without it.
        """
        self._known_ahead.forget_below(self._store.max_log_offset)

    def has_connection(self, peer: Address) -> bool:
        """Returns True if a slave is connected from this address."""
        return any(connection.peer == peer for connection in self._connections)

    def is_copied(self, broker_id: int, held: LogRange) -> bool:
        """Returns True if the slave with this id is connected and has acknowledged the range. A slave that
        has not reported its name may be any slave.
        """
        return any(
            replica is not None
            and held.end <= connection.session.acknowledged
            and self._directory.start(replica) <= held.start
            and (connection.name is None or connection.name.broker_id == broker_id)
            for connection in self._connections
            for replica in (connection.record.id,)
        )

    # Callbacks of the connections.

    def new_session(self, host: str, now_ms: int) -> MasterSession:
        return MasterSession(
            options=self._options,
            segment_bytes=self._store.options.commit_log_file_bytes,
            now_ms=now_ms,
            known_ahead=lambda: self._known_ahead.ends_of(host),
        )

    def on_accepted(self, connection: SlaveConnection) -> bool:
        if not self._allowed.allows(connection.peer[0]):
            reason = "not in haAllowedSlaves"
            log.warning(events.SLAVE_REFUSED, extra={"slave": connection.peer[0], "reason": reason})
            return False
        if self._is_stopped or len(self._connections) >= self._options.connection_count_max:
            facts = {"slave": connection.peer[0], "connection_count": len(self._connections)}
            log.warning(events.SLAVE_REFUSED, extra=facts)
            return False
        assert connection not in self._connections, connection.peer
        self._connections.append(connection)
        return True

    def on_started(self, connection: SlaveConnection, start: TransferStart) -> None:
        self._departed.remove_returned(connection.name, connection.peer[0], start.reported)

    def on_subscribed(self, connection: SlaveConnection) -> None:
        start = connection.session.start
        assert start is not None
        assert connection in self._connections, connection.peer
        self._directory.join(
            connection.record, begins_at=_begin_of(start), log_begin=self._store.min_log_offset
        )
        self._report_all()

    def on_ahead(self, connection: SlaveConnection) -> None:
        start = connection.session.start
        assert start is not None
        self._known_ahead.add(connection.peer[0], start)

    def on_acknowledged(self, connection: SlaveConnection, log_offset: int) -> None:
        self._highest_acknowledged = max(self._highest_acknowledged, log_offset)
        record = connection.record
        assert record.id is not None
        if self._directory.acknowledge(record, log_offset):
            self._report_all()
        else:
            self._report(record.id, self._range_of(record.id, self._directory.position(record.id)))
        self._in_sync.on_report(record.id, self._reported[record.id].end, self.log_range())

    def on_fell_behind(self, connection: SlaveConnection) -> None:
        assert connection.record.id is not None, "only a slave that received bytes falls behind"
        self._directory.leave(connection.record)
        connection.record.id = None
        self._report_all()

    def on_lost(self, connection: SlaveConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            if not self._has_reconnected(connection):
                self._record_departed(connection)
        self._directory.leave(connection.record)
        self._report_all()
        self.check_in_sync()

    def check_in_sync(self) -> None:
        """Logs which slaves entered or left sync; called at least once per heartbeat."""
        self._in_sync.check(self._directory.positions(), self.log_range())

    def _has_reconnected(self, connection: SlaveConnection) -> bool:
        """Returns True if the slave has another connection; this one was then an old one, noticed dead
        late.
        """
        assert connection not in self._connections, connection.peer
        return any(
            other.record.twin is connection.record
            if connection.name is None or other.name is None
            else other.name == connection.name
            for other in self._connections
        )

    def _record_departed(self, connection: SlaveConnection) -> None:
        session = connection.session
        assert session.is_closed, session.state
        if session.start is None or self._is_stopped:
            return
        now_ms = self._now_ms()
        slave = DepartedSlave(
            address=connection.peer,
            name=connection.name,
            replica=connection.record.id,
            acknowledged=max(session.acknowledged, session.start.reported),
            start=session.start,
            is_tandem=session.is_tandem,
            left_at_ms=now_ms,
            last_contact_ms=now_ms,
            reason=connection.close_reason,
        )
        self._departed.add(slave)

    def _range_of(self, replica: ReplicaId, position: int) -> LogRange:
        return LogRange(self._directory.start(replica), position)

    def _report(self, replica: ReplicaId, held: LogRange) -> None:
        self._reported[replica] = held
        self._store.replies.acks.report(replica, held.end, start=held.start)

    def _report_all(self) -> None:
        """Updates the store's table after ids may have changed."""
        positions = self._directory.positions()
        for replica in [replica for replica in self._reported if replica not in positions]:
            del self._reported[replica]
            self._store.replies.acks.forget(replica)
        ranges = {replica: self._range_of(replica, held) for replica, held in positions.items()}
        # Reductions before increases: at no moment may a byte count twice and so confirm a send.
        for replica, before in list(self._reported.items()):
            held = ranges[replica]
            less = LogRange(max(held.start, before.start), min(held.end, before.end))
            if less != before:
                self._report(replica, less)
        for replica, held in sorted(ranges.items()):
            if self._reported.get(replica) != held:
                self._report(replica, held)
        assert self._reported == ranges, (self._reported, ranges)


def _begin_of(start: TransferStart) -> int | None:
    """Returns the begin of the slave's copy, 0 for the begin of the log; None if it continues an older
    copy.
    """
    assert start.rule is StartRule.RESUMED or start.reported == 0, start
    if start.rule is StartRule.LAST_FILE:
        return start.log_offset
    return 0 if start.rule is StartRule.FIRST_FILE else None


class KnownAhead:
    """Maps each host to ends that its slaves reported, each with the master's end at that time."""

    __slots__ = ("_hosts",)

    def __init__(self) -> None:
        self._hosts: dict[str, dict[int, int]] = {}

    def add(self, host: str, start: TransferStart) -> None:
        """Records a slave that was refused by `start`."""
        assert start.reported > start.master_end, start
        ends = self._hosts.setdefault(host, {})
        ends[start.reported] = start.master_end
        _drop_oldest(ends, END_COUNT_MAX)
        _drop_oldest(self._hosts, HOST_COUNT_MAX)
        assert len(ends) <= END_COUNT_MAX, len(ends)
        assert len(self._hosts) <= HOST_COUNT_MAX, len(self._hosts)

    def forget_below(self, log_end: int) -> None:
        """Handles a log that has recovered its lost end, up to `log_end`: copies that end at or before it are
        valid again.
        """
        assert log_end >= 0, log_end
        for host, ends in self._hosts.items():
            self._hosts[host] = {end: master_end for end, master_end in ends.items() if end > log_end}

    def ends_of(self, host: str) -> Mapping[int, int]:
        """Returns the mapping that `plan_start` needs."""
        return self._hosts.get(host, {})


def _drop_oldest(table: dict[Key, Value], count_max: int) -> None:
    assert len(table) <= count_max + 1, "each is looked at as soon as it has grown"
    if len(table) > count_max:
        del table[next(iter(table))]


class InSyncLog:
    """Logs which slaves enter and leave sync: one line per change, and at most one pair of lines per replica
    and heartbeat.

    A report that brings a slave into sync is logged at once. A departure is logged only when time passes or a
    connection ends: a slave that lags by about haMaxGapNotInSync may enter and leave with each append and
    report, and each entry must follow a departure.
    """

    __slots__ = ("_gap_bytes_max", "_replicas")

    def __init__(self, gap_bytes_max: int) -> None:
        assert gap_bytes_max > 0, gap_bytes_max
        self._gap_bytes_max = gap_bytes_max
        self._replicas: set[ReplicaId] = set()

    def count(self, positions: Mapping[ReplicaId, int], log_range: LogRange) -> int:
        """Returns the number of replicas in sync, logged or not."""
        return len(self._find(positions, log_range))

    def on_report(self, replica: ReplicaId, held: int, log_range: LogRange) -> None:
        """Handles a report: `replica` now holds every byte below `held`."""
        if replica not in self._replicas and self._is_in(held, log_range):
            self._replicas.add(replica)
            self._log_entry(replica, held, log_range)

    def check(self, positions: Mapping[ReplicaId, int], log_range: LogRange) -> None:
        """Handles the passage of time or the end of a connection; `positions`: the end of each replica's
        copy.
        """
        found = self._find(positions, log_range)
        before, self._replicas = self._replicas, found
        for replica in sorted(found - before):
            self._log_entry(replica, positions[replica], log_range)
        for replica in sorted(before - found):
            lag_bytes = log_range.end - positions[replica] if replica in positions else None
            facts = {"slave": replica, "lag_bytes": lag_bytes, "in_sync_count": len(found)}
            log.warning(events.SLAVE_OUT_OF_SYNC, extra=facts)

    def _log_entry(self, replica: ReplicaId, held: int, log_range: LogRange) -> None:
        assert log_range.start <= held <= log_range.end, (replica, held, log_range)
        facts = {
            "slave": replica,
            "lag_bytes": log_range.end - held,
            "in_sync_count": len(self._replicas),
        }
        log.info(events.SLAVE_IN_SYNC, extra=facts)

    def _find(self, positions: Mapping[ReplicaId, int], log_range: LogRange) -> set[ReplicaId]:
        return {replica for replica, held in positions.items() if self._is_in(held, log_range)}

    def _is_in(self, held: int, log_range: LogRange) -> bool:
        return is_in_sync(log_range, held, gap_bytes_max=self._gap_bytes_max)
