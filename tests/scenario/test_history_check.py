"""A slave and its master prove their histories to each other before a byte is copied (decision 023)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_pair import log_bytes
from term_nodes import Node, record

from no_history import NoHistory
from tandemmq.admin.audit_command import AuditOutcome, compare_logs
from tandemmq.broker.autoswitch import history_check
from tandemmq.broker.autoswitch.history_check import HistoryCheck
from tandemmq.broker.autoswitch.identity import ForeignGroup, GroupIdentity
from tandemmq.broker.replica.log_checksum import LogChecksums
from tandemmq.errors import Busy
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import render_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.replication.core.epochs import EpochEntry, EpochList, encode_group, encode_handshake
from tandemmq.replication.core.progress import SlaveState
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict
from tandemmq.replication.shell.autoswitch import HistoryComparer
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.store import BrokerRole, PutStatus
from tandemmq.telemetry import events
from waits import until

GROUP_ID, OTHER_ID = "0123456789abcdef" * 2, "f" * 32
NEW = (RequestCode.TANDEM_HISTORY,)
NOT_OF_ROCKETMQ = (RequestCode.TANDEM_HISTORY, RequestCode.TANDEM_READ_LOG_CHECKSUM)


class Proven(Node):
    """A node with a remoting port, where its peer asks for its history. `lacks` contains the codes that an
    older peer lacks.
    """

    group_id: str | None = GROUP_ID
    lacks: tuple[int, ...] = ()
    asked_count = 0
    is_of_yesterday = False
    """True: the node knows no histories."""

    def comparer(self) -> HistoryComparer:
        self.group = GroupIdentity(self.root / "brokerGroup", broker=f"broker {self.id}", disk=self.disk)
        self.group.group_id = self.group_id
        self.client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
        self.check = HistoryCheck(
            self.store,
            self.group,
            broker_id=self.id,
            address="127.0.0.1:1",
            master_epoch=lambda: 1,
            client=self.client,
            disk=self.disk,
        )
        return NoHistory() if self.is_of_yesterday else self.check

    async def start(self) -> None:
        await super().start()
        handlers: dict[int, Handler] = {
            RequestCode.TANDEM_HISTORY: self.handle_history,
            **LogChecksums(self.store, disk=self.disk, run_id="1").routes(),
        }
        served = {code: handler for code, handler in handlers.items() if code not in self.lacks}
        self.server = RemotingServer(served, network=TcpNetwork(), clock=LoopClock())
        self.place = render_address(await self.server.start("127.0.0.1", 0))

    def handle_history(self, channel: Channel, command: Command) -> Command:
        self.asked_count += 1
        return self.check.handle_history(channel, command)

    async def follow(self, master: Node, epoch: int) -> None:
        assert isinstance(master, Proven)
        self.check.master = master.place
        await super().follow(master, epoch)

    @property
    def copy_state(self) -> SlaveState | None:
        status = self.channel.slave_status()
        return None if status is None else status.state

    @property
    def verdict(self) -> TailVerdict | None:
        status = self.channel.slave_status()
        return None if status is None else status.tail

    async def stop(self) -> None:
        await super().stop()
        await self.server.stop()
        await self.client.close()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Proven, Proven]]:
    pair = Proven(tmp_path / "1", 1), Proven(tmp_path / "2", 2)
    yield pair
    for node in pair:
        await node.stop()


async def share(one: Proven, two: Proven) -> int:
    """Starts both nodes with the same term 1; returns its end."""
    for node in (one, two):
        await node.start()
    await one.lead(1, 1, term_id=7)
    await two.follow(one, 1)
    await one.send(*[b"both have it" * 40] * 20)
    await until(lambda: two.store.max_log_offset == one.store.max_log_offset)
    await until(lambda: two.store.terms.confirm_offset == one.store.max_log_offset)
    await two.channel.end_term()
    await one.channel.end_term()
    return one.store.max_log_offset


async def part(
    one: Proven, two: Proven, *, ids: tuple[int, int] = (0, 0), members: tuple[int, ...] = (2,)
) -> int:
    """Simulates controllers whose disk went back and that assign term 2 twice; each master writes alone.
    Returns the offset at which the logs diverge.
    """
    shared = await share(one, two)
    await one.lead(2, 1, term_id=ids[0])
    assert await one.send(b"same" * 60, b"X" * 300) == [PutStatus.PUT_OK] * 2
    two.decides = False
    await two.lead(2, *members, term_id=ids[1])
    await two.send(b"same" * 60, b"Y" * 300)
    assert one.channel.epochs.entries == two.channel.epochs.entries
    assert one.store.max_log_offset == two.store.max_log_offset
    await two.channel.end_term()
    one.proposals.clear()
    return shared


def errors(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.getMessage() == event and one.levelname == "ERROR"]


@pytest.mark.parametrize(("ids", "lacks"), [((0, 0), ()), ((0, 0), NEW), ((8, 9), ())], ids=str)
async def test_two_histories_of_one_term_are_never_in_sync(
    nodes: tuple[Proven, Proven],
    caplog: pytest.LogCaptureFixture,
    ids: tuple[int, int],
    lacks: tuple[int, ...],
) -> None:
    """Both histories were acknowledged, so a person must decide; nothing is cut, and the master continues
    alone.
    """
    one, two = nodes
    one.lacks = lacks
    await part(one, two, ids=ids)
    before = log_bytes(two.store)
    await two.follow(one, 2)
    await until(lambda: two.copy_state is SlaveState.HALTED)
    assert two.channel.halt_reason
    assert (two.channel.history_differed_count, log_bytes(two.store)) == (1, before)
    [error] = errors(caplog, events.REPLICA_HISTORY_DIFFERS)
    assert error.__dict__["is_healed"] is False
    assert one.proposals == []
    assert await one.send(b"alone") == [PutStatus.PUT_OK]


@pytest.mark.parametrize("ids", [(0, 0), (8, 9)], ids=str)
async def test_a_history_that_was_confirmed_nowhere_is_cut_at_the_last_equal_record(
    nodes: tuple[Proven, Proven], caplog: pytest.LogCaptureFixture, ids: tuple[int, int]
) -> None:
    one, two = nodes
    shared = await part(one, two, ids=ids, members=(1, 2))
    assert two.store.terms.confirm_offset == shared
    await two.follow(one, 2)
    await until(lambda: log_bytes(two.store) == log_bytes(one.store))
    assert two.channel.epochs == one.channel.epochs
    assert two.channel.history_differed_count == 1
    [error] = errors(caplog, events.REPLICA_HISTORY_DIFFERS)
    assert error.__dict__["is_healed"] is True
    [copy] = (two.root / "divergent").iterdir()
    cut = int(copy.name.split("-")[1])
    # Without ids only bytes tell the terms apart: records that both stored in one millisecond are equal.
    assert cut == shared if any(ids) else cut >= shared
    await until(lambda: one.proposals[-1:] == [{1, 2}])


@pytest.mark.parametrize("window_bytes", [history_check.WINDOW_BYTES, 100])
@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_a_difference_inside_a_term_is_found_and_healed_where_a_record_begins(
    nodes: tuple[Proven, Proven], monkeypatch: pytest.MonkeyPatch, is_confirmed: bool, window_bytes: int
) -> None:
    """A broker whose directory was put back, or that belongs to another cluster, has the same list of terms.
    The difference may begin below the window that each check compares.
    """
    monkeypatch.setattr(history_check, "WINDOW_BYTES", window_bytes)
    one, two = nodes
    shared = await share(one, two)
    two.store.become(BrokerRole.SYNC_MASTER)
    for body in (b"Y" * 300, b"Z" * 300):
        two.store.appender.append([record(body)], lambda _status: None)
    await until(lambda: two.store.confirmed.value > shared + 600)
    if is_confirmed:
        two.store.terms.raise_confirm_offset(two.store.max_log_offset)
    one.store.appender.append([record(b"X" * 900)], lambda _status: None)
    await until(lambda: one.store.confirmed.value > shared + 900)
    await one.lead(2, 1)
    assert two.channel.epochs.entries == one.channel.epochs.entries[:1]
    await two.follow(one, 2)
    if is_confirmed:
        await until(lambda: two.copy_state is SlaveState.HALTED)
        assert two.store.max_log_offset > shared
        return
    await until(lambda: log_bytes(two.store) == log_bytes(one.store))
    [copy] = (two.root / "divergent").iterdir()
    assert copy.name.startswith(f"1-{shared}-")


async def test_another_group_is_refused_by_both_sides(
    nodes: tuple[Proven, Proven], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = nodes
    two.group_id = OTHER_ID
    for node in nodes:
        await node.start()
    await one.lead(1, 1)
    await one.send(b"of the first group")
    await two.follow(one, 1)
    await until(lambda: one.asked_count >= 2, "it goes on trying")
    assert (two.store.max_log_offset, one.proposals) == (0, [])
    told = [error.__dict__["reason"] for error in errors(caplog, events.BROKER_GROUP_REFUSED)]
    assert len(told) == 2  # one line on each side, whatever the number of attempts
    assert all(GROUP_ID in reason and OTHER_ID in reason for reason in told)
    with pytest.raises(ForeignGroup):
        await two.check.ask()
    assert (two.check.is_verified, OTHER_ID in two.check.mismatch) == (False, True)


@pytest.mark.parametrize(("group_id", "is_served"), [(GROUP_ID, True), (OTHER_ID, False)])
async def test_the_group_is_proven_on_the_connection_itself(
    nodes: tuple[Proven, Proven], group_id: str, is_served: bool
) -> None:
    """Another process may have acquired the port since the check."""
    one, two = nodes
    for node in nodes:
        await node.start()
    await one.lead(1, 1)
    two.channel._handshake = two.channel._handshake._replace(slave_id=2)
    await one.send(b"x")
    host, _, port = one.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_group(group_id) + encode_handshake(two.channel._handshake))
    assert bool(await asyncio.wait_for(reader.read(100), 5)) is is_served
    writer.close()


async def test_a_slave_of_yesterday_is_served_without_a_proof(nodes: tuple[Proven, Proven]) -> None:
    one, two = nodes
    two.is_of_yesterday = True
    for node in nodes:
        await node.start()
    await one.lead(1, 1)
    await two.follow(one, 1)
    assert await one.send(b"x") == [PutStatus.PUT_OK]
    await until(lambda: log_bytes(two.store) == log_bytes(one.store) != b"")


@pytest.mark.parametrize(
    ("lacks", "outcome"),
    [((), TailOutcome.SAME), (NEW, TailOutcome.SAME), (NOT_OF_ROCKETMQ, TailOutcome.NOT_COMPARED)],
    ids=["ours", "yesterday's", "RocketMQ's"],
)
async def test_masters_of_all_releases_are_followed(
    nodes: tuple[Proven, Proven], lacks: tuple[int, ...], outcome: TailOutcome
) -> None:
    one, two = nodes
    one.lacks = lacks
    await share(one, two)
    await one.lead(2, 1, term_id=8)
    await one.send(b"newer")
    await two.follow(one, 2)
    await until(lambda: log_bytes(two.store) == log_bytes(one.store))
    assert two.verdict is not None
    assert two.verdict.outcome is outcome
    assert two.check.is_verified is not bool(lacks)
    known = two.channel.epochs.ids
    assert known == ({} if lacks else {EpochEntry(1, 0): 7, one.channel.epochs.entries[1]: 8})


async def test_a_master_that_cannot_answer_now_is_asked_again(
    nodes: tuple[Proven, Proven], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    await share(one, two)
    await one.lead(2, 1)
    await one.send(b"newer")
    end, answer = two.store.max_log_offset, one.check.handle_history
    is_busy = True

    def handle(channel: Channel, command: Command) -> Command:
        if is_busy:
            raise Busy("later")
        return answer(channel, command)

    monkeypatch.setattr(one.check, "handle_history", handle)
    asked = one.asked_count
    await two.follow(one, 2)
    await until(lambda: one.asked_count >= asked + 2)
    assert two.store.max_log_offset == end  # nothing is copied unproven
    is_busy = False
    await until(lambda: log_bytes(two.store) == log_bytes(one.store))


async def test_a_copy_that_connects_again_in_its_term_is_compared_again(nodes: tuple[Proven, Proven]) -> None:
    one, two = nodes
    await share(one, two)
    await one.lead(2, 1)
    await one.send(b"newer")
    await two.follow(one, 2)
    await until(lambda: log_bytes(two.store) == log_bytes(one.store))
    asked = one.asked_count
    for connection in list(one.channel._connections):
        connection.close("cut by the test")
    assert await one.send(b"and on") in ([PutStatus.PUT_OK], [PutStatus.FLUSH_SLAVE_TIMEOUT])
    await until(lambda: log_bytes(two.store) == log_bytes(one.store))
    assert one.asked_count > asked


async def test_flipped_bits_are_no_other_history(nodes: tuple[Proven, Proven]) -> None:
    """Scrubbing repairs bit flips; a replica that halted for them would be an outage."""
    one, two = nodes
    shared = await share(one, two)
    [path] = [path for path in (two.root / "commitlog").iterdir() if path.name == "0" * 20]
    with path.open("r+b") as file:
        file.seek(shared - 200)
        file.write(b"?")
    assert log_bytes(two.store) != log_bytes(one.store)
    await one.lead(2, 1)
    await one.send(b"newer")
    await two.follow(one, 2)
    await until(lambda: two.copy_state is SlaveState.TRANSFERRING)
    assert two.verdict is not None
    assert (two.verdict.outcome, two.channel.history_differed_count) == (TailOutcome.NOT_COMPARED, 0)
    assert "damaged" in two.verdict.detail
    assert two.store.role is BrokerRole.SLAVE


async def test_an_audit_tells_two_histories_apart_where_no_byte_differs(nodes: tuple[Proven, Proven]) -> None:
    one, two = nodes
    await share(one, two)

    async def outcome() -> AuditOutcome:
        found = await compare_logs(one.client, one.place, two.place)
        assert bool(found.detail) is (found.outcome is AuditOutcome.DIFFERENT)
        return found.outcome

    assert await outcome() is AuditOutcome.EQUAL
    two.group.group_id = OTHER_ID
    assert await outcome() is AuditOutcome.DIFFERENT
    two.group.group_id = None
    assert await outcome() is AuditOutcome.EQUAL
    await two.store.terms.save_epochs(EpochList(two.store.terms.epochs.entries, {EpochEntry(1, 0): 8}))
    assert await outcome() is AuditOutcome.DIFFERENT


async def test_an_audit_of_older_brokers_is_by_their_bytes(nodes: tuple[Proven, Proven]) -> None:
    one, two = nodes
    two.lacks = NEW
    await share(one, two)
    assert (await compare_logs(one.client, one.place, two.place)).outcome is AuditOutcome.EQUAL
