"""The outside client: publishes all the time, and records which messages were acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tandemmq.client import BlockingProducer, Message, ProducerOptions, SendResult, SendStatus
from tandemmq.errors import TandemError

DIGITS = 12
PER_SEND = 100
FILLER_BYTES = 100


class Publisher:
    """Publishes numbered messages: the number is the first DIGITS bytes of a body. Nothing is sent twice."""

    def __init__(self, namesrv: str, topic: str, *, rows_per_second: float, seed: int) -> None:
        self._topic = topic
        self._pause_s = PER_SEND / rows_per_second
        self._noise = random.Random(seed).randbytes(64 * 1024)
        # A repeated send may be stored twice, which no pipeline could detect.
        options = ProducerOptions(timeout_s=30.0, retry_count_max=0)
        self._producer = BlockingProducer("proof", namesrv, options=options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher")
        self.acknowledged = bytearray()
        """A byte per message number: 1 if the message was answered with SEND_OK."""
        self.unsure = 0
        """The number of messages with another answer, or none, which may or may not be stored."""

    @property
    def sent(self) -> int:
        return len(self.acknowledged)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Publishes in the background for the duration of the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def publish(self, count: int) -> None:
        """Publishes `count` more messages at full speed. Only outside of the `publishing` block."""
        messages = [self._next() for _ in range(count)]

        def note(message: Message, outcome: SendResult | TandemError) -> None:
            self._record([message], [outcome])

        self._producer.send_many(messages, on_result=note, stop_on_error=False)

    def __enter__(self) -> Publisher:
        self._producer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._producer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            due_at = time.monotonic() + self._pause_s
            messages = [self._next() for _ in range(PER_SEND)]
            try:
                self._record(messages, self._producer.send_batch(messages))
            except TandemError as error:
                self._record(messages, [error] * len(messages))
            self._stop.wait(max(0.0, due_at - time.monotonic()))

    def _next(self) -> Message:
        number = len(self.acknowledged)
        self.acknowledged.append(0)
        begin = number * 31 % (len(self._noise) - FILLER_BYTES)
        body = b"%0*d" % (DIGITS, number) + self._noise[begin : begin + FILLER_BYTES]
        return Message(topic=self._topic, body=body, tags="abc"[number % 3], keys=(f"k{number}",))

    def _record(self, messages: list[Message], outcomes: list[SendResult] | list[TandemError]) -> None:
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, SendResult) and outcome.status is SendStatus.SEND_OK:
                self.acknowledged[int(message.body[:DIGITS])] = 1
            else:
                self.unsure += 1
