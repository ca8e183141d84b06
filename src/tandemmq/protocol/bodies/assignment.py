"""Server-side assignment: QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE, messageRequestMode.json (spec remoting
11.13, spec replication 6.2).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, MessageQueue, decode_body, encode_body, enum_names
from tandemmq.protocol.command import Buffer

PULL = "PULL"
POP = "POP"
ModeName = Annotated[str, enum_names(PULL, POP)]


class AssignmentQuery(Body, frozen=True, kw_only=True):
    """What a client asks: its queues of one topic."""

    client_id: str = field(name="clientId", default="")
    group: str = field(name="consumerGroup", default="")
    message_model: Annotated[str, enum_names("BROADCASTING", "CLUSTERING")] = field(
        name="messageModel", default="CLUSTERING"
    )
    strategy_name: str = field(name="strategyName", default="AVG")
    topic: str = ""


class QueueAssignment(Body, frozen=True, kw_only=True):
    """One queue and how to consume it; queue id -1 with POP: all queues of that broker."""

    queue: MessageQueue = field(name="messageQueue", default=MessageQueue())
    mode: ModeName = PULL


class Assignments(Body, frozen=True, kw_only=True):
    """The answer to QUERY_ASSIGNMENT. None: the client keeps what it has."""

    queues: list[QueueAssignment] | None = field(name="messageQueueAssignments", default=None)


class RequestMode(Body, frozen=True, kw_only=True):
    """How a group consumes a topic; also the body of SET_MESSAGE_REQUEST_MODE."""

    group: str = field(name="consumerGroup", default="")
    mode: ModeName = PULL
    pop_share_queue_count: int = field(name="popShareQueueNum", default=0)
    topic: str = ""


class RequestModes(Body, frozen=True, kw_only=True):
    """topic -> group -> mode: messageRequestMode.json and the answer to 402."""

    modes: dict[str, dict[str, RequestMode]] = field(name="messageRequestModeMap", default_factory=dict)


def encode_assignment_query(query: AssignmentQuery) -> bytes:
    return encode_body(query)


def decode_assignment_query(data: Buffer) -> AssignmentQuery:
    return decode_body(data, AssignmentQuery)


def encode_assignments(assignments: Assignments) -> bytes:
    return encode_body(assignments)


def decode_assignments(data: Buffer) -> Assignments:
    return decode_body(data, Assignments)


def encode_request_mode(mode: RequestMode) -> bytes:
    return encode_body(mode)


def decode_request_mode(data: Buffer) -> RequestMode:
    return decode_body(data, RequestMode)


def encode_request_modes(modes: RequestModes) -> bytes:
    return encode_body(modes)


def decode_request_modes(data: Buffer) -> RequestModes:
    return decode_body(data, RequestModes)
