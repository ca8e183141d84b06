"""Decides whether the store accepts appends, and with which error it refuses them.

Invariants: `refusal` is None exactly when there is no reason to refuse; the oldest reason determines the
            error.
Strategy:   the hot path tests one attribute. Reasons are kept by name, so that a part removes only its own.
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.errors import Busy, RequestRejected, ServiceNotAvailable

Refusal = Callable[[], RequestRejected]


class Admission:
    """The reasons to refuse appends. `refusal` makes the error to raise; None while appends are accepted."""

    __slots__ = ("_reasons", "has_failed", "is_closed", "refusal")

    def __init__(self) -> None:
        self._reasons: dict[str, Refusal] = {}
        self.refusal: Refusal | None = None
        self.is_closed = False
        self.has_failed = False
        """True once the store has failed: nothing is written any more."""

    def block(self, reason: str, remark: str, error: type[RequestRejected] = ServiceNotAvailable) -> None:
        """Refuses appends with `error(remark)`; a second call for the same reason replaces the error."""
        assert remark, reason
        self._reasons[reason] = lambda: error(remark)
        self._choose()

    def fail(self) -> None:
        """Refuses appends for good, because the store has failed."""
        self.has_failed = True
        self.block("failed", "the store has failed")

    def close(self) -> None:
        """Refuses appends for good, because the store closes."""
        self.is_closed = True
        self.block("closed", "the store is closed")

    def require_open(self) -> None:
        """Raises ServiceNotAvailable if the store is closed or has failed."""
        if self.is_closed or self.has_failed:
            raise ServiceNotAvailable("the store is closed or has failed")

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
    """Returns the error for a bound that is full. Clients recognise its prefix and try another broker."""
    return Busy(f"[OVERLOAD]{remark}")
