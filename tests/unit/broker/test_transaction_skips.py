"""Half messages that have ended are skipped in steps, so that other tasks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.transaction.checks import SKIPPED_PER_TURN, TransactionChecks


@pytest.mark.parametrize("method", [TransactionChecks._find_open, TransactionChecks.run_round])
async def test_the_loop_turns_while_ended_half_messages_are_skipped(method: Any) -> None:
    turns: list[float] = []

    async def sleep(delay_s: float) -> None:
        turns.append(delay_s)

    async def read_ops() -> None:
        pass

    end = 3 * SKIPPED_PER_TURN + 1
    checks = SimpleNamespace(
        _half_offset=0,
        _is_stopping=False,
        _clock=SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0),
        _ops=SimpleNamespace(is_done=lambda _: True, settle=lambda at: at),
        _progress=SimpleNamespace(is_full=False, add=lambda *_, **__: None),
        _read_ops=read_ops,
        _store=SimpleNamespace(queue_max=lambda *_: end),
        _writer=SimpleNamespace(log_end=0, safe_end=lambda: 0),
        settle=lambda _: None,
    )
    await method(checks)
    assert turns == [0, 0, 0]
