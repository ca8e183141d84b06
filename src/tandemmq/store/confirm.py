"""What a reply waits for: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tandemmq.units import ReplicaId


class AckTable:
    """The last offset that each replica acknowledged, by its name."""

    def __init__(self, on_report: Callable[[], None] | None = None) -> None:
        self._positions: dict[ReplicaId, int] = {}
        self._on_report = on_report

    def report(self, replica: ReplicaId, offset: int) -> None:
        self._positions[replica] = offset
        if self._on_report is not None:
            self._on_report()

    def forget(self, replica: ReplicaId) -> None:
        self._positions.pop(replica, None)

    def positions(self) -> Mapping[ReplicaId, int]:
        return self._positions
