"""The lag of groups at a scrape, from the tables of a broker in memory."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lone_parts import make_lone_parts
from sim.memory import ManualClock, MemoryDisk
from tandemmq.broker.clients.consumer_table import Consumption, Member, make_subscription
from tandemmq.broker.lag import LagReader
from tandemmq.broker.offsets.progress import ProgressReader, QueueMarks
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.leases import Lease, LeaseKey
from tandemmq.broker.pop.order_table import OrderedPop
from tandemmq.broker.pull.filters import SqlBudget
from tandemmq.broker.tables import Tables
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.record import NewRecord
from tandemmq.store import BrokerRole, MessageStore, StoreOptions
from tandemmq.telemetry import rocketmq_metrics as metrics

ROOT = Path("/broker")
LOG_FILE_BYTES = 4096


class Figures(NamedTuple):
    """The five values of one pair."""

    lag: float
    in_flight: float
    ready: float
    lag_ms: float = 0
    queueing_ms: float = 0


_FIELDS = {
    metrics.LAG_MESSAGES: "lag",
    metrics.INFLIGHT_MESSAGES: "in_flight",
    metrics.READY_MESSAGES: "ready",
    metrics.LAG_LATENCY: "lag_ms",
    metrics.QUEUEING_LATENCY: "queueing_ms",
}


class Rig:
    """The parts of a master, with the tables set by hand."""

    def __init__(self, store: MessageStore, clock: ManualClock) -> None:
        options = BrokerOptions(cluster_name="C", broker_name="b")
        disk = MemoryDisk()
        self.clock, self.store = clock, store
        self.tables = Tables(options, ROOT / "config", disk=disk, clock=clock)
        self.tables.load(delay_level_count=18)
        parts = make_lone_parts(options, store, self.tables, clock=clock, disk=disk)
        self.core, self.pop = parts.core, parts.pop
        self.lag = LagReader(self.core, self.pop)

    def topic(self, name: str, queue_count: int = 1) -> None:
        config = TopicConfig(
            name=name, read_queue_count=queue_count, write_queue_count=queue_count, permission=6
        )
        self.tables.topics.put(config, self.clock.now_ms())

    def group(self, name: str) -> None:
        self.tables.groups.put(SubscriptionGroupConfig(name=name), self.clock.now_ms())

    def commit(self, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
        self.core.offsets.commit(group, topic, queue_id, offset, self.clock.now_ms())

    def online(self, group: str, topic: str, model: str = "CLUSTERING") -> None:
        channel: Any = object()
        self.core.consumers.register(
            group,
            Member(channel, "client", 0, 0),
            Consumption("CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET"),
            [make_subscription(topic, "*", "TAG", 1, SqlBudget())],
        )

    def lease(self, topic: str, first: int, count: int, queue_id: int = 0) -> Lease:
        """Adds a lease of group G that a pop made, without its record."""
        key = LeaseKey(topic, "G", queue_id, first, self.clock.now_ms())
        lease = Lease(
            key,
            range(first, first + count),
            invisible_ms=60_000,
            revive_queue_id=0,
            end_offset=first + count,
        )
        self.pop.leases.add(lease)
        self.pop.pops.lease_log.move(key[:3], first + count)
        self.core.stats.count_checkpoint(topic, "G")
        return lease

    def put(self, topic: str = "T", count: int = 1, queue_id: int = 0, body: bytes = b"x") -> None:
        for _ in range(count):
            new = NewRecord(
                topic=topic, queue_id=queue_id, body=body, properties=b"", born_at_ms=1, born_host=bytes(8)
            )
            self.store.appender.append([new], lambda _status: None)
        self.clock.run_soon()

    def read(self, **bounds: int) -> dict[tuple[str, ...], Figures]:
        """Returns the figures by topic, group and is_retry."""
        found: dict[tuple[str, ...], dict[str, float]] = {}
        for metric, value, labels in self.samples(**bounds):
            if metric is not metrics.PAIRS_WITHOUT_SERIES:
                assert labels[:3] == ("C", "broker", "b")
                found.setdefault(labels[3:6], {})[_FIELDS[metric]] = value
        return {key: Figures(**values) for key, values in found.items()}

    def samples(self, **bounds: int) -> Iterable[Any]:
        return (sample for piece in self.lag.read(**bounds) for sample in piece)

    def left_out(self, **bounds: int) -> float:
        return next(one.value for one in self.samples(**bounds) if one.metric is metrics.PAIRS_WITHOUT_SERIES)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    clock = ManualClock()
    options = StoreOptions(
        root=Path("/s"),
        commit_log_file_bytes=LOG_FILE_BYTES,
        key_index_enable=False,
        consume_queue_file_bytes=400,
    )
    store = await MessageStore.open(options, disk=MemoryDisk(), clock=clock)
    rig = Rig(store, clock)
    rig.topic("T")
    rig.group("G")
    yield rig
    await store.close()


async def test_group_that_pulls(rig: Rig) -> None:
    rig.put(count=2)
    await rig.clock.pass_time(5.0)
    rig.put(count=3)
    await rig.clock.pass_time(2.0)
    rig.put(count=5)
    await rig.clock.pass_time(1.0)
    rig.commit("G", "T", 1)
    assert rig.read() == {("T", "G", "false"): Figures(9, 0, 9, 8_000, 8_000)}
    rig.core.offsets.record_pulled("G", "T", 0, 5)
    assert rig.read() == {("T", "G", "false"): Figures(9, 4, 5, 8_000, 1_000)}
    rig.commit("G", "T", 4)
    assert rig.read() == {("T", "G", "false"): Figures(6, 1, 5, 3_000, 1_000)}
    rig.commit("G", "T", 10)
    assert rig.read() == {("T", "G", "false"): Figures(0, 0, 0)}


async def test_queues_are_summed_and_one_without_an_offset_counts_as_unread(rig: Rig) -> None:
    rig.topic("T", 3)
    rig.put(count=4)
    rig.put(count=3, queue_id=1)
    await rig.clock.pass_time(1.0)
    rig.commit("G", "T", 2)
    assert ProgressReader(rig.core).of_queue("G", "T", 1) == QueueMarks(3, 0, 0)
    assert rig.read() == {("T", "G", "false"): Figures(5, 0, 5, 1_000, 1_000)}


async def test_group_that_pops_with_leases_in_flight(rig: Rig) -> None:
    rig.put(count=6)
    await rig.clock.pass_time(4.0)
    rig.put(count=4)
    await rig.clock.pass_time(1.0)
    rig.commit("G", "T", 0)
    first, second = rig.lease("T", 0, 3), rig.lease("T", 3, 4)
    assert rig.read() == {
        ("T", "G", "false"): Figures(10, 7, 3, 5_000, 1_000),
        ("T", "G", "true"): Figures(0, 0, 0),
    }
    rig.pop.leases.finish(first, [0, 1, 2])
    rig.pop.leases.finish(second, [0, 1])
    assert rig.read()["T", "G", "false"] == Figures(5, 2, 3, 5_000, 1_000)
    rig.pop.leases.finish(second, [2])
    rig.commit("G", "T", 7)
    assert rig.read()["T", "G", "false"] == Figures(4, 1, 3, 1_000, 1_000)
    rig.pop.leases.finish(second, [3])
    assert rig.read()["T", "G", "false"] == Figures(3, 0, 3, 1_000, 1_000)


async def test_messages_of_ended_leases_are_retries_under_the_name_of_the_topic(rig: Rig) -> None:
    rig.put(count=2)
    rig.commit("G", "T", 2)
    rig.topic("%RETRY%G_T")
    rig.put("%RETRY%G_T", 3)
    await rig.clock.pass_time(2.0)
    rig.commit("G", "%RETRY%G_T", 1)
    rig.lease("%RETRY%G_T", 1, 1)
    assert rig.read() == {
        ("T", "G", "false"): Figures(0, 0, 0),
        ("T", "G", "true"): Figures(2, 1, 1, 2_000, 2_000),
    }


async def test_retry_topic_of_a_group_that_pulls_is_no_retry_topic_of_another(rig: Rig) -> None:
    rig.group("G_T")
    rig.topic("%RETRY%G_T")
    rig.put("%RETRY%G_T", 3)
    rig.put()
    rig.commit("G", "T", 0)
    rig.commit("G_T", "%RETRY%G_T", 1)
    assert rig.read() == {("T", "G", "false"): Figures(1, 0, 1)}


async def test_ordered_pop_is_in_flight_until_its_messages_are_visible_again(rig: Rig) -> None:
    rig.put(count=8)
    await rig.clock.pass_time(1.0)
    rig.commit("G", "T", 2)
    now_ms = rig.clock.now_ms()
    pop = OrderedPop(
        [2, 3, 4], pop_time_ms=now_ms, invisible_ms=30_000, attempt_id="", seen_at_ms=now_ms, bits=0b010
    )
    rig.tables.orders.put(("T", "G", 0), pop)
    assert rig.read() == {("T", "G", "false"): Figures(5, 2, 3, 1_000, 1_000)}
    await rig.clock.pass_time(30.0)
    assert rig.read() == {("T", "G", "false"): Figures(6, 0, 6, 31_000, 31_000)}


async def test_group_behind_a_deleted_range(rig: Rig) -> None:
    """The deleted messages are lag, as for consumerProgress; the age is that of the oldest kept one."""
    for _ in range(6):
        rig.put(body=b"x" * 1_500)
        await rig.clock.pass_time(10.0)
    rig.commit("G", "T", 1)
    assert rig.read() == {("T", "G", "false"): Figures(5, 0, 5, 50_000, 50_000)}
    rig.store.queues.table["T", 0].min_offset = 4
    assert rig.read() == {("T", "G", "false"): Figures(5, 0, 5, 20_000, 20_000)}


async def test_unknown_topics_groups_and_the_brokers_own_have_no_series(rig: Rig) -> None:
    rig.put(count=2)
    rig.commit("G", "T", 1)
    rig.commit("G", "gone", 1)
    rig.commit("gone", "T", 1)
    rig.commit("G", "SCHEDULE_TOPIC_XXXX", 1)
    rig.commit("TOOLS_CONSUMER", "T", 1)
    rig.commit("CID_RMQ_SYS_X", "T", 1)
    assert set(rig.read()) == {("T", "G", "false")}
    rig.tables.topics.remove("T", rig.clock.now_ms())
    assert (rig.read(), rig.left_out()) == ({}, 0)


async def test_series_end_with_their_group(rig: Rig) -> None:
    rig.commit("G", "T", 0)
    assert set(rig.read()) == {("T", "G", "false")}
    rig.tables.groups.remove("G", rig.clock.now_ms())
    assert rig.read() == {}


@pytest.mark.parametrize(
    ("topic", "model", "count"),
    [("T", "CLUSTERING", 1), ("other", "CLUSTERING", 0), ("T", "BROADCASTING", 0)],
)
async def test_online_group_has_series_of_what_it_consumes_together(
    rig: Rig, topic: str, model: str, count: int
) -> None:
    rig.commit("G", "T", 0)
    rig.online("G", topic, model)
    assert len(rig.read()) == count


async def test_system_topics_are_marked(rig: Rig) -> None:
    rig.commit("G", "RMQ_SYS_TRACE_TOPIC", 0)
    rig.topic("RMQ_SYS_TRACE_TOPIC")
    rig.topic("rmq_sys_x")
    rig.commit("G", "T", 0)
    rig.commit("G", "rmq_sys_x", 0)
    labels = {one.labels[3]: one.labels[6] for one in rig.samples() if one.metric is metrics.LAG_MESSAGES}
    assert labels == {"RMQ_SYS_TRACE_TOPIC": "true", "rmq_sys_x": "true", "T": "false"}


async def test_pairs_with_the_most_lag_have_series(rig: Rig) -> None:
    counts: Mapping[str, int] = {"A": 2, "B": 5, "C": 0, "D": 5, "E": 3}
    for topic, count in counts.items():
        rig.topic(topic)
        rig.put(topic, count)
        rig.commit("G", topic, 0)
    assert [topic for topic, _, _ in rig.read(series_max=3)] == ["B", "D", "E"]
    assert (rig.left_out(series_max=3), rig.left_out(series_max=5)) == (2, 0)
    assert [topic for topic, _, _ in rig.read(series_max=1)] == ["B"]


async def test_pairs_beyond_the_queues_that_are_read_are_left_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.broker.lag.QUEUES_READ_MAX", 3)
    for topic in ("A", "B", "C", "D"):
        rig.topic(topic, 2)
        rig.commit("G", topic, 0)
    assert set(rig.read()) == {("A", "G", "false")}
    assert rig.left_out() == 3


async def test_time_of_a_message_is_read_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put(count=2)
    rig.commit("G", "T", 0)
    read = rig.store.reader.stored_at
    reads: list[int] = []

    def stored_at(topic: str, queue_id: int, offset: int) -> int:
        reads.append(offset)
        return read(topic, queue_id, offset)

    monkeypatch.setattr(type(rig.store.reader), "stored_at", staticmethod(stored_at))
    for _ in range(3):
        rig.read()
    assert reads == [0]
    rig.commit("G", "T", 1)
    rig.read()
    assert reads == [0, 1]
    rig.core.offsets.drop_topic("T")
    rig.commit("G", "T", 1)
    rig.read()
    assert reads == [0, 1, 1]


async def test_slave_leaves_the_lag_to_its_master(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.commit("G", "T", 0)
    monkeypatch.setattr(rig.store, "role", BrokerRole.SLAVE)
    assert rig.read() == {}


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_kept_equals_what_is_read_anew(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    rig.topic("U", 3)
    rig.group("H")
    leases: list[Lease] = []
    for _ in range(60):
        topic, group, queue_id = chance.choice("TU"), chance.choice("GH"), chance.randrange(3)
        end = rig.store.queue_max(topic, queue_id)
        step = chance.randrange(9)
        if step < 3:
            rig.put(topic, chance.randrange(3), queue_id)
        elif step == 3:
            rig.commit(group, topic, chance.randint(0, end), queue_id)
        elif step == 4:
            rig.core.offsets.record_pulled(group, topic, queue_id, chance.randint(0, end))
        elif step == 5:
            await rig.clock.pass_time(0.001)
            leases.append(rig.lease("T", rig.store.queue_max("T", 0), 1))
        elif step == 6 and leases:
            rig.pop.leases.finish(leases.pop(), [0])
        elif step == 7:
            rig.topic("U", chance.randint(1, 4))
        else:
            await rig.clock.pass_time(1.0)
        kept = rig.read()
        kept_reader, rig.lag = rig.lag, LagReader(rig.core, rig.pop)
        assert rig.read() == kept
        rig.lag = kept_reader
