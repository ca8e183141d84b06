"""BlockingTransactionProducer: a thin facade over `TransactionProducer`, for code without an event loop.

with BlockingTransactionProducer("orders", "127.0.0.1:9876", check=was_booked) as producer:
    producer.send(Message(topic="Orders", body=b"..."), book)
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.client.blocking import Facade, in_worker
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.transactions import (
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from tandemmq.errors import ClientError
from tandemmq.protocol.message import Message, ReceivedMessage


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
