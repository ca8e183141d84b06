"""Ports for servers that cannot listen at port 0, because their port must be known before they run."""

from __future__ import annotations

import os
import random
import socket

# Below what systems give to outgoing connections: none of those takes a port between its choice and its use.
LOWEST, HIGHEST = 12_000, 32_000
_chance = random.Random(os.getpid())


def free_port(host: str = "127.0.0.1", neighbours: tuple[int, ...] = ()) -> int:
    """A port that is free, as are those at these distances from it."""
    for _ in range(1_000):
        port = _chance.randrange(LOWEST, HIGHEST)
        if all(_is_free(host, port + distance) for distance in (0, *neighbours)):
            return port
    raise AssertionError(f"no free ports at {host}")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind((host, port))
        except OSError:
            return False
    return True
