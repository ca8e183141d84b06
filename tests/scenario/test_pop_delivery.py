"""Pops, acknowledgements, changes and redeliveries, through a real broker over the loopback (spec semantics
14).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from broker_rig import Peer, copy_as_killed, make_broker, running_broker
from pop_rig import Popped, ack, ack_in_batch, change, now_ms, pop, pop_all, pop_header, popped_of

from tandemmq.broker.broker import Broker
from tandemmq.broker.pop import lease_log, service
from tandemmq.errors import Busy
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.requests.admin import DeleteGroupRequest, DeleteTopicRequest
from tandemmq.protocol.requests.consume import (
    AckRequest,
    ChangeInvisibleRequest,
    NotificationRequest,
    NotificationResponse,
    PeekRequest,
    PollingInfoRequest,
    PollingInfoResponse,
    PopResponse,
)
from tandemmq.store import PutStatus
from tandemmq.store.options import FlushMode
from tandemmq.telemetry import events
from waits import PATIENCE_S, until


def bodies(messages: list[Popped]) -> list[bytes]:
    return sorted(message.body for message in messages)


async def fill(peer: Peer, topic: str, count: int, queues: int = 4) -> list[bytes]:
    for number in range(count):
        await peer.send_ok(topic, b"%03d" % number, queue_id=number % queues)
    return [b"%03d" % number for number in range(count)]


async def test_messages_of_all_queues_come_once_and_not_again_after_their_acks(peer: Peer) -> None:
    expected = await fill(peer, "T", 10)
    *acknowledged, left = await pop_all(peer, "T", 10, invisible_ms=2_000)
    assert bodies([*acknowledged, left]) == expected
    assert await pop(peer, "T") == []
    assert [await ack(peer, message) for message in acknowledged] == [0] * 9
    # The unacknowledged message is delivered again at the time at which all would be: so the others are not.
    assert bodies(await pop_all(peer, "T", 1)) == [left.body]
    assert await pop(peer, "T") == []


async def test_an_unacknowledged_message_comes_again_from_the_retry_topic_with_its_count(
    broker: Broker, peer: Peer
) -> None:
    await fill(peer, "T", 3, queues=1)
    first = await pop_all(peer, "T", 3, invisible_ms=1_000)
    popped_at_ms = int(first[0].handle.split(" ")[1])
    assert await ack(peer, first[1]) == 0
    again = await pop_all(peer, "T", 2)
    assert all(message.record.stored_at_ms >= popped_at_ms + 1_000 for message in again)
    assert bodies(again) == [b"000", b"002"]
    assert {message.record.retry_count for message in again} == {1}
    assert {message.topic for message in again} == {"%RETRY%CG_T"}
    assert all(
        message.record.properties["1ST_POP_TIME"] == first[0].handle.split(" ")[1] for message in again
    )
    assert [await ack(peer, message) for message in again] == [0, 0]
    assert await pop(peer, "T") == []


@pytest.mark.parametrize("room", [0, 40])
async def test_a_message_without_room_for_what_pops_add_comes_again(peer: Peer, room: int) -> None:
    """The `room` is too small for anything, or for the handle after the time of the first pop."""
    sizes = iter(range(PROPERTIES_BYTES_MAX, 0, -1))  # the broker adds some of its own
    filling = "x" * next(sizes)
    while (await peer.send("Full", properties={"a": filling})).code != ResponseCode.SUCCESS:
        filling = "x" * next(sizes)
    filling = filling[room:]
    await peer.send_ok("T", b"full", properties={"a": filling})
    await peer.send_ok("T", b"next")
    assert bodies(await pop_all(peer, "T", 2, invisible_ms=500)) == [b"full", b"next"]
    again = await pop_all(peer, "T", 2)
    assert bodies(again) == [b"full", b"next"]
    [full] = [message for message in again if message.body == b"full"]
    assert (full.record.retry_count, full.record.properties["a"]) == (1, filling)
    assert [await ack(peer, message) for message in again] == [0, 0]


async def test_a_message_comes_again_whose_ack_the_store_refused(broker: Broker, peer: Peer) -> None:
    await fill(peer, "T", 2, queues=1)
    refused, taken = await pop_all(peer, "T", 2, invisible_ms=1_500)
    assert broker.store is not None
    broker.store._core.admission.block("test", "takes nothing")
    assert await ack(peer, refused) not in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE)
    broker.store._core.admission.unblock("test")
    assert await ack(peer, taken) == 0
    assert bodies(await pop_all(peer, "T", 1)) == [refused.body]
    assert await pop(peer, "T") == []


async def test_a_lease_of_more_messages_than_one_read_gives_comes_again_whole(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_log, "READ_COUNT", 2)
    expected = await fill(peer, "T", 5, queues=1)
    assert len(await pop(peer, "T", invisible_ms=500)) == 5
    assert bodies(await pop_all(peer, "T", 5)) == expected
    assert await pop(peer, "T") == []


async def test_invisible_time_can_be_changed_and_the_old_handle_is_void(peer: Peer) -> None:
    await fill(peer, "T", 2, queues=1)
    first, second = await pop_all(peer, "T", 2, invisible_ms=60_000)
    sooner = await change(peer, first, 200)
    assert sooner.handle != first.handle
    assert await ack(peer, first) == 0  # as RocketMQ: an old handle is not an error, and does nothing
    again = await pop_all(peer, "T", 1)
    assert bodies(again) == [b"000"]
    later = await change(peer, second, 120_000)
    assert await ack(peer, later) == 0
    stale = ChangeInvisibleRequest(
        consumer_group="CG", topic="T", queue_id=0, extra_info=second.handle, offset=1, invisible_ms=10
    )
    assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, stale)).code == ResponseCode.NO_MESSAGE


async def test_a_message_tried_often_enough_becomes_a_dead_letter(broker: Broker, peer: Peer) -> None:
    await fill(peer, "T", 1, queues=1)
    config = broker._tables.groups.find_or_create("CG", 0)
    assert config is not None
    import msgspec

    broker._tables.groups.put(msgspec.structs.replace(config, retry_count_max=1), 1)
    [first] = await pop_all(peer, "T", 1, invisible_ms=50)
    [second] = await pop_all(peer, "T", 1, invisible_ms=50)
    assert (first.record.retry_count, second.record.retry_count) == (0, 1)
    store = broker.store
    assert store is not None
    await until(lambda: store.queue_max("%DLQ%CG", 0) == 1)
    assert await pop(peer, "T") == []


async def test_a_message_that_is_put_off_untried_is_not_one_try_nearer_to_the_dead_letters(
    broker: Broker, peer: Peer
) -> None:
    """5.5's `suspend`: a proxy returns messages that no consumer has seen."""
    import msgspec

    await fill(peer, "T", 1, queues=1)
    config = broker._tables.groups.find_or_create("CG", 0)
    assert config is not None
    broker._tables.groups.put(msgspec.structs.replace(config, retry_count_max=1), 1)
    store = broker.store
    assert store is not None
    # A failed attempt counts; at the last one, too, a message may be postponed.
    for number, (count, is_suspended) in enumerate([(0, True), (0, True), (0, False), (1, True), (1, True)]):
        [message] = await pop_all(peer, "T", 1)
        assert message.record.retry_count == count
        await change(peer, message, 50, is_suspended=is_suspended)
        await until(
            lambda number=number: (
                sum(  # type: ignore[misc]
                    store.queue_max(topic, 0) for topic in ("%RETRY%CG_T", "%RETRY%CG+T", "%DLQ%CG")
                )
                > number
            ),
            "the message is stored again",
        )
        assert store.queue_max("%DLQ%CG", 0) == 0


@pytest.mark.parametrize("is_killed", [False, True])
async def test_leases_acks_and_positions_outlive_the_broker(tmp_path: Path, is_killed: bool) -> None:
    """No acknowledged message is delivered again, all others are (with flushDiskType=SYNC_FLUSH)."""
    store = {"flush_mode": FlushMode.SYNC_FLUSH}
    broker = make_broker(tmp_path / "a", store=store)
    await broker.start()
    async with Peer(broker) as peer:
        await fill(peer, "T", 20)
        got = await pop_all(peer, "T", 10, count_max=10, invisible_ms=3_000)
        for message in got[:6]:
            assert await ack(peer, message) == 0
        kept = await change(peer, got[6], 60_000)
        if is_killed:
            copy_as_killed(tmp_path / "a", tmp_path / "b")
    await broker.stop()
    acked = {message.body for message in got[:6]} | {kept.body}
    async with (
        running_broker(tmp_path / ("b" if is_killed else "a"), store=store) as broker,
        Peer(broker) as peer,
    ):
        rest = await pop_all(peer, "T", 13, count_max=32)
        assert not {message.body for message in rest} & acked
        assert len({message.body for message in rest}) == 13
        assert await ack(peer, kept) == 0


async def test_a_message_that_was_put_off_comes_once_though_the_log_ends_before_its_old_lease_does(
    tmp_path: Path,
) -> None:
    """A slave that becomes master may have the new check point without the record that ends the old lease."""
    store = {"flush_mode": FlushMode.SYNC_FLUSH}
    broker = make_broker(tmp_path / "a", store=store)
    await broker.start()
    async with Peer(broker) as peer:
        await fill(peer, "T", 2, queues=1)
        first, second = await pop_all(peer, "T", 2, count_max=2, invisible_ms=400)
        kept = await change(peer, first, 60_000)
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    await broker.stop()
    [file] = (tmp_path / "b" / "commitlog").iterdir()
    log = bytearray(file.read_bytes())
    last, end = 0, 0
    while size := int.from_bytes(log[end : end + 4], "big"):
        last, end = end, end + size
    assert b"ack" in log[last:end], "the end of the old lease is the last record"
    log[last:end] = bytes(end - last)
    file.write_bytes(log)
    for name in ("consumequeue", "checkpoint"):
        _remove(tmp_path / "b" / name)
    async with running_broker(tmp_path / "b", store=store) as broker, Peer(broker) as peer:
        [again] = await pop_all(peer, "T", 1)
        assert again.body == second.body
        assert await ack(peer, again) == await ack(peer, kept) == 0
        assert await pop(peer, "T", poll_ms=500) == [], "no lease of it is left that could end"


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


async def test_a_held_pop_is_served_when_a_message_comes(broker: Broker, peer: Peer) -> None:
    await fill(peer, "T", 1)
    [first] = await pop_all(peer, "T", 1)
    assert await ack(peer, first) == 0
    waiting = asyncio.create_task(pop(peer, "T", poll_ms=50_000))
    info = PollingInfoRequest(consumer_group="CG", topic="T", queue_id=-1)

    async def held() -> int:
        return (await peer.ask(RequestCode.POLLING_INFO, info)).decode(PollingInfoResponse).count

    await until(held, "the pop is held")
    assert await held() == 1
    await peer.send_ok("T", b"late", queue_id=3)
    assert bodies(await waiting) == [b"late"]
    assert await held() == 0


async def test_a_pop_that_finds_nothing_says_so_in_the_way_that_clients_know(peer: Peer) -> None:
    await fill(peer, "T", 1)
    await pop_all(peer, "T", 1)
    answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header("T", poll_ms=100))
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert answer.decode(PopResponse).rest_count == 0
    late = pop_header("T", poll_ms=100, born_at_ms=now_ms() - 5_000)
    assert (await peer.ask(RequestCode.POP_MESSAGE, late)).code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("sent", [{}, {"bornTime": "0"}])
async def test_the_time_of_a_request_without_a_birth_begins_on_arrival(
    broker: Broker, peer: Peer, sent: dict[str, str]
) -> None:
    """RocketMQ's proxy sends such pops and notifications."""
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "-1", "pollTime": "50000", **sent}
    await fill(peer, "T", 1)
    asked = {**fields, "maxMsgNums": "1", "invisibleTime": "60000", "initMode": "0", "expType": "TAG"}

    async def ask(code: RequestCode, fields: dict[str, str]) -> Command:
        return await peer.client.request(
            peer.address, Command(code=int(code), extra_fields=fields), PATIENCE_S
        )

    told = await ask(RequestCode.NOTIFICATION, fields)
    assert told.decode(NotificationResponse).has_message
    assert bodies(popped_of(await ask(RequestCode.POP_MESSAGE, asked), "T")) == [b"000"]
    assert broker._parts is not None
    polls = broker._parts.pop.polls
    for code, wanted in ((RequestCode.NOTIFICATION, fields), (RequestCode.POP_MESSAGE, asked)):
        waiting = asyncio.create_task(ask(code, wanted))
        await until(lambda: len(polls) == 1, "the request is held")
        await peer.send_ok("T", b"more")
        assert (await waiting).code == ResponseCode.SUCCESS
        if code == RequestCode.NOTIFICATION:
            await pop_all(peer, "T", 1)


async def test_a_late_notification_is_told_the_truth_and_not_held(peer: Peer) -> None:
    await fill(peer, "T", 1)
    late = NotificationRequest(
        consumer_group="CG", topic="T", queue_id=-1, poll_ms=100, born_at_ms=now_ms() - 5_000
    )
    assert (await peer.ask(RequestCode.NOTIFICATION, late)).decode(NotificationResponse).has_message
    await pop_all(peer, "T", 1)
    assert not (await peer.ask(RequestCode.NOTIFICATION, late)).decode(NotificationResponse).has_message


async def test_too_many_waiting_pops_are_told_so(tmp_path: Path) -> None:
    async with running_broker(tmp_path, pop_poll_count_per_group_max=1) as broker, Peer(broker) as peer:
        await peer.send_ok("T", b"x")
        await pop_all(peer, "T", 1)
        waiting = asyncio.create_task(peer.ask(RequestCode.POP_MESSAGE, pop_header("T", poll_ms=50_000)))
        await until(lambda: len(broker._parts.pop.polls) == 1)  # type: ignore[union-attr]
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header("T", poll_ms=50_000))
        assert answer.code == ResponseCode.POLLING_FULL
        await peer.send_ok("T", b"y")
        assert (await waiting).code == ResponseCode.SUCCESS


async def test_tags_are_filtered_and_passed_over(peer: Peer) -> None:
    for number in range(6):
        tag = "a" if number % 2 else "b"
        await peer.send_ok("T", b"%d" % number, queue_id=0, properties={"TAGS": tag})
    got = await pop_all(peer, "T", 3, expression="a")
    assert bodies(got) == [b"1", b"3", b"5"]
    assert [message.handle.split(" ")[0] for message in got] == ["0", "0", "0"]
    assert [await ack(peer, message) for message in got] == [0, 0, 0]


async def test_a_batch_of_acks_is_one_request(peer: Peer) -> None:
    await fill(peer, "T", 5, queues=1)
    got = await pop_all(peer, "T", 5, invisible_ms=1_500)
    assert await ack_in_batch(peer, got[0], [0, 1, 2, 4, 77]) == ResponseCode.SUCCESS
    assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE)).code == ResponseCode.NO_MESSAGE
    assert bodies(await pop_all(peer, "T", 1)) == [b"003"]


async def test_a_batch_of_acks_counts_no_message_that_has_another_lease(broker: Broker, peer: Peer) -> None:
    await fill(peer, "T", 2, queues=1)
    moved, kept = await pop_all(peer, "T", 2)
    later = await change(peer, moved, 1_000)
    assert broker._parts is not None
    acks = broker._parts.pop.acks
    assert await ack_in_batch(peer, kept, [0, 1]) == ResponseCode.SUCCESS
    assert acks.acked_count == 1
    assert await ack_in_batch(peer, moved, [0]) == ResponseCode.SUCCESS
    assert acks.acked_count == 1
    again = await pop_all(peer, "T", 1)
    assert bodies(again) == [later.body], "it comes again, as nobody acknowledged its second lease"


async def test_a_repeated_ack_is_answered_once_an_ack_is_stored(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(peer, "T", 3, queues=1)
    first, moved, _ = await pop_all(peer, "T", 3)
    later = await change(peer, moved, 50_000)
    append = lease_log.LeaseLog._append
    held: list[Callable[[], None]] = []

    def append_held(
        log: lease_log.LeaseLog, records: Sequence[NewRecord], on_done: Callable[[PutStatus], None]
    ) -> int:
        return append(log, records, lambda status: held.append(lambda: on_done(status)))

    monkeypatch.setattr(lease_log.LeaseLog, "_append", append_held)
    tasks: list[asyncio.Task[int]] = []
    for ask in (ack, ack, ack_in_batch):
        tasks.append(asyncio.create_task(ask(peer, first)))
        await until(lambda: len(held) == len(tasks) or tasks[-1].done(), "the ack is in the log")
    assert not any(task.done() for task in tasks)
    assert await ack(peer, moved) == 0, "an ack of a handle that ended is answered at once"
    for release in held:
        release()
    assert await asyncio.gather(*tasks) == [0, 0, 0]
    monkeypatch.undo()
    assert await ack(peer, later) == 0


async def test_peek_and_notification_move_nothing(peer: Peer) -> None:
    await fill(peer, "T", 2, queues=1)
    peek = PeekRequest(consumer_group="CG", topic="T", queue_id=0, count_max=32)
    for _ in range(2):
        answer = await peer.ask(RequestCode.PEEK_MESSAGE, peek)
        assert answer.decode(PopResponse).message_offset_info == "0 0 0,1"
    notify = NotificationRequest(
        consumer_group="CG", topic="T", queue_id=-1, poll_ms=50_000, born_at_ms=now_ms()
    )
    assert (await peer.ask(RequestCode.NOTIFICATION, notify)).decode(NotificationResponse).has_message
    await pop_all(peer, "T", 2)
    waiting = asyncio.create_task(peer.ask(RequestCode.NOTIFICATION, notify))
    await asyncio.sleep(0)
    await peer.send_ok("T", b"more")
    assert (await waiting).decode(NotificationResponse).has_message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Busy("too much waits for the disk"), ResponseCode.SYSTEM_BUSY),
        (OSError(5, "no such luck"), ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_held_pop_that_cannot_be_leased_is_told_why(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    await fill(peer, "T", 1)
    await pop_all(peer, "T", 1)
    assert broker._parts is not None
    pops = broker._parts.pop

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(pops.pops.lease_log, "open", refuse)
    waiting = asyncio.create_task(peer.ask(RequestCode.POP_MESSAGE, pop_header("T", poll_ms=50_000)))
    await until(lambda: len(pops.polls) == 1)
    await peer.send_ok("T", b"more")
    answer = await waiting
    assert answer.code == code
    assert (answer.remark or "").endswith(("too much waits for the disk", "no such luck"))


async def test_wrong_requests_are_named(peer: Peer) -> None:
    await fill(peer, "T", 1)
    for changes, code in (
        ({"count_max": 33}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"expression": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ):
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header(**{"topic": "T", **changes}))  # type: ignore[arg-type]
        assert answer.code == code, changes
    values = {"consumer_group": "CG", "topic": "T", "queue_id": 0, "offset": 0}
    for changes, code in (
        ({"extra_info": "nonsense"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 50}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 7}, ResponseCode.NO_MESSAGE),
    ):
        header = AckRequest(**{"extra_info": "0 1 2 3 0 broker-a 0 0", **values, **changes})  # type: ignore[arg-type]
        assert (await peer.ask(RequestCode.ACK_MESSAGE, header)).code == code, changes


async def test_a_slave_refuses_pops(tmp_path: Path) -> None:
    async with running_broker(tmp_path, broker_id=1) as slave, Peer(slave) as peer:
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header("T"))
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "master" in (answer.remark or "")


async def test_a_lease_of_an_unknown_group_waits_until_it_is_known_or_deleted(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave that becomes master may know the lease but not the group yet."""
    monkeypatch.setattr(service, "REFUSED_MS", 100)
    groups = broker._tables.groups
    assert broker._parts is not None
    leases = broker._parts.pop.revive.lease_log.leases
    await fill(peer, "T", 1)
    for is_deleted in (False, True):
        await pop_all(peer, "T", 1, invisible_ms=1_000)
        config = groups._configs.pop("CG")
        caplog.clear()
        await until(lambda: events.REVIVE_POSTPONED in caplog.messages, "postponed")
        assert len(leases) == 1
        if is_deleted:
            groups.record_deleted({"CG": 1})
            await until(lambda: len(leases) == 0, "the lease is dropped")
        else:
            groups.put(config, now_ms())
            await until(lambda: len(leases) == 0, "the message is back")
    groups.put(config, now_ms())
    assert await pop(peer, "T") == []


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
async def test_pops_begin_anew_in_a_topic_that_is_made_again(
    tmp_path: Path, *, is_ordered: bool, is_restarted: bool
) -> None:
    """Positions and leases of the deleted topic are in memory and in the log, and its acknowledgements still
    arrive.
    """
    new = [b"new %d" % number for number in range(3)]
    old: list[Popped] = []

    async def begin_anew(peer: Peer) -> None:
        for message in old:
            await ack(peer, message)
        assert [message.body for message in await pop(peer, "T", is_ordered=is_ordered)] == new

    async with running_broker(tmp_path / "store") as broker, Peer(broker) as peer:
        await fill(peer, "T", 5, queues=1)
        old += await pop(peer, "T", is_ordered=is_ordered)
        assert len(old) == 5
        delete = DeleteTopicRequest(topic="T")
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, delete)).code == ResponseCode.SUCCESS
        for body in new:
            await peer.send_ok("T", body)
        if not is_restarted:
            await begin_anew(peer)
    if is_restarted:
        async with running_broker(tmp_path / "store") as broker, Peer(broker) as peer:
            await begin_anew(peer)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_group_that_was_deleted_with_its_progress_pops_from_the_beginning(
    peer: Peer, *, is_ordered: bool
) -> None:
    expected = await fill(peer, "T", 5, queues=1)
    for _ in range(2):
        assert bodies(await pop(peer, "T", is_ordered=is_ordered)) == expected
        assert await pop(peer, "T", is_ordered=is_ordered) == []
        delete = DeleteGroupRequest(group="CG", cleans_offsets=True)
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete)).code == ResponseCode.SUCCESS


async def test_a_group_that_was_deleted_with_its_progress_begins_anew_also_after_a_kill(
    tmp_path: Path,
) -> None:
    """The log also has the group's earlier pops, and its pops from now on must not be forgotten."""
    left = tmp_path / "left"
    async with running_broker(tmp_path / "store") as broker, Peer(broker) as peer:
        expected = await fill(peer, "T", 5, queues=1)
        assert bodies(await pop(peer, "T")) == expected
        delete = DeleteGroupRequest(group="CG", cleans_offsets=True)
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete)).code == ResponseCode.SUCCESS
        copy_as_killed(tmp_path / "store", left)
    again = tmp_path / "again"
    async with running_broker(left) as broker, Peer(broker) as peer:
        assert bodies(await pop(peer, "T")) == expected
        copy_as_killed(left, again)
    async with running_broker(again) as broker, Peer(broker) as peer:
        assert await pop(peer, "T") == []
        assert broker._parts is not None
        assert len(broker._parts.pop.revive.lease_log.leases) == 1


async def test_a_pop_is_answered_when_its_group_is_on_disk(broker: Broker, peer: Peer) -> None:
    """The messages popped by a group that is unknown after a kill would never be delivered again."""
    await fill(peer, "T", 1)
    file = broker._tables.group_file
    await broker._tables.saver.save(file)
    assert b'"PopsFirst"' not in file.path.read_bytes()
    assert len(await pop(peer, "T", consumer_group="PopsFirst")) == 1
    assert not file.is_changed
    assert b'"PopsFirst"' in file.path.read_bytes()


@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_group_that_pops_a_topic_skips_nothing_in_its_new_queues(
    tmp_path: Path, *, is_empty: bool
) -> None:
    """A new group begins at the last message of each queue: no queue counts as young here."""
    running = running_broker(tmp_path / "store", pop_init_checks_memory=False)
    async with running as broker, Peer(broker) as peer:
        broker._tables.topics.put(TopicConfig(name="T", read_queue_count=2, write_queue_count=2), now_ms())
        if not is_empty:
            await fill(peer, "T", 4, queues=2)
        assert bodies(await pop(peer, "T", init_mode=1)) == ([] if is_empty else [b"002", b"003"])
        broker._tables.topics.put(TopicConfig(name="T", read_queue_count=3, write_queue_count=3), now_ms())
        sent = await fill(peer, "T", 9, queues=3)
        assert bodies(await pop_all(peer, "T", 9, init_mode=1)) == sent


async def test_a_group_that_began_at_the_last_messages_does_so_in_all_queues_also_after_a_kill(
    tmp_path: Path,
) -> None:
    """The first pop took one message of one queue; the broker was killed before it saved its offsets."""
    async with running_broker(tmp_path / "a", pop_init_checks_memory=False) as broker, Peer(broker) as peer:
        broker._tables.topics.put(TopicConfig(name="T", read_queue_count=2, write_queue_count=2), now_ms())
        await fill(peer, "T", 8, queues=2)
        first = bodies(await pop(peer, "T", init_mode=1, count_max=1))
        copy_as_killed(tmp_path / "a", tmp_path / "b")
        for file in (tmp_path / "b").rglob("consumerOffset.json*"):
            file.unlink()
    async with running_broker(tmp_path / "b", pop_init_checks_memory=False) as broker, Peer(broker) as peer:
        assert first + bodies(await pop(peer, "T", init_mode=1)) in ([b"006", b"007"], [b"007", b"006"])
