"""A real name server with a real master and optionally its slave, for the scenarios of the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from tandemmq.api import broker_admin, broker_send
from tandemmq.api.broker_send import SendStatus
from tandemmq.broker.broker import Broker
from tandemmq.broker.options import OPEN, AccessOptions, BrokerOptions
from tandemmq.client import (
    Admin,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.errors import TopicNotFound
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.remoting.options import render_address
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from tandemmq.store import BrokerRole, StoreOptions
from tandemmq.units import MIB
from waits import PATIENCE_S, until

FAST = ClientOptions(heartbeat_s=1.0, route_refresh_s=0.3)
FLUSHED_SOON = {"flush_least_pages": 0}
"""The options of a store that flushes a few messages after half a second too, instead of 10 s."""


class Rig:
    """Starts and stops brokers by name; `namesrv` is the address for clients."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._brokers: dict[tuple[str, int], Broker] = {}
        self.namesrv = ""

    async def start_broker(
        self,
        name: str = "broker-a",
        broker_id: int = 0,
        *,
        role: BrokerRole | None = None,
        access: AccessOptions = OPEN,
        store: Mapping[str, object] | None = None,
        **changes: object,
    ) -> Broker:
        """Starts a broker in its own directory; a restarted broker finds its files. `store`: other options of
        its store.
        """
        is_slave = broker_id > 0
        options = BrokerOptions(
            broker_name=name,
            broker_id=broker_id,
            listen_host="127.0.0.1",
            listen_port=0,
            fast_listen=False,
            name_servers=(self.namesrv,),
            slave_read_enable=True,
            **changes,  # type: ignore[arg-type]  # real fields
        )
        store_settings: dict[str, object] = {
            "commit_log_file_bytes": 16 * MIB,
            "consume_queue_file_bytes": 20_000,
            "key_index_slot_count": 1_000,
            "key_index_entry_count": 40_000,
            "role": role or (BrokerRole.SLAVE if is_slave else BrokerRole.ASYNC_MASTER),
            **(store or {}),
        }
        broker = Broker(
            options,
            StoreOptions(root=self._root / f"{name}-{broker_id}", **store_settings),  # type: ignore[arg-type]  # the same
            ReplicationOptions(heartbeat_interval_ms=200, silence_ms_max=20_000, reconnect_delay_ms=50),
            machine=Machine(TcpNetwork(), RealDisk(), LoopClock(), SeededRandom(7)),
            access=access,
        )
        self._brokers[name, broker_id] = broker
        await broker.start()
        return broker

    async def stop_broker(self, name: str = "broker-a", broker_id: int = 0) -> None:
        await self._brokers.pop((name, broker_id)).stop()

    async def stop_all(self) -> None:
        for key in sorted(self._brokers, reverse=True):
            await self._brokers.pop(key).stop()

    def consumer(self, group: str = "CG", topic: str = "T", tags: str = "*", **changes: object) -> Consumer:
        settings: dict[str, object] = {
            "client": FAST,
            "start_from": StartFrom.FIRST,
            "commit_s": 0.2,
            **changes,
        }
        consumer = Consumer(group, self.namesrv, options=ConsumerOptions(**settings))  # type: ignore[arg-type]  # real fields
        consumer.subscribe(topic, tags)
        return consumer

    async def wait_for_slave(self, name: str = "broker-a", *topics: str) -> None:
        """Waits until the slave has the master's log and knows the topics."""
        master, slave = self._brokers[name, 0], self._brokers[name, 1]
        assert master.store is not None
        assert slave.store is not None
        end = master.store.appended.value
        await until(lambda: slave.store.dispatched.value >= end, "the slave has the whole log")  # type: ignore[union-attr]
        address = render_address(slave.address)
        async with Admin(self.namesrv) as admin:
            for topic in topics:
                ask = partial(broker_admin.query_topic_config, admin._remoting, address, topic)
                await until(ask, f"the slave knows {topic}")

    async def wait_for_route(self, topic: str) -> None:
        """Waits until the name server knows the topic: a broker answers the send, or the heartbeat, that
        creates a topic before it has registered the topic.
        """
        async with Admin(self.namesrv) as admin:
            await until(lambda: admin.topic_route(topic), f"{topic} has a route", not_yet=(TopicNotFound,))

    async def send_raw(self, topic: str, body: bytes, *, sys_flag: int, queue_id: int = 0) -> None:
        """Sends a message with any sysFlag, as a client may, whatever the body is."""
        await send_raw(self.namesrv, topic, body, sys_flag=sys_flag, queue_id=queue_id)

    async def fill(self, topic: str, count: int, *, first: int = 0) -> None:
        """Sends messages with their number as body."""
        options = ProducerOptions(timeout_s=PATIENCE_S)
        async with Producer("filler", self.namesrv, options=options) as producer:
            messages = (
                Message(topic=topic, body=b"%d" % number, tags="t") for number in range(first, first + count)
            )
            assert (await producer.send_many(messages)).stored_count == count


async def send_raw(namesrv: str, topic: str, body: bytes, *, sys_flag: int, queue_id: int = 0) -> None:
    """Sends as `Rig.send_raw`, to the first broker of the topic."""
    async with Admin(namesrv) as admin:
        route = await admin.topic_route(topic)
        header = SendRequestV2(
            producer_group="raw",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_at_ms=1,
            flag=0,
        )
        answer = await broker_send.send(admin._remoting, route.brokers[0].addresses[0], header, body)
        assert answer.status is SendStatus.SEND_OK


@asynccontextmanager
async def running_rig(root: Path) -> AsyncIterator[Rig]:
    """Runs a name server; the test starts the brokers."""
    rig = Rig(root)
    options = NameServerOptions(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_config_path=root / "kv.json",
        config_store_path=root / "ns.conf",
    )
    server = NameServer(options, network=TcpNetwork(), disk=RealDisk(), clock=LoopClock())
    rig.namesrv = render_address(await server.start())
    try:
        yield rig
    finally:
        await rig.stop_all()
        await server.stop()


@asynccontextmanager
async def running_cluster(
    root: Path,
    *,
    queue_count: int = 4,
    with_slave: bool = False,
    store: Mapping[str, object] | None = None,
) -> AsyncIterator[Rig]:
    """Runs a master (and its slave) with topic T. `store`: other options of their stores."""
    async with running_rig(root) as rig:
        await rig.start_broker(store=store)
        if with_slave:
            await rig.start_broker(broker_id=1, store=store)
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=queue_count)
        yield rig


async def take(consumer: Consumer, count: int, timeout_s: float = PATIENCE_S) -> list[ReceivedMessage]:
    """Returns exactly `count` messages."""
    messages: list[ReceivedMessage] = []
    try:
        async with asyncio.timeout(timeout_s):
            while len(messages) < count:
                messages += await consumer.poll(count - len(messages), 0.5)
    except TimeoutError:
        raise AssertionError(f"{len(messages)} of {count} messages within {timeout_s:g} s") from None
    return messages


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)
