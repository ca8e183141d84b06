"""PopConsumer: receives messages for a limited time and acknowledges each one individually; the brokers
decide the distribution.

    async with PopConsumer("billing", "127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders")
        for message in await consumer.receive(count_max=16):
            handle(message.body)
            await consumer.ack(message)

No member owns a queue: all members of the group receive messages from all queues, and a slow member delays no
other. A message that is not acknowledged within its invisible time is delivered again, to any member.

Only masters serve pops. A pop returns the available messages and is never held at a broker. If there are
none, the consumer waits with a notification request, which receives no message. So when a wait is cancelled,
or tags change meanwhile, no message is lost to a cancelled call or skipped because of the old tags.
Source:  spec semantics 14. Needs brokers of RocketMQ 5 or TandemMQ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Self, TypeVar

from tandemmq.api import broker_consume
from tandemmq.client.call_values import to_count, to_number, to_timeout
from tandemmq.client.consumer.returning import GroupReturns
from tandemmq.client.consumer.settling import ReplyingConsumer, Settler
from tandemmq.client.consumer.subscription import ALL, Subscription, Tags, check_filters, make_subscription
from tandemmq.client.consumer.typed_bodies import decode_value
from tandemmq.client.instance import ClientInstance, InstanceUse, settled
from tandemmq.client.options import PopOptions, ServerNames, StartFrom
from tandemmq.client.serializers import Serializer
from tandemmq.errors import ClientError, RequestRejected, TandemError
from tandemmq.protocol.bodies.client import ConsumeFromWhere, ConsumerData, ConsumeType
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import PoppedMessage, require_received
from tandemmq.protocol.requests.consume import ANY_QUEUE, INIT_MAX, INIT_MIN, NotificationRequest, PopRequest
from tandemmq.protocol.topic_names import check_group
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)
T = TypeVar("T")

POLL_S_MAX = 15.0
"""The longest time in seconds for which a broker holds one request; then the next request is sent."""
NEVER_LATE_MS = 1 << 53
"""The time of sending that a pop names. A broker rejects a pop as late by its own clock, which may be ahead
of this one; a pop that does not wait has no other use for the time.
"""
FAILED_PAUSE_S = 1.0
"""The pause before waiting again for a broker that failed."""
FUTILE_PAUSE_S_MIN, FUTILE_PAUSE_S_MAX = 0.01, 0.2
"""The pause before the next pop when a broker announced messages and then returned none: another member was
faster, or the broker delivers none now. The pause doubles each time.
"""
COUNT_MAX = 32
"""The most messages that brokers return for one pop."""
INVISIBLE_S_MAX = 3 * 86_400
"""The longest invisible time in seconds that brokers accept."""
ACKS_AT_ONCE = 64
ACKS_IN_BATCH_MAX = 1024


def longer_pause_s(pause_s: float) -> float:
    """Returns the pause after one more announcement in vain."""
    return min(max(2 * pause_s, FUTILE_PAUSE_S_MIN), FUTILE_PAUSE_S_MAX)


class _Target(NamedTuple):
    """A topic at one broker."""

    topic: str
    broker_name: str


class PopConsumer(ReplyingConsumer):
    """One member of a consumer group. Use it from one event loop only."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames = "",
        *,
        options: PopOptions | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """Creates the consumer. With `instance` it shares that instance's connections, and `close` leaves the
        instance open.
        """
        self.options = options or PopOptions()
        self._use = InstanceUse(namesrv, self.options.client, instance)
        self._instance = self._use.instance
        self._namespace = self._instance.namespace
        self.group = group = self._namespace.wrap(group)
        """The group's name as brokers know it; topics are wrapped in the same way inside this class."""
        check_group(group)
        self._tasks = TaskScope(f"pop-consumer-{group}", self._on_failure)
        self._subscriptions: dict[str, Subscription] = {}
        self._settler = Settler()
        self._turn = 0
        self._without_batches: set[str] = set()
        """The brokers that acknowledge messages only one by one."""
        self._bells: dict[_Target, asyncio.Task[bool]] = {}
        self._failure: BaseException | None = None
        self._is_started = False
        self._has_subscribed = False

    # Starting and closing

    def subscribe(self, topic: str, tags: Tags = ALL, *, sql: str | None = None) -> None:
        """Subscribes as `Consumer.subscribe` does. Messages that are already on their way are still
        delivered.
        """
        wrapped = self._namespace.wrap(topic)
        subscription = make_subscription(wrapped, tags, sql, self._instance.clock.now_ms())
        self._subscriptions[wrapped] = subscription
        self._has_subscribed = True
        self._instance.routes.track(wrapped)
        self._on_change()

    def unsubscribe(self, topic: str) -> None:
        """Ends the subscription to a topic."""
        self._subscriptions.pop(self._namespace.wrap(topic), None)
        self._on_change()

    async def start(self) -> Self:
        """Joins the group. Raises as `Consumer.start`."""
        await self._use.start()
        self._settler.open(self)
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
        """Leaves the group. Unacknowledged messages are delivered again after their invisible time."""
        if not self._is_started:
            return
        self._instance.check_loop()
        self._is_started = False
        try:
            await self._tasks.close()
        finally:
            await self._use.close_member(consumer_group=self.group)

    # Messages

    async def receive(
        self,
        count_max: int = COUNT_MAX,
        *,
        topic: str | None = None,
        invisible_s: float | None = None,
        timeout_s: float = POLL_S_MAX,
    ) -> list[PoppedMessage]:
        """Returns up to `count_max` (32 at most) messages of one topic and broker, which no other member of
        the group gets for `invisible_s`. Waits at most `timeout_s` for the first one; returns an empty list
        when none came. `topic` None: of any subscribed topic.

        A cancelled call gives back the messages that it was about to receive, so it may end a little later.
        An unreachable broker is skipped.

        Raises:  BadRequest for a count or a time out of bounds; the RequestRejected class of a rejection that
                 a broker would repeat; ClientError.
        """
        count_max = to_count("count_max", count_max, 1, COUNT_MAX)
        if invisible_s is not None:
            invisible_s = to_number("invisible_s", invisible_s, 0.001, INVISIBLE_S_MAX)
        if not self._has_subscribed:
            raise ClientError("this consumer has no subscription: call subscribe first")
        only = None if topic is None else self._namespace.wrap(topic)
        if only is not None and only not in self._subscriptions:
            raise ClientError(f"this consumer has no subscription to topic {topic!r}: call subscribe first")
        clock = self._instance.clock
        ends_s = clock.monotonic() + to_timeout(timeout_s)
        invisible_ms = round((self.options.invisible_s if invisible_s is None else invisible_s) * 1000)
        pause_s = 0.0
        while True:
            self._check_alive()
            targets = await self._targets(only)
            for target in targets:
                found = await self._pop(target, count_max, invisible_ms)
                if self.options.serializer is not None:
                    found = await self._decode(found, self.options.serializer)
                if found:
                    return found
            remaining_s = ends_s - clock.monotonic()
            if remaining_s <= 0:
                return []
            if pause_s:
                await clock.sleep(min(pause_s, remaining_s))
            is_announced = await self._wait_for_bell(
                targets, self._topics(only), max(0.0, ends_s - clock.monotonic())
            )
            pause_s = longer_pause_s(pause_s) if is_announced else 0.0

    async def wait_for_message(self, timeout_s: float = POLL_S_MAX) -> bool:
        """Waits until a broker announces a message, without receiving it; returns False after the timeout.
        Another member may get the message first.
        """
        self._check_alive()
        timeout_s = to_timeout(timeout_s)
        return await self._wait_for_bell(await self._targets(None), self._topics(None), timeout_s)

    async def ack(self, *messages: PoppedMessage) -> None:
        """Acknowledges these messages, those of one broker and topic with one request.

        Raises:  the first error, after all were tried; a message whose acknowledgement failed may be
                 delivered again.
        """
        batches: dict[tuple[str, str, int], list[PoppedMessage]] = {}
        for number, message in enumerate(messages):
            require_received(message, PoppedMessage)
            key = (message.topic, message.broker_name, number // ACKS_IN_BATCH_MAX)
            batches.setdefault(key, []).append(message)
        await self._each([*batches.values()], self._ack_batch)

    async def nack(self, *messages: PoppedMessage, delay_s: float = 0.0, counts: bool = True) -> None:
        """Gives these messages back: they are delivered again, to any member, `delay_s` from now.

        `counts` False: the delivery does not count, as no attempt was made; else a message becomes a dead
        letter after the attempts of its group.
        Raises:  BadRequest for a delay out of bounds; the first error, after all were tried: a message whose
                 call failed is delivered again after its invisible time.
        """
        delay_ms = round(to_number("delay_s", delay_s, 0, INVISIBLE_S_MAX) * 1000)
        await self._each(messages, lambda message: self._change(message, delay_ms, is_suspended=not counts))

    async def retry_later(self, message: PoppedMessage, *, delay_s: float | None = None) -> None:
        """Gives a message back as `nack`: it is delivered again `delay_s` from now, or at once."""
        await self.nack(message, delay_s=0.0 if delay_s is None else delay_s)

    async def dead_letter(self, message: PoppedMessage, *, reason: str) -> None:
        """Makes a message a dead letter of the group, with the reason in its property `dead_letter_reason`,
        and acknowledges it.

        Raises:  the error of the call; the message is delivered again after its invisible time then.
        """
        require_received(message, PoppedMessage)
        await GroupReturns(self._instance, self.group, 0).dead_letter(message, reason)
        await self.ack(message)

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Keeps the message invisible for `invisible_s` from now on, or, with a short time, lets it be
        delivered again soon.

        Each call counts as one more delivery (`retry_count`). Raises the error of the call; the message keeps
        its previous invisible time then.
        """
        await self._change(message, round(to_number("invisible_s", invisible_s, 0, INVISIBLE_S_MAX) * 1000))

    async def _change(self, message: PoppedMessage, invisible_ms: int, *, is_suspended: bool = False) -> None:
        require_received(message, PoppedMessage)
        topic = self._namespace.wrap(message.topic)
        lease = await self._instance.ask_master(
            topic,
            message.broker_name,
            broker_consume.change_lease,
            self.group,
            topic,
            message.handle,
            invisible_ms,
            is_suspended=is_suspended,
        )
        message.handle = broker_consume.changed_handle(message.handle, lease)

    # Called by the instance

    def describe(self) -> ConsumerData:
        """Returns the description of this consumer for a heartbeat."""
        return ConsumerData(
            group=self.group,
            consume_type=ConsumeType.POP,
            consume_from_where=ConsumeFromWhere(self.options.start_from.value),
            subscriptions=tuple(one.describe() for one in self._subscriptions.values()),
        )

    def handle_broker_request(self, command: Command) -> Command | None:
        """Answers a broker's request. Changes in the group do not matter here, and this consumer has no
        queues to report.
        """
        if command.is_oneway or command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return None
        return command.reply(
            ResponseCode.SYSTEM_ERROR, remark="this consumer pops its messages; it has no queues"
        )

    # Inside

    async def _each(self, items: Sequence[T], call: Callable[[T], Awaitable[None]]) -> None:
        failure: BaseException | None = None
        for first in range(0, len(items), ACKS_AT_ONCE):
            some = items[first : first + ACKS_AT_ONCE]
            outcomes = await asyncio.gather(*map(call, some), return_exceptions=True)
            failure = failure or next((one for one in outcomes if one is not None), None)
        if failure is not None:
            raise failure

    async def _decode(self, found: list[PoppedMessage], serializer: Serializer) -> list[PoppedMessage]:
        """Returns the messages with a valid body; the others become dead letters, or come again later when
        that fails.
        """
        decoded: list[PoppedMessage] = []
        for number, message in enumerate(found):
            reason = decode_value(message, serializer)
            if reason is None:
                decoded.append(message)
                continue
            try:
                with suppress(TandemError):
                    await self.dead_letter(message, reason=reason)
            except asyncio.CancelledError:
                with suppress(TandemError):
                    await self.nack(*decoded, *found[number:], counts=False)
                raise
        return decoded

    def _topics(self, only: str | None) -> set[str]:
        return self._subscriptions.keys() & {only} if only is not None else set(self._subscriptions)

    async def _targets(self, only: str | None) -> list[_Target]:
        """Returns every broker of every topic, or of one; each call starts with another one."""
        targets: list[_Target] = []
        for topic in sorted(self._topics(only)):
            view = self._instance.routes.get(topic)
            if view is None:
                self._instance.routes.refresh_soon(topic)
                continue
            names = {queue.broker_name for queue in view.subscribe_queues}
            targets += [_Target(topic, name) for name in sorted(names) if view.master_address(name)]
        self._turn += 1
        start = self._turn % len(targets) if targets else 0
        return targets[start:] + targets[:start]

    def _on_change(self) -> None:
        """Restarts the waiting requests, because the subscriptions have changed."""
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
            born_at_ms=NEVER_LATE_MS,
            init_mode=INIT_MIN if self.options.start_from is StartFrom.FIRST else INIT_MAX,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            is_ordered=self.options.ordered,
        )
        try:
            address = self._instance.routes.require_master(*target)
            found = await self._ask(address, target.broker_name, header)
        except TandemError as error:
            self._note_failure(target, error)
            return []
        self._instance.outages.record_success(events.CLIENT_PULL_FAILED, target.broker_name)
        for message in found:
            message.topic = self._namespace.unwrap(message.topic)
            message.settler = self._settler
            if message.body_fault:
                self._instance.report_undecoded(message)
        now = self._subscriptions.get(target.topic, subscription)
        matching = [one for one in found if subscription.matches(one.tags) or now.matches(one.tags)]
        if len(matching) < len(found):
            # The broker compared only hashes: the other messages do not match, and are acknowledged.
            kept = {id(message) for message in matching}
            with suppress(TandemError):  # otherwise they come again, and are acknowledged then
                await self.ack(*(message for message in found if id(message) not in kept))
        return matching

    async def _ask(self, address: str, broker_name: str, header: PopRequest) -> list[PoppedMessage]:
        """Pops from one broker. If cancelled, waits for the answer and gives its messages back."""
        call = broker_consume.pop(self._instance.remoting, address, broker_name, header)
        asking = self._tasks.start(f"pop-{broker_name}", settled(call))
        try:
            found, error = await asyncio.shield(asking)
        except asyncio.CancelledError:
            found, _ = await asking
            for message in found or ():
                message.topic = self._namespace.unwrap(message.topic)
            with suppress(TandemError):
                await self.nack(*(found or ()), counts=False)
            raise
        if error is not None:
            raise error
        return found or []

    async def _wait_for_bell(self, targets: list[_Target], topics: set[str], timeout_s: float) -> bool:
        """Waits until a broker announces a message, or until the timeout; returns True if a broker announced
        one.

        A request to a slower broker stays open for the next call, so that there is at most one per broker.
        """
        if {target.topic for target in targets} != topics:
            timeout_s = min(timeout_s, FAILED_PAUSE_S)  # the route of another topic may appear
        for target, bell in list(self._bells.items()):
            if bell.done():
                del self._bells[target]
        for target in targets:
            if target not in self._bells:
                self._bells[target] = self._tasks.start(f"bell-{target.broker_name}", self._listen(target))
        if not targets:
            await self._instance.clock.sleep(min(timeout_s, FAILED_PAUSE_S))
            return False
        done, _ = await asyncio.wait(
            [self._bells[target] for target in targets],
            timeout=timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        return any(not bell.cancelled() and bell.exception() is None and bell.result() for bell in done)

    async def _listen(self, target: _Target) -> bool:
        """Waits for a notification; returns True if the broker has a message."""
        subscription = self._subscriptions.get(target.topic)
        if subscription is None:
            return False
        header = NotificationRequest(
            consumer_group=self.group,
            topic=target.topic,
            queue_id=ANY_QUEUE,
            poll_ms=round(POLL_S_MAX * 1000),
            born_at_ms=self._instance.clock.now_ms(),
            is_ordered=self.options.ordered,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
        )
        began_s = self._instance.clock.monotonic()
        try:
            address = self._instance.routes.require_master(*target)
            if await broker_consume.wait_for_message(self._instance.remoting, address, header):
                return True
        except TandemError as error:
            self._log_failure(target, error)
            if error.refresh_route:
                self._instance.routes.refresh_soon(target.topic)
        # A broker that answers no early (it holds too many requests, or failed) is asked again later.
        remaining_s = began_s + POLL_S_MAX - self._instance.clock.monotonic()
        if remaining_s > 0:
            await self._instance.clock.sleep(min(remaining_s, FAILED_PAUSE_S))
        return False

    async def _ack_batch(self, messages: list[PoppedMessage]) -> None:
        """Acknowledges messages of one topic at one broker, one by one if the broker lacks batches."""
        broker_name = messages[0].broker_name
        topic = self._namespace.wrap(messages[0].topic)
        if len(messages) > 1 and broker_name not in self._without_batches:
            handles = [message.handle for message in messages]
            batch = broker_consume.batch_of_acks(self.group, topic, broker_name, handles)
            if batch is not None:
                if await self._instance.ask_master(topic, broker_name, broker_consume.ack_batch, batch):
                    return
                self._without_batches.add(broker_name)
        await self._each(messages, self._ack)

    async def _ack(self, message: PoppedMessage) -> None:
        topic = self._namespace.wrap(message.topic)
        await self._instance.ask_master(
            topic, message.broker_name, broker_consume.ack, self.group, topic, message.handle
        )

    def _note_failure(self, target: _Target, error: TandemError) -> None:
        """Raises an error that would occur again; otherwise the next broker is asked, and this one later."""
        if isinstance(error, RequestRejected) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestRejected(
                f"broker {target.broker_name!r} does not serve pops: they need RocketMQ 5 or TandemMQ",
                code=error.code,
            ) from error
        if not (error.retriable or error.refresh_route):
            raise error
        self._log_failure(target, error)
        self._instance.routes.refresh_soon(target.topic)

    def _log_failure(self, target: _Target, error: TandemError) -> None:
        facts = {"topic": target.topic, "broker": target.broker_name, "error": str(error)}
        self._instance.outages.record_failure(log, events.CLIENT_PULL_FAILED, target.broker_name, facts)

    def _check_alive(self) -> None:
        self._instance.check_alive()
        if self._failure is not None:
            raise ClientError(f"the consumer has failed: {self._failure!r}") from self._failure
        if not self._is_started:
            raise ClientError("the consumer is not started, or it is closed")

    def _on_failure(self, name: str, error: BaseException) -> None:
        self._failure = error
