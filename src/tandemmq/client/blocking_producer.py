"""BlockingProducer and BlockingTransactionProducer: for code without an event loop; thin facades over
`Producer` and `TransactionProducer`.

    with BlockingProducer("orders", "127.0.0.1:9876") as producer:
        producer.send(Message(topic="Orders", body=b"..."))

    with BlockingTransactionProducer("orders", "127.0.0.1:9876", check=was_booked) as producer:
        producer.send(Message(topic="Orders", body=b"..."), book)

Both may be used from several threads. Results, errors and the meaning of every option are those of the
asyncio classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

from tandemmq.client.blocking import Facade, in_worker
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.bulk import OnResult, Outcome, SendSummary, cut_messages
from tandemmq.client.producer.producer import Producer
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.transactions import (
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message, ReceivedMessage


class BlockingProducer(Facade[Producer]):
    """See `Producer`."""

    def __init__(self, group: str, namesrv: str, *, options: ProducerOptions | None = None) -> None:
        super().__init__(lambda: Producer(group, namesrv, options=options))

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Where the message was stored."""
        return self._call(self._running.send(message, queue=queue, timeout_s=timeout_s))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """One result per message; one request, all or none."""
        return self._call(self._running.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without an answer; the message may be lost."""
        self._call(self._running.send_oneway(message, queue=queue))

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        on_result: OnResult | None = None,
        stop_on_error: bool = True,
        batches_in_flight_max: int = 16,
    ) -> SendSummary:
        """Send all messages in batches, many at a time.

        `messages` is iterated, and `on_result(message, outcome)` is called, in the calling thread and in the
        order of sending; reading ahead is bounded by the batches under way. With `stop_on_error` the first
        failure ends it: what is under way is waited for, then the error is raised.
        """
        producer, thread = self._running, self._thread
        assert thread is not None
        summary = SendSummary()
        pending: deque[tuple[list[Message], Future[list[SendResult]]]] = deque()

        def settle_oldest() -> None:
            chunk, future = pending.popleft()
            outcomes: Sequence[Outcome]
            try:
                outcomes = future.result()
            except TandemError as error:
                outcomes = [error] * len(chunk)
            summary.note(chunk, outcomes, on_result)

        for chunk in cut_messages(messages, producer.options):
            while len(pending) >= batches_in_flight_max:
                settle_oldest()
            if summary.must_stop(stop_on_error=stop_on_error):
                break
            pending.append((chunk, thread.submit(producer.send_batch(chunk))))
        while pending:
            settle_oldest()
        return summary.result(stop_on_error=stop_on_error)

    def request(self, message: Message, timeout_s: float = 3.0) -> ReceivedMessage:
        """The reply of whoever consumes the message."""
        return self._call(self._running.request(message, timeout_s))

    def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Answer a request that a consumer received."""
        self._call(self._running.reply(request, body, properties=properties))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take a timed message back before its time."""
        return self._call(self._running.recall(topic, recall_handle))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that take messages of a topic now."""
        return self._call(self._running.queues(topic))

    def queue_for(self, topic: str, key: str) -> MessageQueue:
        """The queue for messages that must stay in order among themselves."""
        return self._call(self._running.queue_for(topic, key))

    def flush(self) -> None:
        """Returns when every send that was started has its result."""
        self._call(self._running.flush())


class BlockingTransactionProducer(Facade[TransactionProducer]):
    """See `TransactionProducer`. `check` runs in threads of its own, `work` in the calling thread."""

    def __init__(
        self,
        group: str,
        namesrv: str,
        *,
        check: Callable[[ReceivedMessage], TransactionState],
        options: ProducerOptions | None = None,
    ) -> None:
        async def check_in_thread(message: ReceivedMessage) -> TransactionState:
            return await in_worker(check, message)

        super().__init__(lambda: TransactionProducer(group, namesrv, check=check_in_thread, options=options))

    def send(
        self,
        message: Message,
        work: Callable[[Message], TransactionState],
        *,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store the half message, run `work(message)` here, tell the broker."""
        sent = self.send_half(message, timeout_s=timeout_s)
        if not sent.is_ok:
            self.end(sent, TransactionState.ROLLBACK)
            return TransactionResult(sent, TransactionState.ROLLBACK)
        try:
            state = work(message)
            if not isinstance(state, TransactionState):
                raise ClientError(f"a TransactionState is needed, not {state!r}")
        except BaseException:
            self.end(sent, TransactionState.UNKNOWN)
            raise
        self.end(sent, state)
        return TransactionResult(sent, state)

    def send_half(self, message: Message, *, timeout_s: float | None = None) -> SendResult:
        """Only the first step; `end` is the second."""
        return self._call(self._running.send_half(message, timeout_s=timeout_s))

    def end(self, sent: SendResult, state: TransactionState) -> None:
        """Tell the broker how the transaction ended."""
        self._call(self._running.end(sent, state))
