"""The randomness of a simulation: the same seed yields the same numbers on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tandemmq.runtime.machine import SeededRandom

T = TypeVar("T")


class Dice(SeededRandom):
    """A `runtime.ports.Random` with the draws that simulations need."""

    def happens(self, percent: float) -> bool:
        """Returns True in `percent` of 100 draws."""
        return self.below(10_000) < percent * 100

    def between(self, low: int, high: int) -> int:
        """Returns an integer in `[low, high]`."""
        return low + self.below(high - low + 1)

    def pick(self, choices: Sequence[T]) -> T:
        """Returns one of the choices."""
        return choices[self.below(len(choices))]

    def pick_weighted(self, choices: Sequence[tuple[int, T]]) -> T:
        """Returns one of the choices, with a probability proportional to its weight."""
        throw = self.below(sum(weight for weight, _ in choices))
        for weight, choice in choices:
            if throw < weight:
                return choice
            throw -= weight
        raise AssertionError(throw)
