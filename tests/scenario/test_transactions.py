"""Transactions through a real broker over the loopback (spec semantics 17, spec store 14, spec remoting
9.7).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from broker_rig import running_broker
from transaction_rig import COMMIT, FAST, ROLLBACK, UNKNOWN, TransactionPeer

from sim.memory import MemoryDisk
from tandemmq.broker.broker import Broker
from tandemmq.broker.transaction.checks import TransactionChecks
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.requests.admin import ResumeCheckRequest
from tandemmq.protocol.topic_names import DISCARD_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tandemmq.runtime.ports import T
from waits import until


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[TransactionPeer]:
    async with TransactionPeer(broker) as peer:
        yield peer


def queue_max(broker: Broker, topic: str) -> int:
    assert broker.store is not None
    return broker.store.queue_max(topic, 0)


async def test_half_message_is_seen_by_nobody_until_it_is_committed(
    broker: Broker, peer: TransactionPeer
) -> None:
    half = await peer.send_half(TAGS="a", KEYS="k")
    assert await peer.bodies() == []
    [stored] = await peer.read(HALF_TOPIC, 0)
    assert stored.sys_flag & 0xC == 0
    assert stored.properties["REAL_TOPIC"] == "T1"
    assert stored.properties["REAL_QID"] == "2"
    assert stored.properties["__transactionId__"] == half.transaction_id
    assert (await peer.end(half, COMMIT)).code == ResponseCode.SUCCESS
    [record] = await peer.read()
    assert (record.body, record.tags, record.keys) == (b"pay", "a", "k")
    assert record.sys_flag & 0xC == 8
    assert record.prepared_offset == decode_message_id(half.message_id).log_offset == stored.log_offset
    assert record.properties["TRAN_MSG"] == "true"
    assert (record.born_at_ms, record.unique_key) == (stored.born_at_ms, half.transaction_id)
    [op] = await peer.read(OP_HALF_TOPIC, 0)
    assert (op.tags, op.body) == ("d", b"0")


async def test_rolled_back_message_is_never_seen(broker: Broker, peer: TransactionPeer) -> None:
    half = await peer.send_half()
    assert (await peer.end(half, ROLLBACK)).code == ResponseCode.SUCCESS
    assert await peer.bodies() == []
    assert queue_max(broker, OP_HALF_TOPIC) == 1
    late = await peer.end(half, COMMIT)
    assert late.code == ResponseCode.SYSTEM_ERROR
    assert "already rolled back" in (late.remark or "")
    assert await peer.bodies() == []


async def test_commit_that_is_said_twice_delivers_once(broker: Broker, peer: TransactionPeer) -> None:
    half = await peer.send_half()
    for _ in range(3):
        assert (await peer.end(half, COMMIT)).code == ResponseCode.SUCCESS
    assert await peer.bodies() == [b"pay"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"producer_group": "OTHER"}, "of the group PG"),
        ({"half_queue_offset": 7}, "queue offset 0"),
        ({"log_offset": 5}, "no half message"),
        ({"log_offset": 1 << 40}, "no half message"),
        ({"log_offset": -1}, "no half message"),
    ],
)
async def test_end_of_another_message_is_refused(
    peer: TransactionPeer, changes: dict[str, object], word: str
) -> None:
    half = await peer.send_half()
    answer = await peer.end(half, COMMIT, **changes)
    assert (answer.code, word in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), answer.remark
    assert await peer.bodies() == []


async def test_ordinary_message_cannot_be_committed(peer: TransactionPeer) -> None:
    plain = await peer.send_ok("T1", b"plain", queue_id=2, properties={"PGROUP": "PG"})
    assert (await peer.end(plain, COMMIT)).code == ResponseCode.SYSTEM_ERROR
    assert await peer.bodies() == [b"plain"]


async def test_transactions_can_be_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, transactions_refused=True) as broker, TransactionPeer(broker) as peer:
        answer = await peer.send("T1", properties={"TRAN_MSG": "true", "PGROUP": "PG"})
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "rejectTransactionMessage" in (answer.remark or "")


async def test_producer_is_asked_and_its_answer_counts(tmp_path: Path) -> None:
    unhurried = {**FAST, "transaction_check_period_ms": 1_500}  # it checks once, however slow the answer
    async with running_broker(tmp_path, **unhurried) as broker, TransactionPeer(broker, COMMIT) as peer:
        await peer.heartbeat("c1", producers=("PG",))
        half = await peer.send_half()
        await until(lambda: queue_max_of(broker, "T1", 2) == 1, "the answer is stored")
        assert len(peer.asked) == 1
        header, record = peer.asked[0]
        assert (header.topic, header.unique_key) == (HALF_TOPIC, half.transaction_id)
        assert header.half_queue_offset == record.queue_offset == half.queue_offset + 1
        assert header.log_offset == record.log_offset
        assert (record.topic, record.queue_id, record.body) == ("T1", 2, b"pay")
        assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert await peer.bodies() == [b"pay"]
        # The producer's own decision arrives late: it is the same, and is not executed twice.
        assert (await peer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert await peer.bodies() == [b"pay"]


def queue_max_of(broker: Broker, topic: str, queue_id: int) -> int:
    assert broker.store is not None
    return broker.store.queue_max(topic, queue_id)


async def test_late_decision_for_a_copied_message_ends_its_copies(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FAST) as broker, TransactionPeer(broker) as peer:
        await peer.heartbeat("c1", producers=("PG",))
        half = await peer.send_half()
        await until(lambda: len(peer.asked) >= 2, "asked twice without an answer")
        assert (await peer.end(half, ROLLBACK)).code == ResponseCode.SUCCESS
        half_end = queue_max(broker, HALF_TOPIC)
        other = await peer.send_half(body=b"other")
        await until(lambda: any(r.body == b"other" for _, r in peer.asked), "a later one is asked about")
        assert other.queue_offset == half_end
        assert queue_max(broker, OP_HALF_TOPIC) == 2
        assert await peer.bodies() == []


async def test_undecided_message_is_given_up_and_can_be_taken_up_again(tmp_path: Path) -> None:
    settings = {**FAST, "transaction_check_count_max": 2}
    async with running_broker(tmp_path, **settings) as broker, TransactionPeer(broker, UNKNOWN) as peer:
        await peer.heartbeat("c1", producers=("PG",))
        await peer.send_half()
        await until(lambda: queue_max(broker, DISCARD_TOPIC) == 1, "given up")
        assert len(peer.asked) == 2
        [given_up] = await peer.read(DISCARD_TOPIC, 0)
        assert given_up.properties["REAL_TOPIC"] == "T1"
        peer.decision = COMMIT
        answer = await peer.ask(
            RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckRequest(message_id=given_up.message_id)
        )
        assert answer.code == ResponseCode.SUCCESS
        await until(lambda: queue_max_of(broker, "T1", 2) == 1, "asked again")


async def test_undecided_message_survives_a_restart_and_ended_ones_are_not_asked_about(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, TransactionPeer(broker) as peer:
        for decision in (COMMIT, UNKNOWN, ROLLBACK):
            half = await peer.send_half(body=b"%d" % decision)
            if decision != UNKNOWN:
                await peer.end(half, decision)
    async with running_broker(tmp_path, **FAST) as broker, TransactionPeer(broker, COMMIT) as peer:
        await peer.heartbeat("c1", producers=("PG",))
        await until(lambda: queue_max_of(broker, "T1", 2) == 2, "the open one is committed")
        assert {record.body for _, record in peer.asked} == {b"0"}
        assert await peer.bodies() == [b"8", b"0"]
    async with running_broker(tmp_path, **FAST) as broker, TransactionPeer(broker, COMMIT) as peer:
        await peer.heartbeat("c1", producers=("PG",))
        fresh = await peer.send_half(body=b"fresh")
        await until(lambda: queue_max_of(broker, "T1", 2) == 3, "the new one is committed")
        assert {record.body for _, record in peer.asked} == {b"fresh"}
        assert fresh.queue_offset >= 4


class FullDisk(MemoryDisk):
    """A disk that accepts no record of the topic "T1" while `is_full`; offloaded writes wait for room
    meanwhile.
    """

    def __init__(self) -> None:
        super().__init__(tracks_unsynced=False)
        self.fault = self
        self.room = asyncio.Event()
        self.room.set()
        self.failed_count = 0

    def on_create(self, path: Path, size: int) -> None:
        return None

    def on_write(self, path: Path, offset: int, size: int) -> int:
        # The write of an end fails; the write of zeros over it, which undoes it, succeeds.
        if self.room.is_set() or "commitlog" not in path.parts or self.failed_count:
            return size
        self.failed_count += 1
        return 0

    def on_sync(self, path: Path) -> None:
        return None

    async def offload(self, fn: Callable[..., T], *args: object) -> T:
        await self.room.wait()
        return await super().offload(fn, *args)


@pytest.mark.parametrize("oneway", [False, True])
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_end_that_a_full_disk_did_not_store_is_asked_about(decision: int, oneway: bool) -> None:
    disk = FullDisk()
    async with (
        running_broker(Path("/broker"), disk=disk, **FAST) as broker,
        TransactionPeer(broker, decision) as peer,
    ):
        half = await peer.send_half()
        disk.room.clear()
        ending = asyncio.create_task(peer.end_oneway(half, decision) if oneway else peer.end(half, decision))
        await until(lambda: disk.failed_count, "the end was not written")
        assert broker.store is not None
        checks = checks_of(broker)
        await checks.run_round()  # while the outcome of the write is unknown
        again = await peer.end(half, decision)
        disk.room.set()
        assert again.code == ResponseCode.SYSTEM_BUSY, "what is not stored yet is not answered as stored"
        answer = await ending
        if answer is not None:
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert await peer.bodies() == []
        await peer.heartbeat("c1", producers=("PG",))
        await until(lambda: queue_max(broker, OP_HALF_TOPIC), "asked again, and its answer is stored")
        assert len(peer.asked) >= 1
        assert await peer.bodies() == ([b"pay"] if decision == COMMIT else [])


def checks_of(broker: Broker) -> TransactionChecks:
    assert broker._duties is not None
    return next(duty for duty in broker._duties.duties if isinstance(duty, TransactionChecks))


async def test_copy_that_was_not_marked_gets_its_mark(tmp_path: Path) -> None:
    async with running_broker(tmp_path, transaction_timeout_ms=50) as broker, TransactionPeer(broker) as peer:
        half = await peer.send_half()
        for _ in range(2):  # each is one more duplicate, and only the newest is remembered
            resume = ResumeCheckRequest(message_id=half.message_id)
            assert (
                await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
            ).code == ResponseCode.SUCCESS
        assert (await peer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert queue_max(broker, OP_HALF_TOPIC) == 2
        checks = checks_of(broker)
        await checks.run_round()
        await until(lambda: queue_max(broker, OP_HALF_TOPIC) == 3, "the one between is marked, too")
        assert {op.body for op in await peer.read(OP_HALF_TOPIC, 0)} == {b"0", b"1", b"2"}
    # Ended transactions are in the log: a broker without memory of them checks none of the three.
    async with running_broker(tmp_path, **FAST) as broker, TransactionPeer(broker, COMMIT) as peer:
        await peer.heartbeat("c1", producers=("PG",))
        await peer.send_half(body=b"fresh")
        await until(lambda: queue_max_of(broker, "T1", 2) == 2, "the new one is committed")
        assert {record.body for _, record in peer.asked} == {b"fresh"}


async def test_immunity_puts_the_question_off_and_a_late_decision_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FAST) as broker, TransactionPeer(broker) as peer:
        await peer.heartbeat("c1", producers=("PG",))
        await peer.send_half(body=b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
        peer.age_ms = 2_000
        past = await peer.send_half(body=b"past", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        answer = await peer.end(past, COMMIT)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        await until(lambda: bool(peer.asked), "asked about what is past its time")
        assert {record.body for _, record in peer.asked} == {b"past"}
        header = peer.asked[0][0]
        ended = await peer.end(
            past,
            COMMIT,
            half_queue_offset=header.half_queue_offset,
            log_offset=header.log_offset,
            is_from_check=True,
        )
        assert ended.code == ResponseCode.SUCCESS
        assert await peer.bodies() == [b"past"]


async def test_delay_counts_from_the_commit(tmp_path: Path) -> None:
    levels = {"delay_levels_ms": (100, 100_000)}
    async with running_broker(tmp_path, store=levels) as broker, TransactionPeer(broker) as peer:
        half = await peer.send_half(DELAY="1")
        assert queue_max(broker, "SCHEDULE_TOPIC_XXXX") == 0
        await peer.end(half, COMMIT)
        await until(lambda: queue_max_of(broker, "T1", 2) == 1, "delivered")
        [record] = await peer.read()
        assert (record.body, record.prepared_offset) == (
            b"pay",
            decode_message_id(half.message_id).log_offset,
        )


async def test_slave_ends_nothing(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path / "s", broker_id=1) as slave,
        TransactionPeer(slave) as peer,
        running_broker(tmp_path / "m") as master,
        TransactionPeer(master) as other,
    ):
        half = await other.send_half()
        assert (await peer.end(half, COMMIT)).code == ResponseCode.SLAVE_NOT_AVAILABLE
