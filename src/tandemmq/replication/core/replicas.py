"""Which slave a connection belongs to, where the protocol carries no name (spec replication 4.1).

A slave is known by its host. It has one connection at a time, so a second connection from a host is either
the same slave come back while its old connection has not been noticed dead, or another slave on that host.
Until that is certain both share one ReplicaId and count as one; this can only delay a synchronous send,
never confirm it wrongly.
What settles it: a connection that acknowledges a byte which was sent to it after the newcomer spoke is alive,
so the newcomer is somebody else. Counting sockets instead would let one slave acknowledge twice.
"""

from __future__ import annotations

from tandemmq.units import ReplicaId


class Connection:
    """What is known of one slave connection; `id` changes when a doubt is settled."""

    __slots__ = ("acknowledged", "alive_above", "host", "id", "sent", "twin")

    def __init__(self, host: str) -> None:
        self.host = host
        self.id: ReplicaId | None = None
        """None until the first report."""
        self.acknowledged = 0
        self.sent = 0
        """Every byte below was sent."""
        self.alive_above: int | None = None
        """An acknowledgement above this proves the connection alive; None: nobody doubts it."""
        self.twin: Connection | None = None
        """The older connection that may be the same slave; this one shares its id."""


class ReplicaDirectory:
    """The connections that have reported, and the position of every replica."""

    def __init__(self) -> None:
        self._connections: list[Connection] = []  # oldest first

    def join(self, connection: Connection) -> None:
        """A connection made its first report."""
        for other in self._connections:
            if other.host == connection.host:
                other.alive_above = other.sent
        self._connections.append(connection)
        self._place(connection)

    def acknowledge(self, connection: Connection, log_offset: int) -> bool:
        """Note an acknowledgement; True when it settled a doubt, so that ids may have changed."""
        connection.acknowledged = log_offset
        mark = connection.alive_above
        if mark is None or log_offset <= mark:
            return False
        connection.alive_above = None
        for other in self._connections:
            if other.twin is connection:
                self._place(other)
        return True

    def leave(self, connection: Connection) -> None:
        """The connection ended; a newcomer that shared its id keeps the id for itself."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        heirs = [other for other in self._connections if other.twin is connection]
        for other in heirs:
            other.id = None
        for other in heirs:
            self._place(other)

    def positions(self) -> dict[ReplicaId, int]:
        """What each replica is known to hold: the highest acknowledgement among the connections that share
        its id."""
        positions: dict[ReplicaId, int] = {}
        for connection in self._connections:
            assert connection.id is not None
            held = positions.get(connection.id, 0)
            positions[connection.id] = max(held, connection.acknowledged)
        return positions

    def position(self, replica: ReplicaId) -> int:
        return max((c.acknowledged for c in self._connections if c.id == replica), default=0)

    def _place(self, connection: Connection) -> None:
        """Let the connection share the id of the oldest doubtful one before it, or have an id of its own."""
        for other in self._connections:
            if other is connection:
                break
            if other.host == connection.host and other.alive_above is not None:
                connection.twin, connection.id = other, other.id
                return
        connection.twin = None
        connection.id = self._free_id(connection)

    def _free_id(self, connection: Connection) -> ReplicaId:
        taken = {other.id for other in self._connections if other is not connection}
        number, candidate = 1, ReplicaId(connection.host)
        while candidate in taken:
            number += 1
            candidate = ReplicaId(f"{connection.host}#{number}")
        return candidate
