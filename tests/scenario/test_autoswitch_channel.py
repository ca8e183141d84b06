"""Two stores and their AutoSwitch channels: terms, acknowledgements of the set, a deposed master's tail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replica_pair import FAST, SEGMENT, log_bytes
from term_nodes import Node

from no_history import NoHistory
from sim.memory import MemoryNetwork
from tandemmq.broker.durable import DurableWriter
from tandemmq.errors import FlushFailed, RequestRejected, StaleTerm
from tandemmq.replication.core.epochs import Handshake, encode_handshake, encode_term_report
from tandemmq.replication.core.progress import LogRange, SlaveState
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import BrokerRole, FlushMode, GetStatus, PutStatus
from waits import until


class SlowDisk(RealDisk):
    """A disk on which writes are synced once `may_sync` is set, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = asyncio.Event()
        self.may_sync.set()
        self.waiting_count = 0
        self.is_sick = False

    async def offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        if fn.__name__ == "_sync_all":
            self.waiting_count += 1
            await self.may_sync.wait()
            self.waiting_count -= 1
            if self.is_sick:
                raise OSError("I/O error")
        return await super().offload(fn, *args)


async def come_as(broker_id: int, master: Node, held: int) -> asyncio.StreamWriter:
    """Connects as a slave that reports its id and its end offset, and reads nothing."""
    host, _, port = master.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_handshake(Handshake(broker_id)) + encode_term_report(held))
    return writer


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    pair = Node(tmp_path / "1", 1), Node(tmp_path / "2", 2)
    for node in pair:
        await node.start()
    yield pair
    for node in pair:
        await node.stop()


async def test_a_slave_joins_and_every_send_waits_for_it(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.lead(1, 1)
    assert await one.send(*[b"x" * 900] * 60) == [PutStatus.PUT_OK] * 60
    assert one.channel.required == frozenset()
    await two.follow(one, 1)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    assert await one.send(b"both") == [PutStatus.PUT_OK]
    assert log_bytes(two.store) == log_bytes(one.store)
    assert one.channel.confirm_offset == one.store.max_log_offset
    assert two.channel.epochs == one.channel.epochs
    assert one.channel.required == {2}
    await two.channel.end_term()
    await until(lambda: one.proposals[-1] == {1})
    assert await one.send(b"alone") == [PutStatus.PUT_OK]


async def test_a_slave_that_comes_again_with_less_counts_for_what_it_has(nodes: tuple[Node, Node]) -> None:
    """The slave's machine was restarted, and the master has not noticed the end of the earlier connection."""
    one, _ = nodes
    await one.lead(1, 1)
    await one.send(b"first")
    before = await come_as(2, one, one.store.max_log_offset)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    after = await come_as(2, one, 0)
    await until(lambda: set(one.store.replies.acks.positions().values()) == {0})
    assert one.proposals[-1] == {1}  # at once, before it could be elected
    for writer in (before, after):
        writer.close()


async def test_a_slave_that_comes_again_too_old_leaves_the_set(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave's log ends before the master's begins; if it were elected, all later messages would be
    lost.
    """
    one, _ = nodes
    await one.lead(1, 1)
    await one.send(b"first" * 100, b"second")
    end = one.store.max_log_offset
    before = await come_as(2, one, end)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    monkeypatch.setattr(one.channel, "log_range", lambda: LogRange(end - 1, end))
    after = await come_as(2, one, 1)
    await until(lambda: one.proposals[-1] == {1})
    assert not one.store.replies.acks.positions()
    for writer in (before, after):
        writer.close()


async def test_a_term_does_not_begin_once_a_newer_one_is_known(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of a newer master was being written to disk when this broker was elected."""
    one, _ = nodes
    end_term = one.channel.end_term

    async def end_with_news() -> None:
        await end_term()
        await one.store.terms.save_epochs(one.store.terms.epochs.append(9, 0))

    monkeypatch.setattr(one.channel, "end_term", end_with_news)
    with pytest.raises(StaleTerm):
        await one.lead(5, 1)
    assert one.store.terms.epochs.last_epoch == 9
    assert one.channel.required is None


async def test_an_election_sees_no_term_of_which_a_copy_has_no_byte(nodes: tuple[Node, Node]) -> None:
    """Otherwise a replica that received the list and then lost its master would count as newer than a longer
    one.
    """
    one, _ = nodes
    await one.lead(1, 1)
    await one.send(b"first")
    end = one.store.max_log_offset
    await one.store.terms.save_epochs(one.store.terms.epochs.append(2, end + 1))
    assert (one.store.terms.epochs.last_epoch, one.channel.epochs.last_epoch) == (2, 1)
    await one.store.terms.save_epochs(one.store.terms.epochs.append(3, end))
    assert one.channel.epochs.last_epoch == 3  # a new master has no byte of its own term yet


async def test_each_side_tells_of_the_copy(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    assert (one.channel.master_status(), one.channel.slave_status()) == (None, None)
    await one.lead(1, 1)
    await two.follow(one, 1)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    await one.send(b"both")
    status, copy = one.channel.master_status(), two.channel.slave_status()
    assert status is not None
    assert copy is not None
    (slave,) = status.slaves
    assert (slave.replica, slave.is_in_sync, slave.lag_bytes, status.in_sync_count) == (
        "broker 2",
        True,
        0,
        1,
    )
    assert (copy.master_address, copy.log_end) == (one.address, status.log_end)
    await two.channel.end_term()
    await until(lambda: one.proposals[-1] == {1})
    status = one.channel.master_status()
    assert status is not None
    assert (status.slaves, status.in_sync_count) == ((), 0)


async def test_a_set_that_is_too_small_takes_no_sends(tmp_path: Path) -> None:
    """minInSyncReplicas=2: no message that is on one disk only is answered as stored."""
    one = Node(tmp_path, 1)
    one.copy_count_min = 2
    await one.start()
    await one.lead(1, 1)
    with pytest.raises(RequestRejected, match=r"has 1 copies of minInSyncReplicas=2"):
        await one.send(b"alone")
    slave = await come_as(2, one, one.store.max_log_offset)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    sending = asyncio.create_task(one.send(b"with two"))
    await until(lambda: one.store.max_log_offset > 0)
    slave.close()
    await until(lambda: one.proposals[-1] == {1})
    assert await sending == [PutStatus.FLUSH_SLAVE_TIMEOUT]  # the set became smaller meanwhile
    with pytest.raises(RequestRejected, match=r"minInSyncReplicas"):
        await one.send(b"alone again")
    await one.channel.end_term()
    assert one.store._core.admission.refusal is None  # as a slave it writes the master's messages
    await one.stop()


async def test_a_copy_that_follows_nobody_shows_what_is_confirmed(nodes: tuple[Node, Node]) -> None:
    """Messages beyond the confirmed offset may be missing at the next master, and their offsets reused."""
    one, two = nodes
    await one.lead(1, 1)
    await two.follow(one, 1)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    assert await one.send(b"confirmed") == [PutStatus.PUT_OK]
    end = one.store.terms.confirm_offset
    await two.channel.end_term()
    one.decides = False
    assert await one.send(b"perhaps") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    await one.channel.end_term()
    one.store.become(BrokerRole.SLAVE)
    assert one.store.terms.confirm_offset == end < one.store.max_log_offset
    await until(lambda: one.store.queue_max("T", 0) == 2)
    for is_bulk in (False, True):
        got = one.store.reader.get("T", 0, 0, count_max=32, is_bulk=is_bulk)
        assert (got.status, got.next_offset) == (GetStatus.FOUND, 1)
        rest = one.store.reader.get("T", 0, 1, count_max=32, is_bulk=is_bulk)
        assert (rest.status, rest.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 1)
    await one.lead(3, 1)
    assert one.store.reader.get("T", 0, 1, count_max=32).status is GetStatus.FOUND


async def test_a_new_master_shows_what_it_inherited_once_its_set_holds_it(nodes: tuple[Node, Node]) -> None:
    """Another master may follow until then, and lack the inherited messages."""
    one, two = nodes
    await one.lead(1, 1, 2)
    assert await one.send(b"perhaps") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    await one.channel.end_term()
    one.store.become(BrokerRole.SLAVE)
    await one.lead(2, 1, 2)
    assert (one.store.terms.confirm_offset, one.store.queue_max("T", 0)) == (0, 1)
    assert one.store.reader.get("T", 0, 0, count_max=32).status is GetStatus.OFFSET_OVERFLOW_ONE
    own = DurableWriter(one.store, LoopClock())
    assert [record.body for record in own.read("T", 0, 0)[0]] == [b"perhaps"]  # leases must be seen
    told: list[dict[tuple[str, int], int]] = []
    one.store.dispatcher.on_dispatch(lambda newest: told.append(dict(newest)))
    await two.follow(one, 2)
    await until(lambda: told, "who waits for the message is woken")
    assert told == [{("T", 0): 1}]
    assert one.store.reader.get("T", 0, 0, count_max=32).status is GetStatus.FOUND


async def test_a_slave_shows_what_every_member_holds(tmp_path: Path) -> None:
    one, two = Node(tmp_path / "1", 1), Node(tmp_path / "2", 2)
    for node in (one, two):
        node.replication = replace(FAST, heartbeat_interval_ms=600_000, silence_ms_max=1_200_000)
        await node.start()
    await one.lead(1, 1)
    await two.follow(one, 1)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    told: list[dict[tuple[str, int], int]] = []
    two.store.dispatcher.on_dispatch(lambda newest: told.append(dict(newest)))
    assert await one.send(b"both have it") == [PutStatus.PUT_OK]
    # No further message notifies the slave, and the next heartbeat is seconds away.
    await until(lambda: two.store.terms.confirm_offset == one.store.max_log_offset, "a head without bytes")
    assert told == [{("T", 0): 1}]
    assert two.store.reader.get("T", 0, 0, count_max=32).status is GetStatus.FOUND
    one.channel.set_committed(frozenset({1, 2, 3}), 10_000)
    sending = asyncio.create_task(one.send(b"the third lacks it"))
    await until(lambda: two.store.queue_max("T", 0) == 2)
    for is_bulk in (False, True):
        got = two.store.reader.get("T", 0, 0, count_max=32, is_bulk=is_bulk)
        assert (got.status, got.next_offset, got.count) == (GetStatus.FOUND, 1, 1)
        rest = two.store.reader.get("T", 0, 1, count_max=32, is_bulk=is_bulk)
        assert (rest.status, rest.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 1)
    assert len(told) == 1
    third = await come_as(3, one, one.store.max_log_offset)
    await until(lambda: two.store.terms.confirm_offset == one.store.max_log_offset)
    assert told[1:] == [{("T", 0): 2}]
    assert two.store.reader.get("T", 0, 1, count_max=32).status is GetStatus.FOUND
    await sending
    third.close()
    for node in (one, two):
        await node.stop()


async def test_while_the_controllers_are_silent_a_send_waits_for_who_may_be_in_the_set(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    await one.lead(1, 1)
    await two.follow(one, 1)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    one.decides = False
    await two.channel.end_term()
    await until(lambda: one.proposals[-1] == {1})
    assert await one.send(b"perhaps") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert one.channel.required == {2}


async def test_acknowledgements_of_a_term_do_not_count_in_the_next(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    await one.lead(1, 1)
    await two.follow(one, 1)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    await one.send(b"first")
    await one.lead(3, 1, 2)
    assert not one.store.replies.acks.positions()
    assert await one.send(b"second") in ([PutStatus.PUT_OK], [PutStatus.FLUSH_SLAVE_TIMEOUT])
    await until(one.store.replies.acks.positions)  # over a connection of the new term
    assert await one.send(b"third") == [PutStatus.PUT_OK]
    assert two.channel.epochs == one.channel.epochs
    assert log_bytes(two.store) == log_bytes(one.store)


async def test_a_deposed_master_cuts_its_tail_and_follows(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.lead(1, 1)
    await two.follow(one, 1)
    await until(lambda: frozenset({1, 2}) in one.proposals)
    await one.send(*[b"both have it" * 50] * 20)
    one.decides = False
    await two.channel.end_term()
    shared = two.store.max_log_offset
    assert await one.send(*[b"only one has it" * 50] * 120) == [PutStatus.FLUSH_SLAVE_TIMEOUT] * 120
    assert one.store.max_log_offset > SEGMENT > shared
    await two.lead(2, 2)
    with pytest.raises(StaleTerm):
        await two.channel.begin_term(2, frozenset({2}), 1)
    await two.send(b"newer")
    await one.follow(two, 2)
    await until(lambda: frozenset({1, 2}) in two.proposals)
    assert await two.send(b"and on") == [PutStatus.PUT_OK]
    assert log_bytes(one.store) == log_bytes(two.store)
    assert one.channel.epochs == two.channel.epochs
    assert [entry.epoch for entry in two.channel.epochs.entries] == [1, 2]
    [copy] = (one.root / "divergent").iterdir()
    assert copy.name.startswith(f"1-{shared}-")
    await until(lambda: one.store.queue_max("T", 0) == two.store.queue_max("T", 0) == 22)


async def test_a_term_that_ends_confirms_nothing_that_a_member_lacks(tmp_path: Path) -> None:
    """Enough slaves for inSyncReplicas had the message, but not every broker that may be elected."""
    one = Node(tmp_path / "1", 1, in_sync_replicas=2)
    await one.start()
    await one.lead(1, 1, 2, 3)
    sending = asyncio.ensure_future(one.send(b"x"))
    await until(lambda: one.store.max_log_offset > 0)
    writer = await come_as(2, one, one.store.max_log_offset)
    await until(lambda: set(one.store.replies.acks.positions().values()) == {one.store.max_log_offset})
    await one.channel.end_term()
    assert await sending == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    writer.close()
    await one.stop()


async def test_a_master_replaced_before_a_byte_was_copied_comes_back(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.lead(1, 1, 2)
    assert await one.send(b"nobody else had it") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    await two.lead(2, 2)
    assert await two.send(b"first") == [PutStatus.PUT_OK]
    await one.follow(two, 2)
    await until(lambda: log_bytes(one.store) == log_bytes(two.store), "the same log")
    assert one.channel.epochs == two.channel.epochs


async def test_readers_of_a_master_see_what_every_member_holds(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.lead(1, 1)
    assert await one.send(b"alone") == [PutStatus.PUT_OK]
    assert one.store.queue_max("T", 0) == 1
    one.decides = False
    await one.channel.begin_term(2, frozenset({1, 2}), 200)
    assert await one.send(b"nobody else has it") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert one.store.queue_max("T", 0) == 1
    assert one.store.queue_next("T", 0) == 2
    await two.follow(one, 2)
    await until(lambda: one.store.queue_max("T", 0) == 2)
    # The awaited slave leaves; then the master does, with a message that no other broker has.
    await two.channel.end_term()
    assert await one.send(b"cut off") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert one.store.queue_max("T", 0) == 2
    await one.channel.end_term()
    one.store.become(BrokerRole.SLAVE)
    await two.lead(3, 2)
    await two.send(b"in its place")
    await one.channel.follow(two.address, 3, 2)
    await until(lambda: one.store.max_log_offset == two.store.max_log_offset)
    assert log_bytes(one.store) == log_bytes(two.store)
    assert one.store.queue_max("T", 0) == two.store.queue_max("T", 0) == 3


async def inherit_unsynced(nodes: Sequence[Node], *, is_told: bool) -> tuple[SlowDisk, int]:
    """Runs three brokers up to a failover before the successor's disk is synced.

    The first broker led and is gone. The second has every acknowledged message, but its disk has not synced
    them yet. With `is_told` the slaves know that the messages are confirmed. Returns the second broker's
    disk, and the end of all logs.
    """
    one, two, three = nodes
    disk = two.disk = SlowDisk()
    for node in nodes:
        node.changes["flush_mode"] = FlushMode.SYNC_FLUSH
        node.replication = replace(FAST, heartbeat_interval_ms=600_000, silence_ms_max=1_200_000)
        await node.start()
    await one.lead(1, 1, 2, 3)
    for slave in (two, three):
        await slave.follow(one, 1)
    assert await one.send(b"on every disk") == [PutStatus.PUT_OK]
    await until(lambda: two.store.flushed.value == one.store.max_log_offset)
    disk.may_sync.clear()
    assert await one.send(*[b"acknowledged" * 50] * 5) == [PutStatus.PUT_OK] * 5
    end = one.store.max_log_offset
    if is_told:
        await until(lambda: three.store.terms.confirm_offset == end)
    await one.channel.end_term()
    assert two.store.flushed.value < two.store.max_log_offset == three.store.max_log_offset == end
    assert (three.store.terms.confirm_offset == end) is is_told
    return disk, end


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
async def test_a_slave_keeps_what_a_new_master_has_and_its_disk_has_not_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """A master reports its synced end to slaves; a slave with more would halt, or cut the rest."""
    if not is_told:
        monkeypatch.setattr("tandemmq.replication.shell.autoswitch.CONFIRM_DELAY_MS", 600_000)
    nodes = _, two, three = [Node(tmp_path / str(n), n) for n in (1, 2, 3)]
    disk, end = await inherit_unsynced(nodes, is_told=is_told)
    leading = asyncio.ensure_future(two.lead(2, 2, 3))
    try:
        await until(lambda: leading.done() or disk.waiting_count == 2, "the term waits for the disk, too")
        await three.follow(two, 2)
        answered = (SlaveState.PAUSED, SlaveState.HALTED, SlaveState.TRANSFERRING)
        await until(lambda: three.channel.slave_status().state in answered)  # type: ignore[union-attr]
        assert three.channel.halt_reason == ""
        assert three.store.max_log_offset == end
    finally:
        disk.may_sync.set()  # otherwise nothing can be stopped
    await leading
    assert two.store.confirmed.value == end
    assert await two.send(b"newer") == [PutStatus.PUT_OK]
    assert log_bytes(three.store) == log_bytes(two.store)
    assert [tuple(entry) for entry in three.channel.epochs.entries] == [(1, 0), (2, end)]
    for node in nodes:
        await node.stop()


async def test_no_term_begins_over_a_log_that_cannot_be_synced(tmp_path: Path) -> None:
    """The other brokers have the messages on their disks, and one of them is elected then."""
    nodes = _, two, _ = [Node(tmp_path / str(n), n) for n in (1, 2, 3)]
    disk, _ = await inherit_unsynced(nodes, is_told=True)
    disk.is_sick = True
    disk.may_sync.set()
    with pytest.raises(FlushFailed):
        await two.lead(2, 2, 3)
    assert (two.store.terms.epochs.last_epoch, two.channel.required) == (1, None)
    for node in nodes:
        await node.stop()


async def test_a_history_that_arrives_without_its_connection_is_dropped(tmp_path: Path) -> None:
    """A broker in no term closes each connection at once, before the slave has begun to ask it. The slave
    must dial again.
    """
    asked: list[None] = []

    class Asking(NoHistory):
        async def ask(self) -> None:
            asked.append(None)

    class AskingNode(Node):
        def comparer(self) -> NoHistory:
            return Asking()

    pair = Node(tmp_path / "1", 1), AskingNode(tmp_path / "2", 2)
    network = MemoryNetwork(LoopClock())
    for node in pair:
        node.network = network
        await node.start()
    try:
        await pair[1].follow(pair[0], 1)
        await until(lambda: len(asked) > 1, "it dials again")
    finally:
        for node in pair:
            await node.stop()


async def test_a_history_that_arrives_over_the_next_connection_is_dropped(tmp_path: Path) -> None:
    """The master closed the first connection while the slave waited for its answer."""
    answers: list[asyncio.Future[None]] = []
    accepted: list[asyncio.StreamWriter] = []
    heard = bytearray()

    class Asking(NoHistory):
        async def ask(self) -> None:
            answers.append(asyncio.get_running_loop().create_future())
            await answers[-1]

    class AskingNode(Node):
        def comparer(self) -> NoHistory:
            return Asking()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        while data := await reader.read(1_024):
            heard.extend(data)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    master, slave = Node(tmp_path / "1", 1), AskingNode(tmp_path / "2", 2)
    host, port = server.sockets[0].getsockname()
    master.address = f"{host}:{port}"
    await slave.start()
    try:
        await slave.follow(master, 1)
        await until(lambda: len(answers) == len(accepted) == 1, "the slave asks")
        accepted[0].close()
        await until(lambda: len(answers) == len(accepted) == 2, "it asks again")
        answers[0].set_result(None)
        answers[1].set_result(None)
        hello = encode_handshake(Handshake(2, from_last_file=False, is_learner=False))
        await until(lambda: heard == hello, "it introduces itself")
        accepted[1].close()
        await until(lambda: len(answers) == 3, "it asks a third time")
        assert heard == hello
    finally:
        await slave.stop()
        server.close()
        for writer in accepted:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in accepted), return_exceptions=True)
