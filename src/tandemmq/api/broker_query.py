"""Finding stored messages: by id, by key (spec remoting 9.9)."""

from __future__ import annotations

from tandemmq.api.calls import CALL_TIMEOUT_S, ask, call
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.stats import ConsumeQueueView
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.record import Record, decode_record, decode_records
from tandemmq.protocol.requests.admin import ConsumeQueueRequest
from tandemmq.protocol.requests.consume import QueryMessageRequest, ViewMessageRequest
from tandemmq.remoting.client import RemotingClient

END_OF_TIME_MS = 2**63 - 1


async def view_message(
    client: RemotingClient,
    address: str,
    log_offset: int,
    *,
    topic: str | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Record | None:
    """The message at a log offset of this broker; None when there is none."""
    header = ViewMessageRequest(log_offset=log_offset, topic=topic)
    answer = await ask(client, address, RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_record(answer.body)


async def query_messages(
    client: RemotingClient,
    address: str,
    topic: str,
    key: str,
    *,
    count_max: int = 32,
    begin_at_ms: int = 0,
    end_at_ms: int = END_OF_TIME_MS,
    is_unique_key: bool = False,
    timeout_s: float = CALL_TIMEOUT_S,
) -> list[Record]:
    """Messages that carry the key (or the unique key), by this broker's index, newest first as it gives them.

    The index knows hashes only, so what has another topic or key is dropped here.
    """
    header = QueryMessageRequest(
        topic=topic,
        key=key,
        count_max=count_max,
        begin_at_ms=begin_at_ms,
        end_at_ms=end_at_ms,
        is_unique_key=is_unique_key,
    )
    answer = await ask(client, address, RequestCode.QUERY_MESSAGE, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return [
        record
        for record in decode_records(answer.body)
        if record.topic == topic
        and (record.unique_key == key if is_unique_key else key in record.keys.split())
    ]


async def query_entries(
    client: RemotingClient, address: str, header: ConsumeQueueRequest
) -> ConsumeQueueView:
    """Entries of a ConsumeQueue, as they lie on the broker's disk. Raises what `call` raises."""
    answer = await call(client, address, RequestCode.QUERY_CONSUME_QUEUE, header)
    return decode_body(answer.body, ConsumeQueueView)
