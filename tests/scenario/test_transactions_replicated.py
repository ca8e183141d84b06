"""Half messages and their marks on a slave, and a slave's directory that continues as a master's."""

from __future__ import annotations

from pathlib import Path

from broker_rig import running_broker
from client_rig import running_rig
from transaction_rig import COMMIT, FAST, ROLLBACK, TransactionPeer

from tandemmq.broker.broker import Broker
from tandemmq.protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC
from waits import until


def ends(broker: Broker) -> tuple[int, ...]:
    store = broker.store
    assert store is not None
    return (store.queue_max(HALF_TOPIC, 0), store.queue_max(OP_HALF_TOPIC, 0), store.queue_max("T1", 2))


async def test_slave_has_every_step_and_asks_nobody_until_it_is_master(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        master = await rig.start_broker()
        slave = await rig.start_broker(broker_id=1, **FAST)
        async with TransactionPeer(master) as peer, TransactionPeer(slave, COMMIT) as at_slave:
            await at_slave.heartbeat("c1", producers=("PG",))
            for decision in (COMMIT, ROLLBACK):
                await peer.end(await peer.send_half(body=b"%d" % decision), decision)
            await peer.send_half(body=b"open")
            await until(lambda: ends(slave) == ends(master) == (3, 2, 1), "copied")
            await rig.wait_for_slave("broker-a", "T1")
            assert at_slave.asked == []
    settings = {"commit_log_file_bytes": 16 << 20}
    async with (
        running_broker(tmp_path / "broker-a-1", store=settings, **FAST) as broker,
        TransactionPeer(broker, COMMIT) as peer,
    ):
        await peer.heartbeat("c1", producers=("PG",))
        await until(lambda: ends(broker)[2] == 2, "the open one is decided")
        assert [record.body for _, record in peer.asked] == [b"open"]
        assert await peer.bodies() == [b"8", b"open"]
