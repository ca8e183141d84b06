"""Where the fields of a CommitLog record lie, for the one-at-a-time codec and the numpy scan alike.

Source: spec store 3.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Final

from tandemmq.errors import RemoteProtocolError

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)

BLANK_BYTES_MIN: Final = 8
"""A record never ends closer than this to the end of its file, so a BLANK always fits (spec store 3.2)."""
RECORD_BYTES_MIN: Final = 91
"""TOTALSIZE of a V1 record with IPv4 hosts and nothing in it."""
RECORD_BYTES_MAX: Final = 2**31 - 1
HOST_V6_EXTRA: Final = 12
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 255
CRC_MASK: Final = 0x7FFFFFFF

SYS_FLAG_AT: Final = 36
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
"""Everything before the body, by the two IPv6 bits of sysFlag (spec store 3, fields 1 to 15)."""
HEAD_V4: Final = HEADS[0]
HEAD_V4_BYTES: Final = HEAD_V4.size


class RecordOutcome(Enum):
    """What lies at a place of the log."""

    OK = "ok"
    BLANK = "the filler before the end of a file"
    END = "nothing was written here"
    BAD_MAGIC = "no record begins here"
    TRUNCATED = "the record goes on behind the end of the bytes"
    BAD_LENGTH = "the record's lengths contradict each other"
    BAD_TOPIC = "the topic is empty or no UTF-8"
    BAD_CRC = "the checksum does not match"
    WRONG_OFFSET = "the record says that it lies elsewhere in the log"


class RecordError(RemoteProtocolError):
    """These bytes are no whole, intact record; `outcome` says in which way."""

    def __init__(self, outcome: RecordOutcome, position: int) -> None:
        super().__init__(f"record at byte {position}: {outcome.value}")
        self.outcome = outcome
        self.position = position
