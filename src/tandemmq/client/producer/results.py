"""What a send comes to for its caller: a status and where the message lies."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from tandemmq.api.broker_send import SendAnswer, SendStatus
from tandemmq.errors import ClientError
from tandemmq.protocol.bodies import MessageQueue

__all__ = ["SendResult", "SendStatus", "broker_of_handle", "split_answer"]


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where one message was stored. `message_id` is the broker's (address and log offset), `unique_key`
    ours. `recall_handle`: of a timed message, for `Producer.recall`. `region`, `is_traced`: for its trace.
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
        """Stored with everything that the broker promises."""
        return self.status is SendStatus.SEND_OK


def broker_of_handle(recall_handle: str) -> str:
    """The broker that gave the handle. Raises ClientError when it is none (spec semantics 3.11)."""
    try:
        parts = base64.urlsafe_b64decode(recall_handle).decode().split(" ")
    except ValueError:
        parts = []
    if len(parts) != 5 or parts[0] != "v1":
        raise ClientError(f"{recall_handle[:64]!r} is no recall handle")
    return parts[2]


def split_answer(answer: SendAnswer, queue: MessageQueue, unique_keys: Sequence[str]) -> list[SendResult]:
    """One result per message of a batch: consecutive queue offsets, the ids of the answer's comma list.

    A broker that stores the batch as one message (inner batches) gives a single id; it stands for all then.
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
