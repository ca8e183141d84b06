"""PopConsumer: takes messages for a time and acknowledges each by itself; the brokers see to who gets what.

    async with PopConsumer("billing", "127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders")
        for message in await consumer.receive(count_max=16):
            handle(message.body)
            await consumer.ack(message)

No queue belongs to anybody: all members of the group take messages from all queues, and a slow one holds up
nobody. A message that was not acknowledged within its invisible time comes again, to whoever asks.

A pop takes what is there and is never held at a broker; who finds nothing waits for a bell, a question that
takes nothing. So when a wait is cancelled, or tags change meanwhile, no message is taken for nobody, or
passed over because of the old tags.
Source:  spec semantics 14. Needs brokers of RocketMQ 5 or ours.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Self

from tandemmq.api import broker_consume
from tandemmq.client.consumer.subscription import ALL, Subscription, check_filters, make_subscription
from tandemmq.client.instance import Client, ClientInstance, InstanceUse
from tandemmq.client.options import PopOptions, ServerNames, StartFrom
from tandemmq.errors import ClientError, NoRoute, TandemError
from tandemmq.protocol.bodies.client import ConsumeFromWhere, ConsumerData, ConsumeType
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import PoppedMessage
from tandemmq.protocol.requests.consume import ANY_QUEUE, INIT_MAX, INIT_MIN, NotificationRequest, PopRequest
from tandemmq.protocol.topic_names import check_group
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)

POLL_S_MAX = 15.0
"""One request is held no longer; then the next one is sent."""
FAILED_PAUSE_S = 1.0
"""Before a broker that failed is waited for again."""
FUTILE_PAUSE_S_MIN, FUTILE_PAUSE_S_MAX = 0.01, 0.2
"""Before the next question when a broker had something, and then gave nothing: another member was faster, or
the broker gives nothing now. Doubles with each time.
"""
ACKS_AT_ONCE = 64


class _Target(NamedTuple):
    """A broker of a topic."""

    topic: str
    broker_name: str


class PopConsumer(Client):
    """One member of a consumer group; used from one event loop."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames = "",
        *,
        options: PopOptions | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """`instance`: share the connections of another client, which then is not closed by this consumer."""
        self.options = options or PopOptions()
        self._use = InstanceUse(namesrv, self.options.client, instance)
        self._instance = self._use.instance
        self._namespace = self._instance.namespace
        self.group = group = self._namespace.wrap(group)
        """As brokers know it; so are all topics inside."""
        check_group(group)
        self._tasks = TaskScope(f"pop-consumer-{group}", self._on_failure)
        self._subscriptions: dict[str, Subscription] = {}
        self._turn = 0
        self._bells: dict[_Target, asyncio.Task[bool]] = {}
        self._failure: BaseException | None = None
        self._is_started = False
        self._has_subscribed = False

    # Life

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """As `Consumer.subscribe`. What is on its way already still comes."""
        wrapped = self._namespace.wrap(topic)
        subscription = make_subscription(wrapped, tags, sql, self._instance.clock.now_ms())
        self._subscriptions[wrapped] = subscription
        self._has_subscribed = True
        self._instance.routes.want(wrapped)
        self._note_change()

    def unsubscribe(self, topic: str) -> None:
        """Take no more of a topic."""
        self._subscriptions.pop(self._namespace.wrap(topic), None)
        self._note_change()

    async def start(self) -> Self:
        """Join the group. Raises as `Consumer.start`."""
        await self._use.start()
        self._instance.add_consumer(self)
        self._is_started = True
        try:
            for topic in self._subscriptions:
                await self._instance.routes.refresh(topic)
            await check_filters(self._instance, self.group, self._subscriptions.values())
            await self._instance.beat()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Leave the group. What was received and not acknowledged comes again after its invisible time."""
        if not self._is_started:
            return
        self._is_started = False
        try:
            await self._tasks.close()
        finally:
            await self._use.close_member(consumer_group=self.group)

    # Messages

    async def receive(
        self, count_max: int = 32, *, invisible_s: float | None = None, timeout_s: float = POLL_S_MAX
    ) -> list[PoppedMessage]:
        """Up to `count_max` (32 at most) messages of one topic and broker, which nobody else of the group
        gets for `invisible_s`; waits for the first one at most `timeout_s`, and is empty when none came.

        What a cancelled call was about to receive comes again after the invisible time. A broker that cannot
        be reached is passed over.

        Raises:  the RequestRejected class of what a broker will refuse again, ClientError.
        """
        if not self._has_subscribed:
            raise ClientError("this consumer reads nothing: call subscribe first")
        clock = self._instance.clock
        ends_s = clock.monotonic() + timeout_s
        invisible_ms = round((self.options.invisible_s if invisible_s is None else invisible_s) * 1000)
        pause_s = 0.0
        while True:
            self._check_alive()
            targets = await self._targets()
            for target in targets:
                found = await self._pop(target, count_max, invisible_ms)
                if found:
                    return found
            left_s = ends_s - clock.monotonic()
            if left_s <= 0:
                return []
            if pause_s:
                await clock.sleep(min(pause_s, left_s))
            has_rung = await self._wait_for_bell(targets, max(0.0, ends_s - clock.monotonic()))
            pause_s = min(max(2 * pause_s, FUTILE_PAUSE_S_MIN), FUTILE_PAUSE_S_MAX) if has_rung else 0.0

    async def ack(self, *messages: PoppedMessage) -> None:
        """These messages are done with.

        Raises:  the first error, after all were tried; a message whose acknowledgement failed may come again.
        """
        for first in range(0, len(messages), ACKS_AT_ONCE):
            some = messages[first : first + ACKS_AT_ONCE]
            outcomes = await asyncio.gather(*map(self._ack, some), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Keep the message for so long from now on, or, with a short time, let it come again soon.

        It counts as delivered once more then (`retry_count`). Raises the error of the call: the message
        keeps the time that it had.
        """
        topic, remoting = self._namespace.wrap(message.topic), self._instance.remoting
        invisible_ms = round(invisible_s * 1000)
        message.handle = await self._instance.ask_master(
            topic,
            message.broker_name,
            lambda address, left_s: broker_consume.change_invisible(
                remoting, address, self.group, topic, message.handle, invisible_ms, timeout_s=left_s
            ),
            timeout_s=self._instance.options.call_timeout_s,
        )

    # What the instance asks

    def describe(self) -> ConsumerData:
        """This consumer in a heartbeat."""
        return ConsumerData(
            group=self.group,
            consume_type=ConsumeType.POP,
            consume_from_where=ConsumeFromWhere(self.options.start_from.value),
            subscriptions=tuple(one.describe() for one in self._subscriptions.values()),
        )

    def handle_broker_request(self, command: Command) -> Command | None:
        """Who else is in the group does not matter here, and there is no queue of ours to tell of."""
        if command.is_oneway or command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return None
        return command.reply(
            ResponseCode.SYSTEM_ERROR, remark="this consumer pops its messages; it owns no queues"
        )

    # Inside

    async def _targets(self) -> list[_Target]:
        """Every broker of every topic; another one comes first each time."""
        targets: list[_Target] = []
        for topic in sorted(self._subscriptions):
            view = self._instance.routes.get(topic)
            if view is None:
                self._instance.routes.refresh_soon(topic)
                continue
            names = {queue.broker_name for queue in view.subscribe_queues}
            targets += [_Target(topic, name) for name in sorted(names) if view.master_address(name)]
        self._turn += 1
        start = self._turn % len(targets) if targets else 0
        return targets[start:] + targets[:start]

    def _note_change(self) -> None:
        """Other messages are wanted: who waits asks anew."""
        self._instance.beat_soon()
        for bell in self._bells.values():
            bell.cancel()

    async def _pop(self, target: _Target, count_max: int, invisible_ms: int) -> list[PoppedMessage]:
        subscription = self._subscriptions.get(target.topic)
        if subscription is None:
            return []
        header = PopRequest(
            consumer_group=self.group,
            topic=target.topic,
            queue_id=ANY_QUEUE,
            count_max=count_max,
            invisible_ms=invisible_ms,
            poll_ms=0,
            born_at_ms=self._instance.clock.now_ms(),
            init_mode=INIT_MIN if self.options.start_from is StartFrom.FIRST else INIT_MAX,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            is_ordered=False,
        )
        try:
            address = self._address(*target)
            found = await broker_consume.pop(self._instance.remoting, address, target.broker_name, header)
        except TandemError as error:
            self._note_failure(target, error)
            return []
        self._instance.outages.note_success(events.CLIENT_PULL_FAILED, target.broker_name)
        for message in found:
            message.topic = self._namespace.unwrap(message.topic)
            if message.body_fault:
                self._instance.note_undecoded(message)
        now = self._subscriptions.get(target.topic, subscription)
        wanted = [one for one in found if subscription.matches(one.tags) or now.matches(one.tags)]
        if len(wanted) < len(found):
            # The broker compared hashes only: nobody wants the others.
            kept = {id(message) for message in wanted}
            await self.ack(*(message for message in found if id(message) not in kept))
        return wanted

    async def _wait_for_bell(self, targets: list[_Target], timeout_s: float) -> bool:
        """Returns when one of the brokers may have something, or after the time; whether one says so.

        A question to a broker goes on when another one was faster, so that there is one per broker at most.
        """
        if {target.topic for target in targets} != self._subscriptions.keys():
            timeout_s = min(timeout_s, FAILED_PAUSE_S)  # the route of another topic may come
        for target, bell in list(self._bells.items()):
            if bell.done():
                del self._bells[target]
        for target in targets:
            if target not in self._bells:
                self._bells[target] = self._tasks.start(f"bell-{target.broker_name}", self._listen(target))
        if not self._bells:
            await self._instance.clock.sleep(min(timeout_s, FAILED_PAUSE_S))
            return False
        done, _ = await asyncio.wait(
            self._bells.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        return any(not bell.cancelled() and bell.exception() is None and bell.result() for bell in done)

    async def _listen(self, target: _Target) -> bool:
        """Whether the broker has something."""
        subscription = self._subscriptions.get(target.topic)
        if subscription is None:
            return False
        header = NotificationRequest(
            consumer_group=self.group,
            topic=target.topic,
            queue_id=ANY_QUEUE,
            poll_ms=round(POLL_S_MAX * 1000),
            born_at_ms=self._instance.clock.now_ms(),
            is_ordered=False,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
        )
        began_s = self._instance.clock.monotonic()
        try:
            if await broker_consume.wait_for_message(self._instance.remoting, self._address(*target), header):
                return True
        except TandemError as error:
            self._log_failure(target, error)
            if error.refresh_route:
                self._instance.routes.refresh_soon(target.topic)
        # A broker that says no before the time (it holds too many requests, or failed) is asked later.
        left_s = began_s + POLL_S_MAX - self._instance.clock.monotonic()
        if left_s > 0:
            await self._instance.clock.sleep(min(left_s, FAILED_PAUSE_S))
        return False

    async def _ack(self, message: PoppedMessage) -> None:
        topic, remoting = self._namespace.wrap(message.topic), self._instance.remoting
        await self._instance.ask_master(
            topic,
            message.broker_name,
            lambda address, left_s: broker_consume.ack(
                remoting, address, self.group, topic, message.handle, timeout_s=left_s
            ),
            timeout_s=self._instance.options.call_timeout_s,
        )

    def _address(self, topic: str, broker_name: str) -> str:
        """Only a master serves what is about popped messages. Raises NoRoute while there is none."""
        view = self._instance.routes.get(topic)
        address = None if view is None else view.master_address(broker_name)
        if address is None:
            self._instance.routes.refresh_soon(topic)
            raise NoRoute(f"broker {broker_name!r} has no master for topic {topic!r}")
        return address

    def _note_failure(self, target: _Target, error: TandemError) -> None:
        """Raises what would fail again; else the next broker is asked, and this one later."""
        if not (error.retriable or error.refresh_route):
            raise error
        self._log_failure(target, error)
        self._instance.routes.refresh_soon(target.topic)

    def _log_failure(self, target: _Target, error: TandemError) -> None:
        facts = {"topic": target.topic, "broker": target.broker_name, "error": str(error)}
        self._instance.outages.note_failure(log, events.CLIENT_PULL_FAILED, target.broker_name, facts)

    def _check_alive(self) -> None:
        self._instance.check_alive()
        if self._failure is not None:
            raise ClientError(f"the consumer has failed: {self._failure!r}") from self._failure
        if not self._is_started:
            raise ClientError("the consumer is not started, or closed")

    def _on_failure(self, name: str, error: BaseException) -> None:
        self._failure = error
