"""A flood of refusals becomes a bounded number of lines and one that counts the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from tandemmq.remoting.audit import LINES_PER_PERIOD_MAX, PERIOD_S, AccessLog
from tandemmq.runtime.ports import Clock


class OneTimer:
    """A clock that holds one scheduled call."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> OneTimer:
        assert delay_s == PERIOD_S
        self.waiting.append(lambda: fn(*args))
        return self

    def cancel(self) -> None:
        self.waiting.clear()


def test_refusals_of_a_period_are_told_up_to_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tandemmq.audit")
    timer = OneTimer()
    audit = AccessLog(cast(Clock, timer))
    for _ in range(LINES_PER_PERIOD_MAX + 1_000):
        audit.denied("app", ("10.0.0.1", 5), 310, "Topic:T", "not allowed")
    assert len(caplog.records) == LINES_PER_PERIOD_MAX
    (end,) = timer.waiting
    timer.waiting.clear()
    end()
    last = caplog.records[-1]
    assert (last.msg, last.count) == ("access_denials.suppressed", 1_000)  # type: ignore[attr-defined]  # extra
    audit.denied("app", ("10.0.0.1", 5), 310, "Topic:T", "not allowed")
    assert caplog.records[-1].msg == "access.denied"
    audit.allowed("root", ("10.0.0.1", 5), 17, "Topic:T")
    assert caplog.records[-1].msg == "admin_request.allowed"
    audit.close()
    assert not timer.waiting
    assert audit.denied_count == LINES_PER_PERIOD_MAX + 1_001
