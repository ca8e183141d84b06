"""Commands about messages: queryMsgById, queryMsgByKey."""

from __future__ import annotations

from tandemmq.admin.render import Answer, Row, Table
from tandemmq.admin.targets import Tools
from tandemmq.errors import BadRequest, ClientError, ConfigError
from tandemmq.protocol.record import Record

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
