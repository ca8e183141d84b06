"""Workers that handle messages with the same key one after the other, and those of different keys beside each
other.

A failed message is tried again in its place, and the later messages of its key wait for it. They stay
unacknowledged, so the bounds of the consumer hold for them (`cached_count_max`, `span_max`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemmq.client.consumer.inbox import MessageSource, Received
from tandemmq.client.consumer.typed_bodies import set_value
from tandemmq.client.consumer.workers import YIELD_EVERY, AnyHandler, HandlerOutcome, Workers, log
from tandemmq.client.options import PushOptions
from tandemmq.errors import TandemError
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.telemetry import events


def message_key(message: ReceivedMessage) -> str | None:
    """Returns the key that orders a message: its sharding key, else the first of its keys; None without."""
    return message.properties.get(names.SHARDING_KEY) or next(iter(message.keys), None)


class _KeyedSource(NamedTuple):
    """The reader of a message, and the key that the message keeps for all its attempts, also if `order_key`
    returns another one later.

    A message with this source that waits for its next attempt stays in the inbox when its queue moves, so
    that its worker lets the later messages of the key continue.
    """

    reader: MessageSource
    key: Hashable

    def finish(self, message: ReceivedMessage) -> None:
        self.reader.finish(message)

    def holds(self, message: ReceivedMessage) -> bool:
        return self.reader.holds(message)


@dataclass(slots=True, eq=False)
class _KeyLine:
    """The messages of one key that have arrived: the current one, and those that wait for it."""

    current: ReceivedMessage
    waiting: deque[Received] = field(default_factory=deque)


class KeyWorkers(Workers):
    """The workers of a handler whose messages are in order by key."""

    def __init__(self, handler: AnyHandler, options: PushOptions) -> None:
        super().__init__(handler, options)
        self._lines: dict[Hashable, _KeyLine] = {}

    async def work_in_loop(self) -> None:
        """Handles messages until the inbox is closed."""
        handled_count = 0
        while deliveries := await self._take(1):
            delivery = self._admit(self._keyed(deliveries[0]))
            while delivery is not None and not self._inbox.is_closed:
                handled_count += 1
                if handled_count % YIELD_EVERY == 0:
                    await self._clock.sleep(0)
                delivery = await self._handle(delivery)

    work_in_thread = work_in_loop

    def _keyed(self, delivery: Received) -> Received:
        """Returns the message with its key, if it has one."""
        if isinstance(delivery.source, _KeyedSource):
            return delivery
        key = self._key_of(delivery.message)
        return delivery if key is None else Received(_KeyedSource(delivery.source, key), delivery.message)

    def _key_of(self, message: ReceivedMessage) -> Hashable:
        assert self._options.order_key is not None
        serializer = self._options.serializer
        try:
            if serializer is not None:
                set_value(message, serializer)
        except Exception:  # noqa: BLE001  # the user's code
            return None  # the call of the handler decodes again, and refuses the body
        try:
            key = self._options.order_key(message)
            hash(key)
        except Exception as error:  # noqa: BLE001  # the user's code
            log.warning(events.HOOK_FAILED, extra={"hook": "order_key"}, exc_info=error)
            return None
        return key

    def _admit(self, delivery: Received) -> Received | None:
        """Returns the message if it is the current one of its key now; otherwise it waits."""
        if not isinstance(delivery.source, _KeyedSource):
            return delivery
        line = self._lines.get(delivery.source.key)
        if line is None:
            self._lines[delivery.source.key] = _KeyLine(delivery.message)
        elif line.current is not delivery.message:
            line.waiting.append(delivery)
            return None
        return delivery

    async def _handle(self, delivery: Received) -> Received | None:
        """Handles a message; returns the next one of its key, which may begin now."""
        message = delivery.message
        if delivery.source.holds(message):
            call_id = self._begin(message)
            if not await self._run(message, lambda outcome: self._settle(delivery, outcome, call_id)):
                return None
        if not isinstance(delivery.source, _KeyedSource):
            return None
        line = self._lines[delivery.source.key]
        if not line.waiting:
            del self._lines[delivery.source.key]
            return None
        following = line.waiting.popleft()
        line.current = following.message
        return following

    async def _settle_failure(self, delivery: Received, outcome: HandlerOutcome) -> bool:
        """Tries the message again in its place, until it becomes a dead letter."""
        message, options = delivery.message, self._options
        if self._is_broadcasting or not isinstance(delivery.source, _KeyedSource):
            return await super()._settle_failure(delivery, outcome)
        if 0 <= options.retry_count_max <= message.retry_count:
            try:
                await self._member.retry_later(message, delay_level=-1)
            except TandemError as error:
                self._log_unreturned(message, error)
            else:
                return True
        delay_s = self._retry_delay_s(message)
        message.note_retry()
        self._clock.call_later(
            options.orderly_suspend_s if delay_s is None else delay_s,
            self._inbox.put_back,
            (delivery,),
        )
        return False
