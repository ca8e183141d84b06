"""Whose older connection a slave of a term takes the place of, and whose it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.replication.core.epochs import Handshake, encode_handshake, encode_term_report
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.shell import AutoSwitchReplication
from tandemmq.store import BrokerRole, MessageStore, StoreOptions


class Slave(asyncio.Protocol):
    """One connection to the master; it reads nothing."""

    def __init__(self) -> None:
        self.is_lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class Term:
    """A master in its term, on an empty log."""

    async def start(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        options = StoreOptions(root=Path("/store"), role=BrokerRole.SLAVE)
        self.store = await MessageStore.open(options, disk=MemoryDisk(), clock=self.clock, has_terms=True)
        self.channel = AutoSwitchReplication(
            self.store, 1, ReplicationOptions(), network=self.network, clock=self.clock
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

    async def come(self, slave_id: int, *, is_learner: bool = False) -> Slave:
        """A slave that says who it is and that it holds nothing."""
        hello = encode_handshake(Handshake(slave_id, is_learner=is_learner))
        return await self.connect(hello + encode_term_report(0))


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
        await term.connect(),  # it has not told who it is yet
        await term.connect(encode_handshake(Handshake(4))),
    ]
    learner = await term.come(5, is_learner=True)
    assert [slave.is_lost for slave in (*others, learner)] == [False] * 5


@pytest.mark.parametrize("is_learner", [False, True])
@pytest.mark.parametrize("was_learner", [False, True])
async def test_a_slave_that_comes_again_takes_the_place_of_its_older_connection(
    term: Term, was_learner: bool, is_learner: bool
) -> None:
    """Also when it was made a learner in between, or is one no more."""
    other = await term.come(2, is_learner=True)
    older = await term.come(3, is_learner=was_learner)
    assert ("broker 3" in term.store.acks.positions()) is not was_learner
    newer = await term.come(3, is_learner=is_learner)
    assert [slave.is_lost for slave in (other, older, newer)] == [False, True, False]
    assert ("broker 3" in term.store.acks.positions()) is not is_learner
