"""The word on which a broker of an elected group acts: that of the controllers, and that of its replicas.

`Controllers` and `Heartbeats` talk with the controllers; `MasterLease` is how long a master may go on by what
they answered. `Vouches` and `Promise` are the two sides of what slaves promise their master.
Source: spec controller 2.1, 3.4, 10.5, 10.6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from tandemmq.api import controller as api
from tandemmq.api.controller import ControllerHeartbeat, MasterFacts, vouch
from tandemmq.broker.autoswitch.identity import GroupIdentity
from tandemmq.broker.options import ElectionOptions
from tandemmq.errors import ClientError, NotLeader, RequestRejected, TandemError
from tandemmq.protocol.bodies.replica import SyncStateSetAnswer
from tandemmq.protocol.requests.controller import (
    AlterSyncStateSetRequest,
    ElectMasterRequest,
    RegisterReplicaRequest,
    VouchRequest,
    VouchResponse,
)
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

# The controllers as a broker knows them: who leads, questions to the leader, a heartbeat to each of them.
#
# Strategy: every controller has a task and a connection of its own, so that one that is silent holds up no
#           other. Whoever leads next has heard the broker already. A question to a controller that does not
#           lead any more is put to its successor; one whose answer was lost is not put again: the caller must
#           know that its outcome is unknown.
# Bounds:   one heartbeat under way per controller.


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
        group: GroupIdentity,
    ) -> None:
        self.leader: str | None = None
        """The leader of the last answer; None: to be asked for."""
        self._group = group
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
                self._client, leader, self._cluster, self._name, broker_id, check_code, self._group.group_id
            )
        )

    async def register(self, header: RegisterReplicaRequest) -> MasterFacts:
        """Tell that this broker has started, where, and with which history."""
        return await self._ask_master(
            lambda leader: api.register_at_controller(self._client, leader, header, self._clock.now_ms())
        )

    async def elect(self, broker_id: int) -> MasterFacts:
        """Ask for a master: this broker, if no better one is known."""
        header = ElectMasterRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=broker_id,
            is_designated=False,
            group_id=self._group.group_id,
        )
        return await self._ask_master(
            lambda leader: api.elect_master(self._client, leader, header, self._clock.now_ms())
        )

    async def elect_successor(self, target: int, master_epoch: int) -> MasterFacts:
        """Ask for this master, who has stopped accepting anything under `master_epoch`."""
        header = ElectMasterRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=target,
            is_designated=True,
            group_id=self._group.group_id,
        )
        return await self._ask_master(
            lambda leader: api.elect_successor(
                self._client, leader, header, self._clock.now_ms(), master_epoch=master_epoch
            )
        )

    async def read_master(self) -> MasterFacts:
        return await self._ask_master(
            lambda leader: api.read_master(self._client, leader, self._name, self._group.group_id)
        )

    async def alter_set(
        self, broker_id: int, master_epoch: int, ids: Iterable[int], set_epoch: int
    ) -> SyncStateSetAnswer:
        """The group's set from now on; `set_epoch` is that of the set which it replaces."""
        header = AlterSyncStateSetRequest(
            broker_name=self._name,
            master_id=broker_id,
            master_epoch=master_epoch,
            group_id=self._group.group_id,
        )
        wanted = SyncStateSetAnswer(ids=tuple(sorted(ids)), epoch=set_epoch)
        return await self._ask(
            lambda leader: api.alter_sync_set(self._client, leader, header, wanted, self._clock.now_ms())
        )

    async def _ask_master(self, question: Callable[[str], Awaitable[MasterFacts]]) -> MasterFacts:
        """The same, of an answer that tells the group: it is that of this broker, and kept on disk.

        Raises:  ForeignGroup; what `_ask` raises.
        """
        facts = await self._ask(question)
        await self._group.learn(facts.group_id, f"the controller {self.leader}")
        return facts

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
        on_answer: Callable[[ControllerHeartbeat, float], None],
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


class MasterLease:
    """How long a master may go on, on the word of the controllers, counted from when it asked for it."""

    def __init__(self) -> None:
        self._end_s = float("-inf")
        self._asked_from_s = float("-inf")
        self.is_needed = False
        """Whether the controllers grant leases: those of RocketMQ do not."""

    def extend(self, sent_s: float, lease_ms: int) -> None:
        self.is_needed = True
        if sent_s >= self._asked_from_s:
            self._end_s = max(self._end_s, sent_s + lease_ms / 1000)

    def end(self, now_s: float) -> None:
        """What was asked for before now is worth nothing, also when its answer comes later."""
        self._end_s = float("-inf")
        self._asked_from_s = now_s

    def is_valid(self, now_s: float) -> bool:
        return now_s < self._end_s


# Vouches: a master may go on without a lease while all other members of its set promise to stay slaves.
#
# Strategy:   each slave asks its master again and again, and brings back the token of the answer before.
#             While the master is short of a lease it says so; from then on each question is a promise not to
#             take office for PROMISE_S, made when it was sent. The master counts it from when it gave the
#             token out, which was before that: so neither a stall nor a network that delivers late makes an
#             old promise look new. While controllers grant leases nobody promises anything, and elections
#             wait for nobody.
# Invariants: what a master counts ends before the promise does, if clock rates differ by less than 5 %.

COUNTED_S: Final = 1.2
"""As long as a lease."""
PROMISE_S: Final = 1.33
TIMEOUT_S: Final = 0.5
TOKENS_PER_S: Final = 1_000_000


class Vouches:
    """A master's: who stays its slave, and since when that is certain."""

    def __init__(self) -> None:
        self._begun_s = float("inf")
        self._heard: dict[int, tuple[float, Channel]] = {}

    def begin_term(self, now_s: float) -> None:
        """What was promised to an earlier master counts for nothing."""
        self._begun_s = now_s
        self._heard.clear()

    def hear(self, broker_id: int, token: int, channel: Channel, now_s: float) -> None:
        """A promise; a token that this term has not given out is none."""
        since_s = token / TOKENS_PER_S
        if not self._begun_s <= since_s <= now_s:
            return
        before = self._heard.get(broker_id)
        if before is None or before[1] is not channel:
            # A process that has ended keeps no promise.
            channel.on_close.append(lambda gone: self._forget(broker_id, gone))
        self._heard[broker_id] = since_s, channel

    def _forget(self, broker_id: int, channel: Channel) -> None:
        heard = self._heard.get(broker_id)
        if heard is not None and heard[1] is channel:
            del self._heard[broker_id]

    def have_all(self, ids: Iterable[int], now_s: float) -> bool:
        """Whether each of these keeps a promise still."""
        return all(one in self._heard and self._heard[one][0] >= now_s - COUNTED_S for one in ids)

    @staticmethod
    def new_token(now_s: float) -> int:
        """The moment, rounded down."""
        return int(now_s * TOKENS_PER_S)


class Promise:
    """A slave's: until when it must not take office."""

    def __init__(self, *, client: RemotingClient, clock: Clock, period_s: float) -> None:
        self._client = client
        self._clock = clock
        self._period_s = period_s
        self._until_s = float("-inf")

    async def wait(self) -> None:
        """Returns when nothing is promised."""
        rest_s = self._until_s - self._clock.monotonic()
        if rest_s > 0:
            await self._clock.sleep(rest_s)

    async def keep(self, address: str, make: Callable[[int | None], VouchRequest]) -> None:
        """Never returns: tells the master at `address` again and again that this broker is its slave."""
        token: int | None = None
        while True:
            begun_s = self._clock.monotonic()
            if token is not None:
                self._until_s = max(self._until_s, begun_s + PROMISE_S)
            answer: VouchResponse | None = None
            try:
                answer = await vouch(self._client, address, make(token), timeout_s=TIMEOUT_S)
            except (ClientError, RequestRejected):
                pass  # nobody is there, or it serves another term
            is_first = token is None
            token = None if answer is None or not answer.is_wanted else answer.token
            if token is not None and is_first:
                continue
            await self._clock.sleep(max(0.0, begun_s + self._period_s - self._clock.monotonic()))
