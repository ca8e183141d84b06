"""Commands about messages: queryMsgById, queryMsgByUniqueKey, queryMsgByKey, queryMsgByOffset,
sendMessage.
"""

from __future__ import annotations

from tandemmq.admin.render import Answer, Row, Table
from tandemmq.admin.security import tools_options
from tandemmq.admin.targets import Tools
from tandemmq.api import broker_pull
from tandemmq.client import Message, MessageQueue, Producer, ProducerOptions
from tandemmq.client.route_view import build_view
from tandemmq.errors import BadRequest, ClientError, ConfigError, NoRoute
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.pull import PULL_HAS_SUBSCRIPTION, PullRequest
from tandemmq.protocol.topic_names import TOOLS_GROUP

BODY_CHARS_MAX = 1_000
"""Of a body, in characters; more is cut with an ellipsis."""

_COLUMNS = ("message_id", "unique_key", "topic", "queue", "queue_offset", "log_offset", "born_at")
_MORE = ("stored_at", "retries", "size", "tags", "keys", "properties", "body")


async def find_by_id(tools: Tools, message_id: str, topic: str) -> Answer:
    """The message of an id."""
    return _answer(await find_records(tools, message_id, topic))


async def find_records(tools: Tools, message_id: str, topic: str) -> list[Record]:
    """The message of a broker's message id; with a topic, of a producer's unique key first, because both
    are hexadecimal numbers of one length.
    """
    admin = tools.cluster_admin
    found = await admin.find_by_unique_key(topic, message_id) if topic else []
    if not found:
        try:
            record = await admin.find_by_id(message_id)
        except (BadRequest, ClientError, ConfigError):
            if not topic:
                raise
            record = None  # what was taken for a broker's address was part of a key
        found = [] if record is None else [record]
    return found


async def find_by_key(tools: Tools, topic: str, key: str, count_max: int) -> Answer:
    """Messages that carry a key."""
    return _answer(await tools.cluster_admin.find_by_key(topic, key, count_max=count_max))


async def find_by_unique_key(tools: Tools, topic: str, unique_key: str) -> Answer:
    """The message with a producer's id; several when a send was repeated."""
    return _answer(await tools.cluster_admin.find_by_unique_key(topic, unique_key))


async def find_by_offset(tools: Tools, queue: MessageQueue, offset: int) -> Answer:
    """The message at a place of a queue, at the master or at a slave while there is none."""
    view = build_view(queue.topic, await tools.cluster_admin.topic_route(queue.topic))
    addresses = view.addresses.get(queue.broker_name)
    if not addresses:
        raise NoRoute(f"broker {queue.broker_name!r} has no queue of topic {queue.topic!r}")
    header = PullRequest(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        count_max=1,
        sys_flag=PULL_HAS_SUBSCRIPTION,
        committed_offset=0,
        suspend_timeout_ms=0,
        subscription_version=0,
        subscription="*",
        broker_name=queue.broker_name,
    )
    pulled = await broker_pull.pull(tools.remoting, addresses[min(addresses)], header)
    return _answer([one for one in decode_records(pulled.body) if one.queue_offset == offset])


async def send(name_servers: str, message: Message, broker_name: str, queue_id: int | None) -> Answer:
    """Send one message, to one broker or queue when it is named."""
    options = ProducerOptions(client=tools_options())
    async with Producer("TANDEMMQ_ADMIN", name_servers, options=options) as producer:
        queue = None
        if broker_name or queue_id is not None:
            wanted = [
                one
                for one in await producer.queues(message.topic)
                if broker_name in ("", one.broker_name) and queue_id in (None, one.queue_id)
            ]
            if not wanted:
                raise NoRoute(f"topic {message.topic!r} has no such queue that takes messages")
            queue = wanted[0]
        result = await producer.send(message, queue=queue)
    table = Table("sent", ("broker", "queue", "queue_offset", "status", "message_id", "unique_key"))
    place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
    table.rows.append((*place, result.status.value, result.message_id, result.unique_key))
    return Answer([table], exit_code=0 if result.is_ok else 1)


def _answer(records: list[Record]) -> Answer:
    """Exit code 1 when there is nothing."""
    table = Table("messages", _COLUMNS + _MORE, [_row(record) for record in records])
    return Answer([table], [] if records else ["no such message"], exit_code=0 if records else 1)


def _row(record: Record) -> Row:
    place = (record.topic, record.queue_id, record.queue_offset, record.log_offset)
    times = (record.born_at_ms, record.stored_at_ms)
    properties = dict(record.properties)
    body = record.content.decode("utf-8", "backslashreplace")
    if len(body) > BODY_CHARS_MAX:
        body = body[:BODY_CHARS_MAX] + "…"
    sizes = (record.retry_count, record.size)
    tags, keys = properties.get("TAGS"), properties.get("KEYS")
    return (record.message_id, record.unique_key, *place, *times, *sizes, tags, keys, properties, body)
