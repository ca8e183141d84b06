"""How old the first message is that a slave has not acknowledged.

Acknowledgements are log offsets, and the log knows when each of its records was stored; so a lag in seconds
needs no history, only a look at one record when somebody asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from tandemmq.protocol.record import RecordError, decode_record
from tandemmq.protocol.record_layout import MAGIC_V1, MAGIC_V2
from tandemmq.store.message_store import MessageStore
from tandemmq.units import KIB, align_up

SEARCH_BYTES_MAX = 256 * KIB
CANDIDATES_MAX = 1024
"""A slave of RocketMQ acknowledges chunks, which end anywhere in a record: the next one is searched for, this
far and in so many places, because bodies may be full of bytes that look like one.
"""

_MAGICS = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big", signed=True)) for magic in (MAGIC_V1, MAGIC_V2))
)
_MAGIC_AT = 4  # behind the record's size


def lag_seconds(store: MessageStore, acknowledged: int, now_ms: int) -> float | None:
    """0 for who has all that a slave can get; None when no record's time can be found, as for a place that is
    not kept."""
    if acknowledged >= store.confirmed.value:
        return 0.0
    stored_at_ms = _stored_at(store, max(acknowledged, store.min_log_offset))
    return None if stored_at_ms is None else max(0, now_ms - stored_at_ms) / 1000


def _stored_at(store: MessageStore, log_offset: int) -> int | None:
    """When the first record at or behind `log_offset` was stored."""
    found = _read(store, log_offset)
    if found is None:
        view = bytes(store.log_view(log_offset, SEARCH_BYTES_MAX))
        for position in _candidates(view):
            found = _read(store, log_offset + position)
            if found is not None:
                return found
        # The rest of this file holds none: the next one begins with a record.
        found = _read(store, align_up(log_offset + 1, store.options.commit_log_file_bytes))
    return found


def _candidates(view: bytes) -> Iterator[int]:
    """Where records may begin, ascending."""
    found = re.finditer(_MAGICS, view[_MAGIC_AT:])
    return (match.start() for match in islice(found, CANDIDATES_MAX))


def _read(store: MessageStore, log_offset: int) -> int | None:
    record = store.read_record(log_offset)
    if record is None:
        return None
    try:
        return decode_record(record, check_crc=False).stored_at_ms
    except RecordError:
        return None
