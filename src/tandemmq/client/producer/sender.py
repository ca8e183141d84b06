"""Sends shipments to brokers: queue choice, connections, retries. No task and no timer per message.

Between `dispatch` and the result there are only plain calls: the answer's callback runs inside the read of
the socket. Only a missing route or connection needs a task, one for all shipments that wait for it.

If the only broker for a message fails, its group may have another master in a moment: the send is retried
until its deadline. A send is also retried if its broker is silent while the routes name another master, and
if the topic has no such queue any more: the refreshed route names the queues that are left. A send to a queue
that the caller chose fails then, because only the caller can choose another one.

The queues of a topic take turns (`QueueChoice`), and brokers that failed are skipped. The turn starts at a
random queue, so that many producers that start together do not all begin with queue 0, and advances by one
per choice. If every queue is on a failed broker, the plain turn decides, because a suspected broker is better
than none (spec semantics 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from tandemmq.api.broker_send import SendStatus, read_send_answer, send_command
from tandemmq.client.instance import OUTAGE_PAUSE_MS, OUTAGES, SILENT_S, ClientInstance
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.packer import Shipment
from tandemmq.client.route_cache import FaultyPeers, RouteView
from tandemmq.errors import (
    BrokerUnreachable,
    MessageIllegal,
    NoRoute,
    QueueNotFound,
    RequestRejected,
    RequestTimeout,
    TandemError,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.codes import ResponseCode, render_version
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import TimerHandle
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)

RETRY_CODES = frozenset(
    int(code)
    for code in (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    )
)
"""The rejections that another broker, or the same one a moment later, may not repeat (spec semantics 3.3)."""

RETRY_PAUSE_S = 0.1
"""The pause before trying the same broker again; doubles with each attempt."""

WATCH_S = 0.25

START_BOUND = 1 << 16
NONE: frozenset[str] = frozenset()


class Sender:
    """The sender of one producer. Only the loop's thread uses it."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        options: ProducerOptions,
        on_settled: Callable[[Shipment], None],
    ) -> None:
        """Creates the sender. `on_settled` is called once per shipment, after its waiters have their
        outcome.
        """
        self._on_settled = on_settled
        self.retried_count = 0
        """The number of requests that were sent again, or to another broker."""
        self._instance = instance
        self._remoting = instance.remoting
        self._routes = instance.routes
        self._clock = instance.clock
        self._group = group
        self._options = options
        self._faulty = FaultyPeers()
        self._choices: dict[str, QueueChoice] = {}
        self._awaiting_route: dict[str, list[Shipment]] = {}
        self._awaiting_channel: dict[str, list[Shipment]] = {}
        self._in_flight: dict[Shipment, tuple[int, str, float]] = {}
        """The unanswered shipments, oldest first: the attempt's number, its address, and its time."""
        self._watch: TimerHandle | None = None
        self._end: TandemError | None = None
        """The error of every further send, after `abandon`; sends in flight are answered, or fail."""

    def dispatch(self, shipment: Shipment) -> None:
        """Sends now, or as soon as route and connection are available; the shipment's waiters get the
        outcome.
        """
        if self._end is not None:
            self._fail(shipment, self._end)
            return
        view = self._routes.get(shipment.topic)
        if view is None or not (view.publish_queues or shipment.is_pinned):
            self._await_route(shipment)
            return
        if not shipment.is_pinned:
            shipment.queue = self.choose(view, shipment.avoid)
        assert shipment.queue is not None
        address = view.master_address(shipment.queue.broker_name)
        if address is None:
            name = shipment.queue.broker_name
            shipment.attempts += 1
            self._retry_or_fail(
                shipment, NoRoute(f"broker {name!r} has no master for topic {shipment.topic!r}")
            )
            return
        channel = self._remoting.open_channel(address)
        is_unsure = shipment.version_min and address not in self._instance.broker_versions
        if channel is None or is_unsure:
            self._await_channel(shipment, address)
        else:
            self._send(shipment, channel, address)

    def abandon(self, error: TandemError) -> None:
        """Fails the shipments that still wait for a route, a connection or another attempt: the producer
        closes.
        """
        self._end = error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for table in (self._awaiting_route, self._awaiting_channel):
            for waiting in table.values():
                for shipment in waiting:
                    self._fail(shipment, error)
            table.clear()

    def choose(self, view: RouteView, last_failed: str = "") -> MessageQueue:
        """Returns the next queue of the topic whose broker has not just failed; `last_failed` is skipped
        too.
        """
        avoid = self._faulty.avoided(self._clock.monotonic()) if self._faulty else NONE
        if last_failed:
            avoid = avoid | {last_failed}
        choice = self._choices.get(view.topic)
        if choice is None:
            choice = self._choices[view.topic] = QueueChoice(self._instance.chance.below(START_BOUND))
        return choice.next_queue(view.publish_queues, avoid)

    def version_fault(self, shipment: Shipment, address: str) -> MessageIllegal | None:
        """Returns the error for a message with a field that the broker is known to ignore; None otherwise."""
        assert shipment.queue is not None
        version = self._instance.broker_versions.get(address, shipment.version_min)
        if version >= shipment.version_min:
            return None
        return MessageIllegal(
            f"broker {shipment.queue.broker_name!r} has RocketMQ {render_version(version)}, which ignores"
            " delay_ms, deliver_at_ms and priority: use delay_level, or a broker of RocketMQ 5 or TandemMQ"
        )

    def _send(self, shipment: Shipment, channel: Channel, address: str) -> None:
        shipment.attempts += 1
        if shipment.version_min and (fault := self.version_fault(shipment, address)) is not None:
            self._fail(shipment, fault)
            return
        command = send_command(shipment.header(self._group, self._options), shipment.body)
        now_s = self._clock.monotonic()
        remaining_s = shipment.deadline_s - now_s
        if remaining_s <= 0:
            self._fail(
                shipment,
                RequestTimeout(
                    f"the deadline of the send to topic {shipment.topic!r} had passed before it was sent"
                ),
            )
            return
        number = shipment.attempts
        try:
            channel.start_request(command, partial(self._on_answer, shipment, number), remaining_s)
        except TandemError as error:
            self._on_error(shipment, error)
            return
        self._in_flight[shipment] = number, address, now_s
        if self._watch is None:
            self._watch = self._clock.call_later(WATCH_S, self._retry_silent)

    def _retry_silent(self) -> None:
        """Retries the sends of silent brokers that the routes no longer name as master. Scheduled only while
        sends are in flight.
        """
        self._watch = None
        now_s = self._clock.monotonic()
        left = []
        for shipment, (_, address, sent_s) in self._in_flight.items():
            if now_s - sent_s < SILENT_S:
                break
            assert shipment.queue is not None
            master = self._routes.master_address(shipment.topic, shipment.queue.broker_name)
            if master is not None and master != address:
                left.append(shipment)
            else:
                self._routes.refresh_soon(shipment.topic)
        for shipment in left:
            name = shipment.queue.broker_name if shipment.queue is not None else ""
            del self._in_flight[shipment]
            self._retry_or_fail(shipment, BrokerUnreachable(f"broker {name!r} has another master now"))
        if self._in_flight:
            self._watch = self._clock.call_later(WATCH_S, self._retry_silent)

    def _on_answer(self, shipment: Shipment, number: int, answer: Command | TandemError) -> None:
        attempt = self._in_flight.get(shipment)
        if attempt is None or attempt[0] != number:
            return  # the attempt was given up; a later one decides
        del self._in_flight[shipment]
        if isinstance(answer, TandemError):
            self._on_error(shipment, answer)
            return
        try:
            result = read_send_answer(answer)
        except TandemError as error:
            self._on_error(shipment, error)
            return
        assert shipment.queue is not None
        self._faulty.record_success(shipment.queue.broker_name)
        if (
            result.status is not SendStatus.SEND_OK
            and self._options.retry_when_not_stored_ok
            and self._may_retry(shipment)
        ):
            self._retry(shipment)
            return
        shipment.succeed(result)
        self._on_settled(shipment)

    def _fail(self, shipment: Shipment, error: TandemError) -> None:
        shipment.fail(error)
        self._on_settled(shipment)

    def _on_error(self, shipment: Shipment, error: TandemError) -> None:
        assert shipment.queue is not None
        if isinstance(error, BrokerUnreachable):
            self._faulty.record_failure(shipment.queue.broker_name, self._clock.monotonic())
        self._retry_or_fail(shipment, error)

    def _retry_or_fail(self, shipment: Shipment, error: TandemError) -> None:
        if error.refresh_route:
            self._routes.refresh_soon(shipment.topic)
        is_stale = isinstance(error, QueueNotFound) and not shipment.is_pinned
        is_coded = isinstance(error, RequestRejected) and error.code in RETRY_CODES
        is_retriable = error.retriable or is_stale or is_coded
        if not is_retriable or isinstance(error, RequestTimeout):
            self._fail(shipment, error)
            return
        if not self._may_retry(shipment):
            if (is_stale or isinstance(error, OUTAGES)) and self._may_wait(shipment):
                shipment.avoid = ""
                low, high = OUTAGE_PAUSE_MS
                pause_s = (low + self._instance.chance.below(high - low)) / 1000
                self._clock.call_later(pause_s, self._dispatch_or_fail, shipment, error)
            else:
                self._fail(shipment, error)
            return
        log.debug(
            events.SEND_RETRIED,
            extra={"topic": shipment.topic, "attempt": shipment.attempts, "error": str(error)},
        )
        self._retry(shipment)

    def _may_retry(self, shipment: Shipment) -> bool:
        return (
            self._end is None
            and shipment.attempts <= self._options.retry_count_max
            and self._clock.monotonic() < shipment.deadline_s
        )

    def _may_wait(self, shipment: Shipment) -> bool:
        """Returns True if the caller wants retries and there is time to wait for another master of the
        group.
        """
        remaining_s = shipment.deadline_s - self._clock.monotonic()
        return (
            self._end is None
            and self._options.retry_count_max > 0
            and remaining_s > OUTAGE_PAUSE_MS[1] / 1000
        )

    def _dispatch_or_fail(self, shipment: Shipment, error: TandemError) -> None:
        if self._clock.monotonic() < shipment.deadline_s:
            self.dispatch(shipment)
        else:
            self._fail(shipment, error)

    def _retry(self, shipment: Shipment) -> None:
        """Retries at another broker at once, or at the same one after a pause."""
        self.retried_count += 1
        failed = shipment.queue.broker_name if shipment.queue is not None else ""
        shipment.avoid = failed
        view = self._routes.get(shipment.topic)
        others = [] if view is None else [q for q in view.publish_queues if q.broker_name != failed]
        if others and not shipment.is_pinned:
            # Through the loop: an answer's callback must not send from inside another send.
            self._clock.call_soon(self.dispatch, shipment)
        else:
            pause_s = RETRY_PAUSE_S * 2.0 ** max(0, shipment.attempts - 1)
            self._clock.call_later(pause_s, self.dispatch, shipment)

    def _await_route(self, shipment: Shipment) -> None:
        waiting = self._awaiting_route.get(shipment.topic)
        if waiting is None:
            self._awaiting_route[shipment.topic] = [shipment]
            self._instance.tasks.start("publish-route", self._load_route(shipment.topic))
        else:
            waiting.append(shipment)

    async def _load_route(self, topic: str) -> None:
        error: TandemError | None = None
        try:
            await self._routes.publishable(
                topic,
                template_topic=self._options.default_topic,
                template_queue_count=self._options.default_topic_queue_count,
            )
        except TandemError as raised:
            error = raised
        for shipment in self._awaiting_route.pop(topic, ()):
            if error is None:
                self.dispatch(shipment)
            else:
                shipment.attempts += 1
                self._retry_or_fail(shipment, error)

    def _await_channel(self, shipment: Shipment, address: str) -> None:
        waiting = self._awaiting_channel.get(address)
        if waiting is None:
            self._awaiting_channel[address] = [shipment]
            self._instance.tasks.start("connect", self._connect(address))
        else:
            waiting.append(shipment)

    async def _connect(self, address: str) -> None:
        try:
            channel = await self._remoting.channel(address)
        except BrokerUnreachable as error:
            for shipment in self._awaiting_channel.pop(address, ()):
                shipment.attempts += 1
                self._on_error(shipment, error)
            return
        if any(shipment.version_min for shipment in self._awaiting_channel.get(address, ())):
            await self._instance.learn_version(address)
        # Brokers must know a producer before they can send it a request.
        self._instance.beat_soon()
        for shipment in self._awaiting_channel.pop(address, ()):
            self._send(shipment, channel, address)


class QueueChoice:
    """The turn of one topic."""

    __slots__ = ("_turn",)

    def __init__(self, start: int) -> None:
        self._turn = start

    def next_queue(self, queues: Sequence[MessageQueue], avoid: Collection[str] = ()) -> MessageQueue:
        """Returns the next queue whose broker name is not in `avoid`; the next queue of all when every broker
        is. `queues` is not empty.
        """
        count = len(queues)
        turn = self._turn + 1
        if avoid:
            for step in range(count):
                if queues[(turn + step) % count].broker_name not in avoid:
                    turn += step
                    break
        turn %= count
        self._turn = turn
        return queues[turn]


def queue_by_key(queues: Sequence[MessageQueue], key_hash: int) -> MessageQueue:
    """Returns the queue of an ordering key: abs(hash) modulo the number of queues (spec semantics 3.8)."""
    return queues[abs(key_hash) % len(queues)]
