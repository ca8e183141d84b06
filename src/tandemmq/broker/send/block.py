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
from tandemmq.protocol import speedups
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.frame import Frame
from tandemmq.protocol.header_json import WireHeader
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import NewBatch
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.remoting.channel import Channel

COUNT_MIN = 10
"""The number of sends from which a block takes less time than its sends one by one (approximate)."""
COUNT_MIN_WITH_KERNEL = 3


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
    """The sends of a block. They have one topic and one sysFlag; `text` contains the properties of all as
    received, `properties` are those to store.
    """

    topic: str
    sys_flag: int
    text: str
    opaques: Sequence[int]
    queue_ids: Sequence[int]
    born_times_ms: Sequence[int]
    flags: Sequence[int]
    bodies: Sequence[bytes]
    properties: list[bytes]
    unique_keys: list[str]
    tag_hashes: Sequence[int]
    keys: Sequence[str]

    @property
    def is_unusual(self) -> bool:
        """True if one of the messages may be unusual, or is not to wait until it is stored."""
        text = self.text
        return is_unusual(text, self.sys_flag) or SHARDING_MARK in text or "WAIT\x01f" in text


def read_columns(code: RequestCode, frames: Sequence[Frame], added: str) -> SendColumns | None:
    """Returns the sends in these frames, with the `added` properties of the broker. Returns None if one of
    them is unusual, is not an ordinary request `code` with a JSON header, or differs in topic or sysFlag.
    """
    kernel = speedups.kernel
    if kernel is not None:
        is_v2 = code == RequestCode.SEND_MESSAGE_V2
        found = kernel.read_sends(code, is_v2, frames, added.encode("utf-8", "replace"))
        if found is not None:
            columns = SendColumns(*found)
            return None if columns.is_unusual else columns
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
    text = "\n".join(texts) + "\n"
    columns = SendColumns(
        topic, sys_flag, text, opaques, queue_ids, born_times_ms, flags, bodies, [], [], (), ()
    )
    return None if columns.is_unusual else _complete(columns, added)


def _complete(columns: SendColumns, added: str) -> SendColumns | None:
    """Returns the columns with the complete properties and what tables need of them, or None if one of the
    messages has no unique key.
    """
    text, count = columns.text, len(columns.bodies)
    closed_count = text.count("\x02\n")
    if closed_count not in (0, count):
        return None
    ending = f"{added}\n" if closed_count else f"\x02{added}\n"
    properties = text.replace("\n", ending).encode("utf-8", "replace").split(b"\n")
    del properties[-1]
    if len(properties) != count:  # a property contains a line break
        return None
    unique_keys, tag_hashes, keys = read_parts(properties)
    if not all(unique_keys):
        return None
    return columns._replace(properties=properties, unique_keys=unique_keys, tag_hashes=tag_hashes, keys=keys)


@dataclass(slots=True)
class SendBlocks:
    """Takes the sends of one read together."""

    core: BrokerCore
    targets: SendTargets
    records: RecordBuilder
    form: ReplyForm

    def take(self, code: RequestCode, channel: Channel, frames: Sequence[Frame]) -> bool:
        """Stores the sends of a block, which are requests `code`; the senders are answered once they are
        stored. Returns False, and does nothing, if they must be handled one by one, or are too few.
        """
        if len(frames) < (COUNT_MIN if speedups.kernel is None else COUNT_MIN_WITH_KERNEL):
            return False
        columns = read_columns(code, frames, self.records.added)
        if columns is None:
            return False
        target = self.targets.get(columns.topic)
        if target is None or target.is_retry:
            return False
        if min(columns.queue_ids) < 0 or max(columns.queue_ids) >= target.queue_count:
            return False
        block = _make(channel, columns, target)
        reply = BlockReply(self.form, channel, columns.opaques, columns.queue_ids, block.unique_keys)
        placed = self.core.store.appender.append_block(block, reply.done)
        if placed is None:
            return False
        reply.placed = placed
        channel.begin_block(code, columns.opaques)
        target.arrivals.record_each(placed.sizes)
        self.core.stats.put_bytes += sum(map(len, columns.bodies))
        return True


def _make(channel: Channel, columns: SendColumns, target: SendTarget) -> NewBatch:
    """Returns the records."""
    return NewBatch(
        topic=target.topic,
        queue_ids=columns.queue_ids,
        bodies=columns.bodies,
        properties=columns.properties,
        born_times_ms=columns.born_times_ms,
        born_host=encode_host(*channel.peer),
        tag_hashes=columns.tag_hashes,
        flags=columns.flags,
        sys_flag=columns.sys_flag | target.sys_flag,
        retry_count=0,
        keys=columns.keys,
        unique_keys=columns.unique_keys,
        wait_stored=True,
    )
