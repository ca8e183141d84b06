"""The handle by which a timed message can be taken back: pure.

URL-safe Base64 of `v1 topic broker timestamp unique-key`; the timestamp is one behind the message's slot, so
that it is cut to the same slot again. Source: spec remoting 12.7, spec semantics 3.11 and 5.2.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

_VERSION = "v1"
_DIGITS_MAX = 18
_CHARS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Which message, on which broker, at which time."""

    topic: str
    broker_name: str
    at_ms: int
    unique_key: str


def encode_recall_handle(topic: str, broker_name: str, at_ms: int, unique_key: str) -> str:
    """The handle as text; its padding is kept, as RocketMQ does."""
    text = f"{_VERSION} {topic} {broker_name} {at_ms} {unique_key}"
    return urlsafe_b64encode(text.encode("utf-8", "replace")).decode("ascii")


def decode_recall_handle(text: str) -> RecallHandle | None:
    """None for anything that is not a handle; its padding may be missing."""
    if not text.isascii() or len(text) > _CHARS_MAX:
        return None
    try:
        plain = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    parts = plain.split(" ")
    if len(parts) != 5 or parts[0] != _VERSION or not parts[4]:
        return None
    _, topic, broker_name, at_ms, unique_key = parts
    if not (at_ms.isascii() and at_ms.isdigit()) or len(at_ms) > _DIGITS_MAX:
        return None
    return RecallHandle(topic, broker_name, int(at_ms), unique_key)
