"""A decoded stored message, and the entry point for encoding, checking and reading CommitLog records.

Invariants: only RecordError is raised on foreign bytes.
Strategy:   properties stay in their wire form until they are needed.
Knows not:  files, segments, ConsumeQueues. Many records at once: `record_scan.py`.
Source:     spec store 3, spec remoting 12.1.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tandemmq.protocol.compression import Content, decode_content
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.message_id import decode_host, encode_message_id
from tandemmq.protocol.properties import decode_properties, find_property
from tandemmq.protocol.record_check import (
    RecordCheck,
    check_record,
    consume_tag,
    has_good_seal,
    parse_record,
    tag_hash_of,
)
from tandemmq.protocol.record_layout import (
    CRC_MASK,
    SEAL_MARK,
    NewBatch,
    NewRecord,
    RecordError,
    RecordOutcome,
    batch_sizes,
    encode_batch_records,
    encode_blank,
    encode_record,
    encode_sealed_record,
    record_size,
)
from tandemmq.protocol.sys_flag import COMPRESSED
from tandemmq.units import Buffer

__all__ = [
    "NewBatch",
    "NewRecord",
    "Record",
    "RecordCheck",
    "RecordError",
    "RecordOutcome",
    "batch_sizes",
    "check_record",
    "consume_tag",
    "decode_record",
    "decode_records",
    "encode_batch_records",
    "encode_blank",
    "encode_record",
    "encode_sealed_record",
    "record_size",
    "tag_hash_of",
]


class Record(msgspec.Struct):
    """A decoded stored message. Hosts are packed; `raw_properties` is the wire form of `properties`."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    body: bytes
    body_crc: int
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    store_host: bytes
    retry_count: int
    prepared_offset: int
    raw_properties: bytes
    _properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded on first use and cached."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def content(self) -> bytes:
        """The body as the sender wrote it; as stored if it cannot be decompressed. Not cached."""
        return self.decode_content().data if self.sys_flag & COMPRESSED else self.body

    def decode_content(self) -> Content:
        """Returns `content`, with the reason if the body could not be decompressed. Not cached."""
        return decode_content(self.body, self.sys_flag)

    @property
    def has_good_body(self) -> bool:
        """True if the body matches the checksum stored with it."""
        return not self.body or crc32(self.body) & CRC_MASK == self.body_crc

    @property
    def message_id(self) -> str:
        """The broker's id, which encodes the position of the message (spec remoting 12.2)."""
        return encode_message_id(self.store_host, self.log_offset)

    @property
    def unique_key(self) -> str:
        """The producer's id of the message; empty if it set none."""
        return self.text(b"UNIQ_KEY")

    @property
    def tags(self) -> str:
        """The tags; empty without tags."""
        return self.text(b"TAGS")

    @property
    def keys(self) -> str:
        """The keys, separated by spaces; empty without keys."""
        return self.text(b"KEYS")

    @property
    def born_address(self) -> tuple[str, int]:
        """The sender's numeric address and port."""
        return decode_host(self.born_host)

    @property
    def store_address(self) -> tuple[str, int]:
        """The broker's numeric address and port."""
        return decode_host(self.store_host)

    def text(self, name: bytes) -> str:
        """Returns a property without decoding the others; "" if it is missing."""
        value = find_property(self.raw_properties, name)
        return "" if value is None else str(value, "utf-8", "replace")


def decode_record(
    buffer: Buffer,
    offset: int = 0,
    *,
    check_crc: bool = True,
    check_seal: bool = False,
    log_offset: int | None = None,
) -> Record:
    """Returns the record that starts at `offset` of `buffer`.

    `check_seal`: also verify the `__CRC32#` property, if the record has one.
    Raises:  RecordError if no intact record starts there, or its stored offset differs from `log_offset`.
    """
    parsed = parse_record(buffer, offset)
    if isinstance(parsed, RecordCheck):
        raise RecordError(parsed.outcome, offset)
    head, body_at, topic, properties = parsed
    body = bytes(buffer[body_at : body_at + head[14]])
    if check_crc and body and crc32(body) & CRC_MASK != head[2]:
        raise RecordError(RecordOutcome.BAD_CRC, offset)
    if check_seal and SEAL_MARK in properties and not has_good_seal(buffer, offset, head[0]):
        raise RecordError(RecordOutcome.BAD_CRC, offset)
    if log_offset is not None and head[6] != log_offset:
        raise RecordError(RecordOutcome.WRONG_OFFSET, offset)
    # By position, in field order: by name it takes half a microsecond longer.
    return Record(
        topic,
        head[3],
        head[5],
        head[6],
        head[0],
        body,
        head[2],
        head[4],
        head[7],
        head[8],
        head[9],
        head[10],
        head[11],
        head[12],
        head[13],
        properties,
    )


def decode_records(buffer: Buffer, *, check_crc: bool = True) -> Iterator[Record]:
    """Yields every record of a pull's body, which is records one after the other.

    Raises:  RecordError at the first bytes that are not an intact record; those before it were yielded.
    """
    position = 0
    while position < len(buffer):
        record = decode_record(buffer, position, check_crc=check_crc)
        yield record
        position += record.size
