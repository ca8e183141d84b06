"""A master that reports changes of its tables at once, and slaves that ask for them (TANDEM_AWAIT_TABLES)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from test_config_sync import Master, make_sync, make_tables, same

from sim.manual_clock import ManualClock
from tandemmq.api.replica import await_tables
from tandemmq.broker.replica.config_sync import ReplicaTables
from tandemmq.broker.replica.handlers import ReplicaHandlers
from tandemmq.broker.replica.table_watch import PAUSE_S, WAIT_MS, TableChangeServer, TableChangeSubscriber
from tandemmq.errors import Busy, RequestRejected
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.runtime.tasks import TaskScope
from waits import until


class Pusher(Master):
    """A master that supports the request."""

    waits: TableChangeServer


@pytest.fixture
async def master() -> AsyncIterator[Pusher]:
    subject = Pusher()
    subject.waits = TableChangeServer(subject.tables, clock=LoopClock())
    handlers = dict.fromkeys(ReplicaHandlers(subject.tables, HaStatus).routes(), subject.handle)
    server = RemotingServer(handlers | subject.waits.routes(), network=TcpNetwork(), clock=LoopClock())
    host, port = await server.start("127.0.0.1", 0)
    subject.address = f"{host}:{port}"
    yield subject
    subject.waits.close()
    await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    subject = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    yield subject
    await subject.close()


def versions(tables: ReplicaTables) -> tuple[DataVersion, DataVersion]:
    return tables.topics.data_version, tables.groups.data_version


async def until_held(waits: TableChangeServer, count: int) -> None:
    await until(lambda: len(waits) == count, f"{count} questions are held")


async def test_held_until_a_change_and_answered_once_for_a_burst(
    master: Pusher, client: RemotingClient
) -> None:
    asking = [
        asyncio.ensure_future(await_tables(client, master.address, *versions(master.tables), wait_ms=60_000))
        for _ in range(3)
    ]
    await until_held(master.waits, 3)
    master.tables.topics.put(TopicConfig(name="a"), 1)
    master.tables.groups.put(SubscriptionGroupConfig(name="g"), 1)
    await asyncio.gather(*asking)
    assert len(master.waits) == 0


async def test_caller_that_is_behind_is_answered_at_once(master: Pusher, client: RemotingClient) -> None:
    before = versions(master.tables)
    master.tables.groups.put(SubscriptionGroupConfig(name="g"), 1)
    await await_tables(client, master.address, *before, wait_ms=60_000)


async def test_quiet_time_ends(master: Pusher, client: RemotingClient) -> None:
    await await_tables(client, master.address, *versions(master.tables), wait_ms=30)
    assert len(master.waits) == 0


async def test_waiting_slave_that_left_does_no_harm(master: Pusher, client: RemotingClient) -> None:
    asking = asyncio.ensure_future(
        await_tables(client, master.address, *versions(master.tables), wait_ms=60_000)
    )
    await until_held(master.waits, 1)
    asking.cancel()
    await client.close()
    master.tables.topics.put(TopicConfig(name="a"), 1)
    await until_held(master.waits, 0)


async def test_change_reaches_the_slave_long_before_its_next_round(
    master: Pusher, client: RemotingClient
) -> None:
    tables = make_tables()
    sync = make_sync(tables, client)
    sync.options = sync.options.__class__(config_sync_interval_ms=600_000)
    sync.set_master(master.address)
    scope = TaskScope("test")
    scope.start("sync", sync.run())
    scope.start("watch", TableChangeSubscriber(tables, sync, client=client, clock=LoopClock()).run())
    await until_held(master.waits, 1)
    for number in range(5):
        master.tables.topics.put(TopicConfig(name=f"t{number}"), number + 1)
        await until(lambda: same(tables, master.tables), f"change {number} is at the slave")
    await scope.close()


async def test_master_without_the_request_is_asked_once(client: RemotingClient) -> None:
    subject = Master()
    codes = ReplicaHandlers(subject.tables, HaStatus).routes()
    server = RemotingServer(dict.fromkeys(codes, subject.handle), network=TcpNetwork(), clock=LoopClock())
    host, port = await server.start("127.0.0.1", 0)
    tables = make_tables()
    sync = make_sync(tables, client)
    sync.set_master(f"{host}:{port}")
    watch = TableChangeSubscriber(tables, sync, client=client, clock=LoopClock())
    with pytest.raises(RequestRejected):
        await await_tables(client, f"{host}:{port}", *versions(tables), wait_ms=10)
    assert not await watch._watch_once(f"{host}:{port}", versions(tables))
    assert watch._unsupported_by == f"{host}:{port}"
    await server.stop()


async def test_a_change_waits_for_who_may_be_elected_and_has_asked(
    master: Pusher, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, before = master.waits, versions(master.tables)
    await waits.wait_held(lambda: [1, 2])  # no slave has asked
    for broker_id in (1, 2):
        await await_tables(client, master.address, *before, wait_ms=0, broker_id=broker_id)
    await waits.wait_held(lambda: [1, 2])
    master.tables.topics.put(TopicConfig(name="a"), 1)
    waiting = asyncio.ensure_future(waits.wait_held(lambda: [1, 2]))
    await await_tables(client, master.address, *versions(master.tables), wait_ms=0, broker_id=1)
    master.tables.topics.put(TopicConfig(name="later"), 1)  # later changes are not waited for
    assert not waiting.done()
    await await_tables(client, master.address, *before, wait_ms=0, broker_id=2)
    assert not waiting.done()
    await await_tables(client, master.address, *versions(master.tables), wait_ms=0, broker_id=2)
    await waiting
    monkeypatch.setattr("tandemmq.broker.replica.table_watch.HELD_S_MAX", 0.2)
    with pytest.raises(Busy, match="not yet at the brokers 1 of the SyncStateSet"):
        await waits.wait_held(lambda: [1, 2])
    members = [1]
    waiting = asyncio.ensure_future(waits.wait_held(lambda: members))
    members.clear()  # it has left the set
    await waiting


async def test_table_push_does_not_wait_for_a_closed_connection(
    master: Pusher, client: RemotingClient
) -> None:
    other = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    await await_tables(other, master.address, *versions(master.tables), wait_ms=0, broker_id=1)
    master.tables.topics.put(TopicConfig(name="a"), 1)
    waiting = asyncio.ensure_future(master.waits.wait_held(lambda: [1]))
    await other.close()
    await waiting


async def test_a_slave_that_hears_of_its_master_after_its_start_asks_it_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    asked: list[str] = []

    async def hold(_client: object, address: str, *_held: object, **_options: object) -> None:
        asked.append(address)
        await clock.sleep(WAIT_MS / 1000)

    monkeypatch.setattr("tandemmq.broker.replica.table_watch.await_tables", hold)
    tables, client = make_tables(), RemotingClient(network=TcpNetwork(), clock=clock)
    sync = make_sync(tables, client)
    scope = TaskScope("test")
    scope.start("watch", TableChangeSubscriber(tables, sync, client=client, clock=clock).run())
    await clock.pass_time(0.01)
    sync.set_master("10.0.0.1:10911")
    await clock.pass_time(2 * PAUSE_S)
    assert asked == ["10.0.0.1:10911"]
    await scope.close()
    await client.close()
