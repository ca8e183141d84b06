"""Renewal of the messages of push consumers (spec proxy 5.12; decision 027)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from consume_rig import Held, PopBroker, Proxy
from test_acknowledging import ack, change, receive

from sim.manual_clock import ManualClock
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.proxy.handles import Receipt
from tandemmq.proxy.renewal import LeaseOwner, RenewalOptions
from tandemmq.proxy.statuses import Code
from tandemmq.remoting.shared_bounds import LINES_MAX

CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


@asynccontextmanager
async def renewing(
    *bodies: str, is_tandem: bool = True, broker: PopBroker | None = None, **options: Any
) -> AsyncIterator[Proxy]:
    if broker is None:
        broker = PopBroker(ManualClock(), is_tandem=is_tandem)
        broker.messages = [Held(body.encode()) for body in bodies]
    proxy = Proxy(broker, renewal_options=RenewalOptions(**options))
    proxy.tasks.start("renewal", proxy.renewal.run())
    try:
        yield proxy
    finally:
        await proxy.tasks.close()
    assert proxy.tasks.failure is None


async def pass_time(proxy: Proxy, seconds: float) -> None:
    await proxy.broker.clock.pass_time(seconds)
    await proxy.broker.clock.pass_time(0)


async def test_a_lease_is_renewed_in_place_with_one_request_for_all_its_messages() -> None:
    async with renewing("a", "b", "c") as proxy:
        first, second, _ = await receive(proxy, auto_renew=True)
        await pass_time(proxy, 31)
        [renewal] = proxy.broker.asked_of(CHANGE)
        assert (renewal.is_renewal, renewal.invisible_ms) == (True, 60_000)
        assert proxy.broker.visible_in_ms() == [59_000] * 3
        await pass_time(proxy, 300)
        assert (await ack(proxy, first)).status.code == Code.OK, "it is the handle that the client got"
        other = Proxy(proxy.broker)
        assert (await ack(other, second)).status.code == Code.OK, "also at a proxy that renewed nothing"
        assert proxy.broker.visible_in_ms()[:2] == [None, None]


async def test_without_its_proxy_a_message_appears_again_one_invisible_time_after_the_last_renewal() -> None:
    async with renewing("a") as proxy:
        [handle] = await receive(proxy, auto_renew=True)
        await pass_time(proxy, 31)
    await pass_time(proxy, 60)
    assert proxy.broker.visible_in_ms() == [0]
    other = Proxy(proxy.broker)
    assert (await ack(other, handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    [again] = await receive(other, auto_renew=True)
    assert (await ack(other, handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await ack(other, again)).status.code == Code.OK


async def test_other_brokers_replace_handles_and_the_client_keeps_its_first_one() -> None:
    async with renewing("a", "b", is_tandem=False) as proxy:
        first, second = await receive(proxy, auto_renew=True)
        await pass_time(proxy, 100)
        assert len(proxy.broker.asked_of(CHANGE)) == 6
        assert (await ack(proxy, first)).status.code == Code.OK
        assert proxy.broker.messages[0].is_done
        other = Proxy(proxy.broker)
        assert (await ack(other, second)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert not proxy.broker.messages[1].is_done


async def test_an_ack_waits_for_a_renewal_that_replaces_its_handle() -> None:
    async with renewing("a", is_tandem=False) as proxy:
        [handle] = await receive(proxy, auto_renew=True)
        proxy.broker.gate = asyncio.Event()
        await pass_time(proxy, 31)
        acking = asyncio.ensure_future(ack(proxy, handle))
        await pass_time(proxy, 1)
        assert not proxy.broker.asked_of(RequestCode.ACK_MESSAGE)
        proxy.broker.gate.set()
        assert (await acking).status.code == Code.OK
        assert proxy.broker.messages[0].is_done
        assert len(proxy.renewal) == 0


async def test_a_message_whose_time_its_client_chose_is_not_renewed() -> None:
    async with renewing("a", "b") as proxy:
        first, _ = await receive(proxy, auto_renew=True)
        await change(proxy, first, 10)
        await pass_time(proxy, 35)
        assert proxy.broker.visible_in_ms()[0] == 0
        assert proxy.broker.visible_in_ms()[1] == 55_000


async def test_messages_of_a_client_that_is_gone_are_visible_in_a_second() -> None:
    for is_tandem in (True, False):
        async with renewing("a", "b", is_tandem=is_tandem) as proxy:
            await receive(proxy, auto_renew=True)
            proxy.clients.lose("c2")
            await pass_time(proxy, 0.1)
            assert proxy.broker.visible_in_ms() == [59_900] * 2
            proxy.clients.lose("c1")
            await pass_time(proxy, 0)
            assert proxy.broker.visible_in_ms() == [1_000] * 2
            assert len(proxy.renewal) == 0


async def test_a_client_that_moved_to_another_proxy_keeps_its_messages() -> None:
    async with renewing("a") as proxy:
        [handle] = await receive(proxy, auto_renew=True)
        proxy.broker.members = ("c1",)
        proxy.clients.lose("c1")
        await pass_time(proxy, 300)
        assert proxy.broker.visible_in_ms()[0]
        assert (await ack(Proxy(proxy.broker), handle)).status.code == Code.OK
        assert proxy.broker.messages[0].is_done


async def test_a_client_that_the_brokers_list_a_little_longer_is_noticed_soon() -> None:
    """Its proxy unregisters it only after it has left."""
    async with renewing("a", "b") as proxy:
        await receive(proxy, auto_renew=True)
        proxy.broker.members = ("c1",)
        proxy.clients.lose("c1")
        await pass_time(proxy, 2)
        proxy.broker.members = ()
        await pass_time(proxy, 2)
        assert all(one is not None and one <= 1_000 for one in proxy.broker.visible_in_ms())
        assert len(proxy.broker.asked_of(CHANGE)) == 1


async def test_a_client_that_moved_is_renewed_once_per_pause() -> None:
    async with renewing("a") as proxy:
        await receive(proxy, auto_renew=True)
        proxy.broker.members = ("c1",)
        proxy.clients.lose("c1")
        await pass_time(proxy, 301)
        assert len(proxy.broker.asked_of(CHANGE)) == 10


async def test_a_client_keeps_its_messages_while_the_brokers_cannot_say_where_it_is() -> None:
    """It may be at another proxy, and its broker may be changing its master."""
    async with renewing("a") as proxy:
        await receive(proxy, auto_renew=True)
        proxy.broker.failures[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = (ResponseCode.SYSTEM_BUSY, "busy")
        proxy.clients.lose("c1")
        await pass_time(proxy, 20)
        assert not proxy.broker.asked_of(CHANGE)
        assert proxy.broker.visible_in_ms() == [40_000]
        proxy.broker.failures.clear()
        await pass_time(proxy, 15)
        assert len(proxy.broker.asked_of(CHANGE)) == 1
        assert len(proxy.renewal) == 0


async def test_a_client_that_left_without_a_word_is_noticed_at_the_next_renewal() -> None:
    async with renewing("a") as proxy:
        await receive(proxy, auto_renew=True)
        proxy.clients.alive.clear()
        await pass_time(proxy, 30)
        assert proxy.broker.visible_in_ms() == [1_000]


async def test_renewals_end_with_the_life_of_a_message() -> None:
    async with renewing("a", life_ms=100_000) as proxy:
        [handle] = await receive(proxy, auto_renew=True)
        await pass_time(proxy, 99)
        assert proxy.broker.visible_in_ms() == [1_000], "it never lasts longer"
        await pass_time(proxy, 30)
        assert len(proxy.renewal) == 0
        assert (await ack(proxy, handle)).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_failed_renewal_is_repeated_until_it_is_given_up() -> None:
    async with renewing("a") as proxy:
        await receive(proxy, auto_renew=True)
        proxy.broker.failures[CHANGE] = (ResponseCode.SYSTEM_BUSY, "busy")
        await pass_time(proxy, 31.5)
        assert len(proxy.broker.asked_of(CHANGE)) == 2
        del proxy.broker.failures[CHANGE]
        await pass_time(proxy, 1)
        assert proxy.broker.visible_in_ms() == [59_500]
        proxy.broker.failures[CHANGE] = (ResponseCode.SYSTEM_BUSY, "busy")
        await pass_time(proxy, 60)
        assert len(proxy.broker.asked_of(CHANGE)) == 6
        assert len(proxy.renewal) == 0


async def test_messages_acknowledged_at_another_proxy_are_dropped_quietly() -> None:
    async with renewing("a") as proxy:
        [handle] = await receive(proxy, auto_renew=True)
        await ack(Proxy(proxy.broker), handle)
        await pass_time(proxy, 31)
        assert len(proxy.renewal) == 0
        assert len(proxy.broker.asked_of(CHANGE)) == 1


async def test_more_messages_than_the_bound_are_delivered_and_not_renewed() -> None:
    async with renewing("a", "b", count_max=1) as proxy:
        assert len(await receive(proxy, auto_renew=True)) == 2
        assert len(proxy.renewal) == 0


async def test_a_short_lease_is_renewed_after_half_of_it() -> None:
    async with renewing("a", invisible_ms=10_000) as proxy:
        await receive(proxy, auto_renew=True)
        await pass_time(proxy, 21)
        assert len(proxy.broker.asked_of(CHANGE)) == 4
        assert proxy.broker.visible_in_ms() == [9_000]


async def test_a_receive_above_the_bound_is_no_log_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async with renewing(count_max=1) as proxy:
        owner = LeaseOwner("c1", "G", "T")
        for _ in range(3 * LINES_MAX):
            proxy.renewal.watch(owner, cast("list[Receipt]", [None, None]))
        assert caplog.text.count("proxy_renewal.full") == LINES_MAX
        assert proxy.renewal.unwatched_count == 6 * LINES_MAX
