"""Encodes new records for storage, and refuses illegal ones.

Knows not: the log; the caller passes the position of a record.
Source:    spec store 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.errors import LocalProtocolError, MessageIllegal
from tandemmq.protocol.record import NewBatch, NewRecord, batch_sizes, encode_batch_records, encode_record
from tandemmq.protocol.record_layout import BLANK_BYTES_MIN
from tandemmq.store.options import StoreOptions

BLANK_BYTES = 8
assert BLANK_BYTES >= BLANK_BYTES_MIN, "what a record leaves behind it takes a filler"
SECTOR_BYTES = 512
ZERO_SECTOR = bytes(SECTOR_BYTES)


class RecordMaker:
    """The limits and the encoding of the records of one store. Every method raises MessageIllegal."""

    __slots__ = ("_options", "store_host")

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self.store_host = options.store_host

    def encode(self, record: NewRecord, queue_offset: int, log_offset: int, stored_at_ms: int) -> bytes:
        """Returns the bytes of the record for its position."""
        properties = record.properties
        if properties.endswith(b"\0") or (len(properties) >= SECTOR_BYTES and ZERO_SECTOR in properties):
            raise _refuse_torn()
        try:
            return encode_record(
                record,
                queue_offset=queue_offset,
                log_offset=log_offset,
                stored_at_ms=stored_at_ms,
                store_host=self.store_host,
            )
        except LocalProtocolError as error:
            raise MessageIllegal(str(error)) from None

    def plan_batch(self, batch: NewBatch) -> list[int]:
        """Returns the size that each record of a batch will have."""
        if b"\0" in b"".join(batch.properties) and any(map(_seems_torn, batch.properties)):
            raise _refuse_torn()
        try:
            return batch_sizes(batch, len(self.store_host))
        except LocalProtocolError as error:
            raise MessageIllegal(str(error)) from None

    def encode_batch(
        self,
        batch: NewBatch,
        sizes: Sequence[int],
        log_offsets: Sequence[int],
        queue_offsets: Sequence[int],
        stored_at_ms: int,
    ) -> bytes:
        """Returns the bytes of the records of a planned batch for their positions."""
        assert len(sizes) == len(log_offsets) == len(batch), (len(sizes), len(log_offsets), len(batch))
        assert len(queue_offsets) == len(batch), (len(queue_offsets), len(batch))
        return encode_batch_records(
            batch,
            sizes,
            log_offsets,
            queue_offsets=queue_offsets,
            stored_at_ms=stored_at_ms,
            store_host=self.store_host,
        )

    def check_size(self, records: Sequence[NewRecord], total: int) -> None:
        """Checks that records of `total` bytes are within all limits."""
        assert 0 < len(records) <= total, (len(records), total)
        options = self._options
        body_max = options.message_bytes_max
        for record in records:
            if len(record.body) > body_max and not record.is_internal:
                raise MessageIllegal(f"the message body has {len(record.body)} bytes, at most {body_max}")
        if len(records) == 1 and total > options.record_bytes_max and not records[0].is_internal:
            raise MessageIllegal(f"the message takes {total} bytes, at most {options.record_bytes_max}")
        if total > options.commit_log_file_bytes - BLANK_BYTES:
            raise MessageIllegal(
                f"{total} bytes never fit into a file of {options.commit_log_file_bytes} bytes"
            )


def _seems_torn(properties: bytes) -> bool:
    return properties.endswith(b"\0") or ZERO_SECTOR in properties


def _refuse_torn() -> MessageIllegal:
    """Returns the error for properties that recovery would take for the result of a power cut.

    No checksum covers properties.
    """
    return MessageIllegal(f"the properties end in a zero byte, or hold {SECTOR_BYTES} in a row")
