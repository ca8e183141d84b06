"""The first commands of the README and those of docs/cli.md run as they stand there, from top to bottom; the
files of packaging/ name commands and settings that exist.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tandemmq.config.load import Machine, load_broker, load_name_server, read_settings
from waits import PATIENCE_S

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = (
    "up",
    "status",
    "down",
    "produce",
    "consume",
    "tail",
    "browse",
    "resend",
    "topics",
    "groups",
    "lag",
    "doctor",
)


@pytest.mark.process
def test_the_commands_of_the_document_run(tmp_path: Path) -> None:
    source = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    first_screen = BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert first_screen is not None
    # pip has been at work, and Spark's line is run where Spark runs.
    begin = [line for line in first_screen[1].splitlines() if not line.startswith(("pip ", "python -c "))]
    script = "\n".join(begin) + "\n" + "".join(BLOCK.findall(source))
    assert [name for name in NAMED if f"tandemmq {name}" not in script] == []
    tool = tmp_path / "bin" / "tandemmq"
    tool.parent.mkdir()
    # Only the ports differ from what a reader types: somebody else may have RocketMQ's here.
    tool.write_text(
        '#!/bin/sh\n[ "$1" = up ] && set -- "$@" --port-base auto\n'
        f'exec {shlex.quote(sys.executable)} -m tandemmq "$@"\n'
    )
    tool.chmod(0o755)
    clean = {name: text for name, text in os.environ.items() if "NAMESRV" not in name}
    path = f"{tool.parent}:{clean['PATH']}"
    environment = {**clean, "PATH": path, "TANDEMMQ_STORE": str(tmp_path / "store")}

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-eux", "-c", text],
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_S,
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    try:
        done = run(script)
    finally:
        run("tandemmq down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 messages sent to greetings" in done.stdout
    assert "1000 messages sent to Orders" in done.stdout
    picture = (ROOT / "docs" / "images" / "terminal.svg").read_text(encoding="utf-8")
    for line in begin:
        words = html.escape(line.partition("  #")[0].strip(), quote=False).replace("'", "&#x27;")
        assert words.replace(" ", "&#160;") in picture, f"record the terminal picture again: {line}"
    assert len((tmp_path / "rest.jsonl").read_text().splitlines()) == 991
    assert "0 problems" in done.stdout


def packaged_commands() -> Iterator[tuple[str, list[str]]]:
    """Where a command stands, and its words behind `tandemmq`."""
    compose = yaml.safe_load((ROOT / "packaging" / "compose.yaml").read_text(encoding="utf-8"))
    for name, service in compose["services"].items():
        yield f"compose.yaml {name}", service["command"]
    for unit in sorted((ROOT / "packaging").glob("*.service")):
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        yield unit.name, shlex.split(line)[1:]
    (words,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "packaging" / "Dockerfile").read_text(), re.MULTILINE)
    yield "Dockerfile", json.loads(words)


@pytest.mark.parametrize(("place", "words"), [pytest.param(*one, id=one[0]) for one in packaged_commands()])
def test_packaged_commands_start_servers(place: str, words: list[str]) -> None:
    name, *rest = words
    settings = [rest[number + 1] for number, word in enumerate(rest) if word == "--set"]
    home = Path("/home/somebody")
    machine = Machine(
        host_name="host",
        address="192.0.2.9",
        memory_bytes=1 << 30,
        home=home,
        rocketmq_home=home,
        name_servers="",
    )
    if name == "broker":
        loaded = load_broker(read_settings(None, settings), machine, None)
        assert loaded.notes == ()
    elif name == "namesrv":
        load_name_server(read_settings(None, settings), None)
    else:
        assert (name, rest) == ("up", ["--store", "/data", "--bind", "0.0.0.0"]), place
