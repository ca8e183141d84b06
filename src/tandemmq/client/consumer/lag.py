"""The lag of a consumer: how far it is behind the ends of the queues that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tandemmq.api import broker_admin
from tandemmq.client.instance import ClientInstance
from tandemmq.protocol.bodies import MessageQueue


class QueueLag(NamedTuple):
    """The lag in one queue.

    messages    messages that this consumer has not finished
    seconds     time since the last message that the group committed was stored; 0 without a lag or a commit
    """

    messages: int
    seconds: float


async def measure_lag(
    instance: ClientInstance, group: str, positions: Mapping[MessageQueue, int]
) -> dict[MessageQueue, QueueLag]:
    """Returns the lag of the queues at these positions; a queue that its broker no longer has is left out.
    Asks each broker once per topic.

    Raises:  the errors of `ClientInstance.call_master`.
    """
    lags: dict[MessageQueue, QueueLag] = {}
    for topic, broker_name in sorted({(queue.topic, queue.broker_name) for queue in positions}):
        call = broker_admin.query_consume_stats
        stats = await instance.ask_master(topic, broker_name, call, group, topic=topic)
        now_ms = instance.clock.now_ms()
        for queue in positions.keys() & stats.queues.keys():
            one = stats.queues[queue]
            count = max(0, one.broker_offset - positions[queue])
            is_timed = count and one.last_timestamp_ms
            lags[queue] = QueueLag(count, max(0, now_ms - one.last_timestamp_ms) / 1000 if is_timed else 0.0)
    return lags
