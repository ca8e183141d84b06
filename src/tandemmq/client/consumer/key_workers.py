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
from tandemmq.client.consumer.workers import YIELD_EVERY, AnyHandler, HandlerOutcome, Workers, log
from tandemmq.client.options import PushOptions
from tandemmq.errors import TandemError
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.telemetry import events


def message_key(message: ReceivedMessage) -> str | None:
    """Returns the key that orders a message: its sharding key, else the first of its keys; None without."""
    return message.properties.get(names.SHARDING_KEY) or next(iter(message.keys), None)


class _KeptSource(NamedTuple):
    """The source of a message that waits for its next attempt: it stays in the inbox when its queue moves, so
    that its worker lets the later messages of the key continue.
    """

    reader: MessageSource

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
            key = self._key_of(deliveries[0].message)
            delivery = self._admit(key, deliveries[0])
            while delivery is not None and not self._inbox.is_closed:
                handled_count += 1
                if handled_count % YIELD_EVERY == 0:
                    await self._clock.sleep(0)
                delivery = await self._handle(key, delivery)

    work_in_thread = work_in_loop

    def _key_of(self, message: ReceivedMessage) -> Hashable:
        assert self._options.order_key is not None
        try:
            key = self._options.order_key(message)
            hash(key)
        except Exception as error:  # noqa: BLE001  # the user's code
            log.warning(events.HOOK_FAILED, extra={"hook": "order_key"}, exc_info=error)
            return None
        return key

    def _admit(self, key: Hashable, delivery: Received) -> Received | None:
        """Returns the message if it is the current one of its key now; otherwise it waits."""
        if key is None:
            return delivery
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _KeyLine(delivery.message)
        elif line.current is not delivery.message:
            line.waiting.append(delivery)
            return None
        return delivery

    async def _handle(self, key: Hashable, delivery: Received) -> Received | None:
        """Handles a message; returns the next one of its key, which may begin now."""
        message = delivery.message
        if delivery.source.holds(message):
            call_id = self._begin(message)
            if not await self._run(message, lambda outcome: self._settle(delivery, outcome, call_id)):
                return None
        line = self._lines.get(key)
        if key is None or line is None:
            return None
        if not line.waiting:
            del self._lines[key]
            return None
        following = line.waiting.popleft()
        line.current = following.message
        return following

    async def _settle_failure(self, delivery: Received, outcome: HandlerOutcome) -> bool:
        """Tries the message again in its place, until it becomes a dead letter."""
        message, options = delivery.message, self._options
        if self._is_broadcasting or self._key_of(message) is None:
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
        kept = delivery.source if isinstance(delivery.source, _KeptSource) else _KeptSource(delivery.source)
        self._clock.call_later(
            options.orderly_suspend_s if delay_s is None else delay_s,
            self._inbox.put_back,
            (Received(kept, message),),
        )
        return False
