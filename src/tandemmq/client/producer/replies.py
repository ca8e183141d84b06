"""Replies to requests: which topic, which properties, which broker (spec semantics 3.10)."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.api import broker_transaction
from tandemmq.client.instance import ClientInstance
from tandemmq.client.route_view import MASTER_ID
from tandemmq.errors import MessageIllegal, NoRoute
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import Message, ReceivedMessage, check_message, wire_properties
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import reply_topic

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
    """Returns when the requester has taken the reply.

    It goes to the broker that the request came from, because the requester is connected to that one.
    Raises:  MessageIllegal when the message is not a request, NoRoute without a master, RequestRejected when
             the requester is no longer connected.
    """
    asked = request.properties
    missing = [name for name in (names.CLUSTER, *_COPIED[:2]) if not asked.get(name)]
    if missing:
        raise MessageIllegal(f"the message asks for no reply: it has no property {missing[0]}")
    address = instance.routes.broker_addresses().get(request.broker_name, {}).get(MASTER_ID)
    if address is None:
        raise NoRoute(f"broker {request.broker_name!r} has no master: the reply cannot be sent")
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
    await broker_transaction.send_reply(instance.remoting, address, header, body, timeout_s=timeout_s)
