"""What only a master does by itself: deliver what waited, bring back what was popped, ask about transactions.

A slave does none of it; it copies the progress, and goes on from there once it is started as a master.
Source:     spec semantics 14.4 (pop), 17 (transactions), 18 (delay and timers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandemmq.broker.delay.delivery import Delivery
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.parts import Parts
from tandemmq.broker.tables import Tables
from tandemmq.broker.transaction.ask import Asker
from tandemmq.broker.transaction.check_plan import CheckLimits
from tandemmq.broker.transaction.checks import TransactionChecks
from tandemmq.broker.transaction.service import TransactionService
from tandemmq.runtime.ports import Clock
from tandemmq.store.message_store import MessageStore


class MasterDuties:
    """`start` on a master, `stop` while the store still takes appends, `settle` once it is closed.

    A fenced master that begins to rest may hear of its successor in the same moment: who stops while another
    one does returns after it.
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        tables: Tables,
        parts: Parts,
        clock: Clock,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._store = store
        self._tables = tables
        self._parts = parts
        self._clock = clock
        self._on_fatal = on_fatal
        self._delivery = Delivery(
            store,
            delay_offsets=tables.delay_offsets,
            timer_progress=tables.timer_progress,
            has_timers=options.timer_wheel_enable,
            clock=clock,
            on_fatal=on_fatal,
        )
        self._transactions = TransactionService(self._make_checks, on_fatal)
        self._revive = parts.pop.revive
        self._stopping = asyncio.Lock()

    def start(self) -> None:
        """Read back where the last master was, and go on from there."""
        self._revive.start(self._on_fatal)
        self._delivery.start()
        self._parts.runtime_info.timers = lambda: self._delivery.timer_figures
        self._transactions.start()

    async def stop(self) -> None:
        """Stop; returns when the last append is done."""
        async with self._stopping:
            await self._delivery.stop()
            await self._revive.stop()
            await self._transactions.stop()

    def settle(self) -> None:
        """Take over as progress what is on disk: what was done last is safe only once the log is flushed.

        The tables are to be saved afterwards.
        """
        self._delivery.settle()
        self._transactions.settle(self._store.flushed.value)
        self._revive.settle()

    def _make_checks(self) -> TransactionChecks:
        options = self._options
        return TransactionChecks(
            self._store,
            offsets=self._tables.offsets,
            topics=self._tables.topics,
            decided=self._parts.decided,
            asker=Asker(options.broker_name, self._parts.producers),
            limits=CheckLimits(
                options.transaction_timeout_ms,
                options.transaction_check_count_max,
                self._store.options.file_reserved_hours,
            ),
            period_ms=options.transaction_check_period_ms,
            clock=self._clock,
        )
