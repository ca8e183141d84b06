"""A slave's log becomes and stays its master's, whatever breaks in between (spec replication 16: I1-I7)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from replica_pair import FAST, SEGMENT, Peers, Proxy, log_bytes, open_store, queue_contents, send

from no_history import compare_nothing
from tandemmq.errors import DiskFull
from tandemmq.replication.core.effects import HaltReason
from tandemmq.replication.core.options import FirstTransfer
from tandemmq.replication.core.progress import MasterState, SlaveState, StartRule
from tandemmq.replication.shell import ReplicationMaster, ReplicationSlave
from tandemmq.store import BrokerRole
from tandemmq.store.damage import DamagedRange
from waits import until


@pytest.fixture
async def proxy(peers: Peers) -> AsyncIterator[Proxy]:
    await peers.start_master()
    subject = Proxy(peers.address)
    await subject.start()
    yield subject
    await subject.stop()


def bodies(count: int, size: int = 1_000, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.randrange(size)) for _ in range(count)]


async def test_slave_copies_what_is_there_and_what_comes(peers: Peers) -> None:
    master = await peers.start_master()
    await send(master, *bodies(20))
    slave = await peers.start_slave()
    await peers.caught_up()
    await send(master, *bodies(20, seed=2))
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)
    await until(lambda: slave.dispatched.value == master.dispatched.value)
    assert queue_contents(slave) == queue_contents(master)


async def test_copy_goes_over_several_segments_and_fillers(peers: Peers) -> None:
    master = await peers.start_master()
    slave = await peers.start_slave()
    await peers.subscribed()
    for seed in range(5):
        await send(master, *bodies(60, size=3_000, seed=seed))
        await peers.caught_up()
    assert master.appended.value > 4 * SEGMENT
    assert log_bytes(slave) == log_bytes(master)
    await until(lambda: slave.dispatched.value == master.dispatched.value)
    assert queue_contents(slave) == queue_contents(master)


async def test_much_is_copied_in_large_reads_and_makes_the_same_tables(peers: Peers) -> None:
    """Includes records longer than the receive buffer, and files that end within a read."""
    sizes = {"commit_log_file_bytes": 3 * 2**20, "key_index_enable": True}
    small = {"key_index_slot_count": 1_000, "key_index_entry_count": 50_000}
    master = await peers.start_master(**sizes, **small)
    await send(master, *bodies(3_000), bytes(2 * 2**20), *bodies(3_000, size=2_000, seed=2))
    assert master.appended.value > 6 * 2**20
    slave = await peers.start_slave(**sizes, **small)
    await peers.caught_up()
    await send(master, *bodies(10))
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)
    await until(lambda: slave.dispatched.value == master.dispatched.value)
    assert queue_contents(slave) == queue_contents(master)


async def test_empty_slave_gets_the_last_file_and_the_master_says_so(peers: Peers) -> None:
    master = await peers.start_master(options=replace(FAST, first_transfer=FirstTransfer.LAST_FILE))
    await send(master, *bodies(150, size=3_000))
    slave = await peers.start_slave()
    await peers.caught_up()
    start = master.appended.value - master.appended.value % SEGMENT
    assert start > 0
    assert slave.min_log_offset == start
    assert log_bytes(slave) == log_bytes(master, start)
    assert peers.master is not None
    (status,) = peers.master.status().slaves
    assert status.start is not None
    assert (status.start.rule, status.start.log_offset) == (StartRule.LAST_FILE, start)


async def test_empty_slave_of_ours_gets_everything_by_itself(peers: Peers) -> None:
    master = await peers.start_master()
    await send(master, *bodies(150, size=3_000))
    slave = await peers.start_slave()
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)
    await until(lambda: slave.dispatched.value == master.dispatched.value)
    assert queue_contents(slave) == queue_contents(master)


async def test_slave_that_starts_before_its_master_finds_it_later(peers: Peers) -> None:
    await peers.start_master()
    await peers.stop_master()
    slave = await peers.start_slave()
    await until(lambda: peers.slave().status().state is SlaveState.PAUSED)
    master = await peers.start_master()
    await send(master, *bodies(5))
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)


async def test_copy_goes_on_after_restarts_of_either_side(peers: Peers) -> None:
    master = await peers.start_master()
    await send(master, *bodies(30))
    slave = await peers.start_slave()
    await peers.caught_up()

    await peers.stop_slave()
    await send(master, *bodies(40, size=2_000, seed=2))
    slave = await peers.start_slave()
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)

    await peers.stop_master()
    master = await peers.start_master()
    await send(master, *bodies(40, size=2_000, seed=3))
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)
    await until(lambda: slave.dispatched.value == master.dispatched.value)
    assert queue_contents(slave) == queue_contents(master)


@pytest.mark.parametrize("seed", range(6))
async def test_copy_survives_cuts_at_any_byte(peers: Peers, proxy: Proxy, seed: int) -> None:
    chance = random.Random(seed)
    master = peers.master_store
    assert master is not None
    slave = await peers.start_slave(address=proxy.address)
    await peers.subscribed()
    for turn in range(15):
        proxy.limit = proxy.passed_bytes + chance.randrange(1, 20_000)
        await send(master, *bodies(12, size=2_500, seed=seed * 100 + turn))
        if chance.random() < 0.3:
            proxy.cut()
        await until(lambda: proxy.limit is None or slave.appended.value == master.appended.value)
    proxy.limit = None
    await peers.caught_up()
    assert proxy.connection_count > 3
    assert log_bytes(slave) == log_bytes(master)
    await until(lambda: slave.dispatched.value == master.dispatched.value)
    assert queue_contents(slave) == queue_contents(master)


async def test_damage_on_the_way_is_not_stored_and_heals(peers: Peers, proxy: Proxy) -> None:
    master = peers.master_store
    assert master is not None
    await send(master, *bodies(20))
    proxy.corrupt_at = 12 + 5_000
    slave = await peers.start_slave(address=proxy.address)
    await peers.caught_up()
    assert proxy.corrupt_at is None
    assert proxy.connection_count >= 2
    assert log_bytes(slave) == log_bytes(master)
    assert peers.slave().status().halt is None


async def test_damage_in_the_masters_file_stops_the_slave_before_it(peers: Peers, tmp_path: Path) -> None:
    master = await peers.start_master()
    await send(master, *bodies(10))
    end = master.appended.value
    await send(master, b"good" * 100, b"later" * 100)
    path = tmp_path / "master" / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(end + 100)
        file.write(b"\xff")
    slave = await peers.start_slave()
    await until(lambda: peers.slave().status().halt is not None, "halt")
    status = peers.slave().status()
    assert status.halt is not None
    assert status.halt.reason is HaltReason.DAMAGED
    assert status.halt.log_offset == end
    assert status.state is SlaveState.HALTED
    assert slave.appended.value == end
    assert log_bytes(slave) == log_bytes(master)[:end]


async def test_slave_ahead_of_its_master_keeps_its_log_and_halts(peers: Peers, tmp_path: Path) -> None:
    master = await peers.start_master()
    slave = await peers.start_slave()
    await send(master, *bodies(10))
    await peers.caught_up()
    copied = log_bytes(slave)
    await peers.stop_slave()
    await peers.stop_master()
    (tmp_path / "master").rename(tmp_path / "lost")

    master = await peers.start_master()
    await send(master, b"other" * 20)
    slave = await peers.start_slave()
    await until(lambda: peers.slave().status().halt is not None, "halt")
    status = peers.slave().status()
    assert status.halt is not None
    assert status.halt.reason is HaltReason.SLAVE_AHEAD
    assert status.halt.log_offset == master.appended.value
    assert log_bytes(slave) == copied
    assert dict(master.replies.acks.positions()) == {}

    # The master has forgotten the connection by now, and its log grows beyond the slave's end.
    await send(master, *bodies(30))
    await peers.stop_slave()
    slave = await peers.start_slave()
    await until(lambda: peers.slave().status().halt is not None, "second halt")
    assert log_bytes(slave) == copied


async def test_slave_with_another_file_size_halts_and_says_why(peers: Peers) -> None:
    master = await peers.start_master()
    await peers.start_slave(commit_log_file_bytes=SEGMENT // 2)
    await peers.subscribed()
    await send(master, *[b"x" * 1_500] * 30)
    await until(lambda: peers.slave().status().halt is not None, "halt")
    halt = peers.slave().status().halt
    assert halt is not None
    assert halt.reason in (HaltReason.FILE_SIZES_DIFFER, HaltReason.DAMAGED)
    assert "file" in halt.detail


async def test_slave_older_than_the_masters_log_is_reported(peers: Peers, tmp_path: Path) -> None:
    master = await peers.start_master()
    await send(master, *bodies(10))
    slave = await peers.start_slave()
    await peers.caught_up()
    await peers.stop_slave()
    await send(master, *bodies(100, size=3_000))
    await peers.stop_master()
    for path in sorted((tmp_path / "master" / "commitlog").iterdir())[:2]:
        path.unlink()
    master = await peers.start_master()
    assert master.min_log_offset >= SEGMENT
    slave = await peers.start_slave()
    assert peers.master is not None
    replication = peers.master
    await until(
        lambda: [s.state for s in replication.status().slaves] == [MasterState.TOO_OLD], "found too old"
    )
    assert slave.appended.value < master.min_log_offset
    assert peers.slave().status().state is SlaveState.TRANSFERRING


async def test_idle_pair_stays_connected_by_heartbeats(peers: Peers) -> None:
    options = replace(FAST, silence_ms_max=2_000)
    await peers.start_master(options=options)
    proxy = Proxy(peers.address)
    await peers.start_slave(address=await proxy.start(), options=options)
    slave = peers.slave()
    await until(lambda: slave.status().last_read_at, "the first heartbeat")
    first = slave.status().last_read_at
    # Longer than either side tolerates silence.
    await until(lambda: slave.status().last_read_at > first + options.silence_ms_max + 500, "heartbeats")
    assert proxy.connection_count == 1
    await proxy.stop()


async def test_slave_of_a_slave_is_served(peers: Peers, tmp_path: Path) -> None:
    master = await peers.start_master()
    middle = await peers.start_slave("middle")
    relay = ReplicationMaster(middle, FAST, network=peers.network, clock=peers.clock)
    host, port = await relay.start("127.0.0.1", 0)
    last = await peers.start_slave("last", address=f"{host}:{port}")
    await peers.subscribed()
    await until(lambda: any(slave.start is not None for slave in relay.status().slaves))
    await send(master, *bodies(50, size=3_000))
    await peers.caught_up("last")
    assert log_bytes(last) == log_bytes(master)
    await relay.stop()


async def test_transfer_in_tiny_batches_and_with_a_speed_limit(peers: Peers) -> None:
    options = replace(FAST, transfer_bytes_max=100, flow_control=True, sent_bytes_per_second_max=40_000)
    master = await peers.start_master(options=options)
    slave = await peers.start_slave()
    await peers.subscribed()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await send(master, *bodies(90, size=2_000, seed=4))
    total = master.appended.value
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)
    # This needs the allowance of three seconds, so it spans one whole second.
    assert 2 * 40_000 < total < 3 * 40_000
    assert loop.time() - begun > 0.95


async def test_store_that_refuses_is_not_acknowledged_and_asked_again(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await peers.start_master()
    slave = await peers.start_slave()
    await peers.subscribed()
    refusals = iter([DiskFull("no room"), DiskFull("still no room")])
    append_raw = slave.append_raw

    def refuse_twice(log_offset: int, data: memoryview, columns: None = None) -> None:
        error = next(refusals, None)
        if error is not None:
            assert max(master.replies.acks.positions().values(), default=0) == 0
            raise error
        append_raw(log_offset, data)

    monkeypatch.setattr(slave, "append_raw", refuse_twice)
    await send(master, *bodies(10))
    await peers.caught_up()
    assert next(refusals, None) is None
    assert log_bytes(slave) == log_bytes(master)


async def test_fault_of_ours_is_told_to_the_owner(
    peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await peers.start_master()
    store = await open_store(tmp_path / "other", BrokerRole.SLAVE)
    told: list[BaseException] = []
    slave = ReplicationSlave(
        store, FAST, compare_nothing, network=peers.network, clock=peers.clock, on_fatal=told.append
    )

    def break_an_invariant(_log_offset: int, _data: memoryview, _columns: None = None) -> None:
        raise AssertionError("an invariant")

    monkeypatch.setattr(store, "append_raw", break_an_invariant)
    slave.set_master(peers.address)
    await slave.start()
    await send(master, *bodies(3))
    await until(lambda: bool(told))
    assert isinstance(told[0], AssertionError)
    await slave.stop()
    await store.close()


async def test_master_address_can_be_taken_away_and_given_again(peers: Peers) -> None:
    master = await peers.start_master()
    slave = await peers.start_slave()
    await send(master, *bodies(3))
    await peers.caught_up()
    peers.slave().set_master(None)
    assert peers.slave().status().state is SlaveState.UNASSIGNED
    await send(master, *bodies(3, seed=2))
    peers.slave().set_master("no address at all")
    await until(lambda: peers.slave().status().state is SlaveState.PAUSED)
    peers.slave().set_master(peers.address)
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)


async def test_a_slave_in_front_of_damage_goes_on_as_soon_as_it_is_healed(peers: Peers) -> None:
    """Nothing else happens meanwhile: no send, no heartbeat."""
    master = await peers.start_master(
        options=replace(FAST, heartbeat_interval_ms=60_000, silence_ms_max=120_000)
    )
    await send(master, *bodies(3))
    begin, size, _ = master.queue_entries("T", 1, 0, 1)[0]
    damaged = DamagedRange(begin, begin + size, "rotten")
    master.log.damaged.add(damaged, peers.root)
    slave = await peers.start_slave()
    await until(lambda: slave.appended.value == damaged.begin, "copied up to the damage")
    master.log.damaged.remove(damaged)
    assert peers.master is not None
    peers.master.wake()
    await peers.caught_up()


async def test_slave_whose_next_byte_is_deleted_during_the_copy_learns_it(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(FAST, flow_control=True, sent_bytes_per_second_max=4_000)
    master = await peers.start_master(options=slow)
    slave = await peers.start_slave()
    await peers.subscribed()
    await send(master, *bodies(100, size=3_000))
    await until(lambda: slave.appended.value, "the copy has begun")
    copied, replication = slave.appended.value, peers.master
    assert replication is not None
    assert copied < SEGMENT
    monkeypatch.setattr(type(master), "min_log_offset", 2 * SEGMENT)
    await until(
        lambda: [s.state for s in replication.status().slaves] == [MasterState.TOO_OLD], "it came again"
    )
    start = replication.status().slaves[0].start
    assert start is not None
    assert start.rule is StartRule.SLAVE_TOO_OLD
