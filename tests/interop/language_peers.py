"""Clients in other languages than Java: fetched and built with their own tools, run as processes.

A language is proven where its tools are; where they are missing its cases are skipped, and the closing line
says that it was not run. Everything that is fetched is pinned by version, and kept in the cache of java_peers
by the checksum of the program that it is for.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from java_peers import CACHE, QUICK_START

FOLDER = Path(__file__).parent
BUILD_SECONDS_MAX = 900


@dataclass(frozen=True)
class Language:
    """A language: the tools that must be there, and how its program is built.

    `build` is given the folder with a copy of the sources, and returns how the program is started.
    """

    name: str
    folder: str
    tools: tuple[str, ...]
    build: Callable[[Path], list[str]]


def _build_go(folder: Path) -> list[str]:
    _run(["go", "build", "-o", "program", "."], folder)
    return [str(folder / "program")]


def _build_rust(folder: Path) -> list[str]:
    """Builds with a target folder for all states of the program, so that its crates are compiled once."""
    target = folder.parent / "rust-target"
    # The client's crates use features that a stable compiler has, but enables only with this setting.
    _run(["cargo", "build", "--quiet"], folder, {"RUSTC_BOOTSTRAP": "1", "CARGO_TARGET_DIR": str(target)})
    return [str(shutil.copy(target / "debug" / "program", folder / "program"))]


def _build_node(folder: Path) -> list[str]:
    _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
    return ["node", str(folder / "main.js")]


def _build_python(folder: Path) -> list[str]:
    """An environment of its own: what these packages need never meets ours."""
    _run([sys.executable, "-m", "venv", "env"], folder)
    python = str(folder / "env" / "bin" / "python")
    _run([python, "-m", "pip", "install", "--quiet", "-r", "requirements.txt"], folder)
    return [python, str(folder / "main.py")]


def _build_java(folder: Path) -> list[str]:
    _run(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"], folder)
    _run(
        ["javac", "-nowarn", "-d", "classes", "-cp", "lib/*", *(p.name for p in folder.glob("*.java"))],
        folder,
    )
    return ["java", "-Xmx256m", *QUICK_START, "-cp", f"{folder / 'classes'}:{folder / 'lib'}/*", "Cases"]


LANGUAGES = {
    language.name: language
    for language in (
        Language("c++", "cpp", (), _build_python),
        Language("go", "go", ("go",), _build_go),
        Language("node", "node", ("node", "npm"), _build_node),
        Language("python", "python", (), _build_python),
        Language("rust", "rust", ("cargo",), _build_rust),
    )
}
GRPC_LANGUAGES = {
    language.name: language
    for language in (
        Language("python", "grpc/python", (), _build_python),
        Language("node", "grpc/node", ("node", "npm"), _build_node),
        Language("go", "grpc/go", ("go",), _build_go),
        Language("java", "grpc/java", ("mvn", "javac", "java"), _build_java),
        Language("rust", "grpc/rust", ("cargo",), _build_rust),
    )
}
"""The official clients of the gRPC protocol."""


def require(name: str) -> Language:
    """The language; its tools are there, or the case is skipped."""
    language = LANGUAGES[name]
    if missing := absent_tools(language):
        pytest.skip(f"{', '.join(missing)} missing: {name} is not run")
    return language


def absent_tools(language: Language) -> list[str]:
    return [tool for tool in language.tools if shutil.which(tool) is None]


@cache
def command_of(language: Language) -> list[str]:
    """The command that starts the language's program; builds the program unless the sources are unchanged."""
    source = FOLDER / language.folder
    files = sorted(path for path in source.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    folder = CACHE / f"{language.folder}-{digest[:16]}"
    told = folder / "command"
    if not told.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        told.write_text("\0".join(language.build(folder)))
    return told.read_text().split("\0")


def run_client(
    language: Language,
    *arguments: str,
    home: Path,
    environment: Mapping[str, str] | None = None,
    seconds_max: float = 150,
) -> str:
    """Returns the output of the program, which prints OK on success. Its home is also that of its log."""
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*command_of(language), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds_max,
        check=False,
        env={
            **os.environ,
            "HOME": str(home),
            "JDK_JAVA_OPTIONS": f"-Duser.home={home}",
            **(environment or {}),
        },
        cwd=home,
    )
    is_good = done.returncode == 0 and "OK" in done.stdout.splitlines()
    words = " ".join(arguments)
    said = done.stdout[-6000:] + "".join(_tail(path) for path in sorted(home.rglob("*.log")) if not is_good)
    assert is_good, f"{language.name} {words} ended with {done.returncode}:\n{said}"
    return done.stdout


def _tail(log: Path) -> str:
    return f"\n{log}:\n{log.read_text(errors='replace')[-4000:]}"


def _run(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            check=False,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{command[0]} did not end within {BUILD_SECONDS_MAX} s") from None
    output = (done.stdout + done.stderr)[-4000:]
    assert done.returncode == 0, f"{' '.join(command[:4])} ended with {done.returncode}:\n{output}"
