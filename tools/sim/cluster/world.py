"""The shared state of a running simulation: loop, network, randomness, trace and findings."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from sim.cluster.loop import SimClock, SimLoop, SimProcess
from sim.cluster.network import Fabric
from sim.cluster.outside import Outside
from sim.cluster.settings import Settings
from sim.dice import Dice


@dataclass(slots=True)
class Findings:
    """The findings of a run, as texts; the kinds are those of the last line that a run prints."""

    lost: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # anything else: replicas differ, leaks, exceptions

    def __bool__(self) -> bool:
        return bool(self.lost or self.order or self.skipped or self.broken)

    def lines(self) -> list[str]:
        """Returns one line per finding."""
        kinds = (("lost", self.lost), ("order", self.order))
        more = (("skipped", self.skipped), ("broken", self.broken))
        return [f"{kind}: {text}" for kind, texts in (*kinds, *more) for text in texts]


class World:
    """The shared state of one run."""

    def __init__(self, loop: SimLoop, seed: int, settings: Settings, dice: Dice) -> None:
        self.loop = loop
        self.seed = seed
        self.settings = settings
        self.dice = dice
        self.fabric = Fabric(loop, Dice(seed * 3 + 1))
        self.fabric.latency_ms = settings.latency_ms
        self.fabric.cut_percent = settings.cut_percent
        self.fabric.on_wrong_address = self._on_wrong_address
        self.outside: Outside | None = None
        """The network of outside clients, if the seed has one."""
        self.clock = SimClock(loop)
        self.findings = Findings()
        self.trace: list[str] = []
        self.dead: list[SimProcess] = []
        self.troubles: list[float] = [0.0]
        self.is_clock_set = False
        """True once a wall clock was stepped: times from different moments can no longer be compared."""
        self.broker_losses: list[float] = []
        """The times at which a broker's process or machine was lost."""
        self.master_opened_s = 0.0
        """The time at which a master last opened its log."""
        self.has_old_copies = False
        """True if a broker was started with an older disk; as a slave it may serve deleted topics."""
        self.discards: list[tuple[float, float]] = []
        """The times at which slaves replaced a master, each with the time since when its master's work is
        discarded.
        """
        self.moved_s: dict[str, float] = {}
        """For each group, the time at which its offsets were last moved on purpose; infinity while that is in
        progress.
        """
        self.stepped_s: dict[tuple[str, int], float] = {}
        """For each topic@group and queue, the time at which a lower offset was last committed at a master,
        for example by a consumer that does not know yet that the queue was reassigned.
        """

    def _on_wrong_address(self, text: str) -> None:
        self.findings.broken.append(text)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.time():9.3f}  {text}")

    def trouble(self) -> None:
        """Records a fault; anything that follows soon may be its consequence."""
        self.troubles.append(self.loop.time())

    def is_quiet_since(self, at_s: float) -> bool:
        """Returns True if no fault was injected since then."""
        return self.troubles[-1] < at_s

    def had_fault(self, begin_s: float, end_s: float) -> bool:
        """Returns True if a fault was injected within that time."""
        return any(begin_s <= at_s <= end_s for at_s in self.troubles)

    def spawn(self, process: SimProcess, coro: Coroutine[Any, Any, Any], name: str) -> Any:
        """Runs a coroutine as a task of that process."""
        return self.loop.create_task(coro, name=name, context=process.context)

    async def until(self, is_met: Callable[[], object], timeout_s: float, step_s: float = 0.1) -> bool:
        """Waits for a condition; returns True as soon as it is met, False at the time limit."""
        end = self.loop.time() + timeout_s
        while not is_met():
            if self.loop.time() >= end:
                return False
            await self.clock.sleep(step_s)
        return True
