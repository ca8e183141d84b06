"""RaftNode: one server of a group, pure.

Owns:       term, vote, log and role; the time of the next election, the messages to each server, the
            confirmed index.
Invariants: a server votes once per term; a leader never changes or cuts its own log; only an entry of the
            leader's own term is confirmed by majority, and everything before it with it; a confirmed entry is
            never cut.
            - A leader that no majority has answered within an election timeout steps down. A server that has
              heard a leader within an election timeout votes for none, unless the leader itself hands over.
              Therefore two leaders never both have a majority behind them (`grants`).
            - A server that has started does not vote, stand or acknowledge before a majority of voters
              besides itself has reported its terms and logs. From then on it votes only for logs that reach
              the reported ones, and does not stand before its own log reaches them, because its disk may be
              older than the one it had, or empty. It waits at most `proof_wait_ms` for the answers, and then
              as long for a leader: half of a group must be able to start.
            - The leader's knowledge about a server is valid for one run of that server.
Knows not:  disks, sockets, clocks. Times are monotonic milliseconds of this server; `below(n)` returns a
            random number in `[0, n)`. Each method returns `Effect`s to carry out; `on_tick` is due at
            `deadline_ms`.
Source:     Ongaro, Consensus: Bridging Theory and Practice (2014), with pre-vote (9.6), check-quorum, single
            server changes (4.1) and transfer of leadership (3.10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from zlib import crc32

from tandemmq.consensus.core.log import RaftLog
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
    RoleChanged,
    Saved,
    SendToServer,
    Snapshot,
    SnapshotRequest,
    TakeOver,
    Vote,
    VoteAnswer,
    VoteRequest,
)
from tandemmq.consensus.core.options import RaftOptions

_LONG_AGO_MS = -(2**62)
_RUN_ID_COUNT = 2**31 - 1


class ProposalRefusal(Enum):
    """The reason for which a server refuses a request."""

    NOT_LEADER = "this server is not the leader"
    BUSY = "too many entries await a majority"
    HANDING_OVER = "the leader hands over"
    UNSETTLED = "the leader has confirmed nothing in its term yet"
    CHANGE_OPEN = "another change of the members is not confirmed yet"
    UNKNOWN_SERVER = "no such server"
    KNOWN_SERVER = "the server is in the group already"
    NOT_LEVEL = "the server has not caught up yet"
    LAST_VOTER = "the last voter must stay"
    TOO_LARGE = "the proposal is too large"


@dataclass(slots=True)
class _Progress:
    """The leader's knowledge about another server."""

    next_index: int
    """The index of the next entry to send. It exceeds `matched_index + 1` only while the two logs are
    compared.
    """
    answered_ms: int = _LONG_AGO_MS
    """The send time of the newest request that was answered."""
    matched_index: int = 0
    awaited_number: int | None = None
    """The number of the outstanding request with content; meanwhile only heartbeats are sent."""
    is_snapshot_awaited: bool = False
    waited_since_ms: int = 0
    run_id: int | None = None
    """The `run_id` of the server; None until the first answer."""
    earlier_number: int = 0
    """Answers to requests up to this number may come from an earlier run and are ignored."""


@dataclass(slots=True)
class _Proof:
    """The answers of the other servers to a server that has started."""

    ends_ms: int
    due_ms: int
    answers: dict[str, VoteAnswer]


class RaftNode:
    """One run of a server."""

    __slots__ = (
        "_below",
        "_configured_peers",
        "_dirty_from",
        "_effects",
        "_election_due_ms",
        "_entered_commit",
        "_goal",
        "_goal_since_ms",
        "_granted",
        "_handover_until_ms",
        "_heartbeat_due_ms",
        "_is_snapshot_dirty",
        "_is_vote_dirty",
        "_leader_contact_ms",
        "_leads_since_ms",
        "_led_term",
        "_now_ms",
        "_number",
        "_options",
        "_own_first_index",
        "_peers",
        "_proof",
        "_published_role",
        "_reason",
        "_run_id",
        "_successor",
        "applied",
        "commit",
        "leader",
        "log",
        "name",
        "role",
        "term",
        "voted_for",
    )

    def __init__(
        self,
        name: str,
        saved: Saved,
        *,
        options: RaftOptions,
        now_ms: int,
        below: Callable[[int], int],
        peers: frozenset[str] = frozenset(),
    ) -> None:
        """`peers` are the other servers in this server's settings. It asks them too what they know of it,
        because its disk may be older than the current members, or contain no members.
        """
        self._configured_peers = peers
        self._options = options
        self._below = below
        self.name = name
        self.term = saved.vote.term
        self.voted_for = saved.vote.voted_for
        self.log = RaftLog(saved.snapshot, saved.entries)
        assert self.log.last_term <= self.term, (self.log.last_term, self.term)
        self.role = RaftRole.FOLLOWER
        self.leader: str | None = None
        self.commit = self.applied = saved.snapshot.index
        self._now_ms = now_ms
        self._leader_contact_ms = now_ms  # the previous run may have answered a leader just now
        self._election_due_ms = 0
        self._heartbeat_due_ms = 0
        self._granted: set[str] = set()
        self._peers: dict[str, _Progress] = {}
        self._own_first_index = 0
        self._leads_since_ms = now_ms
        self._number = 0
        self._successor: str | None = None
        self._handover_until_ms = 0
        self._effects: list[Effect] = []
        self._is_vote_dirty = False
        self._is_snapshot_dirty = False
        self._dirty_from: int | None = None
        self._reason = "started"
        self._published_role: tuple[RaftRole, int, str | None] = (RaftRole.FOLLOWER, -1, None)
        self._entered_commit = self.commit  # the index that was confirmed before the current term
        self._led_term = 0
        self._run_id = 1 + below(_RUN_ID_COUNT)
        self._proof: _Proof | None = None
        self._goal = (0, 0)  # the end of a log as (term, index)
        self._goal_since_ms = now_ms
        self._plan_election()
        self._begin_proof()

    # Queries.

    @property
    def deadline_ms(self) -> int:
        """The time at which `on_tick` is due if nothing else happens before."""
        if self._proof is not None:
            return min(self._proof.due_ms, self._proof.ends_ms)
        if self.role is RaftRole.LEADER:
            return min(self._heartbeat_due_ms, self._handover_until_ms or self._heartbeat_due_ms)
        return self._election_due_ms

    @property
    def members(self) -> Members:
        return self.log.members

    @property
    def is_settled(self) -> bool:
        """True if this leader has confirmed an entry of its term. It then knows everything that was ever
        confirmed.
        """
        return self.role is RaftRole.LEADER and self.commit >= self._own_first_index

    def grants(self, now_ms: int, within_ms: int) -> bool:
        """Returns True if a majority answered requests that this leader sent within the last `within_ms`.

        If `within_ms` is less than an election timeout by a margin for clock drift, no other server leads at
        this time. Returns False during a handover, because the leader has then asked others to vote against
        it.
        """
        if self.role is not RaftRole.LEADER or self._successor is not None:
            return False
        return self._majority_ms(now_ms) >= now_ms - within_ms

    # Events.

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Handles the passing of time."""
        self._now_ms = now_ms
        if self._proof is not None:
            self._tick_proof(self._proof)
        elif self.role is RaftRole.LEADER:
            self._tick_leader()
        elif now_ms >= self._election_due_ms:
            self._plan_election()
            if self._may_campaign():
                self._campaign(is_trial=True)
        return self._finish()

    def on_message(self, message: Message, now_ms: int) -> list[Effect]:
        """Handles a message of another server."""
        self._now_ms = now_ms
        if self._proof is not None:
            self._on_message_unproven(message, self._proof)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif message.term > self.term:
            if isinstance(message, AppendRequest | SnapshotRequest):
                self._follow(message.term, message.sender, f"{message.sender} leads")
                self._on_leader(message)
            else:
                self._follow(message.term, None, f"{message.sender} is at a later term")
        elif isinstance(message, VoteAnswer):
            self._on_vote_answer(message)
        elif isinstance(message, AppendRequest | SnapshotRequest):
            self._on_leader(message)
        elif isinstance(message, AppendAnswer):
            self._on_append_answer(message)
        elif message.term == self.term and self._may_campaign():
            self._campaign(is_trial=False, is_handover=True)
        return self._finish()

    def propose(self, data: bytes, now_ms: int) -> tuple[int | ProposalRefusal, list[Effect]]:
        """Returns the index that `data` will have if it is confirmed. The proposal is lost if another term's
        entry is confirmed there.
        """
        self._now_ms = now_ms
        if self.role is not RaftRole.LEADER:
            return ProposalRefusal.NOT_LEADER, []
        if self._successor is not None:
            return ProposalRefusal.HANDING_OVER, []
        if len(data) > self._options.command_bytes_max:
            return ProposalRefusal.TOO_LARGE, []
        if self.log.last_index - self.commit >= self._options.unconfirmed_entries_max:
            return ProposalRefusal.BUSY, []
        index = self._add_entry(EntryKind.COMMAND, data)
        return index, self._finish()

    def hand_over(self, to: str, now_ms: int) -> tuple[ProposalRefusal | None, list[Effect]]:
        """Hands the leadership over to another voter once that voter has the whole log.

        This leadership ends within an election timeout in either case. A delayed order to stand must not meet
        a leader that relies on no other server being electable.
        """
        self._now_ms = now_ms
        if self.role is not RaftRole.LEADER:
            return ProposalRefusal.NOT_LEADER, []
        if self._successor is not None:
            return ProposalRefusal.HANDING_OVER, []
        if to not in self._peers or to not in self.members.voters:
            return ProposalRefusal.UNKNOWN_SERVER, []
        self._successor = to
        self._handover_until_ms = now_ms + self._options.election_timeout_ms
        self._send_entries(to)
        self._prompt_successor()
        return None, self._finish()

    def add_learner(
        self, name: str, address: str, now_ms: int
    ) -> tuple[ProposalRefusal | None, list[Effect]]:
        """Adds a server that receives everything and does not count for majorities until `promote`."""
        members = self.members
        if members.address(name) is not None:
            return ProposalRefusal.KNOWN_SERVER, []
        return self._change(Members(members.voters, {**members.learners, name: address}), now_ms)

    def promote(self, name: str, now_ms: int) -> tuple[ProposalRefusal | None, list[Effect]]:
        """Makes a learner a voter if it has everything that is confirmed."""
        members = self.members
        address = members.learners.get(name)
        if address is None:
            return ProposalRefusal.UNKNOWN_SERVER, []
        peer = self._peers.get(name)
        if peer is None or peer.matched_index < self.commit:
            return ProposalRefusal.NOT_LEVEL, []
        learners = {key: value for key, value in members.learners.items() if key != name}
        return self._change(Members({**members.voters, name: address}, learners), now_ms)

    def remove(self, name: str, now_ms: int) -> tuple[ProposalRefusal | None, list[Effect]]:
        """Removes a server from the group. A leader that is removed steps down once the removal is
        confirmed.
        """
        members = self.members
        if members.address(name) is None:
            return ProposalRefusal.UNKNOWN_SERVER, []
        voters, learners = dict(members.voters), dict(members.learners)
        voters.pop(name, None)
        learners.pop(name, None)
        if not voters:
            return ProposalRefusal.LAST_VOTER, []
        return self._change(Members(voters, learners), now_ms)

    def compact(self, index: int, data: bytes) -> list[Effect]:
        """Replaces the log up to the applied entry `index` by the machine's state after it."""
        assert index <= self.applied, (index, self.applied)
        if index > self.log.snapshot.index:
            self.log.compact(index, data)
            self._is_snapshot_dirty = True
        return self._finish()

    # After a start.

    @property
    def is_proven(self) -> bool:
        """True if this server participates again after its start."""
        return self._proof is None and self._goal <= (self.log.last_term, self.log.last_index)

    def _begin_proof(self) -> None:
        proof = _Proof(self._now_ms + self._options.proof_wait_ms, self._now_ms, {})
        if not self._is_complete(proof):
            self._proof = proof

    def _known_groups(self, proof: _Proof) -> set[frozenset[str]]:
        """The sets of voters by this server's log, by the settings and by each answer."""
        groups = {frozenset(self.members.voters), self._configured_peers | {self.name}}
        return groups.union(frozenset(one.voters) for one in proof.answers.values())

    def _is_complete(self, proof: _Proof) -> bool:
        """Returns True if enough others have answered: a majority of all voters, not counting this server.
        Each majority that this server belonged to and has forgotten shares a server with them. The members
        may have changed since, so the same is required for the voters of each answer.
        """
        answered = proof.answers.keys()
        for voters in self._known_groups(proof):
            needed = min(len(voters) // 2 + 1, len(voters - {self.name}))
            if len(answered & voters) < needed:
                return False
        return True

    def _tick_proof(self, proof: _Proof) -> None:
        if self._now_ms >= proof.ends_ms:
            self._end_proof(proof)
            return
        if self._now_ms >= proof.due_ms:
            proof.due_ms = self._now_ms + self._options.heartbeat_ms
            voters = frozenset().union(*self._known_groups(proof))
            self._request_votes(self.term + 1, voters, is_trial=True)

    def _on_message_unproven(self, message: Message, proof: _Proof) -> None:
        """Handles a message during the proof. Requests of a leader remain unanswered, because an
        acknowledgement is a promise too.
        """
        if isinstance(message, VoteRequest):
            self._answer_vote(message, is_granted=False)
        elif isinstance(message, AppendRequest | SnapshotRequest):
            self._leader_contact_ms = self._now_ms
        elif isinstance(message, VoteAnswer) and message.request_run_id in (0, self._run_id):
            proof.answers[message.sender] = message
            if self._is_complete(proof):
                self._end_proof(proof)

    def _end_proof(self, proof: _Proof) -> None:
        """Ends the proof. This server's votes in the terms known by now count as given, because they may have
        been.
        """
        self._proof = None
        term = max([self.term, *(answer.term for answer in proof.answers.values())])
        if term > self.term or self.voted_for is None:
            self._set_vote(term, SPENT)
        self._goal = max(
            ((answer.last_term, answer.last_index) for answer in proof.answers.values()), default=(0, 0)
        )
        self._goal_since_ms = self._now_ms
        self._plan_election()

    def _is_caught_up(self) -> bool:
        """Returns True if the log reaches the logs that the others had when this server started. Once no
        leader was heard for `proof_wait_ms`, this is no longer required: the server with the longer log may
        be gone, and the end of its log was not confirmed.
        """
        if self._goal > (self.log.last_term, self.log.last_index):
            since_ms = max(self._goal_since_ms, self._leader_contact_ms)
            if self._now_ms - since_ms < self._options.proof_wait_ms:
                return False
        self._goal = (0, 0)
        return True

    def _reset(self) -> None:
        """Drops log and state like a server with an empty disk; the leader sends them again."""
        self._leave_leadership()
        self._follow(self.term, None, "contradicts the group")
        self._set_vote(self.term, SPENT)
        self.log = RaftLog(Snapshot(index=0, term=0, members=self.members))
        self.commit = self.applied = self._entered_commit = 0
        self._is_snapshot_dirty = True
        self._dirty_from = None
        self._effects.append(Restore(self.log.snapshot))
        self._run_id = 1 + self._below(_RUN_ID_COUNT)
        self._begin_proof()

    # Votes.

    def _may_campaign(self) -> bool:
        """Returns True if this server may stand for leader. A voter whose removal is not known to be
        confirmed may stand too: perhaps only this server has the entry of the removal, and then no other
        server can be elected.
        """
        is_voter = self.name in self.members.voters or self.name in self.log.members_at(self.commit).voters
        return self.role is not RaftRole.LEADER and is_voter and self._is_caught_up()

    def _campaign(self, *, is_trial: bool, is_handover: bool = False) -> None:
        """Asks all voters for their votes. A trial comes first, so that an election that cannot be won raises
        no server's term.
        """
        self._leave_leadership()
        self.leader = None
        self._granted = {self.name}
        if is_trial:
            self.role = RaftRole.TRIAL
            self._reason = "heard no leader"
            # A trial costs nothing, and a voter that heard the leader later will be ready soon.
            options = self._options
            self._election_due_ms = (
                self._now_ms + options.heartbeat_ms + self._below(options.election_timeout_ms // 2)
            )
        else:
            self.role = RaftRole.CANDIDATE
            self._reason = "the leader hands over" if is_handover else "a majority would vote for it"
            self._set_vote(self.term + 1, self.name)
            self._plan_election()
        if self.members.is_majority(self._granted):
            self._win()
            return
        term = self.term + 1 if is_trial else self.term
        self._request_votes(term, self.members.voters, is_trial=is_trial, is_handover=is_handover)

    def _request_votes(
        self, term: int, voters: Iterable[str], *, is_trial: bool, is_handover: bool = False
    ) -> None:
        request = VoteRequest(
            sender=self.name,
            term=term,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            is_trial=is_trial,
            is_handover=is_handover,
            run_id=self._run_id,
        )
        for name in sorted(set(voters) - {self.name}):
            self._send(name, request)

    def _win(self) -> None:
        if self.role is RaftRole.TRIAL:
            self._campaign(is_trial=False)
        else:
            self._become_leader()

    def _on_vote_request(self, request: VoteRequest) -> None:
        if request.run_id and request.sender in self._peers:
            self._update_run_id(self._peers[request.sender], request.run_id)
        owed = (0, 0) if self._is_caught_up() else self._goal
        end = self.log.last_term, self.log.last_index
        is_newer = (request.last_term, request.last_index) >= max(end, owed)
        has_leader_contact = (
            self.role is RaftRole.LEADER
            or self._now_ms - self._leader_contact_ms < self._options.election_timeout_ms
        )
        if request.is_trial:
            is_granted = request.term > self.term and is_newer and not has_leader_contact
        elif has_leader_contact and not request.is_handover:
            is_granted = False
        else:
            if request.term > self.term:
                self._follow(request.term, None, f"{request.sender} is a candidate")
            is_granted = request.term == self.term and self.voted_for in (None, request.sender) and is_newer
            if is_granted:
                self._set_vote(self.term, request.sender)
                self._plan_election()
        self._answer_vote(request, is_granted=is_granted)

    def _answer_vote(self, request: VoteRequest, *, is_granted: bool) -> None:
        answer = VoteAnswer(
            sender=self.name,
            term=self.term,
            asked_term=request.term,
            is_trial=request.is_trial,
            is_granted=is_granted,
            request_run_id=request.run_id,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            voters=tuple(sorted(self.members.voters)),
        )
        self._send(request.sender, answer)

    def _on_vote_answer(self, answer: VoteAnswer) -> None:
        if self.role is (RaftRole.TRIAL if answer.is_trial else RaftRole.CANDIDATE):
            asked_term = self.term + 1 if answer.is_trial else self.term
            if answer.is_granted and answer.asked_term == asked_term:
                self._granted.add(answer.sender)
                if self.members.is_majority(self._granted):
                    self._win()

    def _follow(self, term: int, leader: str | None, reason: str) -> None:
        """Becomes a follower in `term`; `leader` is None until it is known."""
        self._leave_leadership()
        if term > self.term:
            self._set_vote(term, None)
        if self.role is not RaftRole.FOLLOWER:
            self._plan_election()
        self.role = RaftRole.FOLLOWER
        self.leader = leader
        self._reason = reason

    def _leave_leadership(self) -> None:
        if self.role is RaftRole.LEADER:
            self._peers.clear()
            self._successor = None
            self._handover_until_ms = 0
            self._leader_contact_ms = _LONG_AGO_MS

    def _plan_election(self) -> None:
        timeout_ms = self._options.election_timeout_ms
        self._election_due_ms = self._now_ms + timeout_ms + self._below(timeout_ms)

    def _set_vote(self, term: int, voted_for: str | None) -> None:
        if term != self.term:
            self._entered_commit = self.commit
        if (term, voted_for) != (self.term, self.voted_for):
            self.term, self.voted_for = term, voted_for
            self._is_vote_dirty = True

    # Following.

    def _on_leader(self, request: AppendRequest | SnapshotRequest) -> None:
        if request.term < self.term:
            self._answer(request, is_accepted=False, index=0)  # informs the sender that its term is over
            return
        if self._contradicts(request):
            return
        if self.role is not RaftRole.FOLLOWER or self.leader != request.sender:
            self._follow(self.term, request.sender, f"{request.sender} leads")
        self._leader_contact_ms = self._now_ms
        self._plan_election()
        if isinstance(request, SnapshotRequest):
            self._install_snapshot(request)
        else:
            self._accept_entries(request)

    def _contradicts(self, request: AppendRequest | SnapshotRequest) -> bool:
        """Returns True if this leader's messages and the state here cannot both be correct, which means that
        a disk was replaced.
        """
        leader = request.sender
        if request.term == self._led_term:
            is_lesser = isinstance(request, SnapshotRequest) or (self.commit, self.name) < (
                request.commit,
                leader,
            )
            self._contradict(leader, f"{leader} leads the term {self.term}, too", is_reset=is_lesser)
            if not is_lesser:
                self._follow(self.term, None, "two leaders in one term")
            return True
        if self.role is RaftRole.FOLLOWER and self.leader not in (None, leader):
            self._contradict(leader, f"{self.leader} leads the term {self.term}, too", is_reset=False)
            return True
        if isinstance(request, SnapshotRequest):
            positions = [(request.snapshot.index, request.snapshot.term, -1)]
        else:
            positions = [(request.previous_index, request.previous_term, request.previous_checksum)]
            positions += [(one.index, one.term, crc32(one.data, one.kind)) for one in request.entries]
            if 0 <= request.last_index < self._entered_commit:
                reason = (
                    f"{leader} has entries up to {request.last_index}, {self._entered_commit} was confirmed"
                )
                self._contradict(leader, reason, is_reset=True)
                return True
        for index, term, checksum in positions:
            if index <= self.commit and not self._agrees(index, term, checksum):
                reason = f"the confirmed entry {index} of {leader}, of term {term}, is not the one here"
                self._contradict(leader, reason, is_reset=True)
                return True
        return False

    def _agrees(self, index: int, term: int, checksum: int) -> bool:
        """Returns False if another server's entry cannot be the one here. Entries of two leaders of one term
        differ only in their contents.
        """
        if self.log.term_at(index) not in (None, term):
            return False
        return -1 in (checksum, own := self.log.checksum_at(index)) or checksum == own

    def _contradict(self, leader: str, reason: str, *, is_reset: bool) -> None:
        self._effects.append(Contradicted(leader, self.term, reason, is_reset))
        if is_reset:
            self._reset()

    def _install_snapshot(self, request: SnapshotRequest) -> None:
        snapshot = request.snapshot
        if snapshot.index > self.commit:
            self.log.restore(snapshot)
            self._is_snapshot_dirty = True
            self.commit = self.applied = snapshot.index
            self._effects.append(Restore(snapshot))
        self._answer(request, is_accepted=True, index=snapshot.index)

    def _accept_entries(self, request: AppendRequest) -> None:
        previous = request.previous_index
        is_equal = self.log.term_at(previous) == request.previous_term and self._agrees(
            previous, request.previous_term, request.previous_checksum
        )
        if previous > self.commit and not is_equal:
            hint = self.log.last_index_below(previous - 1, request.previous_term)
            self._answer(request, is_accepted=False, index=max(hint, self.commit), previous_index=previous)
            return
        # Confirmed entries are identical on all servers, so only later ones can be new or differ.
        for count, entry in enumerate(request.entries):
            if entry.index > self.commit and self.log.entry_at(entry.index) != entry:
                if entry.index <= self.log.last_index:
                    self.log.cut(entry.index)
                self.log.append(request.entries[count:])
                self._mark_dirty(entry.index)
                break
        end = previous + len(request.entries)
        self._answer(request, is_accepted=True, index=end)
        self._commit_up_to(min(request.commit, end))

    def _answer(
        self,
        request: AppendRequest | SnapshotRequest,
        *,
        is_accepted: bool,
        index: int,
        previous_index: int = 0,
    ) -> None:
        answer = AppendAnswer(
            sender=self.name,
            term=self.term,
            is_accepted=is_accepted,
            index=index,
            number=request.number,
            sent_ms=request.sent_ms,
            previous_index=previous_index,
            run_id=self._run_id,
        )
        self._send(request.sender, answer)

    # Leading.

    def _become_leader(self) -> None:
        self.role = RaftRole.LEADER
        self.leader = self.name
        self._reason = "elected"
        self._leads_since_ms = self._now_ms
        self._led_term = self.term
        self._peers = {name: self._new_progress() for name in self.members.others(self.name)}
        self._own_first_index = self._add_entry(EntryKind.EMPTY, b"")

    def _new_progress(self) -> _Progress:
        return _Progress(next_index=self.log.last_index + 1)

    def _tick_leader(self) -> None:
        answered_ms = max(self._leads_since_ms, self._majority_ms(self._now_ms))
        if answered_ms <= self._now_ms - self._options.election_timeout_ms:
            self._follow(self.term, None, "no majority answers")
        elif self._successor is not None and self._now_ms >= self._handover_until_ms:
            self._follow(self.term, None, f"handing over to {self._successor} took too long")
        elif self._now_ms >= self._heartbeat_due_ms:
            self._broadcast()

    def _majority_ms(self, now_ms: int) -> int:
        """Returns the latest time such that a majority answered requests sent at or after it."""
        times = sorted(
            (
                now_ms if name == self.name else self._peers[name].answered_ms
                for name in self.members.voters
                if name == self.name or name in self._peers
            ),
            reverse=True,
        )
        needed = len(self.members.voters) // 2
        return times[needed] if needed < len(times) else _LONG_AGO_MS

    def _add_entry(self, kind: EntryKind, data: bytes) -> int:
        index = self.log.last_index + 1
        self.log.append([LogEntry(index, self.term, kind, data)])
        self._mark_dirty(index)
        self._advance_commit()
        self._broadcast()
        return index

    def _broadcast(self) -> None:
        """Sends new entries to all servers, or a heartbeat."""
        self._heartbeat_due_ms = self._now_ms + self._options.heartbeat_ms
        for name in self._peers:
            self._send_entries(name, is_heartbeat=True)
        self._prompt_successor()

    def _send_entries(self, name: str, *, is_heartbeat: bool = False) -> None:
        """Sends the entries that the server lacks, one request at a time. Heartbeats are sent beside an
        outstanding request.

        A request that is not answered within an election timeout counts as lost.
        """
        peer = self._peers[name]
        is_lost = self._now_ms - peer.waited_since_ms >= self._options.election_timeout_ms
        if peer.awaited_number is not None and is_lost:
            peer.awaited_number = None
        has_news = peer.next_index <= self.log.last_index and peer.awaited_number is None
        if not has_news and not is_heartbeat:
            return
        self._number += 1
        if has_news:
            peer.awaited_number = self._number
            peer.waited_since_ms = self._now_ms
            peer.is_snapshot_awaited = peer.next_index < self.log.first_index
            if peer.is_snapshot_awaited:
                snapshot = SnapshotRequest(
                    sender=self.name,
                    term=self.term,
                    snapshot=self.log.snapshot,
                    number=self._number,
                    sent_ms=self._now_ms,
                )
                self._send(name, snapshot)
                return
        # While a snapshot is outstanding or no common entry is known, a heartbeat still announces the leader.
        previous = max(peer.next_index - 1, self.log.snapshot.index)
        previous_term = self.log.term_at(previous)
        assert previous_term is not None
        entries: tuple[LogEntry, ...] = ()
        if has_news:
            options = self._options
            entries = self.log.entries_from(
                peer.next_index,
                count_max=options.entries_per_request_max,
                bytes_max=options.bytes_per_request_max,
            )
        request = AppendRequest(
            sender=self.name,
            term=self.term,
            previous_index=previous,
            previous_term=previous_term,
            entries=entries,
            commit=self.commit,
            number=self._number,
            sent_ms=self._now_ms,
            last_index=self.log.last_index,
            previous_checksum=self.log.checksum_at(previous),
        )
        self._send(name, request)

    def _update_run_id(self, peer: _Progress, run_id: int) -> None:
        """Resets the knowledge about a server that has started again, because it may have lost data."""
        if peer.run_id is not None and peer.run_id != run_id:
            peer.matched_index, peer.next_index = 0, self.log.last_index + 1
            peer.awaited_number, peer.is_snapshot_awaited = None, False
            peer.earlier_number = self._number
        peer.run_id = run_id

    def _on_append_answer(self, answer: AppendAnswer) -> None:
        peer = self._peers.get(answer.sender)
        if peer is None or self.role is not RaftRole.LEADER or answer.term != self.term:
            return
        self._update_run_id(peer, answer.run_id)
        if answer.number <= peer.earlier_number:
            return
        peer.answered_ms = max(peer.answered_ms, answer.sent_ms)
        is_overtaken = answer.number > (peer.awaited_number or 0) and not peer.is_snapshot_awaited
        if answer.number == peer.awaited_number or is_overtaken:
            peer.awaited_number = None
        if answer.is_accepted:
            peer.matched_index = max(peer.matched_index, answer.index)
            peer.next_index = max(peer.next_index, peer.matched_index + 1)
        elif peer.matched_index < answer.previous_index < peer.next_index:
            peer.next_index = max(peer.matched_index, min(answer.index, answer.previous_index - 1)) + 1
        self._advance_commit()
        if self.role is RaftRole.LEADER and answer.sender in self._peers:
            self._send_entries(answer.sender)
            self._prompt_successor()

    def _advance_commit(self) -> None:
        """Raises the confirmed index to the index that a majority of voters has, if that entry is of the own
        term.
        """
        held = sorted(
            (
                self.log.last_index if name == self.name else self._peers[name].matched_index
                for name in self.members.voters
                if name == self.name or name in self._peers
            ),
            reverse=True,
        )
        needed = len(self.members.voters) // 2
        if needed < len(held) and self.log.term_at(held[needed]) == self.term:
            self._commit_up_to(held[needed])
        if self.commit >= self.log.members_index and self.name not in self.members.voters:
            self._broadcast()  # informs the others that it is confirmed
            self._follow(self.term, None, "removed from the group")

    def _commit_up_to(self, index: int) -> None:
        """Emits the entries that became confirmed."""
        if index > self.commit:
            self.commit = index
            self._effects.append(Apply(self.log.between(self.applied + 1, index)))
            self.applied = index

    def _prompt_successor(self) -> None:
        """Orders the successor to stand once it has everything. The order is repeated with each heartbeat,
        because it may be lost.
        """
        if self._successor is not None:
            peer = self._peers.get(self._successor)
            if peer is not None and peer.matched_index == self.log.last_index:
                self._send(self._successor, TakeOver(sender=self.name, term=self.term))

    def _change(self, members: Members, now_ms: int) -> tuple[ProposalRefusal | None, list[Effect]]:
        """Changes the members; the new ones are in force from the entry on, confirmed or not. At most one
        voter is added or removed at a time, so that any majority of the old voters and any majority of the
        new ones share a server.
        """
        self._now_ms = now_ms
        if self.role is not RaftRole.LEADER:
            return ProposalRefusal.NOT_LEADER, []
        if self._successor is not None:
            return ProposalRefusal.HANDING_OVER, []
        if not self.is_settled:
            return ProposalRefusal.UNSETTLED, []
        if self.log.members_index > self.commit:
            return ProposalRefusal.CHANGE_OPEN, []
        assert len(members.voters.keys() ^ self.members.voters.keys()) <= 1
        index = self.log.last_index + 1
        self.log.append([LogEntry(index, self.term, EntryKind.MEMBERS, members.encode())])
        self._mark_dirty(index)
        for name in members.others(self.name):
            self._peers.setdefault(name, self._new_progress())
        for name in self._peers.keys() - set(members.others(self.name)):
            del self._peers[name]
        self._advance_commit()
        if self.role is RaftRole.LEADER:
            self._broadcast()
        return None, self._finish()

    # Effects.

    def _mark_dirty(self, index: int) -> None:
        self._dirty_from = index if self._dirty_from is None else min(self._dirty_from, index)

    def _send(self, to: str, message: Message) -> None:
        self._effects.append(SendToServer(to, message))

    def _finish(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        first: list[Effect] = []
        if self._is_vote_dirty or self._is_snapshot_dirty or self._dirty_from is not None:
            begin = self.log.first_index if self._is_snapshot_dirty else self._dirty_from
            first.append(
                Persist(
                    vote=Vote(self.term, self.voted_for) if self._is_vote_dirty else None,
                    snapshot=self.log.snapshot if self._is_snapshot_dirty else None,
                    entries=() if begin is None else self.log.between(begin, self.log.last_index),
                )
            )
            self._is_vote_dirty = self._is_snapshot_dirty = False
            self._dirty_from = None
        published = self.role, self.term, self.leader
        if published != self._published_role:
            self._published_role = published
            first.append(RoleChanged(self.role, self.term, self.leader, self._reason))
        return first + effects
