"""The package of the kernel belongs to one version of the package of the servers."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tandemmq import __version__

ROOT = Path(__file__).parents[3]


def test_the_extra_names_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["optional-dependencies"]["speedups"] == [f"tandemmq-speedups=={__version__}"]


def test_both_packages_support_the_same_pythons() -> None:
    ours, kernel = (
        tomllib.loads(path.read_text("utf-8"))["project"]["requires-python"]
        for path in (ROOT / "pyproject.toml", ROOT / "packaging/speedups/pyproject.toml")
    )
    assert kernel == ours
