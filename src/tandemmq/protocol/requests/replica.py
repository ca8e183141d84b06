"""Headers between the replicas of one broker: tables for a slave, HA addresses (spec remoting 8.5).

GET_ALL_CONSUMER_OFFSET and GET_ALL_DELAY_OFFSET have no header. If an answer has no total, callers of every
version take the body as complete; therefore everything is returned at once.
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64


class AllTopicConfigRequest(Header, frozen=True, kw_only=True):
    """GET_ALL_TOPIC_CONFIG (21); the paging fields come from 5.3.4 on, `data_version` is JSON text."""

    page: Int32 | None = field(name="topicSeq", default=None)
    count_max: Int32 | None = field(name="maxTopicNum", default=None)
    data_version: str | None = field(name="dataVersion", default=None)


class AllTopicConfigResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_ALL_TOPIC_CONFIG."""

    topic_count: Int32 | None = field(name="totalTopicNum", default=None)


class AllGroupConfigRequest(Header, frozen=True, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201); the paging fields come from 5.3.4 on."""

    page: Int32 | None = field(name="groupSeq", default=None)
    count_max: Int32 | None = field(name="maxGroupNum", default=None)
    data_version: str | None = field(name="dataVersion", default=None)


class AllGroupConfigResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    group_count: Int32 | None = field(name="totalGroupNum", default=None)


class ExchangeHaInfoRequest(Header, frozen=True, kw_only=True):
    """EXCHANGE_BROKER_HA_INFO (906): with an HA address it sets the receiver's, without one it queries it."""

    master_ha_address: str | None = field(name="masterHaAddress", default=None)
    master_flushed_offset: Int64 | None = field(name="masterFlushOffset", default=None)
    master_address: str | None = field(name="masterAddress", default=None)


class ExchangeHaInfoResponse(Header, frozen=True, kw_only=True):
    """The answer to EXCHANGE_BROKER_HA_INFO, from a master."""

    master_ha_address: str | None = field(name="masterHaAddress", default=None)
    master_flushed_offset: Int64 | None = field(name="masterFlushOffset", default=None)
    master_address: str | None = field(name="masterAddress", default=None)


class LogChecksumRequest(Header, frozen=True):
    """TANDEM_READ_LOG_CHECKSUM: asks for the checksum of `size_bytes` bytes of the CommitLog from
    `log_offset` on.

    A size of 0 asks only for the bounds of the log.
    """

    log_offset: Int64 = field(name="logOffset")
    size_bytes: Int64 = field(name="size")


class LogChecksumResponse(Header, frozen=True, kw_only=True):
    """The answer to TANDEM_READ_LOG_CHECKSUM: `crc` is the CRC-32 of the first `size_bytes` bytes of the
    range.

    `size_bytes` is smaller than requested, or 0, if the log lacks bytes. The bounds are those of the log at
    the time of the answer. `run_id`: a value that changes at each start of the broker. `is_waiting`: a master
    that may lack acknowledged messages, and is recovering those its slaves hold. `is_slave`: not a master, so
    no other copy needs to agree with its log.
    """

    min_offset: Int64 = field(name="minOffset")
    max_offset: Int64 = field(name="maxOffset")
    size_bytes: Int64 = field(name="size")
    crc: Int64 = field(name="crc32")
    run_id: str | None = field(name="life", default=None)
    is_waiting: bool | None = field(name="waiting", default=None)
    is_slave: bool | None = field(name="slave", default=None)


class HistoryRequest(Header, frozen=True, kw_only=True):
    """TANDEM_HISTORY: a slave asks its master for the history of its log, before it copies."""

    broker_id: Int64 = field(name="brokerId")
    address: str = field(name="address")
    group_id: str | None = field(name="tmGroup", default=None)


class HistoryResponse(Header, frozen=True, kw_only=True):
    """The answer to TANDEM_HISTORY; the body holds the terms of the log with their ids."""

    group_id: str | None = field(name="tmGroup", default=None)
    master_epoch: Int32 = field(name="masterEpoch")
    min_offset: Int64 = field(name="minOffset")
    max_offset: Int64 = field(name="maxOffset")
    confirmed_offset: Int64 = field(name="confirmOffset")


class ReadLogRequest(Header, frozen=True, kw_only=True):
    """TANDEM_READ_LOG: asks for `size_bytes` bytes of the CommitLog from `log_offset` on, in the answer's
    body.
    """

    log_offset: Int64 = field(name="logOffset")
    size_bytes: Int64 = field(name="size")


class ReadLogResponse(Header, frozen=True, kw_only=True):
    """The bounds of the log at the time of the answer; too few copies hold the bytes from `max_offset` on."""

    min_offset: Int64 = field(name="minOffset")
    max_offset: Int64 = field(name="maxOffset")


class AwaitTablesRequest(Header, frozen=True, kw_only=True):
    """TANDEM_AWAIT_TABLES: waits until a table's version differs from the caller's, or the time is over.

    The versions are JSON text, as in the requests for the tables themselves: those of the last complete copy,
    deletions included. `broker_id`: the id of the caller, if it may be elected.
    """

    topics: str = field(name="topicVersion")
    groups: str = field(name="groupVersion")
    wait_ms: Int64 = field(name="waitMillis")
    broker_id: Int64 | None = field(name="brokerId", default=None)


class TellSlaveStateRequest(Header, frozen=True, kw_only=True):
    """TANDEM_TELL_SLAVE_STATE: reports a slave's identity, the end of its copy, and the reason if it stopped
    copying.

    `ha_address`: its own end of its last connection to the replication port; `address`: its own listening
    address. The fields of a halt are sent together or not at all.
    """

    broker_name: str = field(name="brokerName")
    broker_id: Int64 = field(name="brokerId")
    ha_address: str = field(name="haAddress")
    log_end: Int64 = field(name="maxOffset")
    is_copying: bool = field(name="copying")
    halt_reason: str | None = field(name="haltReason", default=None)
    halt_offset: Int64 | None = field(name="haltOffset", default=None)
    halt_detail: str | None = field(name="haltDetail", default=None)
    address: str | None = field(name="address", default=None)


class ResetMasterFlushedOffsetRequest(Header, frozen=True):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flushed_offset: Int64 = field(name="masterFlushOffset")
