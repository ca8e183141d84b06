"""A cluster for tests in other languages: `python -m tandemmq.testing [--slave] [--elected] [--set K=V]`.

The first line on standard output is the name server's address. A line on standard input names a fault, such
as `lose_master` or `delay_acks 2`; the answer is `ok` or an error message. The cluster ends when its standard
input is closed, so it never outlives the test that started it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from tandemmq.errors import TandemError
from tandemmq.protocol.properties_file import parse_override
from tandemmq.testing import BlockingCluster

PLAIN: Final = (
    "lose_master",
    "restart_master",
    "stop_slave",
    "start_slave",
    "cut_connections",
    "fill_disk",
    "free_disk",
    "heal",
)
WITH_SECONDS: Final = ("delay_acks", "delay_answers", "travel")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tandemmq.testing", description=__doc__)
    parser.add_argument("--slave", action="store_true", help="the master has a slave")
    parser.add_argument("--elected", action="store_true", help="the slave replaces a master that is lost")
    parser.add_argument("--port", type=int, default=0, help="of the name server; any by default")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of brokers"
    )
    options = parser.parse_args(arguments)
    try:
        settings = {key: setting.text for key, setting in map(parse_override, options.set)}
        with BlockingCluster(
            slave=options.slave, elected=options.elected, settings=settings, port=options.port
        ) as cluster:
            _write_line(cluster.name_servers)
            for line in sys.stdin:
                if line.strip():
                    _write_line(_run_command(cluster, line.split()))
    except (TandemError, OSError) as error:
        sys.stderr.write(f"tandemmq: {error}\n")
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _run_command(cluster: BlockingCluster, words: Sequence[str]) -> str:
    name, *rest = words
    try:
        if name in PLAIN and not rest:
            getattr(cluster, name)()
        elif name in WITH_SECONDS and len(rest) == 1:
            getattr(cluster, name)(float(rest[0]))
        else:
            return f"error: {' '.join(words)}: must be one of {', '.join((*PLAIN, *WITH_SECONDS))}"
    except (TandemError, ValueError) as error:
        return f"error: {error}"
    return "ok"


def _write_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
