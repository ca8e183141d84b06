"""What is known in memory of transactions that have ended, or were copied: bounded, and never needed. Pure.

It spares consumers a second copy when a producer says commit twice, or late for a copy that was passed over;
after a restart, or for more than COUNT_MAX at once, such a message may be delivered twice, as in RocketMQ.
A decision counts as soon as it is said, but nothing is known of its end until the store has answered: until
then it is `pending`, and no progress may rely on it.
Every transaction goes by the queue offset of its first half message (`half.root_of`).
"""

from __future__ import annotations

from collections.abc import Iterator

COUNT_MAX = 65_536


class Decided:
    """Decisions of ended transactions and the newest copies of open ones."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self._count_max = count_max
        self._decisions: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._pending: set[int] = set()  # bounded by what the store takes in before it answers

    def __contains__(self, root: int) -> bool:
        return root in self._decisions

    def get(self, root: int) -> int | None:
        """How the transaction ended, by the wire's number; None when that is not known."""
        return self._decisions.get(root)

    def is_pending(self, root: int) -> bool:
        """True while an end is being stored: it may yet fail, and then the transaction is open again."""
        return root in self._pending

    def end(self, root: int, decision: int) -> None:
        """Remember; the oldest is forgotten at the bound. `settle` or `reopen` must follow."""
        self._pending.add(root)
        self._decisions[root] = decision
        _trim(self._decisions, self._count_max)

    def settle(self, root: int) -> None:
        """The end is stored, with the marks of all `places`, so the places can be forgotten."""
        self._pending.discard(root)
        self._newest.pop(root, None)

    def reopen(self, root: int) -> None:
        """The end could not be stored; the next one marks the same `places`."""
        self._pending.discard(root)
        self._decisions.pop(root, None)

    def note_copy(self, root: int, queue_offset: int) -> None:
        """The transaction waits at this offset from now on."""
        self._newest.pop(root, None)
        self._newest[root] = queue_offset
        _trim(self._newest, self._count_max)

    def places(self, root: int, queue_offset: int) -> Iterator[int]:
        """The half queue offsets to mark when the half message at `queue_offset` ends."""
        yield queue_offset
        newest = self._newest.get(root, queue_offset)
        if newest != queue_offset:
            yield newest


def _trim(table: dict[int, int], count_max: int) -> None:
    if len(table) > count_max:
        del table[next(iter(table))]
