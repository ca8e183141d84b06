"""Messages that go back to their group: they are delivered again later, or become dead letters (spec
semantics 7).

At a delay level the client asks the broker to store the message again, and names it by its log offset. The
broker refuses if another message is stored there: its log was truncated, or the message was read from a slave
with a longer log. The client then sends the content of the message to the group's retry topic, as RocketMQ's
clients do after any rejection. That is also how a delay in seconds and the reason of a dead letter travel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.api import broker_send
from tandemmq.api.broker_send import SendStatus
from tandemmq.client.call_values import to_count, to_number
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import DELAY_S_MAX
from tandemmq.errors import RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import VERSION_TIMERS, ResponseCode
from tandemmq.protocol.message import PoppedMessage, ReceivedMessage, require_received
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendBackRequest, SendRequestV2
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS, INNER_PRODUCER_GROUP, retry_topic
from tandemmq.units import INT32_MAX

DEAD_LETTER_REASON: Final = "dead_letter_reason"
"""The property with the reason that the application gave for a dead letter."""
REASON_CHARS_MAX: Final = 1_024

FIRST_DELAY_LEVEL: Final = 3
HAND_BACK_TIMEOUT_S: Final = 5.0
"""The default timeout of a producer for a send with all its attempts."""
_NOT_COPIED: Final = (names.REAL_TOPIC, names.REAL_QID, names.TRAN_MSG, names.DELAY)
_TIMER: Final = "TIMER_"
"""The begin of the names of a timed message's properties. A message that keeps one of them, such as its time
of delivery (TIMER_OUT_MS), is not delayed again.
"""


@dataclass(frozen=True, slots=True)
class GroupReturns:
    """Sends messages of one group back. During a failover each call retries until its deadline, as a send
    does.
    """

    instance: ClientInstance
    group: str
    retry_count_max: int

    async def retry_at_level(self, message: ReceivedMessage, delay_level: int) -> None:
        """Sends a message back to the broker; returns once it is stored again. For `delay_level` see
        `Consumer.retry_later`.

        Raises:  NoRoute without a master until the deadline; the error of the last call.
        """
        require_received(message)
        delay_level = to_count("delay_level", delay_level, -1 - INT32_MAX, INT32_MAX)
        header = SendBackRequest(
            log_offset=message.record.log_offset,
            group=self.group,
            delay_level=delay_level,
            original_message_id=message.message_id,
            original_topic=self.instance.namespace.wrap(message.topic),
            retry_count_max=self.retry_count_max,
            broker_name=message.broker_name,
        )

        async def send_back(address: str, remaining_s: float) -> None:
            try:
                await broker_send.send_back.within(remaining_s, self.instance.remoting, address, header)
            except RequestRejected as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                delay = {}
                if delay_level >= 0:
                    level = delay_level or FIRST_DELAY_LEVEL + message.record.retry_count
                    delay = {names.DELAY: str(level)}
                again = self._request(message, delay, is_dead=delay_level < 0)
                await self._send(address, again, message, remaining_s)

        await self._call_master(message, send_back)

    async def retry_after(self, message: ReceivedMessage, delay_s: float) -> None:
        """Sends a message to the group's retry topic, from which it is delivered after the delay.

        Raises:  as `retry_at_level`; BadRequest for a delay that no broker accepts.
        """
        require_received(message)
        delay_ms = round(to_number("delay_s", delay_s, 0, DELAY_S_MAX) * 1000)

        async def send(address: str, remaining_s: float) -> None:
            delay: dict[str, str] = {}
            if delay_ms and self.instance.broker_versions.get(address, 0) >= VERSION_TIMERS:
                delay = {names.TIMER_DELAY_MS: str(delay_ms)}
            elif delay_ms:
                level = min(bisect_left(DELAY_LEVELS_MS, delay_ms) + 1, len(DELAY_LEVELS_MS))
                delay = {names.DELAY: str(level)}
            await self._send(address, self._request(message, delay), message, remaining_s)

        await self._call_master(message, send)

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Makes a message a dead letter; raises as `retry_at_level`."""
        require_received(message)
        request = self._request(message, {DEAD_LETTER_REASON: _clipped(reason)}, is_dead=True)

        async def send(address: str, remaining_s: float) -> None:
            await self._send(address, request, message, remaining_s)

        await self._call_master(message, send)

    async def _call_master(
        self, message: ReceivedMessage, ask: Callable[[str, float], Awaitable[None]]
    ) -> None:
        topic = message.record.topic
        if isinstance(message, PoppedMessage):  # no route leads to the retry topics of pops
            topic = self.instance.namespace.wrap(message.topic)
        await self.instance.call_master(topic, message.broker_name, ask, timeout_s=HAND_BACK_TIMEOUT_S)

    async def _send(
        self, address: str, request: SendRequestV2, message: ReceivedMessage, timeout_s: float
    ) -> None:
        answer = await broker_send.send(
            self.instance.remoting, address, request, message.body, timeout_s=timeout_s
        )
        if answer.status is not SendStatus.SEND_OK:
            raise RequestRejected(
                f"the message was not stored again: {answer.status.value}", code=ResponseCode.SYSTEM_ERROR
            )

    def _request(
        self, message: ReceivedMessage, changes: Mapping[str, str], *, is_dead: bool = False
    ) -> SendRequestV2:
        """Builds the request that sends the message as a new one to the retry topic. A retry limit of -1,
        below every count, makes it a dead letter.
        """
        retry_count = message.record.retry_count + 1
        pairs = {
            name: value
            for name, value in message.properties.items()
            if name not in _NOT_COPIED and not (name.startswith(_TIMER) and names.is_reserved(name))
        }
        pairs.setdefault(names.RETRY_TOPIC, self.instance.namespace.wrap(message.topic))
        pairs.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        pairs[names.RECONSUME_TIME] = str(retry_count)
        pairs[names.MAX_RECONSUME_TIMES] = str(self.retry_count_max)
        pairs[names.WAIT] = "true"
        pairs |= changes
        return SendRequestV2(
            producer_group=INNER_PRODUCER_GROUP,
            topic=retry_topic(self.group),
            default_topic="TBW102",
            default_topic_queue_count=1,
            queue_id=-1,
            sys_flag=message.body_sys_flag,
            born_at_ms=message.record.born_at_ms,
            flag=message.record.flag,
            properties=encode_properties(pairs).decode(),
            retry_count=retry_count,
            retry_count_max=-1 if is_dead else self.retry_count_max,
            broker_name=message.broker_name,
        )


def _clipped(reason: str) -> str:
    """Returns the reason as a property can hold it: not blank, without separators, and not too long."""
    text = "".join(char if char.isprintable() else " " for char in reason).strip()
    return text[:REASON_CHARS_MAX] or "unknown"
