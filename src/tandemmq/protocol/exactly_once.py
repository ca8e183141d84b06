"""Names that a numbered send and its broker share (decision 010). Ours, not RocketMQ's. Pure."""

from __future__ import annotations

from tandemmq.protocol.properties import TRANSIENT_PREFIX

CLAIM_PROPERTY = f"{TRANSIENT_PREFIX}TANDEM_SEQ"
CLAIM_VERSION = "1"
NO_PREDECESSOR = "-"
PREFIX_DIGITS = 20

CAPABILITY = "tandemExactlyOnce"
"""In the runtime info of a broker that stores numbered sends once; its value is CLAIM_VERSION."""


def render_claim(producer: str, epoch: int, after: str) -> str:
    """The properties of a request that make it a numbered send; `after` empty: the first one of the epoch."""
    value = f"{CLAIM_VERSION},{producer},{epoch},{after or NO_PREDECESSOR}"
    return f"{CLAIM_PROPERTY}\x01{value}\x02"
