"""Hands a message back to its group: it comes again later, or becomes a dead letter (spec semantics 7).

The broker is asked to store again what lies at the message's place in its log. It refuses when something else
lies there, which happens when its log has lost its end, or when the message was read from a slave that had
more. The message is here still, so it is then sent to the group's retry topic by its content, as RocketMQ's
clients do after any refusal.
"""

from __future__ import annotations

from tandemmq.api import broker_send
from tandemmq.api.broker_send import SendStatus
from tandemmq.client.instance import ClientInstance
from tandemmq.errors import NoRoute, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendBackRequest, SendRequestV2
from tandemmq.protocol.topic_names import retry_topic

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
"""RocketMQ's producer group of such sends."""
FIRST_DELAY_LEVEL = 3
_NOT_COPIED = (
    names.REAL_TOPIC,
    names.REAL_QID,
    names.TRAN_MSG,
    names.DELAY,
    "TIMER_DELAY_SEC",
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
)


async def hand_back(
    instance: ClientInstance,
    group: str,
    message: ReceivedMessage,
    *,
    delay_level: int,
    retry_count_max: int,
) -> None:
    """Returns when a broker has stored it again; `delay_level` as of `Consumer.retry_later`.

    Raises:  NoRoute without a master; the error of the last call.
    """
    view = instance.routes.get(message.record.topic)
    address = view.master_address(message.broker_name) if view is not None else None
    if address is None:
        raise NoRoute(f"broker {message.broker_name!r} has no master: the message cannot be handed back")
    header = SendBackRequest(
        log_offset=message.record.log_offset,
        group=group,
        delay_level=delay_level,
        original_message_id=message.message_id,
        original_topic=message.topic,
        retry_count_max=retry_count_max,
        broker_name=message.broker_name,
    )
    timeout_s = instance.options.call_timeout_s
    try:
        await broker_send.send_back(instance.remoting, address, header, timeout_s=timeout_s)
    except RequestRejected as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        again = _again(message, group, delay_level, retry_count_max)
        answer = await broker_send.send(instance.remoting, address, again, message.body, timeout_s=timeout_s)
        if answer.status is not SendStatus.SEND_OK:
            raise RequestRejected(
                f"the message was not stored again: {answer.status.value}", code=ResponseCode.SYSTEM_ERROR
            ) from error


def _again(message: ReceivedMessage, group: str, delay_level: int, retry_count_max: int) -> SendRequestV2:
    """The message as a new one in the retry topic. A limit below every count makes it a dead letter."""
    is_dead = delay_level < 0
    retry_count = message.record.retry_count + 1
    pairs = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    pairs.setdefault(names.RETRY_TOPIC, message.topic)
    pairs.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    pairs[names.RECONSUME_TIME] = str(retry_count)
    pairs[names.MAX_RECONSUME_TIMES] = str(retry_count_max)
    pairs[names.WAIT] = "true"
    if not is_dead:
        pairs[names.DELAY] = str(delay_level or FIRST_DELAY_LEVEL + message.record.retry_count)
    return SendRequestV2(
        producer_group=INNER_PRODUCER,
        topic=retry_topic(group),
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=-1,
        sys_flag=0,
        born_at_ms=message.record.born_at_ms,
        flag=message.record.flag,
        properties=encode_properties(pairs).decode(),
        retry_count=retry_count,
        retry_count_max=-1 if is_dead else retry_count_max,
        broker_name=message.broker_name,
    )
