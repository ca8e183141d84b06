"""Who of a group gets which queues: RocketMQ's rules, so that all brokers give all clients the same. Pure.

Queues and client ids are sorted by the caller. Source: spec semantics 12.3 and 20.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tandemmq.protocol.bodies.message_queue import MessageQueue

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

ALL_QUEUES: Final = -1


def allocate_average(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Neighbouring queues; the first clients get one more when they do not divide evenly."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    begin = index * share + min(index, more)
    return list(queues[begin : begin + share + (index < more)])


def allocate_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Every n-th queue."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: Final[Mapping[str, Allocate]] = {
    "AVG": allocate_average,
    "AVG_BY_CIRCLE": allocate_by_circle,
}
"""The two that RocketMQ's brokers know; with any other name nothing is assigned."""


def allocate_pop(
    allocate: Allocate,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    share_count: int,
) -> list[MessageQueue]:
    """Queues of one popping client, shared with others; queue id -1 stands for all queues of a broker.

    `share_count`: of how many clients behind it in the list it also gets the queues.
    """
    if share_count <= 0 or share_count >= len(client_ids) - 1:
        names = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic=topic, broker_name=broker, queue_id=ALL_QUEUES) for topic, broker in names]
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    found: dict[MessageQueue, None] = {}
    for step in range(share_count + 1):
        other = client_ids[(index + step) % len(client_ids)]
        found |= dict.fromkeys(allocate(other, queues, client_ids))
    return list(found)
