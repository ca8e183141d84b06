"""Offsets that do not belong to this log: tables at the start of a master, and offsets that consumers
present.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import Peer, consumer, held_count, pull_header, pull_response, records_of, running_broker

from tandemmq.api.broker_consume import query_max_offset
from tandemmq.broker.broker import Broker
from tandemmq.broker.delay.timers import TimerCheck, TimerKey
from tandemmq.broker.pull import handlers
from tandemmq.protocol.bodies.client import ConsumeFromWhere, ConsumeType, MessageModel
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.progress import DelayOffsets
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import DeleteTopicRequest
from tandemmq.protocol.requests.consume import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    QueryOffsetRequest,
    SeenRecord,
    UpdateOffsetRequest,
)
from tandemmq.protocol.topic_names import TOOLS_GROUP
from waits import until

MOVED = ResponseCode.PULL_OFFSET_MOVED
LIFE_START = 3
"""The end of queue 0 of T when the broker's second run began; the queue has 23 messages by now."""
CLAIM = 12
PUSH = 0x2
"""The flags of a pull that may wait, with the subscription that the group has registered."""


async def send(peer: Peer, count: int) -> None:
    for number in range(count):
        await peer.send_ok("T", b"%d" % number)


async def send_tagged(peer: Peer, *tags: str) -> None:
    for tag in tags:
        await peer.send_ok("T", properties={"TAGS": tag})


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Yields the broker in its second run."""
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, LIFE_START)
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        yield broker


def committed(broker: Broker) -> int | None:
    return broker._tables.offsets.committed("CG", "T", 0)


async def pull(peer: Peer, offset: int, **changes: object) -> Command:
    header = pull_header("T", queue_offset=offset, **{"sys_flag": PUSH, **changes})
    return await peer.ask(RequestCode.PULL_MESSAGE, header)


async def commit_oneway(peer: Peer, offset: int) -> None:
    """Commits as Java consumers do; returns once the broker has handled it."""
    header = UpdateOffsetRequest(consumer_group="CG", topic="T", queue_id=0, committed_offset=offset)
    command = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=True)
    await peer.client.send_oneway(peer.address, command)
    await query_max_offset(peer.client, peer.address, "T", 0)


async def test_a_master_lowers_all_progress_to_what_its_log_has(tmp_path: Path) -> None:
    root, before = tmp_path / "store", tmp_path / "before"
    async with running_broker(root) as broker, Peer(broker) as peer:
        await send(peer, 3)
    shutil.copytree(root, before)
    async with running_broker(root) as broker, Peer(broker) as peer:
        await send(peer, 10)
        tables = broker._tables
        tables.offsets.commit("CG", "T", 0, 13, 0)
        tables.offsets.commit("behind", "T", 0, 2, 0)
        tables.offsets.commit("CG", "Unknown", 0, 7, 0)
        tables.delay_offsets.update(2, 40, 0)
        tables.timer_progress.replace(TimerCheck(TimerKey(5, 0), 30, 20), 0)
    shutil.copytree(root / "config", before / "config", dirs_exist_ok=True)

    async with running_broker(before) as broker:
        tables = broker._tables
        assert committed(broker) == 3
        assert tables.offsets.committed("behind", "T", 0) == 2
        assert tables.offsets.committed("CG", "Unknown", 0) == 0
        assert tables.delay_offsets.get(2) == 0
        assert tables.timer_progress.check == TimerCheck(TimerKey(5, 0), 0, 0)
    # The next start must find the corrected offsets, when the queues have grown beyond the claimed ones.
    assert decode_body((before / "config" / "delayOffset.json").read_bytes(), DelayOffsets).offsets[2] == 0
    async with running_broker(before) as broker, Peer(broker) as peer:
        await send(peer, 20)
        assert committed(broker) == 3


async def test_progress_in_a_deleted_topic_is_none_in_the_one_made_again(tmp_path: Path) -> None:
    """Also when the process is killed before the table without the deleted offsets is saved."""
    root, kept = tmp_path / "store", tmp_path / "consumerOffset.json"
    async with running_broker(root) as broker, Peer(broker) as peer:
        await send(peer, 5)
        await peer.send_ok("Other")
        for group, topic, offset in (("CG", "T", 2), ("ahead", "T", 5), ("CG", "Other", 1)):
            broker._tables.offsets.commit(group, topic, 0, offset, 0)
    shutil.copy(root / "config" / kept.name, kept)
    async with running_broker(root) as broker, Peer(broker) as peer:
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T"))
        await send(peer, 3)
    shutil.copy(kept, root / "config" / kept.name)

    async with running_broker(root) as broker, Peer(broker) as peer:
        offsets = broker._tables.offsets
        assert committed(broker) is offsets.committed("ahead", "T", 0) is None
        assert offsets.committed("CG", "Other", 0) == 1
        offsets.commit("CG", "T", 0, 1, 0)
    async with running_broker(root) as broker:
        assert committed(broker) == 1


async def test_a_member_that_claims_more_is_moved_once(broker: Broker, peer: Peer) -> None:
    await peer.heartbeat("c1", consumer("CG", "T"))
    await commit_oneway(peer, CLAIM)
    assert committed(broker) == LIFE_START
    answer = await pull(peer, CLAIM, sys_flag=PUSH | 1, committed_offset=CLAIM)
    assert (answer.code, pull_response(answer).next_offset) == (MOVED, LIFE_START)
    await commit_oneway(peer, CLAIM)  # Java keeps sending its old offset for ten seconds
    assert committed(broker) == LIFE_START

    records = records_of(await pull(peer, LIFE_START))
    assert [record.queue_offset for record in records] == [*range(LIFE_START, 23)]
    await commit_oneway(peer, 20)
    assert committed(broker) == 20
    await commit_oneway(peer, 900)
    assert committed(broker) == 20
    async with Peer(broker) as again:
        await again.heartbeat("c1", consumer("CG", "T"))
        assert len(records_of(await pull(again, CLAIM))) == 11


async def test_client_that_repeats_its_claim_is_trusted(peer: Peer) -> None:
    await peer.heartbeat("c1", consumer("CG", "T"))
    assert (await pull(peer, CLAIM)).code == MOVED
    assert len(records_of(await pull(peer, CLAIM))) == 11


async def test_client_that_missed_the_moved_answer_is_moved_again(broker: Broker, peer: Peer) -> None:
    """The connection broke before the answer arrived: the request is repeated over the next connection."""
    await peer.heartbeat("c1", consumer("CG", "T"))
    for claim in (CLAIM, 900):
        assert pull_response(await pull(peer, claim)).next_offset == LIFE_START
        async with Peer(broker) as again:
            await again.heartbeat("c1", consumer("CG", "T"))
            answer = await pull(again, claim)
            assert (answer.code, pull_response(answer).next_offset) == (MOVED, LIFE_START)
            assert len(records_of(await pull(again, LIFE_START))) == 20


async def test_a_claim_behind_the_end_is_moved_to_what_is_safe(broker: Broker, peer: Peer) -> None:
    """Also for a trusted member; a client that is not a member goes to the end, as with RocketMQ."""
    await peer.heartbeat("c1", consumer("CG", "T"))
    assert len(records_of(await pull(peer, 0))) == 23
    answer = await pull(peer, 900)
    assert (answer.code, pull_response(answer).next_offset) == (MOVED, LIFE_START)
    async with Peer(broker) as reader:
        answer = await pull(reader, 900, sys_flag=0x4)
        assert (answer.code, pull_response(answer).next_offset) == (MOVED, 23)


async def test_client_that_learned_its_offset_from_this_broker_is_trusted(broker: Broker, peer: Peer) -> None:
    """The client learned its offset from the group's offset, from an operator's reset, or by a pull at an
    offset from before this run.
    """
    await peer.heartbeat("c1", consumer("CG", "T"))
    question = QueryOffsetRequest(consumer_group="CG", topic="T", queue_id=0, zero_if_missing=False)
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, question)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert len(records_of(await pull(peer, CLAIM))) == 11

    async with Peer(broker) as second:
        await second.heartbeat("c2", consumer("CG", "T"))
        broker._tables.offsets.reset("CG", "T", 0, CLAIM, 0)
        assert pull_response(await pull(second, 0)).next_offset == CLAIM
        assert len(records_of(await pull(second, CLAIM))) == 11
    async with Peer(broker) as third:
        await third.heartbeat("c3", consumer("CG", "T"))
        await pull(third, LIFE_START)
        assert len(records_of(await pull(third, 22))) == 1


async def test_claim_beyond_the_groups_committed_offset_is_moved_to_it(broker: Broker, peer: Peer) -> None:
    await peer.heartbeat("c1", consumer("CG", "T"))
    await pull(peer, 0)
    await commit_oneway(peer, 10)
    async with Peer(broker) as second:
        await second.heartbeat("c2", consumer("CG", "T"))
        assert pull_response(await pull(second, CLAIM)).next_offset == 10


async def test_a_record_that_is_in_the_log_proves_a_claim(broker: Broker, peer: Peer) -> None:
    """TandemMQ's client sends its id and its last received record before any heartbeat."""
    record = records_of(await pull(peer, CLAIM - 1, sys_flag=0x4))[0]
    real = SeenRecord(CLAIM - 1, record.log_offset, record.stored_at_ms)
    other = real._replace(stored_at_ms=record.stored_at_ms - 1)
    for client, seen, expected in (("c1", other, MOVED), ("c2", real, ResponseCode.SUCCESS)):
        values = {"sys_flag": PUSH | 0x4, "client_id": client, "seen": seen.render()}
        assert (await pull(peer, CLAIM, **values)).code == expected

    def commit(client: str, seen: SeenRecord) -> Command:
        header = UpdateOffsetRequest(
            consumer_group="CG",
            topic="T",
            queue_id=0,
            committed_offset=CLAIM,
            client_id=client,
            seen=seen.render(),
        )
        return Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    await peer.client.request(peer.address, commit("c3", other), 5.0)
    assert committed(broker) == LIFE_START
    await peer.client.request(peer.address, commit("c3", real), 5.0)
    assert committed(broker) == CLAIM


async def pull_shown(peer: Peer, client: str, seen: SeenRecord, offset: int | None = None) -> Command:
    values = {"sys_flag": PUSH | 0x4, "client_id": client, "seen": seen.render()}
    return await pull(peer, seen.queue_offset + 1 if offset is None else offset, **values)


async def commit_shown(peer: Peer, seen: SeenRecord) -> None:
    header = UpdateOffsetRequest(
        consumer_group="CG",
        topic="T",
        queue_id=0,
        committed_offset=CLAIM,
        client_id="c1",
        seen=seen.render(),
    )
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def test_a_record_that_cannot_be_looked_up_proves_nothing(broker: Broker, peer: Peer) -> None:
    """The record may be deleted, or belong to another log: it can no longer be verified."""
    record = records_of(await pull(peer, CLAIM - 1, sys_flag=0x4))[0]
    assert broker.store is not None
    broker.store.queues.table["T", 0].min_offset = CLAIM + 1
    await commit_shown(peer, SeenRecord(CLAIM - 1, record.log_offset, record.stored_at_ms))
    assert committed(broker) == LIFE_START


async def test_a_record_that_is_not_in_the_log_refutes_a_claim_of_an_earlier_life(tmp_path: Path) -> None:
    """This start does not know of a loss that an earlier start found; the same applies to a slave's copy."""
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        record = records_of(await pull(peer, CLAIM - 1, sys_flag=0x4))[0]
        broker._tables.offsets.commit("CG", "T", 0, 5, 0)
    real = SeenRecord(CLAIM - 1, record.log_offset, record.stored_at_ms)
    # Newer than every record here: the logs diverged after it, however many records share one millisecond.
    lost = real._replace(log_offset=record.log_offset - 8, stored_at_ms=real.stored_at_ms + 60_000)
    later = real._replace(queue_offset=40, log_offset=1 << 19)
    for broker_id in (0, 1):
        async with (
            running_broker(tmp_path, broker_id=broker_id, slave_read_enable=True) as broker,
            Peer(broker) as peer,
        ):
            await commit_shown(peer, lost)
            assert committed(broker) == 5
            answer = await pull_shown(peer, "c1", lost)
            assert (answer.code, pull_response(answer).next_offset) == (MOVED, 5)
            assert len(records_of(await pull_shown(peer, "c1", lost))) == 8  # a repeated claim is accepted
            assert len(records_of(await pull_shown(peer, "c2", real))) == 8
            if broker_id:  # a copy may only be behind
                assert (await pull_shown(peer, "c3", later)).code != MOVED


@pytest.mark.parametrize("start", [ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET])
async def test_a_group_that_has_committed_nothing_in_this_log_begins_where_it_would(
    broker: Broker, peer: Peer, start: ConsumeFromWhere
) -> None:
    """The record comes from a master that was started without its disk: the group has read no message of this
    log.
    """
    lost = SeenRecord(900, 1 << 18, int(time.time() * 1000) + 60_000)
    await peer.heartbeat("c1", consumer("CG", "T", consume_from_where=start))
    await commit_shown(peer, lost)
    # The version of the subscription is its birth: all messages here are newer.
    assert committed(broker) == 0
    assert pull_response(await pull_shown(peer, "c1", lost)).next_offset == 0


async def test_trusted_client_that_read_at_a_diverged_slave_is_moved(broker: Broker, peer: Peer) -> None:
    """A slave whose log has diverged from its master's serves reads until it notices."""
    record = records_of(await pull(peer, CLAIM - 1, sys_flag=0x4))[0]
    first = records_of(await pull(peer, LIFE_START - 1, sys_flag=0x4))[0]
    real = SeenRecord(LIFE_START - 1, first.log_offset, first.stored_at_ms)
    assert len(records_of(await pull_shown(peer, "c1", real))) == 20
    lost = SeenRecord(CLAIM - 1, record.log_offset - 8, record.stored_at_ms)
    broker._tables.offsets.commit("CG", "T", 0, LIFE_START, 0)
    await commit_shown(peer, lost)
    assert committed(broker) == LIFE_START
    answer = await pull_shown(peer, "c1", lost)
    assert (answer.code, pull_response(answer).next_offset) == (MOVED, LIFE_START)


@pytest.mark.parametrize("broker_id", [0, 1])
async def test_a_record_proves_the_place_behind_it_and_no_further(tmp_path: Path, broker_id: int) -> None:
    """The client has continued at a slave whose copy begins after that record. Messages read there may have
    been lost, and their offsets reused, in a run of the master before the last start.
    """
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        record = records_of(await pull(peer, 4, sys_flag=0x4))[0]
        broker._tables.offsets.commit("CG", "T", 0, 3, 0)
    seen = SeenRecord(4, record.log_offset, record.stored_at_ms)
    async with (
        running_broker(tmp_path, broker_id=broker_id, slave_read_enable=True) as broker,
        Peer(broker) as peer,
    ):
        for _ in range(2):  # also when it was trusted
            assert len(records_of(await pull_shown(peer, "c1", seen))) == 15
            answer = await pull_shown(peer, "c1", seen, CLAIM)
            assert (answer.code, pull_response(answer).next_offset) == (MOVED, 5)
            await commit_shown(peer, seen)
            assert committed(broker) == 5
            assert len(records_of(await pull_shown(peer, "c1", seen, CLAIM))) == 8  # a repetition is accepted


async def test_where_a_queue_begins_by_now_is_a_place_behind_what_was_deleted(
    broker: Broker, peer: Peer
) -> None:
    """A reader that was away is moved to the queue's begin, and presents its last record from before."""
    record = records_of(await pull(peer, 4, sys_flag=0x4))[0]
    seen = SeenRecord(4, record.log_offset, record.stored_at_ms)
    assert records_of(await pull_shown(peer, "c1", seen))
    assert broker.store is not None
    broker.store.queues.table["T", 0].min_offset = 9
    assert len(records_of(await pull_shown(peer, "c1", seen, 9))) == 14
    assert pull_response(await pull_shown(peer, "c1", seen, CLAIM)).next_offset == 9


async def test_a_slave_trusts_no_commit_of_who_shows_a_lost_record(tmp_path: Path) -> None:
    """The slave stored the commit when its copy had no record at that offset yet."""
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        record = records_of(await pull(peer, CLAIM - 1, sys_flag=0x4))[0]
        broker._tables.offsets.commit("CG", "T", 0, CLAIM, 0)
    lost = SeenRecord(CLAIM - 1, record.log_offset - 8, record.stored_at_ms)
    async with (
        running_broker(tmp_path, broker_id=1, slave_read_enable=True) as broker,
        Peer(broker) as peer,
    ):
        answer = await pull_shown(peer, "c1", lost)
        assert answer.code == MOVED
        assert pull_response(answer).next_offset < CLAIM
        await commit_shown(peer, lost)
        assert (committed(broker) or 0) < CLAIM


async def test_a_slave_keeps_no_progress_from_before_its_copy(tmp_path: Path) -> None:
    """The slave has no record to store with the offset: a master without that record would trust the next
    owner.
    """
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        record = records_of(await pull(peer, CLAIM + 1, sys_flag=0x4))[0]
        broker._tables.offsets.commit("CG", "T", 0, 3, 0)
    async with (
        running_broker(tmp_path, broker_id=1, slave_read_enable=True) as broker,
        Peer(broker) as peer,
    ):
        assert broker.store is not None
        broker.store.queues.table["T", 0].min_offset = CLAIM + 1
        await commit_shown(peer, SeenRecord(CLAIM - 1, 900, 1_700_000_000_000))
        assert committed(broker) == 3
        await commit_shown(peer, SeenRecord(CLAIM + 1, record.log_offset, record.stored_at_ms))
        assert committed(broker) == CLAIM


async def test_a_slave_whose_copy_begins_behind_the_safe_offset_leads_nobody_there(tmp_path: Path) -> None:
    """The messages before the copy are at its master, and the group has not consumed them."""
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        record = records_of(await pull(peer, CLAIM - 1, sys_flag=0x4))[0]
        broker._tables.offsets.commit("CG", "T", 0, 5, 0)
    lost = SeenRecord(CLAIM - 1, record.log_offset - 8, record.stored_at_ms)
    async with (
        running_broker(tmp_path, broker_id=1, slave_read_enable=True) as broker,
        Peer(broker) as peer,
    ):
        assert broker.store is not None
        broker.store.queues.table["T", 0].min_offset = 8
        await commit_shown(peer, lost)
        assert committed(broker) == 5
        for _ in range(2):  # it rejects a repeated claim, too
            assert (await pull_shown(peer, "c1", lost)).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_slave_refuses_who_may_have_to_go_on_before_its_copy(tmp_path: Path) -> None:
    """The copy's first record is newer than the lost one, and so may be others that the copy lacks."""
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        record = records_of(await pull(peer, CLAIM - 1, sys_flag=0x4))[0]
        broker._tables.offsets.commit("CG", "T", 0, CLAIM, 0)
    lost = SeenRecord(CLAIM - 1, record.log_offset - 8, record.stored_at_ms - 60_000)
    async with (
        running_broker(tmp_path, broker_id=1, slave_read_enable=True) as broker,
        Peer(broker) as peer,
    ):
        assert broker.store is not None
        broker.store.queues.table["T", 0].min_offset = 8
        assert (await pull_shown(peer, "c1", lost)).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_slave_keeps_no_progress_whose_record_it_has_not_got(tmp_path: Path) -> None:
    """The slave was emptied, or is behind: other members would get an offset of another log, without a
    proof.
    """
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        broker._tables.offsets.commit("CG", "T", 0, 5, 0)
        assert broker.store is not None
        end = broker.store.max_log_offset
    beyond = SeenRecord(29, end + 4_096, int(time.time() * 1000))
    async with running_broker(tmp_path, broker_id=1) as broker, Peer(broker) as peer:
        await commit_shown(peer, beyond)
        assert committed(broker) == 5


async def test_a_slave_that_is_behind_refuses_who_has_read_on_in_a_topic_made_again(tmp_path: Path) -> None:
    """The slave still has the messages of the deleted topic, and would deliver them from the beginning."""
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await send(peer, 20)
        assert broker.store is not None
        end = broker.store.max_log_offset
    async with (
        running_broker(tmp_path, broker_id=1, slave_read_enable=True) as broker,
        Peer(broker) as peer,
    ):
        for offset in (0, 5):
            answer = await pull_shown(peer, "c1", SeenRecord(offset, end + 100, 1_700_000_000_000))
            assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert "ask the master" in (answer.remark or "")


async def test_record_skipped_at_a_diverged_slave_is_presented(tmp_path: Path) -> None:
    """Otherwise a group that filters skips messages of this log: its last received record is in both logs."""
    parted, own = tmp_path / "parted", tmp_path / "own"
    async with running_broker(parted) as broker, Peer(broker) as peer:
        await send_tagged(peer, "red")
    shutil.copytree(parted, own)
    for root, tags in ((parted, ("blue", "blue")), (own, ("blue", "red", "red", "red"))):
        async with running_broker(root) as broker, Peer(broker) as peer:
            await send_tagged(peer, *tags)

    reds = {"client_id": "c1", "subscription": "red"}
    async with (
        running_broker(parted, broker_id=1, slave_read_enable=True) as broker,
        Peer(broker) as peer,
    ):
        answer = await pull(peer, 0, sys_flag=0x4, **reds)
        assert [record.queue_offset for record in records_of(answer)] == [0]
        seen = pull_response(answer).passed
        assert pull_response(await pull(peer, 1, sys_flag=0x4, **reds)).passed == seen
        assert pull_response(await pull(peer, 2, sys_flag=0x4, subscription="red")).passed is None
    for broker_id in (1, 0):
        async with (
            running_broker(own, broker_id=broker_id, slave_read_enable=True) as broker,
            Peer(broker) as peer,
        ):
            answer = await pull(peer, 3, sys_flag=0x4, seen=seen, **reds)
            assert answer.code == MOVED
            assert pull_response(answer).next_offset <= 2


async def test_held_pull_reports_the_skipped_record(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull keeps waiting beyond the skipped record, and is answered at its timeout."""
    monkeypatch.setattr(handlers, "SKIPPED_HOLD_S", 0.5)
    values = {"sys_flag": PUSH | 0x4, "client_id": "c1", "subscription": "red", "suspend_timeout_ms": 60_000}
    await pull(peer, 0, **values)
    pulling = asyncio.create_task(pull(peer, 23, **values))
    await until(lambda: held_count(broker) == 1)
    await send_tagged(peer, "blue")
    response = pull_response(await pulling)
    assert response.next_offset == 24
    passed = response.passed_record()
    assert passed is not None
    assert passed.queue_offset == 23
    answer = await pull_shown(peer, "c2", passed)
    assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_a_consumer_says_who_it_is_before_it_is_believed(broker: Broker, peer: Peer) -> None:
    """A Java consumer pulls and commits over a new connection before its next heartbeat."""
    async with Peer(broker) as early:
        await peer.heartbeat("c1", consumer("CG", "T"))
        answer = await pull(early, CLAIM)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await commit_oneway(early, CLAIM)
        assert committed(broker) == LIFE_START
        await early.heartbeat("c2", consumer("CG", "T"))
        assert (await pull(early, CLAIM)).code == MOVED
        assert len(records_of(await pull(early, LIFE_START))) == 20
    async with Peer(broker) as again:  # its host is known: a broken connection costs it nothing
        assert len(records_of(await pull(again, CLAIM))) == 11


async def test_readers_and_tools_are_not_judged(broker: Broker, peer: Peer) -> None:
    async with Peer(broker) as tool:
        await peer.heartbeat("c1", consumer("CG", "T"))
        assert len(records_of(await pull(tool, CLAIM, sys_flag=0x4))) == 11
        for offset, kept in ((CLAIM, CLAIM), (900, 23)):
            header = UpdateOffsetRequest(consumer_group="CG", topic="T", queue_id=0, committed_offset=offset)
            await tool.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            assert committed(broker) == kept
        await tool.heartbeat("tool", consumer(TOOLS_GROUP, "T"))
        looked_at = await pull(tool, CLAIM, sys_flag=0x4, consumer_group=TOOLS_GROUP)
        assert len(records_of(looked_at)) == 11


async def test_a_group_that_keeps_progress_itself_goes_on_where_it_was_led(
    broker: Broker, peer: Peer
) -> None:
    active = consumer("CG", "T", consume_type=ConsumeType.ACTIVELY)
    await peer.heartbeat("c1", active)
    await pull(peer, 0, count_max=CLAIM)
    async with Peer(broker) as second:
        await second.heartbeat("c2", active)
        assert len(records_of(await pull(second, CLAIM))) == 11


async def test_each_broadcasting_client_speaks_for_itself(broker: Broker, peer: Peer) -> None:
    kind = consumer("CG", "T", message_model=MessageModel.BROADCASTING)
    await peer.heartbeat("c1", kind)
    await pull(peer, 0)
    broker._tables.offsets.commit("CG", "T", 0, 20, 0)
    async with Peer(broker) as second:
        await second.heartbeat("c2", kind)
        assert pull_response(await pull(second, CLAIM)).next_offset == LIFE_START


async def test_a_broadcasting_client_begins_at_the_end_that_it_was_told(broker: Broker, peer: Peer) -> None:
    kind = consumer("CG", "T", message_model=MessageModel.BROADCASTING)
    await peer.heartbeat("c1", kind)
    header = GetMaxOffsetRequest(topic="T", queue_id=0)
    told = (await peer.ask(RequestCode.GET_MAX_OFFSET, header)).decode(GetMaxOffsetResponse).offset
    assert told > LIFE_START
    assert (await pull(peer, told - 1)).code == MOVED, "only that offset"
    await peer.ask(RequestCode.GET_MAX_OFFSET, header)
    async with Peer(broker) as second:
        await second.heartbeat("c2", kind)
        assert (await pull(second, told)).code == MOVED, "only that connection"
    async with Peer(broker) as third:
        await third.heartbeat("c3", kind)
        await third.ask(RequestCode.GET_MAX_OFFSET, header)
        await send(third, 2)
        assert len(records_of(await pull(third, told))) == 2


async def test_a_topic_that_is_made_anew_is_begun_anew(peer: Peer) -> None:
    """A consumer in the middle of the deleted topic skips no message of the new one."""
    await peer.heartbeat("c1", consumer("CG", "T"))
    await pull(peer, 0)
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T"))).code == 0
    await send(peer, 20)
    answer = await pull(peer, CLAIM)
    assert (answer.code, pull_response(answer).next_offset) == (MOVED, 0)


async def test_at_the_bound_everybody_is_believed(broker: Broker, peer: Peer) -> None:
    assert broker._parts is not None
    broker._parts.pulls.claims._count_max = 1
    for client in ("c1", "c2"):
        async with Peer(broker) as other:
            await other.heartbeat(client, consumer("CG", "T"))
            assert len(records_of(await pull(other, 0))) == 23
    await peer.heartbeat("c3", consumer("CG", "T"))
    assert len(records_of(await pull(peer, CLAIM))) == 11
    await commit_oneway(peer, CLAIM)  # above the start of this run
    assert committed(broker) == CLAIM


async def test_no_more_are_remembered_as_moved_than_the_bound_says(broker: Broker, peer: Peer) -> None:
    record = records_of(await pull(peer, 4, sys_flag=0x4))[0]
    seen = SeenRecord(4, record.log_offset, record.stored_at_ms)
    assert broker._parts is not None
    claims = broker._parts.pulls.claims
    claims._count_max = 3
    codes = [(await pull_shown(peer, f"c{number}", seen, CLAIM)).code for number in range(5)]
    assert codes == [MOVED] * 3 + [ResponseCode.SUCCESS] * 2
    assert len(claims._moved) == 3
