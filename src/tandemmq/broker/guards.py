"""Checks shared by handlers. Each raises the documented code with a remark that says what is allowed."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TypeVar

from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import (
    BadRequest,
    GroupNotFound,
    RemoteProtocolError,
    RequestRejected,
    TandemError,
    TopicNotFound,
)
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.topic_names import group_fault
from tandemmq.remoting.channel import Channel
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)

T = TypeVar("T")


def invalid(remark: str) -> BadRequest:
    """Returns a rejection with INVALID_PARAMETER (29), the code of brokers since 5.3.2 (spec semantics
    26).
    """
    return BadRequest(remark, code=ResponseCode.INVALID_PARAMETER)


def require_topic(topics: TopicTable, name: str) -> TopicConfig:
    """Returns the topic's configuration. Raises TopicNotFound."""
    config = topics.get(name)
    if config is None:
        raise TopicNotFound(f"the topic {name[:160]!r} does not exist on this broker")
    return config


def require_group(groups: GroupTable, name: str, now_ms: int, host: str) -> SubscriptionGroupConfig:
    """Returns the group's configuration. A missing group is created if autoCreateSubscriptionGroup allows it;
    `host` is the address that uses it.

    Raises:  GroupNotFound, saying whether the name or the setting is the reason; NotPermitted when `host` has
            created too many (`CreationQuota`).
    """
    config = groups.find_or_create(name, now_ms, host)
    if config is None:
        fault = group_fault(name) or "it must be created first: groups are not made by use on this broker"
        raise GroupNotFound(f"the group {name[:160]!r} does not exist: {fault}")
    return config


def require_queue(config: TopicConfig, queue_id: int, *, queue_count: int) -> None:
    """Raises BadRequest when the queue id is outside the topic's queues."""
    if not 0 <= queue_id < queue_count:
        raise invalid(f"queueId {queue_id} is outside 0..{queue_count - 1} of the topic {config.name}")


async def drop_or_reject(store: MessageStore, topics: Collection[str]) -> None:
    """Deletes the queues of topics. Raises RequestRejected if that cannot be written; nothing has changed
    then.
    """
    try:
        await store.deletions.drop(topics)
    except OSError as error:
        raise RequestRejected(f"the deletion cannot be written: {error.strerror or error}") from error


def read_body(shape: type[T], body: Buffer) -> T:
    """Returns the typed body of a request. Raises BadRequest; the frame was valid, so the connection stays
    open.
    """
    try:
        return decode_body(body, shape)
    except RemoteProtocolError as error:
        raise BadRequest(f"the body cannot be read: {error}") from None


def answer_failure(
    stats: BrokerStats, channel: Channel, command: Command, topic: str, error: TandemError | OSError
) -> None:
    """Answers a held pull or pop that was rejected, or that the store failed to serve."""
    if isinstance(error, RequestRejected):
        code, remark = error.code, error.remark
    else:
        code, remark = ResponseCode.SYSTEM_ERROR, f"the store: {error}"
        log.warning(events.PULL_FAILED, extra={"topic": topic, "reason": str(error)})
    stats.count_pull_ending(code)
    channel.send(command.reply(code, remark=remark))
