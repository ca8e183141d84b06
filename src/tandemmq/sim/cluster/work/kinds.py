"""Every kind of work, by name."""

from __future__ import annotations

from tandemmq.sim.cluster.ledger import Ledger
from tandemmq.sim.cluster.watch import Watch
from tandemmq.sim.cluster.work.later import FilterWork, TimedWork, TransactionWork
from tandemmq.sim.cluster.work.node import WorkNode
from tandemmq.sim.cluster.world import World

KINDS: dict[str, type[WorkNode]] = {kind.kind: kind for kind in (TimedWork, TransactionWork, FilterWork)}


def make_workers(
    names: tuple[str, ...], world: World, namesrv: str, ledger: Ledger, watch: Watch
) -> list[WorkNode]:
    """The processes of these kinds."""
    return [KINDS[name](f"{name}-work", world, namesrv, ledger, watch) for name in names]
