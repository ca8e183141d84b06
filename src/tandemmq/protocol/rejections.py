"""Response codes and error classes, one table used in both directions.

A code without a class of its own becomes RequestRejected with that code, so nothing is lost.

Source:  spec remoting 10; the codes a client may retry: spec remoting 9.2 and 9.3.
"""

from __future__ import annotations

import re
from typing import Final

from tandemmq.errors import (
    BadRequest,
    Busy,
    GroupNotFound,
    MessageIllegal,
    NotLeader,
    NotPermitted,
    NotServed,
    OffsetOutOfRange,
    QueueNotFound,
    RequestRejected,
    ServiceNotAvailable,
    TopicNotFound,
)
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command

CLASS_OF_CODE: dict[int, type[RequestRejected]] = {
    ResponseCode.SYSTEM_BUSY: Busy,
    ResponseCode.MESSAGE_ILLEGAL: MessageIllegal,
    ResponseCode.SERVICE_NOT_AVAILABLE: ServiceNotAvailable,
    ResponseCode.NO_PERMISSION: NotPermitted,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.PULL_OFFSET_MOVED: OffsetOutOfRange,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.INVALID_PARAMETER: BadRequest,
    ResponseCode.FLOW_CONTROL: Busy,
    ResponseCode.GO_AWAY: ServiceNotAvailable,
    ResponseCode.CONTROLLER_NOT_LEADER: NotLeader,
}

NOT_SERVED_TAG: Final = "[REJECTREQUEST]"
"""The prefix of a SYSTEM_BUSY remark from a slave, or from a master without room (spec semantics 4)."""

_NO_QUEUE_CODES: Final = frozenset({ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR})
_NO_QUEUE: Final = re.compile(r"(request )?queueId(\[-?\d+\] is illegal| -?\d+ is outside )")
"""The beginning of the remark about a queue beyond the topic's queues, from RocketMQ's brokers and from ours:
the codes alone have many reasons.
"""


def to_error(command: Command) -> RequestRejected:
    """Returns the error for a refusing response; its code is kept."""
    rejected = CLASS_OF_CODE.get(command.code, RequestRejected)
    remark = command.remark or _describe(command.code)
    if rejected is Busy and remark.startswith(NOT_SERVED_TAG):
        rejected = NotServed
    elif command.code in _NO_QUEUE_CODES and _NO_QUEUE.match(remark):
        rejected = QueueNotFound
    return rejected(remark, code=command.code)


def _describe(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"response code {code}"
