"""Maps connections to slaves. The protocol carries no slave name (spec replication 4.1).

A slave is identified by its host and has one connection at a time. A second connection from a host is
therefore either the same slave reconnecting before its old connection was noticed dead, or another slave on
that host. Until this is resolved, both share one ReplicaId and count as one slave. This can delay a
synchronous send, but never confirm it wrongly.
If several older connections are unverified, it is also unknown which of them the new one continues. Its
position is then credited to the one with the highest position, so no slave is counted twice.
An older connection is proven alive when it acknowledges a byte that was sent to it after the first report of
the new connection. The new connection is then another slave. Counting sockets instead would let one slave
acknowledge twice.
A copy need not begin where the log begins: an empty slave may have received only the last file. The protocol
does not repeat this when the slave reconnects. The directory therefore records where the copies of a host
begin, for as long as the log still holds the bytes that they lack. The latest begin applies to all slaves of
the host; this, too, can only delay a send.
The name that a TandemMQ slave reports (`SlaveNotice`) is not used here. It arrives outside the connection, if
at all, and must not cause a send to be confirmed.
Source:  spec replication 4.1, 5; decision 005.
"""

from __future__ import annotations

from tandemmq.units import ReplicaId

LATE_HOSTS_MAX = 64
"""The most hosts whose late-beginning copies are recorded. Beyond it the oldest entry is dropped, and its
begin then applies to every host.
"""


class Connection:
    """The state of one slave connection. `id` changes when it becomes known which slave this is."""

    __slots__ = ("acknowledged", "alive_above", "host", "id", "sent", "twin")

    def __init__(self, host: str) -> None:
        self.host = host
        self.id: ReplicaId | None = None
        """The replica that this connection counts as; None until the first report."""
        self.acknowledged = 0
        self.sent = 0
        """The offset below which every byte was sent."""
        self.alive_above: int | None = None
        """An acknowledgement above this offset proves the connection alive. None: it is not in question."""
        self.twin: Connection | None = None
        """The older connection that may be the same slave; this connection shares its id."""


class ReplicaDirectory:
    """The connections that have reported, and the range `[start, position)` that each replica holds."""

    def __init__(self) -> None:
        self._connections: list[Connection] = []  # oldest first
        self._late_hosts: dict[str, int] = {}  # host -> the offset at which its copies begin
        self._default_start = 0

    def join(self, connection: Connection, *, begins_at: int | None = None, log_begin: int = 0) -> None:
        """Adds a connection that made its first report.

        `begins_at`: the offset at which its copy begins; 0 means the begin of the log, None means that the
        slave continues an older copy. `log_begin`: the first offset that the log still holds.
        """
        assert connection.id is None, "a connection makes its first report once"
        assert connection not in self._connections, connection.host
        self._record_begin(connection.host, begins_at, log_begin)
        assert all(begin > log_begin for begin in self._late_hosts.values()), (self._late_hosts, log_begin)
        for other in self._connections:
            if other.host == connection.host:
                other.alive_above = other.sent
        self._connections.append(connection)
        self._assign_id(connection)
        self._assert_ids()

    def acknowledge(self, connection: Connection, log_offset: int) -> bool:
        """Records an acknowledgement. Returns True if the ids or positions of other replicas may have
        changed.
        """
        assert connection.id is not None, "nothing is acknowledged before the first report"
        connection.acknowledged = log_offset
        mark = connection.alive_above
        if mark is not None and log_offset > mark:
            connection.alive_above = None
            for other in self._connections:
                if other.twin is connection:
                    self._assign_id(other)
            self._assert_ids()
            return True
        return connection.twin is not None or mark is not None

    def leave(self, connection: Connection) -> None:
        """Removes a connection that ended. A newer connection that shared its id keeps that id."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        sharers = [other for other in self._connections if other.twin is connection]
        for other in sharers:
            other.id = None
        for other in sharers:
            self._assign_id(other)
        self._assert_ids()

    def positions(self) -> dict[ReplicaId, int]:
        """Returns the position that each replica is certain to have reached, whichever connections turn out
        to belong to one slave.
        """
        positions: dict[ReplicaId, int] = {}
        for connection in self._connections:
            assert connection.id is not None
            if connection.twin is None:
                positions[connection.id] = connection.acknowledged
        for connection in self._connections:
            if connection.twin is not None:
                assert connection.twin.twin is None, "an unverified connection is not a twin"
                fullest = max(self._candidates(connection), key=lambda other: other.acknowledged)
                assert fullest.id is not None
                positions[fullest.id] = max(positions[fullest.id], connection.acknowledged)
        return positions

    def position(self, replica: ReplicaId) -> int:
        return self.positions().get(replica, 0)

    def start(self, replica: ReplicaId) -> int:
        """Returns the latest offset at which the replica's copy may begin; 0 means the begin of the log."""
        for connection in self._connections:
            if connection.id == replica:
                return self._late_hosts.get(connection.host, self._default_start)
        return 0

    def _record_begin(self, host: str, begins_at: int | None, log_begin: int) -> None:
        late = self._late_hosts
        assert begins_at is None or begins_at >= 0, (host, begins_at)
        for other in [other for other, start in late.items() if start <= log_begin]:
            del late[other]
        if self._default_start <= log_begin:
            self._default_start = 0
        if begins_at is None:
            return
        if begins_at > log_begin:
            late[host] = max(begins_at, late.pop(host, 0))  # dict order is age: newest last
            if len(late) > LATE_HOSTS_MAX:
                self._default_start = max(self._default_start, late.pop(next(iter(late))))
            assert len(late) <= LATE_HOSTS_MAX, len(late)
        elif not any(other.host == host for other in self._connections):
            late.pop(host, None)  # all copies of the host begin anew

    def _assert_ids(self) -> None:
        """Asserts that no two replicas have the same id, and that an unverified connection shares the id of
        an older, verified one.
        """
        owners = [one.id for one in self._connections if one.twin is None]
        assert len(owners) == len(set(owners)), owners
        for one in self._connections:
            assert one.id is not None, one.host
            assert one.twin is None or one.id == one.twin.id, (one.id, one.twin.id)
            assert one.twin is None or one.twin in self._connections, one.id

    def _candidates(self, connection: Connection) -> list[Connection]:
        """Returns the older connections with ids of their own, one of which may be the same slave."""
        older = self._connections[: self._connections.index(connection)]
        return [
            other
            for other in older
            if other.host == connection.host and other.twin is None and other.alive_above is not None
        ]

    def _assign_id(self, connection: Connection) -> None:
        """Lets the connection share the id of the oldest unverified connection before it, or assigns a free
        id.
        """
        for other in self._connections:
            if other is connection:
                break
            if other.host == connection.host and other.alive_above is not None:
                assert other.twin is None, "the oldest unverified connection has its own id"
                connection.twin, connection.id = other, other.id
                return
        connection.twin = None
        connection.id = self._free_id(connection)

    def _free_id(self, connection: Connection) -> ReplicaId:
        used = {other.id for other in self._connections if other is not connection}
        number, candidate = 1, ReplicaId(connection.host)
        while candidate in used:
            number += 1
            candidate = ReplicaId(f"{connection.host}#{number}")
        return candidate
