"""The doors to the machine: only `runtime/` touches clock, chance, sockets and tasks, so that a
simulation can run it all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SOURCES = (CHECKOUT / "src" / "tandemmq", CHECKOUT / "tools")

# Programs around the system (the fuzzer speaks to real processes, planted bugs are tried in others, costs and
# their growth are timed, a board is drawn, the console serves browsers, the MCP server assistants), the
# places that live in other programs' threads, and the doors that tests use in place of the machine's.
FREE = (
    "runtime",
    "demo",
    "bench",
    "spark",
    "console",
    "mcp",
    "launcher.py",
    "shell",
    "cli.py",
    "__main__.py",
    "client/blocking.py",
    "integrations",
    "sim/fuzz",
    "sim/manual_clock.py",
    "sim/memory.py",
    "sim/plants.py",
    "boards.py",
    "costs.py",
    "growth.py",
)
FORBIDDEN_MODULES = {"time", "random", "socket", "threading", "secrets", "uuid", "subprocess"}
FORBIDDEN_CALLS = {
    ("asyncio", "create_task"),
    ("asyncio", "ensure_future"),
    ("asyncio", "Queue"),
    ("asyncio", "sleep"),
    ("asyncio", "to_thread"),
    ("asyncio", "open_connection"),
    ("asyncio", "start_server"),
    ("os", "urandom"),
    ("os", "fsync"),
    ("os", "fdatasync"),
    ("datetime", "now"),
}


def governed_files() -> list[Path]:
    return [
        path
        for source in SOURCES
        for path in sorted(source.rglob("*.py"))
        if not str(path.relative_to(source)).startswith(FREE)
    ]


def violations(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
            found += [f"line {node.lineno}: import {name}" for name in sorted(names & FORBIDDEN_MODULES)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(f"line {node.lineno}: from {node.module} import ...")
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in FORBIDDEN_CALLS
        ):
            found.append(f"line {node.lineno}: {node.value.id}.{node.attr}")
    return found


@pytest.mark.parametrize("path", governed_files(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_machine_is_reached_only_through_its_doors(path: Path) -> None:
    assert violations(ast.parse(path.read_text(encoding="utf-8"))) == []
