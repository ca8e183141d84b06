"""The exchange with a master that computes no checksums and knows no histories, as RocketMQ's."""

from __future__ import annotations

from tandemmq.replication.core.effects import CheckTail, SlaveEffect
from tandemmq.replication.core.slave import SlaveSession
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict


def uncompared(log_end: int) -> TailVerdict:
    """Returns the verdict on a log whose master cannot compute checksums."""
    return TailVerdict(outcome=TailOutcome.NOT_COMPARED, log_offset=log_end, master_start=0)


async def compare_nothing(log_end: int) -> TailVerdict:
    return uncompared(log_end)


def connect(slave: SlaveSession, log_end: int, now_ms: int) -> list[SlaveEffect]:
    """Returns the effects after the connection is up and the comparison has ended without a result."""
    assert slave.on_connected(log_end) == [CheckTail(log_end)]
    return slave.on_checked(uncompared(log_end), now_ms)


class NoHistory:
    """A `HistoryComparer` of a broker that knows no group, and whose masters answer no question."""

    group_id: str | None = None

    async def ask(self) -> None:
        return None

    async def compare(self, point: int, confirm_offset: int) -> TailVerdict:
        return uncompared(point)
