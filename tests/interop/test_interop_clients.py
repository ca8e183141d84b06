"""Java clients of both lines against our name server and broker, and against Java's of the same line.

Each case is a program in `java/` that checks what it sees itself. The same program against Java's servers
tells a fault of the program from a fault of ours.
"""

from __future__ import annotations

import secrets

import pytest
from ahead import Ahead
from clusters import Cluster
from java_peers import EVERY_LINE, LINES, ONLY_5X, run_program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

# The longest first, as some run at the same time.
CASES = [
    "Retry",
    "Retry binary",
    "Pop",
    "Recall",
    "Trace",
    "Ordered",
    "Rebalance",
    "Sends",
    "Sends binary",
    "Tags",
    "Delayed",
    "Broadcast",
    "LitePull",
    "ResetOffset",
    "StartFrom",
    "Namespace",
    "Diagnose",
    "Vip",
    "Queries",
    "Timer",
    "NewGroup",
]
# Frame headers in RocketMQ's own form instead of JSON, which is the clients' default.
BINARY = "-Drocketmq.serialize.type=ROCKETMQ"
PARAMETERS = [
    pytest.param(line, servers, case, id=f"{case.replace(' ', '-')}-java-{line}-on-{servers}")
    for line in EVERY_LINE
    for servers in (("ours", "java") if line in LINES else ("ours",))
    for case in CASES
    if line != "4.9" or f"{case}.java" not in ONLY_5X
]


@pytest.mark.parametrize(("line", "servers", "case"), PARAMETERS)
def test_program(
    line: str,
    servers: str,
    case: str,
    request: pytest.FixtureRequest,
    ahead: Ahead,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster: Cluster = request.getfixturevalue("ours" if servers == "ours" else f"java_{line[0]}")
    homes = tmp_path_factory.mktemp(f"{line}-on-{servers}")

    def run(case: str) -> str:
        program, *form = case.split()
        topic = f"{program}-{line[0]}-{secrets.token_hex(3)}"
        flags = [BINARY] if form else []
        home = homes / case.replace(" ", "-")
        return run_program(EVERY_LINE[line], program, cluster.name_server, topic, home=home, flags=flags)

    print(ahead.output(request, "case", run))
