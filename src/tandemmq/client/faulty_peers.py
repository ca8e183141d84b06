"""Peers that failed a moment ago and are avoided for a while; pure.

Producers key it by broker name, consumers by address. One table serves all calls of a client: with thousands
of sends in flight the first failure spares the others the same wait. The time of avoidance doubles with each
failure in a row, from 2 s to 30 s, the range of RocketMQ's fault table (spec semantics 3.2), and one success
clears it.
"""

from __future__ import annotations

AVOID_S_MIN = 2.0
AVOID_S_MAX = 30.0


class FaultyPeers:
    """Peer -> until when it is avoided."""

    __slots__ = ("_failures", "_until")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def __bool__(self) -> bool:
        """False while no peer has failed since its last success."""
        return bool(self._until)

    def note_failure(self, peer: str, now_s: float) -> None:
        """Avoid the peer from now on, longer with every failure in a row.

        Failures of sends that were in flight together count once: only a failure after the avoidance has run
        out makes the next one longer.
        """
        if self._until.get(peer, 0.0) > now_s:
            return
        failures = self._failures.get(peer, 0)
        self._failures[peer] = failures + 1
        self._until[peer] = now_s + min(AVOID_S_MIN * 2.0 ** min(failures, 10), AVOID_S_MAX)

    def note_success(self, peer: str) -> None:
        """The peer answered: it is as good as any other again."""
        if self._failures:
            self._failures.pop(peer, None)
            self._until.pop(peer, None)

    def avoided(self, now_s: float) -> frozenset[str]:
        """The peers to pass over now; empty in the usual case, without work."""
        if not self._until:
            return frozenset()
        return frozenset(peer for peer, until in self._until.items() if until > now_s)
