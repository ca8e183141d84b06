"""The heartbeats of a broker to its controllers."""

from __future__ import annotations

from typing import Any, cast

from sim.memory import ManualClock
from tandemmq.broker.autoswitch.controllers import Heartbeats
from tandemmq.broker.options import ElectionOptions


class Scope:
    """Records the names of the tasks instead of running them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, name: str, task: Any) -> None:
        task.close()
        self.names.append(name)


def test_a_controller_that_is_written_twice_gets_one_heartbeat() -> None:
    scope = Scope()
    heartbeats = Heartbeats(
        ElectionOptions(controllers=("a:1", "b:1", "a:1")),
        cast(Any, None),
        client=cast(Any, None),
        clock=ManualClock(),
        scope=cast(Any, scope),
    )
    assert heartbeats.start()
    assert scope.names == ["heartbeat-a:1", "heartbeat-b:1"]
    assert not heartbeats.start()
