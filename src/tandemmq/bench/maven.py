"""Jars that a benchmark compares with: fetched with Maven into a folder, never kept in the repository."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tandemmq.errors import TandemError

FETCH_SECONDS_MAX = 900.0


def fetch_jars(cache: Path, name: str, artifacts: Sequence[str], *, has_dependencies: bool) -> list[Path]:
    """The jars of the artifacts, in `cache/name`; fetched unless the same ones were fetched before.

    Raises:  TandemError when Maven is missing or cannot have them.
    """
    folder, pom = cache / name / "lib", cache / name / "pom.xml"
    text = render_pom(name, artifacts, has_dependencies=has_dependencies)
    stamp = cache / name / "fetched.pom.xml"
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == text and folder.is_dir()):
        shutil.rmtree(cache / name, ignore_errors=True)
        folder.mkdir(parents=True)
        pom.write_text(text, encoding="utf-8")
        _run_maven(pom, folder)
        pom.rename(stamp)
    return sorted(folder.glob("*.jar"))


def render_pom(name: str, artifacts: Sequence[str], *, has_dependencies: bool) -> str:
    """A Maven project that needs the artifacts, and what they need or nothing else."""
    exclusions = (
        ""
        if has_dependencies
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    lines = []
    for artifact in artifacts:
        group, identity, version = artifact.split(":")
        lines.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{identity}</artifactId>"
            f"<version>{version}</version>{exclusions}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion>\n"
        f"<groupId>tandemmq.bench</groupId><artifactId>{name}</artifactId><version>1</version>"
        "<packaging>pom</packaging>\n<dependencies>\n" + "\n".join(lines) + "\n</dependencies>\n</project>\n"
    )


def _run_maven(pom: Path, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise TandemError("Maven is missing (`mvn`): install it, it fetches what is compared with ours")
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise TandemError(f"Maven could not fetch {pom.parent.name}: {' '.join(errors[:1])}")
