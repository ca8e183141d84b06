"""`ProxyCore`: the values that nearly all parts of a proxy use (decision 026)."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.proxy.answer_budget import AnswerBudget
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.clients import Clients
from tandemmq.proxy.meters import Traffic
from tandemmq.proxy.options import ProxyOptions
from tandemmq.runtime.ports import Clock, Random
from tandemmq.runtime.tasks import TaskScope


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyCore:
    """The shared values of one proxy. A part receives the core, and keeps its own state."""

    options: ProxyOptions
    clock: Clock
    chance: Random
    tasks: TaskScope
    clients: Clients
    brokers: Brokers
    traffic: Traffic
    answers: AnswerBudget
