"""Which queues of a topic are ours: the AVG strategy, and the difference to what we hold; pure.

Every consumer of a group computes the same split from the same sorted inputs, so nobody has to be asked
(spec semantics 12.2, 12.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tandemmq.protocol.bodies import MessageQueue


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """What a rebalance does to one topic: queues to give up, then queues to start."""

    lost: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]


def allocate_averagely(
    queues: Collection[MessageQueue], client_ids: Collection[str], own_id: str
) -> list[MessageQueue]:
    """Our consecutive share of the queues; the first consumers get one more when the split is uneven.

    Empty when there are fewer queues than consumers before us, or when our id is not in the list: the broker
    has not seen our heartbeat, and a guess would give queues to two consumers.
    """
    ids = sorted(set(client_ids))
    if own_id not in ids or not queues:
        return []
    ordered = sorted(queues, key=queue_order)
    index, remainder = ids.index(own_id), len(ordered) % len(ids)
    share, start = len(ordered) // len(ids), index * (len(ordered) // len(ids)) + min(index, remainder)
    return ordered[start : start + share + (1 if index < remainder else 0)]


def plan_change(held: Iterable[MessageQueue], wanted: Iterable[MessageQueue]) -> OwnershipChange:
    """The queues to give up and to start so that exactly `wanted` is held, each in queue order."""
    held_set, wanted_set = set(held), set(wanted)
    return OwnershipChange(
        lost=tuple(sorted(held_set - wanted_set, key=queue_order)),
        gained=tuple(sorted(wanted_set - held_set, key=queue_order)),
    )


def queue_order(queue: MessageQueue) -> tuple[str, str, int]:
    """The order that all clients of a group agree on: topic, broker name, queue id."""
    return (queue.topic, queue.broker_name, queue.queue_id)
