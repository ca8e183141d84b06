"""Workers: empty the inbox of a handler by calling it, many messages at a time.

An `async` handler runs in the loop, in one task per worker. A plain handler runs in one thread per worker; a
thread gets several messages at once while many wait, so that a message does not cost a switch between
threads. A handled message is acknowledged; a failed one is sent back to the group (concurrent) or tried again
in its position (orderly). Spec semantics 10.4, 10.5.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, TypeVar, cast

from tandemmq.client.blocking import WorkerThreads
from tandemmq.client.consumer.inbox import Inbox, Received
from tandemmq.client.consumer.membership import DirectResult, Membership, TopicStatus
from tandemmq.client.consumer.typed_bodies import decoding
from tandemmq.client.hooks import ConsumeEvent, chained
from tandemmq.client.options import PushOptions
from tandemmq.client.tracing import (
    EXCEPTION,
    FAILED,
    SUCCESS,
    TIMED_OUT,
    ConsumeObserver,
    Tracer,
)
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.bodies.client import MessageModel
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.remoting.shared_bounds import LineLimit
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)

YIELD_EVERY = 64
"""The number of messages that a worker handles before it yields to the loop, if its handler never waits."""
SHARE_MAX = 32
SHARE_S = 0.02
"""The limits of one thread's share: the number of messages, and the seconds after which it begins no further
one.
"""
TIMED_OUT_LEVEL = 3
"""The delay level of a message whose handler took too long."""
HAND_BACK_AGAIN_S = 5.0
"""The time before a failed message that could not be sent back is handled again."""
WATCH_S_MAX = 1.0
"""The longest interval between checks for handlers that take too long."""
STATUS_S = 60.0
"""The period of a running consumer's rates."""


class ConsumeResult(Enum):
    """The result that a handler may return. RETRY has the effect of an exception, without a line in the
    log.
    """

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"


class HandlerOutcome(NamedTuple):
    """The outcome of a handler call. On success `error` is None and `result` is None or SUCCESS."""

    result: object
    error: BaseException | None
    took_s: float

    @property
    def is_success(self) -> bool:
        return self.error is None and (self.result is None or self.result is ConsumeResult.SUCCESS)


T = TypeVar("T")
Handler = Callable[[ReceivedMessage], object | Awaitable[object]]
BatchHandler = Callable[[list[ReceivedMessage]], object | Awaitable[object]]
AnyHandler = Handler | BatchHandler
AsyncHandler = Callable[[Any], Awaitable[object]]


def is_async_handler(handler: AnyHandler) -> bool:
    """Returns True if the handler runs in the loop, False if it runs in threads."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  # an object with an async __call__
    )


class Share:
    """Messages that one thread handles one after the other."""

    def __init__(
        self,
        deliveries: Iterable[Received],
        handler: Callable[[Any], object],
        clock: Clock,
        *,
        is_orderly: bool,
    ):
        self.not_begun = deque(deliveries)
        self.done: deque[tuple[Received, HandlerOutcome]] = deque()
        self.current: Received | None = None
        self.began_s = 0.0
        self._handler = handler
        self._clock = clock
        self._is_orderly = is_orderly

    def run(self) -> None:
        """Handles the messages; called in the thread. Messages left in `not_begun` were not handled."""
        began_s = now_s = self._clock.monotonic()
        while self._is_orderly or now_s - began_s < SHARE_S:
            try:
                delivery = self.not_begun.popleft()
            except IndexError:
                return
            self.began_s, self.current = now_s, delivery
            result, error = None, None
            try:
                result = self._handler(delivery.message)
            except BaseException as raised:  # noqa: BLE001  # the user's code; what it raises is an outcome
                error = raised  # also SystemExit: in a thread it ends no program, but it would end the loop
            self.current = None
            before_s, now_s = now_s, self._clock.monotonic()
            outcome = HandlerOutcome(result, error, now_s - before_s)
            self.done.append((delivery, outcome))
            if self._is_orderly and not outcome.is_success:
                return


def run_in_thread(handler: Callable[[Any], object], argument: object, clock: Clock) -> HandlerOutcome:
    """Returns the outcome of one call; called in a thread."""
    began_s = clock.monotonic()
    result, error = None, None
    try:
        result = handler(argument)
    except BaseException as raised:  # noqa: BLE001  # see `Share.run`
        error = raised
    return HandlerOutcome(result, error, clock.monotonic() - began_s)


class Workers:
    """The workers of one handler."""

    def __init__(self, handler: AnyHandler, options: PushOptions) -> None:
        self._handler: Callable[[Any], object] = decoding(handler, options.serializer)
        self._options = options
        self._is_plain = not is_async_handler(handler)
        self._runs_in_loop = bool(options.middleware) or not self._is_plain
        call = self._call_in_thread if self._is_plain else cast(AsyncHandler, self._handler)
        self._call = chained(options.middleware, call)
        self._threads: WorkerThreads | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._is_broadcasting = options.model is MessageModel.BROADCASTING
        self._running: dict[asyncio.Task[object], float] = {}
        """The start time of each handler call that runs in the loop."""
        self._overdue: set[asyncio.Task[object]] = set()
        """The tasks that were cancelled because their handler took too long."""
        self._tally: dict[str, _TopicTally] = {}
        self._tracer: Tracer | None = None
        self._observer: ConsumeObserver | None = None

    def start(self, member: Membership, inbox: Inbox) -> None:
        """Handles the messages of the inbox until it is closed."""
        options = self._options
        if options.trace:
            self._tracer = Tracer(member.instance, member.group, "CONSUME", options.trace_topic)
            self._tracer.start()
        metrics = None if options.metrics is None else options.metrics.on_consume
        hooks = tuple(filter(None, (options.on_consume, metrics)))
        if self._tracer is not None or hooks:
            self._observer = ConsumeObserver(member.instance, member.group, hooks, self._tracer)
        self._member, self._inbox, self._clock = member, inbox, member.instance.clock
        self._line_limit = LineLimit(self._clock)
        if self._is_plain:
            self._threads = WorkerThreads(self._options.worker_count)
        if options.consume_timeout_s is not None and not options.orderly:
            member.tasks.start("overdue", self._watch(options.consume_timeout_s))
        work = self.work_in_loop if self._runs_in_loop else self.work_in_thread
        self.tasks = [
            member.tasks.start(f"worker-{number}", work()) for number in range(self._options.worker_count)
        ]

    async def close_trace(self) -> None:
        """Sends the waiting trace records; the client must still be running."""
        if self._tracer is not None:
            await self._tracer.close()

    def close(self) -> None:
        """Lets the threads end when their handlers do."""
        if self._threads is not None:
            self._threads.close()

    # Handling

    async def _call_in_thread(self, argument: object) -> object:
        """Calls a plain handler that middleware surrounds."""
        assert self._threads is not None
        outcome = await self._threads.start(run_in_thread, self._handler, argument, self._clock)
        if outcome.error is None:
            return await outcome.result if inspect.isawaitable(outcome.result) else outcome.result
        if isinstance(outcome.error, Exception):
            raise outcome.error
        raise ClientError(f"the handler raised {outcome.error!r}") from outcome.error

    async def work_in_loop(self) -> None:
        """Handles messages until the inbox is closed."""
        since_yield = 0
        while deliveries := await self._take(1):
            for delivery in deliveries:
                since_yield += 1
                if since_yield >= YIELD_EVERY:
                    since_yield = 0
                    await self._clock.sleep(0)
                call_id = self._begin(delivery.message)
                outcome = await self._await(self._call(delivery.message))
                if not await self._settle(delivery, outcome, call_id):
                    break

    async def work_in_thread(self) -> None:
        """Handles messages until the inbox is closed."""
        assert self._threads is not None
        while True:
            spread = len(self._inbox) // (2 * self._options.worker_count)
            deliveries = await self._take(min(max(spread, 1), SHARE_MAX))
            if not deliveries:
                return
            while deliveries:
                share = Share(deliveries, self._handler, self._clock, is_orderly=self._options.orderly)
                deliveries = await self._follow(share, self._threads.start(share.run))

    async def _follow(self, share: Share, run: asyncio.Future[None]) -> list[Received]:
        """Settles the thread's outcomes; reclaims the messages that wait behind one that takes too long.

        Returns the messages with which an orderly worker continues after a failed message went to the dead
        letters.
        """
        timed_out: Received | None = None
        limit_s = None if self._options.orderly else self._options.consume_timeout_s
        while not run.done():
            await asyncio.wait((run,), timeout=limit_s)
            stuck = share.current
            if limit_s is None or stuck is None or stuck is timed_out:
                continue
            if self._clock.monotonic() - share.began_s >= limit_s:
                timed_out = stuck
                self._inbox.put_back(_drain(share.not_begun))
                call_id = self._begin(stuck.message, limit_s)
                await self._settle(stuck, HandlerOutcome(None, TimedOut(), limit_s), call_id)
        await run
        must_wait = False
        for delivery, outcome in share.done:
            if delivery is not timed_out:
                call_id = self._begin(delivery.message, outcome.took_s)
                must_wait = not await self._settle(delivery, await self._complete(outcome), call_id)
        if self._options.orderly:
            return [] if must_wait else list(share.not_begun)
        self._inbox.put_back(share.not_begun)
        return []

    async def _take(self, count_max: int) -> list[Received]:
        """Returns messages for one worker; for an orderly worker the messages of a queue that were delivered
        together.

        Returns an empty list when the consumer is closed.
        """
        while True:
            await self._inbox.wait()
            if self._inbox.is_closed:
                return []
            with suppress(TandemError):  # the reader has logged the error and continues
                if self._options.orderly:
                    found = self._inbox.take_together(self._options.orderly_batch_count_max)
                else:
                    found = self._inbox.take_some(count_max)
                if found:
                    return found

    async def _complete(self, outcome: HandlerOutcome) -> HandlerOutcome:
        """Awaits the result of a plain handler if it is awaitable."""
        if not inspect.isawaitable(outcome.result):
            return outcome
        return await self._await(outcome.result)

    async def _await(self, running: Awaitable[object]) -> HandlerOutcome:
        """Returns the outcome of a coroutine of the user; `_watch` cancels it after `consume_timeout_s`."""
        task = asyncio.current_task()
        assert task is not None
        began_s = self._running[task] = self._clock.monotonic()
        result: object = None
        error: BaseException | None = None
        try:
            result = await running
        except asyncio.CancelledError as raised:
            if self._member.tasks.is_closed:
                raise
            error = raised
        except Exception as raised:  # noqa: BLE001  # the user's code; what it raises is an outcome
            error = raised
        finally:
            del self._running[task]
            if task in self._overdue:
                self._overdue.discard(task)
                error = None if error is None else TimedOut()
        took_s = self._clock.monotonic() - began_s
        if task.cancelling() and not self._member.tasks.is_closed:
            # By `_watch`, or by the handler, which may cancel its own task: the worker continues.
            with suppress(asyncio.CancelledError):
                await self._clock.sleep(0)  # the handler may end before the cancellation reaches it
            while task.cancelling():
                task.uncancel()
        return HandlerOutcome(result, error, took_s)

    async def _run(self, argument: object, settle: Callable[[HandlerOutcome], Awaitable[T]]) -> T:
        """Calls the handler once, and returns the answer of `settle` for the outcome.

        A thread that takes too long keeps its worker until it ends; its outcome is settled before.
        """
        if self._runs_in_loop:
            return await settle(await self._await(self._call(argument)))
        assert self._threads is not None
        options = self._options
        # In order by key a thread, which nothing can stop, must not overlap with the next attempt or message.
        limit_s = None if options.orderly or options.order_key is not None else options.consume_timeout_s
        run = self._threads.start(run_in_thread, self._handler, argument, self._clock)
        await asyncio.wait((run,), timeout=limit_s)
        if limit_s is None or run.done():
            return await settle(await self._complete(await run))
        settled = await settle(HandlerOutcome(None, TimedOut(), limit_s))
        await run
        return settled

    def _begin(self, message: ReceivedMessage, ago_s: float = 0.0) -> str:
        """Returns the trace id for a handler call that begins now, or began some time ago."""
        return "" if self._observer is None else self._observer.begin(message, ago_s)

    async def _watch(self, limit_s: float) -> None:
        """Cancels handlers that take too long. One task watches all calls: a timer per message would cost
        more than all the other work for the message here.
        """
        while True:
            await self._clock.sleep(min(limit_s / 4, WATCH_S_MAX))
            since_s = self._clock.monotonic() - limit_s
            for task, began_s in list(self._running.items()):
                if began_s <= since_s and task not in self._overdue:
                    self._overdue.add(task)
                    task.cancel()

    async def _settle(
        self, delivery: Received, outcome: HandlerOutcome, call_id: str, *, is_logged: bool = True
    ) -> bool:
        """Acts on the outcome; returns False when the message is to be handled again in its position."""
        message = delivery.message
        self._count(message.topic, outcome)
        if self._observer is not None:
            event = ConsumeEvent(message, outcome.is_success, outcome.error, outcome.took_s)
            self._observer.end(call_id, event, _trace_code(outcome))
        if outcome.is_success:
            delivery.source.finish(message)
            return True
        if is_logged and outcome.result is not ConsumeResult.RETRY:
            self._log_failure(message, outcome)
        if not delivery.source.holds(message):
            return True  # its queue has another owner now, or was moved: the message is delivered again there
        return await self._settle_failure(delivery, outcome)

    async def _settle_failure(self, delivery: Received, outcome: HandlerOutcome) -> bool:
        """Sends a failed message back, or puts it back into its queue; returns as `_settle`."""
        message = delivery.message
        if self._options.orderly:
            delay_s = self._retry_delay_s(message)
            return not await self._member.suspend(
                message, delay_s=self._options.orderly_suspend_s if delay_s is None else delay_s
            )
        level = TIMED_OUT_LEVEL if isinstance(outcome.error, TimedOut) else self._options.retry_delay_level
        await self._hand_back(delivery, level)
        return True

    def _retry_delay_s(self, message: ReceivedMessage) -> float | None:
        """Returns the delay by `retry_delays_s`; None without one."""
        delays_s = self._options.retry_delays_s
        return delays_s[min(message.retry_count, len(delays_s) - 1)] if delays_s else None

    async def _hand_back(self, delivery: Received, delay_level: int) -> None:
        """Sends a failed message back to the group; if no broker accepts it, it is handled again here a
        little later.
        """
        message = delivery.message
        if self._is_broadcasting:
            delivery.source.finish(message)
            return
        try:
            await self._member.retry_later(
                message, delay_level=delay_level, delay_s=self._retry_delay_s(message)
            )
        except TandemError as error:
            self._log_unreturned(message, error)
            message.note_retry()
            self._clock.call_later(HAND_BACK_AGAIN_S, self._handle_again, delivery)

    def _log_unreturned(self, message: ReceivedMessage, error: TandemError) -> None:
        log.warning(events.SEND_BACK_FAILED, extra={"unique_key": message.message_id, "error": str(error)})

    def _handle_again(self, delivery: Received) -> None:
        if delivery.source.holds(delivery.message):
            self._inbox.put_back((delivery,))

    def _log_failure(self, message: ReceivedMessage, outcome: HandlerOutcome) -> None:
        """Logs a failed call; during a flood of failures only some of them, with the number of the others."""
        suppressed = self._line_limit.admit()
        if suppressed is None:
            return
        error = outcome.error or ClientError(
            f"a handler must return None or a ConsumeResult, not {outcome.result!r:.64}"
        )
        log.warning(
            events.CONSUME_TIMED_OUT if isinstance(error, TimedOut) else events.CONSUME_FAILED,
            extra={
                "topic": message.topic,
                "queue_id": message.queue_id,
                "queue_offset": int(message.queue_offset),
                "unique_key": message.message_id,
                "retry_count": message.retry_count,
                **suppressed,
            },
            exc_info=None if isinstance(error, TimedOut) else error,
        )

    # Called for requests of brokers

    @property
    def worker_count(self) -> int:
        return self._options.worker_count

    async def consume_directly(self, message: ReceivedMessage) -> DirectResult:
        """Calls the handler for one message that an administrator has chosen; nothing is committed."""
        return await self._run(message, direct_result)

    def status(self) -> dict[str, TopicStatus]:
        """Returns the rates per topic, over the last minute."""
        now_s = self._clock.monotonic()
        return {topic: tally.status(now_s) for topic, tally in self._tally.items()}

    def _count(self, topic: str, outcome: HandlerOutcome) -> None:
        tally = self._tally.get(topic)
        if tally is None:
            tally = self._tally[topic] = _TopicTally()
        tally.add(self._clock.monotonic(), outcome)


async def direct_result(outcome: HandlerOutcome) -> DirectResult:
    """Returns the outcome by RocketMQ's name for it."""
    if outcome.error is not None:
        return DirectResult("CR_THROW_EXCEPTION", outcome.took_s, repr(outcome.error))
    return DirectResult("CR_SUCCESS" if outcome.is_success else "CR_LATER", outcome.took_s)


class TimedOut(Exception):
    """The handler took longer than `consume_timeout_s`."""


class _TopicTally:
    """The counts of the current and of the previous minute."""

    __slots__ = ("_before", "_now", "_since_s", "failed_count")

    def __init__(self) -> None:
        self._before = [0, 0, 0.0]
        self._now = [0, 0, 0.0]
        self._since_s = float("-inf")
        self.failed_count = 0

    def add(self, now_s: float, outcome: HandlerOutcome) -> None:
        self._turn(now_s)
        self._now[0 if outcome.is_success else 1] += 1
        self._now[2] += outcome.took_s
        self.failed_count += not outcome.is_success

    def status(self, now_s: float) -> TopicStatus:
        self._turn(now_s)
        span_s = STATUS_S + now_s - self._since_s
        good, bad, took_s = (before + now for before, now in zip(self._before, self._now, strict=True))
        return TopicStatus(
            good / span_s,
            bad / span_s,
            took_s * 1000 / (good + bad) if good + bad else 0.0,
            self.failed_count,
        )

    def _turn(self, now_s: float) -> None:
        elapsed_s = now_s - self._since_s
        if elapsed_s < STATUS_S:
            return
        self._before = self._now if elapsed_s < 2 * STATUS_S else [0, 0, 0.0]
        self._now, self._since_s = [0, 0, 0.0], now_s


def _trace_code(outcome: HandlerOutcome) -> str:
    if outcome.is_success:
        return SUCCESS
    if isinstance(outcome.error, TimedOut):
        return TIMED_OUT
    return FAILED if outcome.error is None else EXCEPTION


def _drain(deliveries: deque[Received]) -> list[Received]:
    """Removes and returns all messages, one by one, because another thread removes messages too."""
    drained: list[Received] = []
    with suppress(IndexError):
        while True:
            drained.append(deliveries.popleft())
    return drained
