"""Transaction ids that describe themselves, so that no proxy needs to remember a transaction.

An id is URL-safe Base64, without padding, of the version, the broker's name, the two offsets of the half
message and its unique key. Clients return the id unchanged, and every proxy can end the transaction, before
and after a restart. A forged id ends no foreign transaction: the broker compares producer group and offsets.
Source: spec proxy 5.8.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.proxy.values import natural_number

_VERSION: Final = "1"
_SEPARATOR: Final = "\x01"
_CHARS_MAX: Final = 65_536
"""Longer texts are not decoded; a unique key has at most the bytes of a message's properties."""
_TEXT_CHARS: Final = 64


class TransactionId(NamedTuple):
    """The position of a half message. `half_offset` is its offset in the queue of half messages."""

    broker_name: str
    half_offset: int
    log_offset: int
    unique_key: str


def render_transaction_id(transaction: TransactionId) -> str:
    """Returns the id as text."""
    broker_name, half_offset, log_offset, unique_key = transaction
    parts = (_VERSION, broker_name, str(half_offset), str(log_offset), unique_key)
    return urlsafe_b64encode(_SEPARATOR.join(parts).encode()).decode().rstrip("=")


def parse_transaction_id(text: str) -> TransactionId:
    """Returns the parts of an id. Raises RpcRefused INVALID_TRANSACTION_ID for a text of another form."""
    parts = _decode(text).split(_SEPARATOR, 4)
    if len(parts) == 5 and parts[0] == _VERSION and parts[1] and parts[4]:
        half_offset, log_offset = natural_number(parts[2]), natural_number(parts[3])
        if half_offset is not None and log_offset is not None:
            return TransactionId(parts[1], half_offset, log_offset, parts[4])
    raise RpcRefused(
        Code.INVALID_TRANSACTION_ID,
        f"the transaction id {text[:_TEXT_CHARS]!r} was not made by a TandemMQ proxy: return the"
        " transaction_id of the send result or of the check unchanged",
    )


def _decode(text: str) -> str:
    if not text.isascii() or len(text) > _CHARS_MAX:
        return ""
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return ""
