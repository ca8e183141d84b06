"""The pages /health/live and /health/ready of every server, for supervisors and load balancers.

Live means that the event loop runs, so the page itself is the proof. Ready means that every condition of the
server holds; the JSON body names each condition and the reason of those that fail:

    {"status": "not ready", "conditions": [{"name": "role", "holds": false, "reason": "..."}, ...]}

Knows not: the conditions; each server states its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tandemmq.remoting.http import HttpAnswer

JSON: Final = "application/json"


class Condition(NamedTuple):
    """One condition of readiness. `fault` is the reason why it does not hold; empty while it holds."""

    name: str
    fault: str = ""


Conditions = Callable[[], Iterable[Condition]]
"""Reads the present conditions of a server."""


def live_page() -> HttpAnswer:
    """Returns 200: a server that answers lives."""
    return _answer({"status": "live"})


def ready_page(conditions: Iterable[Condition]) -> HttpAnswer:
    """Returns 200 if all conditions hold, else 503."""
    found = list(conditions)
    is_ready = not any(condition.fault for condition in found)
    listed = [
        {"name": name, "holds": False, "reason": fault} if fault else {"name": name, "holds": True}
        for name, fault in found
    ]
    content = {"status": "ready" if is_ready else "not ready", "conditions": listed}
    return _answer(content, 200 if is_ready else 503)


def _answer(content: Mapping[str, object], status: int = 200) -> HttpAnswer:
    return HttpAnswer(json.dumps(content, ensure_ascii=False).encode() + b"\n", JSON, status)
