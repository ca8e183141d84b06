"""Messages: search, one message with its body and its state in groups, and traces.

Anybody may have sent a message, so nothing in it is trusted: bodies pass `manage.bodies`, and a message id is
only looked up at brokers of the cluster.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tandemmq.client import ReceivedMessage
from tandemmq.console.pages.topics import read_number
from tandemmq.console.render import make_url, quote_part
from tandemmq.console.view import Answer, Page, PageError, View
from tandemmq.errors import BadRequest, TandemError, TopicNotFound
from tandemmq.manage import messages as stored
from tandemmq.manage.bodies import BodyForm, BodySchema, make_printable, show_body
from tandemmq.manage.message_scan import FoundMessages, MessageFilter, scan_messages
from tandemmq.manage.reading import make_message
from tandemmq.manage.traces import MessageTrace, read_trace
from tandemmq.protocol.properties import is_reserved
from tandemmq.protocol.record import Record
from tandemmq.remoting.options import render_address

PAGE_ROWS: Final = 50
PREVIEW_CHARS: Final = 100
"""The most characters of a body in a list."""
PREVIEW_BYTES_MAX: Final = 64 * 1024
"""A list inflates bodies up to this size: fifty larger ones would fill the memory."""
SCHEMA_CHARS_MAX: Final = 32 * 1024
SCAN_TIMEOUT_S: Final = 30.0
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def read_time(text: str, now_ms: int) -> int | None:
    """Returns milliseconds for a duration ago (`10m`), a time (UTC unless it has a zone) or milliseconds.

    An empty text is None. Raises PageError.
    """
    text = text.strip()
    if not text:
        return None
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago:
        return max(0, now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1_000)
    if re.fullmatch(r"[0-9]{9,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return max(0, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise PageError(
            400, f"time {text[:40]!r}: must be a time in UTC such as 2026-11-27T14:05, or a duration ago: 10m"
        ) from None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list. `link` leads to it."""

    link: str
    message: ReceivedMessage
    preview: str


def make_row(message: ReceivedMessage, prefix: str = "/messages") -> MessageRow:
    """Returns the row of a message; without a broker's name the link searches by id."""
    record = message.record
    if message.broker_name:
        broker, place = quote_part(message.broker_name), f"{record.queue_id}/{record.queue_offset}"
        topic = f"/{quote_part(record.topic)}" if prefix == "/messages" else ""
        link = f"{prefix}{topic}/{broker}/{place}"
    else:
        link = make_url("/messages", id=record.message_id)
    text = bytes(message.body[: 4 * PREVIEW_CHARS]).decode("utf-8", "replace")
    if message.body_fault:
        text = f"(compressed: {message.body_fault})"
    return MessageRow(link, message, make_printable(text[:PREVIEW_CHARS], keeps=""))


async def show_messages(view: View) -> Answer:
    """Shows the search, and what it finds."""
    query = view.query
    found: FoundMessages | None = None
    how = ""
    if query.get("id"):
        found, how = await _find_id(view), "id"
    elif query.get("topic"):
        found, how = await _find_in_topic(view)
    rows = [make_row(one) for one in found.messages] if found is not None else []
    only = rows[0] if how == "id" and len(rows) == 1 and rows[0].message.broker_name else None
    if only is not None:
        return view.redirect(only.link)
    more = {name: text for name, text in query.items() if name != "resume"}
    return view.page(
        "messages.html",
        found=found,
        rows=rows,
        how=how,
        more=more,
        key_max=stored.KEY_COUNT_MAX,
        given=defaultdict(str, query),
    )


async def _find_id(view: View) -> FoundMessages:
    """Finds a message by a broker's id, or by its unique key in the topic."""
    text, topic = view.query["id"].strip(), view.query.get("topic", "").strip()
    try:
        records = await stored.find_records(view.tools, text, topic)
    except BadRequest as error:
        hint = "" if topic else "; a unique key also needs its topic"
        raise PageError(400, f"{error.remark}{hint}") from None
    return await _located(view, records)


async def _located(view: View, records: Sequence[Record]) -> FoundMessages:
    """Returns the messages with the names of their brokers, newest first."""
    names: dict[tuple[str, bytes], str] = {}
    messages = []
    for record in sorted(records, key=lambda one: one.stored_at_ms, reverse=True):
        place = (record.topic, record.store_host)
        if place not in names:
            names[place] = (await stored.find_place(view.tools, record)).broker_name
        messages.append(make_message(record, names[place], PREVIEW_BYTES_MAX))
    return FoundMessages(tuple(messages), len(messages), len(messages), "")


async def _find_in_topic(view: View) -> tuple[FoundMessages, str]:
    """Finds messages of the topic by key, or by reading its queues."""
    query, topic = view.query, view.query["topic"].strip()
    begin_ms, end_ms = (read_time(query.get(name, ""), view.now_ms) for name in ("from", "to"))
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise PageError(400, "the earliest time is later than the latest time")
    wanted = MessageFilter(
        begin_ms=begin_ms,
        end_ms=end_ms,
        broker_name=query.get("broker", "").strip(),
        queue_id=read_number(query, "queue", 0, 2**31 - 1),
        first_offset=read_number(query, "offset", 0, 2**63 - 1),
        tags=query.get("tag", "").strip(),
        key=query.get("key", "").strip(),
        property_name=query.get("property", "").strip(),
        property_value=query.get("value", ""),
    )
    if wanted.key and query.get("by") != "scan":
        records = await stored.find_by_key(
            view.tools, topic, wanted.key, begin_ms, end_ms, count_max=stored.KEY_COUNT_MAX
        )
        return await _located(view, records), "key"
    found = await scan_messages(
        view.tools,
        topic,
        wanted,
        newest_first=query.get("order") != "oldest",
        count_max=PAGE_ROWS,
        resume=query.get("resume", ""),
        content_bytes_max=PREVIEW_BYTES_MAX,
    )
    return found, "scan"


async def show_message(view: View) -> Answer:
    """Shows one message: facts, properties, body, groups, trace."""
    topic, message = await _message_of(view)
    record = message.record
    form, schema = _body_wish(view)
    states, states_error = await _states_of(view, record)
    trace, trace_error = await _trace_of(view, record.unique_key)
    return view.page(
        "message.html",
        title=f"Message of {topic}",
        topic=topic,
        message=message,
        record=record,
        born_at=render_address(record.born_address),
        stored_at=render_address(record.store_address),
        flags=stored.describe_sys_flag(record.sys_flag),
        properties=sorted(record.properties.items(), key=lambda one: (is_reserved(one[0]), one[0])),
        is_reserved=is_reserved,
        printable=make_printable,
        body=show_body(record.body, record.sys_flag, form, schema),
        forms=list(BodyForm),
        form=form,
        given=defaultdict(str, view.query),
        path=view.url.partition("?")[0],
        states=states,
        states_error=states_error,
        groups_max=stored.GROUPS_MAX,
        trace=trace,
        trace_error=trace_error,
    )


async def _message_of(view: View) -> tuple[str, ReceivedMessage]:
    """Returns the topic and the message of the path. Raises PageError if there is none."""
    topic, broker_name = view.path["topic"], view.path["broker"]
    record = await stored.find_by_position(
        view.tools,
        topic,
        broker_name,
        read_number(view.path, "queue", 0, 2**31 - 1) or 0,
        read_number(view.path, "offset", 0, 2**63 - 1) or 0,
    )
    if record is None:
        raise PageError(404, "there is no message at this offset: it was deleted, or not yet stored")
    return topic, ReceivedMessage(record, broker_name=broker_name)


def _body_wish(view: View) -> tuple[BodyForm, BodySchema]:
    """Returns the form and the schema that the query names. Raises PageError."""
    text = view.query.get("form", BodyForm.AUTO)
    if text not in list(BodyForm):
        raise PageError(400, f"form {text[:40]!r}: must be one of {', '.join(BodyForm)}")
    avro, packed = view.query.get("avro", ""), view.query.get("descriptors", "")
    if max(len(avro), len(packed)) > SCHEMA_CHARS_MAX:
        raise PageError(413, f"the schema is longer than {SCHEMA_CHARS_MAX} characters")
    try:
        descriptors = b64decode("".join(packed.split()), validate=True)
    except (binascii.Error, ValueError):
        raise PageError(400, "the descriptors must be Base64 of the file that protoc writes") from None
    return BodyForm(text), BodySchema(avro.strip(), descriptors, view.query.get("message", "").strip())


async def _states_of(view: View, record: Record) -> tuple[Sequence[object], str]:
    try:
        return await stored.read_group_states(view.tools, record, groups_max=stored.GROUPS_MAX), ""
    except TandemError as error:
        return (), str(error)


async def _trace_of(view: View, unique_key: str) -> tuple[MessageTrace, str]:
    """Returns the trace, empty if there is none, and the reason if it cannot be read."""
    if not unique_key:
        return MessageTrace(), ""
    try:
        return await read_trace(view.tools, unique_key), ""
    except TopicNotFound:
        return MessageTrace(), ""
    except TandemError as error:
        return MessageTrace(), str(error)


async def download_body(view: View) -> Answer:
    """Answers with the decompressed body as a file."""
    topic, message = await _message_of(view)
    name = f"{topic}-{message.broker_name}-{message.queue_id}-{message.queue_offset}.bin"
    return view.download(name, bytes(message.body), "application/octet-stream")


async def show_traces(view: View) -> Answer:
    """Shows the trace of a message by its unique key, also of a message that is deleted."""
    key = view.query.get("key", "").strip()
    trace, error = await _trace_of(view, key)
    return view.page("traces.html", key=key, trace=trace, trace_error=error)


_PLACE: Final = "/messages/{topic}/{broker}/{queue}/{offset}"

PAGES: Final = (
    Page("/messages", "Messages", show_messages, menu="Data", timeout_s=SCAN_TIMEOUT_S),
    Page(_PLACE, "Message", show_message),
    Page(f"{_PLACE}/body", "Body", download_body),
    Page("/traces", "Message traces", show_traces, menu="Data"),
)
