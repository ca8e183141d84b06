"""Replication with an elected master: what the part that speaks to the controllers uses of it.

A broker is in one term at a time: master of it (`begin_term`), slave in it (`follow`) or neither
(`end_term`). Each change of the term closes every connection of the one before on both sides, so an
acknowledgement that arrives belongs to the term that runs.
Source: spec controller 3.5 to 3.7, 4, 10.6, 10.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tandemmq.replication.core.epochs import EpochList
from tandemmq.runtime.ports import Address

OnPropose = Callable[[frozenset[int], int], None]
"""(members, set_epoch): ask the controllers to put `members` in the place of the SyncStateSet of `set_epoch`.
One of `set_committed` and `set_refused` answers; while neither comes the outcome counts as unknown."""


class AutoSwitch(Protocol):
    """The replication of one broker, whoever is master."""

    on_propose: OnPropose
    on_halted: Callable[[], None]
    """A person must act; `halt_reason` says why."""

    async def start(self, host: str, port: int) -> Address:
        """Listen for slaves: the HA address. Slaves are served during a term of ours only."""

    async def stop(self) -> None: ...

    async def begin_term(self, epoch: int, members: frozenset[int], set_epoch: int) -> None:
        """We are the master of `epoch` from now on; also when we were that of an earlier one.

        The slave side has ended and the entry of the term is on disk when it returns: only then may the
        store take the role of a master (`store.set_role`).
        Raises:  StaleTerm for an epoch that is not above all that the log knows: refuse the promotion.
                 OSError when the entry cannot be written.
        """

    async def follow(self, master_ha_address: str, master_epoch: int, master_id: int) -> None:
        """We are a slave in `master_epoch`, as the store is. The same arguments again change nothing."""

    async def end_term(self) -> None:
        """Nobody is master as far as we know: close every connection, acknowledge nothing."""

    def set_committed(self, members: frozenset[int], set_epoch: int) -> None:
        """The controllers have this set: an answer of theirs, or what a poll of theirs shows."""

    def set_refused(self, set_epoch: int) -> None:
        """The proposal against `set_epoch` was refused for certain; a time-out is no refusal."""

    def reports_since(self, time_s: float) -> bool:
        """Whether every other member of the set (of the union while a proposal is open) has reported over its
        connection of this term since then, by the monotonic clock. True when there is no other member.
        """

    @property
    def epochs(self) -> EpochList:
        """For elections, and for GET_BROKER_EPOCH_CACHE."""

    @property
    def confirm_offset(self) -> int:
        """Every member of the set holds all bytes below it."""

    @property
    def halt_reason(self) -> str:
        """Why the copy stands still until a person acts; empty when it does not."""
