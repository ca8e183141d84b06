"""The settings of one server of a Raft group. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.errors import ConfigError
from tandemmq.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftOptions:
    """The settings of one server. Times and bounds must be equal on all servers of a group."""

    joins: bool = False
    """True for a server that is added later: it starts without voters."""
    snapshot_entries: int = 1_000
    """The number of applied entries after which a snapshot replaces them in the log."""

    heartbeat_ms: int = 100
    election_timeout_ms: int = 500
    """The shortest time without a leader after which a follower asks for votes. Each wait is drawn at random
    between this and twice this.
    """
    proof_timeouts: int = 4
    """The time, in election timeouts, for which a started server waits for the answers of the others."""
    entries_per_request_max: int = 256
    bytes_per_request_max: int = 1 * MIB
    """The bound on the entries of a request; the first entry is sent regardless of its size."""
    unconfirmed_entries_max: int = 1_024
    """The number of proposals that may wait for a majority; further ones are refused."""
    command_bytes_max: int = 1 * MIB

    @property
    def proof_wait_ms(self) -> int:
        return self.proof_timeouts * self.election_timeout_ms

    def __post_init__(self) -> None:
        if not 1 <= self.heartbeat_ms <= self.election_timeout_ms // 3:
            raise ConfigError(
                f"heartbeat_ms: {self.heartbeat_ms} must be from 1 to a third of election_timeout_ms "
                f"({self.election_timeout_ms}), so that one lost heartbeat does not end a leadership"
            )
