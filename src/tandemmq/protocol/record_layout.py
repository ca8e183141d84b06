"""The layout of a CommitLog record, for the one-at-a-time codec and the numpy scan; and the encoding of
records.

Source:  spec store 3, spec remoting 12.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import Final

import msgspec

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol import speedups
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX, remove_property
from tandemmq.protocol.sys_flag import BORN_HOST_V6, HOSTS_V6_MASK, STORE_HOST_V6
from tandemmq.units import Buffer

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)

BLANK_BYTES_MIN: Final = 8
"""The least distance from a record's end to the end of its file, so that a BLANK always fits (spec store
3.2).
"""
RECORD_BYTES_MIN: Final = 91
"""The TOTALSIZE of an empty V1 record with IPv4 hosts."""
RECORD_BYTES_MAX: Final = 2**31 - 1
HOST_V6_EXTRA: Final = 12
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 255
CRC_MASK: Final = 0x7FFFFFFF

SYS_FLAG_AT: Final = 36
BORN_HOST_AT: Final = 48
STORED_AT_V4: Final = 56
BODY_SIZE_AT_V4: Final = 84

PREFIX: Final = Struct(">ii")  # size, magic
INT: Final = Struct(">i")

HEADS: Final = {
    0x00: Struct(">iiiiiqqiq8sq8siqi"),
    0x10: Struct(">iiiiiqqiq20sq8siqi"),
    0x20: Struct(">iiiiiqqiq8sq20siqi"),
    0x30: Struct(">iiiiiqqiq20sq20siqi"),
}
"""The structs of everything before the body, by the two IPv6 bits of sysFlag (spec store 3, fields 1
to 15).
"""
HEAD_V4: Final = HEADS[0]
HEAD_V4_BYTES: Final = HEAD_V4.size


class RecordOutcome(Enum):
    """The result of checking a position of the log."""

    OK = "ok"
    BLANK = "the filler before the end of a file"
    END = "nothing was written here"
    BAD_MAGIC = "no record begins here"
    TRUNCATED = "the record continues beyond the end of the bytes"
    BAD_LENGTH = "the record's lengths contradict each other"
    BAD_TOPIC = "the topic is empty or not UTF-8"
    BAD_CRC = "the checksum does not match"
    WRONG_OFFSET = "the record's stored offset is not its position"


class RecordError(RemoteProtocolError):
    """Raised for bytes that are not a whole, intact record; `outcome` names the fault."""

    def __init__(self, outcome: RecordOutcome, position: int) -> None:
        super().__init__(f"record at byte {position}: {outcome.value}")
        self.outcome = outcome
        self.position = position


# The encoding of messages as records, one by one or as a batch.
#
# Invariants: TOTALSIZE is the whole record; BODYCRC is over the body as stored (compressed stays compressed);
#             V2 only if the topic needs more than 127 bytes.
# Strategy:   one struct call for everything before the body and one join; the topic field is cached.


SEAL_BYTES: Final = 20
SEAL_MARK: Final = b"__CRC32#\x01"
_BATCH_HEADS: Final = {
    bits: Struct(f">iiiiiqqiq{head.size - BORN_HOST_AT - 4}si") for bits, head in HEADS.items()
}
"""Like HEADS, with the fields shared by all records of a batch, from the born host to the prepared offset,
as one.
"""


class NewRecord(msgspec.Struct, gc=False, kw_only=True):
    """The fields of a message that are known before it has a position in the log.

    `born_host` is packed (8 or 20 bytes); `properties` is the wire form; the key index hashes `keys` (space
    separated) and `unique_key`. `wait_stored` False: the sender does not wait for flush or replicas.
    `is_internal`: a record of the broker itself, or a copy of a stored message. The limit for producers'
    bodies does not apply to it, since the limit may have been lowered meanwhile.
    """

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes
    born_at_ms: int
    born_host: bytes
    tag_hash: int = 0
    flag: int = 0
    sys_flag: int = 0
    retry_count: int = 0
    prepared_offset: int = 0
    keys: str = ""
    unique_key: str = ""
    wait_stored: bool = True
    is_internal: bool = False


class NewBatch(msgspec.Struct, gc=False, kw_only=True):
    """Messages of one topic that are stored together: the shared fields, and a list for each differing field.

    The fields are those of `NewRecord`.
    """

    topic: str
    queue_ids: Sequence[int]
    bodies: Sequence[Buffer]
    properties: list[bytes]
    born_times_ms: Sequence[int]
    born_host: bytes
    tag_hashes: Sequence[int]
    flags: Sequence[int]
    sys_flag: int
    retry_count: int
    keys: Sequence[str]
    unique_keys: list[str]
    wait_stored: bool

    def __len__(self) -> int:
        return len(self.bodies)

    def records(self) -> list[NewRecord]:
        """Returns the messages one by one."""
        columns = (
            self.queue_ids,
            self.bodies,
            self.properties,
            self.born_times_ms,
            self.tag_hashes,
            self.flags,
            self.keys,
            self.unique_keys,
        )
        return [
            NewRecord(
                topic=self.topic,
                queue_id=queue_id,
                body=body,
                properties=properties,
                born_at_ms=born_at_ms,
                born_host=self.born_host,
                tag_hash=tag_hash,
                flag=flag,
                sys_flag=self.sys_flag,
                retry_count=self.retry_count,
                keys=keys,
                unique_key=unique_key,
                wait_stored=self.wait_stored,
            )
            for queue_id, body, properties, born_at_ms, tag_hash, flag, keys, unique_key in zip(
                *columns, strict=True
            )
        ]


@lru_cache(maxsize=8192)
def _topic_field(topic: str) -> tuple[int, bytes]:
    """Returns magic and the length-prefixed topic; V2 exactly if the length exceeds a signed byte."""
    raw = topic.encode("utf-8", "replace")
    if not 1 <= len(raw) <= TOPIC_BYTES_MAX:
        raise LocalProtocolError(f"topic of {len(raw)} bytes: a record takes 1 to {TOPIC_BYTES_MAX}")
    if len(raw) > TOPIC_BYTES_MAX_V1:
        return MAGIC_V2, len(raw).to_bytes(2, "big") + raw
    return MAGIC_V1, len(raw).to_bytes(1, "big") + raw


def record_size(new: NewRecord, store_host_size: int = 8) -> int:
    """Returns the TOTALSIZE of the result of `encode_record`, without a seal."""
    _, topic = _topic_field(new.topic)
    hosts = len(new.born_host) + store_host_size
    return HEAD_V4_BYTES - 16 + hosts + len(new.body) + len(topic) + 2 + len(new.properties)


def encode_record(
    new: NewRecord, *, queue_offset: int, log_offset: int, stored_at_ms: int, store_host: bytes
) -> bytes:
    """Returns the record as stored in the log; the IPv6 bits of its sysFlag follow from the hosts.

    Units:   log_offset in bytes, queue_offset in messages; hosts packed (8 or 20 bytes).
    Raises:  LocalProtocolError if the topic or the properties exceed their length fields.
    """
    body = new.body
    properties = new.properties
    born_host = new.born_host
    sys_flag = new.sys_flag & ~HOSTS_V6_MASK
    magic, topic_field = _topic_field(new.topic)
    body_size = len(body)
    properties_size = len(properties)
    if properties_size > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties of {properties_size} bytes: a record takes {PROPERTIES_BYTES_MAX}"
        )
    size = RECORD_BYTES_MIN - 1 + body_size + len(topic_field) + properties_size
    head = HEAD_V4
    if len(born_host) + len(store_host) != 16:
        sys_flag |= _hosts_flag(born_host, store_host)
        head = HEADS[sys_flag & HOSTS_V6_MASK]
        size += head.size - HEAD_V4_BYTES
    return b"".join(
        (
            head.pack(
                size,
                magic,
                crc32(body) & CRC_MASK,
                new.queue_id,
                new.flag,
                queue_offset,
                log_offset,
                sys_flag,
                new.born_at_ms,
                born_host,
                stored_at_ms,
                store_host,
                new.retry_count,
                new.prepared_offset,
                body_size,
            ),
            body,
            topic_field,
            properties_size.to_bytes(2, "big"),
            properties,
        )
    )


def batch_sizes(new: NewBatch, store_host_size: int = 8) -> list[int]:
    """Returns the TOTALSIZE of each record that `encode_batch_records` will return.

    Raises:  LocalProtocolError if the topic or the properties exceed their length fields.
    """
    properties_max = max(map(len, new.properties))
    if properties_max > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties of {properties_max} bytes: a record takes {PROPERTIES_BYTES_MAX}"
        )
    _, topic = _topic_field(new.topic)
    fixed = HEAD_V4_BYTES - 16 + len(new.born_host) + store_host_size + len(topic) + 2
    return [fixed + len(body) + len(text) for body, text in zip(new.bodies, new.properties, strict=True)]


def encode_batch_records(
    new: NewBatch,
    sizes: Sequence[int],
    log_offsets: Sequence[int],
    *,
    queue_offsets: Sequence[int],
    stored_at_ms: int,
    store_host: bytes,
) -> bytes:
    """Returns the records of a batch one after the other, each as from `encode_record`.

    `sizes` (of `batch_sizes`), `log_offsets` and `queue_offsets` are those of each.
    """
    born_host = new.born_host
    magic, topic_field = _topic_field(new.topic)
    sys_flag = new.sys_flag & ~HOSTS_V6_MASK | _hosts_flag(born_host, store_host)
    shared = HEADS[sys_flag & HOSTS_V6_MASK].pack(
        0, 0, 0, 0, 0, 0, 0, 0, 0, born_host, stored_at_ms, store_host, new.retry_count, 0, 0
    )[BORN_HOST_AT:-4]
    if speedups.kernel is not None:
        columns = sizes, log_offsets, queue_offsets, new.queue_ids, new.flags, new.born_times_ms
        sums = list(map(crc32, new.bodies))
        records = speedups.kernel.encode_records(
            (*columns, sums, new.bodies, new.properties), magic, sys_flag, shared, topic_field
        )
        if records is not None:
            return records
    heads = map(
        _BATCH_HEADS[sys_flag & HOSTS_V6_MASK].pack,
        sizes,
        repeat(magic),
        map(CRC_MASK.__and__, map(crc32, new.bodies)),
        new.queue_ids,
        new.flags,
        queue_offsets,
        log_offsets,
        repeat(sys_flag),
        new.born_times_ms,
        repeat(shared),
        map(len, new.bodies),
    )
    properties_sizes = list(map(len, new.properties))
    between = {size: topic_field + size.to_bytes(2, "big") for size in set(properties_sizes)}
    topics = map(between.__getitem__, properties_sizes)
    return b"".join(chain.from_iterable(zip(heads, new.bodies, topics, new.properties, strict=True)))


def _hosts_flag(born_host: bytes, store_host: bytes) -> int:
    if {len(born_host), len(store_host)} - {8, 20}:
        raise LocalProtocolError("a packed host has 8 or 20 bytes")
    return (BORN_HOST_V6 if len(born_host) == 20 else 0) | (STORE_HOST_V6 if len(store_host) == 20 else 0)


def encode_sealed_record(
    new: NewRecord, *, queue_offset: int, log_offset: int, stored_at_ms: int, store_host: bytes
) -> bytes:
    """Returns the record with `__CRC32#` as its last 20 bytes: a checksum over all before them (spec store
    3).
    """
    properties = remove_property(new.properties, b"__CRC32#")
    if properties and properties[-1] != 2:
        properties += b"\x02"
    unsealed = encode_record(
        msgspec.structs.replace(new, properties=properties + bytes(SEAL_BYTES)),
        queue_offset=queue_offset,
        log_offset=log_offset,
        stored_at_ms=stored_at_ms,
        store_host=store_host,
    )[:-SEAL_BYTES]
    return unsealed + encode_seal(unsealed)


def encode_seal(unsealed: Buffer) -> bytes:
    """Returns the 20 bytes of the property: ten digits, the least significant first."""
    digits = f"{crc32(unsealed) & CRC_MASK:010d}"[::-1]
    return b"%b%b\x02" % (SEAL_MARK, digits.encode())


def encode_blank(remaining: int) -> bytes:
    """Returns the 8 bytes that send a reader to the next file; `remaining` is the distance to this file's
    end.
    """
    assert remaining >= BLANK_BYTES_MIN
    return PREFIX.pack(remaining, MAGIC_BLANK)
