"""Reads one queue: a loop of long-polling pulls that fills the inbox and tracks the unacknowledged messages.

Failures never end the loop: it continues at another replica if one is reachable, else after a pause. Only
releasing the queue ends it (spec semantics 10.2; spec replication 8.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.api import broker_consume
from tandemmq.api.broker_consume import GroupProgress, Pulled, PullStatus
from tandemmq.client.consumer.inbox import Inbox, InFlight, OrderlyGate, Received
from tandemmq.client.consumer.replica_choice import ReadPolicy, ReadReplica
from tandemmq.client.consumer.subscription import Subscription
from tandemmq.client.instance import ClientInstance
from tandemmq.client.namespace import Namespace
from tandemmq.client.options import ConsumerOptions
from tandemmq.client.route_cache import FaultyPeers
from tandemmq.errors import (
    BrokerUnreachable,
    NoRoute,
    RemoteProtocolError,
    RequestRejected,
    RequestTimeout,
    TandemError,
)
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import MessageModel
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.message import MessageSettler, ReceivedMessage
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import PullRequest, SeenRecord
from tandemmq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)

FLOW_CONTROL_PAUSE_S = 0.02
IDLE_PAUSE_S_MIN = 0.05
IDLE_PAUSE_S_MAX = 1.0
"""The pause between pulls that a replica answers at once without progress: a slave that redirects the reader
to an absent master.
"""
ANSWER_MARGIN_S = 15.0
"""The margin in seconds added to the time for which the broker may hold a pull."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderContext:
    """The objects that all readers of a consumer share."""

    instance: ClientInstance
    group: str
    options: ConsumerOptions
    inbox: Inbox
    faulty: FaultyPeers
    settler: MessageSettler


class QueueReader:
    """The reader of one assigned queue. `run` is its task; all other methods are called between its steps."""

    def __init__(
        self, queue: MessageQueue, subscription: Subscription, start: GroupProgress, context: ReaderContext
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.in_flight = InFlight(start.offset)
        self.last_pull_at_ms = 0
        self._last_record = start.seen
        self._context = context
        self._policy = ReadPolicy(
            context.options.read_from,
            lag_count_max=context.options.read_lag_count_max,
            spread=queue.queue_id,
        )
        self.gate = self._make_gate() if context.options.orderly else None
        self._idle_pause_s = IDLE_PAUSE_S_MIN
        self._generation = 0
        self._is_dropped = False
        self._is_paused = False

    # Called between steps

    @property
    def committed_offset(self) -> int:
        """The offset at which the group continues: every message below it is acknowledged."""
        return self.in_flight.committed_offset

    @property
    def seen(self) -> str | None:
        """The last record that was received or skipped, or that precedes the start. It proves which log the
        offsets belong to.
        """
        return None if self._last_record is None else self._last_record.render()

    def holds(self, message: ReceivedMessage) -> bool:
        """Returns True if the message is unacknowledged, and the reader was neither dropped nor moved since
        it was pulled.
        """
        return self.in_flight.holds(message.queue_offset, message)

    def finish(self, message: ReceivedMessage) -> None:
        """Acknowledges a message; a message pulled before the reader was moved acknowledges no other."""
        queue_offset = message.queue_offset
        if self.in_flight.is_other(queue_offset, message):
            return
        if self.gate is not None and not self.gate.finish(queue_offset):
            return
        before = self.in_flight.bytes
        if self.in_flight.finish(queue_offset):
            self._context.inbox.free(before - self.in_flight.bytes)

    def move_to(self, offset: int, seen: SeenRecord | None = None) -> None:
        """Continues from another offset: undelivered messages are dropped, delivered ones are no longer
        tracked. `seen` is the record before the offset.
        """
        self._forget()
        self._last_record = seen
        self.in_flight = InFlight(offset)

    def subscribe(self, subscription: Subscription) -> None:
        """Changes the subscription; an answer in flight is discarded, because it may have skipped messages
        that match now.
        """
        self.subscription = subscription
        self._generation += 1

    def set_paused(self, is_paused: bool) -> None:
        """Pauses or resumes pulling; messages that have arrived are still delivered."""
        self._is_paused = is_paused
        self._context.inbox.free(0)

    def drop(self) -> None:
        """Ends the reader, because the queue was released."""
        self._is_dropped = True
        self._forget()
        self.in_flight = InFlight(self.in_flight.committed_offset)

    def _make_gate(self) -> OrderlyGate:
        options = self._context.options
        return OrderlyGate(
            self,
            self._context.inbox,
            self._context.instance.clock,
            batch_count_max=options.orderly_batch_count_max,
            needs_lock=options.model is MessageModel.CLUSTERING,
        )

    def _forget(self) -> None:
        self._generation += 1
        if self.gate is not None:
            self.gate.forget()
        self._context.inbox.requeue(self)
        self._context.inbox.free(self.in_flight.bytes)

    # The task

    async def run(self) -> None:
        """Pulls until cancelled."""
        context, clock = self._context, self._context.instance.clock
        while not self._is_dropped:
            if not self._has_room():
                await context.inbox.wait_for_room()
                continue
            generation, pulled_from = self._generation, self.in_flight.next_offset
            try:
                replica = await self._replica()
            except TandemError as error:
                await clock.sleep(self._pause_after(error, None))
                continue
            try:
                pulled = await self._pull(replica)
                if self._is_paused and pulled.body:
                    continue  # pulled again when reading resumes
                if generation == self._generation:
                    self._apply(pulled, replica)
                if await self._leaves_slave(replica, pulled):
                    continue
            except TandemError as error:
                await clock.sleep(self._pause_after(error, replica))
                continue
            context.faulty.record_success(replica.address)
            context.instance.outages.record_success(events.CLIENT_PULL_FAILED, self.queue.broker_name)
            pause_s = self._pause_when_idle(pulled.status, has_progress=pulled.next_offset > pulled_from)
            if pause_s:
                await clock.sleep(pause_s)

    def _has_room(self) -> bool:
        """Returns True if another pull may start. A queue without unacknowledged messages may always pull
        once, so that it does not starve when others fill the inbox.
        """
        if self._is_paused:
            return False
        if not len(self.in_flight):
            return True
        options = self._context.options
        if options.span_max is not None and self.in_flight.span > options.span_max:
            return False
        return len(self.in_flight) < options.cached_count_max and self._context.inbox.has_room

    async def _replica(self) -> ReadReplica:
        """Returns the replica to ask next.

        Raises:  NoRoute when no address of the broker is known, even after refreshing the route.
        """
        context = self._context
        routes, queue = context.instance.routes, self.queue
        for is_last in (False, True):
            addresses = routes.replicas(queue.topic, queue.broker_name)
            now = context.instance.clock.monotonic()
            replica = self._policy.choose(addresses, context.faulty.avoided(now), now)
            if replica is not None:
                return replica
            if not is_last:
                await routes.refresh(queue.topic)
        raise NoRoute(f"no address is known for broker {queue.broker_name!r} of topic {queue.topic!r}")

    async def _pull(self, replica: ReadReplica) -> Pulled:
        context, options = self._context, self._context.options
        committed = self.committed_offset
        sys_flag = PULL_SUSPEND | PULL_SUBSCRIPTION
        if options.model is MessageModel.CLUSTERING and committed > 0 and not replica.is_slave:
            sys_flag |= PULL_COMMIT_OFFSET
        header = PullRequest(
            consumer_group=context.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.in_flight.next_offset,
            count_max=options.pull_count_max,
            sys_flag=sys_flag,
            committed_offset=committed,
            suspend_timeout_ms=int(options.suspend_s * 1000),
            subscription_version=self.subscription.version,
            subscription=self.subscription.expression,
            expression_type=self.subscription.expression_type,
            broker_name=self.queue.broker_name,
            client_id=context.instance.client_id,
            seen=self.seen,
        )
        self.last_pull_at_ms = context.instance.clock.now_ms()
        return await broker_consume.pull(
            context.instance.remoting, replica.address, header, timeout_s=options.suspend_s + ANSWER_MARGIN_S
        )

    async def _leaves_slave(self, replica: ReadReplica, pulled: Pulled) -> bool:
        """Returns True if the slave, read to its end, is too far behind its master to be read further."""
        is_at_end = pulled.status is not PullStatus.FOUND and pulled.next_offset >= pulled.max_offset
        if not self._policy.must_compare(replica, is_at_end=is_at_end):
            return False
        instance, faulty = self._context.instance, self._context.faulty
        master = instance.routes.master_address(self.queue.topic, self.queue.broker_name)
        now = instance.clock.monotonic()
        if master is None or master in faulty.avoided(now):
            return False  # without its master the slave is the best choice
        try:
            master_end = await broker_consume.query_max_offset(
                instance.remoting, master, self.queue.topic, self.queue.queue_id
            )
        except TandemError as error:
            if isinstance(error, BrokerUnreachable | RequestTimeout):
                faulty.record_failure(master, now)
            return False
        return self._policy.judge_ends(master_end, pulled.max_offset, instance.clock.monotonic())

    def _apply(self, pulled: Pulled, replica: ReadReplica) -> None:
        """Applies one answer.

        A slave whose copy begins after the last received record cannot tell if its log is the one that these
        offsets belong to. The reader then keeps that record as its proof and asks the master, which moves it
        back to the position after the record. Therefore no record is presented once a broker has moved the
        reader beyond the position after it.

        Raises:  RemoteProtocolError for bytes that are not records; the messages before them are kept.
        """
        self._policy.on_answer(pulled.suggested_broker_id)
        seen = self._last_record
        is_unverified = replica.is_slave and seen is not None and pulled.min_offset > seen.queue_offset
        starts_later = replica.is_slave and pulled.min_offset > self.in_flight.next_offset
        if is_unverified or (starts_later and pulled.status is PullStatus.NOTHING_MATCHED):
            self._policy.on_unverified(self._context.instance.clock.monotonic())
        else:
            self._policy.on_verified()
        if pulled.status is PullStatus.OFFSET_MOVED:
            log.warning(
                events.OFFSET_MOVED,
                extra={
                    **queue_facts(self.queue),
                    "from_offset": self.in_flight.next_offset,
                    "to_offset": pulled.next_offset,
                },
            )
            self._continue_from(pulled.next_offset, is_unverified=is_unverified)
            return
        if pulled.status is PullStatus.FOUND:
            self._accept(pulled)
        if pulled.passed is not None:
            self._last_record = pulled.passed
        if is_unverified:
            self._last_record = seen
        elif self._last_record is not None and pulled.next_offset > self._last_record.queue_offset + 1:
            self._last_record = None  # nothing after it was proven: the reader was moved beyond it
        self.in_flight.advance(pulled.next_offset)

    def _continue_from(self, offset: int, *, is_unverified: bool) -> None:
        """Continues from the offset that the broker named, because it has no message at the next offset.

        Unacknowledged messages must not be skipped: a forward move keeps them, and a backward move pulls them
        again.
        """
        if offset >= self.in_flight.next_offset:
            self.in_flight.advance(offset)
            if not is_unverified:
                self._last_record = None  # it proves nothing about the skipped offsets
        else:
            self.move_to(min(offset, self.in_flight.committed_offset))

    def _accept(self, pulled: Pulled) -> None:
        in_flight, subscription = self.in_flight, self.subscription
        settler = self._context.settler
        namespace = self._context.instance.namespace
        before = in_flight.bytes
        deliveries: list[Received] = []
        record = None
        try:
            for record in decode_records(pulled.body):
                offset = record.queue_offset
                if offset < in_flight.next_offset or not subscription.matches(record.tags):
                    continue
                message = received(record, self.queue.broker_name, namespace)
                message.settler = settler
                if message.body_fault:
                    self._context.instance.report_undecoded(message)
                in_flight.add(offset, record.size, message)
                deliveries.append(Received(self, message))
        finally:
            if record is not None:
                self._last_record = SeenRecord(record.queue_offset, record.log_offset, record.stored_at_ms)
            if deliveries:
                outlet = self._context.inbox if self.gate is None else self.gate
                outlet.put(deliveries, in_flight.bytes - before)

    def _pause_when_idle(self, status: PullStatus, *, has_progress: bool) -> float:
        """Returns 0 in the usual case; a growing pause while answers come at once, empty and without
        progress.
        """
        if status is not PullStatus.NOTHING_MATCHED or has_progress:
            self._idle_pause_s = IDLE_PAUSE_S_MIN
            return 0.0
        pause_s, self._idle_pause_s = self._idle_pause_s, min(self._idle_pause_s * 2, IDLE_PAUSE_S_MAX)
        return pause_s

    def _pause_after(self, error: TandemError, replica: ReadReplica | None) -> float:
        """Returns the pause after a failure, after recording the failure."""
        context = self._context
        facts = {
            **queue_facts(self.queue),
            "address": replica.address if replica else "",
            "error": str(error),
        }
        context.instance.outages.record_failure(log, events.CLIENT_PULL_FAILED, self.queue.broker_name, facts)
        if error.refresh_route:
            context.instance.routes.refresh_soon(self.queue.topic)
        if isinstance(error, BrokerUnreachable | RequestTimeout) and replica is not None:
            context.faulty.record_failure(replica.address, context.instance.clock.monotonic())
            return 0.0 if self._has_other_replica(replica) else context.options.pull_error_delay_s
        now = context.instance.clock.monotonic()
        is_refusal = isinstance(error, RequestRejected)
        if replica is not None and is_refusal and self._policy.on_rejected(replica, now):
            return 0.0
        if isinstance(error, RequestRejected) and error.code == ResponseCode.FLOW_CONTROL:
            return FLOW_CONTROL_PAUSE_S
        if isinstance(error, RemoteProtocolError):
            context.inbox.put_error(error)
        return context.options.pull_error_delay_s

    def _has_other_replica(self, replica: ReadReplica) -> bool:
        """Returns True if another replica of the broker is not avoided now."""
        addresses = self._context.instance.routes.replicas(self.queue.topic, self.queue.broker_name)
        avoided = self._context.faulty.avoided(self._context.instance.clock.monotonic())
        return any(address not in avoided for address in addresses.values())


def queue_facts(queue: MessageQueue) -> dict[str, object]:
    """Returns the fields of log lines that name a queue."""
    return {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}


def received(record: Record, broker_name: str, namespace: Namespace) -> ReceivedMessage:
    """Returns the record as the application receives it: a retried message has its original topic."""
    topic = record.topic
    if is_retry_topic(topic):
        topic = record.properties.get(names.RETRY_TOPIC, topic)
    return ReceivedMessage(record, topic=namespace.unwrap(topic), broker_name=broker_name)
