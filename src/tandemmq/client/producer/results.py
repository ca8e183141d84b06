"""The result of a send: a status and the position of the message. Also the reply to a request: its topic,
properties and broker (spec semantics 3.10).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from tandemmq.api.broker_send import SendAnswer, SendStatus
from tandemmq.errors import ClientError
from tandemmq.protocol.bodies import MessageQueue

__all__ = ["SendResult", "SendStatus", "broker_of_handle", "split_answer"]


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The position of one stored message. `message_id` is the broker's id (address and log offset),
    `unique_key` the producer's. `recall_handle` identifies a timed message for `Producer.recall`. `region`
    and `is_traced` are for its trace.
    """

    status: SendStatus
    message_id: str
    unique_key: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    region: str = "DefaultRegion"
    is_traced: bool = True

    @property
    def is_ok(self) -> bool:
        """True if the message is stored with every guarantee of the broker."""
        return self.status is SendStatus.SEND_OK


def broker_of_handle(recall_handle: str) -> str:
    """Returns the broker that issued the handle. Raises ClientError for an invalid handle (spec semantics
    3.11).
    """
    try:
        parts = base64.urlsafe_b64decode(recall_handle).decode().split(" ")
    except (TypeError, ValueError):
        parts = []
    if len(parts) != 5 or parts[0] != "v1":
        raise ClientError(
            f"{recall_handle!r:.64} is not a recall handle; a delayed message has one, in its result"
        )
    return parts[2]


def split_answer(answer: SendAnswer, queue: MessageQueue, unique_keys: Sequence[str]) -> list[SendResult]:
    """Returns one result per message of a batch: consecutive queue offsets, and the ids from the answer's
    comma-separated list.

    A broker that stores the batch as one message (inner batches) returns a single id, which then applies to
    all.
    """
    status, first = answer.status, answer.queue_offset
    ids = answer.message_id.split(",")
    if len(ids) != len(unique_keys):
        ids = [answer.message_id] * len(unique_keys)
    return [
        SendResult(
            status, message_id, unique_key, queue, first + index, None, answer.region, answer.is_traced
        )
        for index, (message_id, unique_key) in enumerate(zip(ids, unique_keys, strict=True))
    ]
