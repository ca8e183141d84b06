"""Single messages: by log offset (33) or by key (12), and `load_record` for other requests that name a
message by its log offset. Source: spec semantics 19, spec remoting 9.9.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import invalid, require_topic
from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame_head
from tandemmq.protocol.record import Record, RecordError, decode_record
from tandemmq.protocol.requests.consume import QueryMessageRequest, QueryMessageResponse, ViewMessageRequest
from tandemmq.remoting.channel import Channel
from tandemmq.store.message_store import MessageStore
from tandemmq.store.reader import TAG_SCAN_COUNT_MAX

UNIQUE_KEY_COUNT_MAX = 32
KEY_LENGTH_MAX = 32_767
TAG_INDEX = "T"
ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""TandemMQ's own limit, half a frame; larger results are cut to the first messages."""


def load_record(store: MessageStore, log_offset: int) -> Record | None:
    """Returns the record at the log offset; None if no record is stored there, or an undecodable one."""
    raw = store.read_record(log_offset) if log_offset >= 0 else None
    try:
        return None if raw is None else decode_record(raw, check_crc=False, log_offset=log_offset)
    except RecordError:
        return None


@dataclass(slots=True)
class QueryHandlers:
    """Reads single messages from the store."""

    core: BrokerCore

    def handle_view(self, channel: Channel, command: Command) -> Command | None:
        """Handles VIEW_MESSAGE_BY_ID (33)."""
        log_offset = command.decode(ViewMessageRequest).log_offset
        record = self.core.store.read_record(log_offset) if log_offset >= 0 else None
        if record is None:
            raise RequestRejected(f"no message is stored at log offset {log_offset}")
        if not command.is_oneway:
            channel.send_frame(encode_frame_head(command.reply(), len(record)), record)
        return None

    def handle_query(self, channel: Channel, command: Command) -> Command | None:
        """Handles QUERY_MESSAGE (12): messages with a key or with tags, newest first; clients check the key
        again.

        The index holds hashes only, and a key with the hash of another topic's key is easily constructed. So
        the topic is checked here: a client with the right to read one topic may lack it for the other.
        """
        header = command.decode(QueryMessageRequest)
        require_topic(self.core.topics, header.topic)
        if not header.key or len(header.key) > KEY_LENGTH_MAX:
            raise invalid(f"key must have 1 to {KEY_LENGTH_MAX} characters")
        count_max = UNIQUE_KEY_COUNT_MAX if header.is_unique_key else header.count_max
        if count_max < 1:
            raise invalid(f"maxNum {count_max} must be at least 1")
        by_tags = header.index_type == TAG_INDEX
        if header.index_type not in ("", "K", "U", TAG_INDEX):
            raise invalid(f"indexType {header.index_type[:16]!r} must be K (key), U (unique key) or T (tags)")
        wanted = header.topic, header.key, count_max, header.begin_at_ms, header.end_at_ms
        is_complete = True
        if by_tags:
            offsets, is_complete = self.core.store.reader.query_tags(*wanted)
        else:
            offsets = self.core.store.query_keys(*wanted)
        records: list[memoryview] = []
        size = 0
        for offset in offsets:
            record = self.core.store.read_record(offset)
            if record is None or not _is_of(record, header.topic, header.key if by_tags else None):
                continue
            if records and size + len(record) > ANSWER_BYTES_MAX:
                break
            records.append(record)
            size += len(record)
        if not records:
            kind = "tags" if by_tags else "key"
            reason = f"no message of {header.topic} has the {kind} {header.key[:64]!r} in that time"
            if not is_complete:
                reason += f", among the newest {TAG_SCAN_COUNT_MAX} messages: ask for an earlier end"
            raise RequestRejected(reason, code=ResponseCode.QUERY_NOT_FOUND)
        # 0 means unknown: keys of healed records are not in the index. A client that trusts another time, as
        # the Spark source does, would not look for those records in the queues.
        response = QueryMessageResponse(
            index_updated_at_ms=0, index_log_offset=self.core.store.max_log_offset
        )
        if not command.is_oneway:
            channel.send_frame(encode_frame_head(command.reply(0, response), size), *records)
        return None


def _is_of(record: memoryview, topic: str, tags: str | None) -> bool:
    """Returns True if the record belongs to this topic and has these tags; with None any tags match."""
    try:
        found = decode_record(record, check_crc=False)
    except RecordError:
        return False
    return found.topic == topic and (tags is None or found.tags == tags)
