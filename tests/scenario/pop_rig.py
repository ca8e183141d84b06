"""A client that pops; it builds handles as the Java client does (spec semantics 14.2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from broker_rig import Peer

from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.progress import BatchAck, BatchAckEntry, encode_bits
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import (
    AckRequest,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    PopRequest,
    PopResponse,
)


class Popped(NamedTuple):
    """A message and the handle that acknowledges it."""

    record: Record
    handle: str
    topic: str

    @property
    def body(self) -> bytes:
        return self.record.body


def now_ms() -> int:
    return int(time.time() * 1000)


def pop_header(topic: str, group: str = "CG", **changes: object) -> PopRequest:
    values: dict[str, object] = {
        "consumer_group": group,
        "topic": topic,
        "queue_id": -1,
        "count_max": 32,
        "invisible_ms": 60_000,
        "poll_ms": 0,
        "born_at_ms": now_ms(),
        "init_mode": 0,
        "expression_type": "TAG",
        "expression": "*",
        **changes,
    }
    return PopRequest(**values)  # type: ignore[arg-type]  # real fields


async def pop(peer: Peer, topic: str, group: str = "CG", **changes: object) -> list[Popped]:
    """Returns the messages of one pop; an empty list when the answer has none."""
    answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header(topic, group, **changes))
    if answer.code != ResponseCode.SUCCESS:
        assert answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND), answer.remark
        return []
    return popped_of(answer, topic, group)


def popped_of(answer: Command, topic: str, group: str = "CG") -> list[Popped]:
    """Returns the messages with their handles, from the lists of the answer."""
    response = answer.decode(PopResponse)
    starts = {tuple(item.split(" ")[:2]): item.split(" ")[2] for item in _items(response.start_offset_info)}
    offsets = {
        tuple(item.split(" ")[:2]): [int(text) for text in item.split(" ")[2].split(",")]
        for item in _items(response.message_offset_info)
    }
    found = []
    real = {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}
    flags = {name: flag for flag, name in real.items()}
    for record in decode_records(answer.body):
        handle = record.properties.get("POP_CK", "")
        if not handle:
            key = (flags[record.topic], str(record.queue_id))
            assert record.queue_offset in offsets[key]
            handle = (
                f"{starts[key]} {response.pop_time_ms} {response.invisible_ms} {response.revive_queue_id}"
                f" {key[0]} broker-a {record.queue_id} {record.queue_offset}"
            )
        else:
            assert record.topic == topic
        found.append(Popped(record, handle, real[handle.split(" ")[4]]))
    return found


def _items(text: str | None) -> Sequence[str]:
    return text.split(";") if text else ()


async def ack(peer: Peer, popped: Popped, group: str = "CG") -> int:
    header = AckRequest(
        consumer_group=group,
        topic=popped.topic,
        queue_id=popped.record.queue_id,
        extra_info=popped.handle,
        offset=popped.record.queue_offset,
    )
    return (await peer.ask(RequestCode.ACK_MESSAGE, header)).code


async def ack_in_batch(
    peer: Peer, popped: Popped, places: Sequence[int] | None = None, group: str = "CG"
) -> int:
    """Returns the answer to one request that acknowledges several offsets of the handle's lease; None: the
    message's own.
    """
    start, pop_time, invisible, revive = map(int, popped.handle.split(" ")[:4])
    entry = BatchAckEntry(
        bits=encode_bits([popped.record.queue_offset - start] if places is None else places),
        group=group,
        topic=popped.topic,
        queue_id=popped.record.queue_id,
        start_offset=start,
        pop_time_ms=pop_time,
        invisible_ms=invisible,
        revive_queue_id=revive,
    )
    body = encode_body(BatchAck(broker_name="broker-a", entries=[entry]))
    return (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code


async def change(
    peer: Peer, popped: Popped, invisible_ms: int, group: str = "CG", *, is_suspended: bool = False
) -> Popped:
    """Changes the invisible time; returns the message with its new handle."""
    header = ChangeInvisibleRequest(
        consumer_group=group,
        topic=popped.topic,
        queue_id=popped.record.queue_id,
        extra_info=popped.handle,
        offset=popped.record.queue_offset,
        invisible_ms=invisible_ms,
        is_suspended=is_suspended,
    )
    answer = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    response = answer.decode(ChangeInvisibleResponse)
    parts = popped.handle.split(" ")
    parts[0] = str(popped.record.queue_offset)
    parts[1:4] = [str(response.pop_time_ms), str(response.invisible_ms), str(response.revive_queue_id)]
    return Popped(popped.record, " ".join(parts), popped.topic)


async def pop_all(peer: Peer, topic: str, count: int, group: str = "CG", **changes: object) -> list[Popped]:
    """Returns exactly `count` messages; long polling waits for them."""
    found: list[Popped] = []
    while len(found) < count:
        found += await pop(peer, topic, group, **{"poll_ms": 15_000, **changes})
    assert len(found) == count
    return found
