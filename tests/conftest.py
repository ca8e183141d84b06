"""What every test shares."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tandemmq.runtime.disk import RealDisk

# What a user has set for his own brokers and terminal must not reach those that tests start.
for _name in (
    *("NAMESRV_ADDR", "ROCKETMQ_HOME", "TANDEMMQ_TLS_CA"),
    *("COLUMNS", "LINES", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE"),
):
    os.environ.pop(_name, None)

# A busy machine must not decide whether a property holds, so nothing here is timed. The same examples in
# every run keep the gate steady; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile(
    "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """A command run inside a test configures logging; the next test must not write to its streams."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.disable(disabled)


def half_full(_disk: RealDisk, _path: Path) -> tuple[int, int]:
    return 2 << 40, 1 << 40


@pytest.fixture(autouse=True)
def disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """How full this machine's disk is decides no test: above 75 % brokers delete, above 90 % they refuse."""
    monkeypatch.setattr(RealDisk, "usage", half_full)
