"""The history that a broker reports to controllers, and its verdict on theirs (decision 023)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from tandemmq.api.controller import MasterFacts
from tandemmq.broker.autoswitch.history import ControllerMismatch, KnownTerm, newest_term, report_history
from tandemmq.replication.core.epochs import EpochEntry, EpochList


@dataclass
class Log:
    """The parts of a store and of its replication that are read."""

    epochs: EpochList = field(default_factory=EpochList)
    may_lack_tail: bool = False
    confirm_offset: int = 0
    required: frozenset[int] | None = None
    set_epoch: int | None = None

    @property
    def terms(self) -> Log:
        return self


TERMS = EpochList((EpochEntry(1, 0), EpochEntry(2, 500)), {EpochEntry(1, 0): 77, EpochEntry(2, 500): 88})


def term(epoch: int, term_id: int = 0, master: int | None = 1) -> MasterFacts:
    return MasterFacts(master, "m:1", epoch, (1, 2), 9, term_id=term_id)


@pytest.mark.parametrize(
    ("epochs", "taken", "known"),
    [
        (EpochList(), None, (0, 0, None)),
        (TERMS, None, (2, 88, None)),  # after a restart
        (TERMS, term(3, 99, 2), (3, 99, 2)),
        (TERMS, term(2, 88, 2), (2, 88, 2)),
        (TERMS, term(1, 77, 2), (2, 88, None)),  # controllers that went back: the log counts
        (TERMS, term(2, 99, 1), (2, 88, None)),  # one number assigned twice
        (TERMS, term(2, 0, 1), (2, 88, 1)),  # controllers of an older release
    ],
)
def test_the_newest_term_is_of_the_log_or_of_the_controllers(
    epochs: EpochList, taken: MasterFacts | None, known: tuple[int, int, int | None]
) -> None:
    store: Any = Log(epochs)
    assert newest_term(store, taken) == KnownTerm(*known)


@pytest.mark.parametrize(("confirm_offset", "epoch"), [(0, None), (500, 1), (501, 2)])
def test_a_master_reports_the_set_that_sends_wait_for(confirm_offset: int, epoch: int | None) -> None:
    one: Any = Log(TERMS, confirm_offset=confirm_offset, required=frozenset({3, 2}), set_epoch=9)
    facts = report_history(one, one, group_id="g", broker_id=1, accepted=term(3, 99), is_master=True)
    assert (facts.members, facts.set_epoch, facts.confirmed_epoch) == ("1;2;3", 9, epoch)
    assert (facts.group_id, facts.epoch_known, facts.term_id, facts.master_known) == ("g", 3, 99, 1)
    for is_master, taken in ((False, term(3, 99)), (True, term(3, 99, 2)), (True, term(1, 77))):
        facts = report_history(one, one, group_id="g", broker_id=1, accepted=taken, is_master=is_master)
        assert (facts.members, facts.set_epoch) == (None, None)


def test_controllers_that_know_less_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    doubt = ControllerMismatch("broker-a of C at b:1")
    known = KnownTerm(2, 88, None)
    caplog.set_level(logging.WARNING)
    doubt.compare(term(2, 88), known)
    doubt.compare(MasterFacts(None, "", 0, (), 0), known)  # no master at the moment
    assert (doubt.reason, caplog.records) == ("", [])
    for _ in range(2):
        doubt.compare(term(1, 77), known)
    for _ in range(2):
        doubt.compare(term(2, 99), known)
    for _ in range(2):
        doubt.miss_group(known, "apply for an id first")
    doubt.miss_group(KnownTerm(0, 0, None), "a new broker is unknown, rightly")
    assert [one.levelname for one in caplog.records] == ["ERROR"] * 3
    doubt.compare(term(3, 99), known)
    assert (doubt.reason, caplog.records[-1].levelname) == ("", "WARNING")
