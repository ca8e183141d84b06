"""The acks of one read, grouped by the leases that they name, and the answers to them. Pure.

A pop consumer acknowledges each message by a request of its own, so the acks of one pop mostly arrive
together. As a group they need one handle, one look at the lease and one buffer of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tandemmq.broker.pop.leases import QueueKey
from tandemmq.errors import BadRequest
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import Frame, join_headers
from tandemmq.protocol.header_json import WireHeader, encode_header_json
from tandemmq.protocol.pop_receipts import Handle, parse_handle
from tandemmq.protocol.requests.consume import AckRequest


class _WireAck(WireHeader, gc=False, kw_only=True):
    """The header of an ACK_MESSAGE as received, with its decoded fields."""

    fields: AckRequest = msgspec.field(name="extFields")  # type: ignore[assignment]


_decode = msgspec.json.Decoder(_WireAck, strict=False).decode
_of_wire = attrgetter("opaque", "code", "flag", "fields")
_of_fields = attrgetter("topic", "consumer_group", "queue_id", "extra_info", "offset")
_STORED: Final = encode_header_json(Command(0).reply()).replace(b'"opaque":0', b'"opaque":%d')


class NamedAcks(NamedTuple):
    """Acks with the same handle but for the message's offset, in the order of their arrival."""

    key: QueueKey
    handle: Handle
    opaques: list[int]
    offsets: list[int]


def group_acks(frames: Sequence[Frame]) -> list[NamedAcks] | None:
    """Returns the acks in these frames. Returns None if one of them is not an ordinary ACK_MESSAGE with a
    JSON header and a handle whose message is the acknowledged one.
    """
    headers, _, kinds = zip(*frames, strict=True)
    if any(kinds):
        return None
    try:
        b"".join(headers).decode()  # msgspec does not check what it skips
        wires = list(map(_decode, headers))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    opaques, codes, flags, fields = zip(*map(_of_wire, wires), strict=True)
    if any(flags) or codes.count(RequestCode.ACK_MESSAGE) != len(frames):
        return None
    found: dict[tuple[str, str, int, str], NamedAcks] = {}
    for opaque, (topic, group, queue_id, text, offset) in zip(opaques, map(_of_fields, fields), strict=True):
        lease_text, _, own_text = text.rpartition(" ")
        if own_text != str(offset):
            return None
        name = (topic, group, queue_id, lease_text)
        acks = found.get(name)
        if acks is None:
            try:
                handle = parse_handle(lease_text)
            except BadRequest:
                return None
            acks = found[name] = NamedAcks((topic, group, queue_id), handle, [], [])
        acks.opaques.append(opaque)
        acks.offsets.append(offset)
    return list(found.values())


def render_stored(opaques: Sequence[int]) -> bytes:
    """Returns the answers to JSON requests whose acks are stored."""
    return join_headers(list(map(_STORED.__mod__, opaques)))
