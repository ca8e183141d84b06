"""A master and the slaves of its term: which older connections a reconnecting slave replaces, where a term
begins, and where a slave truncates its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from replica_logs import make_log

from no_history import NoHistory
from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.protocol.record import NewRecord
from tandemmq.replication.core.epochs import (
    EpochEntry,
    EpochList,
    EpochsAnswer,
    Handshake,
    encode_answer,
    encode_handshake,
    encode_term_report,
)
from tandemmq.replication.core.options import ReplicationOptions, SetOptions
from tandemmq.replication.core.progress import LogRange
from tandemmq.replication.shell import AutoSwitchReplication
from tandemmq.store import BrokerRole, FlushMode, MessageStore, StoreOptions

FILE_BYTES = 16_384
RECORD = NewRecord(topic="T", queue_id=0, body=b"x", properties=b"", born_at_ms=1, born_host=bytes(8))


class Slave(asyncio.Protocol):
    """One connection to the master; it reads nothing."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class NextMaster(asyncio.Protocol):
    """Answers a handshake; `heard` are the bytes after it."""

    def __init__(self, answer: EpochsAnswer) -> None:
        self.answer = answer
        self.heard = b""
        self.is_greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.is_greeted:
            self.heard += data
        else:
            self.is_greeted = True
            self.transport.write(encode_answer(self.answer))


class Term:
    """A master in its term, with an empty log."""

    async def start(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.faults: list[BaseException] = []
        options = StoreOptions(
            root=Path("/store"),
            role=BrokerRole.SLAVE,
            flush_mode=FlushMode.SYNC_FLUSH,
            commit_log_file_bytes=FILE_BYTES,
            message_bytes_max=1_024,
        )
        self.store = await MessageStore.open(options, disk=MemoryDisk(), clock=self.clock, has_terms=True)
        self.channel = AutoSwitchReplication(
            self.store,
            1,
            ReplicationOptions(),
            SetOptions(waits_for_all=False, lag_ms_max=15_000),
            NoHistory(),
            network=self.network,
            clock=self.clock,
            on_fatal=self.faults.append,
        )
        self.address = await self.channel.start("10.0.0.1", 10912)
        await self.channel.begin_term(1, frozenset({1}), 100)

    async def stop(self) -> None:
        await self.channel.stop()
        await self.store.close()

    async def connect(self, data: bytes = b"") -> Slave:
        slave = Slave()
        transport = await self.network.connect(*self.address, lambda: slave, 1.0)
        transport.write(data)
        await self.clock.pass_time(0.1)
        return slave

    async def come(
        self, slave_id: int, *, is_learner: bool = False, from_last_file: bool = False, held: int = 0
    ) -> Slave:
        """Connects a slave that sends its id and the end of its log."""
        hello = encode_handshake(Handshake(slave_id, from_last_file, is_learner))
        return await self.connect(hello + encode_term_report(held))

    def write(self) -> None:
        """Appends a record, which is not on disk yet."""
        self.store.appender.append([RECORD], lambda _status: None)
        self.clock.run_soon()


@pytest.fixture
async def term() -> AsyncIterator[Term]:
    subject = Term()
    await subject.start()
    yield subject
    await subject.stop()


async def test_a_learner_that_starts_ends_no_connection_of_another_slave(term: Term) -> None:
    others = [
        await term.come(2),
        await term.come(3, is_learner=True),
        await term.connect(),  # it has not sent its id yet
        await term.connect(encode_handshake(Handshake(4))),
    ]
    learner = await term.come(5, is_learner=True)
    assert [slave.is_lost for slave in (*others, learner)] == [False] * 5


@pytest.mark.parametrize("is_learner", [False, True])
@pytest.mark.parametrize("was_learner", [False, True])
async def test_a_slave_that_comes_again_takes_the_place_of_its_older_connection(
    term: Term, was_learner: bool, is_learner: bool
) -> None:
    """Also if it has become a learner in between, or has stopped being one."""
    other = await term.come(2, is_learner=True)
    older = await term.come(3, is_learner=was_learner)
    assert ("broker 3" in term.store.replies.acks.positions()) is not was_learner
    newer = await term.come(3, is_learner=is_learner)
    assert [slave.is_lost for slave in (other, older, newer)] == [False, True, False]
    assert ("broker 3" in term.store.replies.acks.positions()) is not is_learner


async def test_a_slave_that_comes_again_ends_its_older_connection_that_has_reported_nothing(
    term: Term,
) -> None:
    """Its report may still be in flight, and would count in addition to that of the newer connection."""
    older = await term.connect(encode_handshake(Handshake(3)))
    newer = await term.come(3)
    assert [slave.is_lost for slave in (older, newer)] == [True, False]


async def test_a_member_that_comes_again_too_old_is_proposed_to_leave_at_once(
    term: Term, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy ends before the log begins, so it cannot be served; its connection stays."""
    proposals: list[frozenset[int]] = []

    def decide(members: frozenset[int], set_epoch: int) -> None:
        proposals.append(members)
        term.clock.call_soon(term.channel.set_committed, members, set_epoch + 1)

    term.channel.on_propose = decide
    term.store.become(BrokerRole.SYNC_MASTER)
    term.write()
    await term.store.sync()
    end = term.store.max_log_offset
    await term.come(2, held=end)
    await term.clock.pass_time(1.0)
    assert proposals == [{1, 2}]
    monkeypatch.setattr(term.channel, "log_range", lambda: LogRange(end - 1, end))
    again = await term.come(2, held=1)
    assert proposals == [{1, 2}, {1}]
    assert not again.is_lost


async def test_a_copy_that_began_late_acknowledges_nothing_before_its_first_file(term: Term) -> None:
    """It received only the last file (syncFromLastFile), and holds nothing before it."""
    store = term.store
    store.become(BrokerRole.SYNC_MASTER)
    while store.max_log_offset <= FILE_BYTES:
        term.write()
    await store.sync()
    end = store.max_log_offset
    slave = await term.come(2, from_last_file=True)
    await term.clock.pass_time(0.1)
    slave_report = encode_term_report(end)
    slave.transport.write(slave_report)
    await term.clock.pass_time(0.1)
    assert store.replies.acks.positions() == {"broker 2": end}
    assert store.replies.acks.acknowledged(1, log_end=end) == end
    assert store.replies.acks.acknowledged(1, log_end=end, since=FILE_BYTES) == 0
    assert store.replies.acks.acknowledged(1, log_end=end, since=FILE_BYTES + 1) == end


async def test_a_term_begins_where_the_log_ended_when_the_one_before_did(
    term: Term, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that continues in a newer term appends records, such as delayed messages, while its disk syncs
    the earlier ones. These are not on disk yet: a term that began after them would begin beyond the end that
    slaves see.
    """
    store = term.store
    store.become(BrokerRole.SYNC_MASTER)
    term.write()
    end, sync = store.max_log_offset, store.sync
    assert store.confirmed.value < end

    async def sync_while_more_comes() -> None:
        await sync()
        term.write()

    monkeypatch.setattr(store, "sync", sync_while_more_comes)
    await term.channel.begin_term(2, frozenset({1}), 200)
    assert store.terms.epochs.last == EpochEntry(2, end)
    assert end < store.max_log_offset
    slave = await term.connect(encode_handshake(Handshake(2)))
    assert not slave.is_lost
    assert term.faults == []


async def test_a_slave_ends_its_log_where_that_of_the_next_master_parts_from_it(term: Term) -> None:
    store = term.store
    await term.channel.end_term()
    log, ends = make_log([100] * 3, segment_bytes=store.options.commit_log_file_bytes)
    store.append_raw(0, log)
    assert [tuple(entry) for entry in store.terms.epochs.entries] == [(1, 0)]
    epochs = EpochList((EpochEntry(1, 0), EpochEntry(2, ends[1])))
    master = NextMaster(EpochsAnswer(ends[1], epochs))
    listener = await term.network.listen("10.0.0.2", 10912, lambda: master)
    await term.channel.follow("10.0.0.2:10912", 2, 2)
    await term.clock.pass_time(1.0)
    assert (store.max_log_offset, store.terms.epochs) == (ends[1], epochs)
    assert master.heard == encode_term_report(ends[1])
    assert term.faults == []
    await listener.close()
