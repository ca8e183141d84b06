"""What a numbered send says of itself, in a property that is never stored. Pure.

    __RMQ.TRANSIENT.TANDEM_SEQ = 1,<producer>,<epoch>,<unique key of the message before it, or ->

The number of each message is the end of its own UNIQ_KEY: 20 digits that name the run of numbers, then 12
with the number. So the log holds all that is needed, and nothing has to be stored beside the messages. The
prefix of the name is one that brokers drop (RocketMQ 5.x too).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandemmq.errors import MessageIllegal
from tandemmq.protocol.exactly_once import CLAIM_VERSION, NO_PREDECESSOR, PREFIX_DIGITS

KEY_DIGITS = 32
PRODUCER_CHARS_MAX = 64
_EPOCH_DIGITS_MAX = 18
_HEX = frozenset("0123456789ABCDEF")


class Claim(NamedTuple):
    """`after`: the unique key of the producer's message before these in this queue and epoch; empty: none."""

    producer: str
    epoch: int
    after: str


def parse_claim(text: str) -> Claim:
    """Raises MessageIllegal for what is not a claim of a version that is known."""
    version, _, rest = text.partition(",")
    if version != CLAIM_VERSION:
        raise MessageIllegal(
            f"numbered sends of version {version[:16]!r} are not known, only {CLAIM_VERSION}"
        )
    parts = rest.split(",")
    if len(parts) != 3:
        raise MessageIllegal(f"a numbered send names producer, epoch and predecessor, got {text[:64]!r}")
    producer, epoch, after = parts
    if not 0 < len(producer) <= PRODUCER_CHARS_MAX:
        raise MessageIllegal(f"the producer of a numbered send has 1 to {PRODUCER_CHARS_MAX} characters")
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= _EPOCH_DIGITS_MAX):
        raise MessageIllegal(f"the epoch of a numbered send must be a whole number, got {epoch[:32]!r}")
    after = "" if after == NO_PREDECESSOR else after
    if after:
        check_keys([after])
    return Claim(producer, int(epoch), after)


def check_keys(keys: Sequence[str]) -> None:
    """Raises MessageIllegal unless the keys are of one run of numbers, and rise."""
    before = ""
    for index, key in enumerate(keys):
        if len(key) != KEY_DIGITS or not _HEX.issuperset(key):
            raise MessageIllegal(
                f"message {index} of a numbered send: UNIQ_KEY must be {KEY_DIGITS} hexadecimal digits"
            )
        if before and (key[:PREFIX_DIGITS] != before[:PREFIX_DIGITS] or key <= before):
            raise MessageIllegal(
                f"message {index} of a numbered send: its UNIQ_KEY does not follow the one before it"
            )
        before = key
