"""How old the first message is that a slave has not acknowledged.

Acknowledgements are log offsets, and the log knows when each of its records was stored; so a lag in seconds
needs no history, only a look at one record when somebody asks.
"""

from __future__ import annotations

from tandemmq.protocol.record import RecordError, decode_record
from tandemmq.store.message_store import MessageStore
from tandemmq.units import KIB, align_up

SEARCH_BYTES_MAX = 256 * KIB
"""A slave of RocketMQ acknowledges chunks, which end anywhere in a record: the next one is searched for."""

_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xa3")  # behind the size, in the two forms of a record
_MAGIC_AT = 4


def lag_seconds(store: MessageStore, acknowledged: int, now_ms: int) -> float | None:
    """0 at the log's end; None when no record's time can be found, as for a place that is not kept."""
    if acknowledged >= store.appended.value:
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


def _candidates(view: bytes) -> list[int]:
    """Where records may begin, ascending: a body may hold the same bytes, so each must be looked at."""
    places = set()
    for magic in _MAGICS:
        at = view.find(magic, _MAGIC_AT)
        while at >= 0:
            places.add(at - _MAGIC_AT)
            at = view.find(magic, at + 1)
    return sorted(places)


def _read(store: MessageStore, log_offset: int) -> int | None:
    record = store.read_record(log_offset)
    if record is None:
        return None
    try:
        return decode_record(record, check_crc=False).stored_at_ms
    except RecordError:
        return None
