"""The history of its group that a broker of an elected group reports to the controllers, and its detection of
a controllers' record that does not match. `ElectedBroker` calls both.

Controllers count terms and sets on their own disks. If such a disk was rolled back, lost, or belongs to
another group, the record contradicts the brokers' logs. A broker never acts on such a record, and continues
to report what it knows, so that TandemMQ controllers adopt it.
Source:  decision 023; spec controller 10.16.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tandemmq.api.controller import MasterFacts
from tandemmq.protocol.requests.controller import HistoryFacts
from tandemmq.replication.core.epochs import UNKNOWN_ID
from tandemmq.replication.shell.autoswitch import AutoSwitchReplication
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownTerm:
    """A term: its epoch, its random id (UNKNOWN_ID under older controllers), and its master, if known."""

    epoch: int
    term_id: int
    master_id: int | None


def newest_term(store: MessageStore, accepted: MasterFacts | None) -> KnownTerm:
    """Returns the newest term that this broker has accepted from controllers (`accepted`) or has in its log.

    If the log has a term with the accepted number and a different id, the log's term counts: a master wrote
    bytes in it.
    """
    epochs = store.terms.epochs
    if accepted is None or epochs.last_epoch > accepted.master_epoch:
        return KnownTerm(max(epochs.last_epoch, 0), epochs.last_id, None)
    held_id = epochs.id_of(accepted.master_epoch)
    if held_id not in (UNKNOWN_ID, accepted.term_id) and accepted.term_id != UNKNOWN_ID:
        return KnownTerm(accepted.master_epoch, held_id, None)
    return KnownTerm(accepted.master_epoch, accepted.term_id or held_id, accepted.master_id)


def report_history(
    store: MessageStore,
    replication: AutoSwitchReplication,
    *,
    group_id: str | None,
    broker_id: int,
    accepted: MasterFacts | None,
    is_master: bool,
) -> HistoryFacts:
    """Returns the facts that prove the history of this broker in a registration or a heartbeat. Only the
    current master reports the set: every replica that its sends may wait for.
    """
    term = newest_term(store, accepted)
    members, required = None, replication.required
    if is_master and required is not None and term.master_id == broker_id:
        members = ";".join(map(str, sorted(required | {broker_id})))
    last = store.terms.epochs.find(replication.confirm_offset - 1) if replication.confirm_offset else None
    return HistoryFacts(
        group_id=group_id,
        epoch_known=term.epoch or None,
        term_id=term.term_id or None,
        master_known=term.master_id,
        members=members,
        set_epoch=None if members is None else replication.set_epoch,
        confirmed_epoch=None if last is None else last.epoch,
        is_incomplete=store.terms.may_lack_tail or None,
    )


class ControllerMismatch:
    """The reason why the controllers' record is not the history of this group; each reason is logged once."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self.reason = ""
        """The reason; empty while their record and the broker's history agree."""

    def raise_(self, event: str, reason: str) -> None:
        if reason != self.reason:
            self.reason = reason
            log.error(event, extra={"broker": self._broker, "reason": reason})

    def miss_group(self, known: KnownTerm, reason: str) -> None:
        """Handles controllers that refuse this broker, or its group, as unknown."""
        if known.epoch:
            self.raise_(
                events.CONTROLLER_GROUP_UNKNOWN,
                f"the controllers do not know this broker, whose log knows master epoch {known.epoch}:"
                f" {reason}",
            )

    def settle(self) -> None:
        """Clears the reason: the controllers know this group and its newest term."""
        if self.reason:
            log.warning(events.CONTROLLER_SETTLED, extra={"broker": self._broker, "reason": self.reason})
            self.reason = ""

    def compare(self, reported: MasterFacts, known: KnownTerm) -> None:
        """Compares the controllers' record with the newest term that this broker knows. A group that
        currently has no master proves nothing.
        """
        if not reported.master_epoch:
            return
        if reported.master_epoch < known.epoch:
            self.raise_(
                events.CONTROLLER_BEHIND,
                f"the controllers know master epoch {reported.master_epoch}, this broker {known.epoch}: their"
                " state is older than the group",
            )
        elif (
            reported.master_epoch == known.epoch
            and UNKNOWN_ID not in (reported.term_id, known.term_id)
            and (reported.term_id != known.term_id)
        ):
            self.raise_(
                events.CONTROLLER_BEHIND,
                f"two terms have master epoch {known.epoch}: {reported.term_id:x} at the controllers,"
                f" {known.term_id:x} in this log",
            )
        else:
            self.settle()
