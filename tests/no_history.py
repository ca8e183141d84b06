"""The exchange with a master that supports no histories, as RocketMQ's: only the terms decide."""

from __future__ import annotations

from tandemmq.replication.core.verifier import TailOutcome, TailVerdict


class NoHistory:
    """A `HistoryComparer` of a broker that knows no group, and whose masters answer no question."""

    group_id: str | None = None

    async def ask(self) -> None:
        return None

    async def compare(self, point: int, confirm_offset: int) -> TailVerdict:
        return TailVerdict(outcome=TailOutcome.NOT_COMPARED, log_offset=point)
