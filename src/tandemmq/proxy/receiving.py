"""ReceiveMessage: pops at a broker, and streams the messages.

`receive_plan` checks a request. `ReceiveHandlers` pops, removes messages that the client must not get, and
writes the answer: the status, the messages, the time of delivery.

Invariants: the messages of an answer that was not written as a whole are handed back: they are visible again
            after a second, and the delivery does not count. That holds for a call that is cancelled at any
            point, also while the broker holds the pop.
            Everything about the group comes from its configuration at the brokers, so a proxy also serves
            clients whose settings another proxy got.
At a bound: above `held_count_max` pops in progress, TOO_MANY_REQUESTS. Abandoned ones count until the broker
            has answered them. The messages of clients that do not read are bounded by `AnswerBudget`.
Source:     spec proxy 5.10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tandemmq.api import broker_consume
from tandemmq.api.broker_consume import PopOutcome
from tandemmq.errors import TandemError
from tandemmq.protocol.message import PoppedMessage
from tandemmq.protocol.pop_receipts import parse_handle
from tandemmq.protocol.requests.consume import ANY_QUEUE, INIT_MAX, PopRequest
from tandemmq.proxy.answer_budget import size_of
from tandemmq.proxy.brokers import CALL_S
from tandemmq.proxy.callers import group_name, topic_name
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.handles import Receipt
from tandemmq.proxy.lease_calls import LeaseCalls
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.meters import Limit
from tandemmq.proxy.outgoing import render_message
from tandemmq.proxy.receive_plan import (
    ATTEMPT_ID_CHARS_MAX,
    ReceivePlan,
    check_invisible,
    make_subscription,
    pick_broker,
    poll_time_ms,
)
from tandemmq.proxy.renewal import LeaseOwner, Renewal
from tandemmq.proxy.rpc import OK, Caller, Message, Send
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.settings import attempts_of
from tandemmq.proxy.statuses import Code, RpcRefused, check_bound
from tandemmq.proxy.values import milliseconds, timestamp
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

ReceiveMessageResponse = message_class("ReceiveMessageResponse")

HANDED_BACK_MS: Final = 1_000
"""The invisible time of a message that is handed back."""


@dataclass(slots=True)
class _Poll:
    """A pop in progress: the id and the address with which it can be ended, and True if its call is over."""

    poll_id: str
    address: str = ""
    is_over: bool = False


class _Delivery(NamedTuple):
    """A message for the client, and the receipt of its lease."""

    message: PoppedMessage
    receipt: Receipt


@dataclass(slots=True)
class ReceiveHandlers:
    """Serves ReceiveMessage."""

    core: ProxyCore
    calls: LeaseCalls
    renewal: Renewal
    held_count_max: int = 20_000
    held_count: int = field(default=0, init=False)
    _poll_count: int = field(default=0, init=False)
    _is_stopped: bool = field(default=False, init=False)
    _follow_ups: dict[asyncio.Task[None], None] = field(default_factory=dict, init=False)
    _waiters: dict[asyncio.Future[None], None] = field(default_factory=dict, init=False)
    _lines: LimitedLines = field(init=False)

    def __post_init__(self) -> None:
        self._lines = LimitedLines(self.core.clock)

    async def handle_receive(self, caller: Caller, request: Message, send: Send) -> None:
        """Handles ReceiveMessage."""
        plan = await self._plan(caller, request)
        if self._is_stopped:
            await self._answer(plan, PopOutcome([]), send)
            return
        if self.held_count >= self.held_count_max:
            held = f"this proxy holds {self.held_count} receives, at most {self.held_count_max}"
            raise self.core.traffic.refusal(Limit.RECEIVES, held)
        self.core.answers.check_room()
        self._poll_count += 1
        poll = _Poll(f"{self._poll_count}")
        pop = self.core.tasks.start("pop", self._pop(plan, poll))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held_count += 1
        self._waiters[waiter] = None
        pop.add_done_callback(lambda _: self._on_popped(waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            self._follow_up("abandon", self._abandon(plan, poll, pop))
            raise
        finally:
            self._waiters.pop(waiter, None)
        if not pop.done():  # the proxy stops
            self._follow_up("abandon", self._abandon(plan, poll, pop))
            await self._answer(plan, PopOutcome([]), send)
            return
        outcome = pop.result()
        if isinstance(outcome, Exception):
            raise outcome
        await self._answer(plan, outcome, send)

    async def wait_ended(self, timeout_s: float) -> None:
        """Waits until no pop is held and no message is being handed back, at most `timeout_s`."""
        if self._follow_ups:
            await asyncio.wait(list(self._follow_ups), timeout=timeout_s)

    def stop(self) -> None:
        """Answers all held receives as if no message came, and later ones at once; `held_count` is 0 once the
        pops have ended.
        """
        self._is_stopped = True
        for waiter in list(self._waiters):
            _resolve(waiter)

    def _on_popped(self, waiter: asyncio.Future[None]) -> None:
        self.held_count -= 1
        _resolve(waiter)

    async def _plan(self, caller: Caller, request: Message) -> ReceivePlan:
        """Checks the request in the order of spec proxy 5.9."""
        options = self.core.options
        group, topic = group_name(request.group), topic_name(request.message_queue.topic)
        remaining_ms = (caller.deadline_s - self.core.clock.monotonic()) * 1000
        poll_ms = poll_time_ms(request, remaining_ms, options)
        is_renewed = request.auto_renew and options.renews_leases
        invisible_ms = milliseconds(request.invisible_duration)
        if is_renewed:
            invisible_ms = self.renewal.options.invisible_ms
        else:
            check_invisible(invisible_ms, options.invisible_ms_min, options.invisible_ms_max)
        if request.batch_size <= 0:
            raise RpcRefused(Code.BAD_REQUEST, f"batch_size {request.batch_size} must be at least 1")
        id_size = len(request.attempt_id)
        check_bound(Code.BAD_REQUEST, "attempt_id", id_size, ATTEMPT_ID_CHARS_MAX, "characters")
        subscription = make_subscription(topic, request.filter_expression, self.core.clock.now_ms())
        access = await self.core.brokers.topic(topic)
        config = await self.core.brokers.group(group)
        return ReceivePlan(
            owner=LeaseOwner(caller.client_id, group, topic),
            namespace=request.message_queue.topic.resource_namespace,
            broker_name=pick_broker(request.message_queue.broker.name, access, self.core.chance),
            subscription=subscription,
            batch_size=min(request.batch_size, options.batch_max),
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            is_renewed=is_renewed,
            is_ordered=config.is_orderly,
            attempts_max=attempts_of(config),
            attempt_id=request.attempt_id,
        )

    async def _pop(self, plan: ReceivePlan, poll: _Poll) -> PopOutcome | Exception:
        """Pops at the master of the broker, which may change meanwhile. Returns an error instead of raising
        it: an error of a task would end the scope.
        """
        until_s = self.core.clock.monotonic() + plan.poll_ms / 1000
        _, group, topic = plan.owner

        async def ask(address: str, remaining_s: float) -> PopOutcome:
            if poll.is_over:
                return PopOutcome([])
            poll.address = address
            header = PopRequest(
                consumer_group=group,
                topic=topic,
                queue_id=ANY_QUEUE,
                count_max=plan.batch_size,
                invisible_ms=plan.invisible_ms,
                poll_ms=max(0, round((until_s - self.core.clock.monotonic()) * 1000)),
                init_mode=INIT_MAX,
                expression_type=plan.subscription.expression_type,
                expression=plan.subscription.expression,
                is_ordered=plan.is_ordered,
                attempt_id=plan.attempt_id or None,
                is_renewable=plan.is_renewed or None,
                poll_id=poll.poll_id,
            )
            return await broker_consume.pop_outcome(
                self.core.brokers.remoting, address, plan.broker_name, header, timeout_s=remaining_s
            )

        timeout_s = plan.poll_ms / 1000 + CALL_S
        try:
            return await self.core.brokers.call_master(topic, plan.broker_name, ask, timeout_s=timeout_s)
        except Exception as error:  # noqa: BLE001  # it is raised to the call, whose fault it may be
            return error

    async def _answer(self, plan: ReceivePlan, outcome: PopOutcome, send: Send) -> None:
        """Writes the stream. If that fails, all messages are handed back, even those that were written:
        clients discard the messages of a failed call.
        """
        deliveries = self._select(plan, outcome)
        if plan.is_renewed:
            self.renewal.watch(plan.owner, [one.receipt for one in deliveries])
        is_complete = False
        try:
            async with self.core.answers.hold(
                size_of(one.message.record for one in deliveries), send
            ) as answer:
                await answer(self._elements(plan, outcome, deliveries))
            is_complete = True
            self.core.traffic.count_out(one.message.record for one in deliveries)
        finally:
            if not is_complete:
                self._hand_back(plan, [one.receipt for one in deliveries])

    def _elements(
        self, plan: ReceivePlan, outcome: PopOutcome, deliveries: Sequence[_Delivery]
    ) -> Iterator[Message]:
        """Yields the elements of the answer."""
        yield ReceiveMessageResponse(status=_status(outcome, len(deliveries)))
        for one in deliveries:
            yield ReceiveMessageResponse(message=self._render(plan, one))
        yield ReceiveMessageResponse(delivery_timestamp=timestamp(self.core.clock.now_ms()))

    def _select(self, plan: ReceivePlan, outcome: PopOutcome) -> list[_Delivery]:
        """Returns the messages for the client. Others end here: those that only share the hash of a tag are
        acknowledged, and those tried too often become dead letters.
        """
        found: list[_Delivery] = []
        for message in outcome.messages:
            receipt = self._receipt(plan, message, is_renewable=outcome.is_renewable)
            if not plan.subscription.matches(message.tags):
                self._follow_up("ack-unwanted", self._ack(plan, receipt))
            elif message.retry_count >= plan.attempts_max:
                self._follow_up("dead-letter", self._bury(plan, receipt))
            else:
                found.append(_Delivery(message, receipt))
        return found

    def _receipt(self, plan: ReceivePlan, message: PoppedMessage, *, is_renewable: bool) -> Receipt:
        life_ms = self.renewal.options.life_ms if plan.is_renewed and is_renewable else 0
        handle = parse_handle(message.handle)
        self.calls.note_pop(handle)
        return Receipt(handle, message.record.log_offset, life_ms)

    def _render(self, plan: ReceivePlan, one: _Delivery) -> dict[str, object]:
        return render_message(
            one.message.record,
            topic=plan.owner.topic,
            namespace=plan.namespace,
            receipt_handle=one.receipt.text,
            invisible_ms=plan.invisible_ms,
        )

    # Ends of messages that are not delivered. Each is a task of the scope: the call may be over.

    def _follow_up(self, name: str, coro: Coroutine[Any, Any, None]) -> None:
        task = self.core.tasks.start(name, coro)
        self._follow_ups[task] = None
        task.add_done_callback(lambda _: self._follow_ups.pop(task, None))

    def _hand_back(self, plan: ReceivePlan, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            self.renewal.forget(receipt.text)
        self._follow_up("hand-back", self._change_all(plan, receipts))

    async def _abandon(
        self, plan: ReceivePlan, poll: _Poll, pop: asyncio.Task[PopOutcome | Exception]
    ) -> None:
        """Ends a pop whose call is over. The broker may answer it nevertheless; those messages are handed
        back.
        """
        poll.is_over = True
        if poll.address and not pop.done():
            await self._end_poll(plan, poll)
        await asyncio.wait([pop])
        if pop.cancelled() or isinstance(outcome := pop.result(), Exception):
            return
        try:
            receipts = [self._receipt(plan, message, is_renewable=False) for message in outcome.messages]
        except TandemError as error:  # a handle of another form, with which the message cannot be handed back
            self._log_failure(events.PROXY_HAND_BACK_FAILED, plan, error, logging.INFO)
            return
        await self._change_all(plan, receipts)

    async def _end_poll(self, plan: ReceivePlan, poll: _Poll) -> None:
        _, group, topic = plan.owner
        try:
            await broker_consume.end_poll.within(
                CALL_S,
                self.core.brokers.remoting,
                poll.address,
                consumer_group=group,
                topic=topic,
                queue_id=ANY_QUEUE,
                ended_poll_id=poll.poll_id,
            )
        except TandemError as error:  # the pop is answered at the end of its poll time
            self._log_failure(events.PROXY_HAND_BACK_FAILED, plan, error, logging.INFO)

    async def _change_all(self, plan: ReceivePlan, receipts: Sequence[Receipt]) -> None:
        await asyncio.gather(*(self._change(plan, receipt) for receipt in receipts))

    async def _change(self, plan: ReceivePlan, receipt: Receipt) -> None:
        _, group, topic = plan.owner
        try:
            await self.calls.change(group, topic, receipt, HANDED_BACK_MS, is_suspended=True)
        except TandemError as error:  # the message is visible again after its invisible time
            self._log_failure(events.PROXY_HAND_BACK_FAILED, plan, error, logging.INFO)

    async def _ack(self, plan: ReceivePlan, receipt: Receipt) -> None:
        _, group, topic = plan.owner
        try:
            await self.calls.ack(group, topic, receipt)
        except TandemError as error:  # it is popped again, and acknowledged then
            self._log_failure(events.PROXY_HAND_BACK_FAILED, plan, error, logging.INFO)

    async def _bury(self, plan: ReceivePlan, receipt: Receipt) -> None:
        _, group, topic = plan.owner
        try:
            await self.calls.bury(group, topic, receipt)
        except TandemError as error:  # it is popped again, and becomes a dead letter then
            self._log_failure(events.PROXY_DEAD_LETTER_FAILED, plan, error, logging.WARNING)

    def _log_failure(self, event: str, plan: ReceivePlan, error: TandemError, level: int) -> None:
        client_id, group, topic = plan.owner
        facts = {"client_id": client_id, "group": group, "topic": topic, "error": str(error)}
        self._lines.write(log, event, facts, level=level)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _status(outcome: PopOutcome, count: int) -> dict[str, object]:
    if count:
        return OK
    if outcome.is_full:
        return {"code": int(Code.TOO_MANY_REQUESTS), "message": "the broker holds too many receives"}
    return {"code": int(Code.MESSAGE_NOT_FOUND), "message": "no message is available"}
