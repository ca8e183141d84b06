"""Records the terminal picture of the README: runs its first commands for real and draws what they print.

    .venv/bin/python scripts/record_terminal.py docs/images/terminal.svg

Takes RocketMQ's ports on this machine for half a minute, and a folder of its own.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

README = Path(__file__).parents[1] / "README.md"
COLUMNS = 110
PROMPT = "$ "
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""rich's picture would fetch its font from the network."""


def commands(readme: str) -> list[str]:
    """Those of the README's first block, without the installation."""
    block = re.search(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [
        line.partition("  #")[0].rstrip() for line in block[1].splitlines() if not line.startswith("pip ")
    ]


def main(target: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "bin"
        tools.mkdir()
        for name, words in (("tandemmq", "-m tandemmq"), ("python", "")):
            path = tools / name
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            path.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": folder,
            "COLUMNS": str(COLUMNS),
        }

        def run(command: str) -> str:
            done = subprocess.run(
                ["sh", "-c", command],
                capture_output=True,
                text=True,
                env=environment,
                cwd=folder,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
            return done.stdout.replace(folder, "~").rstrip()

        try:
            for command in commands(README.read_text(encoding="utf-8")):
                console.print(Text(PROMPT, "bold green") + Text(command, "bold"))
                console.print(Text(run(command)))
                console.print()
        finally:
            run("tandemmq down")
    drawing = console.export_svg(title="tandemmq", unique_id="terminal")
    target.write_text(_FONT.sub("", drawing), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
