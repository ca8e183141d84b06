"""The trace of a message: its sends, its consumptions, the outcome of its transaction, and its recalls.

Clients write traces into a topic; a message that no traced client touched has none.
Source: spec semantics 3.12.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.api.broker_admin import END_OF_TIME_MS
from tandemmq.client.tracing import split_records
from tandemmq.errors import TopicNotFound
from tandemmq.manage.tools import Tools
from tandemmq.protocol.record import Record
from tandemmq.protocol.topic_names import TRACE_TOPIC

MESSAGE_KINDS: Final = {"0": "normal", "1": "half", "2": "commit", "3": "delayed", "4": "ordered"}
OUTCOMES: Final = {"0": "success", "1": "time-out", "2": "exception", "3": "returned null", "4": "failed"}
"""The numbers in a trace, by meaning."""
RECORDS_MAX: Final = 64
"""The most trace messages of one message that are read."""
DIGITS_MAX: Final = 18
"""The most digits of a number in a trace; any number of 18 digits fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class TracedSend:
    """One send of the message."""

    group: str
    client: str
    topic: str
    kind: str
    sent_at_ms: int
    took_ms: int
    is_ok: bool
    broker: str


@dataclass(frozen=True, slots=True)
class TracedHandling:
    """One delivery of the message to a consumer's handler. The begin is unknown while only the end is
    traced.
    """

    group: str
    client: str
    begun_at_ms: int | None
    ended_at_ms: int
    took_ms: int
    retry_count: int | None
    is_ok: bool
    outcome: str


@dataclass(frozen=True, slots=True)
class TracedEnd:
    """One commit or rollback of the message's transaction, from a check of the broker or not."""

    group: str
    client: str
    ended_at_ms: int
    state: str
    is_from_check: bool


@dataclass(frozen=True, slots=True)
class TracedRecall:
    """One cancellation of the message."""

    group: str
    client: str
    recalled_at_ms: int
    is_ok: bool


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The trace of one message, each part in the order in which it was stored."""

    sends: tuple[TracedSend, ...] = ()
    handlings: tuple[TracedHandling, ...] = ()
    ends: tuple[TracedEnd, ...] = ()
    recalls: tuple[TracedRecall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sends or self.handlings or self.ends or self.recalls)


async def read_trace(
    tools: Tools,
    unique_key: str,
    *,
    trace_topic: str = TRACE_TOPIC,
    count_max: int = RECORDS_MAX,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
) -> MessageTrace:
    """Returns the trace of the message with this unique key.

    Raises:  TopicNotFound if no client has traced a message yet.
    """
    try:
        records = await tools.cluster_admin.find_by_key(
            trace_topic, unique_key, count_max=count_max, begin_at_ms=begin_ms, end_at_ms=end_ms
        )
    except TopicNotFound:
        raise TopicNotFound(
            f"topic {trace_topic!r} does not exist: no client has traced a message yet"
        ) from None
    return parse_trace(unique_key, records)


def parse_trace(unique_key: str, found: Iterable[Record]) -> MessageTrace:
    """Returns the parts of these trace messages that are about the message; foreign bytes are ignored."""
    sends: list[TracedSend] = []
    handlings: list[TracedHandling] = []
    ends: list[TracedEnd] = []
    recalls: list[TracedRecall] = []
    begun: dict[str, tuple[int, int]] = {}
    records = [(one.born_address[0], fields) for one in found for fields in split_records(bytes(one.content))]
    # A call's first record has its begin, the second one its outcome; they may arrive in any order.
    for client, record in sorted(records, key=lambda one: one[1][0] != "SubBefore"):
        match record:
            case ["SubBefore", at, _, _, request, key, retries, *_] if key == unique_key:
                begun[request] = (_number(at), _number(retries))
            case ["Pub", at, _, group, topic, key, _, _, broker, _, took, kind, _, ok, *_] if (
                key == unique_key
            ):
                name, is_ok = MESSAGE_KINDS.get(kind, kind), ok == "true"
                sends.append(
                    TracedSend(group, client, topic, name, _number(at), _number(took), is_ok, broker)
                )
            case ["SubAfter", request, key, took, ok, _, code, *rest] if key == unique_key:
                ended_at, group = (*rest, "", "")[:2]
                begun_at, retry_count = begun.get(request, (None, None))
                times = (begun_at, _number(ended_at), _number(took))
                outcome = OUTCOMES.get(code, code)
                handlings.append(TracedHandling(group, client, *times, retry_count, ok == "true", outcome))
            case ["EndTransaction", at, _, group, _, key, _, _, _, _, _, state, checked, *_] if (
                key == unique_key
            ):
                ends.append(TracedEnd(group, client, _number(at), state, checked == "true"))
            case ["Recall", at, _, group, _, key, ok, *_] if key == unique_key:
                recalls.append(TracedRecall(group, client, _number(at), ok == "true"))
    return MessageTrace(tuple(sends), tuple(handlings), tuple(ends), tuple(recalls))


def _number(text: str) -> int:
    """Returns the number, or 0 for a text that is not a number of 64 bits: any client may write traces."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else 0
