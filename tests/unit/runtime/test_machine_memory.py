"""Freed memory that a server keeps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tandemmq.runtime.machine import keep_freed_memory

_COUNT = """
import resource
from tandemmq.runtime.machine import keep_freed_memory
is_kept = keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    [bytes([number]) * 300_000 for number in range(8)]
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _count_faults(**environment: str) -> tuple[bool, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run(
        [sys.executable, "-c", _COUNT],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    is_kept, faults = found.stdout.split()
    return is_kept == "True", int(faults)


def test_large_memory_that_is_freed_is_not_taken_from_the_system_again() -> None:
    is_kept, faults = _count_faults()
    assert not is_kept or faults < 1000  # out of 58,000 pages


def test_malloc_settings_of_the_environment_are_kept() -> None:
    is_kept, faults = _count_faults(MALLOC_TRIM_THRESHOLD_="131072")
    assert not is_kept
    assert faults > 1000


def test_a_python_that_cannot_call_the_c_library_serves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert not keep_freed_memory()
