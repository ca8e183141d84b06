"""The membership of a broker in its elected group: registers with the controllers, polls them for the master,
proposes SyncStateSets, and detects a record of the controllers that contradicts the history of the group.

Controllers count terms and sets on their own disks. If such a disk was rolled back, lost, or belongs to
another group, the record contradicts the brokers' logs. A broker never acts on such a record. It continues to
report its own history, which TandemMQ controllers then adopt. `ElectedBroker` owns the membership.
Invariants: a poll is the only source of a term; everything unsolicited only causes a poll.
            - A proposal for a set is repeated until its outcome is certain.
Bounds:     one open proposal; one poll at a time.
Source:     decision 023; spec controller 3, 10.5, 10.16.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from tandemmq.api.controller import MasterFacts
from tandemmq.broker.autoswitch.controllers import Controllers, Heartbeats, HeartbeatSender
from tandemmq.broker.autoswitch.history import ControllerMismatch, KnownTerm
from tandemmq.broker.autoswitch.identity import ForeignGroup, GroupIdentity, IdentityFiles, obtain_id
from tandemmq.broker.options import BrokerConfig
from tandemmq.errors import ClientError, NotLeader, RequestRejected, TandemError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.controller import RegisterReplicaRequest
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.shell.autoswitch import AutoSwitchReplication
from tandemmq.runtime.ports import Clock, Random
from tandemmq.runtime.tasks import TaskScope, TimedEvent
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
FIRST_RETRY_S: Final = 0.05
"""The pause after the first refusal of an id. The controllers of a new cluster soon have a leader."""
PROPOSAL_PAUSE_S: Final = 0.2
REFUSALS_LOGGED_MAX: Final = 16

_NO_MASTER_YET: Final = frozenset(
    (ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE)
)
_UNKNOWN_HERE: Final = frozenset(
    (
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    )
)
_SET_REFUSED: Final = frozenset(
    (ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE)
)
"""Error codes after which a proposal has certainly not changed the set, because the set's epoch was equal."""
_SET_MOVED: Final = frozenset(
    (
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    )
)
"""Error codes after which the set has changed, or is the proposed one already; an earlier attempt of the same
proposal may have changed it.
"""
_REPLACED: Final = frozenset(
    (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER)
)
"""Error codes after which another broker is the master; an earlier attempt may have brought it into the set.
"""
_NOT_OF_THE_GROUP: Final = ResponseCode.CONTROLLER_INVALID_REQUEST

UNCONFIRMED: Final = "the controllers have not confirmed yet that it belongs to the group"
UNCONFIRMED_S_MAX: Final = 2.0
"""The longest time for which a newly started broker serves no reads because no controller has answered. Then
it serves, since the controllers may be down for long.
"""


class MemberBroker(HeartbeatSender, Protocol):
    """The broker that is the member."""

    broker_id: int
    own_address: str
    name: str
    """The broker, its cluster and its address, for the log."""

    @property
    def replication(self) -> AutoSwitchReplication: ...

    @property
    def epoch(self) -> int:
        """The epoch of the term that the broker has accepted."""

    @property
    def is_master(self) -> bool: ...

    def known_term(self) -> KnownTerm: ...

    def make_registration(self) -> RegisterReplicaRequest: ...

    def on_master(self, facts: MasterFacts) -> None:
        """Handles the controllers' record, which was already compared with the history of the broker."""


class GroupMembership:
    """The membership of one broker. `controllers`, `heartbeats` and `mismatch` are public parts."""

    def __init__(
        self,
        member: MemberBroker,
        config: BrokerConfig,
        group: GroupIdentity,
        *,
        client: RemotingClient,
        clock: Clock,
        chance: Random,
        scope: TaskScope,
    ) -> None:
        self._member = member
        self._options = config.election
        self._clock = clock
        self._chance = chance
        self._scope = scope
        self.controllers = Controllers(
            config.election,
            cluster=config.broker.cluster_name,
            name=config.broker.broker_name,
            client=client,
            clock=clock,
            group=group,
        )
        self.heartbeats = Heartbeats(config.election, member, client=client, clock=clock, scope=scope)
        self.mismatch = ControllerMismatch(member.name)
        self.is_registered = False
        """True if the controllers know that this process has started."""
        self.logged_refusals: set[str] = set()
        self._foreign = UNCONFIRMED
        self._started_s = clock.monotonic()
        self._poll_due = TimedEvent(clock)
        self._proposing: asyncio.Task[None] | None = None

    async def obtain_id(self, files: IdentityFiles) -> int:
        """Returns the id of this broker; a broker without an id waits for the controllers."""
        pause_s = FIRST_RETRY_S
        while True:
            try:
                return await obtain_id(
                    files, self.controllers, address=self._member.own_address, clock=self._clock
                )
            except (ClientError, RequestRejected) as error:
                self.log_refusal("id", error)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S)

    def start(self) -> None:
        self._started_s = self._clock.monotonic()
        self._scope.start("poll_controllers", self._poll_controllers())

    def poll(self) -> None:
        """Asks the controllers for the master at once."""
        self._poll_due.set()

    def register_again(self) -> None:
        """Registers at once, because the controllers lost state or record this broker at another address."""
        self.is_registered = False
        self.poll()

    @property
    def foreign(self) -> str:
        """The reason why this broker may belong to another group; empty if the controllers have confirmed the
        group, or have not objected within UNCONFIRMED_S_MAX.
        """
        is_late = self._clock.monotonic() - self._started_s > UNCONFIRMED_S_MAX
        return "" if self._foreign == UNCONFIRMED and is_late else self._foreign

    def on_error(self, error: TandemError) -> None:
        """Records that the controllers refuse this broker because it belongs to another group. Any other
        error that comes first lets the group in the broker's own files count as confirmed.
        """
        is_refused = isinstance(error, RequestRejected) and error.code == _NOT_OF_THE_GROUP
        if is_refused or isinstance(error, ForeignGroup):
            self._foreign = str(error)
            self.mismatch.raise_(events.BROKER_GROUP_REFUSED, str(error))
        elif self._foreign == UNCONFIRMED:
            self._foreign = ""

    def log_refusal(self, subject: str, error: TandemError) -> None:
        """Logs one line per reason, until a request succeeds."""
        reason = f"{subject}: {error}"
        if reason in self.logged_refusals:
            return
        if len(self.logged_refusals) > REFUSALS_LOGGED_MAX:
            self.logged_refusals.clear()
        self.logged_refusals.add(reason)
        log.warning(events.CONTROLLER_REQUEST_REFUSED, extra={"reason": reason})

    async def _poll_controllers(self) -> None:
        """Registers this process with the controllers, then polls them for the master. Never returns."""
        while True:
            self._poll_due.clear()
            try:
                if not self.is_registered:
                    await self._register()
                if not self.heartbeats.start():
                    await self._read_master()
            except (ClientError, RequestRejected) as error:
                self.log_refusal("master", error)
                self.on_error(error)
                if isinstance(error, RequestRejected) and error.code in _UNKNOWN_HERE:
                    self.is_registered = False
                    self.mismatch.miss_group(self._member.known_term(), str(error))
                    # Controllers that have lost the group restore it from the reports of its brokers.
                    self.heartbeats.start()
            else:
                self.logged_refusals.clear()
            await self._poll_due.wait(self._options.poll_ms / 1000)

    async def _register(self) -> None:
        """Registers at the controllers. Raises ClientError, RequestRejected."""
        try:
            facts = await self.controllers.register(self._member.make_registration())
        except RequestRejected as error:
            if error.code not in _UNKNOWN_HERE or not self._options.reapplies_id:
                raise
            check_code = f"{self._member.own_address};{self._clock.now_ms()}"
            await self.controllers.apply_id(self._member.broker_id, check_code)
            facts = await self.controllers.register(self._member.make_registration())
        self.is_registered = True
        self._foreign = ""
        self.accept(facts)

    async def _read_master(self) -> None:
        """Asks for the master, or for an election if there is none. Raises ClientError, RequestRejected."""
        facts = await self.controllers.read_master()
        if facts.master_id is None:
            try:
                facts = await self.controllers.elect(self._member.broker_id)
            except RequestRejected as error:
                if error.code not in _NO_MASTER_YET:
                    raise
                return
        self.accept(facts)

    def accept(self, facts: MasterFacts) -> None:
        """Compares the record of the controllers with the history of the broker, and passes it on."""
        self.mismatch.compare(facts, self._member.known_term())
        if facts.master_id is not None:
            self._member.on_master(facts)

    def propose(self, members: frozenset[int], set_epoch: int) -> None:
        """Proposes `members` as the successor of the set of `set_epoch`; replaces an open proposal."""
        if self._proposing is not None:
            self._proposing.cancel()
        self._proposing = self._scope.start(
            "propose", self.propose_in(self._member.epoch, members, set_epoch)
        )

    async def propose_in(self, epoch: int, members: frozenset[int], set_epoch: int) -> None:
        """Repeats the proposal until its outcome is certain, or the term `epoch` ends. Repeating it is
        harmless: the controllers compare the epoch of the set that it replaces.
        """
        member = self._member
        while member.is_master and member.epoch == epoch:
            try:
                answer = await self.controllers.alter_set(member.broker_id, epoch, members, set_epoch)
            except RequestRejected as error:
                if error.code in _SET_MOVED:
                    if await self._adopt_set(set_epoch):
                        return
                elif error.code in _REPLACED | _SET_REFUSED:
                    self.log_refusal("set", error)
                    if error.code in _SET_REFUSED:
                        member.replication.set_refused(set_epoch)
                    self.poll()
                    return
            except ClientError as error:
                self.log_refusal("set", error)
            else:
                if member.is_master and member.epoch == epoch:
                    member.replication.set_committed(frozenset(answer.ids), answer.epoch)
                return
            await self._clock.sleep(PROPOSAL_PAUSE_S + self._chance.below(200) / 1000)

    async def _adopt_set(self, set_epoch: int) -> bool:
        """Reads and accepts the current set after the controllers reported that it has changed.

        This proposal may have changed it, if its answer was lost; or the controllers lost state and recorded
        an older set. Returns True if the proposal is settled, because the set or the master is another one.
        """
        try:
            facts = await self.controllers.read_master()
        except (ClientError, NotLeader, RequestRejected):
            return False
        self.accept(facts)
        return facts.master_epoch != self._member.epoch or facts.set_epoch != set_epoch
