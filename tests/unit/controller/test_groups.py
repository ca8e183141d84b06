"""The rules of groups: which broker is elected, which sets are accepted, what is cleaned; every code once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.controller.groups import (
    BROKERS_PER_GROUP_MAX,
    AlterSet,
    ApplyId,
    Candidate,
    Clean,
    Command,
    CommandOutcome,
    Elect,
    Groups,
    Register,
    ReplicaGroup,
    encode_command,
)
from tandemmq.protocol.codes import ResponseCode as Code

NAME = "broker-a"


def run(groups: Groups, command: Command) -> CommandOutcome:
    return groups.apply(encode_command(command))


def apply_id(broker_id: int, check: str = "", cluster: str = "C") -> ApplyId:
    return ApplyId(cluster, NAME, broker_id, check or f"h{broker_id}:1;7")


def made(*ids: int, master: int | None = None, members: tuple[int, ...] = ()) -> Groups:
    """Returns a group with these brokers; with a master it is at epoch 1."""
    groups = Groups()
    for broker_id in ids:
        assert run(groups, apply_id(broker_id)).code == 0
    if master is not None:
        assert run(groups, Elect(name=NAME, caller=master, is_designated=True)).code == 0
        if members and members != (master,):
            assert run(groups, alter(master, 1, 1, *members, alive=members)).code == 0
    return groups


def alter(master: int, epoch: int, set_epoch: int, *wanted: int, alive: tuple[int, ...] = ()) -> AlterSet:
    return AlterSet(NAME, master, epoch, set_epoch, wanted, alive)


def present(groups: Groups) -> ReplicaGroup:
    group = groups.get(NAME)
    assert group is not None
    return group


def test_ids() -> None:
    groups = Groups()
    assert run(groups, apply_id(2)).code == Code.CONTROLLER_BROKER_ID_INVALID
    assert run(groups, apply_id(1)).code == 0
    assert run(groups, apply_id(1)).code == 0, "the same broker asks again"
    assert run(groups, apply_id(1, "h9:1;8")).code == Code.CONTROLLER_BROKER_ID_INVALID
    assert run(groups, apply_id(2, cluster="D")).code == Code.CONTROLLER_BROKER_ID_INVALID
    assert run(groups, apply_id(0)).code == Code.CONTROLLER_BROKER_ID_INVALID
    assert run(groups, apply_id(5)).code == 0
    assert present(groups).next_id == 6
    assert run(groups, apply_id(3)).code == 0
    assert present(groups).next_id == 6, "above the largest id that was ever given"
    assert run(groups, Clean("C", NAME, (5,), False, ())).code == 0
    assert present(groups).next_id == 6, "a cleaned id is not proposed again"
    assert present(groups).replicas[1].address == "h1:1"
    assert run(groups, apply_id(2, "x" * 300)).code == Code.SYSTEM_ERROR


def test_brokers_are_bounded() -> None:
    groups = made(*range(1, BROKERS_PER_GROUP_MAX + 1))
    assert run(groups, apply_id(BROKERS_PER_GROUP_MAX + 1)).code == Code.SYSTEM_ERROR


def test_registration_records_the_address() -> None:
    groups = made(1)
    needed = Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert run(groups, Register("C", "other", 1, "h1:2")).code == needed
    assert run(groups, Register("C", NAME, 2, "h1:2")).code == needed
    assert run(groups, Register("D", NAME, 1, "h1:2")).code == needed
    assert run(groups, Register("C", NAME, 1, "h1:2")).code == 0
    assert present(groups).replicas[1].address == "h1:2"


SET_CASES = [
    (alter(1, 1, 2, 1, 2), Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),  # unchanged
    (alter(2, 1, 2, 1), Code.CONTROLLER_INVALID_MASTER),
    (alter(1, 2, 2, 1), Code.CONTROLLER_FENCED_MASTER_EPOCH),
    (alter(1, 1, 1, 1), Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
    (alter(1, 1, 2, 1, 2, 9, alive=(1, 2, 9)), Code.CONTROLLER_INVALID_REPLICAS),
    (alter(1, 1, 2, 1, 2, 3, alive=(1, 2)), Code.CONTROLLER_BROKER_NOT_ALIVE),
    (alter(1, 1, 2, 2, alive=(2,)), Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),  # without the master
    (alter(1, 1, 2, 1), 0),  # members that stay or leave need not be alive
    (alter(1, 1, 2, 3, 1, alive=(3,)), 0),
]


@pytest.mark.parametrize(("command", "code"), SET_CASES)
def test_sets(command: AlterSet, code: int) -> None:
    groups = made(1, 2, 3, master=1, members=(1, 2))
    before = present(groups)
    outcome = run(groups, command)
    assert outcome.code == code
    if code:
        assert present(groups) == before
    else:
        assert (present(groups).sync_set, present(groups).set_epoch) == (tuple(sorted(command.wanted)), 3)


def live(*rows: tuple[int, int, int], is_ours: bool = False, priority: int = 9) -> tuple[Candidate, ...]:
    return tuple(Candidate(broker_id, epoch, end, priority, is_ours) for broker_id, epoch, end in rows)


ELECTIONS = [
    ("the master lives", Elect(name=NAME, caller=2, live=live((1, 1, 5), (2, 1, 9))), 2011, 1),
    ("best of the set", Elect(name=NAME, live=live((2, 1, 5), (3, 1, 7), (4, 9, 99))), 0, 3),
    ("newer epoch first", Elect(name=NAME, live=live((2, 2, 5), (3, 1, 7))), 0, 2),
    ("smaller id last", Elect(name=NAME, live=live((3, 1, 7), (2, 1, 7))), 0, 2),
    ("nobody of the set, noticed", Elect(name=NAME, live=live((4, 1, 9))), 2004, None),
    ("nobody of the set, asked", Elect(name=NAME, caller=4, live=live((4, 1, 9))), 2012, 1),
    ("unclean", Elect(name=NAME, is_unclean_allowed=True, live=live((4, 1, 9))), 0, 4),
    (
        "unclean is not needed",
        Elect(name=NAME, is_unclean_allowed=True, live=live((2, 1, 1), (4, 9, 9))),
        0,
        2,
    ),
    ("wanted", Elect(name=NAME, caller=3, is_designated=True, live=live((1, 1, 9), (3, 1, 1))), 0, 3),
    ("wanted, not in the set", Elect(name=NAME, caller=4, is_designated=True, live=live((4, 1, 1))), 2012, 1),
    ("wanted is master", Elect(name=NAME, caller=1, is_designated=True, live=live((1, 1, 1))), 2011, 1),
    ("unknown", Elect(name=NAME, caller=7), 2010, 1),
    ("decided meanwhile", Elect(name=NAME, master_epoch=0, live=live((2, 1, 5))), 2000, 1),
    (
        "restart, others first",
        Elect(name=NAME, caller=1, is_restart=True, live=live((1, 1, 9), (2, 1, 1))),
        0,
        2,
    ),
    ("passed over", Elect(name=NAME, is_passed_over=True, live=live((1, 1, 9), (3, 1, 1))), 0, 3),
    ("passed over, alone", Elect(name=NAME, is_passed_over=True, live=live((1, 1, 9), (4, 1, 9))), 2011, 1),
    ("restart, alone", Elect(name=NAME, caller=1, is_restart=True, live=live((4, 1, 9))), 0, 1),
]


@pytest.mark.parametrize(("what", "command", "code", "master"), ELECTIONS, ids=lambda value: str(value)[:30])
def test_elections(what: str, command: Elect, code: int, master: int | None) -> None:
    groups = made(1, 2, 3, 4, master=1, members=(1, 2, 3))
    before = present(groups)
    outcome = run(groups, command)
    after = present(groups)
    assert (outcome.code, after.master_id) == (code, master), what
    if code == 0:
        assert (after.master_epoch, after.set_epoch) == (2, 3)
        assert after.sync_set == (master,)
    elif code == Code.CONTROLLER_MASTER_NOT_AVAILABLE:
        assert (after.master_epoch, after.sync_set) == (2, (1, 2, 3))
    else:
        assert after == before


def test_the_first_election_takes_the_longest_log() -> None:
    groups = made(1, 2)
    outcome = run(groups, Elect(name=NAME, caller=1, live=live((1, -1, 0), (2, 3, 500))))
    assert outcome.group is not None
    assert (outcome.group.master_id, outcome.group.master_epoch, outcome.group.sync_set) == (2, 1, (2,))


def test_a_master_of_ours_inherits_the_members_that_are_ours_and_live() -> None:
    groups = made(1, 2, 3, 4, master=1, members=(1, 2, 3, 4))
    heard = live((2, 1, 5), (3, 1, 4), is_ours=True) + live((4, 1, 1))
    run(groups, Elect(name=NAME, live=heard))
    assert (present(groups).master_id, present(groups).sync_set) == (2, (2, 3))


@pytest.mark.parametrize(
    ("what", "live", "all_have_reported", "master"),
    [
        ("another member is whole", (Candidate(1, 1, 90, is_incomplete=True), Candidate(2, 1, 80)), True, 2),
        ("the whole one is away", (Candidate(1, 1, 90, is_ours=True, is_incomplete=True),), True, None),
        (
            "all are heard, and all may have lost something",
            (
                Candidate(1, 1, 90, is_ours=True, is_incomplete=True),
                Candidate(2, 1, 95, is_ours=True, is_incomplete=True),
            ),
            True,
            2,
        ),
        (
            "somebody outside has more",
            (
                Candidate(1, 1, 90, is_ours=True, is_incomplete=True),
                Candidate(2, 1, 95, is_ours=True, is_incomplete=True),
                Candidate(3, 1, 99, is_ours=True),
            ),
            True,
            3,
        ),
        (
            "somebody else may still be heard",
            (
                Candidate(1, 1, 90, is_ours=True, is_incomplete=True),
                Candidate(2, 1, 95, is_ours=True, is_incomplete=True),
            ),
            False,
            None,
        ),
    ],
)
def test_incomplete_broker_is_elected_only_if_no_complete_one_may_exist(
    what: str, live: tuple[Candidate, ...], all_have_reported: bool, master: int | None
) -> None:
    groups = made(1, 2, 3, master=1, members=(1, 2))
    # The master has come back from a power cut: it is not elected at once.
    run(
        groups,
        Elect(name=NAME, caller=1, is_restart=True, live=(Candidate(1, is_ours=True, is_incomplete=True),)),
    )
    assert present(groups).master_id is None
    run(groups, Elect(name=NAME, live=live, all_have_reported=all_have_reported))
    group = present(groups)
    assert group.master_id == master, what
    if master is not None:
        assert group.sync_set == (master,)
    else:
        assert group.sync_set == (1, 2)


def test_logs_are_compared_when_all_members_have_told_theirs() -> None:
    groups = made(1, 2, master=1, members=(1,))
    returned, shorter = Candidate(1, is_ours=True, is_incomplete=True), Candidate(2, 1, 80, is_ours=True)
    restart = Elect(name=NAME, caller=1, is_restart=True, all_have_reported=True, live=(returned, shorter))
    assert run(groups, restart).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    run(groups, Elect(name=NAME, all_have_reported=True, live=(returned, shorter)))
    assert present(groups).master_id is None
    told = Candidate(1, 1, 90, is_ours=True, is_incomplete=True)
    run(groups, Elect(name=NAME, all_have_reported=True, live=(told, shorter)))
    assert (present(groups).master_id, present(groups).sync_set) == (1, (1,))


def test_the_only_broker_of_a_group_leads_whatever_it_has_lost() -> None:
    groups = made(1, master=1)
    lost = Candidate(1, is_ours=True, is_incomplete=True)
    assert run(groups, Elect(name=NAME, caller=1, is_restart=True, live=(lost,))).code == 0
    assert present(groups).master_id == 1


def test_cleaning() -> None:
    refused = Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    groups = made(1, 2, 3, master=1, members=(1, 2))
    assert run(groups, Clean("C", "other", (), True, ())).code == refused
    assert run(groups, Clean("D", NAME, (), True, ())).code == refused
    assert run(groups, Clean("C", NAME, (), False, ())).code == refused
    assert run(groups, Clean("C", NAME, (2,), False, (2,))).code == refused
    assert run(groups, Clean("C", NAME, (9,), True, ())).code == refused
    assert run(groups, Clean("C", NAME, (2,), True, (1, 2))).code == 0
    assert (present(groups).sync_set, present(groups).set_epoch) == ((1,), 3)
    assert run(groups, Clean("", NAME, (1,), True, ())).code == 0
    assert present(groups).master_id is None
    assert (present(groups).master_epoch, present(groups).sync_set) == (2, ())
    assert list(present(groups).replicas) == [3]
    assert run(groups, Clean("C", NAME, (3,), False, ())).code == 0
    assert groups.get(NAME) is None


IDS = st.integers(1, 4)
LIVES = st.lists(
    st.builds(Candidate, IDS, st.integers(-1, 3), st.integers(-1, 9), st.integers(0, 2), st.booleans()),
    max_size=4,
).map(tuple)
COMMANDS = st.one_of(
    st.builds(ApplyId, st.just("C"), st.just(NAME), IDS, st.sampled_from(["a:1;1", "b:1;1"])),
    st.builds(Register, st.just("C"), st.just(NAME), IDS, st.sampled_from(["a:1", "b:1"])),
    st.builds(
        AlterSet,
        st.just(NAME),
        IDS,
        st.integers(0, 4),
        st.integers(0, 4),
        st.lists(IDS, max_size=3).map(tuple),
        st.just((1, 2, 3, 4)),
    ),
    st.builds(
        Elect,
        name=st.just(NAME),
        caller=st.integers(-1, 4).filter(bool),
        is_designated=st.booleans(),
        is_unclean_allowed=st.booleans(),
        live=LIVES,
    ),
    st.builds(
        Clean, st.just("C"), st.just(NAME), st.lists(IDS, max_size=1).map(tuple), st.booleans(), st.just(())
    ),
)


@settings(max_examples=80)
@given(st.lists(COMMANDS, max_size=40))
def test_invariants_hold_and_snapshots_keep_everything(commands: list[Command]) -> None:
    groups, twin = Groups(), Groups()
    before: ReplicaGroup | None = None
    for command in commands:
        outcome = run(groups, command)
        assert outcome == run(twin, command)
        after = groups.get(NAME)
        if after is not None:
            assert after.next_id > max(after.replicas)
            assert set(after.sync_set) <= set(after.replicas)
            if after.master_id is not None:
                assert after.master_id in after.sync_set
                assert after.master_epoch > 0
        if before is not None and after is not None:
            assert after.master_epoch >= before.master_epoch
            assert after.set_epoch >= before.set_epoch
            assert after.next_id >= before.next_id
            if after.master_id not in (None, before.master_id):
                assert after.master_epoch == before.master_epoch + 1
                assert isinstance(command, Elect)
                if not command.is_unclean_allowed and before.master_epoch:
                    assert after.master_id in before.sync_set
            if outcome.code not in (0, Code.CONTROLLER_MASTER_NOT_AVAILABLE):
                assert after == before
        before = after
        twin = Groups()
        twin.restore(groups.take_snapshot())
        assert twin.take_snapshot() == groups.take_snapshot()
