"""Popping: messages for a time, acknowledged one by one (spec semantics 14, spec remoting 12.7)."""

from __future__ import annotations

from tandemmq.api.calls import CALL_TIMEOUT_S, ask, call
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol import rejections
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
from tandemmq.protocol.requests.consume import (
    AckRequest,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    NotificationRequest,
    NotificationResponse,
    PopRequest,
    PopResponse,
)
from tandemmq.remoting.client import RemotingClient

POP_MARGIN_S = 10.0
"""On top of the time that the broker may hold a pop."""
NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL)
"""No message came; POLLING_FULL: because the broker holds too many pops already."""


async def pop(
    client: RemotingClient, address: str, broker_name: str, header: PopRequest
) -> list[PoppedMessage]:
    """Messages that nobody else of the group gets for `invisible_ms`; none when none came in time.

    When the answer is lost, its messages come again after `invisible_ms`.
    """
    command = Command.request(RequestCode.POP_MESSAGE, header)
    answer = await client.request(address, command, header.poll_ms / 1000 + POP_MARGIN_S)
    if answer.code in NOTHING:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return read_popped(answer, header.consumer_group, header.topic, broker_name)


def read_popped(answer: Command, group: str, topic: str, broker_name: str) -> list[PoppedMessage]:
    """The messages of an answer, each with its handle: that which the broker has stored with it, else one
    made of the lists in the header, as RocketMQ's clients do.

    Raises:  RemoteProtocolError when a message is in no list, or a handle cannot be read.
    """
    header = answer.decode(PopResponse)
    starts = {item[:2]: int(item[2]) for item in split_items(header.start_offset_info)}
    offsets = {item[:2]: iter(item[2].split(",")) for item in split_items(header.message_offset_info)}
    firsts: dict[tuple[str, ...], int] = {}
    found: list[PoppedMessage] = []
    for record in decode_records(answer.body):
        text = record.properties.get(POP_CK, "")
        key = (flag_of(record.topic, group, topic), str(record.queue_id))
        if not text:
            offset = int(next(offsets[key], record.queue_offset)) if key in offsets else record.queue_offset
            # A broker that gives no list has its check point at the first message of the queue.
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
        found.append(PoppedMessage(record, topic=topic, broker_name=broker_name, handle=text))
    return found


async def wait_for_message(client: RemotingClient, address: str, header: NotificationRequest) -> bool:
    """Whether there is something to pop, at the latest after the header's time; nothing is taken."""
    answer = await ask(
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
    message: PoppedMessage,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """The message is done with. Raises RequestRejected for a handle that the broker does not know."""
    handle = parse_handle(message.handle)
    header = AckRequest(
        consumer_group=group,
        topic=real_topic(handle.flag, group, message.topic),
        queue_id=handle.queue_id,
        extra_info=message.handle,
        offset=handle.offset,
    )
    await call(client, address, RequestCode.ACK_MESSAGE, header, timeout_s=timeout_s)


async def change_invisible(
    client: RemotingClient,
    address: str,
    group: str,
    message: PoppedMessage,
    invisible_ms: int,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> str:
    """Nobody else gets the message for that long from now on; the handle that acknowledges it then."""
    handle = parse_handle(message.handle)
    header = ChangeInvisibleRequest(
        consumer_group=group,
        topic=real_topic(handle.flag, group, message.topic),
        queue_id=handle.queue_id,
        extra_info=message.handle,
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
