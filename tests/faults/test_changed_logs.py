"""Processes whose log has changed: a topic created again, an empty disk, a lost tail, a bit flip.

An offset in the old log must not be applied to the new one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from client_ledger import consumer_of
from fault_cluster import FaultCluster
from fault_waits import NOT_YET, asking, committed, create_topic, ha_status, until_in_sync

from tandemmq.api import broker_admin, broker_consume, broker_send
from tandemmq.api.broker_consume import PullStatus, pull
from tandemmq.client import (
    Admin,
    Message,
    MessageQueue,
    PopConsumer,
    PopOptions,
    Producer,
    SendStatus,
    StartFrom,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.protocol.requests.send import SendBackRequest
from waits import until

pytestmark = pytest.mark.process

TOPIC = "T"
QUEUE = MessageQueue(topic=TOPIC, broker_name="b0", queue_id=0)
POPS = PopOptions(invisible_s=20, start_from=StartFrom.FIRST)
SAFE: dict[str, object] = {"flushDiskType": "SYNC_FLUSH"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultCluster]:
    cluster = FaultCluster(tmp_path, **SAFE)
    yield cluster
    cluster.close()


async def send(
    cluster: FaultCluster, bodies: Sequence[str], status: SendStatus = SendStatus.SEND_OK, **changes: object
) -> None:
    """Sends each body to queue 0 until it is answered with `status`."""
    async with Producer("P", cluster.namesrv.address) as producer:
        for body in bodies:
            queue = None if changes else QUEUE
            message = Message(topic=TOPIC, body=body.encode(), **changes)  # type: ignore[arg-type]  # real fields

            async def try_to_send(message: Message = message, queue: MessageQueue | None = queue) -> bool:
                return (await producer.send(message, queue=queue)).status is status

            await until(try_to_send, f"{body} is answered with {status.name}", not_yet=NOT_YET)


async def read(address: str, begin: int = 0, topic: str = TOPIC) -> list[str]:
    """Returns the bodies that one broker serves from queue 0."""
    found: list[str] = []
    async with asking() as client:
        end = await broker_consume.query_max_offset(client, address, topic, 0)
        while begin < end:
            header = PullRequest(
                consumer_group="reader",
                topic=topic,
                queue_id=0,
                queue_offset=begin,
                count_max=32,
                sys_flag=0x4,
                committed_offset=0,
                suspend_timeout_ms=0,
                subscription_version=0,
                subscription="*",
            )
            pulled = await pull(client, address, header)
            assert pulled.status is PullStatus.FOUND, (pulled.status, begin, end)
            found += [record.body.decode() for record in decode_records(pulled.body)]
            begin = pulled.next_offset
    return found


async def until_read(address: str, bodies: list[str]) -> None:
    async def is_there() -> bool:
        return await read(address) == bodies

    await until(is_there, f"{bodies} at {address}", not_yet=(TandemError, AssertionError))


async def promote(cluster: FaultCluster, root: Path) -> None:
    """Makes the slave the master of the group, as an operator would."""
    await asyncio.to_thread(cluster.slave.stop)
    with (root / "slave.conf").open("a") as file:
        file.write("brokerRole=ASYNC_MASTER\nbrokerId=0\n")
    await asyncio.to_thread(cluster.slave.start)


def names(kind: str, count: int) -> list[str]:
    return [f"{kind}{n}" for n in range(count)]


async def test_a_topic_made_again_has_its_own_messages_everywhere(
    cluster: FaultCluster, tmp_path: Path
) -> None:
    await create_topic(cluster, TOPIC, queue_count=1)
    await until_in_sync(cluster)
    await send(cluster, names("old", 5))
    async with Admin(cluster.namesrv.address) as admin:
        await admin.delete_topic(TOPIC)
    await create_topic(cluster, TOPIC, queue_count=1)
    await send(cluster, names("new", 3))
    for address in (cluster.master_address, cluster.slave_address):
        await until_read(address, names("new", 3))
    cluster.master.kill()
    await asyncio.to_thread(cluster.master.start)
    await until_read(cluster.master_address, names("new", 3))
    cluster.master.kill()
    await promote(cluster, tmp_path)
    await until_read(cluster.slave_address, names("new", 3))
    await send(cluster, ["next"])
    assert await read(cluster.slave_address) == [*names("new", 3), "next"]


async def test_an_empty_master_takes_nothing_from_its_slave(cluster: FaultCluster, tmp_path: Path) -> None:
    """Neither its tables nor the messages that were popped and not acknowledged are lost."""
    await create_topic(cluster, TOPIC, queue_count=1)
    await until_in_sync(cluster)
    await send(cluster, names("m", 5))
    async with PopConsumer("pops", cluster.namesrv.address, options=POPS) as consumer:
        consumer.subscribe(TOPIC)
        popped: list[str] = []
        while len(popped) < 5:
            popped += [message.body.decode() for message in await consumer.receive(8)]
    assert sorted(popped) == names("m", 5)
    await send(cluster, ["later"], delay_level=3)

    cluster.master.kill()
    shutil.rmtree(tmp_path / "master")
    await asyncio.to_thread(cluster.master.start)

    async def is_halted() -> bool:
        return (await ha_status(cluster.slave_address)).client.halt_reason is not None

    await until(is_halted, "the slave halts", not_yet=NOT_YET)
    cluster.master.kill()
    await promote(cluster, tmp_path)
    async with asking() as client:
        assert await broker_admin.query_group_config(client, cluster.slave_address, "pops") is not None
        config = await broker_admin.query_topic_config(client, cluster.slave_address, TOPIC)
        assert config is not None
        assert config.write_queue_count == 1
    again: list[str] = []
    async with PopConsumer("pops", cluster.namesrv.address, options=POPS) as consumer:
        consumer.subscribe(TOPIC)

        async def have_all_come() -> bool:
            for message in await consumer.receive(8):
                again.append(message.body.decode())
                await consumer.ack(message)
            return {*names("m", 5), "later"} <= set(again)

        await until(have_all_come, "what was popped comes again", not_yet=NOT_YET)
    assert again.count("later") == 1


async def test_progress_ahead_of_the_log_of_a_new_master_skips_nothing(
    cluster: FaultCluster, tmp_path: Path
) -> None:
    """The route of the log is cut, that of the tables is not: commits reach a slave that lacks the
    messages.
    """
    await create_topic(cluster, TOPIC, queue_count=1)
    await until_in_sync(cluster)
    await send(cluster, names("both", 4))
    got: list[str] = []
    async with consumer_of(cluster.namesrv.address, TOPIC) as consumer:

        async def got_all(count: int) -> bool:
            got.extend(message.body.decode() for message in await consumer.poll(64, 0.5))
            return len(got) >= count

        cluster.to_master_ha.hold()
        await send(cluster, names("one", 6), SendStatus.FLUSH_SLAVE_TIMEOUT)
        await until(lambda: got_all(10), "all comes")

        async def has_committed() -> bool:
            await consumer.poll(64, 0.1)
            reported = [await committed(a, TOPIC, 0) for a in (cluster.master_address, cluster.slave_address)]
            return reported == [10, 4]

        await until(has_committed, "the slave has the progress, as far as its log reaches", not_yet=NOT_YET)
    cluster.master.kill()
    await promote(cluster, tmp_path)
    end = len(await read(cluster.slave_address))
    await send(cluster, names("new", 8))
    fresh: list[str] = []
    async with consumer_of(cluster.namesrv.address, TOPIC) as consumer:

        async def got_new() -> bool:
            fresh.extend(message.body.decode() for message in await consumer.poll(64, 0.5))
            return set(names("new", 8)) <= set(fresh)

        await until(got_new, f"what came behind {end} is read")


@pytest.mark.parametrize("has_slave", [False, True])
async def test_a_turned_bit_takes_nothing_else_with_it(
    cluster: FaultCluster, tmp_path: Path, has_slave: bool
) -> None:
    await create_topic(cluster, TOPIC, queue_count=1)
    await until_in_sync(cluster)
    await send(cluster, names("m", 200))
    await until_read(cluster.slave_address, names("m", 200))
    if not has_slave:
        cluster.slave.kill()
    await asyncio.to_thread(cluster.master.stop)
    (path,) = (tmp_path / "master" / "commitlog").iterdir()
    with path.open("r+b") as file:
        raw = file.read(4 << 20)
        at = raw.index(b"m10\x01", raw.index(b"m9\x01"))
        file.seek(at)
        file.write(bytes([raw[at] ^ 1]))
    await asyncio.to_thread(cluster.master.start)
    if has_slave:
        await until_read(cluster.master_address, names("m", 200))
        return
    assert "log.damaged" in cluster.log_text("master")
    seen = await read(cluster.master_address, 0)
    assert seen == [f"m{n}" for n in range(200) if n != 10]


async def test_a_slave_that_no_name_server_leads_compares_before_it_confirms(
    cluster: FaultCluster, tmp_path: Path
) -> None:
    """`haMasterAddress` alone: the master lost its tail and has grown past it meanwhile."""
    await create_topic(cluster, TOPIC, queue_count=1)
    await until_in_sync(cluster)
    await send(cluster, names("both", 4))
    await asyncio.to_thread(cluster.slave.stop)
    with (tmp_path / "slave.conf").open("a") as file:
        ha_port = int(cluster.master_address.rpartition(":")[2]) + 1
        file.write(f"namesrvAddr=\nhaMasterAddress=127.0.0.2:{ha_port}\n")
    await asyncio.to_thread(cluster.master.stop)
    shutil.copytree(tmp_path / "master", tmp_path / "before")
    await asyncio.to_thread(cluster.master.start)
    await asyncio.to_thread(cluster.slave.start)
    await send(cluster, names("tail", 3))
    cluster.slave.kill()
    cluster.master.kill()
    shutil.rmtree(tmp_path / "master")
    shutil.move(tmp_path / "before", tmp_path / "master")
    await asyncio.to_thread(cluster.master.start)
    await send(cluster, names("news", 3), SendStatus.FLUSH_SLAVE_TIMEOUT)
    await asyncio.to_thread(cluster.slave.start)

    async def is_halted() -> bool:
        return (await ha_status(cluster.slave_address)).client.halt_reason is not None

    await until(is_halted, "the slave halts", not_yet=NOT_YET)
    await send(cluster, ["more"], SendStatus.FLUSH_SLAVE_TIMEOUT)
    assert await read(cluster.slave_address, 4) == names("tail", 3)
    assert (await read(cluster.master_address, 4))[:3] == names("news", 3)


async def test_a_message_that_is_named_by_another_one_is_not_handed_back(cluster: FaultCluster) -> None:
    await create_topic(cluster, TOPIC, queue_count=1)
    await until_in_sync(cluster)
    async with Producer("P", cluster.namesrv.address) as producer:
        first = await producer.send(Message(topic=TOPIC, body=b"first"), queue=QUEUE)
        await producer.send(Message(topic=TOPIC, body=b"second"), queue=QUEUE)
    async with asking() as client:
        await broker_admin.create_group(client, cluster.master_address, SubscriptionGroupConfig(name="G"))
        header = SendBackRequest(
            log_offset=0,
            group="G",
            delay_level=1,
            original_message_id="0A" * 16,
            original_topic=TOPIC,
        )
        with pytest.raises(TandemError, match="0A0A"):
            await broker_send.send_back(client, cluster.master_address, header)
        header = SendBackRequest(log_offset=0, group="G", delay_level=1, original_topic="Salaries")
        with pytest.raises(TandemError, match="Salaries"):
            await broker_send.send_back(client, cluster.master_address, header)
    assert first.is_ok
