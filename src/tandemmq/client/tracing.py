"""RocketMQ's message trace, and the observers that report each message to it and to the hooks.

The trace of a message consists of records in a topic (RMQ_SYS_TRACE_TOPIC): one of its producer, two of each
consumer. mqadmin's queryMsgTraceById and the dashboard read them. Records are sent in groups. When too many
wait, new ones are dropped, because a trace must never delay the traced messages.
Source:  spec semantics 3.12.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from tandemmq.client.hooks import ConsumeEvent, OnConsume, OnSend, SendEvent, call_hook
from tandemmq.client.instance import ClientInstance
from tandemmq.client.namespace import Namespace
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.outbox import Outbox
from tandemmq.client.producer.packer import room_of
from tandemmq.client.producer.results import SendResult
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import Message, ReceivedMessage, is_delayed
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger
from tandemmq.units import KIB

log = event_logger(__name__)

FIELD: Final = "\x01"
END: Final = "\x02"
NORMAL, HALF, DELAYED = "0", "1", "3"
"""RocketMQ's kinds of messages in a trace, by their ordinals."""
SUCCESS, TIMED_OUT, EXCEPTION, FAILED = "0", "1", "2", "4"
"""The outcome of handling a message, by the ordinals of RocketMQ's ConsumeReturnType."""

WAITING_MAX: Final = 2_048
FLUSH_COUNT: Final = 10
FLUSH_S: Final = 5.0
BODY_BYTES_MAX: Final = 128_000
KEYS_CHARS_MAX: Final = 16 * KIB
"""The longest keys of one trace message: properties must stay below 32 KiB."""
SEND_TIMEOUT_S: Final = 5.0


class UnsentRecord(NamedTuple):
    """An unsent record. Records of one topic and region share a message."""

    topic: str
    region: str
    keys: tuple[str, ...]
    record: str


class Tracer:
    """Sends the trace records of one producer or consumer."""

    def __init__(self, instance: ClientInstance, group: str, kind: str, trace_topic: str) -> None:
        """Creates the tracer. `kind` is PRODUCE or CONSUME."""
        self.trace_topic = trace_topic
        options = ProducerOptions(
            client=instance.options, timeout_s=SEND_TIMEOUT_S, message_bytes_max=2 * BODY_BYTES_MAX
        )
        # The trace topic belongs to no namespace: all namespaces share it.
        self._outbox = Outbox(instance, f"_INNER_TRACE_PRODUCER-{group}-{kind}-0", options, Namespace())
        self._tasks = TaskScope(f"trace-{group}")
        self._waiting: deque[UnsentRecord] = deque()
        self._is_due = asyncio.Event()
        self._dropped_count = 0
        self._is_closing = False

    def start(self) -> None:
        """Begins to send added records."""
        self._outbox.open()
        self._flushing = self._tasks.start("flush", self._run())

    async def close(self) -> None:
        """Sends the waiting records, and drops those that cannot be sent."""
        if not self._outbox.is_open:
            return
        self._is_closing = True
        self._is_due.set()
        try:
            await asyncio.wait([self._flushing], timeout=SEND_TIMEOUT_S)
        finally:
            self._outbox.close()
            await self._tasks.close()

    def add(self, topic: str, region: str, keys: Sequence[str], fields: Sequence[str]) -> None:
        """Adds a record; it is dropped when too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            self._dropped_count += 1
            return
        self._waiting.append(UnsentRecord(topic, region, tuple(keys), FIELD.join(fields) + END))
        if len(self._waiting) >= FLUSH_COUNT:
            self._is_due.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._is_due.wait()
            self._is_due.clear()
            is_last = self._is_closing
            await self._flush()
            if is_last:
                return

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        dropped_count, self._dropped_count = self._dropped_count, 0
        sends: list[asyncio.Future[SendResult]] = []
        for message in _messages(waiting, self.trace_topic):
            room = room_of(message)
            await self._outbox.window.take(room)
            sends.append(self._outbox.start(message, None, None, room))
        if sends:
            await asyncio.wait(sends)
        errors = [send.exception() for send in sends if send.exception() is not None]
        if errors or dropped_count:
            log.warning(
                events.TRACE_LOST,
                extra={
                    "topic": self.trace_topic,
                    "failed_count": len(errors),
                    "dropped_count": dropped_count,
                    "error": str(errors[0]) if errors else "",
                },
            )


def _messages(waiting: Sequence[UnsentRecord] | deque[UnsentRecord], trace_topic: str) -> Iterator[Message]:
    """Groups the records into messages, each below the bounds."""
    groups: dict[tuple[str, str], list[UnsentRecord]] = {}
    for one in waiting:
        groups.setdefault((one.topic, one.region), []).append(one)
    for group in groups.values():
        records: list[str] = []
        keys: dict[str, None] = {}
        size = chars = 0
        for one in group:
            own_size, own_chars = len(one.record.encode()), sum(len(key) + 1 for key in one.keys)
            if records and (size + own_size > BODY_BYTES_MAX or chars + own_chars > KEYS_CHARS_MAX):
                yield Message(topic=trace_topic, body="".join(records).encode(), keys=tuple(keys))
                records, keys, size, chars = [], {}, 0, 0
            records.append(one.record)
            keys.update(dict.fromkeys(one.keys))
            size, chars = size + own_size, chars + own_chars
        yield Message(topic=trace_topic, body="".join(records).encode(), keys=tuple(keys))


def split_records(body: bytes) -> list[list[str]]:
    """Returns the records of a trace message, each as its fields; the first field is the kind."""
    text = body.decode("utf-8", "replace")
    return [record.split(FIELD) for record in text.split(END) if record]


class SendObserver:
    """Reports the sends of one producer to its hook and its trace."""

    def __init__(
        self, instance: ClientInstance, group: str, hooks: Sequence[OnSend], tracer: Tracer | None
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._group = instance.namespace.unwrap(group)
        self._hooks = hooks
        self._tracer = tracer

    def watch(
        self,
        messages: Sequence[Message],
        outcome: asyncio.Future[SendResult] | asyncio.Future[list[SendResult]],
        is_half: bool,
    ) -> None:
        """Observes a send of these messages, which has begun."""
        done = partial(self._done, messages, self._clock.now_ms(), self._clock.monotonic(), is_half)
        outcome.add_done_callback(done)

    def _done(
        self,
        messages: Sequence[Message],
        began_ms: int,
        began_s: float,
        is_half: bool,
        outcome: asyncio.Future[SendResult] | asyncio.Future[list[SendResult]],
    ) -> None:
        took_s = self._clock.monotonic() - began_s
        if outcome.cancelled():
            return
        error = outcome.exception()
        found = () if error is not None else outcome.result()
        results = found if isinstance(found, list | tuple) else (found,)
        for index, message in enumerate(messages):
            result = results[index] if index < len(results) else None
            for hook in self._hooks:
                call_hook(hook, SendEvent(message, result, error, took_s))
            if self._tracer is not None and result is not None and message.topic != self._tracer.trace_topic:
                self._trace(self._tracer, message, result, began_ms, took_s, is_half=is_half)

    def _trace(
        self,
        tracer: Tracer,
        message: Message,
        result: SendResult,
        began_ms: int,
        took_s: float,
        *,
        is_half: bool,
    ) -> None:
        if not result.is_traced:
            return
        keys = tuple(message.keys.split(" ")) if isinstance(message.keys, str) else tuple(message.keys)
        topic = self._instance.namespace.wrap(message.topic)
        address = self._instance.routes.master_address(topic, result.queue.broker_name)
        tracer.add(
            message.topic,
            result.region,
            (result.unique_key, *filter(None, keys)),
            (
                "Pub",
                str(began_ms),
                result.region,
                self._group,
                message.topic,
                result.unique_key,
                message.tags or "null",
                " ".join(keys) or "null",
                address or "null",
                str(len(message.body)),
                str(round(took_s * 1000)),
                HALF if is_half else DELAYED if is_delayed(message) else NORMAL,
                result.message_id,
                _flag(result.is_ok),
            ),
        )


class ConsumeObserver:
    """Reports the messages that one push consumer has handled to its hook and its trace."""

    def __init__(
        self, instance: ClientInstance, group: str, hooks: Sequence[OnConsume], tracer: Tracer | None
    ) -> None:
        self._instance = instance
        self._group = instance.namespace.unwrap(group)
        self._hooks = hooks
        self._tracer = tracer

    def begin(self, message: ReceivedMessage, ago_s: float) -> str:
        """Records that the handler was called; returns the id of the call, empty when it is not traced."""
        tracer, properties = self._tracer, message.properties
        if tracer is None or properties.get(names.TRACE_ON) == "false" or message.topic == tracer.trace_topic:
            return ""
        now_ms = self._instance.clock.now_ms()
        request_id = self._instance.unique_keys.next(now_ms)
        tracer.add(
            message.topic,
            _region(message),
            (message.message_id, *message.keys),
            (
                "SubBefore",
                str(now_ms - round(ago_s * 1000)),
                _region(message),
                self._group,
                request_id,
                message.message_id,
                str(message.retry_count),
                message.record.keys or "null",
            ),
        )
        return request_id

    def end(self, request_id: str, event: ConsumeEvent, code: str) -> None:
        """Records the outcome of the call; `code` is the trace's code for it."""
        for hook in self._hooks:
            call_hook(hook, event)
        if self._tracer is None or not request_id:
            return
        message = event.message
        self._tracer.add(
            message.topic,
            _region(message),
            (message.message_id, *message.keys),
            (
                "SubAfter",
                request_id,
                message.message_id,
                str(round(event.took_s * 1000)),
                _flag(event.is_success),
                message.record.keys or "null",
                code,
                str(self._instance.clock.now_ms()),
                self._group,
            ),
        )


def _region(message: ReceivedMessage) -> str:
    return message.properties.get(names.MSG_REGION, "null")


def _flag(is_true: bool) -> str:
    return "true" if is_true else "false"
