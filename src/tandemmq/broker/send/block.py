"""The sends of one read as columns: a block instead of many single sends.

A producer with many messages in flight sends many frames at once. Most of the time of a single send goes into
calls for each message, so a block decodes, checks, encodes and answers all of them column by column.

Invariant: a block stores, answers and counts what `SendHandlers.handle_send` would for each of its sends, to
           the byte. If one of its sends is unusual or may be refused, all are left to that method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import msgspec

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.send.assembly import SHARDING_MARK, RecordBuilder, is_unusual
from tandemmq.broker.send.batch import read_parts
from tandemmq.broker.send.reply import BlockReply, ReplyForm
from tandemmq.broker.send.targets import SendTarget, SendTargets
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.frame import Frame
from tandemmq.protocol.header_json import WireHeader
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import NewBatch
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.remoting.channel import Channel


class _WireSend(WireHeader, gc=False, kw_only=True):
    """The header of a SEND_MESSAGE as received, with its decoded fields."""

    fields: SendRequest = msgspec.field(name="extFields")  # type: ignore[assignment]


class _WireSendV2(WireHeader, gc=False, kw_only=True):
    """The header of a SEND_MESSAGE_V2."""

    fields: SendRequestV2 = msgspec.field(name="extFields")  # type: ignore[assignment]


_DECODERS = {
    RequestCode.SEND_MESSAGE: msgspec.json.Decoder(_WireSend, strict=False).decode,
    RequestCode.SEND_MESSAGE_V2: msgspec.json.Decoder(_WireSendV2, strict=False).decode,
}
_of_wire = attrgetter("opaque", "code", "flag", "fields")
_of_fields = attrgetter(
    "topic",
    "queue_id",
    "sys_flag",
    "born_at_ms",
    "flag",
    "properties",
    "retry_count",
    "is_batch",
)


class SendColumns(NamedTuple):
    """The sends of a block. They have one topic and one sysFlag; `texts` are their properties."""

    topic: str
    sys_flag: int
    opaques: Sequence[int]
    queue_ids: Sequence[int]
    born_times_ms: Sequence[int]
    flags: Sequence[int]
    texts: Sequence[str]
    bodies: Sequence[bytes]


def read_columns(code: RequestCode, frames: Sequence[Frame]) -> SendColumns | None:
    """Returns the sends in these frames, or None if one of them is not an ordinary request `code` with a
    JSON header, or differs in topic or sysFlag.
    """
    headers, bodies, kinds = zip(*frames, strict=True)
    if any(kinds) or not all(bodies):
        return None
    try:
        b"".join(headers).decode()  # msgspec does not check what it skips
        wires = list(map(_DECODERS[code], headers))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    opaques, codes, command_flags, fields = zip(*map(_of_wire, wires), strict=True)
    topics, queue_ids, sys_flags, born_times_ms, flags, texts, retry_counts, batches = zip(
        *map(_of_fields, fields), strict=True
    )
    count, topic, sys_flag = len(frames), topics[0], sys_flags[0]
    if topics.count(topic) != count or sys_flags.count(sys_flag) != count or codes.count(code) != count:
        return None
    if any(command_flags) or any(retry_counts) or any(batches) or not all(texts):
        return None
    return SendColumns(topic, sys_flag, opaques, queue_ids, born_times_ms, flags, texts, bodies)


@dataclass(slots=True)
class SendBlocks:
    """Takes the sends of one read together."""

    core: BrokerCore
    targets: SendTargets
    records: RecordBuilder
    form: ReplyForm

    def take(self, code: RequestCode, channel: Channel, frames: Sequence[Frame]) -> bool:
        """Stores the sends of a block, which are requests `code`; the senders are answered once they are
        stored. Returns False, and does nothing, if they must be handled one by one.
        """
        columns = read_columns(code, frames)
        if columns is None:
            return False
        target = self.targets.get(columns.topic)
        if target is None or target.is_retry:
            return False
        if min(columns.queue_ids) < 0 or max(columns.queue_ids) >= target.queue_count:
            return False
        block = self._make(channel, columns, target)
        if block is None:
            return False
        reply = BlockReply(self.form, channel, columns.opaques, columns.queue_ids, block.unique_keys)
        placed = self.core.store.appender.append_block(block, reply.done)
        if placed is None:
            return False
        reply.placed = placed
        channel.begin_block(code, columns.opaques)
        target.arrivals.record_each(placed.sizes)
        self.core.stats.put_bytes += sum(map(len, columns.bodies))
        return True

    def _make(self, channel: Channel, columns: SendColumns, target: SendTarget) -> NewBatch | None:
        """Returns the records, or None if one of the messages is unusual, has no unique key, or is not to
        wait until it is stored.
        """
        joined = "\n".join(columns.texts) + "\n"
        count, closed_count = len(columns.texts), joined.count("\x02\n")
        if is_unusual(joined, columns.sys_flag) or SHARDING_MARK in joined or "WAIT\x01f" in joined:
            return None
        if closed_count not in (0, count):
            return None
        ending = f"{self.records.added}\n" if closed_count else f"\x02{self.records.added}\n"
        properties = joined.replace("\n", ending).encode("utf-8", "replace").split(b"\n")
        del properties[-1]
        if len(properties) != count:  # a property contains a line break
            return None
        unique_keys, tag_hashes, keys = read_parts(properties)
        if not all(unique_keys):
            return None
        return NewBatch(
            topic=target.topic,
            queue_ids=columns.queue_ids,
            bodies=columns.bodies,
            properties=properties,
            born_times_ms=columns.born_times_ms,
            born_host=encode_host(*channel.peer),
            tag_hashes=tag_hashes,
            flags=columns.flags,
            sys_flag=columns.sys_flag | target.sys_flag,
            retry_count=0,
            keys=keys,
            unique_keys=unique_keys,
            wait_stored=True,
        )
