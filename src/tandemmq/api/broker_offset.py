"""Offsets of queues and of consumer groups (spec remoting 9.5)."""

from __future__ import annotations

from typing import NamedTuple

from tandemmq.api.calls import CALL_TIMEOUT_S, ask, call, tell
from tandemmq.protocol import rejections
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.admin import CloneGroupOffsetRequest
from tandemmq.protocol.requests.consume import (
    EarliestStoreTimeRequest,
    EarliestStoreTimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    SeenRecord,
    UpdateOffsetRequest,
)
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import EpochMs, QueueOffset


class Progress(NamedTuple):
    """Where a group goes on in a queue, and the record before it in the log of who said so."""

    offset: int
    seen: SeenRecord | None = None


async def query_committed_offset(
    client: RemotingClient,
    address: str,
    group: str,
    topic: str,
    queue_id: int,
    *,
    zero_if_missing: bool | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> QueueOffset | None:
    """Where the group goes on in a queue; None when it has never committed there: see `query_progress`."""
    progress = await query_progress(
        client, address, group, topic, queue_id, zero_if_missing=zero_if_missing, timeout_s=timeout_s
    )
    return None if progress is None else QueueOffset(progress.offset)


async def query_progress(
    client: RemotingClient,
    address: str,
    group: str,
    topic: str,
    queue_id: int,
    *,
    zero_if_missing: bool | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Progress | None:
    """Where the group goes on in a queue; None when it has never committed there.

    Brokers answer 0 for a group without offset while message 0 is still in memory, unless `zero_if_missing`
    is False (5.x; older brokers ignore it).
    """
    header = QueryOffsetRequest(
        consumer_group=group, topic=topic, queue_id=queue_id, zero_if_missing=zero_if_missing
    )
    answer = await ask(client, address, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    response = answer.decode(QueryOffsetResponse)
    return Progress(response.offset, response.seen_record())


async def commit_offset(
    client: RemotingClient,
    address: str,
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    client_id: str | None = None,
    seen: str | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Store where the group goes on; returns when the broker has it.

    `client_id` and `seen` (`SeenRecord.render`) let a broker of ours judge whether the offset is one of its
    log; others pass over them.
    """
    header = UpdateOffsetRequest(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        committed_offset=offset,
        client_id=client_id,
        seen=seen,
    )
    await call(client, address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_s=timeout_s)


async def commit_offset_oneway(
    client: RemotingClient, address: str, group: str, topic: str, queue_id: int, offset: int
) -> None:
    """Store where the group goes on, without waiting: for repeated commits, where the next one makes up for
    a loss.
    """
    header = UpdateOffsetRequest(
        consumer_group=group, topic=topic, queue_id=queue_id, committed_offset=offset
    )
    await tell(client, address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def query_max_offset(
    client: RemotingClient, address: str, topic: str, queue_id: int, *, timeout_s: float = CALL_TIMEOUT_S
) -> QueueOffset:
    """The offset that the next message of the queue will get."""
    header = GetMaxOffsetRequest(topic=topic, queue_id=queue_id)
    answer = await call(client, address, RequestCode.GET_MAX_OFFSET, header, timeout_s=timeout_s)
    return QueueOffset(answer.decode(GetMaxOffsetResponse).offset)


async def query_min_offset(
    client: RemotingClient, address: str, topic: str, queue_id: int, *, timeout_s: float = CALL_TIMEOUT_S
) -> QueueOffset:
    """The offset of the oldest message that the queue still has."""
    header = GetMinOffsetRequest(topic=topic, queue_id=queue_id)
    answer = await call(client, address, RequestCode.GET_MIN_OFFSET, header, timeout_s=timeout_s)
    return QueueOffset(answer.decode(GetMinOffsetResponse).offset)


async def search_offset(
    client: RemotingClient,
    address: str,
    topic: str,
    queue_id: int,
    time_ms: int,
    *,
    is_upper: bool = False,
    timeout_s: float = CALL_TIMEOUT_S,
) -> QueueOffset:
    """The first message stored at or after `time_ms`; with `is_upper` the last one at or before it."""
    header = SearchOffsetRequest(
        topic=topic, queue_id=queue_id, timestamp_ms=time_ms, boundary="UPPER" if is_upper else "LOWER"
    )
    answer = await call(client, address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, timeout_s=timeout_s)
    return QueueOffset(answer.decode(SearchOffsetResponse).offset)


async def query_earliest_store_time(
    client: RemotingClient, address: str, topic: str, queue_id: int, *, timeout_s: float = CALL_TIMEOUT_S
) -> EpochMs | None:
    """When the queue's oldest message was stored; None when the queue is empty."""
    header = EarliestStoreTimeRequest(topic=topic, queue_id=queue_id)
    answer = await call(client, address, RequestCode.GET_EARLIEST_MSG_STORETIME, header, timeout_s=timeout_s)
    time_ms = answer.decode(EarliestStoreTimeResponse).timestamp_ms
    return None if time_ms < 0 else EpochMs(time_ms)


async def clone_offsets(
    client: RemotingClient,
    address: str,
    source: str,
    target: str,
    topic: str,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """The target group goes on in the topic where the source group is, on this broker."""
    header = CloneGroupOffsetRequest(source_group=source, target_group=target, topic=topic)
    await call(client, address, RequestCode.CLONE_GROUP_OFFSET, header, timeout_s=timeout_s)
