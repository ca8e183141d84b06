"""The facts that brokers report: which of them prove a recorded state outdated, and which state
replaces it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tandemmq.controller import history
from tandemmq.controller.groups import (
    NO_FLOOR,
    ApplyId,
    Candidate,
    Command,
    CommandOutcome,
    Elect,
    Groups,
    HeartbeatTable,
    RecordFacts,
    Register,
    ReplicaGroup,
    choose_master,
    encode_command,
)
from tandemmq.controller.history import EPOCH_MAX, REFUSED_S, HistoryReports
from tandemmq.errors import BadRequest
from tandemmq.protocol.codes import ResponseCode as Code
from tandemmq.protocol.requests.controller import RegisterReplicaRequest
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest

NAME = "broker-a"
ID = "ab" * 16


def beat(
    broker_id: int, known: int = 5, *, master: int | None = None, **facts: Any
) -> BrokerHeartbeatRequest:
    """Returns a heartbeat of a broker that follows `master`, or is the master if `members` are given."""
    values: dict[str, Any] = {"group_id": ID, "term_id": 500 + known, "max_log_offset": 100, "epoch": known}
    values |= facts
    return BrokerHeartbeatRequest(
        cluster_name="C",
        broker_address=f"h{broker_id}:1",
        broker_name=NAME,
        broker_id=broker_id,
        epoch_known=known,
        master_known=broker_id if master is None else master,
        heartbeat_timeout_ms=1_000,
        **values,
    )


def recorded(**facts: Any) -> ReplicaGroup:
    groups = Groups()
    for broker_id in (1, 2, 3):
        apply(groups, ApplyId("C", NAME, broker_id, f"h{broker_id}:1;7", ID))
    group = groups.get(NAME)
    assert group is not None
    values = {"master_id": 1, "master_epoch": 3, "term_id": 503, "sync_set": (1, 2), "set_epoch": 4} | facts
    return ReplicaGroup(cluster="C", name=NAME, replicas=group.replicas, next_id=4, group_id=ID, **values)


def apply(groups: Groups, command: Command) -> CommandOutcome:
    return groups.apply(encode_command(command))


def reports_of(*beats: BrokerHeartbeatRequest) -> HistoryReports:
    reports = HistoryReports()
    for header in beats:
        reports.record(header, 0.0, is_known=True)
    return reports


MASTER = beat(2, members="2;3", set_epoch=7)
ADOPTIONS = [
    ("confirmed", (MASTER, beat(3, master=2)), (2, 5, 505, (2, 3), 8)),
    ("confirmed by a member that has restarted", (MASTER, beat(3, 4, master=1)), (2, 5, 505, (2, 3), 8)),
    ("a member is silent", (MASTER, beat(1, master=2)), None),
    ("a member knows a later epoch", (MASTER, beat(3, 6, master=1)), None),
    ("a member knows a rival", (MASTER, beat(3, master=1, term_id=9)), None),
    ("a member is of another group", (MASTER, beat(3, master=2, group_id="cd" * 16)), None),
    ("the master is alone", (beat(2, members="2", set_epoch=7),), (2, 5, 505, (2,), 8)),
    ("two masters", (beat(2, members="2"), beat(1, members="1", term_id=9)), None),
    ("no master is in office", (beat(2), beat(3, master=2)), None),
    ("no history is known", (beat(1, 0, members="1"),), None),
]


@pytest.mark.parametrize(("what", "beats", "wanted"), ADOPTIONS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("is_unknown", [True, False])
def test_a_state_is_adopted_when_every_member_of_the_set_confirms_it(
    what: str, beats: tuple[BrokerHeartbeatRequest, ...], wanted: Any, is_unknown: bool
) -> None:
    group = None if is_unknown else recorded()
    command = reports_of(*beats).find_adoption(NAME, group, 0.5)
    if wanted is None:
        assert command is None
        return
    assert command is not None
    found = command.master_id, command.master_epoch, command.term_id, command.sync_set, command.set_epoch
    assert found == wanted
    assert command.group_id == ID
    assert (command.master_epoch_before, command.set_epoch_before) == ((0, 0) if is_unknown else (3, 4))


def test_a_report_of_a_silent_broker_still_proves_its_epoch() -> None:
    reports = reports_of(beat(3, 9, master=3))
    reports.record(beat(2, members="2"), 5.0, is_known=True)
    assert reports.find_adoption(NAME, recorded(), 5.0) is None, "broker 3 knew a later epoch"
    assert reports.highest_epoch(NAME) == 9
    newer = reports.newer_than(recorded())
    assert newer is not None
    assert newer.broker_id == 3


@pytest.mark.parametrize(
    ("what", "header", "is_newer", "is_rival"),
    [
        ("the same", beat(1, 3, members="1;2", set_epoch=4), False, False),
        ("an older set", beat(1, 3, members="1;2", set_epoch=3), False, False),
        ("a later set of the recorded master", beat(1, 3, members="1", set_epoch=5), True, False),
        ("a later epoch", beat(3, 4, master=2), True, False),
        ("another id of the epoch", beat(3, 3, master=2, term_id=9), False, True),
        ("an unknown id of the epoch", beat(3, 3, master=1, term_id=None), False, False),
        ("a later epoch of another group", beat(3, 9, master=2, group_id="cd" * 16), False, False),
        ("no history", beat(3, 0), False, False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_reports_prove_a_recorded_state_outdated_or_a_rival(
    what: str, header: BrokerHeartbeatRequest, is_newer: bool, is_rival: bool
) -> None:
    reports = reports_of(header)
    assert (reports.newer_than(recorded()) is not None) is is_newer
    assert (reports.rival_of(recorded()) is not None) is is_rival
    if header.epoch_known == 3:
        # An epoch without a master never belonged to a broker.
        assert reports.newer_than(recorded(master_id=None, term_id=0)) is not None


def test_a_rival_is_adopted_only_when_nobody_confirms_the_record() -> None:
    rival = beat(2, 3, members="2", set_epoch=5, term_id=9)
    assert reports_of(rival, beat(1, 3)).find_adoption(NAME, recorded(), 0.5) is None
    assert reports_of(rival, beat(3, 3, master=1)).find_adoption(NAME, recorded(), 0.5) is None
    command = reports_of(rival).find_adoption(NAME, recorded(), 0.5)
    assert command is not None
    assert (command.master_id, command.master_epoch, command.term_id) == (2, 3, 9)


def test_without_a_master_the_longest_log_of_all_known_brokers_is_the_only_member() -> None:
    logs = [
        beat(1, 4, master=4, max_log_offset=900, epoch=3),
        beat(2, 4, master=4, max_log_offset=100, epoch=4),
        beat(3, 4, master=4, max_log_offset=300, epoch=4),
    ]
    reports = reports_of(*logs)
    assert reports.find_adoption(NAME, recorded(), 0.5) is None, "broker 4 was master and is not heard"
    reports.record(beat(4, 4, max_log_offset=250, epoch=4), 0.5, is_known=False)
    command = reports.find_adoption(NAME, recorded(), 0.5)
    assert command is not None
    assert (command.master_id, command.sync_set, command.master_epoch, command.term_id) == (None, (3,), 5, 0)
    assert reports.find_adoption(NAME, None, 0.5) is None, "nobody knows the brokers of an unknown group"
    groups = Groups()
    adopted = apply(groups, msgspec.structs.replace(command, master_epoch_before=0, set_epoch_before=0)).group
    assert adopted is not None
    assert reports.newer_than(adopted) is None, "no broker reports more than was adopted from all of them"
    assert reports.find_adoption(NAME, adopted, 0.5) is None


def test_an_adopted_state_replaces_the_recorded_one_and_nothing_falls() -> None:
    groups = Groups()
    for broker_id in (1, 2, 3):
        apply(groups, ApplyId("C", NAME, broker_id, f"h{broker_id}:1;7", ID))
    apply(groups, Elect(name=NAME, caller=1, is_designated=True, term_id=501))
    before = groups.get(NAME)
    assert before is not None
    command = reports_of(MASTER, beat(3, master=2)).find_adoption(NAME, before, 0.5)
    assert command is not None
    outcome = apply(groups, command)
    assert outcome.code == 0
    after = outcome.group
    assert after is not None
    assert (after.master_id, after.master_epoch, after.term_id, after.sync_set) == (2, 5, 505, (2, 3))
    assert after.replicas[2].check_code == "h2:1;7"
    assert 1 in after.replicas
    assert apply(groups, command).code == Code.CONTROLLER_FENCED_MASTER_EPOCH, "the group has changed since"
    twin = Groups()
    twin.restore(groups.take_snapshot())
    assert twin.get(NAME) == after
    # A broker that got its id from the lost state need not apply; one that was removed must.
    returning = Register("C", NAME, 9, "h9:1", ID)
    assert apply(groups, returning).code == 0
    stranger = Register("C", NAME, 10, "h10:1")
    assert apply(groups, stranger).code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    foreign = apply(groups, Register("C", NAME, 2, "h2:1", "cd" * 16))
    assert foreign.code == Code.CONTROLLER_INVALID_REQUEST
    assert ID in foreign.remark
    assert "cd" * 16 in foreign.remark


def test_a_new_epoch_is_above_every_reported_one() -> None:
    groups = Groups()
    apply(groups, ApplyId("C", NAME, 1, "h1:1;7", ID))
    outcome = apply(groups, Elect(name=NAME, caller=1, is_designated=True, epoch_known=7, term_id=3))
    assert outcome.group is not None
    assert (outcome.group.master_epoch, outcome.group.term_id) == (8, 3)
    outcome = apply(groups, Elect(name=NAME, epoch_known=11))
    assert outcome.group is not None
    assert (outcome.group.master_id, outcome.group.master_epoch, outcome.group.term_id) == (None, 12, 0)


def made_with_floor() -> Groups:
    groups = Groups()
    for broker_id in (1, 2):
        apply(groups, ApplyId("C", NAME, broker_id, f"h{broker_id}:1;7", ID))
    apply(groups, Elect(name=NAME, caller=1, is_designated=True, floor=NO_FLOOR))
    group = groups.get(NAME)
    assert group is not None
    twin = Groups()
    snapshot = groups.take_snapshot().replace(b'"sync_set":[1]', b'"sync_set":[1,2]')
    twin.restore(snapshot)
    apply(twin, RecordFacts(name=NAME, floor=(1, 500)))
    return twin


@pytest.mark.parametrize(
    ("what", "command", "master", "floor"),
    [
        (
            "the restored one came first",
            Elect(
                name=NAME,
                caller=1,
                is_restart=True,
                floor=NO_FLOOR,
                live=(Candidate(1, 1, 300, is_ours=True),),
            ),
            None,
            (1, 500),
        ),
        (
            "the restored one is heard, the other member is not",
            Elect(
                name=NAME, all_have_reported=True, floor=NO_FLOOR, live=(Candidate(1, 1, 300, is_ours=True),)
            ),
            None,
            (1, 500),
        ),
        (
            "the other member holds everything, though it was killed",
            Elect(
                name=NAME,
                all_have_reported=True,
                floor=NO_FLOOR,
                live=(
                    Candidate(1, 1, 300, is_ours=True),
                    Candidate(2, 1, 600, is_ours=True, is_incomplete=True),
                ),
            ),
            2,
            (1, 500),
        ),
        (
            "all have told, and none holds it",
            Elect(
                name=NAME,
                all_have_reported=True,
                floor=(1, 700),
                live=(Candidate(1, 1, 300, is_ours=True), Candidate(2, 1, 600, is_ours=True)),
            ),
            2,
            (1, 600),
        ),
        (
            "the offset that the leader has heard is higher",
            Elect(name=NAME, floor=(1, 700), live=(Candidate(2, 1, 600, is_ours=True),)),
            None,
            (1, 500),
        ),
        (
            "a log of a later epoch is above it",
            Elect(name=NAME, floor=NO_FLOOR, live=(Candidate(2, 2, 400, is_ours=True),)),
            2,
            (1, 500),
        ),
        (
            "a voter of yesterday does not judge it",
            Elect(name=NAME, live=(Candidate(2, 1, 300, is_ours=True),)),
            2,
            (1, 500),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_broker_below_the_confirmed_offset_is_not_elected_while_a_member_has_not_reported(
    what: str, command: Elect, master: int | None, floor: tuple[int, int]
) -> None:
    groups = made_with_floor()
    if not command.is_restart:
        apply(groups, Elect(name=NAME, floor=NO_FLOOR))  # the master is lost
    apply(groups, command)
    group = groups.get(NAME)
    assert group is not None
    assert (group.master_id, group.floor) == (master, floor)
    assert group.floor_since == (3 if floor == (1, 600) else 0)


def test_a_member_that_followed_the_master_is_whole_though_its_last_report_is_older_than_the_floor() -> None:
    groups = made_with_floor()
    apply(groups, Elect(name=NAME, floor=NO_FLOOR))  # the master is gone
    late = Candidate(2, 1, 400, is_ours=True, holds_confirmed=True)
    elected = apply(groups, Elect(name=NAME, floor=(1, 900), live=(late,))).group
    assert elected is not None
    assert (elected.master_id, elected.floor) == (2, (1, 900))


def test_a_member_that_an_election_left_out_is_waited_for_until_its_winner_confirms_something() -> None:
    groups = made_with_floor()
    elected = apply(groups, Elect(name=NAME, floor=NO_FLOOR, live=(Candidate(2, 1, 600, is_ours=True),)))
    assert elected.group is not None
    assert (elected.group.master_id, elected.group.sync_set, elected.group.former_members) == (2, (2,), (1,))
    restored = Candidate(2, 1, 300, is_ours=True)
    restart = Elect(name=NAME, caller=2, is_restart=True, floor=NO_FLOOR, live=(restored,))
    assert apply(groups, restart).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    asked = Elect(name=NAME, caller=2, all_have_reported=True, floor=NO_FLOOR, live=(restored,))
    assert apply(groups, asked).code == Code.CONTROLLER_ELECT_MASTER_FAILED, "broker 1 has not told its log"
    both = msgspec.structs.replace(asked, live=(restored, Candidate(1, 1, 700, is_ours=True)))
    back = apply(groups, both).group
    assert back is not None
    assert back.master_id == 1


def test_left_out_members_are_not_awaited_once_the_winner_has_confirmed() -> None:
    groups = made_with_floor()
    apply(groups, Elect(name=NAME, floor=NO_FLOOR, live=(Candidate(2, 1, 600, is_ours=True),)))
    apply(groups, RecordFacts(name=NAME, floor=(2, 900)))
    lost = Candidate(2, 2, 800, is_ours=True, is_incomplete=True)
    apply(groups, Elect(name=NAME, floor=NO_FLOOR))
    alone = apply(
        groups, Elect(name=NAME, caller=2, all_have_reported=True, floor=NO_FLOOR, live=(lost,))
    ).group
    assert alone is not None
    assert (alone.master_id, alone.former_members) == (2, ())


def started(broker_id: int, log_epoch: int, log_end: int) -> RegisterReplicaRequest:
    return RegisterReplicaRequest(
        cluster_name="C",
        broker_address=f"h{broker_id}:1",
        broker_name=NAME,
        broker_id=broker_id,
        group_id=ID,
        epoch=log_epoch,
        max_log_offset=log_end,
    )


def chosen(heartbeats: HeartbeatTable, group: ReplicaGroup, **reason: Any) -> int | None:
    facts = heartbeats.candidates_for(group, 0.5)
    return choose_master(
        group, Elect(name=NAME, live=facts, all_have_reported=True, floor=(2, 100), **reason)
    )


@pytest.mark.parametrize("broker_id", [1, 2])
def test_broker_started_without_the_last_term_is_elected_only_if_no_member_may_have_it(
    broker_id: int,
) -> None:
    """The master (1) and the other member (2) died before a heartbeat reported what term 3 confirmed, and the
    disk of one of them is of the time before that term.
    """
    group, heartbeats, other_id = recorded(floor=(2, 100)), HeartbeatTable(), 3 - broker_id
    for one in (1, 2):
        heartbeats.record(beat(one, 2, master=1), object(), 0.0, is_ours=True, floor=(2, 100), term=2)
    heartbeats.record_start(started(broker_id, 2, 100), 0.1, term=group.last_term)
    heartbeats.mark_gone(NAME, other_id)
    restart = {"caller": 1, "is_restart": True} if broker_id == 1 else {}
    assert chosen(heartbeats, group, **restart) is None
    # The wait outlives the record of the master, and later heartbeats of the same run.
    groups = Groups()
    groups.restore(twin_of(group))
    waiting = apply(groups, Elect(name=NAME)).group
    assert waiting is not None
    assert (waiting.master_id, waiting.master_epoch, waiting.last_term) == (None, 4, 3)
    again = beat(broker_id, 2, master=1)
    heartbeats.record(again, object(), 0.2, is_ours=True, floor=None, term=waiting.last_term)
    assert chosen(heartbeats, waiting) is None
    # Neither does a change of the record in the meantime end it.
    assert apply(groups, ApplyId("C", NAME, 4, "h4:1;7", ID)).code == 0
    waiting = groups.get(NAME)
    assert waiting is not None
    assert waiting.last_term == 3
    heartbeats.record_start(started(other_id, 3, 200), 0.3, term=waiting.last_term)
    assert chosen(heartbeats, waiting) == other_id


@pytest.mark.parametrize("is_incomplete", [False, True])
def test_a_broker_is_a_candidate_as_it_reports_itself(is_incomplete: bool) -> None:
    """A broker that has restarted keeps the priority of its last heartbeat."""
    group, heartbeats = recorded(), HeartbeatTable()
    heard = beat(3, 3, master=1, election_priority=5, is_incomplete=is_incomplete)
    silent = beat(1, 3, master=1, epoch=None, max_log_offset=None, is_incomplete=is_incomplete)
    for header in (heard, silent):
        heartbeats.record(header, object(), 0.0, is_ours=header is heard, floor=None, term=3)
    default = Candidate(1).priority
    assert heartbeats.candidates_for(group, 0.5) == (
        Candidate(1, -1, -1, default, is_incomplete=is_incomplete),
        Candidate(3, 3, 100, 5, is_ours=True, is_incomplete=is_incomplete),
    )
    again = msgspec.structs.replace(started(3, 2, 90), is_incomplete=not is_incomplete)
    heartbeats.record_start(again, 0.6)
    assert heartbeats.candidates_for(group, 0.7)[1] == Candidate(
        3, 2, 90, 5, is_ours=True, is_incomplete=not is_incomplete
    )


def test_a_broker_that_is_heard_over_another_connection_may_have_restarted() -> None:
    group, heartbeats = recorded(floor=(2, 100)), HeartbeatTable()
    heartbeats.record(beat(2, 2, master=1), object(), 0.0, is_ours=True, floor=(2, 100), term=2)
    heartbeats.record(beat(2, 2, master=1), object(), 0.1, is_ours=True, floor=None, term=group.last_term)
    assert chosen(heartbeats, group) is None


def test_term_that_no_member_has_delays_no_election() -> None:
    group, heartbeats = recorded(floor=(2, 100)), HeartbeatTable()
    for one in (1, 2):
        heartbeats.record_start(started(one, 2, 100), 0.1, term=group.last_term)
    assert chosen(heartbeats, group, caller=1, is_restart=True) == 2, (
        "the elected master never began its term"
    )
    alone, heartbeats = recorded(floor=(2, 100), sync_set=(1,), former_members=(2,)), HeartbeatTable()
    heartbeats.record_start(started(1, 2, 100), 0.1, term=alone.last_term)
    assert chosen(heartbeats, alone, caller=1, is_restart=True) == 1, "only its own disk had the term"


def test_a_member_that_runs_since_before_the_term_needs_not_know_it() -> None:
    group, heartbeats, connection = recorded(floor=(2, 100)), HeartbeatTable(), object()
    heartbeats.record(beat(2, 2, master=1), connection, 0.0, is_ours=True, floor=(2, 100), term=2)
    heartbeats.record(beat(2, 3, master=1, epoch=2), connection, 0.1, is_ours=True, floor=(2, 100), term=3)
    assert chosen(heartbeats, group) == 2, "the master died before this member met it: nothing was confirmed"


def test_an_older_disk_is_not_whole_by_a_floor_that_is_older_than_the_term() -> None:
    group, heartbeats, connection = recorded(floor=(2, 100)), HeartbeatTable(), object()
    heartbeats.record_start(started(2, 2, 100), 0.0, term=group.last_term)
    heartbeats.record(beat(2, 3, master=1, epoch=2), connection, 0.1, is_ours=True, floor=(2, 100), term=3)
    # It has met the master, so its list has the term; the bytes are still to come.
    heartbeats.record(beat(2, 3, master=1, epoch=3), connection, 0.2, is_ours=True, floor=(3, 400), term=3)
    assert not heartbeats.candidates_for(group, 0.3)[0].holds_confirmed
    heartbeats.mark_in_sync(NAME, (2,))
    assert heartbeats.candidates_for(group, 0.3)[0].holds_confirmed
    assert not heartbeats.candidates_for(group, 0.3)[0].is_incomplete


def twin_of(group: ReplicaGroup) -> bytes:
    return b'{"groups":[' + msgspec.json.encode(group) + b"]}"


def test_the_floor_is_the_highest_of_the_masters_and_void_before_an_unclean_term() -> None:
    reports = reports_of(
        beat(1, 3, members="1;2", confirmed_offset=90, confirmed_epoch=3),
        beat(2, 3, master=1, confirmed_offset=400, confirmed_epoch=3),  # not reported by a master
        beat(1, 3, members="1;2", confirmed_offset=80, confirmed_epoch=3),
    )
    assert reports.floor_of(recorded()) == (3, 90)
    reports.record(beat(2, 4, members="2", confirmed_offset=40, confirmed_epoch=2), 0.0, is_known=True)
    assert reports.floor_of(recorded()) == (3, 90)
    assert reports.floor_of(recorded(floor_since=4)) == (2, 40)


def test_a_broker_that_has_just_started_tells_what_was_confirmed() -> None:
    started = RegisterReplicaRequest(
        cluster_name="C",
        broker_address="h2:1",
        broker_name=NAME,
        broker_id=2,
        epoch_known=3,
        group_id=ID,
        term_id=503,
        epoch=3,
        max_log_offset=500,
        confirmed_offset=400,
        confirmed_epoch=2,
    )
    reports = reports_of(beat(1, 3, members="1;2", confirmed_offset=90, confirmed_epoch=2))
    reports.record(started, 0.0, is_known=True)
    assert reports.floor_of(recorded()) == (2, 400)
    assert reports.floor_of(recorded(floor_since=3)) == (2, 90), "an unclean term was without it"


def test_reports_are_bounded_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "REPORTS_MAX", 2)
    reports = reports_of(beat(1))
    reports.record(beat(2), 0.0, is_known=False)
    reports.record(beat(3, 9), 0.5, is_known=False)
    assert reports.highest_epoch(NAME) == 5, "there is no room for one more that nobody knows"
    reports.record(beat(3, 9), 2.0, is_known=False)
    assert reports.highest_epoch(NAME) == 9, "the silent ones have made room"
    with pytest.raises(BadRequest, match="above"):
        reports.record(beat(1, EPOCH_MAX + 1), 0.0, is_known=True)
    with pytest.raises(BadRequest, match="joined by"):
        reports.record(beat(1, members="1,2"), 0.0, is_known=True)
    reports.forget(NAME, (3,))
    assert reports.highest_epoch(NAME) == 0


def test_a_registration_is_a_report() -> None:
    reports = HistoryReports()
    header = RegisterReplicaRequest(
        cluster_name="C", broker_name=NAME, broker_id=1, broker_address="h1:1", epoch_known=4, group_id=ID
    )
    reports.record(header, 0.0, is_known=False)
    assert reports.report_history(NAME, 1.0)
    assert not reports.report_history(NAME, 9.0)
    assert reports.have_arrived(NAME, (1,), 1.0)
    assert not reports.have_arrived(NAME, (1, 2), 1.0)


def test_snapshots_of_yesterday_are_read() -> None:
    groups = Groups()
    groups.restore(
        b'{"groups":[{"cluster":"C","name":"broker-a","replicas":{"1":{"address":"h1:1","check_code":"h1:1;7"}},'
        b'"next_id":2,"master_id":1,"master_epoch":4,"sync_set":[1],"set_epoch":6}]}'
    )
    group = groups.get(NAME)
    assert group is not None
    assert (group.master_epoch, group.group_id, group.term_id, group.floor) == (4, "", 0, NO_FLOOR)
    apply(groups, RecordFacts(name=NAME, group_id=ID))
    apply(groups, RecordFacts(name=NAME, group_id="cd" * 16, floor=(4, 9)))
    group = groups.get(NAME)
    assert group is not None
    assert (group.group_id, group.floor) == (ID, (4, 9)), "a group keeps its id"


def test_refused_broker_is_listed_for_a_limited_time() -> None:
    reports = HistoryReports()
    reports.record_refusal(NAME, 1, "another group", 10.0)
    reports.record_refusal("other", 1, "another broker", 10.0)
    assert reports.refusals(NAME, 10.0 + REFUSED_S - 0.1) == ["another group"]
    assert reports.refusals(NAME, 10.0 + REFUSED_S) == []
