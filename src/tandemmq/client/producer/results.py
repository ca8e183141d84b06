"""The result of a send: a status and the position of the message. Also the reply to a request: its topic,
properties and broker (spec semantics 3.10).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import msgspec

from tandemmq.api import broker_send
from tandemmq.api.broker_send import SendAnswer, SendStatus
from tandemmq.client.instance import ClientInstance
from tandemmq.errors import ClientError, MessageIllegal, NotServed, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.message import Message, ReceivedMessage, check_message, wire_properties
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import reply_topic
from tandemmq.remoting.options import render_address

REPLY_TYPE = "reply"
_COPIED = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)


async def send_reply(
    instance: ClientInstance,
    group: str,
    request: ReceivedMessage,
    body: bytes,
    *,
    properties: Mapping[str, str] | None = None,
    timeout_s: float,
) -> None:
    """Sends a reply; returns once the requester has received it.

    The reply goes to the broker group that the request came from, because the requester is connected to the
    group's master. If the master has changed since the request was stored, the requester connects to the new
    master within a moment: the reply is repeated until then, or until the deadline.

    Raises:  MessageIllegal when the message is not a request, NoRoute without a master until the deadline,
             RequestRejected when the requester is no longer connected.
    """
    asked = request.properties
    missing = [name for name in (names.CLUSTER, *_COPIED[:2]) if not asked.get(name)]
    if missing:
        raise MessageIllegal(f"the message requests no reply: it lacks the property {missing[0]}")
    message = Message(topic=reply_topic(asked[names.CLUSTER]), body=body, properties=properties or {})
    check_message(message)
    now_ms = instance.clock.now_ms()
    pairs = wire_properties(message, instance.unique_keys.next(now_ms))
    pairs |= {name: asked[name] for name in _COPIED if name in asked}
    pairs[names.MESSAGE_TYPE] = REPLY_TYPE
    header = SendRequestV2(
        producer_group=group,
        topic=message.topic,
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=0,
        born_at_ms=now_ms,
        flag=0,
        properties=encode_properties(pairs).decode(),
        broker_name=request.broker_name,
    )
    stored_at = render_address(request.record.store_address)

    async def ask(address: str, remaining_s: float) -> None:
        try:
            await broker_send.send_reply(instance.remoting, address, header, body, timeout_s=remaining_s)
        except RequestRejected as error:
            if error.code != ResponseCode.SYSTEM_ERROR or address == stored_at:
                raise
            raise NotServed(error.remark, code=error.code) from None

    await instance.call_master(request.record.topic, request.broker_name, ask, timeout_s=timeout_s)


__all__ = ["SendResult", "SendStatus", "broker_of_handle", "split_answer"]


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The position of one stored message. `message_id` is the broker's id (address and log offset),
    `unique_key` the producer's. `recall_handle` identifies a timed message for `Producer.recall`. `region`
    and `is_traced` are for its trace.
    """

    status: SendStatus
    message_id: str
    unique_key: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    region: str = "DefaultRegion"
    is_traced: bool = True

    @property
    def is_ok(self) -> bool:
        """True if the message is stored with every guarantee of the broker."""
        return self.status is SendStatus.SEND_OK


def broker_of_handle(recall_handle: str) -> str:
    """Returns the broker that issued the handle. Raises ClientError for an invalid handle (spec semantics
    3.11).
    """
    try:
        parts = base64.urlsafe_b64decode(recall_handle).decode().split(" ")
    except ValueError:
        parts = []
    if len(parts) != 5 or parts[0] != "v1":
        raise ClientError(f"{recall_handle[:64]} is not a recall handle")
    return parts[2]


def split_answer(answer: SendAnswer, queue: MessageQueue, unique_keys: Sequence[str]) -> list[SendResult]:
    """Returns one result per message of a batch: consecutive queue offsets, and the ids from the answer's
    comma-separated list.

    A broker that stores the batch as one message (inner batches) returns a single id, which then applies to
    all.
    """
    status, first = answer.status, answer.queue_offset
    ids = answer.message_id.split(",")
    if len(ids) != len(unique_keys):
        ids = [answer.message_id] * len(unique_keys)
    return [
        SendResult(
            status, message_id, unique_key, queue, first + index, None, answer.region, answer.is_traced
        )
        for index, (message_id, unique_key) in enumerate(zip(ids, unique_keys, strict=True))
    ]
