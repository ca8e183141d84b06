"""Requests of consumers to a broker: messages by pull or pop, offsets, membership in groups, locks on
queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from tandemmq.api.calls import CALL_TIMEOUT_S, call, call_oneway, call_raw
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import (
    AssignmentQuery,
    ClientConfigCheck,
    Heartbeat,
    LockRequest,
    QueueAssignment,
    decode_assignments,
    decode_consumer_list,
    decode_lock_answer,
    encode_assignment_query,
    encode_client_config_check,
    encode_heartbeat,
    encode_lock_request,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import PoppedMessage
from tandemmq.protocol.pop_receipts import (
    Handle,
    flag_of,
    parse_handle,
    real_topic,
    render_handle,
    split_items,
)
from tandemmq.protocol.properties import POP_CK
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests.admin import CloneGroupOffsetRequest
from tandemmq.protocol.requests.consume import (
    AckRequest,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    EarliestStoreTimeRequest,
    EarliestStoreTimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    NotificationRequest,
    NotificationResponse,
    PopRequest,
    PopResponse,
    PullRequest,
    PullResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    SeenRecord,
    UpdateOffsetRequest,
)
from tandemmq.protocol.requests.route import ConsumerListRequest, UnregisterClientRequest
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import Buffer, EpochMs

# Pulling: messages from an offset on, with long polling (spec remoting 9.3).

PULL_TIMEOUT_S = 30.0
"""Longer than any broker holds a pull (spec semantics 8.5)."""


class PullStatus(Enum):
    """The outcome of a pull; every other answer raises.

    FOUND            messages are in the body
    NOTHING_NEW      the queue has no message at this offset yet
    NOTHING_MATCHED  continue at next_offset at once: the messages here were filtered out, or another replica
                     must be asked
    OFFSET_MOVED     the offset is outside the queue, or an administrator has reset it: continue at
                     next_offset
    """

    FOUND = "FOUND"
    NOTHING_NEW = "NOTHING_NEW"
    NOTHING_MATCHED = "NOTHING_MATCHED"
    OFFSET_MOVED = "OFFSET_MOVED"


_STATUS_OF_CODE: dict[int, PullStatus] = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NOTHING_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NOTHING_MATCHED,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


class Pulled(msgspec.Struct, frozen=True, gc=False):
    """One answer. `body` contains stored records one after the other; `max_offset` is exclusive.

    `passed` is the record before `next_offset`, if the broker reports that it skipped records.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: Buffer
    passed: SeenRecord | None = None


async def pull(
    client: RemotingClient, address: str, header: PullRequest, *, timeout_s: float = PULL_TIMEOUT_S
) -> Pulled:
    """Returns messages from an offset on; the broker may hold the request if the header allows it."""
    return read_pull_answer(
        await client.request(address, Command.request(RequestCode.PULL_MESSAGE, header), timeout_s)
    )


def read_pull_answer(answer: Command) -> Pulled:
    """Decodes the broker's answer.

    Raises:  the RequestRejected class of any code that is not one of the four statuses.
    """
    status = _STATUS_OF_CODE.get(answer.code)
    if status is None:
        raise rejections.to_error(answer)
    header = answer.decode(PullResponse)
    return Pulled(
        status,
        header.next_offset,
        header.min_offset,
        header.max_offset,
        header.suggested_broker_id,
        answer.body,
        header.passed_record(),
    )


# Popping: messages leased for a limited time and acknowledged one by one (spec semantics 14, spec remoting
# 12.7).

POP_MARGIN_S = 10.0
"""The margin in seconds added to the time for which the broker may hold a pop."""
NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL)
"""The response codes without a message; POLLING_FULL: the broker already holds too many pops."""


async def pop(
    client: RemotingClient, address: str, broker_name: str, header: PopRequest
) -> list[PoppedMessage]:
    """Returns messages that no other member of the group gets for `invisible_ms`; an empty list when none
    came in time.

    If the answer is lost, its messages are delivered again after `invisible_ms`.
    """
    command = Command.request(RequestCode.POP_MESSAGE, header)
    answer = await client.request(address, command, header.poll_ms / 1000 + POP_MARGIN_S)
    if answer.code in NOTHING:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return read_popped(answer, header.consumer_group, header.topic, broker_name)


def read_popped(answer: Command, group: str, topic: str, broker_name: str) -> list[PoppedMessage]:
    """Returns the messages of an answer, each with its handle: the handle that the broker stored with the
    message, else one built from the lists in the header, as RocketMQ's clients do.

    A message whose body does not match its checksum is left out: it is delivered again after its invisible
    time, and must not delay the other messages.

    Raises:  RemoteProtocolError when a message is in no list, or a handle cannot be decoded.
    """
    header = answer.decode(PopResponse)
    starts = {item[:2]: int(item[2]) for item in split_items(header.start_offset_info)}
    offsets = {item[:2]: iter(item[2].split(",")) for item in split_items(header.message_offset_info)}
    firsts: dict[tuple[str, ...], int] = {}
    found: list[PoppedMessage] = []
    for record in decode_records(answer.body, check_crc=False):
        text = record.properties.get(POP_CK, "")
        key = (flag_of(record.topic, group, topic), str(record.queue_id))
        if not text:
            offset = int(next(offsets[key], record.queue_offset)) if key in offsets else record.queue_offset
            # A broker that returns no list has its check point at the first message of the queue.
            start = starts.get(key, firsts.setdefault(key, record.queue_offset))
            if starts and key not in starts:
                raise RemoteProtocolError(f"the answer to a pop does not say where its queue {key} begins")
            text = render_handle(
                Handle(
                    start,
                    header.pop_time_ms,
                    header.invisible_ms,
                    header.revive_queue_id,
                    key[0],
                    broker_name,
                    record.queue_id,
                    offset,
                )
            )
        if record.has_good_body:
            found.append(PoppedMessage(record, topic=topic, broker_name=broker_name, handle=text))
    return found


async def wait_for_message(client: RemotingClient, address: str, header: NotificationRequest) -> bool:
    """Waits for a message to pop, at most for the header's time; returns True if there is one. No message is
    received.
    """
    answer = await call_raw(
        client,
        address,
        RequestCode.NOTIFICATION,
        header,
        timeout_s=header.poll_ms / 1000 + POP_MARGIN_S,
    )
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer.decode(NotificationResponse).has_message


async def ack(
    client: RemotingClient,
    address: str,
    group: str,
    topic: str,
    handle_text: str,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Acknowledges the message. Raises RequestRejected for a handle that the broker does not know."""
    handle = parse_handle(handle_text)
    header = AckRequest(
        consumer_group=group,
        topic=real_topic(handle.flag, group, topic),
        queue_id=handle.queue_id,
        extra_info=handle_text,
        offset=handle.offset,
    )
    await call(client, address, RequestCode.ACK_MESSAGE, header, timeout_s=timeout_s)


async def change_invisible(
    client: RemotingClient,
    address: str,
    group: str,
    topic: str,
    handle_text: str,
    invisible_ms: int,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> str:
    """Keeps the message invisible to other members for `invisible_ms` from now on; returns the new handle for
    acknowledging it.
    """
    handle = parse_handle(handle_text)
    header = ChangeInvisibleRequest(
        consumer_group=group,
        topic=real_topic(handle.flag, group, topic),
        queue_id=handle.queue_id,
        extra_info=handle_text,
        offset=handle.offset,
        invisible_ms=invisible_ms,
    )
    answer = await call(
        client, address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, timeout_s=timeout_s
    )
    new = answer.decode(ChangeInvisibleResponse)
    return render_handle(
        handle._replace(
            start_offset=handle.offset,
            pop_time_ms=new.pop_time_ms,
            invisible_ms=new.invisible_ms,
            revive_queue_id=new.revive_queue_id,
        )
    )


# Offsets: the begin and end of queues, the committed offsets of groups (spec remoting 9.5).


class GroupProgress(NamedTuple):
    """The committed offset of a group in a queue, and the record before it in the log of the committing
    client.
    """

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
) -> int | None:
    """Returns the group's committed offset in a queue; None when it has never committed there. See
    `query_progress`.
    """
    progress = await query_progress(
        client, address, group, topic, queue_id, zero_if_missing=zero_if_missing, timeout_s=timeout_s
    )
    return None if progress is None else progress.offset


async def query_progress(
    client: RemotingClient,
    address: str,
    group: str,
    topic: str,
    queue_id: int,
    *,
    zero_if_missing: bool | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> GroupProgress | None:
    """Returns the group's committed progress in a queue; None when it has never committed there.

    Brokers answer 0 for a group without an offset while message 0 is still in memory, unless
    `zero_if_missing` is False (5.x; older brokers ignore it).
    """
    header = QueryOffsetRequest(
        consumer_group=group, topic=topic, queue_id=queue_id, zero_if_missing=zero_if_missing
    )
    answer = await call_raw(client, address, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    response = answer.decode(QueryOffsetResponse)
    return GroupProgress(response.offset, response.seen_record())


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
    """Stores the group's committed offset; returns once the broker has it.

    With `client_id` and `seen` (`SeenRecord.render`) a TandemMQ broker can check if the offset belongs to its
    log; other brokers ignore them.
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
    """Stores the group's committed offset without waiting: for periodic commits, where the next commit
    replaces a lost one.
    """
    header = UpdateOffsetRequest(
        consumer_group=group, topic=topic, queue_id=queue_id, committed_offset=offset
    )
    await call_oneway(client, address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def query_max_offset(
    client: RemotingClient, address: str, topic: str, queue_id: int, *, timeout_s: float = CALL_TIMEOUT_S
) -> int:
    """Returns the offset that the next message of the queue will get."""
    header = GetMaxOffsetRequest(topic=topic, queue_id=queue_id)
    answer = await call(client, address, RequestCode.GET_MAX_OFFSET, header, timeout_s=timeout_s)
    return answer.decode(GetMaxOffsetResponse).offset


async def query_min_offset(
    client: RemotingClient, address: str, topic: str, queue_id: int, *, timeout_s: float = CALL_TIMEOUT_S
) -> int:
    """Returns the offset of the oldest message that the queue still has."""
    header = GetMinOffsetRequest(topic=topic, queue_id=queue_id)
    answer = await call(client, address, RequestCode.GET_MIN_OFFSET, header, timeout_s=timeout_s)
    return answer.decode(GetMinOffsetResponse).offset


async def search_offset(
    client: RemotingClient,
    address: str,
    topic: str,
    queue_id: int,
    time_ms: int,
    *,
    is_upper: bool = False,
    timeout_s: float = CALL_TIMEOUT_S,
) -> int:
    """Returns the first message stored at or after `time_ms`; with `is_upper` the last one at or before
    it.
    """
    header = SearchOffsetRequest(
        topic=topic, queue_id=queue_id, timestamp_ms=time_ms, boundary="UPPER" if is_upper else "LOWER"
    )
    answer = await call(client, address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, timeout_s=timeout_s)
    return answer.decode(SearchOffsetResponse).offset


async def query_earliest_store_time(
    client: RemotingClient, address: str, topic: str, queue_id: int, *, timeout_s: float = CALL_TIMEOUT_S
) -> EpochMs | None:
    """Returns the store time of the queue's oldest message; None when the queue is empty."""
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
    """Copies the source group's offsets in the topic to the target group, on this broker."""
    header = CloneGroupOffsetRequest(source_group=source, target_group=target, topic=topic)
    await call(client, address, RequestCode.CLONE_GROUP_OFFSET, header, timeout_s=timeout_s)


# Membership: heartbeats, leaving, members of a group (spec remoting 9.4), exclusive queues (9.8).


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The broker's version number: features such as SQL92 filters depend on it."""

    broker_version: int


async def send_heartbeat(
    client: RemotingClient, address: str, heartbeat: Heartbeat, *, timeout_s: float = CALL_TIMEOUT_S
) -> HeartbeatAnswer:
    """Sends the client's identity and subscriptions; brokers forget a client after 120 s without a
    heartbeat.
    """
    body = encode_heartbeat(heartbeat)
    answer = await call(client, address, RequestCode.HEART_BEAT, body=body, timeout_s=timeout_s)
    return HeartbeatAnswer(answer.version)


async def check_client_config(
    client: RemotingClient, address: str, check: ClientConfigCheck, *, timeout_s: float = CALL_TIMEOUT_S
) -> None:
    """Checks that the broker understands a subscription. Raises RequestRejected when it does not."""
    body = encode_client_config_check(check)
    await call(client, address, RequestCode.CHECK_CLIENT_CONFIG, body=body, timeout_s=timeout_s)


async def unregister_client(
    client: RemotingClient,
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Leaves a group at once, so that the other members share its queues without delay."""
    header = UnregisterClientRequest(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    await call(client, address, RequestCode.UNREGISTER_CLIENT, header, timeout_s=timeout_s)


async def query_consumer_ids(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> tuple[str, ...]:
    """Returns the client ids of the group's online members; an empty tuple when the broker knows none."""
    header = ConsumerListRequest(consumer_group=group)
    answer = await call_raw(
        client, address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, timeout_s=timeout_s
    )
    if answer.code == ResponseCode.SYSTEM_ERROR:
        # Brokers answer 1 when no member is online, never 0 with an empty list.
        return ()
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_consumer_list(answer.body)


async def query_assignment(
    client: RemotingClient, address: str, query: AssignmentQuery, *, timeout_s: float = CALL_TIMEOUT_S
) -> list[QueueAssignment] | None:
    """Returns the queues that the broker assigns to a member of a group; None: the member keeps its
    queues.
    """
    body = encode_assignment_query(query)
    answer = await call(client, address, RequestCode.QUERY_ASSIGNMENT, body=body, timeout_s=timeout_s)
    return decode_assignments(answer.body).queues


async def lock_queues(
    client: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    queues: tuple[MessageQueue, ...],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> frozenset[MessageQueue]:
    """Locks queues for 60 s; returns the queues of the broker that this client now holds (spec remoting
    9.8).
    """
    body = encode_lock_request(LockRequest(client_id=client_id, consumer_group=group, queues=queues))
    answer = await call(client, address, RequestCode.LOCK_BATCH_MQ, body=body, timeout_s=timeout_s)
    return decode_lock_answer(answer.body)


async def unlock_queues(
    client: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    queues: tuple[MessageQueue, ...],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Releases locked queues."""
    body = encode_lock_request(LockRequest(client_id=client_id, consumer_group=group, queues=queues))
    await call(client, address, RequestCode.UNLOCK_BATCH_MQ, body=body, timeout_s=timeout_s)
