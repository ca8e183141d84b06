"""Starts and stops the checks with the role: a slave asks nobody, it copies the progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandemmq.broker.transaction.checks import TransactionChecks
from tandemmq.runtime.tasks import TaskScope

STOP_S_MAX = 5.0


class TransactionService:
    """`start` on a master; `stop`, and `settle` once the store is closed. Each may be called again."""

    def __init__(
        self, make_checks: Callable[[], TransactionChecks], on_fatal: Callable[[BaseException], None] | None
    ) -> None:
        self._make_checks = make_checks
        self._on_fatal = on_fatal
        self._checks: TransactionChecks | None = None
        self._scope: TaskScope | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check; does nothing when it runs."""
        if self._task is not None:
            return
        on_fatal = self._on_fatal
        self._scope = TaskScope(
            "transactions", None if on_fatal is None else lambda _name, error: on_fatal(error)
        )
        self._checks = self._make_checks()
        self._task = self._scope.start("checks", self._checks.run())

    async def stop(self) -> None:
        """Stop; returns when the last producer was asked."""
        if self._scope is None or self._checks is None or self._task is None:
            return
        self._checks.stop()
        await asyncio.wait([self._task], timeout=STOP_S_MAX)
        await self._scope.close()
        self._scope = self._task = None

    def settle(self, flushed: int) -> None:
        """Take over the progress of all that is on disk."""
        if self._checks is not None:
            self._checks.settle(flushed)
