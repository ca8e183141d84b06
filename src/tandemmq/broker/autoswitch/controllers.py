"""The authority on which a broker of an elected group acts: the controllers' answers, and leases from its
replicas.

`Controllers` and `Heartbeats` talk to the controllers; `MasterLease` is the time for which a master may
continue after their last answer. `PeerLeases` is a master's side of the leases that its slaves grant to it,
`PeerLeaseHolder` the slave's side, which holds to a granted lease.
Source:  spec controller 2.1, 3.4, 10.5, 10.6.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol, TypeVar

from tandemmq.api import controller as api
from tandemmq.api.controller import ControllerHeartbeat, MasterFacts, send_peer_lease
from tandemmq.broker.autoswitch.identity import GroupIdentity
from tandemmq.broker.options import ElectionOptions
from tandemmq.errors import ClientError, NotLeader, RequestRejected, TandemError
from tandemmq.protocol.bodies.replica import SyncStateSetAnswer
from tandemmq.protocol.requests import controller as requests
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope, TimedEvent
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

# The controllers as seen by a broker: the leader, requests to the leader, and a heartbeat to each controller.
#
# Strategy: every controller has its own task and connection, so that a silent one does not delay the others.
#           Each of them hears the broker's heartbeats, so the next leader already knows the broker. A request
#           to a controller that is no longer the leader is repeated at its successor. A request whose answer
#           was lost is not repeated: the caller must know that its outcome is unknown.
# Bounds:   one heartbeat in flight per controller.


T = TypeVar("T")

LOOKUP_TIMEOUT_S: Final = 0.5
"""The time limit for asking one controller for the leader; then the next one is asked."""
OTHERS_PERIOD_S: Final = 1.0
"""The heartbeat period towards RocketMQ's controllers. One kind of them writes each heartbeat into its log,
so they get the usual number.
"""


@dataclass
class Controllers:
    """Requests about one broker to the leader of the controllers. An `IdGiver`."""

    options: ElectionOptions
    _: KW_ONLY
    cluster: str
    name: str
    client: RemotingClient
    clock: Clock
    group: GroupIdentity
    leader: str | None = None
    """The leader that sent the last answer; None if it must be looked up."""

    async def next_id(self) -> int:
        return await self._call_leader(
            lambda leader: api.next_broker_id(self.client, leader, self.cluster, self.name)
        )

    async def apply_id(self, broker_id: int, check_code: str) -> None:
        await self._call_leader(
            lambda leader: api.apply_broker_id(
                self.client, leader, self.cluster, self.name, broker_id, check_code, self.group.group_id
            )
        )

    async def register(self, header: requests.RegisterReplicaRequest) -> MasterFacts:
        """Registers this broker: that it has started, its address and its history."""
        return await self._call_for_master(
            lambda leader: api.register_at_controller(self.client, leader, header, self.clock.now_ms())
        )

    async def elect(self, broker_id: int) -> MasterFacts:
        """Asks for the election of a master: this broker, unless a better one is known."""
        header = self._election_of(broker_id)
        return await self._call_for_master(
            lambda leader: api.elect_master(self.client, leader, header, self.clock.now_ms())
        )

    async def elect_successor(self, target: int, master_epoch: int) -> MasterFacts:
        """Asks for the election of `target`. This master has stopped accepting writes under
        `master_epoch`.
        """
        header = self._election_of(target, is_designated=True)
        return await self._call_for_master(
            lambda leader: api.elect_successor(
                self.client, leader, header, self.clock.now_ms(), master_epoch=master_epoch
            )
        )

    def _election_of(self, broker_id: int, *, is_designated: bool = False) -> requests.ElectMasterRequest:
        return requests.ElectMasterRequest(
            cluster_name=self.cluster,
            broker_name=self.name,
            broker_id=broker_id,
            is_designated=is_designated,
            group_id=self.group.group_id,
        )

    async def read_master(self) -> MasterFacts:
        return await self._call_for_master(
            lambda leader: api.read_master(self.client, leader, self.name, self.group.group_id)
        )

    async def alter_set(
        self, broker_id: int, master_epoch: int, ids: Iterable[int], set_epoch: int
    ) -> SyncStateSetAnswer:
        """Asks for a new SyncStateSet; `set_epoch` is the epoch of the set that it replaces."""
        header = requests.AlterSyncStateSetRequest(
            broker_name=self.name,
            master_id=broker_id,
            master_epoch=master_epoch,
            group_id=self.group.group_id,
        )
        target = SyncStateSetAnswer(ids=tuple(sorted(ids)), epoch=set_epoch)
        return await self._call_leader(
            lambda leader: api.alter_sync_set(self.client, leader, header, target, self.clock.now_ms())
        )

    async def _call_for_master(self, request: Callable[[str], Awaitable[MasterFacts]]) -> MasterFacts:
        """Sends a request whose answer names the group. The group must be this broker's; its id is saved on
        disk.

        Raises:  ForeignGroup; the errors of `_call_leader`.
        """
        facts = await self._call_leader(request)
        await self.group.learn(facts.group_id, f"the controller {self.leader}")
        return facts

    async def _call_leader(self, request: Callable[[str], Awaitable[T]]) -> T:
        """Sends a request to the leader and returns its answer.

        Raises:  NotLeader if no leader is found; RequestRejected; ClientError: the outcome is unknown.
        """
        for is_last in (False, True):
            leader = self.leader or await self._find_leader()
            try:
                answer = await request(leader)
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
        for address in self.options.controllers:
            try:
                return await api.find_leader(self.client, address, timeout_s=LOOKUP_TIMEOUT_S)
            except TandemError as error:
                reasons.append(f"{address}: {error}")
        raise NotLeader(f"no controller leads: {'; '.join(reasons)}")


class HeartbeatSender(Protocol):
    """The broker whose state the heartbeats report."""

    def make_heartbeat(self) -> BrokerHeartbeatRequest: ...

    def on_heartbeat_answer(self, answer: ControllerHeartbeat, sent_s: float) -> None:
        """Handles an answer to a heartbeat that was sent at `sent_s`, by the monotonic clock."""


@dataclass(slots=True)
class Heartbeats:
    """The heartbeats to the controllers, one task for each."""

    options: ElectionOptions
    sender: HeartbeatSender
    _: KW_ONLY
    client: RemotingClient
    clock: Clock
    scope: TaskScope
    _wakes: dict[str, TimedEvent] = field(default_factory=dict, init=False)

    def start(self) -> bool:
        """Starts the heartbeats. Returns False if they have started before."""
        if self._wakes:
            return False
        for address in dict.fromkeys(self.options.controllers):  # one of them may be written twice
            wake = self._wakes[address] = TimedEvent(self.clock)
            self.scope.start(f"heartbeat-{address}", self._run(address, wake))
        return True

    def soon(self) -> None:
        """Sends the next heartbeats at once: the state to report has changed, or an answer is needed."""
        for wake in self._wakes.values():
            wake.set()

    async def _run(self, address: str, wake: TimedEvent) -> None:
        """Sends heartbeats to one controller. Never returns."""
        is_reachable = True
        while True:
            wake.clear()
            sent_s = self.clock.monotonic()
            period_s = self.options.heartbeat_ms / 1000
            try:
                timeout_s = self.options.heartbeat_timeout_ms / 1000
                answer = await api.send_controller_heartbeat.within(
                    timeout_s, self.client, address, self.sender.make_heartbeat()
                )
                if answer.master_epoch is None:
                    period_s = max(period_s, OTHERS_PERIOD_S)
                self.sender.on_heartbeat_answer(answer, sent_s)
                if not is_reachable:
                    log.info(events.CONTROLLER_REACHED, extra={"address": address})
                is_reachable = True
            except TandemError as error:
                if is_reachable:
                    facts = {"address": address, "reason": str(error)}
                    log.warning(events.CONTROLLER_UNREACHABLE, extra=facts)
                is_reachable = False
            await wake.wait(sent_s + period_s - self.clock.monotonic())


@dataclass(slots=True)
class MasterLease:
    """A master's lease from the controllers. Its duration counts from the time at which the master asked for
    it.
    """

    is_needed: bool = False
    """True if the controllers grant leases; RocketMQ's controllers do not."""
    _end_s: float = float("-inf")
    _requests_from_s: float = float("-inf")

    def extend(self, sent_s: float, lease_ms: int) -> None:
        self.is_needed = True
        if sent_s >= self._requests_from_s:
            self._end_s = max(self._end_s, sent_s + lease_ms / 1000)

    def end(self, now_s: float) -> None:
        """Ends the lease. A lease that was requested before `now_s` is void, even if its answer arrives
        later.
        """
        self._end_s = float("-inf")
        self._requests_from_s = now_s

    def is_valid(self, now_s: float) -> bool:
        return now_s < self._end_s


# Peer leases: a master may continue without a lease of the controllers while all other members of its set
# grant it leases. By a lease, a slave promises not to become master until the lease ends.
#
# Strategy:   each slave sends a request to its master periodically. If the controllers' lease is about to
#             expire, the master's answer requests a peer lease and carries a token. The slave's next request
#             returns the token and so grants the lease, for HELD_S from the moment of that request. The
#             master counts COUNTED_S from the moment at which it issued the token, which was earlier.
#             Therefore neither a stall nor a slow network can make an old lease look new. While controllers
#             grant leases, slaves grant none, and elections are not delayed.
# Invariants: a lease ends earlier at the master than at the slave, if clock rates differ by less than 5 %.

COUNTED_S: Final = 1.2
"""The duration of a peer lease as the master counts it, which is that of a lease of the controllers."""
HELD_S: Final = 1.33
"""The duration of a peer lease as the slave counts it: the master's plus the difference of clock rates."""
TIMEOUT_S: Final = 0.5
TOKENS_PER_S: Final = 1_000_000
TABLES_S_MAX: Final = 3.0
"""The time after which a slave that does not send TANDEM_VOUCH may be elected; it needs the time to copy the
tables.
"""


class PeerLeases:
    """The master's side: the slaves that granted a lease, and the time from which each lease counts."""

    def __init__(self) -> None:
        self._term_start_s = float("inf")
        self._granted: dict[int, tuple[float, Channel]] = {}
        self._joining_s: dict[int, float] = {}
        self.heard: set[int] = set()
        """The slaves that sent TANDEM_VOUCH in this term."""

    def begin_term(self, now_s: float) -> None:
        """Starts a term. Leases granted in an earlier term are void."""
        self._term_start_s = now_s
        self._granted.clear()
        self._joining_s.clear()
        self.heard.clear()

    def has_waited(self, broker_id: int, now_s: float) -> bool:
        """Returns True if a slave that sends no TANDEM_VOUCH had the whole log TABLES_S_MAX ago."""
        since_s = self._joining_s.setdefault(broker_id, now_s)
        return broker_id not in self.heard and now_s - since_s >= TABLES_S_MAX

    def record(self, broker_id: int, token: int, channel: Channel, now_s: float) -> None:
        """Records a lease. A token that was not issued in this term is ignored."""
        since_s = token / TOKENS_PER_S
        if not self._term_start_s <= since_s <= now_s:
            return
        before = self._granted.get(broker_id)
        if before is None or before[1] is not channel:
            # The lease ends with the connection: a process that has exited does not keep its promise.
            channel.on_close.append(lambda closed: self._forget(broker_id, closed))
        self._granted[broker_id] = since_s, channel

    def _forget(self, broker_id: int, channel: Channel) -> None:
        granted = self._granted.get(broker_id)
        if granted is not None and granted[1] is channel:
            del self._granted[broker_id]

    def have_all(self, ids: Iterable[int], now_s: float) -> bool:
        """Returns True if every one of `ids` has granted a lease that is still valid."""
        return all(one in self._granted and self._granted[one][0] >= now_s - COUNTED_S for one in ids)

    @staticmethod
    def new_token(now_s: float) -> int:
        """Returns the token for the current time, rounded down."""
        return int(now_s * TOKENS_PER_S)


@dataclass(slots=True, kw_only=True)
class PeerLeaseHolder:
    """The slave's side: grants leases to its master, and knows until when it must not become master."""

    client: RemotingClient
    clock: Clock
    period_s: float
    _until_s: float = float("-inf")

    async def wait(self) -> None:
        """Waits until the last granted lease has ended."""
        remaining_s = self._until_s - self.clock.monotonic()
        if remaining_s > 0:
            await self.clock.sleep(remaining_s)

    async def keep(self, address: str, make: Callable[[int | None], requests.VouchRequest]) -> None:
        """Reports to the master at `address` periodically, and grants it a lease when one is requested. Never
        returns.
        """
        token: int | None = None
        while True:
            sent_at_s = self.clock.monotonic()
            if token is not None:
                self._until_s = max(self._until_s, sent_at_s + HELD_S)
            answer: requests.VouchResponse | None = None
            try:
                answer = await send_peer_lease.within(TIMEOUT_S, self.client, address, make(token))
            except (ClientError, RequestRejected):
                pass  # unreachable, or it serves another term
            is_first = token is None
            token = None if answer is None or not answer.lease_requested else answer.token
            if token is not None and is_first:
                continue
            await self.clock.sleep(max(0.0, sent_at_s + self.period_s - self.clock.monotonic()))
