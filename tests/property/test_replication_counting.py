"""However slaves on one host connect and disconnect, none is counted twice, or for a message before its copy;
in the end each is counted once.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.replication.core.replicas import Connection, ReplicaDirectory
from tandemmq.store.confirm import AckTable
from tandemmq.units import ReplicaId, align_down

FILE_BYTES = 20
"""The size of two messages."""


class Follower:
    """A simulated slave: one live connection, and old ones whose last reports may still arrive."""

    def __init__(self) -> None:
        self.start: int | None = None  # where its copy begins
        self.held = 0
        self.living: Connection | None = None
        self.dying: list[tuple[Connection, int]] = []  # with the content of its last report


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "copy", "redial", "late", "close"]), st.integers(0, 3)), max_size=60
)


REDIAL_OF_THE_FULLER = [
    ("redial", 1),
    ("redial", 0),
    ("send", 0),
    ("copy", 1),
    ("send", 0),
    ("copy", 0),
    ("redial", 0),
]


@given(STEPS)
@example(REDIAL_OF_THE_FULLER)
def test_no_slave_is_counted_twice(steps: list[tuple[str, int]]) -> None:
    directory = ReplicaDirectory()
    followers = [Follower() for _ in range(3)]
    end = 0
    for act, number in steps:
        follower = followers[number % len(followers)]
        living = follower.living
        if act == "send":
            end += 10
            for connection in [c for f in followers for c in _connections(f)]:
                connection.sent = end
        elif act == "copy" and living is not None:
            follower.held = living.sent
            directory.acknowledge(living, follower.held)
        elif act == "redial":
            if living is not None:
                follower.dying.append((living, follower.held))
            follower.living = Connection("host")
            follower.living.sent = follower.held
            directory.join(follower.living)
            directory.acknowledge(follower.living, follower.held)
        elif act == "late" and follower.dying:
            connection, held = follower.dying[0]
            directory.acknowledge(connection, held)
        elif act == "close" and follower.dying:
            directory.leave(follower.dying.pop(0)[0])
        positions = sorted(directory.positions().values(), reverse=True)
        truth = sorted((f.held for f in followers), reverse=True)
        assert len(positions) <= len(truth)
        assert all(counted <= real for counted, real in zip(positions, truth, strict=False))

    # Old sockets finally close, and one more message reaches every slave twice.
    for follower in followers:
        for connection, _ in follower.dying:
            directory.leave(connection)
    alive = [follower.living for follower in followers if follower.living is not None]
    for _ in alive:
        end += 10
        for connection in alive:
            connection.sent = end
            directory.acknowledge(connection, end)
    assert sorted(directory.positions().values()) == [end] * len(alive)


LATE_ONE_COMES_BACK = [("send", 0), ("send", 0), ("send", 0), ("redial", 3), ("copy", 0), ("redial", 0)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "copy", "redial", "hang up", "late", "close"]), st.integers(0, 5)),
        max_size=60,
    ),
    st.booleans(),
)
@example(LATE_ONE_COMES_BACK, True)
@example([*LATE_ONE_COMES_BACK[:-1], ("hang up", 0), ("close", 0), ("redial", 0)], True)
def test_no_slave_is_counted_for_what_it_never_had(steps: list[tuple[str, int]], one_host: bool) -> None:
    """Compares with the naive count of slaves that hold this message."""
    directory = ReplicaDirectory()
    followers = [Follower() for _ in range(3)]
    end = 0
    for act, number in steps:
        follower = followers[number % 3]
        if act == "send":
            end += 10
            for connection in [c for f in followers for c in _connections(f)]:
                connection.sent = end
        elif act == "copy" and follower.living is not None:
            follower.held = follower.living.sent
            directory.acknowledge(follower.living, follower.held)
        elif act in ("redial", "hang up"):
            if follower.living is not None:
                follower.dying.append((follower.living, follower.held))
                follower.living = None
            if act == "redial":
                _dial(directory, follower, f"host{0 if one_host else number % 3}", end, is_late=number >= 3)
        elif act == "late" and follower.dying:
            directory.acknowledge(*follower.dying[0])
        elif act == "close" and follower.dying:
            directory.leave(follower.dying.pop(0)[0])
        acks = AckTable()
        for replica, position in directory.positions().items():
            acks.report(replica, position, start=directory.start(ReplicaId(replica)))
        for message_end in range(10, end + 1, 10):
            having = sum(f.start is not None and f.start < message_end <= f.held for f in followers)
            counted = sum(
                acks.acknowledged(count, log_end=end, since=message_end) >= message_end for count in (1, 2, 3)
            )
            assert counted <= having, (message_end, directory.positions())


def _dial(directory: ReplicaDirectory, follower: Follower, host: str, end: int, *, is_late: bool) -> None:
    living = follower.living = Connection(host)
    begins_at = None
    if follower.start is None:
        begins_at = follower.start = align_down(end, FILE_BYTES) if is_late else 0
    living.sent = max(follower.held, follower.start)
    directory.join(living, begins_at=begins_at)
    directory.acknowledge(living, follower.held)


def _connections(follower: Follower) -> list[Connection]:
    return [c for c in (follower.living, *(c for c, _ in follower.dying)) if c is not None]
