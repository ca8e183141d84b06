"""Reading from a broker: pull with long polling (spec remoting 9.3)."""

from __future__ import annotations

from enum import Enum

import msgspec

from tandemmq.protocol import rejections
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Buffer, Command
from tandemmq.protocol.requests.consume import PullRequest, PullResponse, SeenRecord
from tandemmq.remoting.client import RemotingClient

PULL_TIMEOUT_S = 30.0
"""Longer than any broker holds a pull (spec semantics 8.5)."""


class PullStatus(Enum):
    """What a pull came to; everything else raises.

    FOUND            messages are in the body
    NOTHING_NEW      the queue has nothing at this offset yet
    NOTHING_MATCHED  go on at next_offset at once: what lay here was filtered out, or another replica is to
                     be asked
    OFFSET_MOVED     the offset lies outside the queue, or an administrator has reset it: go on at next_offset
    """

    FOUND = "FOUND"
    NOTHING_NEW = "NOTHING_NEW"
    NOTHING_MATCHED = "NOTHING_MATCHED"
    OFFSET_MOVED = "OFFSET_MOVED"


_STATUS_OF_CODE: dict[int, PullStatus] = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NOTHING_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NOTHING_MATCHED,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


class Pulled(msgspec.Struct, frozen=True, gc=False):
    """One answer. `body` is stored records one after the other; queue offsets, `max_offset` exclusive.

    `passed` is the record before `next_offset`, when the broker tells that it has passed over some.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: Buffer
    passed: SeenRecord | None = None


async def pull(
    client: RemotingClient, address: str, header: PullRequest, *, timeout_s: float = PULL_TIMEOUT_S
) -> Pulled:
    """Messages from an offset on; may be held by the broker when the header allows it."""
    return read_pull_answer(
        await client.request(address, Command.request(RequestCode.PULL_MESSAGE, header), timeout_s)
    )


def read_pull_answer(answer: Command) -> Pulled:
    """What the broker gave.

    Raises:  the RequestRejected class of any code that is not one of the four statuses.
    """
    status = _STATUS_OF_CODE.get(answer.code)
    if status is None:
        raise rejections.to_error(answer)
    header = answer.decode(PullResponse)
    return Pulled(
        status,
        header.next_offset,
        header.min_offset,
        header.max_offset,
        header.suggested_broker_id,
        answer.body,
        header.passed_record(),
    )
