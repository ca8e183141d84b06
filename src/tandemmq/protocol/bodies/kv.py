"""Tables of texts: KV namespaces, runtime info (spec remoting 11.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol import loose_json
from tandemmq.protocol.bodies.codec import decode_plain, encode_body
from tandemmq.protocol.command import Buffer

REFUSALS_KEY: Final = "tandemConsumerRefusals"
"""Ours, in the runtime info: heartbeats, pulls and pops that were refused since the start."""


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    return encode_body({"table": dict(table)})


def decode_kv_table(data: Buffer) -> dict[str, str]:
    """The table; numbers and booleans become texts.

    Raises:  RemoteProtocolError.
    """
    value = decode_plain(data)
    table = value.get("table") if isinstance(value, dict) else None
    if table is None and isinstance(value, dict):
        return {}
    if not isinstance(table, dict):
        raise RemoteProtocolError("a KV table is not a JSON object")
    return loose_json.text_map(table)
