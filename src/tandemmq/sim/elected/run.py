"""`python -m tandemmq.sim.elected.run`: many random lives of a cluster whose brokers are elected.

The last line is `SIM OK seeds=N ...` or `SIM FAILED ...`, as of `tandemmq.sim.cluster.run`.
"""

from __future__ import annotations

import sys
from functools import partial

from tandemmq.sim.cluster.run import run_many, run_one
from tandemmq.sim.cluster.simulation import Kind
from tandemmq.sim.elected.cluster import ElectedCluster
from tandemmq.sim.elected.faults import ElectedTrouble
from tandemmq.sim.elected.settings import draw_elected
from tandemmq.sim.seeds import run_command

MODULE = "tandemmq.sim.elected.run"
ELECTED = Kind(draw_elected, ElectedCluster, ElectedTrouble)


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
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
