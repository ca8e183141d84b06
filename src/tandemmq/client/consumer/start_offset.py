"""Where a consumer begins in a queue that it has just got (spec semantics 12.4)."""

from __future__ import annotations

from typing import assert_never

from tandemmq.api import broker_offset
from tandemmq.api.broker_offset import Progress
from tandemmq.client.consumer.offsets import OffsetStore
from tandemmq.client.consumer.replica_choice import MASTER_ID, choose_replica
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import ConsumerOptions, StartFrom
from tandemmq.errors import NoRoute
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.topic_names import is_retry_topic


async def find_start_offset(
    queue: MessageQueue,
    store: OffsetStore,
    instance: ClientInstance,
    options: ConsumerOptions,
    avoided: frozenset[str],
) -> Progress:
    """The committed offset; without one what `start_from` says.

    A retry topic always begins at its first message: what was handed back must not be skipped.

    Raises:  any TandemError of the questions; the queue is then not started, because a guess could skip
             messages.
    """
    committed = await store.read(queue)
    if committed is not None and committed.offset >= 0:
        return committed
    start_from = StartFrom.FIRST if is_retry_topic(queue.topic) else options.start_from
    return Progress(await find_offset(queue, start_from, options.start_time_ms, instance, avoided))


async def find_offset(
    queue: MessageQueue,
    start_from: StartFrom,
    time_ms: int | None,
    instance: ClientInstance,
    avoided: frozenset[str] = frozenset(),
) -> int:
    """The first or the last offset of a queue now, or that of a time, by a replica that is not avoided.

    Raises:  any TandemError of the question; NoRoute without an address.
    """
    view = instance.routes.get(queue.topic)
    replica = choose_replica(view.addresses.get(queue.broker_name, {}) if view else {}, MASTER_ID, avoided)
    if replica is None:
        raise NoRoute(f"no address of broker {queue.broker_name!r} is known")
    remoting, address = instance.remoting, replica.address
    timeout_s = instance.options.call_timeout_s
    match start_from:
        case StartFrom.FIRST:
            offset = await broker_offset.query_min_offset(
                remoting, address, queue.topic, queue.queue_id, timeout_s=timeout_s
            )
        case StartFrom.LAST:
            offset = await broker_offset.query_max_offset(
                remoting, address, queue.topic, queue.queue_id, timeout_s=timeout_s
            )
        case StartFrom.TIMESTAMP:
            assert time_ms is not None
            offset = await broker_offset.search_offset(
                remoting, address, queue.topic, queue.queue_id, time_ms, timeout_s=timeout_s
            )
        case _:
            assert_never(start_from)
    return offset
