"""The queues of a consumer (`Assignment`). It acquires and releases queues as its group changes, and commits
their offsets; an orderly consumer also needs the broker's locks (`QueueLockKeeper`).

One task makes all changes, one step after the other; the readers run beside it (spec semantics 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from tandemmq.api import broker_consume
from tandemmq.client.consumer.offsets import OffsetStore, StartOffsets
from tandemmq.client.consumer.queue_reader import QueueReader, ReaderContext, queue_facts
from tandemmq.client.consumer.rebalance import SERVER_STRATEGIES, plan_change
from tandemmq.client.consumer.subscription import Subscription
from tandemmq.client.hooks import OnQueues, call_hook
from tandemmq.client.route_cache import RouteView
from tandemmq.errors import ClientError, RequestRejected, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import POP, AssignmentQuery, LockRequest, MessageModel
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)

T = TypeVar("T")

UNBALANCED_PAUSE_S = 1.0
"""The pause before the next try when a step of a rebalance failed or the group has not settled."""
ORDERLY_GRACE_S = 0.5
ORDERLY_GRACE_S_MAX = 20.0
"""The longest time in seconds for which the release of orderly queues waits for the application: in one
rebalance (ORDERLY_GRACE_S), and in total for one queue (ORDERLY_GRACE_S_MAX) (spec semantics 10.5).
"""
GRACE_STEP_S = 0.02


class Assignment:
    """The readers of the assigned queues, and the one task that changes the assignment."""

    def __init__(self, context: ReaderContext, offsets: OffsetStore, tasks: TaskScope) -> None:
        self._context = context
        self._offsets = offsets
        self._starts = StartOffsets(offsets, context.instance, context.options)
        self._tasks = tasks
        self._rebalance_requested = asyncio.Event()
        self._subscriptions: dict[str, Subscription] = {}
        self._pull_tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self.readers: dict[MessageQueue, QueueReader] = {}
        options = context.options
        self._locks = (
            QueueLockKeeper(context) if options.orderly and options.model is MessageModel.CLUSTERING else None
        )
        self._releasing_since: dict[MessageQueue, float] = {}
        self._lost_locks: set[MessageQueue] = set()
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._fixed: dict[str, set[MessageQueue]] = {}
        self._without_route: set[str] = set()
        self._announced: set[MessageQueue] = set()
        """The queues that `on_assigned` has named, and `on_revoked` has not named since."""
        self._stale: set[MessageQueue] = set()
        """The queues whose pull in flight names an outdated subscription; the broker may hold such a pull for
        long.
        """

    # Called by the consumer

    def subscribe(self, subscription: Subscription) -> None:
        """Adds or replaces a subscription; a rebalance applies it soon."""
        self._subscriptions[subscription.topic] = subscription
        self._context.instance.routes.track(subscription.topic)
        for queue, reader in self.readers.items():
            if queue.topic == subscription.topic:
                reader.subscribe(subscription)
                self._stale.add(queue)
        self.rebalance_soon()

    def assign(self, queues: Iterable[MessageQueue], subscriptions: Collection[Subscription]) -> None:
        """Assigns exactly these queues of these topics, regardless of the other members of the group."""
        for topic in self._fixed:
            self._subscriptions.pop(topic, None)
        self._fixed = {subscription.topic: set() for subscription in subscriptions}
        for queue in queues:
            self._fixed[queue.topic].add(queue)
        for subscription in subscriptions:
            self.subscribe(subscription)
        self.rebalance_soon()

    @property
    def is_fixed(self) -> bool:
        return bool(self._fixed)

    def unsubscribe(self, topic: str) -> None:
        """Removes the subscription of a topic; a rebalance releases its queues soon."""
        self._subscriptions.pop(topic, None)
        self.rebalance_soon()

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(self._subscriptions.values())

    def rebalance_soon(self) -> None:
        """Wakes the rebalancing task, because the group, a route or a subscription has changed."""
        self._rebalance_requested.set()

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pauses reading these queues, or all queues if none are named; also applies to queues assigned
        later.
        """
        self._is_paused = self._is_paused or not queues
        self._paused.update(queues)
        self._apply_paused()

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Resumes reading these queues, or all queues if none are named."""
        if self._is_paused and queues:
            self._paused.update(self.readers)
        self._is_paused = False
        self._paused = self._paused - set(queues) if queues else set()
        self._apply_paused()

    def _apply_paused(self) -> None:
        for queue, reader in self.readers.items():
            reader.set_paused(self._is_paused or queue in self._paused)

    # Rebalancing

    async def load_routes(self) -> None:
        """Loads the routes of all topics, so that the first heartbeat reaches their brokers."""
        for topic in sorted(self._subscriptions):
            with suppress(TandemError):
                await self._context.instance.routes.refresh(topic)

    async def run(self) -> None:
        """Rebalances for ever: every `rebalance_s`, on request, and after a short pause while a step
        fails.
        """
        options = self._context.options
        while True:
            self._rebalance_requested.clear()
            is_balanced = await self.rebalance()
            pause_s = options.rebalance_s if is_balanced else min(UNBALANCED_PAUSE_S, options.rebalance_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._rebalance_requested.wait()

    async def rebalance(self) -> bool:
        """Changes the assignment to exactly this member's share of each topic; returns False if that failed
        for a topic.
        """
        is_balanced = True
        while self._stale:
            await self._restart_pull(self._stale.pop())
        for topic in {queue.topic for queue in self.readers} - self._subscriptions.keys():
            await self._release([queue for queue in self.readers if queue.topic == topic])
        for topic in sorted(self._subscriptions):
            try:
                is_balanced &= await self._rebalance_topic(topic)
            except TandemError as error:
                self._report_failure(topic, "", error)
                is_balanced = False
            else:
                self._context.instance.outages.record_success(events.REBALANCE_FAILED, (topic, ""))
        return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        routes = self._context.instance.routes
        view = routes.get(topic) or await routes.refresh(topic)
        self._starts.on_route(topic, () if view is None else view.subscribe_queues)
        self._check_route(topic, is_known=view is not None)
        if view is None:
            # The retry topic appears with the first heartbeat; nothing is missed until then.
            return is_retry_topic(topic)
        target: Iterable[MessageQueue] = view.subscribe_queues
        fixed = self._fixed.get(topic)
        if fixed is not None:
            target = fixed.intersection(view.subscribe_queues)
        elif self._context.options.model is MessageModel.CLUSTERING:
            share = await self._share(view)
            if share is None:
                # The broker does not list this client yet, so the other members still divide all queues.
                self._context.instance.beat_soon()
                return False
            target = share
        change = plan_change([queue for queue in self.readers if queue.topic == topic], target)
        if change.lost or change.gained:
            log.info(
                events.QUEUES_REBALANCED,
                extra={"topic": topic, "lost_count": len(change.lost), "gained_count": len(change.gained)},
            )
        releasable = await self._releasable(change.lost)
        await self._release(releasable)
        gained = await self._lock(change.gained)
        started_count = await self._start_all(gained)
        started = [queue for queue in gained if queue in self.readers]
        self._announced.update(started)
        self._report(self._context.options.on_assigned, started)
        return len(releasable) == len(change.lost) and started_count == len(change.gained)

    def _check_route(self, topic: str, *, is_known: bool) -> None:
        """Logs once that a subscribed topic does not exist: its name may be mistyped."""
        if is_known:
            self._without_route.discard(topic)
        elif topic not in self._without_route and not is_retry_topic(topic):
            self._without_route.add(topic)
            log.warning(
                events.SUBSCRIPTION_WITHOUT_ROUTE, extra={"topic": topic, "group": self._context.group}
            )

    async def _start_all(self, queues: Iterable[MessageQueue]) -> int:
        """Starts reading the queues; returns the number of started queues. A failing broker does not delay
        the others.
        """
        count = 0
        failed: set[str] = set()
        for queue in queues:
            if queue.broker_name in failed:
                continue
            try:
                await self._start_reading(queue)
                count += 1
            except TandemError as error:
                failed.add(queue.broker_name)
                if error.refresh_route:
                    self._context.instance.routes.refresh_soon(queue.topic)
                self._report_failure(queue.topic, queue.broker_name, error)
            else:
                key = queue.topic, queue.broker_name
                self._context.instance.outages.record_success(events.REBALANCE_FAILED, key)
        return count

    def _report_failure(self, topic: str, broker_name: str, error: TandemError) -> None:
        facts = {"topic": topic, "broker": broker_name, "error": str(error)}
        key = topic, broker_name
        self._context.instance.outages.record_failure(log, events.REBALANCE_FAILED, key, facts)

    async def _share(self, view: RouteView) -> Collection[MessageQueue] | None:
        """Returns this member's queues of a topic; None while no broker of the topic lists this member."""
        instance, group = self._context.instance, self._context.group
        ids = await self._first_answer(
            view,
            lambda address: broker_consume.query_consumer_ids(instance.remoting, address, group),
        )
        if not ids or instance.client_id not in ids:
            return None
        local_share = self._context.options.allocate(view.subscribe_queues, ids, instance.client_id)
        return (
            await self._assigned_by_broker(view, local_share)
            if self._context.options.server_assignment
            else local_share
        )

    async def _assigned_by_broker(
        self, view: RouteView, local_share: Collection[MessageQueue]
    ) -> Collection[MessageQueue] | None:
        """Asks the brokers for the assignment. `local_share` is the result of the same strategy computed
        here, for a broker that does not support the query.
        """
        instance, options = self._context.instance, self._context.options
        query = AssignmentQuery(
            client_id=instance.client_id,
            group=self._context.group,
            strategy_name=SERVER_STRATEGIES[options.allocate],
            topic=view.topic,
        )

        async def query_broker(address: str) -> Collection[MessageQueue] | None:
            try:
                rows = (await broker_consume.query_assignment(instance.remoting, address, query)).queues
            except RequestRejected as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                # A RocketMQ 4 broker: the group must not wait for brokers that cannot answer.
                return local_share
            if rows is None:
                return None
            if any(row.mode == POP for row in rows):
                reason = f"the brokers assign this topic to group {query.group!r} for pop: use a PopConsumer"
                log.warning(events.REBALANCE_FAILED, extra={"topic": view.topic, "error": reason})
                return ()
            return [row.queue for row in rows]

        return await self._first_answer(view, query_broker)

    async def _first_answer(self, view: RouteView, query: Callable[[str], Awaitable[T | None]]) -> T | None:
        """Returns the first answer of a broker of the topic; None when every broker answered None.

        Raises:  the last error, when a broker failed and no broker has an answer.
        """
        last: TandemError | None = None
        for _, replicas in sorted(view.addresses.items()):
            for _, address in sorted(replicas.items()):
                try:
                    answer = await query(address)
                except TandemError as error:
                    last = error
                    continue
                if answer is not None:
                    return answer
        if last is not None:
            raise last
        return None

    async def _start_reading(self, queue: MessageQueue) -> None:
        instance = self._context.instance
        avoided = self._context.faulty.avoided(instance.clock.monotonic())
        start = await self._starts.find(queue, is_assigned=queue.topic in self._fixed, avoided=avoided)
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:  # the application has unsubscribed meanwhile
            if self._locks is not None:
                await self._locks.unlock([queue])
            return
        reader = QueueReader(queue, subscription, start, self._context)
        if reader.gate is not None:
            reader.gate.on_locked()
        reader.set_paused(self._is_paused or queue in self._paused)
        self.readers[queue] = reader
        self._run(queue, reader)

    def _run(self, queue: MessageQueue, reader: QueueReader) -> None:
        name = f"pull-{queue.topic}-{queue.broker_name}-{queue.queue_id}"
        self._pull_tasks[queue] = self._tasks.start(name, reader.run())

    async def open_offsets(self) -> None:
        """Loads the store of the offsets. Raises ConfigError when a file of offsets cannot be used."""
        await self._offsets.open(self._context.instance.client_id)

    def require(self, queue: MessageQueue) -> QueueReader:
        """Returns the reader of an assigned queue. Raises ClientError when the queue is not assigned now."""
        reader = self.readers.get(queue)
        if reader is None:
            raise ClientError(f"{queue} is not assigned to this consumer now")
        return reader

    async def move(self, queue: MessageQueue, offset: int) -> None:
        """Continues an assigned queue from another offset at once: a held pull is cancelled.

        Raises:  ClientError when the queue is not assigned now.
        """
        self.require(queue).move_to(offset)
        await self._restart_pull(queue)

    async def _restart_pull(self, queue: MessageQueue) -> None:
        """Cancels the queue's pull, which a broker may hold, and pulls again if the queue is still
        assigned.
        """
        reader, task = self.readers.get(queue), self._pull_tasks.get(queue)
        if reader is None or task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if self.readers.get(queue) is reader and self._pull_tasks[queue] is task:
            self._run(queue, reader)

    async def _release(self, queues: Iterable[MessageQueue]) -> None:
        """Stops reading the queues and commits their offsets. Delivered but unacknowledged messages go to the
        next owner.
        """
        queues = list(queues)
        announced = [queue for queue in queues if queue in self._announced]
        self._announced.difference_update(announced)
        self._report(self._context.options.on_revoked, announced)
        for queue in queues:
            reader = self.readers.pop(queue)
            task = self._pull_tasks.pop(queue)
            task.cancel()
            try:
                await asyncio.wait([task])
                reader.drop()
                await self._write(queue, reader)
            except TandemError as error:
                self._log_commit_failure(queue, error)
            except asyncio.CancelledError:
                # The consumer is closing: its last commit must include this queue.
                self.readers[queue], self._pull_tasks[queue] = reader, task
                raise
            self._releasing_since.pop(queue, None)
            self._lost_locks.discard(queue)
        await self._flush()
        if self._locks is not None:
            await self._locks.unlock(queues)

    def _report(self, hook: OnQueues | None, queues: Iterable[MessageQueue]) -> None:
        """Calls a hook with the application's queues among these; those of the retry topic are not named."""
        if hook is None:
            return
        unwrap = self._context.instance.namespace.unwrap_queue
        named = tuple(unwrap(queue) for queue in sorted(queues) if not is_retry_topic(queue.topic))
        if named:
            call_hook(hook, named)

    # Locks of an orderly consumer

    async def _lock(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Returns the queues that may be started now: all, or for an orderly consumer those that it has
        locked.
        """
        if self._locks is None:
            return list(queues)
        granted = await self._locks.lock(queues)
        return [queue for queue in queues if granted.get(queue)]

    async def _releasable(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Returns the queues that may be released now; an orderly queue once the application has acknowledged
        all its delivered messages, or after the grace period.
        """
        if self._locks is None:
            return list(queues)
        clock = self._context.instance.clock
        until_s = clock.monotonic() + ORDERLY_GRACE_S
        for queue in queues:
            self._releasing_since.setdefault(queue, clock.monotonic())
            gate = self.readers[queue].gate
            assert gate is not None
            gate.on_lock_lost()
            gate.requeue()
        while not all(map(self._may_release, queues)) and clock.monotonic() < until_s:
            await clock.sleep(GRACE_STEP_S)
        return [queue for queue in queues if self._may_release(queue)]

    def _may_release(self, queue: MessageQueue) -> bool:
        gate = self.readers[queue].gate
        assert gate is not None
        waited_s = self._context.instance.clock.monotonic() - self._releasing_since[queue]
        return gate.is_idle or waited_s >= ORDERLY_GRACE_S_MAX

    async def run_locks(self) -> None:
        """Renews the held locks for ever, and tries again to lock the other assigned queues."""
        clock = self._context.instance.clock
        renewed_at_s = clock.monotonic()
        while self._locks is not None:
            await clock.sleep(TRY_AGAIN_S)
            is_renewal = clock.monotonic() - renewed_at_s >= RENEW_S
            if is_renewal:
                renewed_at_s = clock.monotonic()
            due = [
                queue
                for queue, reader in self.readers.items()
                if queue not in self._releasing_since
                and reader.gate is not None
                and (is_renewal or not reader.gate.is_locked)
            ]
            if due:
                await self._renew(self._locks, due)

    async def _renew(self, locks: QueueLockKeeper, queues: list[MessageQueue]) -> None:
        granted = await locks.lock(queues)
        for queue in queues:
            reader = self.readers.get(queue)
            if reader is None or reader.gate is None or queue in self._releasing_since:
                continue
            if granted.get(queue):
                await self._resume(queue, reader)
            elif queue in granted or not reader.gate.is_locked:
                if queue in granted:
                    self._lost_locks.add(queue)
                if reader.gate.is_locked or not reader.gate.is_lock_lost:
                    log.warning(events.QUEUE_LOCK_LOST, extra=queue_facts(queue))
                    self._report(self._context.options.on_lost, [queue])
                reader.gate.on_lock_lost()
                reader.gate.requeue()

    async def _resume(self, queue: MessageQueue, reader: QueueReader) -> None:
        """Resumes a locked queue. If another member had the lock meanwhile, reading continues at that
        member's committed offset.
        """
        assert reader.gate is not None
        if queue in self._lost_locks:
            try:
                committed = await self._offsets.read(queue)
            except TandemError as error:
                self._log_commit_failure(queue, error)
                return
            if self.readers.get(queue) is not reader:
                return
            self._lost_locks.discard(queue)
            if committed is not None and committed.offset > reader.committed_offset:
                reader.move_to(committed.offset, committed.seen)
        reader.gate.on_locked()

    # Offsets

    async def run_commits(self) -> None:
        """Commits the offsets of all queues for ever, every `commit_s`."""
        while True:
            await self._context.instance.clock.sleep(self._context.options.commit_s)
            await self.commit()

    async def commit(self) -> bool:
        """Writes the offset of every queue. An unchanged offset is written too, because a replaced broker may
        have an older one.

        Returns False when an offset could not be written; that is logged, and the next commit writes it
        again.
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
                    # The broker does not answer; its other queues need not wait for the same failure.
                    failed.add(queue.broker_name)
        return await self._flush() and is_done

    async def _flush(self) -> bool:
        """Flushes the store; returns False when a file of offsets could not be written. That is logged, and
        the next flush writes it.
        """
        try:
            await self._offsets.flush()
        except TandemError as error:
            log.warning(events.COMMIT_FAILED, extra={"error": str(error)})
            return False
        return True

    async def close(self) -> None:
        """Stops reading and commits for the last time."""
        await self._release(list(self.readers))
        if self._locks is not None:
            await self._locks.unlock(list(self._locks.held))

    async def _write(self, queue: MessageQueue, reader: QueueReader) -> None:
        if queue in self._lost_locks:
            return  # another member has the queue now and commits its offset
        await self._offsets.write(queue, reader.committed_offset, reader.seen)
        self._context.instance.outages.record_success(events.COMMIT_FAILED, queue.broker_name)

    def _log_commit_failure(self, queue: MessageQueue, error: TandemError) -> None:
        facts = {**queue_facts(queue), "error": str(error)}
        self._context.instance.outages.record_failure(log, events.COMMIT_FAILED, queue.broker_name, facts)


RENEW_S: Final = 20.0
TRY_AGAIN_S: Final = 1.0
"""The interval in seconds for trying again to lock a queue whose lock was refused or has expired."""
CALL_TIMEOUT_S: Final = 1.0


class QueueLockKeeper:
    """The broker's locks on the queues of an orderly consumer: acquired, renewed every 20 s, released.

    The keeper sends one request per broker for all its queues. Only the master of a queue grants locks (spec
    replication 8.4). While the master is away no lock can be acquired or renewed: a lock stays valid for 30
    s, then its queue pauses until the master is back. Source: spec semantics 10.5, 10.6.
    """

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self.held: set[MessageQueue] = set()
        """The queues that a broker may have locked for this member, including those whose request was
        cancelled before its answer.
        """

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Requests the locks; returns, per queue, True if it is locked for this member. Queues without an
        answer are missing.
        """
        granted: dict[MessageQueue, bool] = {}
        for broker_name, requested in _by_broker(queues).items():
            self.held.update(requested)
            try:
                held = await self._request_locks(broker_name, requested)
            except TandemError as error:
                self._report_failure(broker_name, error)
                self._context.instance.routes.refresh_soon(requested[0].topic)
                continue
            if held is not None:
                key = (self._context.group, broker_name)
                self._context.instance.outages.record_success(events.QUEUE_LOCK_FAILED, key)
                granted |= {queue: queue in held for queue in requested}
                self.held.difference_update(queue for queue in requested if queue not in held)
        return granted

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Releases the locks for the next member; a broker that cannot be reached frees them after 60 s."""
        instance = self._context.instance
        for broker_name, released in _by_broker(queues).items():
            address = instance.routes.master_address(released[0].topic, broker_name)
            if address is None:
                continue
            try:
                await broker_consume.unlock_queues.within(
                    CALL_TIMEOUT_S, instance.remoting, address, self._describe(released)
                )
            except TandemError as error:
                self._report_failure(broker_name, error)
            self.held.difference_update(released)

    async def _request_locks(
        self, broker_name: str, queues: list[MessageQueue]
    ) -> frozenset[MessageQueue] | None:
        """Returns the locked queues; None when the broker has no master now."""
        instance = self._context.instance
        address = instance.routes.master_address(queues[0].topic, broker_name)
        if address is None:
            instance.routes.refresh_soon(queues[0].topic)
            return None
        return await broker_consume.lock_queues.within(
            CALL_TIMEOUT_S, instance.remoting, address, self._describe(queues)
        )

    def _describe(self, queues: Iterable[MessageQueue]) -> LockRequest:
        return LockRequest(
            client_id=self._context.instance.client_id,
            consumer_group=self._context.group,
            queues=tuple(queues),
        )

    def _report_failure(self, broker_name: str, error: TandemError) -> None:
        facts = {"broker": broker_name, "error": str(error)}
        key = (self._context.group, broker_name)  # consumers of several groups may share the instance
        self._context.instance.outages.record_failure(log, events.QUEUE_LOCK_FAILED, key, facts)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
