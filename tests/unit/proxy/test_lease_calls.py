"""Requests to brokers about held messages: which answers make a handle invalid (spec proxy 5.13)."""

from __future__ import annotations

import pytest
from consume_rig import BROKER, GROUP, TOPIC, Held, PopBroker, Proxy, handle_of

from sim.manual_clock import ManualClock
from tandemmq.errors import NoRoute, RequestRejected
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.proxy.handles import parse_receipt
from tandemmq.proxy.statuses import Code, RpcRefused


def make() -> Proxy:
    broker = PopBroker(ManualClock())
    broker.messages = [Held(b"a")]
    return Proxy(broker)


@pytest.mark.parametrize(
    "code", [ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER]
)
async def test_a_broker_that_does_not_know_the_handle_makes_it_invalid(code: ResponseCode) -> None:
    proxy = make()
    proxy.broker.failures[RequestCode.ACK_MESSAGE] = (code, "unknown")
    receipt = parse_receipt(handle_of(pop_time_ms=proxy.broker.clock.now_ms()))
    with pytest.raises(RpcRefused, match="unknown") as refused:
        await proxy.calls.ack(GROUP, TOPIC, receipt)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


async def test_another_refusal_stays_what_it_is() -> None:
    proxy = make()
    proxy.broker.failures[RequestCode.ACK_MESSAGE] = (ResponseCode.SYSTEM_ERROR, "not stored")
    with pytest.raises(RequestRejected, match="not stored"):
        await proxy.calls.ack(GROUP, TOPIC, parse_receipt(handle_of(pop_time_ms=1)))


async def test_an_unknown_broker_is_looked_up_once_more() -> None:
    proxy = make()
    receipt = parse_receipt(handle_of(pop_time_ms=1, broker="broker-z"))
    with pytest.raises(RpcRefused, match="broker-z") as refused:
        await proxy.calls.ack(GROUP, TOPIC, receipt)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
    assert proxy.brokers.refreshed == [TOPIC]
    assert not proxy.broker.asked


async def test_a_broker_without_a_master_is_an_outage_not_an_invalid_handle() -> None:
    proxy = make()

    async def call_master(*_: object, **__: object) -> None:
        raise NoRoute("no master")

    proxy.brokers.call_master = call_master  # type: ignore[method-assign]
    with pytest.raises(NoRoute):
        await proxy.calls.ack(GROUP, TOPIC, parse_receipt(handle_of(pop_time_ms=1, broker=BROKER)))


async def test_a_dead_letter_needs_the_position_in_the_log() -> None:
    proxy = make()
    receipt = parse_receipt(handle_of(pop_time_ms=1))._replace(log_offset=-1)
    with pytest.raises(RpcRefused, match="ninth field") as refused:
        await proxy.calls.bury(GROUP, TOPIC, receipt)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
