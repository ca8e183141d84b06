"""Decides if the store accepts writes, and the error if not.

Invariants: `refusal` is None exactly when there is no reason to refuse; the oldest reason determines the
            error.
Strategy:   the hot path tests one attribute; reasons are kept by name, so that each part lifts only its own.
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.errors import Busy, RequestRejected, ServiceNotAvailable

Refusal = Callable[[], RequestRejected]


class Admission:
    """The reasons to refuse an append."""

    __slots__ = ("_reasons", "refusal")

    def __init__(self) -> None:
        self._reasons: dict[str, Refusal] = {}
        self.refusal: Refusal | None = None

    def block(self, reason: str, remark: str, error: type[RequestRejected] = ServiceNotAvailable) -> None:
        """Refuses appends with `error(remark)`; a second call for the same reason replaces the error."""
        assert remark, reason
        self._reasons[reason] = lambda: error(remark)
        self._choose()

    def unblock(self, reason: str) -> None:
        """Removes the reason."""
        if self._reasons.pop(reason, None) is not None:
            self._choose()

    def is_blocked(self, reason: str) -> bool:
        return reason in self._reasons

    def _choose(self) -> None:
        self.refusal = next(iter(self._reasons.values()), None)
        assert (self.refusal is None) == (not self._reasons), self._reasons


def overload(remark: str) -> Busy:
    """Returns the refusal for a full bound; clients recognise its prefix and try another broker."""
    return Busy(f"[OVERLOAD]{remark}")
