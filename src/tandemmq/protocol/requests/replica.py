"""Between the replicas of one broker: tables a slave asks of its master, HA addresses (spec remoting 8.5).

GET_ALL_CONSUMER_OFFSET and GET_ALL_DELAY_OFFSET have no header at all. An answer without the total makes
the caller take the body as complete, with every version; so all is returned at once.
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
    """Answer to GET_ALL_TOPIC_CONFIG."""

    topic_count: Int32 | None = field(name="totalTopicNum", default=None)


class AllGroupConfigRequest(Header, frozen=True, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201); the paging fields come from 5.3.4 on."""

    page: Int32 | None = field(name="groupSeq", default=None)
    count_max: Int32 | None = field(name="maxGroupNum", default=None)
    data_version: str | None = field(name="dataVersion", default=None)


class AllGroupConfigResponse(Header, frozen=True, kw_only=True):
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    group_count: Int32 | None = field(name="totalGroupNum", default=None)


class ExchangeHaInfoRequest(Header, frozen=True, kw_only=True):
    """EXCHANGE_BROKER_HA_INFO (906): with an HA address it sets the receiver's, without it asks for it."""

    master_ha_address: str | None = field(name="masterHaAddress", default=None)
    master_flushed_offset: Int64 | None = field(name="masterFlushOffset", default=None)
    master_address: str | None = field(name="masterAddress", default=None)


class ExchangeHaInfoResponse(Header, frozen=True, kw_only=True):
    """Answer to EXCHANGE_BROKER_HA_INFO, from a master."""

    master_ha_address: str | None = field(name="masterHaAddress", default=None)
    master_flushed_offset: Int64 | None = field(name="masterFlushOffset", default=None)
    master_address: str | None = field(name="masterAddress", default=None)


class LogChecksumRequest(Header, frozen=True, kw_only=True):
    """TANDEM_READ_LOG_CHECKSUM: of `size_bytes` bytes of the CommitLog from `log_offset` on. A size of 0 asks
    only what the log holds.
    """

    log_offset: Int64 = field(name="logOffset")
    size_bytes: Int64 = field(name="size")


class LogChecksumResponse(Header, frozen=True, kw_only=True):
    """`crc` is the CRC-32 of the first `size_bytes` bytes of the range: fewer than asked for, or none, where
    the log does not hold them. The ends are those of the log when it answered. `life`: another one each time
    the broker is started. `is_waiting`: a master that may lack acknowledged messages, and takes over what its
    slaves hold. `is_slave`: no master, so that nobody needs to agree with its log.
    """

    min_offset: Int64 = field(name="minOffset")
    max_offset: Int64 = field(name="maxOffset")
    size_bytes: Int64 = field(name="size")
    crc: Int64 = field(name="crc32")
    life: str | None = field(name="life", default=None)
    is_waiting: bool | None = field(name="waiting", default=None)
    is_slave: bool | None = field(name="slave", default=None)


class HistoryRequest(Header, frozen=True, kw_only=True):
    """TANDEM_HISTORY: a slave asks its master, before it copies, for the history of its log."""

    broker_id: Int64 = field(name="brokerId")
    address: str = field(name="address")
    group_id: str | None = field(name="tmGroup", default=None)


class HistoryResponse(Header, frozen=True, kw_only=True):
    """Answer to TANDEM_HISTORY; the body holds the terms of the log with their ids."""

    group_id: str | None = field(name="tmGroup", default=None)
    master_epoch: Int32 = field(name="masterEpoch")
    min_offset: Int64 = field(name="minOffset")
    max_offset: Int64 = field(name="maxOffset")
    confirmed_offset: Int64 = field(name="confirmOffset")


class ReadLogRequest(Header, frozen=True, kw_only=True):
    """TANDEM_READ_LOG: `size_bytes` bytes of the CommitLog from `log_offset` on, in the answer's body."""

    log_offset: Int64 = field(name="logOffset")
    size_bytes: Int64 = field(name="size")


class ReadLogResponse(Header, frozen=True, kw_only=True):
    """What the log held when it answered; bytes from `max_offset` on are in too few copies to be told."""

    min_offset: Int64 = field(name="minOffset")
    max_offset: Int64 = field(name="maxOffset")


class AwaitTablesRequest(Header, frozen=True, kw_only=True):
    """TANDEM_AWAIT_TABLES: answer when a table's version is no longer the caller's, or the time is over.

    The versions are JSON text, as in the requests for the tables themselves: of the last whole copy,
    deletions included. `broker_id`: whose copy it is, if it may be elected.
    """

    topics: str = field(name="topicVersion")
    groups: str = field(name="groupVersion")
    wait_ms: Int64 = field(name="waitMillis")
    broker_id: Int64 | None = field(name="brokerId", default=None)


class TellSlaveStateRequest(Header, frozen=True, kw_only=True):
    """TANDEM_TELL_SLAVE_STATE: who a slave is, where its copy ends, and why it stopped copying, if it did.

    `ha_address`: its own end of its last connection to the replication port; `address`: where it can be asked
    itself. The fields of a halt come together or not at all.
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


class ResetMasterFlushedOffsetRequest(Header, frozen=True, kw_only=True):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flushed_offset: Int64 = field(name="masterFlushOffset")
