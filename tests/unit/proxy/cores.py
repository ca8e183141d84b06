"""A core of a proxy for tests of one part."""

from __future__ import annotations

from typing import Any

from sim.manual_clock import ManualClock
from tandemmq.proxy.answer_budget import AnswerBudget
from tandemmq.proxy.clients import Clients
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.meters import Traffic
from tandemmq.proxy.options import ProxyOptions
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.known_brokers import KnownBrokers


def make_core(**parts: Any) -> ProxyCore:
    """Returns a core with these parts; the others are plain ones, at a clock that the test moves."""
    clock = parts.setdefault("clock", ManualClock())
    chance = parts.setdefault("chance", SeededRandom(1))
    traffic = parts.setdefault("traffic", Traffic())
    others = {
        "options": ProxyOptions(),
        "tasks": TaskScope("proxy"),
        "clients": Clients(clock=clock, chance=chance),
        "brokers": KnownBrokers().brokers,
        "answers": AnswerBudget(clock, traffic),
    }
    return ProxyCore(**{**others, **parts})
