"""Checks the record at one position of the log, and extracts the values a dispatcher needs.

Invariants: foreign bytes lead to an outcome, never to an exception.
Strategy:   properties are searched in their wire form; the hash of tags and the topic's text are cached.
Source:     spec store 3.3, 5, 8.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from tandemmq.protocol.hashes import crc32, tag_hash
from tandemmq.protocol.properties import (
    PROPERTIES_BYTES_MAX,
    find_properties,
    find_property,
    property_mark,
)
from tandemmq.protocol.record_layout import (
    BLANK_BYTES_MIN,
    CRC_MASK,
    HEAD_V4,
    HEAD_V4_BYTES,
    HEADS,
    INT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    RECORD_BYTES_MIN,
    SEAL_BYTES,
    SYS_FLAG_AT,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    RecordOutcome,
    encode_seal,
)
from tandemmq.protocol.sys_flag import HOSTS_V6_MASK
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC, delivered_at_ms
from tandemmq.units import Buffer

_DISPATCHED: Final = tuple(map(property_mark, ("TAGS", "KEYS", "UNIQ_KEY")))
_FACTS_V4: Final = Struct(">ii28xi44xi")
"""The size, magic, system flag and body size of a record with addresses of four bytes."""


Head: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_at, born_host, stored_at,
store_host, retry_count, prepared_offset, body size
"""


class RecordCheck(msgspec.Struct, gc=False):
    """The outcome at a position, and the values a dispatcher needs (spec store 3.3).

    `size` is set for OK, BLANK (the distance to the file's end), TRUNCATED and WRONG_OFFSET, else 0; the
    other fields only for OK. `tag_hash` is the third field of the ConsumeQueue entry: for a delayed message
    its due time.
    """

    outcome: RecordOutcome
    size: int = 0
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    tag_hash: int = 0
    stored_at_ms: int = 0
    sys_flag: int = 0
    prepared_offset: int = 0
    keys: str = ""
    unique_key: str = ""
    message_count: int = 1


def check_record(
    view: Buffer,
    position: int = 0,
    *,
    log_offset: int | None = None,
    check_crc: bool = True,
    require_seal: bool = False,
) -> RecordCheck:
    """Checks the record at `position` of `view`; never raises on foreign bytes.

    `log_offset`: the log offset of the position; None accepts the record's own. `require_seal`: verifies
    property `__CRC32#`, whose absence is BAD_CRC, instead of the body's checksum (forceVerifyPropCRC).
    """
    parsed = parse_record(view, position)
    if isinstance(parsed, RecordCheck):
        return parsed
    (head, body_at, topic, properties) = parsed
    size, body_size = head[0], head[14]
    if log_offset is not None and head[6] != log_offset:
        return RecordCheck(RecordOutcome.WRONG_OFFSET, size)
    if require_seal:
        if not has_good_seal(view, position, size):
            return RecordCheck(RecordOutcome.BAD_CRC)
    elif check_crc and body_size and not _has_good_body(view, body_at, body_size, head[2]):
        return RecordCheck(RecordOutcome.BAD_CRC)
    stored_at_ms = head[10]
    tags, keys, unique_key = find_properties(properties, _DISPATCHED)
    tag = 0 if tags is None else _tag_hash_of_bytes(tags)
    return RecordCheck(
        RecordOutcome.OK,
        size,
        topic,
        head[3],
        head[5],
        head[6],
        tag if topic != SCHEDULE_TOPIC else _due_at(properties, stored_at_ms, tag),
        stored_at_ms,
        head[7],
        head[13],
        "" if keys is None else str(keys, "utf-8", "replace"),
        "" if unique_key is None else str(unique_key, "utf-8", "replace"),
        _inner_count(properties) if b"INNER_" in properties else 1,
    )


def parse_record(view: Buffer, position: int) -> RecordCheck | tuple[Head, int, str, bytes]:
    """Returns head, body position, topic and properties of a well-formed record, else the outcome."""
    remaining = len(view) - position
    if remaining < BLANK_BYTES_MIN:
        return RecordCheck(RecordOutcome.END)
    size, magic = PREFIX.unpack_from(view, position)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return _not_a_record(size, magic)
    if size < RECORD_BYTES_MIN:
        return RecordCheck(RecordOutcome.BAD_LENGTH)
    if remaining < size:
        return RecordCheck(RecordOutcome.TRUNCATED, size)
    head: Head = HEAD_V4.unpack_from(view, position)
    body_at = position + HEAD_V4_BYTES
    hosts = head[7] & HOSTS_V6_MASK
    if hosts:
        layout = HEADS[hosts]
        if size < RECORD_BYTES_MIN + layout.size - HEAD_V4_BYTES:
            return RecordCheck(RecordOutcome.BAD_LENGTH)
        head = layout.unpack_from(view, position)
        body_at = position + layout.size
    end = position + size
    topic_at = body_at + head[14]
    if not body_at <= topic_at <= end - 4:
        return RecordCheck(RecordOutcome.BAD_LENGTH)
    topic_size = view[topic_at]
    topic_at += 1
    if magic == MAGIC_V2:
        topic_size = topic_size << 8 | view[topic_at]
        topic_at += 1
    properties_at = topic_at + topic_size + 2
    if properties_at > end or topic_size > (TOPIC_BYTES_MAX_V1 if magic == MAGIC_V1 else TOPIC_BYTES_MAX):
        return RecordCheck(RecordOutcome.BAD_LENGTH)
    properties_size = view[properties_at - 2] << 8 | view[properties_at - 1]
    if properties_at + properties_size != end or properties_size > PROPERTIES_BYTES_MAX:
        return RecordCheck(RecordOutcome.BAD_LENGTH)
    topic = _decode_topic(bytes(view[topic_at : properties_at - 2]))
    if not topic:
        return RecordCheck(RecordOutcome.BAD_TOPIC)
    return head, body_at, topic, bytes(view[properties_at:end])


def find_record_properties(view: Buffer) -> bytes | None:
    """Returns the properties of the record at the start of `view`; None without a record.

    Half the cost of `parse_record`, for filters that examine every message of a queue.
    """
    if len(view) < RECORD_BYTES_MIN:
        return None
    size, magic, sys_flag, body_size = _FACTS_V4.unpack_from(view)
    if magic == MAGIC_V1 and not sys_flag & HOSTS_V6_MASK:
        return find_plain_properties(view, size, body_size) if size <= len(view) else None
    if not RECORD_BYTES_MIN <= size <= len(view) or (magic != MAGIC_V1 and magic != MAGIC_V2):
        return None
    hosts = view[SYS_FLAG_AT + 3] & HOSTS_V6_MASK
    head_bytes = HEADS[hosts].size if hosts else HEAD_V4_BYTES
    if size < RECORD_BYTES_MIN + head_bytes - HEAD_V4_BYTES:
        return None
    body_size = INT.unpack_from(view, head_bytes - INT.size)[0]
    topic_at = head_bytes + body_size
    if not head_bytes <= topic_at <= size - 4:
        return None
    if magic == MAGIC_V1:
        begin = topic_at + 3 + view[topic_at]
    else:
        begin = topic_at + 4 + (view[topic_at] << 8 | view[topic_at + 1])
    if begin > size or begin + (view[begin - 2] << 8 | view[begin - 1]) != size:
        return None
    return bytes(view[begin:size])


def find_plain_properties(view: Buffer, size: int, body_size: int) -> bytes | None:
    """Like `find_record_properties`, for a V1 record with addresses of four bytes and all `size` bytes
    present.

    Nearly all records are of this kind.
    """
    if not 0 <= body_size <= size - RECORD_BYTES_MIN:
        return None
    begin = HEAD_V4_BYTES + 3 + body_size
    begin += view[begin - 3]  # the topic's size
    if begin > size or begin + (view[begin - 2] << 8 | view[begin - 1]) != size:
        return None
    return bytes(view[begin:size])


def _not_a_record(size: int, magic: int) -> RecordCheck:
    if magic == MAGIC_BLANK:
        if size < BLANK_BYTES_MIN:
            return RecordCheck(RecordOutcome.BAD_LENGTH)
        return RecordCheck(RecordOutcome.BLANK, size)
    if size == 0 and magic == 0:
        return RecordCheck(RecordOutcome.END)
    return RecordCheck(RecordOutcome.BAD_MAGIC)


@lru_cache(maxsize=8192)
def _decode_topic(raw: bytes) -> str:
    """Returns the topic; empty if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def _has_good_body(view: Buffer, body_at: int, body_size: int, crc: int) -> bool:
    return crc32(memoryview(view)[body_at : body_at + body_size]) & CRC_MASK == crc


def has_good_seal(view: Buffer, position: int, size: int) -> bool:
    end = position + size
    unsealed = memoryview(view)[position : end - SEAL_BYTES]
    return bytes(view[end - SEAL_BYTES : end]) == encode_seal(unsealed)


@lru_cache(maxsize=16384)
def _tag_hash_of_bytes(tags: bytes) -> int:
    return tag_hash(str(tags, "utf-8", "replace"))


def tag_hash_of(properties: bytes) -> int:
    """Returns the hash of property TAGS in the wire form; 0 without tags."""
    tags = find_property(properties, b"TAGS")
    return 0 if tags is None else _tag_hash_of_bytes(tags)


def consume_tag(topic: str, properties: bytes, stored_at_ms: int) -> int:
    """Returns the third field of the ConsumeQueue entry: the hash of TAGS, or the due time of a delayed
    message.
    """
    tag = tag_hash_of(properties)
    return tag if topic != SCHEDULE_TOPIC else _due_at(properties, stored_at_ms, tag)


def _due_at(properties: bytes, stored_at_ms: int, tag: int) -> int:
    """Returns the due time of a delayed message; `tag` if it has none."""
    level = _small_number(find_property(properties, b"DELAY"))
    return delivered_at_ms(level, stored_at_ms) if level > 0 else tag


def _inner_count(properties: bytes) -> int:
    """Returns the number of queue offsets the record uses: INNER_NUM if INNER_BASE exists, else 1."""
    if find_property(properties, b"INNER_BASE") is None:
        return 1
    return max(1, _small_number(find_property(properties, b"INNER_NUM")))


def _small_number(raw: bytes | None) -> int:
    """Returns a decimal of at most nine digits; 0 for anything else."""
    return int(raw) if raw is not None and len(raw) <= 9 and raw.isdigit() else 0
