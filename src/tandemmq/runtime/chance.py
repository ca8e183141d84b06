"""Chance, real and seeded."""

from __future__ import annotations

import random
import secrets


def unpredictable_bytes(count: int) -> bytes:
    """For secrets and challenges; never the same twice, not even under a seed."""
    return secrets.token_bytes(count)


class SystemRandom:
    """Seeded once by the operating system; not for secrets."""

    def __init__(self) -> None:
        self._random = random.Random()

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


class SeededRandom(SystemRandom):
    """The same seed gives the same sequence, on every machine."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
