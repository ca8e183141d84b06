"""Where tests end a process: between the steps of what changes a lake."""

from __future__ import annotations

from collections.abc import Callable

Crash = Callable[[str], None]
"""Called with the name of each step; tests end the process, or raise, there."""


def no_crash(step: str) -> None: ...
