"""HistoryReports: the brokers' proofs of their group's history, and the state to adopt if the brokers' state
is newer than the controllers', because the controllers' disks were restored to an earlier state or lost.

`ControllerHandlers` records each registration and heartbeat here. Pure.
Invariants: a report counts until the same broker reports again. It remains when its broker is gone, because
            an epoch is never assigned twice.
Strategy:   the state of a group is adopted from the broker that reports itself master of the highest epoch,
            if every other member of its set reports and knows no later epoch: a later master would be one of
            them. If no master is in office but every known broker has reported its log, the longest log has
            everything that was acknowledged, and its broker becomes the only member.
Bounds:     REPORTS_MAX reports; beyond it brokers that are unknown to the controllers are not recorded until
            reports of silent ones have expired. Epochs above EPOCH_MAX are refused. The newest
            REFUSED_MAX refused brokers are remembered.
Source:     spec controller 10.16.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.controller.groups import (
    BROKERS_MAX,
    FIRST_HEARTBEAT_S,
    NO_FLOOR,
    TIMEOUT_MS_DEFAULT,
    Adopt,
    Floor,
    ReplicaGroup,
)
from tandemmq.errors import BadRequest
from tandemmq.protocol.requests.controller import RegisterReplicaRequest
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest

FLOORS_MAX: Final = 8
REPORTS_MAX: Final = 2 * BROKERS_MAX
REFUSED_MAX: Final = 64
REFUSED_S: Final = 30.0
"""The time in seconds for which a refused broker is listed; it retries several times within it."""
EPOCH_MAX: Final = 2**30
"""Far above any number of elections, and far below the limit of the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReport:
    """The newest facts of one broker. `epoch` is -1 if the broker reports no history; `members` is None
    unless the broker is a master in office.
    """

    name: str
    broker_id: int
    cluster: str
    address: str
    group_id: str
    epoch: int
    term_id: int
    master: int | None
    members: tuple[int, ...] | None
    set_epoch: int
    log_epoch: int
    log_end: int
    confirmed: Floor
    received_s: float
    timeout_s: float

    @property
    def is_active_master(self) -> bool:
        """True if the broker is the master of the epoch that it reports."""
        return self.members is not None and self.master == self.broker_id and self.broker_id in self.members

    def agrees_with(self, master: HistoryReport) -> bool:
        """Returns True if this broker was not elected after this master and knows no rival of it. A broker
        that has restarted may have forgotten the epoch itself, but not an epoch in which it was master.
        """
        if self.group_id != master.group_id or self.epoch > master.epoch:
            return False
        is_same_term = self.term_id == master.term_id or 0 in (self.term_id, master.term_id)
        return self.epoch < master.epoch or is_same_term


class HistoryReports:
    """The reports that one controller has received, by group and broker. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[int, HistoryReport]] = {}
        self._count = 0
        self._floors: dict[str, dict[int, Floor]] = {}
        self._refused: dict[tuple[str, int], tuple[str, float]] = {}

    def record(
        self, header: BrokerHeartbeatRequest | RegisterReplicaRequest, now_s: float, *, is_known: bool
    ) -> None:
        """Records the facts of one broker. `is_known`: the broker has received its id from the controllers.

        Raises:  BadRequest for an epoch or a set that no broker can have.
        """
        report = decode_report(header, now_s)
        if self.get(report.name, report.broker_id) is None:
            if not is_known and self._count >= REPORTS_MAX:
                self._expire(now_s)
            if not is_known and self._count >= REPORTS_MAX:
                return
            self._count += 1
        self._reports.setdefault(report.name, {})[report.broker_id] = report
        if report.confirmed != NO_FLOOR and (report.is_active_master or report.master is None):
            self._raise_floor(report)

    def _raise_floor(self, report: HistoryReport) -> None:
        """Records a confirmed offset. A broker that has just started reports, as a former master, the offset
        that was confirmed in an epoch of its log.
        """
        epoch = report.epoch if report.is_active_master else report.confirmed[0]
        by_epoch = self._floors.setdefault(report.name, {})
        by_epoch[epoch] = max(by_epoch.get(epoch, NO_FLOOR), report.confirmed)
        if len(by_epoch) > FLOORS_MAX:
            del by_epoch[min(by_epoch)]  # the elections since then have recorded it

    def _expire(self, now_s: float) -> None:
        for name, reports in list(self._reports.items()):
            for broker_id, report in list(reports.items()):
                if now_s >= report.received_s + report.timeout_s:
                    del reports[broker_id]
                    self._count -= 1
            if not reports:
                del self._reports[name]

    def forget(self, name: str, ids: Iterable[int]) -> None:
        """Drops the reports of brokers that an operator has removed from the group."""
        reports = self._reports.get(name, {})
        for broker_id in [one for one in ids if one in reports]:
            del reports[broker_id]
            self._count -= 1
        if not reports:
            self._reports.pop(name, None)
            self._floors.pop(name, None)

    def get(self, name: str, broker_id: int) -> HistoryReport | None:
        return self._reports.get(name, {}).get(broker_id)

    def highest_epoch(self, name: str) -> int:
        """Returns the highest master epoch that any broker of the group has reported; 0 if there is none."""
        return max((max(one.epoch, one.log_epoch) for one in self._all(name)), default=0)

    def floor_of(self, group: ReplicaGroup) -> Floor:
        """Returns the highest confirmed offset that the group's masters and former masters have reported to
        this controller.
        """
        floors = self._floors.get(group.name, {})
        return max((floor for epoch, floor in floors.items() if epoch >= group.floor_since), default=NO_FLOOR)

    def report_history(self, name: str, now_s: float) -> bool:
        """Returns True if brokers that know the id of this group report its history now."""
        return any(one.epoch > 0 and one.group_id for one in self._living(name, now_s))

    def have_arrived(self, name: str, ids: Iterable[int], now_s: float) -> bool:
        """Returns True if each of these brokers has reported recently."""
        return set(ids) <= {one.broker_id for one in self._living(name, now_s)}

    def record_refusal(self, name: str, broker_id: int, reason: str, now_s: float) -> None:
        """Records that a broker was refused, for tools."""
        self._refused.pop((name, broker_id), None)
        self._refused[name, broker_id] = reason, now_s
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def refusals(self, name: str, now_s: float) -> list[str]:
        """Returns the reasons why brokers that claim to be of this group were refused recently."""
        return [
            reason
            for (of_group, _), (reason, refused_s) in self._refused.items()
            if of_group == name and now_s < refused_s + REFUSED_S
        ]

    def unknown_groups(self, known: Container[str], now_s: float) -> dict[str, str]:
        """Returns the groups that living brokers report and that are not `known`, described for tools."""
        found = {}
        for name in sorted(name for name in self._reports if name not in known):
            living = [one for one in self._living(name, now_s) if one.epoch > 0]
            if living:
                ids = ", ".join(str(one.broker_id) for one in sorted(living, key=lambda one: one.broker_id))
                found[name] = f"brokers {ids} report master epoch {max(one.epoch for one in living)}"
        return found

    def _all(self, name: str) -> list[HistoryReport]:
        return list(self._reports.get(name, {}).values())

    def _living(self, name: str, now_s: float) -> list[HistoryReport]:
        return [one for one in self._all(name) if now_s < one.received_s + one.timeout_s]

    # Comparison with the recorded state.

    def newer_than(self, group: ReplicaGroup) -> HistoryReport | None:
        """Returns a report which proves that the recorded state is older than the group's: no master may be
        elected by that state.
        """
        return next((one for one in self._all(group.name) if _is_newer(group, one)), None)

    def rival_of(self, group: ReplicaGroup) -> HistoryReport | None:
        """Returns a report of the recorded epoch with a different term id: the epoch was assigned twice."""
        return next((one for one in self._all(group.name) if _is_rival(group, one)), None)

    def find_adoption(self, name: str, group: ReplicaGroup | None, now_s: float) -> Adopt | None:
        """Returns the state that living brokers have proven, if it is newer than the recorded one. Returns
        None if there is no such state, or while it is not proven.
        """
        living = [one for one in self._living(name, now_s) if one.epoch > 0 and one.group_id]
        if group is not None:
            living = [one for one in living if one.cluster == group.cluster and _may_belong(group, one)]
        highest = max((one.epoch for one in self._all(name)), default=0)
        masters = [one for one in living if one.epoch == highest and one.is_active_master]
        if len(masters) == 1:
            master = masters[0]
            if group is not None and not self._may_replace(group, master, living):
                return None
            assert master.members is not None
            by_id = {one.broker_id: one for one in living if one.cluster == master.cluster}
            if all(one in by_id and by_id[one].agrees_with(master) for one in master.members):
                return _adopt(name, group, living, master, master.broker_id, master.members)
        if masters or group is None or self.newer_than(group) is None:
            return None
        return self._adopt_longest_log(group, living)

    def _may_replace(self, group: ReplicaGroup, master: HistoryReport, living: list[HistoryReport]) -> bool:
        if _is_newer(group, master):
            return True
        if not _is_rival(group, master):
            return False
        recorded = group.master_epoch, group.term_id
        return not any((one.epoch, one.term_id) == recorded for one in living)

    def _adopt_longest_log(self, group: ReplicaGroup, living: list[HistoryReport]) -> Adopt | None:
        """Returns the state to adopt while no master is in office. If every known broker has reported its
        log, the longest log has everything that was acknowledged.
        """
        reported = {one.broker_id: one for one in living if one.log_end >= 0}
        reports = self._all(group.name)
        known = group.replicas.keys() | {one.broker_id for one in reports}
        known |= {one.master for one in reports if one.master is not None}
        if not known <= reported.keys():
            return None
        best = max(reported.values(), key=lambda one: (one.log_epoch, one.log_end, -one.broker_id))
        return _adopt(group.name, group, living, best, None, (best.broker_id,))

    def force_adoption(self, name: str, broker_id: int, now_s: float) -> Adopt | None:
        """Returns the state of an unknown group as this broker reports it, with this broker alone in the set.
        Only an operator's request leads here.
        """
        living = [one for one in self._living(name, now_s) if one.group_id]
        chosen = next((one for one in living if one.broker_id == broker_id), None)
        return None if chosen is None else _adopt(name, None, living, chosen, None, (broker_id,))


def decode_report(header: BrokerHeartbeatRequest | RegisterReplicaRequest, now_s: float) -> HistoryReport:
    """Returns the facts in a registration or in a heartbeat. Raises BadRequest."""
    timeout_s = FIRST_HEARTBEAT_S
    if isinstance(header, BrokerHeartbeatRequest):
        timeout_s = max(1, header.heartbeat_timeout_ms or TIMEOUT_MS_DEFAULT) / 1000
    assert header.broker_id is not None
    log_epoch = -1 if header.epoch is None else header.epoch
    epoch = -1 if header.epoch_known is None else header.epoch_known
    if max(epoch, log_epoch) > EPOCH_MAX:
        raise BadRequest(f"the master epoch {max(epoch, log_epoch)} is above {EPOCH_MAX}")
    confirmed = NO_FLOOR
    if header.confirmed_epoch is not None and header.confirmed_offset is not None:
        confirmed = header.confirmed_epoch, header.confirmed_offset
    return HistoryReport(
        name=header.broker_name,
        broker_id=header.broker_id,
        cluster=header.cluster_name,
        address=header.broker_address,
        group_id=header.group_id or "",
        epoch=epoch,
        term_id=header.term_id or 0,
        master=header.master_known,
        members=None if header.members is None else _parse_members(header.members),
        set_epoch=0 if header.set_epoch is None else header.set_epoch,
        log_epoch=log_epoch,
        log_end=-1 if header.max_log_offset is None else header.max_log_offset,
        confirmed=confirmed,
        received_s=now_s,
        timeout_s=timeout_s,
    )


def _parse_members(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(";") if part}))
    except ValueError:
        raise BadRequest(f"tmMembers: {text!r} must be broker ids joined by ;") from None


def _may_belong(group: ReplicaGroup, report: HistoryReport) -> bool:
    return not group.master_epoch or not group.group_id or report.group_id in ("", group.group_id)


def _is_newer(group: ReplicaGroup, report: HistoryReport) -> bool:
    if report.epoch < 1 or not _may_belong(group, report):
        return False
    if report.epoch != group.master_epoch:
        return report.epoch > group.master_epoch
    if group.master_id is None:
        return True  # the record has no master in this epoch, but the brokers had one
    is_same_term = report.term_id == group.term_id or not report.term_id or not group.term_id
    is_master = report.is_active_master and report.broker_id == group.master_id
    return is_same_term and is_master and report.set_epoch > group.set_epoch


def _is_rival(group: ReplicaGroup, report: HistoryReport) -> bool:
    return (
        report.epoch == group.master_epoch
        and group.master_id is not None
        and 0 not in (report.term_id, group.term_id)
        and report.term_id != group.term_id
        and _may_belong(group, report)
    )


def _adopt(
    name: str,
    group: ReplicaGroup | None,
    living: list[HistoryReport],
    chosen: HistoryReport,
    master_id: int | None,
    members: tuple[int, ...],
) -> Adopt:
    """Returns the command that adopts a state. Its set has a new epoch, so that the master accepts it as the
    answer to its proposal. Without a master, the epoch is one that no broker has reported: a master of that
    epoch would be a later one.
    """
    same_group = [one for one in living if (one.group_id, one.cluster) == (chosen.group_id, chosen.cluster)]
    set_epoch = max(one.set_epoch for one in same_group) + 1
    return Adopt(
        cluster=chosen.cluster,
        name=name,
        group_id=chosen.group_id,
        replicas={one.broker_id: one.address for one in sorted(same_group, key=lambda one: one.broker_id)},
        master_id=master_id,
        master_epoch=max(one.epoch for one in same_group) + (master_id is None),
        term_id=0 if master_id is None else chosen.term_id,
        sync_set=members,
        set_epoch=set_epoch,
        master_epoch_before=0 if group is None else group.master_epoch,
        set_epoch_before=0 if group is None else group.set_epoch,
    )
