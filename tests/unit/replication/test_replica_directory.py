from tandemmq.replication.core.replicas import LATE_HOSTS_MAX, Connection, ReplicaDirectory


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
    acknowledge(directory, old, 100)  # a late report of bytes that were sent before: no proof of life
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
    )  # it counts for the first, as long as it may be the same
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
    third = connect(directory, sent=20)  # the second slave again, its old connection not known dead
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
