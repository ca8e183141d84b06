"""The replicas that may be elected: the SyncStateSet of one term, as its master maintains it. Pure.

The master proposes a set, the controllers decide. Until the outcome is known, the master assumes the worse
one: a send waits for the union of the committed set, of every proposal with an unknown outcome, and of the
replicas about to join. Every replica that may be elected therefore holds every confirmed message.
Invariants: one proposal at a time; it differs from the committed set by the replicas that joined and left.
            The union shrinks only when a greater set epoch is seen, or when a proposal was definitely
            refused. A proposal with an unknown outcome is repeated until its outcome is known.
            - If the set epoch goes back within the term, the controllers have lost part of their state. Their
              set may elect, so it counts from then on. The set that they have forgotten counts too, and is
              proposed against their epoch until a set is committed again.
            - confirmOffset never decreases. Learners never count.
Knows not:  sockets, files. Times are monotonic milliseconds.
Source:     spec controller 4.8, 4.9, 10.6, 10.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandemmq.replication.core.options import SetOptions
from tandemmq.units import MIB

JOIN_LAG_BYTES_MAX: Final = MIB
"""A replica that lags less than this starts to join. It is proposed once it has reached the end that the log
had at that time.
"""
PROPOSAL_RETRY_MS: Final = 1_000


@dataclass(slots=True)
class _Copy:
    """A connected slave. `join_offset`: the offset to reach before it is proposed; None if it is not joining.

    `caught_up_at_ms`: the last time at which it held the whole log, or advanced.
    """

    acknowledged: int
    caught_up_at_ms: int
    join_offset: int | None = None
    join_due_ms: int = 0


class SyncStateSet:
    """The SyncStateSet of the term in which `own_id` is master."""

    def __init__(
        self,
        own_id: int,
        members: frozenset[int],
        epoch: int,
        *,
        now_ms: int,
        confirm_offset: int,
        options: SetOptions = SetOptions(),
        may_join: Callable[[int], bool] = lambda _one: True,
    ) -> None:
        """`may_join`: returns True if a replica has everything that a member needs besides the log."""
        assert confirm_offset >= 0, confirm_offset
        self._own_id = own_id
        self._may_join = may_join
        self._options = options
        self._started_at_ms = now_ms
        self._copies: dict[int, _Copy] = {}
        self._leaving: set[int] = set()
        self._proposed: list[frozenset[int]] = []
        self._last_proposal: frozenset[int] | None = (
            None  # the proposal that was last sent to the controllers
        )
        self._proposed_at_ms = now_ms - PROPOSAL_RETRY_MS
        self.members = members | {own_id}
        self.epoch = epoch
        self.confirm_offset = confirm_offset

    @property
    def required(self) -> frozenset[int]:
        """The replicas whose acknowledgement a send waits for, without this broker."""
        joining = {one for one, copy in self._copies.items() if copy.join_offset is not None}
        return self.members.union(*self._proposed, joining) - {self._own_id}

    @property
    def size(self) -> int:
        """The smallest number of replicas that the set may have, for `minInSyncReplicas`."""
        assert self._own_id in self.members, self.members
        return min(map(len, (self.members, *self._proposed)))

    @property
    def has_open_proposal(self) -> bool:
        return bool(self._proposed)

    def on_connected(self, one: int, held: int, now_ms: int) -> None:
        """Handles the first report of a slave that is not a learner. A member that holds less than
        confirmOffset has lost confirmed bytes: if elected as it is, it would lose them for all, so it is to
        leave the set.
        """
        self._copies[one] = _Copy(held, now_ms)
        if one in self.members and held < self.confirm_offset:
            self._leaving.add(one)
        else:
            self._leaving.discard(one)

    def on_closed(self, one: int) -> None:
        """Handles the end of a connection. A member leaves at once; a proposed replica leaves as soon as it
        is one.
        """
        if self._copies.pop(one, None) is not None and one in self.members.union(*self._proposed):
            self._leaving.add(one)

    def on_acknowledged(self, one: int, held: int, log_end: int, now_ms: int) -> None:
        copy = self._copies.get(one)
        if copy is None:
            return
        if held > copy.acknowledged or held >= log_end:
            copy.caught_up_at_ms = now_ms
        copy.acknowledged = held
        if held >= self.confirm_offset:
            self._leaving.discard(one)
        is_joining = one in self.members or copy.join_offset is not None
        if not is_joining and log_end - held <= JOIN_LAG_BYTES_MAX:
            copy.join_offset, copy.join_due_ms = log_end, now_ms + self._options.join_ms_max
            assert one in self.required, "a send waits for a joining replica"
        self.raise_confirm(log_end)

    def raise_confirm(self, log_end: int) -> int:
        """Returns confirmOffset, advanced as far as the acknowledgements allow. A disconnected member holds
        it back, and so does a joining replica: it may be elected with the bytes that it held when it was
        proposed.
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
        """Returns the set to propose now, or None if it need not change or the last proposal is recent. The
        proposal counts as possibly committed from now on.
        """
        target = set(self.members)
        for one in self.members - {self._own_id}:
            copy = self._copies.get(one)
            if one in self._leaving:
                target.discard(one)
            elif copy is None:
                if now_ms - self._started_at_ms > self._options.join_ms_max:
                    target.discard(one)
            elif copy.acknowledged >= log_end:
                copy.caught_up_at_ms = now_ms
            elif now_ms - copy.caught_up_at_ms > self._options.lag_ms_max:
                target.discard(one)
        for one, copy in self._copies.items():
            if copy.join_offset is None:
                continue
            if copy.acknowledged >= log_end:
                copy.caught_up_at_ms = now_ms
            if now_ms - copy.caught_up_at_ms > self._options.lag_ms_max:
                copy.join_offset = None  # silent: sends wait for it no longer than for a member
            elif copy.acknowledged >= copy.join_offset and self._may_join(one):
                target.add(one)
            elif now_ms > copy.join_due_ms:
                copy.join_offset = None
        if target == self.members and self._last_proposal is None and self._proposed:
            target = set(self._proposed[-1])
        if target == self.members or now_ms - self._proposed_at_ms < PROPOSAL_RETRY_MS:
            return None
        proposal = self._last_proposal = frozenset(target)
        self._proposed_at_ms = now_ms
        if proposal not in self._proposed:
            self._proposed.append(proposal)
        assert self._own_id in proposal, proposal
        self._assert_union()
        return proposal

    def is_reverted(self, members: frozenset[int], epoch: int) -> bool:
        """Returns True if controllers with this set in this term have lost a later commit."""
        return epoch < self.epoch or (epoch == self.epoch and members | {self._own_id} != self.members)

    def on_committed(self, members: frozenset[int], epoch: int) -> bool:
        """Handles a set reported by the controllers; returns False if it is already known."""
        if self.is_reverted(members, epoch):
            self._revert_to(members | {self._own_id}, epoch)
            return True
        if epoch == self.epoch:
            return False
        self.members, self.epoch = members | {self._own_id}, epoch
        self._proposed.clear()
        self._last_proposal = None
        self._proposed_at_ms = -PROPOSAL_RETRY_MS
        self._leaving &= self.members
        for one in self.members & self._copies.keys():
            self._copies[one].join_offset = None
        self._assert_union()
        return True

    def _revert_to(self, members: frozenset[int], epoch: int) -> None:
        """Handles a set epoch that went back: the forgotten set becomes an open proposal, and its connected
        members join again.
        """
        lost, self.members, self.epoch = self.members, members, epoch
        self._proposed = [one for one in dict.fromkeys((*self._proposed, lost)) if one != members]
        self._last_proposal = None
        self._proposed_at_ms = -PROPOSAL_RETRY_MS
        self._leaving = (self._leaving | (members - lost - self._copies.keys())) & members.union(
            *self._proposed
        )
        for one in (lost - members) & self._copies.keys():
            copy = self._copies[one]
            copy.join_offset, copy.join_due_ms = (
                copy.acknowledged,
                copy.caught_up_at_ms + self._options.lag_ms_max,
            )
        self._assert_union()

    def on_refused(self, epoch: int) -> None:
        """Drops the last proposal against `epoch`, which will never be committed; an earlier one still may
        be.
        """
        if epoch == self.epoch and self._last_proposal is not None:
            self._proposed.remove(self._last_proposal)
            self._last_proposal = None

    def _assert_union(self) -> None:
        """Asserts that a send waits for every replica that may be elected, whatever the controllers
        decide.
        """
        assert self._last_proposal is None or self._last_proposal in self._proposed, (
            self._last_proposal,
            self._proposed,
        )
        assert self.members not in self._proposed, "what is proposed is another set"
        assert len(set(self._proposed)) == len(self._proposed), self._proposed
        required = self.required | {self._own_id}
        assert self.members <= required, (self.members, required)
        assert all(proposal <= required for proposal in self._proposed), (self._proposed, required)
