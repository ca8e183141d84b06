from types import SimpleNamespace
from typing import cast

from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import LogRange
from tandemmq.replication.core.replicas import LATE_HOSTS_MAX, Connection, ReplicaDirectory
from tandemmq.replication.shell import ReplicationMaster
from tandemmq.replication.shell.slave_connection import SlaveConnection
from tandemmq.runtime.ports import Clock, Network
from tandemmq.store.message_store import MessageStore
from tandemmq.units import ReplicaId


def connect(directory: ReplicaDirectory, host: str = "h", *, sent: int = 0) -> Connection:
    connection = Connection(host)
    connection.sent = sent
    directory.join(connection)
    return connection


def acknowledge(directory: ReplicaDirectory, connection: Connection, offset: int) -> bool:
    connection.sent = max(connection.sent, offset)
    return directory.acknowledge(connection, offset)


def test_slaves_on_different_hosts_count_each() -> None:
    directory = ReplicaDirectory()
    for host in ("a", "b"):
        acknowledge(directory, connect(directory, host), 10)
    assert directory.positions() == {"a": 10, "b": 10}


def test_slave_that_comes_back_counts_once_while_its_old_connection_is_not_known_dead() -> None:
    directory = ReplicaDirectory()
    old = connect(directory, sent=100)
    acknowledge(directory, old, 80)
    new = connect(directory, sent=80)
    acknowledge(directory, new, 90)
    assert directory.positions() == {"h": 90}
    acknowledge(directory, old, 100)  # a late report of bytes sent before proves nothing
    assert directory.positions() == {"h": 100}
    directory.leave(old)
    assert directory.positions() == {"h": 90}
    assert new.id == "h"


def test_second_slave_on_a_host_counts_once_the_first_acknowledges_later_bytes() -> None:
    directory = ReplicaDirectory()
    first = connect(directory, sent=100)
    second = connect(directory, sent=0)
    assert (
        acknowledge(directory, second, 50) is True
    )  # it counts as the first one while it may be the same slave
    assert directory.positions() == {"h": 50}
    assert acknowledge(directory, first, 101) is True
    assert directory.positions() == {"h": 101, "h#2": 50}
    assert directory.position(second.id or second.host) == 50  # type: ignore[arg-type]


def test_newcomer_may_be_any_doubtful_one_until_all_are_proved_alive() -> None:
    directory = ReplicaDirectory()
    first, second = connect(directory, sent=10), connect(directory, sent=10)
    acknowledge(directory, first, 11)
    assert len(directory.positions()) == 2
    third = connect(directory, sent=10)
    acknowledge(directory, third, 11)
    assert len(directory.positions()) == 2
    acknowledge(directory, first, 12)
    assert third.id == second.id
    acknowledge(directory, second, 12)
    assert directory.positions() == {"h": 12, "h#2": 12, "h#3": 11}


def test_newcomer_counts_for_the_fullest_of_those_that_it_may_be() -> None:
    directory = ReplicaDirectory()
    first, second = connect(directory), connect(directory)
    acknowledge(directory, first, 10)
    acknowledge(directory, second, 20)
    third = connect(directory, sent=20)  # the second slave again, its old connection not yet known to be dead
    acknowledge(directory, third, 20)
    assert sorted(directory.positions().values()) == [10, 20]


def test_chain_of_reconnects_leaves_one_replica() -> None:
    directory = ReplicaDirectory()
    connections = [connect(directory, sent=100) for _ in range(5)]
    acknowledge(directory, connections[-1], 100)
    assert directory.positions() == {"h": 100}
    for connection in connections[:-1]:
        directory.leave(connection)
        assert directory.positions() == {"h": 100}
    directory.leave(connections[-1])
    assert directory.positions() == {}


def test_leaving_twice_or_without_joining_changes_nothing() -> None:
    directory = ReplicaDirectory()
    connection = connect(directory)
    directory.leave(Connection("h"))
    directory.leave(connection)
    directory.leave(connection)
    assert directory.positions() == {}


def test_where_the_copies_of_a_host_begin_is_kept_while_the_log_has_what_they_lack() -> None:
    directory = ReplicaDirectory()
    late = Connection("h")
    directory.join(late, begins_at=4096)
    assert directory.start("h") == 4096  # type: ignore[arg-type]
    directory.leave(late)
    again = Connection("h")
    directory.join(again)
    other = Connection("other")
    directory.join(other, begins_at=0)
    assert [directory.start(c.id or "") for c in (again, other)] == [4096, 0]  # type: ignore[arg-type]
    directory.join(Connection("h"), begins_at=0)  # its neighbour on the host may still have the late copy
    assert directory.start("h") == 4096  # type: ignore[arg-type]
    directory.join(Connection("third"), log_begin=4096)
    assert directory.start("h") == 0  # type: ignore[arg-type]


def test_a_slave_that_was_emptied_and_copies_all_holds_all() -> None:
    directory = ReplicaDirectory()
    late = Connection("h")
    directory.join(late, begins_at=4096)
    directory.leave(late)
    directory.join(Connection("h"), begins_at=0)
    assert directory.start("h") == 0  # type: ignore[arg-type]


def test_of_too_many_hosts_that_began_late_the_oldest_counts_for_all() -> None:
    directory = ReplicaDirectory()
    for number in range(LATE_HOSTS_MAX + 1):
        directory.join(Connection(f"h{number}"), begins_at=4096 * (number + 1))
    directory.join(Connection("whole"))
    assert directory.start("h1") == 4096 * 2  # type: ignore[arg-type]
    assert directory.start("h0") == directory.start("whole") == 4096  # type: ignore[arg-type]


class Acks:
    """The reports to the store, and the most that two replicas were ever reported to hold at one moment."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.second = 0

    def report(self, replica: ReplicaId, offset: int, *, start: int = 0) -> None:
        self.held[replica] = offset
        self.second = max(self.second, *sorted(self.held.values())[:1]) if len(self.held) > 1 else 0

    def forget(self, replica: ReplicaId) -> None:
        self.held.pop(replica, None)


def make_master() -> tuple[ReplicationMaster, Acks]:
    acks = Acks()
    store = SimpleNamespace(
        options=SimpleNamespace(commit_log_file_bytes=1024), replies=SimpleNamespace(acks=acks)
    )
    master = ReplicationMaster(
        cast(MessageStore, store),
        ReplicationOptions(),
        network=cast(Network, None),
        clock=cast(Clock, None),
    )
    return master, acks


def test_no_moment_counts_a_byte_twice_while_ids_change() -> None:
    """Two connections turn out to be swapped: what one loses is withdrawn before the other gains it."""
    master, acks = make_master()
    held = {ReplicaId("a"): 10, ReplicaId("b"): 100}
    master._directory = cast(
        ReplicaDirectory, SimpleNamespace(positions=lambda: held, start=lambda _replica: 0)
    )
    master._report_all()
    acks.second = 0
    held = {ReplicaId("a"): 100, ReplicaId("b"): 10}
    master._report_all()
    assert acks.held == {"a": 100, "b": 10}
    assert acks.second == 10


def test_a_reader_is_sent_to_no_slave_whose_copy_begins_behind_what_comes_next() -> None:
    master, _ = make_master()
    master._directory = cast(ReplicaDirectory, SimpleNamespace(start=lambda _replica: 60))
    slave = SimpleNamespace(
        record=SimpleNamespace(id=ReplicaId("a")), session=SimpleNamespace(acknowledged=100), name=None
    )
    master._connections = [cast(SlaveConnection, slave)]
    assert not master.is_copied(1, LogRange(40, 50))
    assert not master.is_copied(1, LogRange(50, 70))
    assert master.is_copied(1, LogRange(60, 100))
    assert not master.is_copied(1, LogRange(90, 101))
