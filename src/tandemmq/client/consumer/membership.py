"""Membership in a consumer group, independent of the way in which messages reach the application.

`Membership` joins the group, reads the member's share of the queues into an inbox, commits, and leaves.
`Consumer` and `PushConsumer` are each a `GroupConsumer` with such a membership, and take the messages out of
the inbox. `BrokerRequests` answers requests of brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tandemmq.client.consumer.assignment import Assignment
from tandemmq.client.consumer.inbox import Inbox
from tandemmq.client.consumer.lag import QueueLag, measure_lag
from tandemmq.client.consumer.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from tandemmq.client.consumer.queue_reader import QueueReader, ReaderContext, received
from tandemmq.client.consumer.returning import GroupReturns
from tandemmq.client.consumer.settling import DONE, ReplyingConsumer, Settler
from tandemmq.client.consumer.subscription import (
    ALL,
    Tags,
    check_filters,
    make_subscription,
    parse_subscription,
)
from tandemmq.client.instance import ClientInstance, InstanceUse
from tandemmq.client.options import (
    ConsumerOptions,
    ServerNames,
)
from tandemmq.client.route_cache import FaultyPeers
from tandemmq.errors import (
    ClientError,
    RemoteProtocolError,
    TandemError,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    DirectlyConsumed,
    MessageModel,
)
from tandemmq.protocol.bodies.codec import encode_body, encode_queue_map
from tandemmq.protocol.bodies.progress import ConsumerStatus, decode_reset_offsets, encode_consumer_status
from tandemmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode, render_version
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import ReceivedMessage, require_received
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest
from tandemmq.protocol.topic_names import check_group, retry_topic
from tandemmq.remoting.dispatch import Waiting
from tandemmq.runtime.ports import Disk
from tandemmq.runtime.tasks import TaskScope

LOCAL_OFFSETS_DIR = "~/.rocketmq_offsets"


class Membership:
    """One member of a consumer group. Use it from one event loop only."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames,
        options: ConsumerOptions,
        *,
        instance: ClientInstance | None = None,
        disk: Disk | None = None,
        inbox: Inbox | None = None,
        listener: PushHandler | None = None,
    ) -> None:
        """Creates the member. `instance` is shared with other clients, and this member does not close it.
        `inbox` receives the messages; `listener` is the handler that brokers may call for a single message.
        """
        self.options = options
        self._use = InstanceUse(namesrv, options.client, instance)
        self.instance = self._use.instance
        self._namespace = self.instance.namespace
        self.group = group = self._namespace.wrap(group)
        """The group's name as brokers know it; topics and queues are wrapped in the same way inside this
        class.
        """
        check_group(group)
        self.returns = GroupReturns(self.instance, group, options.retry_count_max)
        self.tasks = TaskScope(f"consumer-{group}", self._on_failure)
        self.inbox = Inbox(options.cached_bytes_max) if inbox is None else inbox
        self._faulty = FaultyPeers()
        self.settler = Settler()
        context = ReaderContext(
            instance=self.instance,
            group=group,
            options=options,
            inbox=self.inbox,
            faulty=self._faulty,
            settler=self.settler,
        )
        self.assignment = Assignment(context, self._make_offsets(disk), self.tasks)
        self._requests = BrokerRequests(self, listener, self.instance.clock.now_ms())
        self._failure: BaseException | None = None
        self.ended = asyncio.Event()
        """Set when the consumer is closed, or a background task has died."""
        self._is_started = False
        self.has_subscribed = False
        """True once a topic was subscribed to, or a queue assigned."""
        self._end_route_watch: Callable[[], None] | None = None

    # Starting and closing

    async def start(self) -> None:
        """Joins as `Consumer.start` does."""
        await self._use.start()
        if self.options.model is MessageModel.CLUSTERING:
            version = self.instance.clock.now_ms()
            self.assignment.subscribe(parse_subscription(retry_topic(self.group), ALL, version))
        self.instance.add_consumer(self)
        self._end_route_watch = self.instance.routes.watch(lambda _: self.assignment.rebalance_soon())
        self.instance.on_failure.append(self._on_client_failure)
        self._is_started = True
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise

    async def _join(self) -> None:
        await self.assignment.open_offsets()
        await self.assignment.load_routes()
        await check_filters(self.instance, self.group, self.assignment.subscriptions)
        await self.instance.beat()
        await self.assignment.rebalance()
        self.tasks.start("rebalance", self.assignment.run())
        self.tasks.start("commit", self.assignment.run_commits())
        if self.options.orderly:
            self.tasks.start("locks", self.assignment.run_locks())

    async def close(self) -> None:
        """Stops reading, commits, and leaves the group. Delivered but unacknowledged messages are delivered
        again.
        """
        if not self._is_started:
            return
        self.instance.check_loop()
        self._is_started = False
        self.ended.set()
        if self._end_route_watch is not None:
            self._end_route_watch()
        self.inbox.close()
        # Stop the tasks first: a running rebalance must not start a queue after the last commit.
        try:
            await self.tasks.close()
            await self.assignment.close()
        finally:
            self.instance.on_failure.remove(self._on_client_failure)
            await self._use.close_member(consumer_group=self.group)

    def check_alive(self) -> None:
        """Raises ClientError when a background task has died, or the consumer is not started."""
        self.instance.check_alive()
        if self._failure is not None:
            raise ClientError(f"the consumer has failed: {self._failure!r}") from self._failure
        if not self._is_started and not self.inbox.is_closed:
            raise ClientError("the consumer is not started")

    def check_reading(self) -> None:
        """Raises as `check_alive`, and also ClientError when nothing was ever subscribed or assigned."""
        self.check_alive()
        if not self.has_subscribed:
            raise ClientError("this consumer has no subscription: call subscribe or assign first")

    # Delivered messages

    def reader_of(self, message: ReceivedMessage) -> QueueReader | None:
        """Returns the reader of the message's queue; None when the queue has moved to another member."""
        return self.assignment.readers.get(queue_of(message))

    def finish(self, message: ReceivedMessage) -> None:
        """Acknowledges the message; does nothing when its queue is no longer assigned here."""
        reader = self.reader_of(message)
        if reader is not None:
            reader.finish(message)

    async def retry_later(
        self, message: ReceivedMessage, *, delay_level: int = 0, delay_s: float | None = None
    ) -> None:
        """Sends a message back as `Consumer.retry_later` does."""
        if delay_s is None:
            await self.returns.retry_at_level(message, delay_level)
        else:
            await self.returns.retry_after(message, delay_s)
        self.finish(message)

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Makes a message a dead letter as `Consumer.dead_letter`."""
        self.check_returnable()
        await self.returns.dead_letter(message, reason)
        self.finish(message)

    def check_returnable(self) -> None:
        """Raises ClientError if messages of this consumer cannot be sent back."""
        if self.options.model is not MessageModel.CLUSTERING:
            raise ClientError("a broadcasting consumer sends no message back: its group shares no messages")

    async def suspend(self, message: ReceivedMessage, *, delay_s: float) -> bool:
        """Puts a message back as `Consumer.suspend` does; returns False when the message went to the dead
        letters and its queue continues.
        """
        count_max = self.options.orderly_retry_count_max
        if 0 <= count_max <= message.retry_count:
            with suppress(TandemError):
                await self.retry_later(message, delay_level=-1)
                return False
        reader = self.reader_of(message)
        if reader is not None and reader.gate is not None:
            reader.gate.put_back(message.queue_offset, delay_s)
        return True

    # Called by the instance

    def describe(self) -> ConsumerData:
        """Returns the description of this consumer for a heartbeat."""
        return ConsumerData(
            group=self.group,
            consume_type=ConsumeType.PASSIVELY,
            message_model=self.options.model,
            consume_from_where=ConsumeFromWhere(self.options.start_from.value),
            subscriptions=tuple(subscription.describe() for subscription in self.assignment.subscriptions),
        )

    def handle_broker_request(self, command: Command) -> Command | Waiting | None:
        """Answers a broker's request about the group."""
        return self._requests.handle(command)

    # Inside

    def _make_offsets(self, disk: Disk | None) -> OffsetStore:
        if self.options.model is MessageModel.CLUSTERING:
            return BrokerOffsets(
                self.instance,
                self.group,
                self._faulty,
                zero_when_none_stored=self.options.zero_when_none_stored,
            )
        from tandemmq.runtime.disk import RealDisk  # only this model has files

        directory = Path(self.options.offsets_dir or LOCAL_OFFSETS_DIR).expanduser()
        return LocalOffsets(disk or RealDisk(), directory, self.group)

    def _on_client_failure(self, error: BaseException) -> None:
        self._on_failure("client", error)

    def _on_failure(self, name: str, error: BaseException) -> None:
        self._failure = error
        self.ended.set()
        self.inbox.close()


class GroupConsumer(ReplyingConsumer):
    """The operations of every consumer whose group shares the queues of its topics. The application's names
    of topics and queues become those of the brokers here.
    """

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._instance = member.instance
        self._namespace = member.instance.namespace
        self._assignment = member.assignment
        self.group = member.group

    def subscribe(self, topic: str, tags: Tags = ALL, *, sql: str | None = None) -> None:
        """Subscribes to a topic: all messages, those with one of the tags in `TagA || TagB` or in a sequence
        of tags, or those matching a SQL92 expression over their properties (`sql="price > 100 AND region =
        'EU'"`).

        May be called before the start, later to add a topic, and again to change the tags. If the topic does
        not exist yet, reading begins when it appears.

        Raises:  BadRequest for an invalid topic name, an expression without a tag, an invalid SQL92
                 expression, or both tags and SQL.
        """
        if self._assignment.is_fixed:
            raise ClientError("this consumer has assigned queues: it cannot also subscribe to topics")
        self._member.has_subscribed = True
        now_ms = self._instance.clock.now_ms()
        self._assignment.subscribe(make_subscription(self._namespace.wrap(topic), tags, sql, now_ms))
        self._instance.beat_soon()

    def unsubscribe(self, topic: str) -> None:
        """Ends the subscription to a topic; its queues go to the other members."""
        self._assignment.unsubscribe(self._namespace.wrap(topic))
        self._instance.beat_soon()

    def pause(self, *queues: MessageQueue) -> None:
        """Stops reading these queues, or all queues if none are named; messages that have arrived are still
        delivered.
        """
        self._assignment.pause([self._namespace.wrap_queue(queue) for queue in queues])

    def resume(self, *queues: MessageQueue) -> None:
        """Resumes reading these queues, or all queues if none are named."""
        self._assignment.resume([self._namespace.wrap_queue(queue) for queue in queues])

    def ack(self, *messages: ReceivedMessage) -> Awaitable[None]:
        """Acknowledges these messages at once: once committed, they are not delivered again. `await` is
        allowed, as for all consumers, and changes nothing.

        A message whose queue has moved to another member is ignored: that member receives it again.
        """
        self.ack_all(messages)
        return DONE

    def ack_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """Acknowledges the messages as `ack` does."""
        for message in messages:
            require_received(message)
            self._member.finish(message)

    async def retry_later(
        self, message: ReceivedMessage, *, delay_level: int = 0, delay_s: float | None = None
    ) -> None:
        """Sends a message back: the broker delivers it again after a delay, and it counts as acknowledged
        here. After the group's limit (16) the message goes to the group's dead letters.

        `delay_level` 0 lets the broker choose: 10 s at first, longer each time. A negative level sends the
        message to the dead letters at once. `delay_s`: after that many seconds, at most three days; brokers
        of RocketMQ 4 round up to their next delay level, at most 2 h.

        If the broker's log has another message at this message's offset by now, this client sends the message
        itself to the group's retry topic.

        Raises:  the error of the call; the message stays unacknowledged then. ClientError for `delay_s` when
                 the consumer is orderly (its queue pauses: `Consumer.suspend`) or broadcasting.
        """
        if delay_s is not None:
            if self._member.options.orderly:
                raise ClientError("an orderly consumer does not retry later: `suspend` pauses the queue")
            self._member.check_returnable()
        await self._member.retry_later(message, delay_level=delay_level, delay_s=delay_s)

    async def dead_letter(self, message: ReceivedMessage, *, reason: str) -> None:
        """Makes a message a dead letter of the group, with the reason in its property `dead_letter_reason`;
        it counts as acknowledged here.

        Raises:  the error of the call; the message stays unacknowledged then. ClientError when the consumer
                 is broadcasting.
        """
        await self._member.dead_letter(message, reason)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer reads now, sorted."""
        return tuple(map(self._namespace.unwrap_queue, sorted(self._assignment.readers)))

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset that a commit would write now, per queue."""
        unwrap = self._namespace.unwrap_queue
        return {unwrap(queue): reader.committed_offset for queue, reader in self._assignment.readers.items()}

    async def lag(self) -> dict[MessageQueue, QueueLag]:
        """Returns the lag of each queue that this consumer reads now, in messages and seconds; those of the
        group's retry topic included.

        Raises:  BrokerUnreachable, RequestTimeout, NoRoute when a broker of such a queue does not answer.
        """
        readers = self._assignment.readers
        positions = {queue: reader.committed_offset for queue, reader in readers.items()}
        lags = await measure_lag(self._instance, self.group, positions)
        return {self._namespace.unwrap_queue(queue): lag for queue, lag in sorted(lags.items())}


def queue_of(message: ReceivedMessage) -> MessageQueue:
    """Returns the queue that a message was read from; for a retried message, a queue of the retry topic."""
    return MessageQueue(
        topic=message.record.topic, broker_name=message.broker_name, queue_id=message.queue_id
    )


# The requests of brokers to a consumer: rebalance, reset offsets, report progress (spec semantics 15, spec
# remoting 9.11).

BYTES_PER_MIB = 1 << 20


class DirectResult(NamedTuple):
    """The result of a handler for one message, by RocketMQ's name for it (CR_SUCCESS, CR_LATER, ...)."""

    name: str
    took_s: float
    remark: str = ""


class TopicStatus(NamedTuple):
    """The handling statistics of a topic: rates per second, and the average time per message in
    milliseconds.
    """

    good_per_s: float
    failed_per_s: float
    took_ms: float
    failed_count: int


class PushHandler(Protocol):
    """The handler of a push consumer."""

    @property
    def worker_count(self) -> int: ...

    async def consume_directly(self, message: ReceivedMessage) -> DirectResult: ...

    def status(self) -> dict[str, TopicStatus]: ...


@dataclass(slots=True, eq=False)
class BrokerRequests:
    """Answers the brokers' requests to one consumer, inside the read of a socket. Only a handler's result is
    awaited.
    """

    member: Membership
    listener: PushHandler | None
    """None for a consumer whose application polls for messages."""
    started_at_ms: int

    def handle(self, command: Command) -> Command | Waiting | None:
        """Returns the answer; None for a one-way request."""
        match command.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self.member.assignment.rebalance_soon()
                return None
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset_offsets(command)
                return None if command.is_oneway else command.reply()
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return command.reply(body=self._status(command.fields.get("topic", "")))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return command.reply(body=self._running_info())
            case _ if self.listener is not None:
                return self._consume_directly(self.listener, command)
            case _:
                # This consumer has no handler that a broker could call: the application polls.
                return command.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark="this consumer has no message handler: its application polls for messages",
                )

    async def _consume_directly(self, listener: PushHandler, command: Command) -> Command:
        """Calls the handler for one message; a body without exactly one message is rejected."""
        records = list(decode_records(command.body))
        if len(records) != 1:
            raise RemoteProtocolError(f"expected one message, got {len(records)}")
        broker_name = command.decode(ConsumeDirectlyRequest).broker_name or ""
        message = received(records[0], broker_name, self.member.instance.namespace)
        message.settler = self.member.settler
        outcome = await listener.consume_directly(message)
        answer = DirectlyConsumed(
            result=outcome.name,
            is_ordered=self.member.options.orderly,
            remark=outcome.remark,
            took_ms=round(outcome.took_s * 1000),
        )
        return command.reply(body=encode_body(answer))

    def _reset_offsets(self, command: Command) -> None:
        """Moves the assigned queues to the offsets that an administrator has set; other queues are
        ignored.
        """
        try:
            offsets = decode_reset_offsets(command.body)
        except RemoteProtocolError:
            return
        for queue, offset in offsets.items():
            reader = self.member.assignment.readers.get(queue)
            if reader is not None and offset >= 0:
                reader.move_to(offset)

    def _status(self, topic: str) -> bytes:
        queues = {
            queue: reader.committed_offset
            for queue, reader in self.member.assignment.readers.items()
            if not topic or queue.topic == topic
        }
        return encode_consumer_status(ConsumerStatus(queues=queues))

    def _running_info(self) -> bytes:
        """Returns RocketMQ's ConsumerRunningInfo, as far as it applies here (spec remoting 11.12)."""
        instance, assignment = self.member.instance, self.member.assignment
        properties = {
            "PROP_NAMESERVER_ADDR": ";".join(instance.name_servers.addresses),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CLIENT_VERSION": render_version(OUR_VERSION),
            "PROP_CONSUMEORDERLY": "true" if self.member.options.orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self.listener.worker_count if self.listener else 1),
            "PROP_CONSUMER_START_TIMESTAMP": str(self.started_at_ms),
        }
        subscriptions = [subscription.describe() for subscription in assignment.subscriptions]
        rows: dict[MessageQueue, dict[str, int | bool]] = {}
        for queue, reader in assignment.readers.items():
            in_flight = reader.in_flight
            rows[queue] = {
                "commitOffset": reader.committed_offset,
                "cachedMsgMinOffset": in_flight.committed_offset if len(in_flight) else 0,
                "cachedMsgMaxOffset": in_flight.next_offset - 1 if len(in_flight) else 0,
                "cachedMsgCount": len(in_flight),
                "cachedMsgSizeInMiB": in_flight.bytes // BYTES_PER_MIB,
                "transactionMsgMinOffset": 0,
                "transactionMsgMaxOffset": 0,
                "transactionMsgCount": 0,
                "locked": reader.gate is not None and reader.gate.is_locked,
                "tryUnlockTimes": 0,
                "lastLockTimestamp": 0,
                "lastPullTimestamp": reader.last_pull_at_ms,
                "lastConsumeTimestamp": reader.last_pull_at_ms,
                # RocketMQ's spelling.
                "droped": False,
            }
        statuses = {
            instance.namespace.wrap(topic): {
                "consumeFailedMsgs": status.failed_count,
                "consumeFailedTPS": status.failed_per_s,
                "consumeOKTPS": status.good_per_s,
                "consumeRT": status.took_ms,
                "pullRT": 0.0,
                "pullTPS": status.good_per_s + status.failed_per_s,
            }
            for topic, status in (self.listener.status() if self.listener else {}).items()
        }
        return b"".join(
            (
                b'{"mqPopTable":{},"mqTable":',
                encode_queue_map(rows),
                b',"properties":',
                encode_body(properties),
                b',"statusTable":',
                encode_body(statuses),
                b',"subscriptionSet":',
                encode_body(subscriptions, has_sets=True),
                b"}",
            )
        )
