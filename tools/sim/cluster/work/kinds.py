"""All kinds of work, by name."""

from __future__ import annotations

from sim.cluster.ledger import Ledger
from sim.cluster.watch import Watch
from sim.cluster.work.growing import GrowingWork
from sim.cluster.work.later import FilterWork, TimedWork, TransactionWork
from sim.cluster.work.node import WorkNode
from sim.cluster.work.sharing import NumberedWork, OrderedWork, PopWork
from sim.cluster.work.topics import MovedWork, RenewedWork
from sim.cluster.world import World

KINDS: dict[str, type[WorkNode]] = {
    kind.kind: kind
    for kind in (
        TimedWork,
        TransactionWork,
        FilterWork,
        PopWork,
        NumberedWork,
        OrderedWork,
        RenewedWork,
        MovedWork,
        GrowingWork,
    )
}


def make_workers(
    names: tuple[str, ...], world: World, namesrv: str, ledger: Ledger, watch: Watch
) -> list[WorkNode]:
    """Returns the processes of these kinds."""
    shared = (world, namesrv, ledger, watch)
    workers = [KINDS[name](f"{name}-work", *shared) for name in names]
    second = [
        OrderedWork("ordered-work2", *shared, first=one) for one in workers if isinstance(one, OrderedWork)
    ]
    return [*workers, *second]
