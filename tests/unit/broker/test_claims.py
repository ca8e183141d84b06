"""The broker's trust in the progress that consumers claim, tested directly, without a log or a connection."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.clients.consumer_table import (
    ACTIVE_TYPE,
    BROADCASTING,
    FROM_LAST,
    ConsumerGroup,
    Consumption,
)
from tandemmq.broker.offsets.claims import CLAIM_REFUSED, OFFSET_RESET, Claims, Moved
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.consume import (
    PullRequest,
    QueryOffsetRequest,
    SeenRecord,
    UpdateOffsetRequest,
)
from tandemmq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUSPEND
from tandemmq.protocol.topic_names import TOOLS_GROUP
from tandemmq.store.outcomes import QueueBounds

LIFE_START, END = 3, 23
SECOND_MS = 1_000


class Store:
    """One queue: record n is at log offset 100 n and was stored at n seconds."""

    def __init__(self) -> None:
        self.min_offset, self.run_start, self.end = 0, LIFE_START, END
        self.max_log_offset = 100 * END
        self.reader = self

    def queue_bounds(self, _topic: str, _queue_id: int) -> QueueBounds:
        return QueueBounds(self.min_offset, self.end, self.end, self.run_start)

    def has_record(
        self, _topic: str, _queue_id: int, offset: int, log_offset: int, at_ms: int
    ) -> bool | None:
        if not self.min_offset <= offset < self.end:
            return None if offset < self.min_offset else False
        return (log_offset, at_ms) == (100 * offset, SECOND_MS * offset)

    def offset_by_time(self, _topic: str, _queue_id: int, at_ms: int) -> int:
        return min(max(self.min_offset, -(-at_ms // SECOND_MS)), self.end)

    def offset_beyond(self, _topic: str, _queue_id: int, log_offset: int) -> int:
        return min(max(self.min_offset, log_offset // 100 + 1), self.end)


class Channel:
    """A connection; claims do not read `is_closed`."""

    def __init__(self, host: str = "10.0.0.1", port: int = 1) -> None:
        self.peer = host, port
        self.on_close: list[Callable[[Any], None]] = []


class Consumers:
    """The online groups; a member is identified by its connection."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}

    def get(self, group: str) -> ConsumerGroup | None:
        return self.groups.get(group)

    def member(self, _group: str, _channel: object) -> None:
        return None


class World:
    """The claims under test; `claims` may be replaced by those of a slave."""

    def __init__(self, *, is_slave: bool = False, count_max: int = 100) -> None:
        self.store, self.offsets, self.consumers = Store(), OffsetTable(), Consumers()
        self.may_commit = True
        options = BrokerOptions(broker_id=int(is_slave))
        core: Any = SimpleNamespace(
            store=self.store,
            consumers=self.consumers,
            offsets=self.offsets,
            options=options,
            may_commit=lambda: self.may_commit,
        )
        self.claims = Claims(core, count_max=count_max)
        self.channel = Channel()

    def online(self, model: str = "CLUSTERING", where: str = "", kind: str = "CONSUME_PASSIVELY") -> None:
        self.consumers.groups["G"] = ConsumerGroup("G", Consumption(kind, model, where))

    def pull(self, offset: int, *, channel: Channel | None = None, **changes: Any) -> int | None:
        moved = self.claims.judge(self._on(channel), request(offset, **changes), 0)
        assert moved is None or moved.remark == CLAIM_REFUSED
        return None if moved is None else moved.offset

    def commit(self, offset: int, *, is_tool: bool = False, **changes: Any) -> int:
        values = {"consumer_group": "G", "client_id": "c", **changes}
        header = UpdateOffsetRequest(topic="T", queue_id=0, committed_offset=offset, **values)
        return self.claims.judge_commit(self._on(None), header, is_tool=is_tool)

    def asked(self, channel: Channel | None = None) -> None:
        """Acts as a client that asks for its group's offset and has sent no heartbeat."""
        header = QueryOffsetRequest(consumer_group="G", topic="T", queue_id=0)
        self.claims.trust(self._on(channel), header)

    def _on(self, channel: Channel | None) -> Any:
        return channel or self.channel


def request(offset: int, **changes: Any) -> PullRequest:
    values: dict[str, Any] = {
        "consumer_group": "G",
        "client_id": "c",
        "sys_flag": 0,
        "committed_offset": 0,
        "suspend_timeout_ms": 0,
        "subscription_version": 0,
        "count_max": 32,
        **changes,
    }
    return PullRequest(topic="T", queue_id=0, queue_offset=offset, **values)


def seen(offset: int, *, is_other: bool = False) -> str:
    """Returns a record of this log, or one that another log had at its offset."""
    return SeenRecord(offset, 100 * offset, SECOND_MS * offset + is_other).render()


def test_client_at_or_below_the_start_of_the_run_is_trusted() -> None:
    world = World()
    assert world.pull(LIFE_START) is None
    assert world.pull(20) is None  # it was led there in this run
    assert world.pull(20, client_id="other") == LIFE_START


def test_a_claim_is_led_back_once_over_each_connection() -> None:
    world = World()
    world.offsets.commit("G", "T", 0, 5, 0)
    assert world.pull(12) == 5
    assert world.commit(12) == 5
    assert world.pull(12) is None  # it insists: the answer was not lost
    assert world.commit(12) == 12
    world = World()
    assert world.pull(12) == LIFE_START
    assert world.pull(12, channel=Channel(port=2)) == LIFE_START  # the answer may be lost with its connection


def test_a_client_that_asked_where_its_group_is_is_trusted_from_its_host() -> None:
    world = World()
    world.offsets.reset("G", "T", 0, LIFE_START, 0)
    assert world.claims.judge(world._on(None), request(0), 0) == Moved(LIFE_START, OFFSET_RESET)
    same_host = Channel(port=2)
    assert world.pull(12, client_id=None, channel=same_host) is None
    assert world.pull(12, client_id="d", channel=Channel("10.0.0.2")) == LIFE_START
    world.asked(other := Channel("10.0.0.3"))
    assert world.pull(12, client_id="d", channel=other) is None


def test_claims_of_a_connection_end_with_it() -> None:
    world = World(count_max=1)
    world.asked(first := Channel("10.0.0.5"))
    assert world.claims._count == 1
    for callback in first.on_close:
        callback(first)
    assert world.claims._count == 0
    assert world.pull(12, client_id="d") == LIFE_START  # the bound is free again


def test_at_the_bound_everybody_is_trusted() -> None:
    world = World(count_max=1)
    assert world.pull(0) is None
    assert world.pull(12, client_id="d") is None
    assert world.commit(12, client_id="e") == 12


def test_a_record_of_this_log_proves_the_offset_behind_it_and_no_further() -> None:
    world = World()
    assert world.pull(10, seen=seen(9)) is None
    world = World()
    assert world.pull(15, seen=seen(9)) == 10
    assert world.commit(15, seen=seen(9)) == 10
    assert world.commit(8, seen=seen(9)) == 8


def test_a_record_of_another_log_refutes_also_a_client_that_was_trusted() -> None:
    world = World()
    world.offsets.commit("G", "T", 0, 8, 0)
    assert world.pull(0) is None
    assert world.pull(20, seen=seen(19, is_other=True)) == 8
    assert world.commit(20) == 8  # until it has followed
    assert world.commit(20, seen=seen(19, is_other=True)) == 8
    assert world.pull(8) is None
    assert world.commit(9) == 9


def test_the_logs_may_have_parted_below_what_the_group_has_committed() -> None:
    """They diverged at the first record that is younger than the lost one."""
    world = World()
    world.offsets.commit("G", "T", 0, 8, 0)
    lost = SeenRecord(19, 1907, 4 * SECOND_MS).render()
    assert world.pull(20, seen=lost) == 4
    assert world.commit(20, seen=lost) == 4
    early = SeenRecord(2, 207, 15 * SECOND_MS).render()
    assert world.commit(3, seen=early) == 2
    world.store.min_offset = 6  # nothing is left below
    assert world.commit(20, seen=lost) == 6


def test_a_record_that_begins_after_the_lost_one_is_not_in_the_log_of_that_one() -> None:
    """The lost record was the 20th of a master that had lost its disk, so it lay near the log's beginning."""
    world = World()
    world.online(BROADCASTING)
    world.store.run_start = END  # all of them were stored in an earlier run
    lost = SeenRecord(19, 150, 22 * SECOND_MS).render()
    assert world.pull(20, seen=lost) == 2
    assert world.commit(20, seen=lost) == 2


@pytest.mark.parametrize(
    ("model", "where", "version_ms", "safe"),
    [
        ("CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", None, 1),
        ("CLUSTERING", FROM_LAST, None, LIFE_START),
        ("CLUSTERING", FROM_LAST, 2 * SECOND_MS, 2),
        ("CLUSTERING", FROM_LAST, 20 * SECOND_MS, LIFE_START),
        (BROADCASTING, "CONSUME_FROM_FIRST_OFFSET", None, LIFE_START),
    ],
)
def test_a_group_that_has_committed_nothing_goes_on_where_it_would_begin(
    model: str, where: str, version_ms: int | None, safe: int
) -> None:
    world = World()
    world.store.min_offset = 1
    world.online(model, where)
    if version_ms is not None:
        subscription: Any = type("Subscription", (), {"version": version_ms})
        world.consumers.groups["G"].subscriptions["T"] = subscription
    assert world.pull(20, seen=seen(19, is_other=True)) == safe


def test_of_those_that_keep_progress_of_their_own_the_commits_say_nothing() -> None:
    world = World()
    world.offsets.commit("G", "T", 0, 8, 0)
    world.online(BROADCASTING)
    assert world.pull(12) == LIFE_START
    world = World()
    world.offsets.record_pulled("G", "T", 0, 10)
    world.online(kind=ACTIVE_TYPE)
    assert world.pull(12) == 10


def test_a_pull_behind_the_end_is_led_back_whoever_asks() -> None:
    world = World()
    assert world.pull(0) is None
    assert world.pull(END + 5) == LIFE_START
    assert world.commit(END + 5) == LIFE_START


def test_a_pull_commits_unless_another_broker_may_be_the_master() -> None:
    world = World()
    assert world.pull(0, sys_flag=PULL_COMMIT_OFFSET, committed_offset=7) is None
    assert world.offsets.committed("G", "T", 0) == 7
    world.may_commit = False
    assert world.pull(8, sys_flag=PULL_COMMIT_OFFSET, committed_offset=8) is None
    assert world.offsets.committed("G", "T", 0) == 7


def test_a_tool_commits_up_to_the_end_and_reads_anywhere() -> None:
    world = World()
    assert world.commit(12, client_id=None, is_tool=True) == 12
    assert world.commit(END + 9, client_id=None, is_tool=True) == END
    assert world.pull(12, consumer_group=TOOLS_GROUP) is None


def test_a_consumer_that_nobody_knows_has_to_say_by_a_heartbeat_who_it_is() -> None:
    world = World()
    with pytest.raises(RequestRejected) as caught:
        world.pull(12, client_id=None, sys_flag=PULL_SUSPEND)
    assert caught.value.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert world.pull(12, client_id=None) is None


def test_a_topic_that_is_made_again_knows_nobody() -> None:
    world = World()
    assert world.pull(0) is None
    assert world.claims._count == 1
    for callback in world.offsets.on_topic_dropped:
        callback("T")
    assert world.claims._count == 0
    assert world.pull(12) == LIFE_START


def test_a_slave_leads_back_only_whoever_shows_a_record_that_its_copy_lacks() -> None:
    world = World(is_slave=True)
    world.offsets.commit("G", "T", 0, 8, 0)
    assert world.pull(12) is None
    assert world.pull(12, seen=seen(11)) is None
    assert world.pull(15, seen=seen(11)) == 12
    world = World(is_slave=True)
    world.offsets.commit("G", "T", 0, 8, 0)
    assert world.pull(12, seen=seen(11, is_other=True)) == 8
    assert world.commit(12, seen=seen(11, is_other=True)) == 8


def test_a_slave_refuses_a_reader_that_is_ahead_of_its_copy_or_may_belong_below_it() -> None:
    world = World(is_slave=True)
    ahead = SeenRecord(30, 100 * END, SECOND_MS * 30).render()
    with pytest.raises(RequestRejected, match="copy ends at") as caught:
        world.pull(31, seen=ahead)
    assert caught.value.code == ResponseCode.SLAVE_NOT_AVAILABLE
    world.store.min_offset = 6
    world.offsets.commit("G", "T", 0, 8, 0)
    lost = SeenRecord(11, 7, 4 * SECOND_MS).render()
    with pytest.raises(RequestRejected, match="begins at"):
        world.pull(12, seen=lost)
    world.store.min_offset = 20
    assert world.commit(19, seen=seen(15)) == 8  # the record is deleted here, so it proves nothing
