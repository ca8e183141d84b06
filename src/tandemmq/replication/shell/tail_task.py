"""The comparison of the slave's end with its master's log, as a task that ends in time.

Knows not: what follows from a verdict (core/slave.py), how logs are compared (broker/replica/tail_check.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tandemmq.replication.core.tail import TailOutcome, TailVerdict
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

CheckOf = Callable[[int], Awaitable[TailVerdict]]
"""Compares the own log below its end with the master's; never raises for what a peer can do."""

CHECK_TIMEOUT_S: Final = 30.0
"""Above what checksums of a few MiB take on a slow disk; a master that answers no sooner is asked again."""


class TailTask:
    """At most one comparison at a time; `on_verdict` gets its verdict unless it is cancelled."""

    def __init__(
        self, check: CheckOf, *, tasks: TaskScope, on_verdict: Callable[[TailVerdict], None]
    ) -> None:
        self._check = check
        self._tasks = tasks
        self._on_verdict = on_verdict
        self._task: asyncio.Task[None] | None = None

    def begin(self, log_end: int) -> None:
        """Compare what the own log holds below `log_end`."""
        self._task = self._tasks.start("check_tail", self._run(log_end))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, log_end: int) -> None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                verdict = await self._check(log_end)
        except TimeoutError:
            detail = f"the ends of the logs were not compared within {CHECK_TIMEOUT_S:.0f} s"
            verdict = TailVerdict(outcome=TailOutcome.FAILED, log_offset=log_end, detail=detail)
        self._task = None  # this task: it ends by itself
        self._on_verdict(verdict)


def log_verdict(master: str | None, before: TailVerdict | None, verdict: TailVerdict) -> None:
    """One line per change, not one per attempt."""
    if before is not None and before.outcome is verdict.outcome:
        return
    facts = {
        "master": master,
        "outcome": verdict.outcome.name,
        "log_offset": verdict.log_offset,
        "detail": verdict.detail,
    }
    is_good = verdict.outcome is TailOutcome.SAME
    log.log(logging.INFO if is_good else logging.WARNING, events.REPLICA_TAIL_CHECKED, extra=facts)
