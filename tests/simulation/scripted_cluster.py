"""Simulated clusters of a fixed shape, with the helpers for their scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from sim.cluster.cluster import Cluster
from sim.cluster.nodes import BROKER_PORT, BrokerNode, Node
from sim.cluster.settings import Group, Settings
from sim.cluster.simulation import run_seed
from tandemmq.replication.core.options import FirstTransfer
from tandemmq.store import BrokerRole, FlushMode

SEED = 11
ALL = Group(name="all", member_count=1, tags="*")
DOUBLE_WRITE = Settings(
    name_server_count=1,
    slave_count=1,
    role=BrokerRole.SYNC_MASTER,
    flush_mode=FlushMode.ASYNC_FLUSH,
    has_pool=False,
    first_transfer=FirstTransfer.FIRST_FILE,
    commit_log_file_bytes=65_536,
    transfer_bytes_max=32_768,
    slow_sync_percent=0,
    queue_count=4,
    producer_count=1,
    worker_count=2,
    batch_linger_ms=None,
    groups=(ALL,),
    latency_ms=(0.2, 2.0),
    cut_percent=10,
    body_bytes_max=200,
    wait_percent=100,
    slave_read_enable=True,
    load_s=0.0,
    pause_ms=(20, 100),
)
ASYNC_COPY = replace(DOUBLE_WRITE, role=BrokerRole.ASYNC_MASTER)


class Scene:
    """A running cluster under load, with checks that fail the test if they do not hold."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.counts = cluster.ledger.counts

    @property
    def master(self) -> BrokerNode:
        return self.cluster.master

    @property
    def slave(self) -> BrokerNode:
        return self.cluster.slaves[0]

    @property
    def consumer(self) -> Node:
        return self.cluster.consumers[0]

    @property
    def finished_count(self) -> int:
        """The number of messages that the group has acknowledged."""
        return sum(len(progress.finished) for progress in self.cluster.ledger.progress.values())

    async def pass_time(self, seconds: float) -> None:
        await self.world.clock.sleep(seconds)

    async def until(self, is_met: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
        assert await self.world.until(is_met, timeout_s), f"not within {timeout_s:g} s: {what}"

    async def level(self) -> None:
        await self.until(self.cluster.is_caught_up, "the slaves are level", 120.0)

    async def acknowledges(self, count: int = 20) -> None:
        """Waits until `count` more sends are answered SEND_OK."""
        wanted = self.counts["SEND_OK"] + count
        await self.until(lambda: self.counts["SEND_OK"] >= wanted, "sends are acknowledged")

    async def acknowledges_nothing(self, seconds: float = 10.0) -> None:
        await self.pass_time(5.0)  # answers in transit
        before = self.counts["SEND_OK"]
        await self.pass_time(seconds)
        assert self.counts["SEND_OK"] == before

    async def consumes(self, count: int = 20) -> None:
        """Waits until the group acknowledges `count` more messages."""
        wanted = self.finished_count + count
        await self.until(lambda: self.finished_count >= wanted, "messages are consumed")

    async def consumes_nothing(self, seconds: float = 10.0) -> None:
        await self.pass_time(2.0)
        before = self.finished_count
        await self.pass_time(seconds)
        assert self.finished_count == before

    def served_bytes(self, broker: BrokerNode) -> int:
        """Returns the number of bytes that the broker has sent to the consumer."""
        return self.world.fabric.served_bytes[(broker.host.ip, BROKER_PORT), self.consumer.host.ip]

    def committed(self, broker: BrokerNode) -> int:
        """Returns the sum of the group's offsets that this broker stores."""
        assert broker.broker is not None
        queues = broker.broker._tables.offsets.snapshot().offsets.get("Orders@all", {})
        return sum(queues.values())

    def block(self, one: Node, other: Node) -> None:
        self.world.trouble()
        self.world.fabric.block(one.host.ip, other.host.ip)
        self.world.fabric.block(other.host.ip, one.host.ip)

    def unblock(self, one: Node, other: Node) -> None:
        self.world.trouble()
        self.world.fabric.unblock(one.host.ip, other.host.ip)
        self.world.fabric.unblock(other.host.ip, one.host.ip)


def play(script: Callable[[Scene], Awaitable[None]], settings: Settings = DOUBLE_WRITE) -> None:
    """Runs the script on a cluster under load; then everything comes level, is consumed, checked and
    stopped.
    """
    is_over = []

    async def run(cluster: Cluster) -> None:
        await script(Scene(cluster))
        is_over.append(True)

    result = run_seed(SEED, lambda _: settings, run)
    story = "\n".join([*result.trace[-40:], *result.findings.lines()])
    assert not result.findings, story
    assert is_over, story
