"""The texts of pop consumption: handles, and the lists of a pop's answer. Pure (spec semantics 14.2).

A handle is `ckStartOffset popTime invisibleTime reviveQid flag brokerName queueId msgOffset`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tandemmq.errors import BadRequest, RemoteProtocolError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.topic_names import RETRY_PREFIX

FLAG_NORMAL: Final = "0"
FLAG_RETRY_V1: Final = "1"
FLAG_RETRY_V2: Final = "2"

ORDERED_REVIVE_QUEUE: Final = 999
"""The reviveQid of an ordered pop, which has no check point."""

_NUMBER: Final = "(-?[0-9]{1,19})"
_HANDLE: Final = re.compile(
    f"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([^ ]*) ([^ ]*) {_NUMBER}(?: {_NUMBER}(?: .*)?)?", re.DOTALL
)


class Handle(NamedTuple):
    """A parsed handle. `offset` is -1 in the short form that only names the check point."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    flag: str
    broker_name: str
    queue_id: int
    offset: int

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE


def render_handle(handle: Handle) -> str:
    """Returns the text of POP_CK."""
    return " ".join(str(part) for part in handle)


def parse_handle(text: str) -> Handle:
    """Parses a handle. Raises BadRequest (INVALID_PARAMETER) naming the fault."""
    found = _HANDLE.fullmatch(text)
    if found is None:
        if text.count(" ") < 6:
            raise _bad(text, "it must have 8 fields separated by spaces")
        raise _bad(text, "its offsets, times and queue ids must be whole numbers")
    start, pop_time, invisible, revive, flag, broker_name, queue, offset = found.groups("-1")
    return Handle(
        int(start), int(pop_time), int(invisible), int(revive), flag, broker_name, int(queue), int(offset)
    )


def start_item(flag: str, queue_id: int, offset: int) -> str:
    """Returns one item of startOffsetInfo."""
    return f"{flag} {queue_id} {offset}"


def offsets_item(flag: str, queue_id: int, offsets: Sequence[int]) -> str:
    """Returns one item of msgOffsetInfo."""
    return f"{flag} {queue_id} {','.join(map(str, offsets))}"


def order_items(flag: str, queue_id: int, offsets: Sequence[int], counts: dict[int, int]) -> list[str]:
    """Returns items of orderCountInfo: the number of earlier pops of each message, then the least of all."""
    items = [f"{flag} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    lowest = min(counts.values()) if counts and len(counts) == len(offsets) else 0
    return [*items, f"{flag} {queue_id} {lowest}"]


def order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """Returns the counts of orderCountInfo by flag and queue: `0` for the queue, `qo0%7` for its message 7.

    An item of another form is left out: the counts only tell how often a message was tried.
    """
    parts = (item.split(" ") for item in (text or "").split(";"))
    return {(part[0], part[1]): int(part[2]) for part in parts if len(part) == 3 and part[2].isdecimal()}


def order_count(counts: dict[tuple[str, str], int], flag: str, queue_id: int, offset: int) -> int:
    """Returns how often a message was popped in order before; 0 for one that is not in the counts."""
    of_queue = counts.get((flag, str(queue_id)), 0)
    return counts.get((flag, f"qo{queue_id}%{offset}"), of_queue)


def join_items(items: Sequence[str]) -> str:
    """Returns a list of a pop's answer, which clients split again (spec semantics 14.2)."""
    return ";".join(items)


def split_items(text: str | None) -> list[tuple[str, ...]]:
    """Returns the items of one list of a pop's answer: flag, queue id, and offsets or a count.

    Raises:  RemoteProtocolError for an invalid item.
    """
    items = [tuple(item.split(" ")) for item in text.split(";")] if text else []
    for item in items:
        numbers = (item[1], *item[2].split(",")) if len(item) == 3 else ("",)
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise RemoteProtocolError(f"a list of a pop's answer cannot be read: {(text or '')[:128]!r}")
    return items


def flag_of(stored_topic: str, group: str, topic: str) -> str:
    """Returns the flag of messages stored in `stored_topic` and popped from `topic`."""
    if stored_topic == pop_retry_v1(group, topic):
        return FLAG_RETRY_V1
    if stored_topic == pop_retry_v2(group, topic):
        return FLAG_RETRY_V2
    return FLAG_NORMAL


def pop_retry_v1(group: str, topic: str) -> str:
    """Returns the retry topic of popped messages, named as RocketMQ does by default."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_v2(group: str, topic: str) -> str:
    """Returns the retry topic with enableRetryTopicV2: a separator that is in no name."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def popped_topic(group: str, topic: str) -> str:
    """Returns the topic that the group pops, if the messages are in this topic or in its retry topic."""
    for prefix in (pop_retry_v1(group, ""), pop_retry_v2(group, "")):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def real_topic(flag: str, group: str, topic: str) -> str:
    """Returns the topic that stores messages with this flag popped from `topic`."""
    if flag == FLAG_RETRY_V1:
        return pop_retry_v1(group, topic)
    if flag == FLAG_RETRY_V2:
        return pop_retry_v2(group, topic)
    return topic


def _bad(text: str, fault: str) -> BadRequest:
    return BadRequest(
        f"the handle {text[:128]!r} cannot be read: {fault}", code=ResponseCode.INVALID_PARAMETER
    )
