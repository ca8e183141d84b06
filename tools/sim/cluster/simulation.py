"""One seed: a cluster's whole run, from its first start to its last stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sim.cluster import outside
from sim.cluster.cluster import Cluster
from sim.cluster.faults import FaultInjector
from sim.cluster.ledger import Fate
from sim.cluster.loop import CURRENT_PROCESS, SimLoop, run_simulated, unwind
from sim.cluster.network import Fabric
from sim.cluster.outside import Outside
from sim.cluster.settings import Settings, draw_settings
from sim.cluster.world import Findings, World
from sim.dice import Dice
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

Adjust = Callable[[Settings], Settings]
Script = Callable[[Cluster], Awaitable[None]]
"""The events for a cluster under load, in place of random faults."""

RUN_S_MAX = 3_000.0
"""The most virtual time of a whole run; more means that something never ends."""
ANSWERED = frozenset({Fate.ACKNOWLEDGED, Fate.EXPIRED})
ALARMS = frozenset({events.REQUEST_FAILED, events.TASK_FAILED})


@dataclass(slots=True)
class SeedResult:
    """The actions and findings of one seed; `trace` is the same for every run of the seed."""

    seed: int
    findings: Findings = field(default_factory=Findings)
    acknowledged_count: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    settle_s: float = 0.0
    """The virtual time from the end of the faults until all consumers had everything."""
    digest: int = 0


class _Alarms(logging.Handler):
    """Collects exceptions that servers caught and only logged."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT_PROCESS.get()
        if record.msg in ALARMS and (process is None or process.is_alive):
            error = record.exc_info[1] if record.exc_info else None
            text = "" if error is None else "".join(traceback.format_exception(error)).strip()
            self._findings.broken.append(f"{process} logged {record.msg}: {text}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cluster: its settings, its construction and its faults."""

    draw_settings: Callable[[Dice], Settings]
    make_cluster: Callable[[World], Cluster]
    make_injector: Callable[[Any], FaultInjector]
    """Receives the result of `make_cluster`."""
    draw_outside: Callable[[Dice, Fabric], Outside | None] = outside.draw_outside


CLASSIC = Kind(draw_settings, Cluster, FaultInjector)
"""A master chosen by an operator, and its slaves."""


class Simulation:
    """A run of one seed."""

    def __init__(self, seed: int, adjust: Adjust, script: Script | None, kind: Kind) -> None:
        self.result = SeedResult(seed)
        self._kind = kind
        self._seed = seed
        self._adjust = adjust
        self._script = script

    def run(self) -> SeedResult:
        """Runs everything, to the end."""
        logger = logging.getLogger("tandemmq")
        alarms = _Alarms(self.result.findings)
        propagate, level = logger.propagate, logger.level
        logger.addHandler(alarms)
        logger.propagate = False
        logger.setLevel(logging.ERROR)
        was_collecting = gc.isenabled()
        gc.disable()  # the timing of finalizers must not depend on the memory use of other code
        try:
            run_simulated(self._main)
        except Exception:  # noqa: BLE001 (any error is a finding)
            self.result.findings.broken.append(traceback.format_exc().strip())
        finally:
            logger.removeHandler(alarms)
            logger.propagate = propagate
            logger.setLevel(level)
            if was_collecting:
                gc.enable()
            gc.collect()
        return self.result

    async def _main(self, loop: SimLoop) -> None:
        dice = Dice(self._seed)
        settings = self._adjust(self._kind.draw_settings(dice))
        world = World(loop, self._seed, settings, dice)
        world.findings = self.result.findings
        world.trace = self.result.trace
        world.outside = self._kind.draw_outside(Dice(self._seed * 3 + 2), world.fabric)
        loop.set_exception_handler(self._on_loop_error)
        world.note(f"seed {self._seed}: {settings.describe()}")
        cluster = self._kind.make_cluster(world)
        scope = TaskScope("simulation", lambda _name, error: self._on_alarm(error))
        try:
            async with asyncio.timeout(RUN_S_MAX):
                await self._live(world, cluster, scope)
        except Exception as error:  # noqa: BLE001 (any error is a finding)
            self._on_alarm(error)
        await scope.close()
        processes = [*world.dead, *(node.process for node in (*cluster.nodes, cluster.admin) if node.process)]
        for name in await unwind(loop, list(dict.fromkeys(processes))):
            world.note(f"cannot be ended: {name}")
        result = self.result
        result.acknowledged_count = sum(s.fate in ANSWERED for s in cluster.ledger.sent.values())
        result.counts = dict(cluster.ledger.counts)
        result.virtual_s = loop.time()
        result.digest = world.fabric.digest
        world.note(f"digest {world.fabric.digest:08x} of {world.fabric.delivery_count} deliveries")

    async def _live(self, world: World, cluster: Cluster, scope: TaskScope) -> None:
        """Runs the phases; a finding ends them, so that the first one is reported."""
        await cluster.start()
        tending = scope.start("tend", cluster.tend())
        scope.start("move_aliases", cluster.move_aliases())
        trouble = partial(self._kind.make_injector(cluster).run, world.settings.load_s)
        phases: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("trouble", trouble if self._script is None else partial(self._script, cluster)),
            ("settle", cluster.settle),
            ("check", cluster.check),
            ("age", cluster.age),
            ("stop", cluster.stop),
            ("restart", cluster.restart_alone),
        )
        for name, phase in phases:
            if world.findings:
                return
            world.note(f"-- {name}")
            begun_s = world.loop.time()
            await phase()
            if name == "settle":
                self.result.settle_s = world.loop.time() - begun_s
            if name == "check":
                tending.cancel()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        process = CURRENT_PROCESS.get()
        if process is None or process.is_alive:
            self._on_alarm(error if isinstance(error, BaseException) else RuntimeError(str(context)))

    def _on_alarm(self, error: BaseException) -> None:
        self.result.findings.broken.append("".join(traceback.format_exception(error)).strip())


def run_seed(
    seed: int,
    adjust: Adjust = lambda settings: settings,
    script: Script | None = None,
    kind: Kind = CLASSIC,
) -> SeedResult:
    """Runs one seed; `adjust` may change the drawn settings, `script` replaces the random faults."""
    return Simulation(seed, adjust, script, kind).run()
