"""Requests of consumers to a broker: messages by pull or pop, offsets, membership in groups, locks on
queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from tandemmq.api.calls import Call, absent, body, call, call_raw, done, header, value
from tandemmq.errors import BadRequest, RemoteProtocolError
from tandemmq.protocol import pop_receipts, rejections
from tandemmq.protocol.bodies.client import Assignments, decode_consumer_list, decode_lock_answer
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.progress import BatchAck, BatchAckEntry, encode_bits
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import PoppedMessage
from tandemmq.protocol.properties import POP_CK
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests import consume as headers
from tandemmq.protocol.requests.admin import CloneGroupOffsetRequest
from tandemmq.protocol.requests.route import ConsumerListRequest, UnregisterClientRequest
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import Buffer

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
    passed: headers.SeenRecord | None = None


async def pull(
    client: RemotingClient, address: str, header: headers.PullRequest, *, timeout_s: float = PULL_TIMEOUT_S
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
    header = answer.decode(headers.PullResponse)
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


class PopOutcome(NamedTuple):
    """The answer to a pop; without messages when none came in time.

    is_full       the broker already holds too many pops, and did not wait
    is_renewable  the leases of the messages can be renewed in place
    """

    messages: list[PoppedMessage]
    is_full: bool = False
    is_renewable: bool = False


async def pop(
    client: RemotingClient, address: str, broker_name: str, header: headers.PopRequest
) -> list[PoppedMessage]:
    """Returns the messages of `pop_outcome`, waiting for the answer as long as a broker may need."""
    timeout_s = header.poll_ms / 1000 + POP_MARGIN_S
    return (await pop_outcome(client, address, broker_name, header, timeout_s=timeout_s)).messages


async def pop_outcome(
    client: RemotingClient, address: str, broker_name: str, header: headers.PopRequest, *, timeout_s: float
) -> PopOutcome:
    """Returns messages that no other member of the group gets for `invisible_ms`; none when none came in
    time.

    If the answer is lost, its messages are delivered again after `invisible_ms`.
    """
    answer = await call_raw(client, address, RequestCode.POP_MESSAGE, header, timeout_s=timeout_s)
    if answer.code in NOTHING:
        return PopOutcome([], is_full=answer.code == ResponseCode.POLLING_FULL)
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    messages = read_popped(answer, header.consumer_group, header.topic, broker_name)
    return PopOutcome(messages, is_renewable=bool(answer.decode(headers.PopResponse).is_renewable))


def read_popped(answer: Command, group: str, topic: str, broker_name: str) -> list[PoppedMessage]:
    """Returns the messages of an answer, each with its handle: the handle that the broker stored with the
    message, else one built from the lists in the header, as RocketMQ's clients do.

    A message whose body does not match its checksum is left out: it is delivered again after its invisible
    time, and must not delay the other messages.

    Raises:  RemoteProtocolError when a message is in no list, or a handle cannot be decoded.
    """
    header = answer.decode(headers.PopResponse)
    starts = {item[:2]: int(item[2]) for item in pop_receipts.split_items(header.start_offset_info)}
    offsets = {
        item[:2]: iter(item[2].split(",")) for item in pop_receipts.split_items(header.message_offset_info)
    }
    counts = pop_receipts.order_counts(header.order_count_info)
    firsts: dict[tuple[str, ...], int] = {}
    found: list[PoppedMessage] = []
    for record in decode_records(answer.body, check_crc=False):
        text = record.properties.get(POP_CK, "")
        key = (pop_receipts.flag_of(record.topic, group, topic), str(record.queue_id))
        if not text:
            offset = int(next(offsets[key], record.queue_offset)) if key in offsets else record.queue_offset
            # A broker that returns no list has its check point at the first message of the queue.
            start = starts.get(key, firsts.setdefault(key, record.queue_offset))
            if starts and key not in starts:
                raise RemoteProtocolError(f"the answer to a pop does not say where its queue {key} begins")
            text = pop_receipts.render_handle(
                pop_receipts.Handle(
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
        count = pop_receipts.order_count(counts, key[0], record.queue_id, record.queue_offset)
        if count:
            record.retry_count = count  # messages popped in order again are not stored again
        if record.has_good_body:
            found.append(PoppedMessage(record, topic=topic, broker_name=broker_name, handle=text))
    return found


end_poll = Call(RequestCode.POLLING_INFO, headers.PollingInfoRequest, done)
"""Ends a held pop of this connection by its `poll_id`, which is then answered without messages. Other brokers
than TandemMQ's ignore it.
"""


async def wait_for_message(client: RemotingClient, address: str, header: headers.NotificationRequest) -> bool:
    """Waits for a message to pop, at most for the header's time; returns True if there is one. No message is
    received.
    """
    timeout_s = header.poll_ms / 1000 + POP_MARGIN_S
    answer = await call(client, address, RequestCode.NOTIFICATION, header, timeout_s=timeout_s)
    return answer.decode(headers.NotificationResponse).has_message


ACK_BITS_MAX: Final = 1 << 16
"""The bits of one entry of a batch of acks that every broker reads."""


def _name_popped(
    group: str, topic: str, handle_text: str, *, is_strict: bool | None = None
) -> headers.AckRequest:
    handle = pop_receipts.parse_handle(handle_text)
    return headers.AckRequest(
        consumer_group=group,
        topic=pop_receipts.real_topic(handle.flag, group, topic),
        queue_id=handle.queue_id,
        extra_info=handle_text,
        offset=handle.offset,
        is_strict=is_strict,
    )


ack = Call(RequestCode.ACK_MESSAGE, _name_popped, done)
"""Acknowledges the message. Raises RequestRejected for an invalid handle; `is_strict`: with NO_MESSAGE also
for one whose lease has ended (a TandemMQ broker; others report success).
"""


def batch_of_acks(group: str, topic: str, broker_name: str, handle_texts: Sequence[str]) -> BatchAck | None:
    """Returns one request for these messages of a broker, with an entry for each check point; None if one of
    them needs a request of its own: its handle is invalid, it was popped in order, so that a late ack is an
    error, or its offset is too far from the check point for the bits of an entry.
    """
    numbers: dict[pop_receipts.Handle, list[int]] = {}
    try:
        handles = [pop_receipts.parse_handle(text) for text in handle_texts]
    except BadRequest:
        return None
    for handle in handles:
        number = handle.offset - handle.start_offset
        if handle.is_ordered or not 0 <= number < ACK_BITS_MAX:
            return None
        numbers.setdefault(handle._replace(offset=0), []).append(number)
    entries = [
        BatchAckEntry(
            bits=encode_bits(of_check_point),
            group=group,
            invisible_ms=handle.invisible_ms,
            pop_time_ms=handle.pop_time_ms,
            queue_id=handle.queue_id,
            retry_flag=handle.flag,
            revive_queue_id=handle.revive_queue_id,
            start_offset=handle.start_offset,
            topic=topic,
        )
        for handle, of_check_point in numbers.items()
    ]
    return BatchAck(entries=entries, broker_name=broker_name)


ack_batch = Call(
    RequestCode.BATCH_ACK_MESSAGE,
    encode_body,
    lambda _: True,
    outcomes={ResponseCode.REQUEST_CODE_NOT_SUPPORTED: lambda _: False},
)
"""Acknowledges the messages of `batch_of_acks`; returns False if the broker lacks this request (early
releases of RocketMQ 5). A message whose lease has ended is ignored.
"""


def _name_change(
    group: str,
    topic: str,
    handle_text: str,
    invisible_ms: int,
    *,
    is_suspended: bool = False,
    is_renewal: bool | None = None,
) -> headers.ChangeInvisibleRequest:
    handle = pop_receipts.parse_handle(handle_text)
    return headers.ChangeInvisibleRequest(
        consumer_group=group,
        topic=pop_receipts.real_topic(handle.flag, group, topic),
        queue_id=handle.queue_id,
        extra_info=handle_text,
        offset=handle.offset,
        invisible_ms=invisible_ms,
        is_suspended=is_suspended,
        is_renewal=is_renewal,
        is_strict=True,
    )


change_lease = Call(
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME, _name_change, header(headers.ChangeInvisibleResponse)
)
"""Ends the message's lease `invisible_ms` from now; returns the parts of the new handle (`changed_handle`).

`is_suspended`: no consumer tried the message, so its next delivery does not count. `is_renewal`: all open
messages of the lease keep their handles, if the broker reported the lease as renewable. Raises
RequestRejected with NO_MESSAGE for a lease that has ended.
"""


def changed_handle(handle_text: str, new: headers.ChangeInvisibleResponse) -> str:
    """Returns the handle of a message after a change without `is_renewal`."""
    handle = pop_receipts.parse_handle(handle_text)
    return pop_receipts.render_handle(
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
    seen: headers.SeenRecord | None = None


def _read_progress(answer: Command) -> GroupProgress:
    response = answer.decode(headers.QueryOffsetResponse)
    return GroupProgress(response.offset, response.seen_record())


query_progress = Call(
    RequestCode.QUERY_CONSUMER_OFFSET,
    headers.QueryOffsetRequest,
    _read_progress,
    outcomes={ResponseCode.QUERY_NOT_FOUND: absent},
)
"""Returns the group's committed progress in a queue; None when it has never committed there.

Brokers answer 0 for a group without an offset while message 0 is still in memory, unless `zero_if_missing` is
False (5.x; older brokers ignore it).
"""
query_committed_offset = Call(
    RequestCode.QUERY_CONSUMER_OFFSET,
    headers.QueryOffsetRequest,
    lambda answer: answer.decode(headers.QueryOffsetResponse).offset,
    outcomes={ResponseCode.QUERY_NOT_FOUND: absent},
)
"""Returns the offset of `query_progress`."""
commit_offset = Call(RequestCode.UPDATE_CONSUMER_OFFSET, headers.UpdateOffsetRequest, done)
"""Stores the group's committed offset; returns once the broker has it.

With `client_id` and `seen` (`SeenRecord.render`) a TandemMQ broker can check if the offset belongs to its
log; other brokers ignore them.
"""
query_max_offset = Call(
    RequestCode.GET_MAX_OFFSET,
    headers.GetMaxOffsetRequest,
    lambda answer: answer.decode(headers.GetMaxOffsetResponse).offset,
)
"""Returns the offset that the next message of the queue will get."""
query_min_offset = Call(
    RequestCode.GET_MIN_OFFSET,
    headers.GetMinOffsetRequest,
    lambda answer: answer.decode(headers.GetMinOffsetResponse).offset,
)
"""Returns the offset of the oldest message that the queue still has."""


def _name_time(
    topic: str, queue_id: int, time_ms: int, *, is_upper: bool = False
) -> headers.SearchOffsetRequest:
    return headers.SearchOffsetRequest(topic, queue_id, time_ms, "UPPER" if is_upper else "LOWER")


search_offset = Call(
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    _name_time,
    lambda answer: answer.decode(headers.SearchOffsetResponse).offset,
)
"""Returns the first message stored at or after `time_ms`; with `is_upper` the last one at or before it."""


clone_offsets = Call(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetRequest, done)
"""Copies the source group's offsets in the topic to the target group, on this broker."""

# Membership: heartbeats, leaving, members of a group (spec remoting 9.4), exclusive queues (9.8).


send_heartbeat = Call(RequestCode.HEART_BEAT, encode_body, lambda answer: answer.version)
"""Sends the client's identity and subscriptions (`Heartbeat`), and returns the broker's version; brokers
forget a client after 120 s without a heartbeat.
"""
check_client_config = Call(RequestCode.CHECK_CLIENT_CONFIG, encode_body, done)
"""Checks that the broker understands a subscription. Raises RequestRejected when it does not."""
unregister_client = Call(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest, done)
"""Leaves a group at once, so that the other members share its queues without delay."""
query_consumer_ids = Call(
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    ConsumerListRequest,
    body(decode_consumer_list),
    # Brokers answer 1 when no member is online, never 0 with an empty list.
    outcomes={ResponseCode.SYSTEM_ERROR: lambda _: ()},
)
"""Returns the client ids of the group's online members; an empty tuple when the broker knows none."""
query_assignment = Call(RequestCode.QUERY_ASSIGNMENT, encode_body, value(Assignments))
"""Returns the queues that the broker assigns to a member of a group (`AssignmentQuery`)."""
lock_queues = Call(RequestCode.LOCK_BATCH_MQ, encode_body, body(decode_lock_answer))
"""Locks queues for 60 s (`LockRequest`); returns the queues of the broker that this client now holds (spec
remoting 9.8).
"""
unlock_queues = Call(RequestCode.UNLOCK_BATCH_MQ, encode_body, done)
"""Releases locked queues."""
