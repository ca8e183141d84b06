"""Which queue the next message goes to: round robin that passes over brokers that failed; pure.

The turn starts at a random queue (many producers that start together must not all begin with queue 0) and
moves by one per choice. A broker to avoid is passed over for at most one full turn: when every queue lies on
such a broker the plain turn decides, because a doubtful broker is better than none (spec semantics 3.2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tandemmq.protocol.bodies import MessageQueue


class QueueChoice:
    """The turn of one topic."""

    __slots__ = ("_turn",)

    def __init__(self, start: int) -> None:
        self._turn = start

    def next_queue(self, queues: Sequence[MessageQueue], avoid: Collection[str] = ()) -> MessageQueue:
        """The next queue whose broker name is not in `avoid`; any queue when all are. `queues` is not
        empty.
        """
        count = len(queues)
        turn = self._turn + 1
        if avoid:
            for step in range(count):
                if queues[(turn + step) % count].broker_name not in avoid:
                    turn += step
                    break
        turn %= count
        self._turn = turn
        return queues[turn]


def queue_by_key(queues: Sequence[MessageQueue], key_hash: int) -> MessageQueue:
    """The queue of an ordering key: abs(hash) modulo the number of queues (spec semantics 3.8)."""
    return queues[abs(key_hash) % len(queues)]
