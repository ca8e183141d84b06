"""`python -m sim.proxied.run`: runs many random histories of a cluster whose clients use gRPC proxies.

The last line is `SIM OK seeds=N ...` or `SIM FAILED ...`, as in `sim.cluster.run`.
"""

from __future__ import annotations

import sys
from functools import partial

from sim.cluster.run import run_many, run_one
from sim.cluster.simulation import Kind
from sim.proxied.cluster import draw_proxied, make_cluster, make_injector
from sim.seeds import run_command

MODULE = "sim.proxied.run"
PROXIED = Kind(draw_proxied, make_cluster, make_injector)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    return run_command(
        arguments,
        module=MODULE,
        description=__doc__,
        seed_count=500,
        run_many=partial(run_many, kind=PROXIED, module=MODULE),
        run_one=partial(run_one, kind=PROXIED, module=MODULE),
    )


if __name__ == "__main__":
    sys.exit(main())
