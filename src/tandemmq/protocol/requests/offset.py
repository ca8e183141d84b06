"""Offsets of queues and of consumer groups (spec remoting 9.5)."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64
from tandemmq.protocol.requests.pull import SeenRecord, parse_seen


class QueryOffsetRequest(Header, frozen=True, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14). `zero_if_missing` None means yes."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")
    zero_if_missing: bool | None = field(name="setZeroIfNotFound", default=None)
    broker_name: str | None = field(name="bname", default=None)


class QueryOffsetResponse(Header, frozen=True, kw_only=True):
    """Answer to QUERY_CONSUMER_OFFSET; code 22 when none is stored."""

    offset: Int64
    # Ours: the record before the offset, as SeenRecord; the log of this answer is told from others by it.
    seen: str | None = field(name="tandemSeen", default=None)

    def seen_record(self) -> SeenRecord | None:
        return parse_seen(self.seen)


class UpdateOffsetRequest(Header, frozen=True, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15), mostly oneway; lowering is allowed."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")
    committed_offset: Int64 = field(name="commitOffset")
    broker_name: str | None = field(name="bname", default=None)
    # Ours: as in PullRequest.
    client_id: str | None = field(name="tandemClientId", default=None)
    seen: str | None = field(name="tandemSeen", default=None)

    def seen_record(self) -> SeenRecord | None:
        return parse_seen(self.seen)


class SearchOffsetRequest(Header, frozen=True, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    timestamp_ms: Int64 = field(name="timestamp")
    boundary: str | None = field(name="boundaryType", default=None)
    broker_name: str | None = field(name="bname", default=None)

    @property
    def is_upper(self) -> bool:
        """The last message at the time rather than the first; anything but `upper` is lower."""
        return self.boundary is not None and self.boundary.upper() == "UPPER"


class SearchOffsetResponse(Header, frozen=True, kw_only=True):
    """Answer to SEARCH_OFFSET_BY_TIMESTAMP."""

    offset: Int64


class GetMaxOffsetRequest(Header, frozen=True, kw_only=True):
    """GET_MAX_OFFSET (30): the next offset to be written."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    is_committed: bool = field(name="committed", default=True)
    broker_name: str | None = field(name="bname", default=None)


class GetMaxOffsetResponse(Header, frozen=True, kw_only=True):
    """Answer to GET_MAX_OFFSET."""

    offset: Int64


class GetMinOffsetRequest(Header, frozen=True, kw_only=True):
    """GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    broker_name: str | None = field(name="bname", default=None)


class GetMinOffsetResponse(Header, frozen=True, kw_only=True):
    """Answer to GET_MIN_OFFSET."""

    offset: Int64


class EarliestStoreTimeRequest(Header, frozen=True, kw_only=True):
    """GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    broker_name: str | None = field(name="bname", default=None)


class EarliestStoreTimeResponse(Header, frozen=True, kw_only=True):
    """Answer to GET_EARLIEST_MSG_STORETIME; -1 when the queue is empty."""

    timestamp_ms: Int64 = field(name="timestamp")
