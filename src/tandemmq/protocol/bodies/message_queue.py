"""MessageQueue: the name of one queue in the cluster, and maps that are keyed by it.

FastJSON writes such a map with whole objects as keys, `{{"brokerName":"b","queueId":0,"topic":"T"}:5}`. Go
reads only this spelling, so it is written exactly so, compact (spec remoting 6); read are objects and
texts as keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import field

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import convert, decode_body, encode_body

V = TypeVar("V")


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic on one broker; sorts by topic, broker, queue."""

    topic: str = ""
    broker_name: str = field(name="brokerName", default="")
    queue_id: int = field(name="queueId", default=0)


class _Wire(msgspec.Struct):
    """The same in the order in which Java writes the keys."""

    brokerName: str
    queueId: int
    topic: str


def encode_queue_key(queue: MessageQueue) -> bytes:
    return encode_body(_Wire(queue.broker_name, queue.queue_id, queue.topic))


def encode_queue_map(
    values: Mapping[MessageQueue, V], encode_value: Callable[[V], bytes] = encode_body
) -> bytes:
    """FastJSON's map with objects as keys; not JSON."""
    pairs = [encode_queue_key(queue) + b":" + encode_value(value) for queue, value in values.items()]
    return b"{" + b",".join(pairs) + b"}"


def convert_queue_map(value: Any, shape: type[V]) -> dict[MessageQueue, V]:
    """The typed map of one that `loose_json` has parsed, where each key is the text of its object.

    Raises:  RemoteProtocolError when it is no map, or a key is no message queue.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError("a map keyed by message queue is not a JSON object")
    return {decode_body(key, MessageQueue): convert(item, shape) for key, item in value.items()}
