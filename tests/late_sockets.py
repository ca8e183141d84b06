"""Late sockets: each socket of a test's event loop is reported ready some milliseconds late, at random.

A test that asserts a state which is only about to become true passes on a quiet machine. Here another order
of events is as likely as the usual one, so such a test fails within a few seeds:

    TANDEMMQ_LATE_SOCKETS=7 .venv/bin/python -m pytest tests/scenario/test_replication_rows.py

`tests/conftest.py` calls `install` when the variable names a seed. The real time decides, too, so a seed
repeats nothing exactly. Loops of uvloop (other processes, the client's thread) are left as they are.
"""

from __future__ import annotations

import random
import time
from asyncio import selector_events
from typing import Any

LATE_SHARE = 0.25
"""The share of reports that are late, of sockets that were not late before."""
LATE_S_MAX = 0.05
PAUSE_S = 0.0005
"""Between two looks while nothing but late sockets is ready: the selector returns at once for those."""


def install(seed: int) -> None:
    """Delays the sockets of every selector loop from now on."""
    chance = random.Random(seed)
    held: dict[tuple[int, int], float] = {}
    loop_class: Any = selector_events.BaseSelectorEventLoop
    process = loop_class._process_events

    def is_late(loop: Any, descriptor: int, now_s: float) -> bool:
        place = id(loop), descriptor
        end_s = held.get(place)
        if end_s is None and chance.random() < LATE_SHARE:
            end_s = held[place] = now_s + chance.random() * LATE_S_MAX
        if end_s is not None and now_s < end_s:
            return True
        held.pop(place, None)
        return False

    def process_late(loop: Any, reports: list[tuple[Any, int]]) -> None:
        now_s, own = time.monotonic(), loop._ssock.fileno()
        passed = [one for one in reports if one[0].fd == own or not is_late(loop, one[0].fd, now_s)]
        if reports and not passed and not loop._ready:
            time.sleep(PAUSE_S)
        process(loop, passed)

    loop_class._process_events = process_late
