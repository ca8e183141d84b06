"""The slaves required before and after a send is written (spec replication 5.2, 5.4).

Plain mode does not reject sends for missing replicas: whatever totalReplicas and minInSyncReplicas say, a
send is stored and then waits for inSyncReplicas copies. Only the modes with an acting master or a controller
reject before writing, and those are not covered here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from replica_pair import FAST, Peers, new_record, send

from tandemmq.config.load import MachineFacts, load_broker, read_settings
from tandemmq.errors import ConfigError
from tandemmq.store import BrokerRole, PutStatus
from tandemmq.units import ReplicaId
from waits import until

SYNC = BrokerRole.SYNC_MASTER
MACHINE = MachineFacts(
    host_name="m", address="10.0.0.1", memory_bytes=1 << 30, home=Path("/home/m"), name_servers=""
)


def test_counts_that_admit_nothing_in_plain_mode_are_taken() -> None:
    settings = ["brokerRole=SYNC_MASTER", "totalReplicas=3", "inSyncReplicas=2", "minInSyncReplicas=2"]
    assert load_broker(read_settings(None, settings), MACHINE).store.in_sync_replicas == 2
    with pytest.raises(ConfigError, match="never be reached"):
        load_broker(read_settings(None, ["totalReplicas=1", "inSyncReplicas=2"]), MACHINE)


@pytest.mark.parametrize(
    ("role", "needed", "expected"),
    [
        (BrokerRole.ASYNC_MASTER, 3, PutStatus.PUT_OK),
        (SYNC, 0, PutStatus.PUT_OK),
        (SYNC, 1, PutStatus.PUT_OK),
        (SYNC, 2, PutStatus.PUT_OK),
        (SYNC, 3, PutStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_sends_need_as_many_copies_as_the_role_says_and_are_stored_anyway(
    peers: Peers, role: BrokerRole, needed: int, expected: PutStatus
) -> None:
    timeout_ms = 300 if expected is PutStatus.FLUSH_SLAVE_TIMEOUT else 60_000
    master = await peers.start_master(role, in_sync_replicas=needed, slave_timeout_ms=timeout_ms)
    await peers.start_slave()
    await peers.subscribed()
    assert await send(master, b"x") == [expected]
    assert master.queue_max("T", 0) == 1
    await peers.caught_up()


async def test_4x_rule_without_a_slave_stores_and_says_so_at_once(peers: Peers) -> None:
    master = await peers.start_master(SYNC, sync_master_compat4=True, slave_timeout_ms=60_000)
    assert await send(master, b"alone", b"alone too") == [PutStatus.SLAVE_NOT_AVAILABLE] * 2
    assert master.queue_max("T", 0) == 1


async def test_4x_rule_waits_for_one_slave_of_several(peers: Peers) -> None:
    master = await peers.start_master(SYNC, sync_master_compat4=True)
    slave = await peers.start_slave("one")
    await peers.subscribed()
    assert await send(master, b"x") == [PutStatus.PUT_OK]
    assert slave.appended.value == master.appended.value
    await peers.start_slave("two")
    await peers.subscribed(2)
    await peers.stop_slave("one")
    await peers.caught_up("two")
    assert await send(master, b"y") == [PutStatus.PUT_OK]


async def test_4x_rule_does_not_wait_for_a_slave_that_is_too_far_behind(peers: Peers) -> None:
    options = replace(FAST, in_sync_gap_bytes_max=10_000)
    master = await peers.start_master(
        SYNC, options, sync_master_compat4=True, replica_gap_bytes_max=10_000, slave_timeout_ms=60_000
    )
    slave = await peers.start_slave()
    await peers.subscribed()
    await send(master, b"near")
    peers.slave().set_master(None)
    await until(lambda: not master.replies.acks.positions(), "gone")
    assert await send(master, b"x" * 20_000) == [PutStatus.SLAVE_NOT_AVAILABLE]
    # A slave that has only begun to catch up does not count before it is near.
    master.replies.acks.report(ReplicaId("late"), slave.appended.value)
    assert await send(master, b"y") == [PutStatus.SLAVE_NOT_AVAILABLE]


async def test_4x_rule_leaves_a_send_alone_that_does_not_wait(peers: Peers) -> None:
    master = await peers.start_master(SYNC, sync_master_compat4=True)
    told: list[PutStatus] = []
    record = new_record(b"x")
    record.wait_stored = False
    master.appender.append([record], told.append)
    await until(lambda: told == [PutStatus.PUT_OK], "told")


async def test_4x_rule_gives_way_to_an_explicit_count(peers: Peers) -> None:
    master = await peers.start_master(
        SYNC, sync_master_compat4=True, in_sync_replicas=2, slave_timeout_ms=150
    )
    assert await send(master, b"x") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
