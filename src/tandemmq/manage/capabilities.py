"""The requests that the brokers of a cluster support, learned from their answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.runtime.ports import Clock

A = TypeVar("A")

REMEMBERED_S: Final = 600.0
"""The time for which a broker's answer counts, because brokers are upgraded."""


class Capabilities:
    """The features that brokers have or lack, by a name of the feature that the caller chooses, each with the
    time of the latest such answer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lacking: dict[str, float] = {}
        self._having: dict[str, float] = {}

    def can(self, feature: str) -> bool:
        """Returns False if a broker lacks the feature and none was found that has it."""
        oldest = self._clock.monotonic() - REMEMBERED_S
        return self._having.get(feature, oldest) > oldest or self._lacking.get(feature, oldest) <= oldest

    async def attempt(self, feature: str, work: Awaitable[A]) -> A | None:
        """Returns the result of `work`, a request to a broker; None if the broker does not support it, which
        is remembered. Other errors are raised.
        """
        try:
            answer = await work
        except RequestRejected as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            self._lacking[feature] = self._clock.monotonic()
            return None
        self._having[feature] = self._clock.monotonic()
        return answer
