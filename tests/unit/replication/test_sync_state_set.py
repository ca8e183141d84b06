"""Which copies may be elected, and what a send waits for meanwhile (spec controller 4.8, 4.9, 10.8)."""

from __future__ import annotations

from tandemmq.replication.core.sync_state_set import PROPOSAL_RETRY_MS, SyncStateSet
from tandemmq.units import MIB


def new_set(*members: int, confirm_offset: int = 0) -> SyncStateSet:
    return SyncStateSet(1, frozenset(members), 7, now_ms=0, confirm_offset=confirm_offset)


def test_a_copy_joins_while_the_log_goes_on_growing() -> None:
    one = new_set(1)
    assert one.required == frozenset()
    assert one.raise_confirm(500) == 500
    one.on_connected(2, 0, 10)
    one.on_acknowledged(2, 100, 2 * MIB, 10)
    assert one.required == frozenset()  # it lags too far to be waited for
    one.on_acknowledged(2, 2 * MIB, 2 * MIB + 500, 20)
    assert one.required == {2}  # from here on every send is waited for, so it can miss none
    assert one.propose(2 * MIB + 600, 20) is None
    one.on_acknowledged(2, 2 * MIB + 500, 2 * MIB + 900, 30)
    assert one.propose(2 * MIB + 900, 30) == {1, 2}
    assert one.on_committed(frozenset({1, 2}), 8)
    assert (one.required, one.size) == ({2}, 2)
    assert not one.on_committed(frozenset({1}), 8)


def test_who_does_not_reach_it_in_time_is_not_waited_for() -> None:
    one = new_set(1)
    one.on_connected(2, 0, 0)
    one.on_acknowledged(2, 100, 500, 0)
    assert one.required == {2}
    assert one.propose(900, 5_001) is None
    assert one.required == frozenset()


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
    assert one.propose(600, 2_010) == {1, 3}  # the one before may still be carried out
    one.on_refused(7)
    assert one.required == {2, 3}
    assert one.has_open_proposal
    one.on_committed(frozenset({1}), 8)
    assert not one.has_open_proposal


def test_nothing_is_confirmed_that_a_proposed_member_lacks() -> None:
    """It may have been elected meanwhile, whatever is known here of the proposal."""
    one = new_set(1)
    one.on_connected(2, 100, 0)
    one.on_acknowledged(2, 100, 100, 0)
    assert one.propose(100, 10) == {1, 2}
    assert one.raise_confirm(200) == 100
    one.on_closed(2)
    assert one.raise_confirm(300) == 100


def test_nothing_is_confirmed_that_a_joining_copy_lacks() -> None:
    """It becomes a member with what it had at its proposal. Elected then, it would lack what slaves were told
    that all hold, and they would have to cut what they must not.
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
    """The first one may have been carried out, although a later one says otherwise."""
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


def test_who_stands_still_leaves_and_who_is_only_slow_stays() -> None:
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
    one.on_connected(2, 400, 0)  # it was started anew, and its old connection had not ended yet
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
