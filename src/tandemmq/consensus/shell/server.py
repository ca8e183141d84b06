"""RaftServer: one running server of a group: the core, its files, its clock and its callers.

Strategy:   one task runs one step at a time and carries out the effects of the core, the disk first. Further
            steps wait in a queue.
Invariants: a proposal is answered after its entry was applied here; the machine receives each confirmed entry
            once, in order.
Bounds:     the number of waiting steps. A message that meets a full queue is dropped, as any message may be
            lost.
Knows not:  sockets, and the meaning of the commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tandemmq.consensus.core.messages import (
    Apply,
    Contradicted,
    Effect,
    EntryKind,
    LogEntry,
    Members,
    Message,
    Persist,
    RaftRole,
    Restore,
    RoleChanged,
    SendToServer,
    new_group,
)
from tandemmq.consensus.core.node import ProposalRefusal, RaftNode
from tandemmq.consensus.core.options import RaftOptions
from tandemmq.consensus.shell.files import RaftFiles
from tandemmq.errors import Busy, NotLeader, OutcomeUnknown
from tandemmq.runtime.ports import Clock, Random, TimerHandle
from tandemmq.runtime.tasks import OnFailure, TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

STEPS_WAITING_MAX = 4_096
CONTRADICTIONS_MAX = 64
"""The number of different reasons that one process logs."""

Step = Callable[[RaftNode, int], list[Effect]]


class StateMachine(Protocol):
    """The replicated state. It is deterministic: equal commands give equal states and answers."""

    def apply(self, command: bytes) -> Any:
        """Applies a command and returns the answer for its proposer."""

    def take_snapshot(self) -> bytes: ...

    def restore(self, data: bytes) -> None:
        """Replaces the state; empty `data` is the state before the first command."""

    @property
    def identity(self) -> str:
        """The random id of the group itself, on which its servers have agreed; empty before that."""


class RaftServer:
    """One server between `start` and `stop`. Its facts about the group are those of the last step."""

    def __init__(
        self,
        files: RaftFiles,
        servers: dict[str, str],
        *,
        machine: StateMachine,
        send: Callable[[str, Message], None],
        on_failure: OnFailure,
        clock: Clock,
        random: Random,
        options: RaftOptions,
    ) -> None:
        """`servers`: the configured servers by name, this one among them. They are the initial voters, and
        the others are asked after a start for what they know of this server. `send` must neither raise nor
        wait.
        """
        self.name = files.name
        self.machine = machine
        self.on_role: Callable[[RoleChanged], None] = lambda _: None
        """Called at each change of the role or the leader; set by the owner."""
        self._first = new_group(Members({} if options.joins else servers))
        self._peers = frozenset(servers) - {self.name}
        self._files = files
        self._send = send
        self._clock = clock
        self._random = random
        self._options = options
        self._scope = TaskScope(f"raft-{self.name}", on_failure)
        self._node: RaftNode | None = None
        self._steps: deque[Step] = deque()
        self._wake = asyncio.Event()
        self._running: asyncio.Task[Any] | None = None
        self._is_stopping = False
        self._is_settled = False
        """The core's `is_settled`, delayed until the confirmed entries are applied here."""
        self._timer: TimerHandle | None = None
        self._proposals: dict[int, tuple[int, asyncio.Future[Any]]] = {}
        self._known_leader: str | None = None
        self._contradictions: set[str] = set()

    @property
    def node(self) -> RaftNode:
        """The core, for inspection."""
        assert self._node is not None, "the server does not run"
        return self._node

    @property
    def is_leader(self) -> bool:
        """True if this server leads and knows everything that was ever confirmed; False once it begins to
        stop.
        """
        is_settled = self._is_settled and self._node is not None and self._node.is_settled
        return is_settled and not self._is_stopping

    @property
    def role(self) -> RaftRole | None:
        """The role in the group; None before the start."""
        return None if self._node is None else self._node.role

    @property
    def byte_count(self) -> int:
        """The size of the files."""
        return self._files.byte_count

    @property
    def leader(self) -> str | None:
        return None if self._node is None else self._node.leader

    @property
    def members(self) -> Members:
        return self.node.members

    @property
    def identity(self) -> str:
        """The random id of the group that this server's files belong to; empty before it is known."""
        return self._files.identity

    def grants(self, within_ms: int) -> bool:
        """See `RaftNode.grants`."""
        return self.node.grants(self._now_ms(), within_ms)

    async def start(self) -> None:
        """Raises what `RaftFiles.open` raises."""
        saved = await self._files.disk.offload(self._files.open, self._first)
        if saved.snapshot.data:
            self.machine.restore(saved.snapshot.data)
        self._node = RaftNode(
            self.name,
            saved,
            options=self._options,
            now_ms=self._now_ms(),
            below=self._random.below,
            peers=self._peers,
        )
        self._running = self._scope.start("steps", self._run(self._node))

    async def stop(self) -> None:
        """Stops the server. A step that is being written to the disk is completed first."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._steps.clear()
        self._wake.set()
        if self._running is not None:
            await asyncio.wait([self._running])
        await self._scope.close()
        self._fail_all()
        await self._files.disk.offload(self._files.close)

    def receive(self, message: Message) -> None:
        """Queues a message of another server of the group."""
        if len(self._steps) < STEPS_WAITING_MAX:
            self._put(lambda node, now_ms: node.on_message(message, now_ms))

    async def propose(self, command: bytes, timeout_s: float) -> Any:
        """Returns the machine's answer once the command was confirmed and applied.

        Raises:  NotLeader, Busy: nothing was done. OutcomeUnknown: the command may or may not be applied.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def step(node: RaftNode, now_ms: int) -> list[Effect]:
            if future.done():
                return []
            index, effects = node.propose(command, now_ms)
            if isinstance(index, ProposalRefusal):
                future.set_exception(_to_error(index))
            else:
                # A proposal that waits at this index is of an earlier term: its entry was cut.
                _fail(self._proposals.pop(index, (0, None))[1], _to_error(ProposalRefusal.NOT_LEADER))
                self._proposals[index] = node.term, future
            return effects

        return await self._wait(step, future, timeout_s)

    async def submit(
        self,
        request: Callable[[RaftNode, int], tuple[ProposalRefusal | None, list[Effect]]],
        timeout_s: float,
    ) -> ProposalRefusal | None:
        """Asks the core to change the members or the leader. Returns None if the core has begun to."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def step(node: RaftNode, now_ms: int) -> list[Effect]:
            refusal, effects = request(node, now_ms)
            if not future.done():
                future.set_result(refusal)
            return effects

        refusal: ProposalRefusal | None = await self._wait(step, future, timeout_s)
        return refusal

    # The task.

    async def _run(self, node: RaftNode) -> None:
        while True:
            while self._steps:
                await self._carry_out(node, self._steps.popleft()(node, self._now_ms()))
            if self._is_stopping:
                return
            self._plan_tick(node)
            await self._wake.wait()
            self._wake.clear()

    async def _carry_out(self, node: RaftNode, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                await self._files.disk.offload(self._files.save, effect)
            elif isinstance(effect, SendToServer):
                self._send(effect.to, effect.message)
            elif isinstance(effect, Apply):
                for entry in effect.entries:
                    self._apply(entry)
            elif isinstance(effect, Restore):
                self.machine.restore(effect.snapshot.data)
            elif isinstance(effect, RoleChanged):
                self._report_role(effect)
            elif isinstance(effect, Contradicted):
                self._report_contradiction(effect)
        self._is_settled = node.is_settled
        if self.machine.identity and not self._files.identity:
            await self._files.disk.offload(self._files.save_identity, self.machine.identity)
        if node.applied - node.log.snapshot.index >= self._options.snapshot_entries:
            await self._carry_out(node, node.compact(node.applied, self.machine.take_snapshot()))

    def _apply(self, entry: LogEntry) -> None:
        answer = self.machine.apply(entry.data) if entry.kind is EntryKind.COMMAND else None
        waiting = self._proposals.pop(entry.index, None)
        if waiting is None:
            return
        term, future = waiting
        if term != entry.term:  # another leader's entry has this index
            _fail(future, _to_error(ProposalRefusal.NOT_LEADER))
        elif not future.done():
            future.set_result(answer)

    def _report_role(self, change: RoleChanged) -> None:
        facts = {"server": self.name, "term": change.term, "leader": change.leader, "reason": change.reason}
        if change.role is RaftRole.LEADER:
            log.info(events.CONTROLLER_ELECTED, extra=facts)
        elif change.role is RaftRole.FOLLOWER and change.leader is not None:
            log.info(events.CONTROLLER_LEADER_FOUND, extra=facts)
        elif change.leader is None and self._known_leader is not None:
            facts["leader"] = self._known_leader
            log.warning(events.CONTROLLER_LEADER_LOST, extra=facts)
        self._known_leader = change.leader
        self.on_role(change)

    def _report_contradiction(self, effect: Contradicted) -> None:
        """Logs each reason once."""
        if effect.reason not in self._contradictions and len(self._contradictions) < CONTRADICTIONS_MAX:
            self._contradictions.add(effect.reason)
            log.error(
                events.CONTROLLER_DISK_CONTRADICTED,
                extra={
                    "server": self.name,
                    "by": effect.by,
                    "term": effect.term,
                    "reason": effect.reason,
                    "is_reset": effect.is_reset,
                },
            )

    def _put(self, step: Step) -> None:
        self._steps.append(step)
        self._wake.set()

    def _plan_tick(self, node: RaftNode) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, node.deadline_ms - self._now_ms()) / 1000
        self._timer = self._clock.call_later(delay_s, self._put, RaftNode.on_tick)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    async def _wait(self, step: Step, future: asyncio.Future[Any], timeout_s: float) -> Any:
        if len(self._steps) >= STEPS_WAITING_MAX:
            raise _to_error(ProposalRefusal.BUSY)
        self._put(step)
        timer = self._clock.call_later(timeout_s, _fail, future, OutcomeUnknown("no majority in time"))
        try:
            return await future
        finally:
            timer.cancel()

    def _fail_all(self) -> None:
        for _, future in self._proposals.values():
            _fail(future, OutcomeUnknown("the controller stops"))
        self._proposals.clear()


def _fail(future: asyncio.Future[Any] | None, error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)


def _to_error(refusal: ProposalRefusal) -> Exception:
    if refusal in (ProposalRefusal.NOT_LEADER, ProposalRefusal.HANDING_OVER, ProposalRefusal.UNSETTLED):
        return NotLeader(refusal.value)
    return Busy(refusal.value)
