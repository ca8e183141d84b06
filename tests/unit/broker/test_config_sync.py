"""Config sync between a TandemMQ slave and several kinds of masters, over in-memory connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import pytest

from sim.memory import ManualClock
from tandemmq.broker.offsets.offset_table import DelayOffsetTable, OffsetTable
from tandemmq.broker.replica.config_sync import ConfigSync, ReplicaTables
from tandemmq.broker.replica.handlers import ReplicaHandlers
from tandemmq.broker.topics.group_table import GroupTable, ModeTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.codes import LanguageCode, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import LogChecksumResponse
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import ServerOptions
from tandemmq.remoting.server import RemotingServer
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.runtime.tasks import TaskScope
from waits import until


def make_tables() -> ReplicaTables:
    return ReplicaTables(
        topics=TopicTable(),
        groups=GroupTable(),
        consumer_offsets=OffsetTable(),
        delay_offsets=DelayOffsetTable(),
        request_modes=ModeTable(),
    )


@dataclass
class Master:
    """A master's tables behind a real server; `seen` are the requests, `before` may change an answer."""

    tables: ReplicaTables = field(default_factory=make_tables)
    seen: list[Command] = field(default_factory=list)
    answers: list[Command] = field(default_factory=list)
    is_java: bool = False
    broken: set[int] = field(default_factory=set)
    on_topics: Callable[[], None] = lambda: None
    on_offsets: Callable[[], None] = lambda: None
    address: str = ""
    run_id: str = "first"
    is_slave: bool | None = None
    log_end: int = 1_000

    def handle(self, channel: Channel, command: Command) -> Command:
        self.seen.append(command)
        if command.code == RequestCode.TANDEM_READ_LOG_CHECKSUM:
            told = LogChecksumResponse(
                min_offset=0,
                max_offset=self.log_end,
                size_bytes=0,
                crc=0,
                run_id=self.run_id,
                is_slave=self.is_slave,
            )
            return command.reply(header=told)
        if command.code in self.broken:
            return command.reply(1, remark="broken")
        handlers = ReplicaHandlers(self.tables, HaStatus)
        reply = handlers.routes()[command.code](channel, command)
        assert isinstance(reply, Command)
        if command.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            self.on_topics()
        if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            self.on_offsets()
        if self.is_java:
            reply.language = int(LanguageCode.JAVA)
        self.answers.append(reply)
        return reply

    def put_topics(self, count: int) -> None:
        for number in range(count):
            self.tables.topics.put(TopicConfig(name=f"topic-{number:05}"), 1)


@pytest.fixture
async def master() -> AsyncIterator[Master]:
    subject = Master()
    codes = ReplicaHandlers(subject.tables, HaStatus).routes()
    server = RemotingServer(
        dict.fromkeys([*codes, RequestCode.TANDEM_READ_LOG_CHECKSUM], subject.handle),
        network=TcpNetwork(),
        clock=LoopClock(),
        options=ServerOptions(),
    )
    host, port = await server.start("127.0.0.1", 0)
    subject.address = f"{host}:{port}"
    yield subject
    await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    subject = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    yield subject
    await subject.close()


class Queues:
    """Queues whose copies hold 100 messages each; no deletion is new."""

    def __init__(self) -> None:
        self.deletions = self

    def queue_max(self, _topic: str, _queue_id: int) -> int:
        return 100

    async def apply(self, deleted: Mapping[str, int]) -> list[str]:
        return []


def make_sync(
    tables: ReplicaTables, client: RemotingClient, own: str = "me:1", run_id: str | None = ""
) -> ConfigSync:
    return ConfigSync(
        tables,
        Queues(),
        client=client,
        clock=LoopClock(),
        options=ReplicationOptions(config_sync_interval_ms=20),
        own_address=lambda: own,
        followed=lambda: run_id,
    )


def same(mine: ReplicaTables, masters: ReplicaTables) -> bool:
    return (
        mine.topics.snapshot() == masters.topics.snapshot()
        and mine.groups.snapshot().groups == masters.groups.snapshot().groups
        and mine.groups.data_version == masters.groups.data_version
        and mine.consumer_offsets.snapshot() == masters.consumer_offsets.snapshot()
        and mine.delay_offsets.snapshot() == masters.delay_offsets.snapshot()
    )


async def test_one_round_makes_the_tables_equal(master: Master, client: RemotingClient) -> None:
    master.put_topics(3)
    master.tables.groups.put(SubscriptionGroupConfig(name="g", retry_count_max=3), 2)
    master.tables.consumer_offsets.commit("g", "topic-00001", 0, 17, 3)
    master.tables.delay_offsets.update(4, 99, 4)
    tables = make_tables()
    assert await make_sync(tables, client).sync_once(master.address)
    assert same(tables, master.tables)


async def test_empty_tables_are_tables_too(master: Master, client: RemotingClient) -> None:
    tables = make_tables()
    assert await make_sync(tables, client).sync_once(master.address)
    assert same(tables, master.tables)


@pytest.mark.parametrize("is_java", [False, True])
@pytest.mark.parametrize("count", [1999, 2000, 2001, 4001, 4500])
async def test_every_entry_of_a_large_table_arrives(
    master: Master, client: RemotingClient, count: int, is_java: bool
) -> None:
    master.put_topics(count)
    master.is_java = is_java
    tables = make_tables()
    assert await make_sync(tables, client).sync_once(master.address)
    assert tables.topics.snapshot() == master.tables.topics.snapshot()


async def test_topics_removed_on_the_master_go_away(master: Master, client: RemotingClient) -> None:
    master.put_topics(3)
    tables = make_tables()
    sync = make_sync(tables, client)
    await sync.sync_once(master.address)
    master.tables.topics.remove("topic-00001", 5)
    tables.topics.put(TopicConfig(name="only-here"), 6)
    await sync.sync_once(master.address)
    assert tables.topics.names == ["topic-00000", "topic-00002"]


async def test_unchanged_tables_of_a_master_of_ours_are_not_sent_again(
    master: Master, client: RemotingClient
) -> None:
    master.put_topics(50)
    tables = make_tables()
    changes: list[list[str]] = []
    tables.topics.on_change.append(changes.append)
    sync = make_sync(tables, client)
    await sync.sync_once(master.address)
    first = next(a for a in master.answers if b"topic-00000" in bytes(a.body))
    master.answers.clear()
    await sync.sync_once(master.address)
    assert len(changes) == 1
    assert not any(b"topic-00000" in bytes(answer.body) for answer in master.answers)
    assert len(first.body) > 5_000

    master.tables.topics.put(TopicConfig(name="new"), 7)
    await sync.sync_once(master.address)
    assert tables.topics.get("new") is not None
    assert len(tables.topics) == 51


async def test_a_copy_that_begins_during_a_round_is_told_everything_again(
    master: Master, client: RemotingClient
) -> None:
    """The results of the previous round, such as deletions, belonged to another log."""
    master.put_topics(2)
    sync = make_sync(make_tables(), client)
    await sync.sync_once(master.address)
    master.on_topics = sync.begin_copy
    await sync.sync_once(master.address)
    assert sync.held is None
    master.on_topics = lambda: None
    master.answers.clear()
    await sync.sync_once(master.address)
    assert any(b"topic-00000" in bytes(answer.body) for answer in master.answers)
    assert sync.held is not None


async def test_table_of_a_java_master_is_applied_once_per_version(
    master: Master, client: RemotingClient
) -> None:
    master.is_java = True
    master.put_topics(2)
    tables = make_tables()
    changes: list[list[str]] = []
    tables.topics.on_change.append(changes.append)
    sync = make_sync(tables, client)
    for _ in range(3):
        assert await sync.sync_once(master.address)
    assert len(changes) == 1
    topics = [c for c in master.seen if c.code == RequestCode.GET_ALL_TOPIC_CONFIG]
    assert all(command.fields["topicSeq"] == "0" for command in topics)


async def test_table_that_changes_between_pages_is_asked_for_again(
    master: Master, client: RemotingClient
) -> None:
    master.put_topics(4500)
    pages = iter(range(2))

    def change() -> None:
        if next(pages, None) is not None:
            master.tables.topics.put(TopicConfig(name=f"zz-{len(master.tables.topics)}"), 9)

    master.on_topics = change
    tables = make_tables()
    assert await make_sync(tables, client).sync_once(master.address)
    assert tables.topics.snapshot() == master.tables.topics.snapshot()
    assert len(tables.topics) == 4502


async def test_item_that_fails_does_not_stop_the_others(master: Master, client: RemotingClient) -> None:
    master.put_topics(1)
    master.tables.groups.put(SubscriptionGroupConfig(name="g"), 2)
    master.broken = {RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET}
    tables = make_tables()
    sync = make_sync(tables, client)
    assert not await sync.sync_once(master.address)
    assert tables.groups.get("g") is not None
    assert len(tables.topics) == 0
    master.broken = set()
    assert await sync.sync_once(master.address)
    assert len(tables.topics) == 1


async def test_offsets_that_only_the_slave_knows_stay(master: Master, client: RemotingClient) -> None:
    tables = make_tables()
    tables.consumer_offsets.commit("mine", "t", 0, 5, 1)
    tables.consumer_offsets.commit("both", "t", 0, 50, 1)
    tables.consumer_offsets.commit("both", "t", 1, 50, 1)
    master.tables.consumer_offsets.commit("both", "t", 0, 40, 1)
    await make_sync(tables, client).sync_once(master.address)
    assert tables.consumer_offsets.committed("mine", "t", 0) == 5
    assert tables.consumer_offsets.committed("both", "t", 0) == 40
    # For each key the master's queues replace the slave's (spec replication 6.2).
    assert tables.consumer_offsets.committed("both", "t", 1) is None


async def test_what_was_told_before_a_deletion_does_not_come_back(
    master: Master, client: RemotingClient
) -> None:
    """The slave learns the deletion from the log while the master's offsets are in transit."""
    tables, theirs = make_tables(), master.tables.consumer_offsets
    for topic in ("t", "other"):
        theirs.commit("g", topic, 0, 4, 1)
    sync = make_sync(tables, client)
    await sync.sync_once(master.address)
    theirs.commit("g", "other", 0, 5, 1)

    def delete() -> None:
        theirs.drop_topic("t")
        sync.forget_progress("t")

    master.on_offsets = delete
    assert await sync.sync_once(master.address)
    mine = tables.consumer_offsets
    assert (mine.committed("g", "t", 0), mine.committed("g", "other", 0)) == (None, 5)
    master.on_offsets = lambda: None
    theirs.commit("g", "t", 0, 1, 1)
    assert await sync.sync_once(master.address)
    assert mine.committed("g", "t", 0) == 1


async def test_offsets_of_a_group_that_were_deleted_go_away(master: Master, client: RemotingClient) -> None:
    """A group that is created again must not start at its old offsets, whichever broker is master by then."""
    tables, theirs = make_tables(), master.tables.consumer_offsets
    for topic in ("t", "u"):
        theirs.commit("g", topic, 0, 50, 1)
    theirs.commit("h", "t", 0, 50, 1)
    sync = make_sync(tables, client)
    await sync.sync_once(master.address)
    mine = tables.consumer_offsets
    assert mine.committed("g", "u", 0) == 50
    theirs.drop_group("g", 2)
    theirs.commit("g", "t", 0, 50, 3)  # it has reached the same offset again in one topic
    assert await sync.sync_once(master.address)
    assert (mine.committed("g", "t", 0), mine.committed("g", "u", 0)) == (50, None)
    assert mine.committed("h", "t", 0) == 50
    mine.commit("g", "u", 0, 7, 4)  # at this slave, while its master was away
    assert await sync.sync_once(master.address)
    assert mine.committed("g", "u", 0) == 7
    again = OffsetTable()
    again.load(mine.encode())
    again.apply_dropped({"g": (2, 0)})
    assert again.committed("g", "u", 0) == 7, "a restart forgets what was taken"
    theirs.drop_group("g", 1)  # the master's clock was set back
    assert await sync.sync_once(master.address)
    assert mine.committed("g", "u", 0) is None


async def test_a_deleted_group_is_known_as_deleted(master: Master, client: RemotingClient) -> None:
    """Its popped messages are dropped; those of a group that is merely unknown wait."""
    tables = make_tables()
    for group in ("g", "h"):
        master.tables.groups.put(SubscriptionGroupConfig(name=group), 1)
    sync = make_sync(tables, client)
    await sync.sync_once(master.address)
    master.tables.groups.remove("g", 2)
    await sync.sync_once(master.address)
    assert tables.groups.is_deleted("g")
    assert not tables.groups.is_deleted("never seen")


async def test_no_table_of_an_earlier_term_is_taken(master: Master, client: RemotingClient) -> None:
    """A broker that becomes the master of this term may still serve its tables of an earlier one."""
    tables = make_tables()
    master.put_topics(1)
    mine = tables.topics
    mine.put(TopicConfig(name="newer"), 1)
    mine.data_version = mine.data_version.of_term(2, 5)
    master.tables.topics.data_version = master.tables.topics.data_version.of_term(1, 6)
    sync = make_sync(tables, client)
    sync.keeps_newer = True
    sync.set_master(master.address)
    await sync.sync_once(master.address)
    assert mine.names == ["newer"]
    master.tables.topics.data_version = master.tables.topics.data_version.of_term(3, 7)
    await sync.sync_once(master.address)
    assert mine.names == ["topic-00000"]


async def test_runs_until_stopped_and_follows_the_master(master: Master, client: RemotingClient) -> None:
    tables = make_tables()
    sync = make_sync(tables, client)
    task = asyncio.ensure_future(sync.run())
    try:
        sync.set_master(master.address)
        await until(lambda: sync.complete_round >= 1)
        master.put_topics(1)
        await until(lambda: len(tables.topics) == 1)
        sync.set_master(None)
        await asyncio.sleep(0)
        assert sync.master is None
        sync.set_master("127.0.0.1:1")
        sync.set_master(master.address)
        rounds = sync.complete_round
        await until(lambda: sync.complete_round > rounds)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_never_asks_itself(client: RemotingClient) -> None:
    sync = make_sync(make_tables(), client, own="me:1")
    sync.set_master("me:1")
    assert sync.master is None


async def test_unreachable_master_is_a_failed_round(client: RemotingClient) -> None:
    tables = make_tables()
    tables.topics.put(TopicConfig(name="kept"), 1)
    assert not await make_sync(tables, client).sync_once("127.0.0.1:1")
    assert tables.topics.names == ["kept"]


async def test_version_without_any_change_is_never_taken_for_equal(
    master: Master, client: RemotingClient
) -> None:
    # A table that was loaded from a file without dataVersion has entries and no version.
    master.tables.topics.replace_all({"a": TopicConfig(name="a")}, DataVersion())
    tables = make_tables()
    sync = make_sync(tables, client)
    for _ in range(2):
        assert await sync.sync_once(master.address)
        assert tables.topics.names == ["a"]


async def test_nothing_is_asked_of_a_master_whose_log_is_not_copied(
    master: Master, client: RemotingClient
) -> None:
    master.put_topics(1)
    assert not await make_sync(make_tables(), client, run_id=None).sync_once(master.address)
    assert master.seen == []


async def test_nothing_is_taken_from_a_master_that_came_back_as_a_slave(
    master: Master, client: RemotingClient
) -> None:
    """It was emptied, and copies another broker's log: its tables are still empty, and its log is not."""
    tables = make_tables()
    tables.topics.put(TopicConfig(name="kept"), 1)
    master.is_slave = True
    assert not await make_sync(tables, client, run_id="first").sync_once(master.address)
    assert tables.topics.names == ["kept"]


async def test_tables_of_another_run_of_the_master_are_rejected(
    master: Master, client: RemotingClient
) -> None:
    """It may have restarted with an empty disk while the connection to its previous run still seemed
    to work.
    """
    tables = make_tables()
    sync = make_sync(tables, client, run_id="first")
    master.put_topics(2)
    assert await sync.sync_once(master.address)
    master.tables.topics.remove("topic-00000", 5)
    master.tables.consumer_offsets.commit("g", "topic-00001", 0, 17, 3)
    master.run_id = "second"
    assert not await sync.sync_once(master.address)
    assert len(tables.topics) == 2
    assert tables.consumer_offsets.committed("g", "topic-00001", 0) is None
    master.run_id = "first"
    assert await sync.sync_once(master.address)
    assert same(tables, master.tables)


async def test_progress_ahead_of_the_own_queue_is_not_taken(master: Master, client: RemotingClient) -> None:
    tables = make_tables()
    sync = make_sync(tables, client)
    for told, expected in [(99, 99), (150, 100), (60, 60), (101, 100)]:
        master.tables.consumer_offsets.commit("g", "t", 0, told, 3)
        master.tables.delay_offsets.update(2, told, 4)
        assert await sync.sync_once(master.address)
        assert tables.consumer_offsets.committed("g", "t", 0) == expected
        assert tables.delay_offsets.get(2) == expected
    # Already held from when the slave's queue was longer: lowering it would gain nothing.
    tables.consumer_offsets.commit("g", "t", 0, 120, 3)
    master.tables.consumer_offsets.commit("g", "t", 0, 130, 3)
    assert await sync.sync_once(master.address)
    assert tables.consumer_offsets.committed("g", "t", 0) == 120


async def test_a_master_with_an_empty_log_removes_nothing(master: Master, client: RemotingClient) -> None:
    tables = make_tables()
    tables.topics.put(TopicConfig(name="only-here"), 6)
    tables.groups.put(SubscriptionGroupConfig(name="only-here"), 6)
    sync = make_sync(tables, client, run_id="first")
    master.put_topics(1)
    master.log_end = 0
    for _ in range(2):
        assert await sync.sync_once(master.address)
        assert tables.topics.names == ["only-here", "topic-00000"]
        assert tables.groups.get("only-here") is not None
    master.log_end = 1
    assert await sync.sync_once(master.address)
    assert same(tables, master.tables)


@pytest.mark.parametrize(("is_whole", "pause_s"), [(False, 1), (True, 10)])
async def test_round_that_took_long_is_repeated_soon(
    client: RemotingClient, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool, pause_s: int
) -> None:
    """Cluster simulation, seeds 11 and 902: minutes passed because a request had hung in the network."""
    clock, begun = ManualClock(), list[float]()
    options = ReplicationOptions(config_sync_interval_ms=1_000)
    sync = ConfigSync(
        make_tables(),
        Queues(),
        client=client,
        clock=clock,
        options=options,
        own_address=lambda: "me:1",
        followed=lambda: "",
    )

    async def wait_in_vain(_master: str) -> bool:
        begun.append(clock.monotonic())
        await clock.sleep(30)
        return is_whole

    monkeypatch.setattr(sync, "sync_once", wait_in_vain)
    sync.set_master("gone:1")
    scope = TaskScope("test")
    scope.start("sync", sync.run())
    await clock.pass_time(45)
    await scope.close()
    assert begun == [0, 30 + pause_s]
