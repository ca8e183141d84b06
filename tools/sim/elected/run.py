"""`python -m sim.elected.run`: runs many random histories of a cluster whose brokers are elected.

The last line is `SIM OK seeds=N ...` or `SIM FAILED ...`, as in `sim.cluster.run`.
"""

from __future__ import annotations

import sys
from functools import partial

from sim.cluster.run import run_many, run_one
from sim.cluster.simulation import Kind
from sim.elected.cluster import ElectedCluster
from sim.elected.faults import ElectedFaultInjector
from sim.elected.settings import draw_elected
from sim.seeds import run_command

MODULE = "sim.elected.run"
ELECTED = Kind(draw_elected, ElectedCluster, ElectedFaultInjector)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    return run_command(
        arguments,
        module=MODULE,
        description=__doc__,
        seed_count=500,
        run_many=partial(run_many, kind=ELECTED, module=MODULE),
        run_one=partial(run_one, kind=ELECTED, module=MODULE),
    )


if __name__ == "__main__":
    sys.exit(main())
