"""Decisions of one server, message by message."""

from __future__ import annotations

import msgspec
import pytest

from tandemmq.consensus.core.messages import (
    SPENT,
    AppendAnswer,
    AppendRequest,
    Apply,
    Contradicted,
    Effect,
    EntryKind,
    LogEntry,
    Members,
    Message,
    Persist,
    RaftRole,
    Restore,
    Saved,
    SendToServer,
    Snapshot,
    SnapshotRequest,
    TakeOver,
    Vote,
    VoteAnswer,
    VoteRequest,
    decode_message,
    new_group,
)
from tandemmq.consensus.core.node import ProposalRefusal, RaftNode
from tandemmq.consensus.core.options import RaftOptions

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}
LATE = 10_000
"""A time long after the last message from a leader."""


def make(name: str = "a", voters: dict[str, str] = THREE, *terms: int, term: int | None = None) -> RaftNode:
    """Returns a server whose log has one entry of each of these terms, and whose peers know nothing more."""
    node = start(name, voters, *terms, term=term)
    for other in voters.keys() - {name}:
        node.on_message(VoteAnswer(other, 0, 1, True, False), 0)
    return node


def start(name: str = "a", voters: dict[str, str] = THREE, *terms: int, term: int | None = None) -> RaftNode:
    """Returns the same server, just started."""
    entries = tuple(LogEntry(index, at, EntryKind.COMMAND, b"x") for index, at in enumerate(terms, 1))
    first = new_group(Members(dict(voters)))
    saved = Saved(Vote(terms[-1] if term is None and terms else term or 0), first.snapshot, entries)
    return RaftNode(name, saved, options=RaftOptions(), now_ms=0, below=lambda _: 0)


def sent(effects: list[Effect]) -> list[tuple[str, Message]]:
    """Returns the messages without the fields by which servers prove their disks to each other."""
    return [(effect.to, _plain(effect.message)) for effect in effects if isinstance(effect, SendToServer)]


def _plain(message: Message) -> Message:
    if isinstance(message, VoteAnswer):
        return msgspec.structs.replace(message, request_run_id=0, last_index=0, last_term=0, voters=())
    if isinstance(message, AppendAnswer):
        return msgspec.structs.replace(message, run_id=0)
    if isinstance(message, AppendRequest):
        return msgspec.structs.replace(message, last_index=-1, previous_checksum=-1)
    return message


def vote(sender: str, term: int, *, is_trial: bool = False) -> VoteAnswer:
    return VoteAnswer(sender, term, term, is_trial, True)


def ask(
    term: int, last: tuple[int, int], *, is_trial: bool = False, is_handover: bool = False
) -> VoteRequest:
    return VoteRequest("b", term, last[1], last[0], is_trial, is_handover)


def accept(sender: str, term: int, index: int, *, number: int, sent_ms: int) -> AppendAnswer:
    return AppendAnswer(sender, term, True, index, number, sent_ms)


def elect(node: RaftNode, now_ms: int = LATE) -> list[Effect]:
    node.on_tick(now_ms)
    node.on_message(VoteAnswer("b", node.term, node.term + 1, True, True), now_ms)
    return node.on_message(vote("b", node.term), now_ms)


def test_one_alone_elects_itself_and_confirms_behind_its_disk() -> None:
    node = make(voters={"a": "a:1"})
    first, *rest = node.on_tick(LATE)
    assert first == Persist(vote=Vote(1, "a"), entries=(LogEntry(1, 1, EntryKind.EMPTY),))
    assert [effect for effect in rest if isinstance(effect, Apply)] == [
        Apply((LogEntry(1, 1, EntryKind.EMPTY),))
    ]
    assert node.propose(b"x", LATE)[0] == 2
    assert node.commit == 2


def test_nobodys_term_rises_for_an_election_that_cannot_be_won() -> None:
    node = make()
    effects = node.on_tick(LATE)
    assert (node.role, node.term) == (RaftRole.TRIAL, 0)
    assert not any(isinstance(effect, Persist) for effect in effects)
    assert [to for to, _ in sent(effects)] == ["b", "c"]
    other = make("c")
    answers = sent(other.on_message(ask(1, (0, 0), is_trial=True), LATE))
    assert answers == [("b", VoteAnswer("c", 0, 1, True, True))]
    assert other.term == 0


def test_the_vote_is_on_the_disk_before_it_is_told_and_given_once() -> None:
    node = make()
    first, *rest = node.on_message(ask(1, (0, 0)), LATE)
    assert first == Persist(vote=Vote(1, "b"))
    assert sent(rest) == [("b", VoteAnswer("a", 1, 1, False, True))]
    again = node.on_message(VoteRequest("c", 1, 0, 0), LATE)
    assert sent(again) == [("c", VoteAnswer("a", 1, 1, False, False))]


def test_a_longer_log_of_an_older_term_gets_no_vote() -> None:
    node = make("a", THREE, 1, 2)
    assert sent(node.on_message(ask(3, (1, 9)), LATE)) == [("b", VoteAnswer("a", 3, 3, False, False))]
    assert sent(node.on_message(ask(3, (2, 2)), LATE)) == [("b", VoteAnswer("a", 3, 3, False, True))]


def test_follower_of_a_live_leader_votes_only_in_a_handover() -> None:
    node = make("c")
    node.on_message(AppendRequest("a", 1, 0, 0, (), 0, 1, 0), LATE)
    assert sent(node.on_message(ask(2, (0, 0)), LATE + 499)) == [("b", VoteAnswer("c", 1, 2, False, False))]
    assert node.term == 1
    granted = sent(node.on_message(ask(2, (0, 0), is_handover=True), LATE + 499))
    assert granted == [("b", VoteAnswer("c", 2, 2, False, True))]


def test_a_started_server_votes_for_nobody_within_an_election_timeout() -> None:
    assert sent(make().on_message(ask(1, (0, 0)), 499)) == [("b", VoteAnswer("a", 0, 1, False, False))]
    assert sent(make().on_message(ask(1, (0, 0)), 500)) == [("b", VoteAnswer("a", 1, 1, False, True))]


def test_an_entry_of_an_earlier_term_is_not_confirmed_by_counting() -> None:
    node = make("a", THREE, 1, 2, term=3)
    elect(node)
    assert node.term == 4
    node.on_message(accept("b", 4, 2, number=1, sent_ms=LATE), LATE)
    assert node.commit == 0
    effects = node.on_message(accept("b", 4, 3, number=2, sent_ms=LATE), LATE)
    assert node.commit == 3
    assert [len(effect.entries) for effect in effects if isinstance(effect, Apply)] == [3]


def test_a_leader_without_a_majority_goes_and_grants_nothing_before_it_has_one() -> None:
    node = make()
    elect(node)
    assert not node.grants(LATE, 400)
    node.on_message(accept("b", 1, 1, number=1, sent_ms=LATE), LATE + 50)
    assert node.grants(LATE + 400, 400)
    assert not node.grants(LATE + 401, 400)
    node.on_tick(LATE + 499)
    assert node.role is RaftRole.LEADER
    node.on_tick(LATE + 500)
    assert node.role is RaftRole.FOLLOWER


def test_another_history_is_cut_and_what_is_confirmed_is_not() -> None:
    node = make("b", THREE, 1, 1, 2, 2)
    effects = node.on_message(AppendRequest("a", 3, 4, 3, (), 0, 1, 0), LATE)
    answer = sent(effects)[0][1]
    assert isinstance(answer, AppendAnswer)
    assert (answer.is_accepted, answer.index) == (False, 3)
    newer = LogEntry(3, 3, EntryKind.COMMAND, b"y")
    first, *rest = node.on_message(AppendRequest("a", 3, 2, 1, (newer,), 3, 2, 0), LATE)
    assert first == Persist(entries=(newer,))
    assert node.log.last_index == node.commit == 3
    assert sent(rest)[0][1] == AppendAnswer("b", 3, True, 3, 2, 0)
    # A delayed old request cuts nothing.
    node.on_message(AppendRequest("a", 3, 0, 0, (LogEntry(1, 1, EntryKind.COMMAND, b"x"),), 1, 1, 0), LATE)
    assert node.log.last_index == 3


def test_a_follower_that_is_too_far_behind_gets_the_snapshot() -> None:
    node = make()
    elect(node)
    node.on_message(accept("b", 1, 1, number=1, sent_ms=LATE), LATE)
    node.compact(1, b"state")
    refused = AppendAnswer("c", 1, False, 0, 2, LATE, previous_index=0)
    node.on_message(refused, LATE)
    effects = node.on_tick(LATE + 600)
    node.on_message(accept("b", 1, 1, number=9, sent_ms=LATE + 600), LATE + 600)
    assert node.role is RaftRole.FOLLOWER or sent(effects)
    follower = make("c")
    snapshot = Snapshot(index=1, term=1, members=Members(dict(THREE)), data=b"state")
    first, *rest = follower.on_message(SnapshotRequest("a", 1, snapshot, 5, LATE), LATE)
    assert first == Persist(vote=Vote(1), snapshot=snapshot)
    assert Restore(snapshot) in rest
    assert sent(rest) == [("a", AppendAnswer("c", 1, True, 1, 5, LATE))]


def test_leadership_is_handed_over_to_who_holds_everything_and_ends_in_any_case() -> None:
    node = make()
    elect(node)
    node.on_message(accept("b", 1, 1, number=1, sent_ms=LATE), LATE)
    refusal, effects = node.hand_over("c", LATE)
    assert refusal is None
    assert TakeOver("a", 1) not in [message for _, message in sent(effects)]
    assert node.propose(b"x", LATE)[0] is ProposalRefusal.HANDING_OVER
    assert not node.grants(LATE, 400)
    effects = node.on_message(accept("c", 1, 1, number=9, sent_ms=LATE), LATE)
    assert ("c", TakeOver("a", 1)) in sent(effects)
    node.on_message(accept("b", 1, 1, number=10, sent_ms=LATE + 499), LATE + 499)
    node.on_tick(LATE + 500)
    assert node.role is RaftRole.FOLLOWER
    successor = make("c")
    successor.on_message(AppendRequest("a", 1, 0, 0, (), 0, 1, 0), LATE)
    effects = successor.on_message(TakeOver("a", 1), LATE)
    requests = [message for _, message in sent(effects) if isinstance(message, VoteRequest)]
    assert [(request.term, request.is_handover, request.is_trial) for request in requests] == [
        (2, True, False)
    ] * 2


def test_members_change_one_at_a_time_and_first_as_learners() -> None:
    node = make()
    elect(node)
    assert node.add_learner("d", "d:1", LATE)[0] is ProposalRefusal.UNSETTLED
    node.on_message(accept("b", 1, 1, number=1, sent_ms=LATE), LATE)
    assert node.promote("d", LATE)[0] is ProposalRefusal.UNKNOWN_SERVER
    assert node.add_learner("d", "d:1", LATE)[0] is None
    assert node.members.learners == {"d": "d:1"}
    assert node.remove("c", LATE)[0] is ProposalRefusal.CHANGE_OPEN
    node.on_message(accept("b", 1, 2, number=5, sent_ms=LATE), LATE)
    assert node.promote("d", LATE)[0] is ProposalRefusal.NOT_LEVEL
    node.on_message(accept("d", 1, 2, number=6, sent_ms=LATE), LATE)
    assert node.promote("d", LATE)[0] is None
    node.on_message(accept("b", 1, 3, number=9, sent_ms=LATE), LATE)
    assert node.commit == 2, "two of four are no majority"
    node.on_message(accept("d", 1, 3, number=9, sent_ms=LATE), LATE)
    assert node.commit == 3
    assert node.remove("a", LATE)[0] is None
    for name in ("b", "c"):
        node.on_message(accept(name, 1, 4, number=20, sent_ms=LATE), LATE)
    assert node.role is RaftRole.FOLLOWER, "it was taken out"


def test_raft_proposals_are_bounded() -> None:
    options = RaftOptions(unconfirmed_entries_max=3, command_bytes_max=4)
    first = new_group(Members(dict(THREE)))
    node = RaftNode("a", first, options=options, now_ms=0, below=lambda _: 0)
    for other in ("b", "c"):
        node.on_message(VoteAnswer(other, 0, 1, True, False), 0)
    elect(node)
    assert node.propose(b"12345", LATE)[0] is ProposalRefusal.TOO_LARGE
    assert [node.propose(b"x", LATE)[0] for _ in range(3)] == [2, 3, ProposalRefusal.BUSY]


def test_who_alone_has_its_own_removal_stands_and_confirms_it() -> None:
    node = make("a", {"a": "a:1", "b": "b:1"})
    elect(node)
    node.on_message(accept("b", 1, 1, number=1, sent_ms=LATE), LATE)
    assert node.remove("a", LATE)[0] is None
    late = LATE + 2_000
    node.on_tick(late)
    assert (node.role, node.members.voters) == (RaftRole.FOLLOWER, {"b": "b:1"})
    elect(node, late + 2_000)
    assert node.role is RaftRole.LEADER, "b cannot be: its log is shorter"
    node.on_message(accept("b", 2, 3, number=99, sent_ms=late + 2_000), late + 2_000)
    assert (node.role, node.commit) == (RaftRole.FOLLOWER, 3)
    node.on_tick(late + 9_000)
    assert node.role is RaftRole.FOLLOWER, "now it is out"


def told(
    sender: str, term: int, last: tuple[int, int], node: RaftNode, voters: tuple[str, ...] = ()
) -> VoteAnswer:
    """Returns the answer to a server that has just started; `last` is (term, index)."""
    return VoteAnswer(sender, term, term + 1, True, False, node._run_id, last[1], last[0], voters)


def append(term: int, previous: tuple[int, int], *entries: LogEntry, **facts: int) -> AppendRequest:
    """Returns a request from c; `previous` is (term, index)."""
    values = {"commit": 0, "number": 1, "sent_ms": 0} | facts
    return AppendRequest("c", term, previous[1], previous[0], entries, **values)


def test_a_started_server_asks_before_it_votes_stands_or_acknowledges() -> None:
    node = start("a", THREE, 1, 1)
    assert [(to, message.is_trial) for to, message in asked(node.on_tick(0))] == [("b", True), ("c", True)]
    assert sent(node.on_message(ask(9, (9, 9)), 600)) == [("b", VoteAnswer("a", 1, 9, False, False))]
    assert sent(node.on_message(append(5, (1, 2)), 600)) == []
    assert sent(node.on_message(TakeOver("c", 1), 600)) == []
    assert not node.is_proven
    # It was at term 5, and its log had three more entries.
    node.on_message(told("b", 4, (1, 2), node), 700)
    persist = node.on_message(told("c", 5, (4, 5), node), 700)[0]
    assert persist == Persist(vote=Vote(5, SPENT))
    assert not node.is_proven
    # A server with as much as the others may lead; this server itself may not.
    assert sent(node.on_message(ask(5, (4, 5)), 1300)) == [("b", VoteAnswer("a", 5, 5, False, False))]
    assert sent(node.on_message(ask(6, (4, 4)), 1300)) == [("b", VoteAnswer("a", 6, 6, False, False))]
    assert sent(node.on_message(ask(6, (4, 5)), 1300)) == [("b", VoteAnswer("a", 6, 6, False, True))]
    assert sent(node.on_tick(2_500)) == []
    entries = [LogEntry(index, 4, EntryKind.COMMAND) for index in (3, 4, 5)]
    node.on_message(append(6, (1, 2), *entries), 2_600)
    assert node.is_proven
    assert [to for to, _ in sent(node.on_tick(9_000))] == ["b", "c"]


def asked(effects: list[Effect]) -> list[tuple[str, VoteRequest]]:
    found = [(effect.to, effect.message) for effect in effects if isinstance(effect, SendToServer)]
    return [(to, message) for to, message in found if isinstance(message, VoteRequest)]


def test_answers_to_an_earlier_life_prove_nothing() -> None:
    node = start()
    stale = msgspec.structs.replace(told("b", 1, (1, 1), node), request_run_id=node._run_id + 1)
    node.on_message(stale, 10)
    node.on_message(told("c", 1, (1, 1), node), 10)
    assert node.on_message(told("b", 1, (1, 1), node), 10)
    assert node.term == 1


def test_a_majority_of_the_voters_of_now_answers() -> None:
    node = start()
    five = ("a", "c", "d", "e", "f")
    for name in ("b", "c"):
        node.on_message(told(name, 1, (0, 0), node, five), 10)
    assert node.term == 0, "of the five voters only one has answered"
    assert {to for to, _ in asked(node.on_tick(100))} == {"b", "c", "d", "e", "f"}
    node.on_message(told("d", 1, (0, 0), node, five), 110)
    node.on_message(told("e", 2, (0, 0), node, five), 110)
    assert node.term == 2


def test_a_started_server_waits_no_longer_than_that() -> None:
    node = start()
    wait_ms = RaftOptions().proof_wait_ms
    node.on_message(told("b", 3, (3, 7), node), 10)
    node.on_tick(wait_ms)
    assert node.term == 3
    assert sent(node.on_tick(2 * wait_ms - 1)) == [], "the holder of the entries may come back"
    assert [to for to, _ in sent(node.on_tick(2 * wait_ms + 600))] == ["b", "c"]
    alone = start("a", {"a": "a:1"})
    assert alone.is_proven


def test_follower_acknowledgements_of_an_earlier_run_do_not_count() -> None:
    node = make("a", THREE, 1, 1)
    elect(node)
    old = msgspec.structs.replace(accept("b", 2, 2, number=node._number, sent_ms=LATE), run_id=7)
    node.on_message(old, LATE)
    index, _ = node.propose(b"x", LATE)
    late = msgspec.structs.replace(accept("b", 2, 4, number=node._number, sent_ms=LATE), run_id=7)
    node.on_message(msgspec.structs.replace(ask(3, (0, 0), is_trial=True), run_id=8), LATE)
    node.on_message(late, LATE)
    assert node.commit < index, "its log of now may be an older one"
    node.on_tick(LATE + 100)
    new = msgspec.structs.replace(accept("b", 2, 4, number=node._number, sent_ms=LATE), run_id=8)
    node.on_message(new, LATE)
    node.on_tick(LATE + 200)
    node.on_message(msgspec.structs.replace(new, number=node._number), LATE + 200)
    assert node.commit == index


@pytest.mark.parametrize(
    "request_of_now",
    [
        append(3, (1, 2), last_index=2),
        append(3, (2, 3), LogEntry(4, 3, EntryKind.EMPTY)),
        append(3, (1, 1), LogEntry(2, 2, EntryKind.EMPTY)),
        SnapshotRequest("c", 3, Snapshot(2, 2, Members(THREE), b"s"), 1, 0),
    ],
)
def test_a_server_whose_confirmed_entries_the_group_lacks_begins_anew(request_of_now: Message) -> None:
    node = make("a", THREE, 1, 1, 1)
    node.on_message(append(2, (1, 3), commit=3), LATE)
    assert node.commit == 3
    effects = node.on_message(request_of_now, LATE + 10)
    persist = effects[0]
    assert isinstance(persist, Persist)
    assert persist.snapshot == Snapshot(0, 0, Members(THREE))
    assert persist.entries == ()
    (contradicted,) = [effect for effect in effects if isinstance(effect, Contradicted)]
    assert (contradicted.by, contradicted.is_reset) == ("c", True)
    assert [effect.snapshot.data for effect in effects if isinstance(effect, Restore)] == [b""]
    assert (node.commit, node.log.last_index, node.is_proven) == (0, 0, False)
    # The others report what it should hold, and the leader sends it.
    for name in ("b", "c"):
        node.on_message(told(name, 3, (3, 3), node), LATE + 20)
    refused = sent(node.on_message(append(3, (3, 3), last_index=3), LATE + 30))
    assert refused == [("c", AppendAnswer("a", 3, False, 0, 1, 0, 3))]
    sent_again = SnapshotRequest("c", 3, Snapshot(3, 3, Members(THREE), b"s"), 1, 0)
    node.on_message(sent_again, LATE + 40)
    assert (node.commit, node.is_proven) == (3, True)


def test_two_leaders_in_one_term_end_without_an_error_of_the_process() -> None:
    node = make()
    elect(node)
    node.on_message(accept("b", 1, 1, number=1, sent_ms=LATE), LATE)
    assert node.commit == 1
    effects = node.on_message(append(1, (0, 0), commit=0), LATE)
    assert [effect.is_reset for effect in effects if isinstance(effect, Contradicted)] == [False]
    assert (node.role, node.commit) == (RaftRole.FOLLOWER, 1)
    other = make()
    elect(other)
    effects = other.on_message(append(1, (0, 0), commit=1), LATE)
    assert [effect.is_reset for effect in effects if isinstance(effect, Contradicted)] == [True]
    assert (other.role, other.log.last_index) == (RaftRole.FOLLOWER, 0)
    follower = make("b")
    follower.on_message(AppendRequest("a", 1, 0, 0, (), 0, 1, 0), LATE)
    effects = follower.on_message(append(1, (0, 0)), LATE)
    assert [effect.by for effect in effects if isinstance(effect, Contradicted)] == ["c"]
    assert follower.leader == "a"


def test_messages_of_older_servers_are_read_and_ours_by_them() -> None:
    old = msgspec.msgpack.encode(
        {"type": "vote", "sender": "b", "term": 3, "asked_term": 4, "is_trial": True, "is_granted": True}
    )
    answer = decode_message(old)
    assert isinstance(answer, VoteAnswer)
    assert answer.request_run_id == 0
    node = start()
    node.on_message(answer, 10)
    node.on_message(msgspec.structs.replace(answer, sender="c"), 10)
    assert (node.is_proven, node.term) == (True, 3)


def test_a_late_request_cuts_nothing() -> None:
    node = make()
    entries = [LogEntry(index, 1, EntryKind.COMMAND, b"%d" % index) for index in (1, 2, 3)]
    node.on_message(append(1, (0, 0), *entries), LATE)
    node.on_message(append(1, (0, 0), *entries[:2]), LATE)
    assert node.log.last_index == 3
    # Two leaders of one term make entries that differ only in their contents.
    assert sent(node.on_message(append(1, (1, 3), previous_checksum=7), LATE)) == [
        ("c", AppendAnswer("a", 1, False, 2, 1, 0, 3))
    ]
    node.on_message(append(1, (1, 2), LogEntry(3, 1, EntryKind.COMMAND, b"other")), LATE)
    assert node.log.entry_at(3) == LogEntry(3, 1, EntryKind.COMMAND, b"other")
