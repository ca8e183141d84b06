"""The replicas that may be elected, and those that a send waits for (spec controller 4.8, 4.9, 10.8)."""

from __future__ import annotations

from tandemmq.replication.core.options import SetOptions
from tandemmq.replication.core.sync_state_set import PROPOSAL_RETRY_MS, SyncStateSet
from tandemmq.units import MIB


def new_set(*members: int, confirm_offset: int = 0) -> SyncStateSet:
    return SyncStateSet(
        1,
        frozenset(members),
        7,
        now_ms=0,
        confirm_offset=confirm_offset,
        options=SetOptions(lag_ms_max=15_000),
    )


def test_a_copy_joins_while_the_log_goes_on_growing() -> None:
    one = new_set(1)
    assert one.required == frozenset()
    assert one.raise_confirm(500) == 500
    one.on_connected(2, 0, 10)
    one.on_acknowledged(2, 100, 2 * MIB, 10)
    assert one.required == frozenset()  # it lags too far to be waited for
    one.on_acknowledged(2, 2 * MIB, 2 * MIB + 500, 20)
    assert one.required == {2}  # from here on every send waits for it, so it cannot miss one
    assert one.propose(2 * MIB + 600, 20) is None
    one.on_acknowledged(2, 2 * MIB + 500, 2 * MIB + 900, 30)
    assert one.propose(2 * MIB + 900, 30) == {1, 2}
    assert one.on_committed(frozenset({1, 2}), 8)
    assert (one.required, one.size) == ({2}, 2)
    assert not one.on_committed(frozenset({1, 2}), 8)


def test_replica_that_stays_behind_is_not_required() -> None:
    one = new_set(1)
    one.on_connected(2, 0, 0)
    one.on_acknowledged(2, 100, 500, 0)
    assert one.required == {2}
    assert one.propose(900, 5_001) is None
    assert one.required == frozenset()


def test_a_joining_copy_that_falls_silent_is_waited_for_no_longer_than_a_member() -> None:
    """Also if it has reached its target: a proposal may be refused because the controllers do not hear from
    it.
    """
    for held in (400, 500):
        one = SyncStateSet(1, frozenset({1}), 7, now_ms=0, confirm_offset=0, options=SetOptions())
        one.on_connected(2, 0, 0)
        one.on_acknowledged(2, held, 500, 0)
        assert one.required == {2}
        one.propose(600, 1_900)
        one.on_refused(7)
        assert one.required == {2}
        assert one.propose(600, 2_001) is None
        assert one.required == frozenset()
        one.on_acknowledged(2, 600, 600, 9_000)
        assert one.propose(600, 9_000) == {1, 2}  # it has advanced: it joins again


def test_a_joining_copy_that_is_level_while_nothing_is_sent_is_not_silent() -> None:
    one = SyncStateSet(
        1, frozenset({1}), 7, now_ms=0, confirm_offset=0, options=SetOptions(), may_join=lambda _one: False
    )
    one.on_connected(2, 500, 0)
    one.on_acknowledged(2, 500, 500, 0)
    assert one.propose(500, 4_900) is None
    assert one.propose(600, 5_000) is None
    assert one.required == {2}


def test_proposal_is_repeated_until_its_outcome_is_known() -> None:
    """A proposal with an unknown outcome counts. If it stayed open, every send would wait for a replica that
    is gone for good.
    """
    one = new_set(1, 2)
    for copy in (2, 3):
        one.on_connected(copy, 500, 0)
        one.on_acknowledged(copy, 500, 500, 0)
    assert one.propose(500, 10) == {1, 2, 3}
    one.on_closed(2)
    assert one.propose(500, 2_000) == {1, 3}  # replaces the previous proposal, whose outcome is unknown
    one.on_closed(3)
    one.on_connected(2, 500, 2_100)
    one.on_acknowledged(2, 500, 500, 2_100)
    one.on_refused(7)
    assert one.required == {2, 3}
    assert one.propose(500, 4_000) == {1, 2, 3}
    one.on_refused(7)
    assert not one.has_open_proposal
    assert one.raise_confirm(500) == 500
    assert one.propose(600, 6_000) is None
    one.on_acknowledged(2, 600, 600, 6_000)
    assert one.confirm_offset == 600


def test_a_copy_that_comes_again_beside_its_open_proposal_joins() -> None:
    one = new_set(1)
    one.on_connected(2, 500, 0)
    one.on_acknowledged(2, 500, 500, 0)
    assert one.propose(500, 10) == {1, 2}
    one.on_closed(2)
    one.on_connected(2, 500, 100)
    one.on_acknowledged(2, 500, 500, 100)
    one.on_refused(7)
    assert one.propose(500, 2_000) == {1, 2}


def test_replica_that_disconnects_while_proposed_is_removed_after_the_commit() -> None:
    one = new_set(1)
    one.on_connected(2, 500, 0)
    one.on_acknowledged(2, 500, 500, 0)
    assert one.propose(500, 10) == {1, 2}
    one.on_closed(2)
    assert one.on_committed(frozenset({1, 2}), 8)
    assert one.propose(600, 20) == {1}


def test_an_unknown_outcome_keeps_the_union() -> None:
    one = new_set(1, 2)
    one.on_connected(2, 500, 0)
    one.on_acknowledged(2, 500, 500, 0)
    one.on_closed(2)
    assert one.propose(600, 10) == {1}
    assert one.required == {2}
    assert one.size == 1
    assert one.propose(600, 10 + PROPOSAL_RETRY_MS - 1) is None
    assert one.propose(600, 10 + PROPOSAL_RETRY_MS) == {1}
    one.on_connected(3, 600, 2_000)
    one.on_acknowledged(3, 600, 600, 2_000)
    assert one.propose(600, 2_010) == {1, 3}  # the previous one may still be committed
    one.on_refused(7)
    assert one.required == {2, 3}
    assert one.has_open_proposal
    one.on_committed(frozenset({1}), 8)
    assert not one.has_open_proposal


def test_nothing_is_confirmed_that_a_proposed_member_lacks() -> None:
    """It may have been elected meanwhile, whatever is known here about the proposal."""
    one = new_set(1)
    one.on_connected(2, 100, 0)
    one.on_acknowledged(2, 100, 100, 0)
    assert one.propose(100, 10) == {1, 2}
    assert one.raise_confirm(200) == 100
    one.on_closed(2)
    assert one.raise_confirm(300) == 100


def test_nothing_is_confirmed_that_a_joining_copy_lacks() -> None:
    """It becomes a member with the bytes that it had at its proposal. If elected then, it would lack bytes
    that slaves know as confirmed, and which they must not truncate.
    """
    one = new_set(1, 2)
    one.on_connected(2, 0, 0)
    one.on_acknowledged(2, 1_000, 1_000, 0)
    one.on_connected(3, 900, 0)
    one.on_acknowledged(3, 900, 1_000, 0)
    one.on_acknowledged(2, 1_100, 1_100, 10)
    assert one.confirm_offset == 1_000
    one.on_acknowledged(3, 1_000, 1_100, 20)
    assert one.propose(1_100, 20) == {1, 2, 3}
    assert one.on_committed(frozenset({1, 2, 3}), 8)
    assert one.confirm_offset == 1_000
    one.on_acknowledged(3, 1_100, 1_100, 30)
    assert one.confirm_offset == 1_100


def test_every_proposal_without_an_answer_counts() -> None:
    """The first one may have been committed, although a later one differs."""
    one = new_set(1)
    one.on_connected(2, 100, 0)
    one.on_acknowledged(2, 100, 100, 0)
    assert one.propose(100, 10) == {1, 2}
    one.on_closed(2)
    one.on_connected(3, 100, 20)
    one.on_acknowledged(3, 100, 100, 20)
    assert one.propose(100, 2_000) == {1, 3}
    assert one.required == {2, 3}


def test_a_refusal_for_certain_ends_the_union() -> None:
    one = new_set(1)
    one.on_connected(2, 500, 0)
    one.on_acknowledged(2, 500, 500, 0)
    assert one.propose(500, 0) == {1, 2}
    one.on_closed(2)
    assert one.required == {2}
    one.on_refused(6)
    assert one.required == {2}
    one.on_refused(7)
    assert one.required == frozenset()


def test_stalled_replica_leaves_the_set_and_a_slow_one_stays() -> None:
    one = new_set(1, 2, 3)
    for slave in (2, 3):
        one.on_connected(slave, 100, 0)
    for now_ms in range(0, 20_000, 1_000):
        one.on_acknowledged(2, 100 + now_ms, 1_000_000, now_ms)
    one.on_acknowledged(3, 100, 1_000_000, 19_000)
    assert one.propose(1_000_000, 19_000) == {1, 2}


def test_members_that_never_come_back_after_an_election_leave() -> None:
    one = new_set(1, 2)
    assert one.propose(500, 5_000) is None
    assert one.propose(500, 5_001) == {1}


def test_confirmed_only_rises_and_stands_while_a_member_is_away() -> None:
    one = new_set(1, 2, confirm_offset=300)
    assert one.raise_confirm(900) == 300
    one.on_connected(2, 100, 0)
    assert one.raise_confirm(900) == 300
    one.on_acknowledged(2, 800, 900, 0)
    assert one.confirm_offset == 800
    one.on_closed(2)
    assert one.raise_confirm(1_000) == 800
    one.on_committed(frozenset({1}), 8)
    assert one.raise_confirm(1_000) == 1_000


def test_a_member_that_lost_what_it_had_confirmed_leaves_and_comes_again() -> None:
    one = new_set(1, 2, confirm_offset=900)
    one.on_connected(2, 400, 0)  # it was restarted, and its old connection had not ended yet
    assert one.propose(900, 0) == {1}
    assert one.required == {2}
    one.on_committed(frozenset({1}), 8)
    assert one.required == frozenset()
    one.on_acknowledged(2, 900, 900, 1_000)
    assert one.propose(900, 1_000) == {1, 2}


def test_a_member_that_has_got_it_all_again_need_not_leave() -> None:
    one = new_set(1, 2, confirm_offset=900)
    one.on_connected(2, 400, 0)
    one.on_acknowledged(2, 800, 900, 0)
    assert one.propose(900, 0) == {1}
    one.on_acknowledged(2, 900, 900, 10)
    assert one.propose(900, 10 + PROPOSAL_RETRY_MS) is None
    assert one.required == {2}


def shrunk_set() -> SyncStateSet:
    """Slave 2 has left: the master has continued alone, in a set of its own with epoch 8."""
    one = new_set(1, 2, confirm_offset=500)
    one.on_connected(2, 500, 0)
    one.on_acknowledged(2, 500, 500, 0)
    one.on_closed(2)
    assert one.propose(500, 0) == {1}
    assert one.on_committed(frozenset({1}), 8)
    assert one.raise_confirm(900) == 900
    return one


def test_a_set_that_goes_back_is_waited_for_and_proposed_out_again() -> None:
    """Controllers that lost the last change may elect a slave that lacks messages acknowledged since."""
    one = shrunk_set()
    assert one.is_reverted(frozenset({1, 2}), 7)
    assert one.on_committed(frozenset({1, 2}), 7)
    assert not one.is_reverted(frozenset({1, 2}), 7)  # known from here on
    assert (one.required, one.size, one.epoch) == ({2}, 1, 7)
    assert one.raise_confirm(1_000) == 900  # the worse of both sets
    assert one.propose(1_000, 1) == {1}  # against their epoch, at once
    assert one.on_committed(frozenset({1}), 8)
    assert (one.required, one.raise_confirm(1_000)) == (frozenset(), 1_000)


def test_the_set_is_told_once_more_when_a_proposal_is_refused_as_no_change() -> None:
    """The slave returns, and the controllers, which had it in their set all along, report its joining as no
    change.
    """
    one = shrunk_set()
    one.on_connected(2, 900, 10)
    one.on_acknowledged(2, 900, 900, 10)
    assert one.propose(900, 2_000) == {1, 2}
    assert one.on_committed(frozenset({1, 2}), 7)  # their answer when they are asked then
    assert one.propose(900, 2_001) == {1}  # the set that they lost, so that no outcome stays open
    assert one.required == {2}
    assert one.on_committed(frozenset({1}), 8)
    assert one.required == {2}  # it is still joining
    assert one.propose(900, 4_000) == {1, 2}
    assert one.on_committed(frozenset({1, 2}), 9)


def test_a_member_of_the_lost_set_joins_the_one_that_came_back() -> None:
    one = new_set(1, confirm_offset=500)
    one.on_connected(2, 500, 0)
    one.on_acknowledged(2, 500, 500, 0)
    assert one.propose(500, 0) == {1, 2}
    assert one.on_committed(frozenset({1, 2}), 8)
    assert one.on_committed(frozenset({1, 3}), 7)
    assert one.required == {2, 3}
    assert one.propose(500, 10) == {1, 2}
    assert one.on_committed(frozenset({1, 2}), 8)
    assert one.required == {2}


def test_an_old_answer_that_came_late_does_no_harm() -> None:
    one = shrunk_set()
    assert one.on_committed(frozenset({1, 2}), 7)
    assert one.propose(900, 1) == {1}
    assert one.on_committed(frozenset({1}), 8)  # refused because of its epoch, so they were asked
    assert (one.epoch, one.members, one.required) == (8, {1}, frozenset())
