"""What a send comes to for its caller: a status and where the message lies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tandemmq.api.broker_send import SendAnswer, SendStatus
from tandemmq.protocol.bodies import MessageQueue

__all__ = ["SendResult", "SendStatus", "split_answer"]


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where one message was stored. `message_id` is the broker's (address and log offset), `unique_key`
    ours.
    """

    status: SendStatus
    message_id: str
    unique_key: str
    queue: MessageQueue
    queue_offset: int

    @property
    def is_ok(self) -> bool:
        """Stored with everything that the broker promises."""
        return self.status is SendStatus.SEND_OK


def split_answer(answer: SendAnswer, queue: MessageQueue, unique_keys: Sequence[str]) -> list[SendResult]:
    """One result per message of a batch: consecutive queue offsets, the ids of the answer's comma list.

    A broker that stores the batch as one message (inner batches) gives a single id; it stands for all then.
    """
    status, first = answer.status, answer.queue_offset
    ids = answer.message_id.split(",")
    if len(ids) != len(unique_keys):
        ids = [answer.message_id] * len(unique_keys)
    return [
        SendResult(status, message_id, unique_key, queue, first + index)
        for index, (message_id, unique_key) in enumerate(zip(ids, unique_keys, strict=True))
    ]
