"""One term of a broker's role in an elected group: the objects passed to the broker for it, and the parts
that are composed anew with it.

A `Broker` has one role for its lifetime; when the controllers decide on another one, it is stopped and a new
one is composed over the same open store. `Term` holds the objects that outlive it. The routes of a term
define which requests a fenced master refuses and a slave forwards. `ElectedReplica` is the term's own part of
the replication.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.api.broker_admin import delete_topic
from tandemmq.broker.autoswitch.forwarding import FORWARDED, Forwarding
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.replica.ha_status import describe_master, describe_slave, lag_seconds
from tandemmq.broker.replica.replica import GroupReplica
from tandemmq.errors import ClientError, ServiceNotAvailable, TandemError
from tandemmq.protocol.bodies.replica import HaClient, HaStatus
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import BlockRoute, Handler, Waiting
from tandemmq.remoting.server import RemotingServer
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.shell import MasterStatus, ReplicationSlaveStatus
from tandemmq.replication.shell.autoswitch import AutoSwitchReplication
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
"""An operator's changes of topics and groups: answered only when the next master has them, too."""

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
"""Requests that two masters of one group must never both serve. Pulls continue, and commit nothing.

An acknowledgement of a pop is answered SUCCESS even if slaves did not confirm it in time, so a fenced master
would promise what its successor does not know.
"""


READS: Final = frozenset(
    (
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.PEEK_MESSAGE,
        Code.QUERY_MESSAGE,
        Code.VIEW_MESSAGE_BY_ID,
        Code.QUERY_CONSUMER_OFFSET,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME,
    )
)
"""Reads that clients make at a slave. A broker of another group has that group's messages at the same
offsets.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """The objects of a term that outlive its `Broker`.

    `epoch`: the master's epoch; 0 before the first one is known. `may_write`: returns True if a master may
    currently serve `WRITES`. `role_fault`: returns the reason why the broker does not act in a role; empty if
    it does. `routes`: requests about the role itself. `copying`: the log replication, in any
    role. `mismatch`: returns the reason why the controllers' record or the master does not match this
    history, empty while they agree. `foreign`: returns the reason why this broker may belong to another
    group, empty if it does not. `unsaved_tables`: tables that the previous term's broker could not write, for
    example on a full disk, by path. `servers`: the ports, by number, with the connections that are kept.
    """

    epoch: int
    store: MessageStore
    client: RemotingClient
    ha_address: Address
    may_write: Callable[[], bool]
    role_fault: Callable[[], str]
    routes: dict[int, Handler]
    copying: AutoSwitchReplication
    mismatch: Callable[[], str]
    foreign: Callable[[], str]
    unsaved_tables: Mapping[Path, bytes]
    forwarding: Forwarding
    servers: dict[int, RemotingServer]


def copied_routes(
    routes: Mapping[int, Handler], wait_copied: Callable[[], Awaitable[None]]
) -> dict[int, Handler]:
    """Returns the same routes; those of `TABLE_CHANGES` are answered after `wait_copied` has returned."""

    def copied(handler: Handler) -> Handler:
        async def handle(channel: Channel, command: Command) -> Command | None:
            answer = handler(channel, command)
            reply = answer if answer is None or isinstance(answer, Command) else await answer
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                await wait_copied()
            return reply

        return handle

    return {code: copied(handler) if code in TABLE_CHANGES else handler for code, handler in routes.items()}


def _gated_routes(
    routes: Mapping[int, Handler], codes: frozenset[Code], is_open: Callable[[], bool], otherwise: Handler
) -> dict[int, Handler]:
    """Returns the same routes; requests of `codes` go to `otherwise` while `is_open` returns False."""

    def gate(handler: Handler) -> Handler:
        def gated(channel: Channel, command: Command) -> Command | Waiting | None:
            return (handler if is_open() else otherwise)(channel, command)

        return gated

    return {code: gate(handler) if code in codes else handler for code, handler in routes.items()}


def forwarded_routes(routes: Mapping[int, Handler], forwarding: Forwarding) -> dict[int, Handler]:
    """Returns the routes of a slave; those of `FORWARDED` are forwarded to the master while `forwarding` is
    open.
    """
    return _gated_routes(routes, FORWARDED, lambda: not forwarding.is_open, forwarding.accept)


def verified_routes(routes: Mapping[int, Handler], foreign: Callable[[], str]) -> dict[int, Handler]:
    """Returns the routes of a slave; those of `READS` are refused while it may belong to another group."""

    def refuse(_channel: Channel, _command: Command) -> Command:
        raise ServiceNotAvailable(f"this broker serves no reads: {foreign()}")

    return _gated_routes(routes, READS, lambda: not foreign(), refuse)


def fenced_routes(
    routes: Mapping[int, Handler], may_write: Callable[[], bool], forwarding: Forwarding
) -> dict[int, Handler]:
    """Returns the same routes; those of `WRITES` are refused while the master may not write. During a change
    of master, `forwarding` accepts those that it can.
    """

    def forward(channel: Channel, command: Command) -> None:
        if command.code not in FORWARDED or not forwarding.is_open:
            raise ServiceNotAvailable(
                "this master is fenced: it has neither a lease of the controllers nor leases of all"
                " in-sync slaves, so another master may have been elected"
            )
        forwarding.accept(channel, command)

    fenced = _gated_routes(routes, WRITES, may_write, forward)

    def fence_block(code: int, route: BlockRoute) -> BlockRoute:
        return BlockRoute(fenced[code], lambda channel, frames: may_write() and route.take(channel, frames))

    blocks = {code: fence_block(code, one) for code, one in routes.items() if isinstance(one, BlockRoute)}
    return fenced | blocks


def refused_writes(routes: Mapping[int, Handler], refusal: Callable[[], TandemError]) -> dict[int, Handler]:
    """Returns the routes of `routes` that are in `WRITES`, each refused."""

    def refuse(_channel: Channel, _command: Command) -> Command:
        raise refusal()

    return {code: refuse for code in routes if code in WRITES}


FOLLOWED: Final = ""
"""The value of `followed` while a master is known: the master is identified by its address alone, which is
set in each term.
"""


class ElectedReplica(GroupReplica):
    """The part of one term in the group's replication: copies the master's tables, and answers other
    replicas.

    The log replication outlives a role change; it is in `replication.shell.autoswitch`.
    Invariants: tables are copied only from the master of the newest known term, and never replaced by older
                ones.
    Source:     spec controller 3.6, 10.14.
    """

    def __init__(
        self,
        core: BrokerCore,
        options: ReplicationOptions,
        on_fatal: Callable[[BaseException], None],
        term: Term,
    ) -> None:
        super().__init__(core, options, on_fatal, elected_id=core.options.broker_id)
        self._copying = term.copying
        self._mismatch = term.mismatch
        self.forward_deletion = self._forward_deletion
        # State that was reported for the previous log must be reported again.
        term.copying.on_following = self.config_sync.begin_copy

    def start(self) -> None:
        self._start()

    def set_master(self, address: str | None) -> None:
        """Sets the master whose tables are copied from now on; None stops copying."""
        self.config_sync.set_master(address)
        if address is not None:
            self._store.deletions.begin_copy()
            self.config_sync.begin_copy()

    async def _forward_deletion(self, topic: str) -> None:
        """Asks the master to delete the topic. Raises ServiceNotAvailable if none is known or it does not
        answer; RequestRejected.
        """
        master = self.master
        if master is None:
            raise ServiceNotAvailable(f"no master is known to delete the topic {topic}")
        try:
            await delete_topic(self._client, master, topic, is_passed_on=True)
        except ClientError as error:
            raise ServiceNotAvailable(f"the master {master} does not answer: {error}") from error

    async def wait_copied(self) -> None:
        """Waits until every slave that may be elected has the current tables. Raises Busy."""
        await self._table_change_server.wait_held(lambda: self._copying.required or ())

    def has_tables(self, broker_id: int) -> bool:
        """Returns True if a slave holds the current topics and groups."""
        return self._table_change_server.holds(broker_id)

    @property
    def master(self) -> str | None:
        return self.config_sync.master

    def _followed(self) -> str | None:
        return FOLLOWED if self.config_sync.master is not None else None

    async def _copies(self) -> list[str]:
        return [] if self.master is None else [self.master]

    # The state of replication, for reports.

    def master_status(self) -> MasterStatus | None:
        return None if self._is_slave else self._copying.master_status()

    def slave_status(self) -> ReplicationSlaveStatus | None:
        return self._copying.slave_status() if self._is_slave else None

    @property
    def is_caught_up(self) -> bool:
        """True on a slave that holds what its master had when the connection began."""
        return self._copying.is_caught_up

    @property
    def history_mismatch(self) -> str:
        """The reason why the controllers' record or the master does not match this history; empty while they
        agree.
        """
        return self._mismatch()

    @property
    def history_differed_count(self) -> int:
        """The number of times that a master's log had a different history under equal terms."""
        return self._copying.history_differed_count

    def status(self) -> HaStatus:
        """Returns the state; between two terms it has an end, and no copy.

        A slave names its master by the address at which tools can reach it, as soon as one is elected.
        """
        end, now_ms = self._store.max_log_offset, self._clock.now_ms()
        if not self._is_slave:
            status = self._copying.master_status()
            if status is None:
                return HaStatus(is_master=True, max_log_offset=end, in_sync_count=0, connections=())
            return describe_master(status, lambda held: lag_seconds(self._store, held, now_ms))
        copy = self._copying.slave_status()
        client = HaClient(max_log_offset=end) if copy is None else describe_slave(copy).client
        return HaStatus(
            is_master=False, client=msgspec.structs.replace(client, master_address=self.master or "")
        )
