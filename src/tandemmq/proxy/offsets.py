"""PullMessage, the offset rpcs (GetOffset, UpdateOffset, QueryOffset), and SyncLiteSubscription.

A pull goes to the master of the queue's broker. It commits nothing, leases nothing, and its messages have no
receipt handle.

At a bound: above `held_count_max` pulls in progress, TOO_MANY_REQUESTS.
Source:     spec proxy 5.15, 5.16.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.api import broker_consume
from tandemmq.api.broker_consume import Pulled, PullStatus
from tandemmq.client.consumer.subscription import Subscription
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from tandemmq.proxy.answer_budget import size_of
from tandemmq.proxy.brokers import CALL_S
from tandemmq.proxy.callers import group_name, topic_name
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.meters import Limit
from tandemmq.proxy.outgoing import render_message
from tandemmq.proxy.receive_plan import ANSWER_MS, make_subscription
from tandemmq.proxy.rpc import OK, Caller, Message, Send
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.proxy.values import TIME_MS_MAX, milliseconds

PullMessageResponse = message_class("PullMessageResponse")
UpdateOffsetResponse = message_class("UpdateOffsetResponse")
GetOffsetResponse = message_class("GetOffsetResponse")
QueryOffsetResponse = message_class("QueryOffsetResponse")

_INT32_END: Final = 2**31
_TIMESTAMP: Final = enum_number("QueryOffsetPolicy", "TIMESTAMP")
_END: Final = enum_number("QueryOffsetPolicy", "END")
_BEGINNING: Final = enum_number("QueryOffsetPolicy", "BEGINNING")


class AskedQueue(NamedTuple):
    """The queue of a request."""

    topic: str
    broker_name: str
    queue_id: int


def queue_of(message_queue: Message) -> AskedQueue:
    """Returns the queue of a request.

    Raises:  RpcRefused ILLEGAL_TOPIC, or BAD_REQUEST for a queue without a broker.
    """
    queue = AskedQueue(topic_name(message_queue.topic), message_queue.broker.name, message_queue.id)
    if not queue.broker_name or not 0 <= queue.queue_id < _INT32_END:
        raise RpcRefused(
            Code.BAD_REQUEST, f"queue {queue.queue_id} of broker {queue.broker_name!r}: name both"
        )
    return queue


@dataclass(slots=True)
class PullConsumerHandlers:
    """Serves pulls and offsets."""

    core: ProxyCore
    held_count_max: int = 20_000
    held_count: int = field(default=0, init=False)

    async def handle_pull(self, caller: Caller, request: Message, send: Send) -> None:
        """Handles PullMessage: a status, the messages, and the offset at which to continue."""
        group, queue = group_name(request.group), queue_of(request.message_queue)
        if request.offset < 0:
            raise RpcRefused(Code.ILLEGAL_OFFSET, f"offset {request.offset} must not be negative")
        if request.batch_size <= 0:
            raise RpcRefused(Code.BAD_REQUEST, f"batch_size {request.batch_size} must be at least 1")
        subscription = make_subscription(queue.topic, request.filter_expression, self.core.clock.now_ms())
        if self.held_count >= self.held_count_max:
            raise self.core.traffic.refusal(
                Limit.PULLS, f"this proxy holds {self.held_count} pulls, its most"
            )
        self.core.answers.check_room()
        self.held_count += 1
        try:
            pulled = await self._pull(caller, request, group, queue, subscription)
        finally:
            self.held_count -= 1
        records = _wanted(pulled, request.offset, subscription)
        async with self.core.answers.hold(size_of(records), send) as answer:
            await answer(_elements(request.message_queue.topic, pulled, records))
        self.core.traffic.count_out(records)

    async def _pull(
        self, caller: Caller, request: Message, group: str, queue: AskedQueue, subscription: Subscription
    ) -> Pulled:
        now_s = self.core.clock.monotonic()
        asked_s = min(milliseconds(request.long_polling_timeout), self.core.options.poll_ms_max) / 1000
        hold_s = max(0.0, min(asked_s, caller.deadline_s - now_s - ANSWER_MS / 1000))
        count = min(request.batch_size, self.core.options.batch_max)

        def ask(address: str, remaining_s: float) -> Awaitable[Pulled]:
            hold_ms = max(0, round((now_s + hold_s - self.core.clock.monotonic()) * 1000))
            header = PullRequest(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=request.offset,
                count_max=count,
                sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0),
                committed_offset=0,
                suspend_timeout_ms=hold_ms,
                subscription_version=subscription.version,
                subscription=subscription.expression,
                expression_type=subscription.expression_type,
                broker_name=queue.broker_name,
            )
            return broker_consume.pull(self.core.brokers.remoting, address, header, timeout_s=remaining_s)

        timeout_s = hold_s + CALL_S
        return await self.core.brokers.call_master(queue.topic, queue.broker_name, ask, timeout_s=timeout_s)

    async def handle_update(self, caller: Caller, request: Message) -> Message:
        """Handles UpdateOffset."""
        group, queue = group_name(request.group), queue_of(request.message_queue)
        if request.offset < 0:
            raise RpcRefused(Code.ILLEGAL_OFFSET, f"offset {request.offset} must not be negative")
        await self.core.brokers.ask_master(
            broker_consume.commit_offset,
            queue.topic,
            queue.broker_name,
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            committed_offset=request.offset,
            broker_name=queue.broker_name,
        )
        return UpdateOffsetResponse(status=OK)

    async def handle_get(self, caller: Caller, request: Message) -> Message:
        """Handles GetOffset: the committed offset of the group."""
        group, queue = group_name(request.group), queue_of(request.message_queue)
        offset = await self.core.brokers.ask_master(
            broker_consume.query_committed_offset,
            queue.topic,
            queue.broker_name,
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            zero_if_missing=False,
            broker_name=queue.broker_name,
        )
        if offset is None:
            raise RpcRefused(Code.OFFSET_NOT_FOUND, f"group {group} has no offset in {queue}")
        return GetOffsetResponse(status=OK, offset=offset)

    async def handle_query(self, caller: Caller, request: Message) -> Message:
        """Handles QueryOffset: the begin, the end, or the first offset stored at a time or later."""
        queue = queue_of(request.message_queue)
        policy = request.query_offset_policy
        if policy == _TIMESTAMP and not request.HasField("timestamp"):
            raise RpcRefused(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
        if policy not in (_BEGINNING, _END, _TIMESTAMP):
            raise RpcRefused(Code.BAD_REQUEST, f"unknown policy {policy} of an offset")

        ask, (topic, name, queue_id) = self.core.brokers.ask_master, queue
        if policy == _BEGINNING:
            offset = await ask(broker_consume.query_min_offset, topic, name, topic, queue_id, name)
        elif policy == _END:
            call = broker_consume.query_max_offset
            offset = await ask(call, topic, name, topic, queue_id, broker_name=name)
        else:
            at_ms = min(max(milliseconds(request.timestamp), 0), TIME_MS_MAX)
            offset = await ask(broker_consume.search_offset, topic, name, topic, queue_id, at_ms)
        return QueryOffsetResponse(status=OK, offset=offset)

    async def handle_lite(self, caller: Caller, request: Message) -> Message:
        """Refuses SyncLiteSubscription: brokers have no lite topics."""
        raise RpcRefused(Code.UNSUPPORTED, "lite topics are not supported: use ordinary topics")


def _wanted(pulled: Pulled, offset: int, subscription: Subscription) -> list[Record]:
    """Returns the messages that match: brokers compare only the hashes of tags."""
    if pulled.status is not PullStatus.FOUND:
        return []
    return [
        record
        for record in decode_records(pulled.body)
        if record.queue_offset >= offset and subscription.matches(record.tags)
    ]


def _elements(topic: Message, pulled: Pulled, records: Sequence[Record]) -> Iterator[Message]:
    """Yields the elements of the answer to a pull."""
    yield PullMessageResponse(status=_pull_status(pulled, records))
    for record in records:
        fields = render_message(record, topic=topic.name, namespace=topic.resource_namespace)
        yield PullMessageResponse(message=fields)
    yield PullMessageResponse(next_offset=pulled.next_offset)


def _pull_status(pulled: Pulled, records: Sequence[Record]) -> dict[str, object]:
    if records:
        return OK
    if pulled.status is PullStatus.OFFSET_MOVED:
        code, text = Code.ILLEGAL_OFFSET, f"the queue has {pulled.min_offset} to {pulled.max_offset}"
    else:
        code, text = Code.MESSAGE_NOT_FOUND, "no message is available"
    return {"code": int(code), "message": text}
