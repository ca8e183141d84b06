"""Leases that are renewed in place, and strict acks: the broker's side of push consumers behind a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from broker_rig import Peer, copy_as_killed, running_broker
from pop_rig import Popped, ack, ack_in_batch, change, pop, pop_all, pop_header

from tandemmq.broker.broker import Broker
from tandemmq.broker.pop.lease_log import LeaseLog
from tandemmq.broker.pop.leases import Lease
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.requests.consume import (
    AckRequest,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    PollingInfoRequest,
    PopResponse,
)
from tandemmq.store.options import FlushMode
from waits import until


async def fill(peer: Peer, count: int) -> None:
    for number in range(count):
        await peer.send_ok("T", b"%d" % number, queue_id=0)


async def renew(peer: Peer, popped: Popped, invisible_ms: int) -> int:
    """Returns the code of the answer."""
    header = ChangeInvisibleRequest(
        consumer_group="CG",
        topic=popped.topic,
        queue_id=popped.record.queue_id,
        extra_info=popped.handle,
        offset=popped.record.queue_offset,
        invisible_ms=invisible_ms,
        is_renewal=True,
        is_strict=True,
    )
    answer = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    if answer.code == ResponseCode.SUCCESS:
        response = answer.decode(ChangeInvisibleResponse)
        assert response.pop_time_ms == int(popped.handle.split(" ")[1])
    return answer.code


async def strict_ack(peer: Peer, popped: Popped) -> int:
    header = AckRequest(
        consumer_group="CG",
        topic=popped.topic,
        queue_id=popped.record.queue_id,
        extra_info=popped.handle,
        offset=popped.record.queue_offset,
        is_strict=True,
    )
    return (await peer.ask(RequestCode.ACK_MESSAGE, header)).code


async def test_a_renewed_lease_keeps_its_handles_and_lasts(peer: Peer) -> None:
    await fill(peer, 3)
    first, second, third = await pop_all(peer, "T", 3, invisible_ms=400)
    assert await ack(peer, first) == 0
    assert await renew(peer, second, 60_000) == 0
    assert await pop(peer, "T", poll_ms=1_000) == [], "also the third is held, by one renewal"
    assert await strict_ack(peer, second) == 0
    assert await renew(peer, second, 100) == 0, "the lease still has the third message, which ends soon"
    [again] = await pop_all(peer, "T", 1)
    assert (again.body, again.record.retry_count) == (b"2", 1)
    assert await strict_ack(peer, third) == ResponseCode.NO_MESSAGE
    assert await renew(peer, third, 60_000) == ResponseCode.NO_MESSAGE
    assert await ack(peer, third) == 0, "RocketMQ's clients get a success, which changes nothing"
    assert await strict_ack(peer, again) == 0


async def test_a_repeated_strict_ack_is_a_success_also_after_a_kill(tmp_path: Path) -> None:
    """The answer to the first one was lost. A message that was delivered again is another matter."""
    store = {"flush_mode": FlushMode.SYNC_FLUSH}
    async with running_broker(tmp_path / "a", store=store) as broker, Peer(broker) as peer:
        await fill(peer, 4)
        [alone] = await pop_all(peer, "T", 1, count_max=1)
        first, second, third = await pop_all(peer, "T", 3)
        moved = await change(peer, second, 100)
        [again] = await pop_all(peer, "T", 1)
        done = [alone, first, third, again]
        assert [await strict_ack(peer, message) for message in [*done, *done]] == [0] * 8
        assert await strict_ack(peer, second) == ResponseCode.NO_MESSAGE
        assert await strict_ack(peer, moved) == ResponseCode.NO_MESSAGE
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    async with running_broker(tmp_path / "b", store=store) as broker, Peer(broker) as peer:
        assert [await strict_ack(peer, message) for message in done] == [0] * 4
        assert await strict_ack(peer, second) == ResponseCode.NO_MESSAGE
        assert await strict_ack(peer, moved) == ResponseCode.NO_MESSAGE


async def test_an_ack_does_not_hold_a_message_back_that_is_being_stored_again(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_again = LeaseLog.store_again
    begun, may_continue = asyncio.Event(), asyncio.Event()

    async def store_later(
        log: LeaseLog, lease: Lease, indexes: Sequence[int], copies: Sequence[NewRecord]
    ) -> None:
        begun.set()
        await may_continue.wait()
        await store_again(log, lease, indexes, copies)

    monkeypatch.setattr(LeaseLog, "store_again", store_later)
    await fill(peer, 1)
    [late] = await pop_all(peer, "T", 1, invisible_ms=100)
    await until(begun.is_set)
    assert await strict_ack(peer, late) == ResponseCode.NO_MESSAGE
    assert await ack(peer, late) == 0, "RocketMQ's clients get a success, which changes nothing"
    assert await ack_in_batch(peer, late) == 0
    may_continue.set()
    [again] = await pop_all(peer, "T", 1)
    assert again.record.retry_count == 1
    assert await strict_ack(peer, again) == 0


async def test_a_strict_ack_is_refused_for_a_message_that_moved_to_another_lease(peer: Peer) -> None:
    await fill(peer, 2)
    first, second = await pop_all(peer, "T", 2)
    moved = await change(peer, first, 60_000)
    assert await strict_ack(peer, first) == ResponseCode.NO_MESSAGE
    assert await strict_ack(peer, moved) == 0
    assert await strict_ack(peer, second) == 0


async def test_a_pop_reports_renewals_only_if_it_asks_for_them(peer: Peer) -> None:
    await fill(peer, 2)
    for asked in (None, True):
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header("T", count_max=1, is_renewable=asked))
        assert answer.decode(PopResponse).is_renewable is asked
        assert ("tandemRenewable" in answer.fields) is bool(asked)


async def test_a_renewal_outlives_a_kill_and_its_handle_too(tmp_path: Path) -> None:
    store = {"flush_mode": FlushMode.SYNC_FLUSH}
    async with running_broker(tmp_path / "a", store=store) as broker, Peer(broker) as peer:
        await fill(peer, 2)
        first, second = await pop_all(peer, "T", 2, invisible_ms=500)
        assert await renew(peer, first, 60_000) == 0
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    async with running_broker(tmp_path / "b", store=store) as broker, Peer(broker) as peer:
        assert await pop(peer, "T", poll_ms=1_000) == []
        assert await strict_ack(peer, first) == 0
        assert await renew(peer, second, 100) == 0
        [again] = await pop_all(peer, "T", 1)
        assert again.body == second.body


async def test_an_ordered_pop_is_renewed_for_all_its_messages(peer: Peer) -> None:
    await fill(peer, 3)
    order = {"is_ordered": True, "count_max": 2}
    first, second = await pop_all(peer, "T", 2, invisible_ms=400, **order)
    assert await renew(peer, second, 60_000) == 0
    assert await pop(peer, "T", poll_ms=1_000, **order) == []
    assert await strict_ack(peer, first) == 0
    assert await strict_ack(peer, second) == 0
    [third] = await pop(peer, "T", **order)
    assert await strict_ack(peer, first) == 0, "the group is past it, so it never comes again"
    assert await renew(peer, first, 60_000) == ResponseCode.NO_MESSAGE
    assert await strict_ack(peer, third) == 0


async def test_a_repeated_attempt_gets_its_messages_at_once_among_eight_rivals(peer: Peer) -> None:
    """The answer to the first attempt is lost while eight others wait for the queue."""
    await fill(peer, 2)
    order = {"is_ordered": True, "count_max": 1}
    [lost] = await pop_all(peer, "T", 1, attempt_id="mine", **order)
    rivals = [
        asyncio.create_task(pop(peer, "T", attempt_id=f"rival-{number}", poll_ms=50_000, **order))
        for number in range(8)
    ]
    await asyncio.sleep(0)
    for _ in range(3):
        [again] = await asyncio.wait_for(pop(peer, "T", attempt_id="mine", poll_ms=50_000, **order), 20)
        assert again.body == lost.body
    assert not any(rival.done() for rival in rivals)
    assert await strict_ack(peer, lost) == ResponseCode.NO_MESSAGE, "each repetition has its own handle"
    assert await strict_ack(peer, again) == 0
    done, waiting = await asyncio.wait(rivals, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    assert [[message.body for message in rival.result()] for rival in done] == [[b"1"]]
    for rival in waiting:
        rival.cancel()


async def test_two_ordered_pops_at_one_time_have_handles_of_their_own(peer: Peer) -> None:
    """A late hand-back of the first answer must not free the queue under the second one."""
    await fill(peer, 1)
    order = {"is_ordered": True, "count_max": 1, "attempt_id": "mine"}
    for _ in range(20):
        earlier, later = await asyncio.gather(pop(peer, "T", **order), pop(peer, "T", **order))
        assert earlier[0].handle != later[0].handle


async def test_a_held_pop_can_be_ended_by_its_connection(peer: Peer, broker: Broker) -> None:
    await fill(peer, 1)
    assert len(await pop_all(peer, "T", 1)) == 1
    assert broker._parts is not None
    polls = broker._parts.pop.polls
    async with Peer(broker) as other:
        for owner in (peer, other):  # both name their pop alike
            waiting = asyncio.create_task(pop(owner, "T", poll_ms=50_000, poll_id="7"))
            await until(lambda: len(polls) == 1, "the pop is held")
            unknown = PollingInfoRequest("CG", "T", -1, ended_poll_id="8")
            assert (await owner.ask(RequestCode.POLLING_INFO, unknown)).code == 0
            stranger = other if owner is peer else peer
            named = PollingInfoRequest("CG", "T", -1, ended_poll_id="7")
            assert (await stranger.ask(RequestCode.POLLING_INFO, named)).code == 0
            assert len(polls) == 1
            assert (await owner.ask(RequestCode.POLLING_INFO, named)).code == 0
            assert await waiting == []
            assert (len(polls), polls._by_poll_id) == (0, {})
