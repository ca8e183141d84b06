"""Which slave a connection belongs to, where the protocol carries no name (spec replication 4.1).

A slave is known by its host. It has one connection at a time, so a second connection from a host is either
the same slave come back while its old connection has not been noticed dead, or another slave on that host.
Until that is certain both share one ReplicaId and count as one; this can only delay a synchronous send,
never confirm it wrongly.
Which of several doubtful connections the newcomer continues is not known either, so what it holds counts for
the one that holds most: whoever the newcomer is, no slave is counted twice then.
What settles it: a connection that acknowledges a byte which was sent to it after the newcomer spoke is alive,
so the newcomer is somebody else. Counting sockets instead would let one slave acknowledge twice.
A copy need not begin where the log begins: a slave that was empty may have been given only the last file. The
protocol does not tell it again when the slave comes back, so where the copies of a host begin is kept, for as
long as the log still has what they lack. The latest begin counts for all slaves of the host; this, too, can
only delay a send.
The name that a slave of ours tells (`SlaveNotice`) settles nothing: it comes beside the connection, if at
all, and no send may be confirmed because of it.
Source: spec replication 4.1, 5; decision 005.
"""

from __future__ import annotations

from tandemmq.units import ReplicaId

LATE_HOSTS_MAX = 64
"""Hosts whose copies begin late. Beyond it the oldest is forgotten, and its begin counts for every host."""


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
    """The connections that have reported, and what every replica holds: from its start to its position."""

    def __init__(self) -> None:
        self._connections: list[Connection] = []  # oldest first
        self._late_hosts: dict[str, int] = {}  # where the copies of a host begin
        self._start_of_others = 0

    def join(self, connection: Connection, *, begins_at: int | None = None, log_begin: int = 0) -> None:
        """A connection made its first report.

        `begins_at`: where its copy begins, 0 for at the log's begin; None when it goes on with an older one.
        `log_begin`: below it nothing is kept.
        """
        assert connection.id is None, "a connection makes its first report once"
        assert connection not in self._connections, connection.host
        self._note_begin(connection.host, begins_at, log_begin)
        assert all(begin > log_begin for begin in self._late_hosts.values()), (self._late_hosts, log_begin)
        for other in self._connections:
            if other.host == connection.host:
                other.alive_above = other.sent
        self._connections.append(connection)
        self._place(connection)
        self._assert_ids()

    def acknowledge(self, connection: Connection, log_offset: int) -> bool:
        """Note an acknowledgement; True when ids or positions of others may have changed with it."""
        assert connection.id is not None, "nothing is acknowledged before the first report"
        connection.acknowledged = log_offset
        mark = connection.alive_above
        if mark is not None and log_offset > mark:
            connection.alive_above = None
            for other in self._connections:
                if other.twin is connection:
                    self._place(other)
            self._assert_ids()
            return True
        return connection.twin is not None or mark is not None

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
        self._assert_ids()

    def positions(self) -> dict[ReplicaId, int]:
        """What each replica holds at the least: however the doubts end, as many slaves hold it."""
        positions: dict[ReplicaId, int] = {}
        for connection in self._connections:
            assert connection.id is not None
            if connection.twin is None:
                positions[connection.id] = connection.acknowledged
        for connection in self._connections:
            if connection.twin is not None:
                assert connection.twin.twin is None, "who is in doubt is the twin of nobody"
                fullest = max(self._candidates(connection), key=lambda other: other.acknowledged)
                assert fullest.id is not None
                positions[fullest.id] = max(positions[fullest.id], connection.acknowledged)
        return positions

    def position(self, replica: ReplicaId) -> int:
        return self.positions().get(replica, 0)

    def start(self, replica: ReplicaId) -> int:
        """Where what the replica holds begins, at the latest; 0 for with the log."""
        for connection in self._connections:
            if connection.id == replica:
                return self._late_hosts.get(connection.host, self._start_of_others)
        return 0

    def _note_begin(self, host: str, begins_at: int | None, log_begin: int) -> None:
        late = self._late_hosts
        assert begins_at is None or begins_at >= 0, (host, begins_at)
        for other in [other for other, start in late.items() if start <= log_begin]:
            del late[other]
        if self._start_of_others <= log_begin:
            self._start_of_others = 0
        if begins_at is None:
            return
        if begins_at > log_begin:
            late[host] = max(begins_at, late.pop(host, 0))  # the newest stand last
            if len(late) > LATE_HOSTS_MAX:
                self._start_of_others = max(self._start_of_others, late.pop(next(iter(late))))
            assert len(late) <= LATE_HOSTS_MAX, len(late)
        elif not any(other.host == host for other in self._connections):
            late.pop(host, None)  # all of the host begins anew

    def _assert_ids(self) -> None:
        """No id belongs to two replicas; who is in doubt shares that of an older one that is not."""
        owners = [one.id for one in self._connections if one.twin is None]
        assert len(owners) == len(set(owners)), owners
        for one in self._connections:
            assert one.id is not None, one.host
            assert one.twin is None or one.id == one.twin.id, (one.id, one.twin.id)
            assert one.twin is None or one.twin in self._connections, one.id

    def _candidates(self, connection: Connection) -> list[Connection]:
        """The older connections with ids of their own of which one may be the same slave."""
        older = self._connections[: self._connections.index(connection)]
        return [
            other
            for other in older
            if other.host == connection.host and other.twin is None and other.alive_above is not None
        ]

    def _place(self, connection: Connection) -> None:
        """Let the connection share the id of the oldest doubtful one before it, or have an id of its own."""
        for other in self._connections:
            if other is connection:
                break
            if other.host == connection.host and other.alive_above is not None:
                assert other.twin is None, "the oldest that is in doubt is sure of its id"
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
