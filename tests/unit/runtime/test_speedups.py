"""Loading the optional kernel: only the one of this version and interface, unless it is switched off."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tandemmq import __version__
from tandemmq.protocol import speedups
from tandemmq.runtime.speedups import SWITCH, load_speedups


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = speedups.kernel, speedups.state
    yield
    speedups.kernel, speedups.state = before


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of an installed kernel."""
    module = ModuleType("tandemmq_speedups")
    module.__version__ = __version__  # type: ignore[attr-defined]
    module.INTERFACE = speedups.INTERFACE  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tandemmq_speedups", module)
    return module


def test_the_kernel_of_this_version_is_used(installed: ModuleType) -> None:
    load_speedups()
    assert speedups.kernel is installed
    assert speedups.state == "used"


def test_a_kernel_of_another_version_is_refused(installed: ModuleType) -> None:
    installed.__version__ = "0.0.9"  # type: ignore[attr-defined]
    load_speedups()
    assert speedups.kernel is None
    assert speedups.state == f"refused: it has version 0.0.9, this package {__version__}"


def test_a_kernel_of_another_commit_is_refused(installed: ModuleType) -> None:
    installed.INTERFACE = speedups.INTERFACE + 1  # type: ignore[attr-defined]
    load_speedups()
    assert speedups.kernel is None
    assert speedups.state == (
        f"refused: it has interface {speedups.INTERFACE + 1}, this package {speedups.INTERFACE}"
    )


def test_a_kernel_without_an_interface_is_refused(installed: ModuleType) -> None:
    del installed.INTERFACE
    load_speedups()
    assert speedups.kernel is None
    assert speedups.state == f"refused: it has interface unknown, this package {speedups.INTERFACE}"


def test_the_source_of_the_kernel_has_this_interface() -> None:
    source = Path(__file__).parents[3] / "packaging/speedups/tandemmq_speedups.c"
    found = re.findall(r"^#define INTERFACE (\d+) ", source.read_text("utf-8"), re.MULTILINE)
    assert found == [str(speedups.INTERFACE)]


def test_a_folder_of_that_name_is_refused(installed: ModuleType) -> None:
    del installed.__version__
    load_speedups()
    assert speedups.kernel is None
    assert speedups.state == f"refused: it has version unknown, this package {__version__}"


def test_the_environment_keeps_it_out(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that an earlier call loaded is out, too."""
    monkeypatch.setenv(SWITCH, "on")
    load_speedups()
    assert speedups.kernel is installed
    monkeypatch.setenv(SWITCH, "off")
    load_speedups()
    assert speedups.kernel is None
    assert speedups.state == "switched off by TANDEMMQ_SPEEDUPS"


def test_without_it_the_state_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tandemmq_speedups", None)
    load_speedups()
    assert speedups.kernel is None
    assert speedups.state == "not installed"


def test_one_that_cannot_be_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise ImportError("wrong ELF class")

    monkeypatch.setattr("importlib.import_module", fail)
    load_speedups()
    assert speedups.kernel is None
    assert speedups.state == "refused: it cannot be loaded: wrong ELF class"
