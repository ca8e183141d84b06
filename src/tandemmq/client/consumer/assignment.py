"""The queues of a consumer (`Assignment`): takes them over and gives them up as its group changes, and
commits their offsets; for an orderly consumer under the broker's locks (`QueueLockKeeper`).

All of it happens in one task, one step after the other; the readers run beside it (spec semantics 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from tandemmq.api import broker_consume
from tandemmq.client.consumer.offsets import OffsetStore, StartOffsets
from tandemmq.client.consumer.queue_reader import QueueReader, ReaderSeams
from tandemmq.client.consumer.rebalance import SERVER_STRATEGIES, plan_change
from tandemmq.client.consumer.subscription import Subscription
from tandemmq.client.options import MessageModel
from tandemmq.client.route_cache import RouteView
from tandemmq.errors import ClientError, RequestRejected, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import POP, AssignmentQuery
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger
from tandemmq.units import MASTER_ID

log = event_logger(__name__)

T = TypeVar("T")

UNBALANCED_PAUSE_S = 1.0
"""Before the next try when a step of a rebalance failed or the group has not settled."""
ORDERLY_GRACE_S = 0.5
ORDERLY_GRACE_S_MAX = 20.0
"""How long giving up an orderly queue waits for the application in one rebalance, and in all (spec semantics
10.5)."""
GRACE_STEP_S = 0.02


class Assignment:
    """The readers of the queues that are held now, and the one task that changes them."""

    def __init__(self, seams: ReaderSeams, make_offsets: Callable[[], OffsetStore], tasks: TaskScope) -> None:
        """`make_offsets` is called once, at the first need: the store may depend on the client id."""
        self._seams = seams
        self._make_offsets = make_offsets
        self._offset_store: OffsetStore | None = None
        self._start_offsets: StartOffsets | None = None
        self._tasks = tasks
        self._wanted = asyncio.Event()
        self._subscriptions: dict[str, Subscription] = {}
        self._pull_tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self.readers: dict[MessageQueue, QueueReader] = {}
        options = seams.options
        self._locks = (
            QueueLockKeeper(seams) if options.orderly and options.model is MessageModel.CLUSTERING else None
        )
        self._leaving_since: dict[MessageQueue, float] = {}
        self._lost_locks: set[MessageQueue] = set()
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._fixed: dict[str, set[MessageQueue]] = {}
        self._without_route: set[str] = set()
        self._stale: set[MessageQueue] = set()
        """Queues whose pull, which a broker may hold for long, asks for what is not wanted any more."""

    # What the consumer says

    def subscribe(self, subscription: Subscription) -> None:
        """Take part in a topic from the next rebalance on, which is soon."""
        self._subscriptions[subscription.topic] = subscription
        self._seams.instance.routes.want(subscription.topic)
        for queue, reader in self.readers.items():
            if queue.topic == subscription.topic:
                reader.subscribe(subscription)
                self._stale.add(queue)
        self.rebalance_soon()

    def assign(self, queues: Iterable[MessageQueue], subscriptions: Collection[Subscription]) -> None:
        """Hold exactly these queues of these topics, whoever else is in the group."""
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
        """Give the topic's queues up at the next rebalance, which is soon."""
        self._subscriptions.pop(topic, None)
        self.rebalance_soon()

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(self._subscriptions.values())

    def rebalance_soon(self) -> None:
        """The group, a route or a subscription has changed."""
        self._wanted.set()

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Read these queues, or without any all of them, no further; also when they come later."""
        self._is_paused = self._is_paused or not queues
        self._paused.update(queues)
        self._note_paused()

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Read these queues, or without any all of them, again."""
        if self._is_paused and queues:
            self._paused.update(self.readers)
        self._is_paused = False
        self._paused = self._paused - set(queues) if queues else set()
        self._note_paused()

    def _note_paused(self) -> None:
        for queue, reader in self.readers.items():
            reader.set_paused(self._is_paused or queue in self._paused)

    @property
    def _offsets(self) -> OffsetStore:
        if self._offset_store is None:
            self._offset_store = self._make_offsets()
        return self._offset_store

    @property
    def _starts(self) -> StartOffsets:
        if self._start_offsets is None:
            seams = self._seams
            self._start_offsets = StartOffsets(self._offsets, seams.instance, seams.options)
        return self._start_offsets

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
        while self._stale:
            await self._pull_anew(self._stale.pop())
        for topic in {queue.topic for queue in self.readers} - self._subscriptions.keys():
            await self._give_up([queue for queue in self.readers if queue.topic == topic])
        for topic in sorted(self._subscriptions):
            try:
                is_balanced &= await self._rebalance_topic(topic)
            except TandemError as error:
                self._note_failed(topic, "", error)
                is_balanced = False
            else:
                self._seams.instance.outages.note_success(events.REBALANCE_FAILED, (topic, ""))
        return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        routes = self._seams.instance.routes
        view = routes.get(topic) or await routes.refresh(topic)
        self._starts.note_route(topic, () if view is None else view.subscribe_queues)
        self._note_route(topic, is_known=view is not None)
        if view is None:
            # The retry topic appears with the first heartbeat; nothing is missed until then.
            return is_retry_topic(topic)
        wanted: Iterable[MessageQueue] = view.subscribe_queues
        fixed = self._fixed.get(topic)
        if fixed is not None:
            wanted = fixed.intersection(view.subscribe_queues)
        elif self._seams.options.model is MessageModel.CLUSTERING:
            share = await self._share(view)
            if share is None:
                # The broker does not know us yet, so the others do not count us either.
                self._seams.instance.beat_soon()
                return False
            wanted = share
        change = plan_change([queue for queue in self.readers if queue.topic == topic], wanted)
        if change.lost or change.gained:
            log.info(
                events.QUEUES_REBALANCED,
                extra={"topic": topic, "lost_count": len(change.lost), "gained_count": len(change.gained)},
            )
        leaving = await self._let_finish(change.lost)
        await self._give_up(leaving)
        gained = await self._lock(change.gained)
        taken = await self._take_over_all(gained)
        return len(leaving) == len(change.lost) and taken == len(change.gained)

    def _note_route(self, topic: str, *, is_known: bool) -> None:
        """Say once that a subscribed topic does not exist: it may be a typing error."""
        if is_known:
            self._without_route.discard(topic)
        elif topic not in self._without_route and not is_retry_topic(topic):
            self._without_route.add(topic)
            log.warning(events.SUBSCRIPTION_WITHOUT_ROUTE, extra={"topic": topic, "group": self._seams.group})

    async def _take_over_all(self, queues: Iterable[MessageQueue]) -> int:
        """Begin to read; the count of queues that could be begun. A broker that fails holds up no other."""
        count = 0
        failed: set[str] = set()
        for queue in queues:
            if queue.broker_name in failed:
                continue
            try:
                await self._take_over(queue)
                count += 1
            except TandemError as error:
                failed.add(queue.broker_name)
                if error.refresh_route:
                    self._seams.instance.routes.refresh_soon(queue.topic)
                self._note_failed(queue.topic, queue.broker_name, error)
            else:
                key = queue.topic, queue.broker_name
                self._seams.instance.outages.note_success(events.REBALANCE_FAILED, key)
        return count

    def _note_failed(self, topic: str, broker_name: str, error: TandemError) -> None:
        facts = {"topic": topic, "broker": broker_name, "error": str(error)}
        key = topic, broker_name
        self._seams.instance.outages.note_failure(log, events.REBALANCE_FAILED, key, facts)

    async def _share(self, view: RouteView) -> Collection[MessageQueue] | None:
        """Our queues of a topic; None while its brokers do not count us."""
        instance, group = self._seams.instance, self._seams.group
        ids = await self._ask_first(
            view,
            lambda address: broker_consume.query_consumer_ids(
                instance.remoting, address, group, timeout_s=instance.options.call_timeout_s
            ),
        )
        if not ids or instance.client_id not in ids:
            return None
        own = self._seams.options.allocate(view.subscribe_queues, ids, instance.client_id)
        return await self._assigned_by_broker(view, own) if self._seams.options.server_assignment else own

    async def _assigned_by_broker(
        self, view: RouteView, own: Collection[MessageQueue]
    ) -> Collection[MessageQueue] | None:
        """`own`: what the same strategy gives here, for a broker that does not know the question."""
        instance, options = self._seams.instance, self._seams.options
        query = AssignmentQuery(
            client_id=instance.client_id,
            group=self._seams.group,
            strategy_name=SERVER_STRATEGIES[options.allocate],
            topic=view.topic,
        )

        async def ask(address: str) -> Collection[MessageQueue] | None:
            try:
                rows = await broker_consume.query_assignment(
                    instance.remoting, address, query, timeout_s=instance.options.call_timeout_s
                )
            except RequestRejected as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                return own  # one of RocketMQ 4, whose group may not wait for brokers that do not answer
            if rows is None:
                return None
            if any(row.mode == POP for row in rows):
                why = f"the brokers let group {query.group!r} pop this topic: use a PopConsumer"
                log.warning(events.REBALANCE_FAILED, extra={"topic": view.topic, "error": why})
                return ()
            return [row.queue for row in rows]

        return await self._ask_first(view, ask)

    async def _ask_first(self, view: RouteView, ask: Callable[[str], Awaitable[T | None]]) -> T | None:
        """What the first broker of the topic says that has an answer; None when none has.

        Raises:  the last error, when one failed and none has an answer.
        """
        last: TandemError | None = None
        for _, replicas in sorted(view.addresses.items()):
            for _, address in sorted(replicas.items()):
                try:
                    answer = await ask(address)
                except TandemError as error:
                    last = error
                    continue
                if answer is not None:
                    return answer
        if last is not None:
            raise last
        return None

    async def _take_over(self, queue: MessageQueue) -> None:
        instance = self._seams.instance
        avoided = self._seams.faulty.avoided(instance.clock.monotonic())
        start = await self._starts.find(queue, is_assigned=queue.topic in self._fixed, avoided=avoided)
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:  # the application has left the topic meanwhile
            if self._locks is not None:
                await self._locks.unlock([queue])
            return
        reader = QueueReader(queue, subscription, start, self._seams)
        if reader.gate is not None:
            reader.gate.note_locked()
        reader.set_paused(self._is_paused or queue in self._paused)
        self.readers[queue] = reader
        self._run(queue, reader)

    def _run(self, queue: MessageQueue, reader: QueueReader) -> None:
        name = f"pull-{queue.topic}-{queue.broker_name}-{queue.queue_id}"
        self._pull_tasks[queue] = self._tasks.start(name, reader.run())

    async def open_offsets(self) -> None:
        """Raises ConfigError when the offsets of the group are in a file that cannot be used."""
        await self._offsets.open()

    def require(self, queue: MessageQueue) -> QueueReader:
        """The reader of a queue of ours. Raises ClientError when it is not ours now."""
        reader = self.readers.get(queue)
        if reader is None:
            raise ClientError(f"{queue} is not read by this consumer now")
        return reader

    async def move(self, queue: MessageQueue, offset: int) -> None:
        """Go on in a queue of ours from another offset, at once: a pull that is held is given up.

        Raises:  ClientError when the queue is not ours now.
        """
        self.require(queue).move_to(offset)
        await self._pull_anew(queue)

    async def _pull_anew(self, queue: MessageQueue) -> None:
        """Give the pull of a queue up, which may be held, and ask again if the queue is still ours."""
        reader, task = self.readers.get(queue), self._pull_tasks.get(queue)
        if reader is None or task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if self.readers.get(queue) is reader and self._pull_tasks[queue] is task:
            self._run(queue, reader)

    async def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading, say how far we got; what was handed out and not finished goes to the next owner."""
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
                # The consumer closes: its last commit must know this queue, too.
                self.readers[queue], self._pull_tasks[queue] = reader, task
                raise
            self._leaving_since.pop(queue, None)
            self._lost_locks.discard(queue)
        await self._flush()
        if self._locks is not None:
            await self._locks.unlock(list(queues))

    # Locks of an orderly consumer

    async def _lock(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those that may be taken over now: all, or for an orderly consumer those that it holds."""
        if self._locks is None:
            return list(queues)
        granted = await self._locks.lock(queues)
        return [queue for queue in queues if granted.get(queue)]

    async def _let_finish(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those that may be given up now: an orderly queue when the application is done with what it has."""
        if self._locks is None:
            return list(queues)
        clock = self._seams.instance.clock
        until_s = clock.monotonic() + ORDERLY_GRACE_S
        for queue in queues:
            self._leaving_since.setdefault(queue, clock.monotonic())
            gate = self.readers[queue].gate
            assert gate is not None
            gate.note_lost()
            gate.take_back()
        while not all(map(self._may_leave, queues)) and clock.monotonic() < until_s:
            await clock.sleep(GRACE_STEP_S)
        return [queue for queue in queues if self._may_leave(queue)]

    def _may_leave(self, queue: MessageQueue) -> bool:
        gate = self.readers[queue].gate
        assert gate is not None
        waited_s = self._seams.instance.clock.monotonic() - self._leaving_since[queue]
        return gate.is_idle or waited_s >= ORDERLY_GRACE_S_MAX

    async def run_locks(self) -> None:
        """Renew for ever what is locked, and lock again what is not."""
        clock = self._seams.instance.clock
        renewed_at_s = clock.monotonic()
        while self._locks is not None:
            await clock.sleep(TRY_AGAIN_S)
            is_renewal = clock.monotonic() - renewed_at_s >= RENEW_S
            if is_renewal:
                renewed_at_s = clock.monotonic()
            due = [
                queue
                for queue, reader in self.readers.items()
                if queue not in self._leaving_since
                and reader.gate is not None
                and (is_renewal or not reader.gate.is_locked)
            ]
            if due:
                await self._renew(self._locks, due)

    async def _renew(self, locks: QueueLockKeeper, queues: list[MessageQueue]) -> None:
        granted = await locks.lock(queues)
        for queue in queues:
            reader = self.readers.get(queue)
            if reader is None or reader.gate is None or queue in self._leaving_since:
                continue
            if granted.get(queue):
                await self._resume(queue, reader)
            elif queue in granted or not reader.gate.is_locked:
                if queue in granted:
                    self._lost_locks.add(queue)
                if reader.gate.is_locked or not reader.gate.is_resting:
                    log.warning(
                        events.QUEUE_LOCK_LOST,
                        extra={
                            "topic": queue.topic,
                            "broker": queue.broker_name,
                            "queue_id": queue.queue_id,
                        },
                    )
                reader.gate.note_lost()
                reader.gate.take_back()

    async def _resume(self, queue: MessageQueue, reader: QueueReader) -> None:
        """The queue is ours; where another has had it meanwhile, we go on where that one stopped."""
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
        reader.gate.note_locked()

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
        return await self._flush() and is_done

    async def _flush(self) -> bool:
        """False when a file of offsets could not be written; that is logged, and the next flush does it."""
        try:
            await self._offsets.flush()
        except TandemError as error:
            log.warning(events.COMMIT_FAILED, extra={"error": str(error)})
            return False
        return True

    async def close(self) -> None:
        """Stop reading and commit for the last time."""
        await self._give_up(list(self.readers))
        if self._locks is not None:
            await self._locks.unlock(list(self._locks.held))

    async def _write(self, queue: MessageQueue, reader: QueueReader) -> None:
        if queue in self._lost_locks:
            return  # another has it now, and says how far it is
        await self._offsets.write(queue, reader.committed_offset, reader.seen)
        self._seams.instance.outages.note_success(events.COMMIT_FAILED, queue.broker_name)

    def _log_commit_failure(self, queue: MessageQueue, error: TandemError) -> None:
        facts = {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "error": str(error),
        }
        self._seams.instance.outages.note_failure(log, events.COMMIT_FAILED, queue.broker_name, facts)


RENEW_S: Final = 20.0
TRY_AGAIN_S: Final = 1.0
"""For queues whose lock was refused or has run out."""
CALL_TIMEOUT_S: Final = 1.0


class QueueLockKeeper:
    """The broker's locks on the queues of an orderly consumer: taken, renewed every 20 s, given back.

    It asks the masters, one request per broker for all queues. Only the master of a queue locks (spec
    replication 8.4). While it is away nothing can be locked or renewed: a lock goes on for 30 s, then its
    queue rests until the master is back. Source: spec semantics 10.5, 10.6.
    """

    def __init__(self, seams: ReaderSeams) -> None:
        self._seams = seams
        self._failing: set[str] = set()
        self.held: set[MessageQueue] = set()
        """What a broker may hold for us, also when the task that asked it was cancelled meanwhile."""

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Whether each queue is ours now; queues without an answer are missing."""
        granted: dict[MessageQueue, bool] = {}
        for broker_name, asked in _by_broker(queues).items():
            self.held.update(asked)
            try:
                held = await self._ask(broker_name, asked)
            except TandemError as error:
                self._note_failure(broker_name, error)
                self._seams.instance.routes.refresh_soon(asked[0].topic)
                continue
            if held is not None:
                self._failing.discard(broker_name)
                granted |= {queue: queue in held for queue in asked}
                self.held.difference_update(queue for queue in asked if queue not in held)
        return granted

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Give the queues to whoever asks next; a broker that is not reached frees them after 60 s."""
        instance = self._seams.instance
        for broker_name, given_up in _by_broker(queues).items():
            address = self._master_of(given_up[0])
            if address is None:
                continue
            try:
                await broker_consume.unlock_queues(
                    instance.remoting,
                    address,
                    self._seams.group,
                    instance.client_id,
                    tuple(given_up),
                    timeout_s=CALL_TIMEOUT_S,
                )
            except TandemError as error:
                self._note_failure(broker_name, error)
            self.held.difference_update(given_up)

    async def _ask(self, broker_name: str, queues: list[MessageQueue]) -> frozenset[MessageQueue] | None:
        """None when the broker has no master now."""
        instance = self._seams.instance
        address = self._master_of(queues[0])
        if address is None:
            instance.routes.refresh_soon(queues[0].topic)
            return None
        return await broker_consume.lock_queues(
            instance.remoting,
            address,
            self._seams.group,
            instance.client_id,
            tuple(queues),
            timeout_s=CALL_TIMEOUT_S,
        )

    def _master_of(self, queue: MessageQueue) -> str | None:
        view = self._seams.instance.routes.get(queue.topic)
        return None if view is None else view.addresses.get(queue.broker_name, {}).get(MASTER_ID)

    def _note_failure(self, broker_name: str, error: TandemError) -> None:
        """One line per outage."""
        if broker_name not in self._failing:
            self._failing.add(broker_name)
            log.warning(events.QUEUE_LOCK_FAILED, extra={"broker": broker_name, "error": str(error)})


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
