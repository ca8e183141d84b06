"""Tells in the log which slaves come into sync and fall out of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tandemmq.replication.core.progress import LogRange, is_in_sync
from tandemmq.telemetry import events
from tandemmq.units import ReplicaId

log = logging.getLogger(__name__)


class InSyncLog:
    """A line per change, and no more than one pair per replica and heartbeat.

    A slave that comes into sync is told of with the report that brings it there. One that falls out is told
    of when time passes or a connection ends: a slave about haMaxGapNotInSync behind may go in and out with
    each append and report, and each entry needs a departure before it.
    """

    __slots__ = ("_gap_bytes_max", "_replicas")

    def __init__(self, gap_bytes_max: int) -> None:
        self._gap_bytes_max = gap_bytes_max
        self._replicas: set[ReplicaId] = set()

    def count(self, positions: Mapping[ReplicaId, int], log_range: LogRange) -> int:
        """How many of the replicas are in sync, told of or not."""
        return len(self._find(positions, log_range))

    def note_report(self, replica: ReplicaId, held: int, log_range: LogRange) -> None:
        """`replica` holds every byte below `held` now."""
        if replica not in self._replicas and self._is_in(held, log_range):
            self._replicas.add(replica)
            self._tell_entry(replica, held, log_range)

    def check(self, positions: Mapping[ReplicaId, int], log_range: LogRange) -> None:
        """Some time has passed, or a connection has ended; `positions`: what each replica holds."""
        found = self._find(positions, log_range)
        before, self._replicas = self._replicas, found
        for replica in sorted(found - before):
            self._tell_entry(replica, positions[replica], log_range)
        for replica in sorted(before - found):
            lag_bytes = log_range.end - positions[replica] if replica in positions else None
            facts = {"slave": replica, "lag_bytes": lag_bytes, "in_sync_count": len(found)}
            log.warning(events.SLAVE_OUT_OF_SYNC, extra=facts)

    def _tell_entry(self, replica: ReplicaId, held: int, log_range: LogRange) -> None:
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
