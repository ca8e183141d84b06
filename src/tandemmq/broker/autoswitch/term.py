"""What the broker of an elected group is given for one term of its role, and what a fenced master refuses.

A `Broker` has one role as long as it lives; when the controllers decide another one, it is stopped and a new
one is composed over the same open store. What outlives it is in `Term`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.errors import ServiceNotAvailable
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler, Waiting
from tandemmq.replication.shell.autoswitch import AutoSwitch
from tandemmq.runtime.ports import Address
from tandemmq.store.message_store import MessageStore

TABLE_CHANGES: Final = frozenset(
    (
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.DELETE_SUBSCRIPTIONGROUP,
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
    )
)
"""What an operator changes in topics and groups: answered when the next master has it, too."""

WRITES: Final = TABLE_CHANGES | frozenset(
    (
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.RECALL_MESSAGE,
        Code.END_TRANSACTION,
        Code.RESUME_CHECK_HALF_MESSAGE,
        Code.POP_MESSAGE,
        Code.ACK_MESSAGE,
        Code.BATCH_ACK_MESSAGE,
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        Code.POP_ROLLBACK,
        Code.UPDATE_CONSUMER_OFFSET,
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.CLONE_GROUP_OFFSET,
        Code.SET_MESSAGE_REQUEST_MODE,
        Code.LOCK_BATCH_MQ,
        Code.CLEAN_UNUSED_TOPIC,
    )
)
"""What two masters of one group must never both do. Pulls go on, and commit nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """`epoch`: of the master; 0 before the first one is known. `may_write`: whether a master may serve
    `WRITES` at this moment. `routes`: requests about the role itself. `copying`: the copy of the log, whoever
    is master. `unsaved_tables`: what the broker of the term before could not write, say on a full disk, by
    path."""

    epoch: int
    store: MessageStore
    client: RemotingClient
    ha_address: Address
    may_write: Callable[[], bool]
    routes: dict[int, Handler]
    copying: AutoSwitch
    unsaved_tables: Mapping[Path, bytes]


def copied_routes(
    routes: Mapping[int, Handler], wait_copied: Callable[[], Awaitable[None]]
) -> dict[int, Handler]:
    """The same codes; those of `TABLE_CHANGES` are answered when `wait_copied` has returned."""

    def copied(handler: Handler) -> Handler:
        async def handle(channel: Channel, command: Command) -> Command | None:
            answer = handler(channel, command)
            told = answer if answer is None or isinstance(answer, Command) else await answer
            if told is not None and told.code == ResponseCode.SUCCESS:
                await wait_copied()
            return told

        return handle

    return {code: copied(handler) if code in TABLE_CHANGES else handler for code, handler in routes.items()}


def fenced_routes(routes: Mapping[int, Handler], may_write: Callable[[], bool]) -> dict[int, Handler]:
    """The same codes; those of `WRITES` are refused while the master may not write."""

    def fence(handler: Handler) -> Handler:
        def fenced(channel: Channel, command: Command) -> Command | Waiting | None:
            if not may_write():
                raise ServiceNotAvailable(
                    "this master is fenced: it has neither a lease of the controllers nor news of all in-sync"
                    " slaves, another one may have been elected"
                )
            return handler(channel, command)

        return fenced

    return {code: fence(handler) if code in WRITES else handler for code, handler in routes.items()}
