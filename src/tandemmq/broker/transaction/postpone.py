"""A committed message that asked for a delay begins to wait with its commit (spec store 14, spec semantics
17)."""

from __future__ import annotations

from tandemmq.broker.delay.timer_rule import WISHES, has_wish
from tandemmq.broker.send.delay import DelayRule
from tandemmq.errors import RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import decode_properties, find_property
from tandemmq.protocol.record import NewRecord


def postpone_commit(commit: NewRecord, delay: DelayRule, now_ms: int) -> None:
    """Move the message to the topic in which it waits, if it is to wait.

    A time that is refused today (too far ahead, timers switched off) counts as none: the transaction is
    committed, and its message must not be lost.
    """
    raw = commit.properties
    level = find_property(raw, names.DELAY.encode())
    if level is not None and level.isdigit() and len(level) < 10 and int(level) > 0:
        delay.postpone(commit, min(int(level), delay.level_max), now_ms)
        return
    if b"TIMER_DELIVER" not in raw and b"TIMER_DELAY" not in raw:
        return
    pairs = decode_properties(raw)
    if not has_wish(pairs):
        return
    wishes: dict[str, str] = {name: pairs[name] for name in WISHES if name in pairs}
    try:
        slot_ms = delay.plan_timer(wishes, now_ms)
    except RequestRejected:
        return
    if slot_ms is not None:
        delay.postpone_until(commit, slot_ms)
