"""What brokers ask of a consumer: rebalance, reset offsets, say how far it is (spec semantics 15, spec
remoting 9.11).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tandemmq.client.consumer.assignment import Assignment
from tandemmq.client.consumer.queue_reader import received
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import DirectlyConsumed, encode_directly_consumed
from tandemmq.protocol.bodies.codec import encode_body, encode_queue_map
from tandemmq.protocol.bodies.progress import ConsumerStatus, decode_reset_offsets, encode_consumer_status
from tandemmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode, render_version
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest
from tandemmq.remoting.dispatch import Waiting

BYTES_PER_MIB = 1 << 20


class DirectResult(NamedTuple):
    """What a handler made of one message, by RocketMQ's name for it (CR_SUCCESS, CR_LATER, ...)."""

    name: str
    took_s: float
    remark: str = ""


class TopicStatus(NamedTuple):
    """How the handling of a topic goes: per second, and milliseconds of one message."""

    good_per_s: float
    failed_per_s: float
    took_ms: float
    failed_count: int


class Listener(Protocol):
    """The handler of a push consumer."""

    @property
    def worker_count(self) -> int: ...

    async def consume_directly(self, message: ReceivedMessage) -> DirectResult: ...

    def status(self) -> dict[str, TopicStatus]: ...


class BrokerRequests:
    """Answers for one consumer; each runs inside the read of a socket. Only a handler is waited for."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        name_servers: str,
        started_at_ms: int,
        is_orderly: bool = False,
        listener: Listener | None = None,
    ) -> None:
        """`listener`: None for a consumer whose application asks for its messages."""
        self._listener = listener
        self._is_orderly = is_orderly
        self._assignment = assignment
        self._name_servers = name_servers
        self._started_at_ms = started_at_ms

    def handle(self, command: Command) -> Command | Waiting | None:
        """The answer; None for a one-way request."""
        match command.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._assignment.rebalance_soon()
                return None
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset_offsets(command)
                return None if command.is_oneway else command.reply()
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return command.reply(body=self._status(command.fields.get("topic", "")))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return command.reply(body=self._running_info())
            case _ if self._listener is not None:
                return self._consume_directly(self._listener, command)
            case _:
                # There is no listener that a broker could call: the application asks for its messages.
                return command.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark="this consumer is read by its application; it cannot be called for one message",
                )

    async def _consume_directly(self, listener: Listener, command: Command) -> Command:
        """Have one message handled; a body that holds none is refused."""
        records = list(decode_records(command.body))
        if len(records) != 1:
            raise RemoteProtocolError(f"one message is wanted, {len(records)} came")
        message = received(records[0], command.decode(ConsumeDirectlyRequest).broker_name or "")
        outcome = await listener.consume_directly(message)
        answer = DirectlyConsumed(
            result=outcome.name,
            is_ordered=self._is_orderly,
            remark=outcome.remark,
            took_ms=round(outcome.took_s * 1000),
        )
        return command.reply(body=encode_directly_consumed(answer))

    def _reset_offsets(self, command: Command) -> None:
        """Go on from the offsets that an administrator has set; queues that are not ours are passed over."""
        try:
            offsets = decode_reset_offsets(command.body)
        except RemoteProtocolError:
            return
        for queue, offset in offsets.items():
            reader = self._assignment.readers.get(queue)
            if reader is not None and offset >= 0:
                reader.move_to(offset)

    def _status(self, topic: str) -> bytes:
        queues = {
            queue: reader.committed_offset
            for queue, reader in self._assignment.readers.items()
            if not topic or queue.topic == topic
        }
        return encode_consumer_status(ConsumerStatus(queues=queues))

    def _running_info(self) -> bytes:
        """RocketMQ's ConsumerRunningInfo, as far as it means something here (spec remoting 11.12)."""
        properties = {
            "PROP_NAMESERVER_ADDR": self._name_servers,
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CLIENT_VERSION": render_version(OUR_VERSION),
            "PROP_CONSUMEORDERLY": "true" if self._is_orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self._listener.worker_count if self._listener else 1),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at_ms),
        }
        subscriptions = [subscription.describe() for subscription in self._assignment.subscriptions]
        rows: dict[MessageQueue, dict[str, int | bool]] = {}
        for queue, reader in self._assignment.readers.items():
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
            topic: {
                "consumeFailedMsgs": status.failed_count,
                "consumeFailedTPS": status.failed_per_s,
                "consumeOKTPS": status.good_per_s,
                "consumeRT": status.took_ms,
                "pullRT": 0.0,
                "pullTPS": status.good_per_s + status.failed_per_s,
            }
            for topic, status in (self._listener.status() if self._listener else {}).items()
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
