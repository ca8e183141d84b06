"""Which copies may be elected: the SyncStateSet of one term, as its master keeps it. Pure.

The master proposes, the controllers decide. Until they have, it counts on the worse of both outcomes: what a
send waits for is the union of the set, of every proposal whose outcome is unknown, and of who is about to
join. So whoever may be elected holds every message that was confirmed.
Invariants: one proposal at a time; it differs from the committed set by who came and who went. The union only
            shrinks when a greater set epoch is seen, or a proposal was refused for certain; one whose outcome
            is unknown is proposed again, until it is known.
            A set epoch that goes back within the term comes from controllers that lost a part of their
            state. Their set may elect, so it counts from then on, and so does the set that they have
            forgotten; the latter is proposed against their epoch until a set is committed again.
            confirmOffset only rises. Learners never count.
Knows not:  sockets, files. Times are monotonic milliseconds.
Source:     spec controller 4.8, 4.9, 10.6, 10.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandemmq.units import MIB

JOIN_LAG_BYTES_MAX: Final = MIB
"""A copy that lags less is counted on, and joins when it has reached where the log ended then."""
PROPOSAL_RETRY_MS: Final = 1_000


@dataclass(slots=True)
class _Copy:
    """One slave that is connected. `joins_at`: what it must hold to be proposed; None: it is not joining.

    `level_at_ms`: when it last held all there was, or came on.
    """

    acknowledged: int
    level_at_ms: int
    joins_at: int | None = None
    join_due_ms: int = 0


class SyncStateSet:
    """The set of the term in which `own_id` is master."""

    def __init__(
        self,
        own_id: int,
        members: frozenset[int],
        epoch: int,
        *,
        now_ms: int,
        confirm_offset: int,
        lag_ms_max: int = 15_000,
        join_ms_max: int = 5_000,
        may_join: Callable[[int], bool] = lambda _one: True,
    ) -> None:
        """`may_join`: whether a copy has what a member needs besides the log."""
        assert confirm_offset >= 0, confirm_offset
        self._own_id = own_id
        self._may_join = may_join
        self._lag_ms_max = lag_ms_max
        self._join_ms_max = join_ms_max
        self._begun_at_ms = now_ms
        self._copies: dict[int, _Copy] = {}
        self._gone: set[int] = set()
        self._proposed: list[frozenset[int]] = []
        self._asked: frozenset[int] | None = None  # of these, the one that the controllers are asked for
        self._proposed_at_ms = now_ms - PROPOSAL_RETRY_MS
        self.members = members | {own_id}
        self.epoch = epoch
        self.confirm_offset = confirm_offset

    @property
    def required(self) -> frozenset[int]:
        """Whose acknowledgement a send waits for; ourselves are not among them."""
        joining = {one for one, copy in self._copies.items() if copy.joins_at is not None}
        return self.members.union(*self._proposed, joining) - {self._own_id}

    @property
    def size(self) -> int:
        """How many copies the set has at the least, for `minInSyncReplicas`."""
        assert self._own_id in self.members, self.members
        return min(map(len, (self.members, *self._proposed)))

    @property
    def has_open_proposal(self) -> bool:
        return bool(self._proposed)

    def on_connected(self, one: int, held: int, now_ms: int) -> None:
        """A slave that is no learner made its first report. A member that holds less than what is confirmed
        has lost it: elected as it is, it would lose it for all.
        """
        self._copies[one] = _Copy(held, now_ms)
        if one in self.members and held < self.confirm_offset:
            self._gone.add(one)
        else:
            self._gone.discard(one)

    def on_closed(self, one: int) -> None:
        """Its connection has ended; a member leaves at once, and who was proposed as soon as it is one."""
        if self._copies.pop(one, None) is not None and one in self.members.union(*self._proposed):
            self._gone.add(one)

    def on_acknowledged(self, one: int, held: int, log_end: int, now_ms: int) -> None:
        copy = self._copies.get(one)
        if copy is None:
            return
        if held > copy.acknowledged or held >= log_end:
            copy.level_at_ms = now_ms
        copy.acknowledged = held
        if held >= self.confirm_offset:
            self._gone.discard(one)
        is_joining = one in self.members or copy.joins_at is not None
        if not is_joining and log_end - held <= JOIN_LAG_BYTES_MAX:
            copy.joins_at, copy.join_due_ms = log_end, now_ms + self._join_ms_max
            assert one in self.required, "a send waits for who is about to join"
        self.raise_confirm(log_end)

    def raise_confirm(self, log_end: int) -> int:
        """confirmOffset, as far as the acknowledgements carry it now; a member that is away holds it, and so
        does who is about to be one: it may be elected with no more than it had when it was proposed.
        """
        held = log_end
        for one in self.required:
            copy = self._copies.get(one)
            if copy is None:
                return self.confirm_offset
            held = min(held, copy.acknowledged)
        self.confirm_offset = max(self.confirm_offset, held)
        return self.confirm_offset

    def propose(self, log_end: int, now_ms: int) -> frozenset[int] | None:
        """The set to propose now, if it should change and no proposal is fresh; it counts from here on."""
        wanted = set(self.members)
        for one in self.members - {self._own_id}:
            copy = self._copies.get(one)
            if one in self._gone:
                wanted.discard(one)
            elif copy is None:
                if now_ms - self._begun_at_ms > self._join_ms_max:
                    wanted.discard(one)
            elif copy.acknowledged >= log_end:
                copy.level_at_ms = now_ms
            elif now_ms - copy.level_at_ms > self._lag_ms_max:
                wanted.discard(one)
        for one, copy in self._copies.items():
            if copy.joins_at is None:
                continue
            if copy.acknowledged >= log_end:
                copy.level_at_ms = now_ms
            if now_ms - copy.level_at_ms > self._lag_ms_max:
                copy.joins_at = None  # silent: sends wait for it no longer than for a member
            elif copy.acknowledged >= copy.joins_at and self._may_join(one):
                wanted.add(one)
            elif now_ms > copy.join_due_ms:
                copy.joins_at = None
        if wanted == self.members and self._asked is None and self._proposed:
            wanted = set(self._proposed[-1])
        if wanted == self.members or now_ms - self._proposed_at_ms < PROPOSAL_RETRY_MS:
            return None
        proposal = self._asked = frozenset(wanted)
        self._proposed_at_ms = now_ms
        if proposal not in self._proposed:
            self._proposed.append(proposal)
        assert self._own_id in proposal, proposal
        self._assert_union()
        return proposal

    def is_set_back(self, members: frozenset[int], epoch: int) -> bool:
        """Whether controllers that have this set in this term have lost what was committed since."""
        return epoch < self.epoch or (epoch == self.epoch and members | {self._own_id} != self.members)

    def on_committed(self, members: frozenset[int], epoch: int) -> bool:
        """The controllers have this set; False when it is no news."""
        if self.is_set_back(members, epoch):
            self._set_back(members | {self._own_id}, epoch)
            return True
        if epoch == self.epoch:
            return False
        self.members, self.epoch = members | {self._own_id}, epoch
        self._proposed.clear()
        self._asked = None
        self._proposed_at_ms = -PROPOSAL_RETRY_MS
        self._gone &= self.members
        for one in self.members & self._copies.keys():
            self._copies[one].joins_at = None
        self._assert_union()
        return True

    def _set_back(self, members: frozenset[int], epoch: int) -> None:
        """The set that they have forgotten is an open proposal; those of it that are connected join anew."""
        lost, self.members, self.epoch = self.members, members, epoch
        self._proposed = [one for one in dict.fromkeys((*self._proposed, lost)) if one != members]
        self._asked = None
        self._proposed_at_ms = -PROPOSAL_RETRY_MS
        self._gone = (self._gone | (members - lost - self._copies.keys())) & members.union(*self._proposed)
        for one in (lost - members) & self._copies.keys():
            copy = self._copies[one]
            copy.joins_at, copy.join_due_ms = copy.acknowledged, copy.level_at_ms + self._lag_ms_max
        self._assert_union()

    def on_refused(self, epoch: int) -> None:
        """The last proposal against `epoch` will never be carried out; an earlier one may be still."""
        if epoch == self.epoch and self._asked is not None:
            self._proposed.remove(self._asked)
            self._asked = None

    def _assert_union(self) -> None:
        """A send waits for whoever may be elected, whatever the controllers decide."""
        assert self._asked is None or self._asked in self._proposed, (self._asked, self._proposed)
        assert self.members not in self._proposed, "what is proposed is another set"
        assert len(set(self._proposed)) == len(self._proposed), self._proposed
        required = self.required | {self._own_id}
        assert self.members <= required, (self.members, required)
        assert all(proposal <= required for proposal in self._proposed), (self._proposed, required)
