"""Sends shipments to masters, several in flight at once, and retries failures that may pass.

A shipment is done when its broker answers that it is stored with the cluster's guarantees: flushed and
replicated, if so configured. After any other answer that may pass, it is sent again, to another broker if it
has no fixed queue. A retry may store a message twice, with the same unique key. Two shipments for one fixed
queue are never in flight together, so a retry cannot overtake its successors. With `once` every shipment has
a queue and a number, so its broker stores it once; `OnceRun` assigns the numbers. With `halves` each message
is stored as a half message that the driver ends later; half messages are not ordered.

Blocking, for one thread: Spark runs each task in one (see `spark.wire`).
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tandemmq.api.broker_send import STATUS_OF_CODE, SendStatus, send_command
from tandemmq.client.route_cache import RouteView, build_template_view, build_view
from tandemmq.errors import MessageIllegal, NoRoute, NotPermitted, RequestRejected, SendNotConfirmed
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.codec import decode_kv_table
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import CAPABILITY, CLAIM_VERSION, render_claim
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.sys_flag import TRANSACTION_NONE, TRANSACTION_PREPARED
from tandemmq.protocol.topic_names import AUTO_CREATE_TOPIC
from tandemmq.spark.sink.encode import RowShipment
from tandemmq.spark.sink.halves import HalfLog
from tandemmq.spark.sink.options import SinkOptions
from tandemmq.spark.wire import POOL, UNREACHABLE, BlockingNameServers, WireConnection, accept, wait_before

Pins = dict[str, tuple[MessageQueue, ...]]
"""The queues of each topic, in a fixed order."""


NEW_TOPIC_QUEUES = 4

_TRANSIENT = (*UNREACHABLE, NoRoute, SendNotConfirmed)


@dataclass(slots=True)
class _Item:
    """A shipment that is not done; `queue` is the target of its current attempt."""

    shipment: RowShipment
    properties: str = ""
    attempts: int = 0
    queue: MessageQueue | None = None
    address: str = ""
    connection: WireConnection | None = None
    opaque: int = 0
    deadline: float = 0.0


@dataclass(slots=True)
class _Line:
    """A borrowed connection."""

    loan: AbstractContextManager[WireConnection]
    connection: WireConnection


class RowSender:
    """The sender of one task. `turn` is the start of the rotation over the queues, so that tasks do not all
    start with the same one.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        turn: int = 0,
        once: OnceRun | None = None,
        halves: HalfLog | None = None,
    ) -> None:
        self._options = options
        self._once = once
        self._halves = halves
        self._name_servers = BlockingNameServers(
            options.name_servers, options.send_timeout_s, options.security
        )
        self._turn = turn
        self._views: dict[str, RouteView] = {}
        self._lines: dict[str, _Line] = {}
        self._in_flight: deque[_Item] = deque()
        self.message_count = 0
        self.send_count = 0

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Returns the topic's writable queues, sorted; for a topic that does not exist yet, the queues it
        will get.

        Raises:  NoRoute if no broker accepts messages for it, after all retries.
        """
        if self._once is not None:
            return self._once.queues(topic)
        attempt = 0
        while True:
            try:
                return self._view(topic).publish_queues
            except (*UNREACHABLE, NoRoute):
                attempt += 1
                if attempt > self._options.retry_count:
                    raise
                wait_before(attempt, self._options.retry_interval_s)

    def send(self, shipment: RowShipment) -> None:
        """Sends a shipment; first waits for earlier ones if too many are in flight.

        Raises:  the final error of this or an earlier shipment.
        """
        while len(self._in_flight) >= self._options.in_flight or self._is_queue_busy(shipment.queue):
            self._complete_oldest()
        properties = shipment.properties
        if self._once is not None:
            properties += self._once.claim(shipment)
        if self._halves is not None:
            properties = self._halves.properties(properties)
        self._launch(_Item(shipment, properties))

    def finish(self) -> None:
        """Waits until all shipments are confirmed."""
        while self._in_flight:
            self._complete_oldest()

    def close(self) -> None:
        """Returns the connections to the pool, which closes those with outstanding answers."""
        for line in self._lines.values():
            line.loan.__exit__(None, None, None)
        self._lines.clear()

    def _is_queue_busy(self, queue: MessageQueue | None) -> bool:
        if queue is None or self._halves is not None:
            return False
        return any(item.queue == queue for item in self._in_flight)

    def _launch(self, item: _Item) -> None:
        while True:
            try:
                self._start(item)
            except _TRANSIENT as error:
                self._prepare_retry(item, error)
            else:
                self._in_flight.append(item)
                return

    def _start(self, item: _Item) -> None:
        view = self._view(item.shipment.topic)
        item.queue = item.shipment.queue or self._next_queue(view)
        address = view.master_address(item.queue.broker_name)
        if address is None:
            raise NoRoute(f"the broker {item.queue.broker_name} has no master now")
        item.address = address
        item.deadline = time.monotonic() + self._options.send_timeout_s
        try:
            item.connection = self._line(address)
            item.opaque = item.connection.send([self._make_request(item)])[0]
        except UNREACHABLE as error:
            self._drop_line(address, error)
            raise

    def _complete_oldest(self) -> None:
        """Waits for the oldest answer; afterwards the shipment is done or in flight again."""
        item = self._in_flight.popleft()
        try:
            line = self._lines.get(item.address)
            if line is None or line.connection is not item.connection:
                raise NoRoute(f"the connection to {item.address} broke before the answer came")
            answer = line.connection.receive(item.opaque, item.deadline)
        except UNREACHABLE as error:
            self._drop_line(item.address, error)
            self._prepare_retry(item, error)
        except NoRoute as error:
            self._prepare_retry(item, error)
        else:
            failure = failure_reason(answer)
            if failure is None:
                if self._halves is not None:
                    assert item.queue is not None
                    self._halves.add(item.shipment.topic, item.queue.broker_name, item.properties, answer)
                self.message_count += item.shipment.count
                self.send_count += 1
                return
            self._prepare_retry(item, failure)
        self._launch(item)

    def _prepare_retry(self, item: _Item, error: Exception) -> None:
        """Prepares a retry: drops the route and pauses.

        Raises:  `error` if it is permanent, or the attempts are used up.
        """
        is_transient = not isinstance(error, RequestRejected) or error.retriable
        item.attempts += 1
        if not is_transient or item.attempts > self._options.retry_count:
            raise error
        self._views.pop(item.shipment.topic, None)
        wait_before(item.attempts, self._options.retry_interval_s)

    def _next_queue(self, view: RouteView) -> MessageQueue:
        """Returns the next queue in rotation, preferring masters that did not fail recently."""
        queues = view.publish_queues
        for _ in queues:
            self._turn += 1
            queue = queues[self._turn % len(queues)]
            address = view.master_address(queue.broker_name)
            if address is not None and not POOL.is_suspect(address):
                break
        return queue

    def _view(self, topic: str) -> RouteView:
        view = self._views.get(topic)
        if view is None:
            view = self._views[topic] = self._find_view(topic)
        return view

    def _find_view(self, topic: str) -> RouteView:
        route = self._name_servers.find_route(topic)
        if route is not None:
            view = build_view(topic, route)
        else:
            template = self._name_servers.find_route(AUTO_CREATE_TOPIC)
            if template is None:
                raise NoRoute(f"topic {topic!r}: no live broker has it, and none creates topics")
            view = build_template_view(topic, template, NEW_TOPIC_QUEUES)
        if not view.publish_queues:
            raise NoRoute(f"topic {topic!r}: no broker with a master takes writes for it")
        return view

    def _make_request(self, item: _Item) -> Command:
        shipment, queue = item.shipment, item.queue
        assert queue is not None
        header = SendRequestV2(
            producer_group=self._options.group,
            topic=shipment.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=NEW_TOPIC_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=TRANSACTION_NONE if self._halves is None else TRANSACTION_PREPARED,
            born_at_ms=int(time.time() * 1000),
            flag=shipment.flag,
            properties=item.properties,
            is_batch=shipment.is_batch,
            broker_name=queue.broker_name,
        )
        return send_command(header, shipment.body)

    def _line(self, address: str) -> WireConnection:
        line = self._lines.get(address)
        if line is None:
            loan = POOL.borrow(address, self._options.security)
            line = self._lines[address] = _Line(loan, loan.__enter__())
            if self._once is not None:
                require_once(line.connection, address, self._options.send_timeout_s)
        return line.connection

    def _drop_line(self, address: str, error: Exception) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            line.loan.__exit__(type(error), error, error.__traceback__)


def failure_reason(answer: Command) -> Exception | None:
    """Returns the reason why a send is not done; None if it is."""
    status = STATUS_OF_CODE.get(answer.code)
    if status is None:
        return rejections.to_error(answer)
    if status is SendStatus.SEND_OK:
        return None
    remark = f"the messages are stored on the master alone: {status.value} ({answer.remark or 'no remark'})"
    return SendNotConfirmed(status.value, remark)


_PRODUCER_BYTES = 12


class OnceRun:
    """The numbering of one task attempt's sends. `query` identifies the query or write, also after a restart.

    The producer is one task number of one query, and the epoch is the batch; the broker then stores each row
    once (decision 010). Pure.
    """

    def __init__(self, query: str, partition_id: int, epoch: int, pins: Pins) -> None:
        name = f"{query}\0{partition_id}".encode()
        self._producer = hashlib.blake2b(name, digest_size=_PRODUCER_BYTES).hexdigest()
        self.epoch = epoch
        self._after: dict[tuple[object, bool], str] = {}
        self._pins = pins

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Returns the topic's pinned queues; raises MessageIllegal for a topic that the options did not
        name.
        """
        queues = self._pins.get(topic)
        if queues is None:
            raise MessageIllegal(
                f"a row goes to the topic {topic!r}; the option topics names {', '.join(sorted(self._pins))}"
            )
        return queues

    def claim(self, shipment: RowShipment) -> str:
        """Returns the properties that number a shipment; must be called once for each, in sending order.

        Delayed messages are sent before the other rows of their batch, so they have a separate numbering.
        """
        place = (shipment.queue, shipment.is_batch)
        producer = self._producer if shipment.is_batch else f"{self._producer}-single"
        claim = render_claim(producer, self.epoch, self._after.get(place, ""))
        self._after[place] = shipment.last_key
        return claim


def require_once(connection: WireConnection, address: str, timeout_s: float) -> None:
    """Returns if the broker stores numbered sends once.

    Raises:  NotPermitted if the broker would store repeats; the errors of the request.
    """
    command = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = decode_kv_table(accept(connection.request(command, timeout_s)).body)
    if table.get(CAPABILITY) != CLAIM_VERSION:
        version = table.get("brokerVersionDesc", "of unknown version")
        raise NotPermitted(
            f"semantics exactly-once: the broker at {address} ({version}) cannot store sends once."
            " It needs brokers of TandemMQ with messageIndexEnable=true; at-least-once works with any broker,"
            " with one UNIQ_KEY for all repeats of a row"
        )
