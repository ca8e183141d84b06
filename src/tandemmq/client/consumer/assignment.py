"""The queues of a consumer: takes them over and gives them up as its group changes, and commits their
offsets.

All of it happens in one task, one step after the other; the readers run beside it (spec semantics 12).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from tandemmq.api import broker_client
from tandemmq.client.consumer.offsets import OffsetStore
from tandemmq.client.consumer.queue_reader import QueueReader, ReaderSeams
from tandemmq.client.consumer.rebalance import allocate_averagely, plan_change
from tandemmq.client.consumer.start_offset import find_start_offset
from tandemmq.client.consumer.subscription import Subscription
from tandemmq.client.options import MessageModel
from tandemmq.client.route_view import RouteView
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

UNBALANCED_PAUSE_S = 1.0
"""Before the next try when a step of a rebalance failed or the group has not settled."""


class Assignment:
    """MessageQueue -> QueueReader."""

    def __init__(self, seams: ReaderSeams, make_offsets: Callable[[], OffsetStore], tasks: TaskScope) -> None:
        """`make_offsets` is called once, at the first need: the store may depend on the client id."""
        self._seams = seams
        self._make_offsets = make_offsets
        self._offset_store: OffsetStore | None = None
        self._tasks = tasks
        self._wanted = asyncio.Event()
        self._subscriptions: dict[str, Subscription] = {}
        self._pull_tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self.readers: dict[MessageQueue, QueueReader] = {}

    # What the consumer says

    def subscribe(self, subscription: Subscription) -> None:
        """Take part in a topic from the next rebalance on, which is soon."""
        self._subscriptions[subscription.topic] = subscription
        self._seams.instance.routes.want(subscription.topic)
        for queue, reader in self.readers.items():
            if queue.topic == subscription.topic:
                reader.subscription = subscription
        self.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues up at the next rebalance, which is soon."""
        self._subscriptions.pop(topic, None)
        self.rebalance_soon()

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(self._subscriptions.values())

    def rebalance_soon(self) -> None:
        """The group, a route or a subscription has changed."""
        self._wanted.set()

    @property
    def _offsets(self) -> OffsetStore:
        if self._offset_store is None:
            self._offset_store = self._make_offsets()
        return self._offset_store

    # Rebalancing

    async def load_routes(self) -> None:
        """Ask for the routes of all topics, so that the first heartbeat reaches their brokers."""
        for topic in sorted(self._subscriptions):
            with suppress(TandemError):
                await self._seams.instance.routes.refresh(topic)

    async def run(self) -> None:
        """Rebalance for ever: every `rebalance_s`, when asked, and soon again while something is amiss."""
        options = self._seams.options
        while True:
            self._wanted.clear()
            is_balanced = await self.rebalance()
            pause_s = options.rebalance_s if is_balanced else min(UNBALANCED_PAUSE_S, options.rebalance_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()

    async def rebalance(self) -> bool:
        """Hold exactly our share of each topic; False when that could not be done for all of them."""
        is_balanced = True
        for topic in {queue.topic for queue in self.readers} - self._subscriptions.keys():
            await self._give_up([queue for queue in self.readers if queue.topic == topic])
        for topic in sorted(self._subscriptions):
            try:
                is_balanced &= await self._rebalance_topic(topic)
            except TandemError as error:
                log.warning(events.REBALANCE_FAILED, extra={"topic": topic, "error": str(error)})
                is_balanced = False
        return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        routes = self._seams.instance.routes
        view = routes.get(topic) or await routes.refresh(topic)
        if view is None:
            # The retry topic appears with the first heartbeat; nothing is missed until then.
            return is_retry_topic(topic)
        wanted: Iterable[MessageQueue] = view.subscribe_queues
        if self._seams.options.model is MessageModel.CLUSTERING:
            ids = await self._member_ids(view)
            own_id = self._seams.instance.client_id
            if own_id not in ids:
                # The broker does not know us yet, so the others do not count us either.
                self._seams.instance.beat_soon()
                return False
            wanted = allocate_averagely(view.subscribe_queues, ids, own_id)
        change = plan_change([queue for queue in self.readers if queue.topic == topic], wanted)
        if change.lost or change.gained:
            log.info(
                events.QUEUES_REBALANCED,
                extra={"topic": topic, "lost_count": len(change.lost), "gained_count": len(change.gained)},
            )
        await self._give_up(change.lost)
        for queue in change.gained:
            await self._take_over(queue, self._subscriptions[topic])
        return True

    async def _member_ids(self, view: RouteView) -> tuple[str, ...]:
        """The group's members, by the first broker of the topic that answers."""
        instance = self._seams.instance
        last: TandemError | None = None
        for _, replicas in sorted(view.addresses.items()):
            for _, address in sorted(replicas.items()):
                try:
                    ids = await broker_client.query_consumer_ids(
                        instance.remoting,
                        address,
                        self._seams.group,
                        timeout_s=instance.options.call_timeout_s,
                    )
                except TandemError as error:
                    last = error
                    continue
                if ids:
                    return ids
        if last is not None:
            raise last
        return ()

    async def _take_over(self, queue: MessageQueue, subscription: Subscription) -> None:
        instance = self._seams.instance
        avoided = self._seams.faulty.avoided(instance.clock.monotonic())
        start = await find_start_offset(queue, self._offsets, instance, self._seams.options, avoided)
        reader = QueueReader(queue, subscription, start, self._seams)
        self.readers[queue] = reader
        name = f"pull-{queue.topic}-{queue.broker_name}-{queue.queue_id}"
        self._pull_tasks[queue] = self._tasks.start(name, reader.run())

    async def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading, say how far we got; what was handed out and not finished goes to the next owner."""
        for queue in queues:
            reader = self.readers.pop(queue)
            task = self._pull_tasks.pop(queue)
            task.cancel()
            await asyncio.wait([task])
            reader.drop()
            try:
                await self._write(queue, reader)
            except TandemError as error:
                self._log_commit_failure(queue, error)
        await self._offsets.flush()

    # Offsets

    async def run_commits(self) -> None:
        """Commit for ever, all queues every `commit_s`."""
        while True:
            await self._seams.instance.clock.sleep(self._seams.options.commit_s)
            await self.commit()

    async def commit(self) -> bool:
        """Write every queue's offset, also an unchanged one: a broker that was replaced may have an older
        one.

        False when one could not be written; that is logged and made up for by the next commit.
        """
        is_done = True
        failed: set[str] = set()
        for queue, reader in list(self.readers.items()):
            if queue.broker_name in failed:
                continue
            try:
                await self._write(queue, reader)
            except TandemError as error:
                self._log_commit_failure(queue, error)
                is_done = False
                if isinstance(error, ClientError):
                    # Nobody answers there; its other queues need not wait for the same.
                    failed.add(queue.broker_name)
        await self._offsets.flush()
        return is_done

    async def close(self) -> None:
        """Stop reading and commit for the last time."""
        await self._give_up(list(self.readers))

    async def _write(self, queue: MessageQueue, reader: QueueReader) -> None:
        await self._offsets.write(queue, reader.committed_offset)

    def _log_commit_failure(self, queue: MessageQueue, error: TandemError) -> None:
        log.warning(
            events.COMMIT_FAILED,
            extra={
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "error": str(error),
            },
        )
