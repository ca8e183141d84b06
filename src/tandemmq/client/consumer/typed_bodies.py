"""Decoded bodies of received messages: `message.value`. A message whose body is refused becomes a dead letter
with the reason: no retry can make it valid.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from tandemmq.client.serializers import Serializer
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)


def set_value(message: ReceivedMessage, serializer: Serializer) -> None:
    """Sets `message.value`. Raises ValueError for a body that is not decompressed; the serializer's error."""
    if message.body_fault:
        raise ValueError(message.body_fault)
    message.value = serializer.decode(bytes(message.body))


def decode_value(message: ReceivedMessage, serializer: Serializer) -> str | None:
    """Sets `message.value`; returns None, or the reason why the body is refused, which is logged."""
    try:
        set_value(message, serializer)
    except Exception as error:  # noqa: BLE001  # the user's code; each error refuses the body
        reason = f"invalid body: {error}"
        log.warning(
            events.MESSAGE_BODY_REFUSED,
            extra={"topic": message.topic, "unique_key": message.message_id, "error": reason},
        )
        return reason
    return None


def decoding(handler: Callable[[Any], object], serializer: Serializer | None) -> Callable[[Any], object]:
    """Returns the handler of messages, or of lists of them, that gets only those with a valid body."""
    if serializer is None:
        return handler

    @wraps(handler)
    def handle(argument: ReceivedMessage | list[ReceivedMessage]) -> object:
        is_batch = isinstance(argument, list)
        messages = argument if isinstance(argument, list) else [argument]
        refused = {}
        for message in messages:
            reason = decode_value(message, serializer)
            if reason is not None:
                refused[id(message)] = message.dead_letter(reason=reason)
        valid = [message for message in messages if id(message) not in refused]
        outcome = handler(valid if is_batch else valid[0]) if valid else None
        return _after(list(refused.values()), outcome) if refused else outcome

    return handle


async def _after(settled: list[Awaitable[None]], outcome: object) -> object:
    """Returns the outcome of a handler after the dead letters; in a thread those are stored already."""
    try:
        for one in settled:
            await one
    except BaseException:
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise
    return await outcome if inspect.isawaitable(outcome) else outcome
