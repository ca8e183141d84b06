"""The controllers as a broker knows them: who leads, questions to the leader, a heartbeat to each of them.

Strategy: every controller has a task and a connection of its own, so that one that is silent holds up no
          other. Whoever leads next has heard the broker already. A question to a controller that does not
          lead any more is put to its successor; one whose answer was lost is not put again: the caller must
          know that its outcome is unknown.
Bounds:   one heartbeat under way per controller.
Source:   spec controller 2.1, 3.4, 10.5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from tandemmq.api import controller as api
from tandemmq.api.controller import HeartbeatAnswer, MasterFacts
from tandemmq.broker.autoswitch.options import ElectionOptions
from tandemmq.errors import ClientError, NotLeader, TandemError
from tandemmq.protocol.bodies.replica import SyncStateSet
from tandemmq.protocol.requests.controller import (
    AlterSyncStateSetRequest,
    ElectMasterRequest,
    RegisterBrokerRequest,
)
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOKUP_TIMEOUT_S: Final = 0.5
"""Of one controller; the next one is asked then."""
OTHERS_PERIOD_S: Final = 1.0
"""RocketMQ's controllers of one kind write each heartbeat into their log: they get its usual number."""


class Controllers:
    """Questions to the leader about one broker. An `IdGiver`."""

    def __init__(
        self,
        options: ElectionOptions,
        *,
        cluster: str,
        name: str,
        address: str,
        client: RemotingClient,
        clock: Clock,
    ) -> None:
        self.leader: str | None = None
        """Who led when that was asked last; None: to be asked."""
        self._addresses = options.controllers
        self._cluster = cluster
        self._name = name
        self._address = address
        self._client = client
        self._clock = clock

    async def next_id(self) -> int:
        return await self._ask(
            lambda leader: api.next_broker_id(self._client, leader, self._cluster, self._name)
        )

    async def apply_id(self, broker_id: int, check_code: str) -> None:
        await self._ask(
            lambda leader: api.apply_broker_id(
                self._client, leader, self._cluster, self._name, broker_id, check_code
            )
        )

    async def register(self, broker_id: int, *, is_incomplete: bool) -> MasterFacts:
        """Tell that this broker has started, and where; `is_incomplete`: its log may have lost its end."""
        header = RegisterBrokerRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=broker_id,
            broker_address=self._address,
            is_incomplete=is_incomplete or None,
        )
        return await self._ask(
            lambda leader: api.register_at_controller(self._client, leader, header, self._clock.now_ms())
        )

    async def elect(self, broker_id: int) -> MasterFacts:
        """Ask for a master: this broker, if no better one is known."""
        header = ElectMasterRequest(
            cluster_name=self._cluster, broker_name=self._name, broker_id=broker_id, is_designated=False
        )
        return await self._ask(
            lambda leader: api.elect_master(self._client, leader, header, self._clock.now_ms())
        )

    async def elect_successor(self, target: int, master_epoch: int) -> MasterFacts:
        """Ask for this master, who has stopped accepting anything under `master_epoch`."""
        header = ElectMasterRequest(
            cluster_name=self._cluster, broker_name=self._name, broker_id=target, is_designated=True
        )
        return await self._ask(
            lambda leader: api.elect_successor(
                self._client, leader, header, self._clock.now_ms(), master_epoch=master_epoch
            )
        )

    async def read_master(self) -> MasterFacts:
        return await self._ask(lambda leader: api.read_master(self._client, leader, self._name))

    async def alter_set(
        self, broker_id: int, master_epoch: int, ids: Iterable[int], set_epoch: int
    ) -> SyncStateSet:
        """The group's set from now on; `set_epoch` is that of the set which it replaces."""
        header = AlterSyncStateSetRequest(
            broker_name=self._name, master_id=broker_id, master_epoch=master_epoch
        )
        wanted = SyncStateSet(ids=tuple(sorted(ids)), epoch=set_epoch)
        return await self._ask(
            lambda leader: api.alter_sync_set(self._client, leader, header, wanted, self._clock.now_ms())
        )

    async def _ask(self, question: Callable[[str], Awaitable[T]]) -> T:
        """The leader's answer.

        Raises:  NotLeader when none is found; RequestRejected; ClientError: it is not known what came of it.
        """
        for is_last in (False, True):
            leader = self.leader or await self._find_leader()
            try:
                answer = await question(leader)
            except NotLeader:
                self.leader = None
                if is_last:
                    raise
            except ClientError:
                self.leader = None
                raise
            else:
                self.leader = leader
                return answer
        raise AssertionError("unreachable")

    async def _find_leader(self) -> str:
        reasons = []
        for address in self._addresses:
            try:
                return await api.find_leader(self._client, address, timeout_s=LOOKUP_TIMEOUT_S)
            except TandemError as error:
                reasons.append(f"{address}: {error}")
        raise NotLeader(f"no controller leads: {'; '.join(reasons)}")


class Heartbeats:
    """One task per controller."""

    def __init__(
        self,
        options: ElectionOptions,
        *,
        make: Callable[[], BrokerHeartbeatRequest],
        on_answer: Callable[[HeartbeatAnswer, float], None],
        client: RemotingClient,
        clock: Clock,
        scope: TaskScope,
    ) -> None:
        """`on_answer` gets each answer, and when its question was sent, by the monotonic clock."""
        self._options = options
        self._make = make
        self._on_answer = on_answer
        self._client = client
        self._clock = clock
        self._scope = scope
        self._wakes = {address: asyncio.Event() for address in dict.fromkeys(options.controllers)}

    def start(self) -> None:
        for address, wake in self._wakes.items():
            self._scope.start(f"heartbeat-{address}", self._run(address, wake))

    def soon(self) -> None:
        """Something has changed that the controllers should know, or have an answer to."""
        for wake in self._wakes.values():
            wake.set()

    async def _run(self, address: str, wake: asyncio.Event) -> None:
        """Never returns."""
        is_heard = True
        while True:
            wake.clear()
            sent_s = self._clock.monotonic()
            period_s = self._options.heartbeat_ms / 1000
            try:
                timeout_s = self._options.heartbeat_timeout_ms / 1000
                answer = await api.beat(self._client, address, self._make(), timeout_s=timeout_s)
                if answer.master_epoch is None:
                    period_s = max(period_s, OTHERS_PERIOD_S)
                self._on_answer(answer, sent_s)
                if not is_heard:
                    log.info(events.CONTROLLER_REACHED, extra={"address": address})
                is_heard = True
            except TandemError as error:
                if is_heard:
                    facts = {"address": address, "reason": str(error)}
                    log.warning(events.CONTROLLER_UNREACHABLE, extra=facts)
                is_heard = False
            rest_s = sent_s + period_s - self._clock.monotonic()
            timer = self._clock.call_later(max(0.0, rest_s), wake.set)
            try:
                await wake.wait()
            finally:
                timer.cancel()


class Lease:
    """How long a master may go on, on the word of the controllers, counted from when it asked for it."""

    def __init__(self) -> None:
        self._end_s = float("-inf")
        self.is_needed = False
        """Whether the controllers grant leases: those of RocketMQ do not."""

    def extend(self, sent_s: float, lease_ms: int) -> None:
        self.is_needed = True
        self._end_s = max(self._end_s, sent_s + lease_ms / 1000)

    def end(self) -> None:
        self._end_s = float("-inf")

    def is_valid(self, now_s: float) -> bool:
        return now_s < self._end_s
