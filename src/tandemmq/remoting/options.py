"""Bounds of connections, and what happens at each."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.errors import ConfigError
from tandemmq.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """What one connection may hold; the same on both sides."""

    frame_bytes_max: int = 16 * MIB
    """A longer frame closes the connection (spec remoting 1)."""
    requests_in_flight_max: int = 16_384
    """Our own requests without an answer; one more raises Busy."""
    tasks_max: int = 256
    """Requests of the peer whose handler waits; one more is answered SYSTEM_BUSY `[OVERLOAD]`."""
    write_buffer_high_bytes: int = 4 * MIB
    """Above this much unsent we stop reading from the peer, until it falls to a quarter."""
    write_buffer_bytes_max: int = 128 * MIB
    """A peer for which more than this is unsent is disconnected."""
    slow_reader_close_s: float = 30.0
    """A peer that is above the high-water mark and takes no byte for this long is disconnected."""
    close_linger_s: float = 5.0
    """How long a closing connection may take to send what is left."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        if self.write_buffer_high_bytes > self.write_buffer_bytes_max:
            raise ConfigError("write_buffer_high_bytes must not be above write_buffer_bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Bounds of a listening server."""

    limits: ChannelLimits = field(default_factory=ChannelLimits)
    connections_max: int = 16_384
    """One more connection is closed at once."""
    frame_bytes_held_max: int = 256 * MIB
    """Unfinished frames of all connections together; the connection that wants more is closed. On a server
    with a guard, peers that have not shown yet who they are have a quarter of it."""
    idle_close_s: float = 120.0
    """A connection without any byte in either direction for this long is closed (spec remoting 5), and one on
    which a single frame takes longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Bounds of outgoing connections."""

    limits: ChannelLimits = field(default_factory=ChannelLimits)
    connect_timeout_s: float = 3.0
    idle_close_s: float = 120.0
    silent_close_s: float = 10.0
    """A request that times out closes its connection when nothing at all came in for this long."""
