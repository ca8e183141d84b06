"""Requests of a slave to its master's remoting port: the tables and the state of replication.

Topics and groups come in pages (RocketMQ 5.3.4 and TandemMQ). Older masters ignore the paging fields, omit
the total and return all entries. Source: spec replication 4.10, 6.2; spec remoting 8.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tandemmq.api.calls import Call, call, done, empty, given, remark, value
from tandemmq.errors import RemoteProtocolError, RequestRejected, RequestTimeout
from tandemmq.protocol.bodies import tables
from tandemmq.protocol.bodies.client import RequestModes
from tandemmq.protocol.bodies.codec import DataVersion, decode_body, encode_body
from tandemmq.protocol.bodies.progress import ConsumerOffsetTable, DelayOffsets
from tandemmq.protocol.codes import OUR_LANGUAGE, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import replica as headers
from tandemmq.remoting.client import RemotingClient

PAGE_ENTRY_COUNT = 2_000
"""RocketMQ's splitMetadataSize."""
PAGE_TIMEOUT_S = 30.0
TABLE_TIMEOUT_S = 60.0
PAGE_COUNT_MAX = 10_000
"""The most pages requested for one table. A table that changes with every page would otherwise never end."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTable:
    """The caller's version of a table.

    `can_skip` is True if the master is a TandemMQ broker, which sends no entries if its version is equal.
    """

    data_version: DataVersion
    entry_count: int
    can_skip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTable(Generic[T]):
    """A whole table. With `is_unchanged` it has no entries, because the caller's version is equal to the
    master's.

    `deleted` contains the deletions that a TandemMQ master remembers, also with `is_unchanged`.
    """

    entries: dict[str, T]
    data_version: DataVersion
    is_unchanged: bool
    can_skip: bool
    deleted: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Page(Generic[T]):
    """A page of a table. `total` is None when the page is the whole table."""

    entries: dict[str, T]
    data_version: DataVersion
    total: int | None
    is_ours: bool
    deleted: dict[str, int]


_FetchPage = Callable[[int, str], Awaitable[_Page[T]]]


async def fetch_topics(
    client: RemotingClient, address: str, held: HeldTable
) -> FetchedTable[tables.TopicConfig]:
    """Returns all topics of the master.

    Raises:  RequestRejected, BrokerUnreachable, RequestTimeout, RemoteProtocolError.
    """

    async def fetch_page(first: int, version: str) -> _Page[tables.TopicConfig]:
        header = headers.AllTopicConfigRequest(page=first, count_max=PAGE_ENTRY_COUNT, data_version=version)
        answer = await call(
            client, address, RequestCode.GET_ALL_TOPIC_CONFIG, header, timeout_s=PAGE_TIMEOUT_S
        )
        table = decode_body(answer.body, tables.ReplicatedTopics)
        total = answer.decode(headers.AllTopicConfigResponse).topic_count
        is_ours = answer.language == OUR_LANGUAGE
        return _Page(table.topics, table.data_version, total, is_ours, table.deleted)

    return await _fetch_table(fetch_page, held)


async def fetch_groups(
    client: RemotingClient, address: str, held: HeldTable
) -> FetchedTable[tables.SubscriptionGroupConfig]:
    """Returns all subscription groups of the master; raises as `fetch_topics` does."""

    async def fetch_page(first: int, version: str) -> _Page[tables.SubscriptionGroupConfig]:
        header = headers.AllGroupConfigRequest(page=first, count_max=PAGE_ENTRY_COUNT, data_version=version)
        answer = await call(
            client, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header, timeout_s=PAGE_TIMEOUT_S
        )
        table = decode_body(answer.body, tables.SubscriptionGroupTable)
        total = answer.decode(headers.AllGroupConfigResponse).group_count
        is_ours = answer.language == OUR_LANGUAGE
        return _Page(table.groups, table.data_version, total, is_ours, table.deleted or {})

    return await _fetch_table(fetch_page, held)


fetch_consumer_offsets = Call(RequestCode.GET_ALL_CONSUMER_OFFSET, empty, value(ConsumerOffsetTable))
"""Returns the committed offsets of all groups."""
fetch_delay_offsets = Call(RequestCode.GET_ALL_DELAY_OFFSET, empty, value(DelayOffsets))
"""Returns the delivery progress of each delay level."""
_fetch_request_modes = Call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, empty, value(RequestModes))
_fetch_timer_check = Call(RequestCode.GET_TIMER_CHECK_POINT, empty, lambda answer: bytes(answer.body))


async def fetch_request_modes(
    client: RemotingClient, address: str, *, timeout_s: float
) -> RequestModes | None:
    """Returns the consumption modes that were set, by topic and group; None from a master that does not
    support the request (4.9).
    """
    try:
        return await _fetch_request_modes.within(timeout_s, client, address)
    except RequestRejected:
        return None


async def fetch_timer_check(client: RemotingClient, address: str, *, timeout_s: float) -> bytes | None:
    """Returns the delivery progress of timer messages, as in the master's file; None without timers."""
    try:
        return await _fetch_timer_check.within(timeout_s, client, address)
    except RequestRejected:
        return None


async def await_tables(
    client: RemotingClient,
    address: str,
    topics: DataVersion,
    groups: DataVersion,
    *,
    wait_ms: int,
    broker_id: int | None = None,
) -> None:
    """Waits until a TandemMQ broker's version of the topics or groups differs from the given one, or until
    `wait_ms` have passed. `broker_id` is the id of the calling slave, from which the master learns which
    slaves have its tables.

    Raises:  RequestRejected with code REQUEST_CODE_NOT_SUPPORTED from any other broker; BrokerUnreachable,
             RequestTimeout.
    """
    header = headers.AwaitTablesRequest(
        topics=encode_body(topics).decode(),
        groups=encode_body(groups).decode(),
        wait_ms=wait_ms,
        broker_id=broker_id,
    )
    timeout_s = wait_ms / 1000 + client.options.call_timeout_s
    await call(client, address, RequestCode.TANDEM_AWAIT_TABLES, header, timeout_s=timeout_s)


report_slave_state = Call(RequestCode.TANDEM_TELL_SLAVE_STATE, given(headers.TellSlaveStateRequest), done)
"""Reports the state of this slave; returns once the master at the address knows it. A broker other than
TandemMQ rejects the request with REQUEST_CODE_NOT_SUPPORTED, as it does the next ones.
"""


def _read_checksum(answer: Command) -> headers.LogChecksumResponse:
    checksum = answer.decode(headers.LogChecksumResponse)
    if not 0 <= checksum.min_offset <= checksum.max_offset:
        raise RemoteProtocolError(f"invalid ends of a log: [{checksum.min_offset}, {checksum.max_offset})")
    return checksum


read_log_checksum = Call(
    RequestCode.TANDEM_READ_LOG_CHECKSUM, headers.LogChecksumRequest, _read_checksum, timeout_s=10.0
)
"""Returns the range of a TandemMQ broker's log, and the checksum of a part of it.

Raises also Busy when too many clients ask, and RemoteProtocolError for impossible ends of a log.
"""


def _read_history(answer: Command) -> tuple[headers.HistoryResponse, list[tuple[int, int, int]]]:
    return answer.decode(headers.HistoryResponse), decode_body(answer.body, list[tuple[int, int, int]])


read_history = Call(RequestCode.TANDEM_HISTORY, given(headers.HistoryRequest), _read_history)
"""Returns the history of a TandemMQ broker, and the terms of its log: epoch, first byte, random id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Bytes of a broker's log from the requested offset on, and the range of the log at that time."""

    data: bytes
    min_log_offset: int
    max_log_offset: int


async def read_log(
    client: RemotingClient, address: str, log_offset: int, size_bytes: int, *, timeout_s: float = 10.0
) -> LogPart:
    """Returns raw bytes of a TandemMQ broker's log: fewer than requested if the log ends before or the range
    is longer than one answer; none if the log does not contain `log_offset`.

    Raises:  RequestRejected with code REQUEST_CODE_NOT_SUPPORTED from any other broker; Busy when too many
             clients ask; BrokerUnreachable, RequestTimeout; RemoteProtocolError for more bytes than
             requested.
    """
    header = headers.ReadLogRequest(log_offset=log_offset, size_bytes=size_bytes)
    answer = await call(client, address, RequestCode.TANDEM_READ_LOG, header, timeout_s=timeout_s)
    if len(answer.body) > size_bytes:
        raise RemoteProtocolError(f"received {len(answer.body)} bytes of a log, requested {size_bytes}")
    ends = answer.decode(headers.ReadLogResponse)
    return LogPart(data=bytes(answer.body), min_log_offset=ends.min_offset, max_log_offset=ends.max_offset)


accept_log = Call(RequestCode.TANDEM_ACCEPT_LOG, empty, remark)
"""Makes a master that waits for its slaves use its log as it is; returns the master's remark.

Raises BadRequest when the master does not wait.
"""


async def _fetch_table(fetch_page: _FetchPage[T], held: HeldTable) -> FetchedTable[T]:
    try:
        async with asyncio.timeout(TABLE_TIMEOUT_S):
            return await _fetch_pages(fetch_page, held)
    except RequestTimeout:
        raise
    except TimeoutError:
        raise RequestTimeout(f"the table did not arrive within {TABLE_TIMEOUT_S:.0f} s") from None


async def _fetch_pages(fetch_page: _FetchPage[T], held: HeldTable) -> FetchedTable[T]:
    """Fetches pages until the total is reached; starts again when the version changes in between.

    A request beyond the end of an unchanged table returns no entries, but only TandemMQ brokers are known to
    support that.
    """
    can_skip = held.can_skip and held.data_version != DataVersion()
    asked = held.data_version if can_skip else None
    first = held.entry_count if can_skip else 0
    entries: dict[str, T] = {}
    deleted: dict[str, int] = {}
    for _ in range(PAGE_COUNT_MAX):
        page = await fetch_page(first, "" if asked is None else encode_body(asked).decode())
        is_unchanged = page.data_version == held.data_version != DataVersion()
        if page.data_version != asked:
            # The first page, or the table has changed: the master answers with its first entries again.
            entries, asked = {}, page.data_version
        entries |= page.entries
        deleted |= page.deleted
        first = len(entries)
        if is_unchanged or page.total is None or first >= page.total:
            return FetchedTable(
                entries={} if is_unchanged else entries,
                data_version=page.data_version,
                is_unchanged=is_unchanged,
                can_skip=page.is_ours,
                deleted=deleted,
            )
        if not page.entries:
            raise RemoteProtocolError(f"the table ends after {first} of {page.total} entries")
    raise RemoteProtocolError(f"the table was still changing after {PAGE_COUNT_MAX} pages")


@dataclass(frozen=True, slots=True)
class MasterHaInfo:
    """The address at which a master serves its log ("" from a broker that is not a master), and the master's
    epoch (None from RocketMQ).
    """

    ha_address: str
    epoch: int | None


def _read_ha_info(answer: Command) -> MasterHaInfo:
    epoch = answer.fields.get("tmEpoch", "")
    return MasterHaInfo(
        answer.decode(headers.ExchangeHaInfoResponse).master_ha_address or "",
        int(epoch) if epoch.isascii() and epoch.isdecimal() else None,
    )


fetch_master_ha_info = Call(RequestCode.EXCHANGE_BROKER_HA_INFO, headers.ExchangeHaInfoRequest, _read_ha_info)
"""Asks a broker for its own replication address."""
