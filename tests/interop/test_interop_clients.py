"""Java clients of both lines against our name server and broker, and against Java's of the same line.

Each case is a program in `java/` that checks what it sees itself. The same program against Java's servers
tells a fault of the program from a fault of ours.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from clusters import Cluster
from java_peers import LINES, ONLY_5X, run_program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

CASES = [
    "Sends",
    "Tags",
    "Delayed",
    "Broadcast",
    "LitePull",
    "Ordered",
    "Retry",
    "Rebalance",
    "ResetOffset",
    "Queries",
    "Timer",
    "Pop",
]
PARAMETERS = [
    pytest.param(line, servers, case, id=f"{case}-java-{line}-on-{servers}")
    for line in LINES
    for servers in ("ours", "java")
    for case in CASES
    if line != "4.9" or f"{case}.java" not in ONLY_5X
]


@pytest.mark.parametrize(("line", "servers", "case"), PARAMETERS)
def test_program(line: str, servers: str, case: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fixture = "ours" if servers == "ours" else f"java_{line[0]}"
    cluster: Cluster = request.getfixturevalue(fixture)
    topic = f"{case}-{line[0]}-{secrets.token_hex(3)}"
    print(run_program(LINES[line], case, cluster.name_server, topic, home=tmp_path / "home"))
