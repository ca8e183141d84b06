"""Records the events of a pipeline."""

from __future__ import annotations

from typing import Any


class Recorder:
    """A reporter for tests."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def report(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None: ...

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
