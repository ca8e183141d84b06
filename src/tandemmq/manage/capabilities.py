"""The knowledge which requests a broker does not support, learned from its answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.runtime.ports import Clock

A = TypeVar("A")

REMEMBERED_S: Final = 600.0
"""The time after which a broker is asked again, because it may have been upgraded."""
ENTRIES_MAX: Final = 4096


class Capabilities:
    """The features that brokers lack, by broker address and a name of the feature that the caller chooses.

    At a bound: with ENTRIES_MAX entries all are forgotten, and brokers are asked again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lacking: dict[tuple[str, str], float] = {}
        self._having: dict[str, float] = {}

    def lacks(self, address: str, feature: str) -> bool:
        """Returns True if this broker answered lately that it does not support the feature."""
        found_at = self._lacking.get((address, feature))
        return found_at is not None and self._clock.monotonic() - found_at < REMEMBERED_S

    def can(self, feature: str) -> bool:
        """Returns False if brokers lack the feature and none was found that has it."""
        now = self._clock.monotonic()
        if now - self._having.get(feature, -REMEMBERED_S) < REMEMBERED_S:
            return True
        return not any(
            name == feature and now - found_at < REMEMBERED_S for (_, name), found_at in self._lacking.items()
        )

    async def attempt(self, address: str, feature: str, work: Awaitable[A]) -> A | None:
        """Returns the result of `work`, a request to this broker; None if the broker does not support it,
        which is remembered. Other errors are raised.
        """
        try:
            answer = await work
        except RequestRejected as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            if len(self._lacking) >= ENTRIES_MAX:
                self._lacking.clear()
            self._lacking[address, feature] = self._clock.monotonic()
            return None
        self._having[feature] = self._clock.monotonic()
        return answer
