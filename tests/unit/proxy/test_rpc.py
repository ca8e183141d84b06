"""The seam between transport and handlers: errors become answers, and log lines that are limited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tandemmq.errors import BrokerUnreachable
from tandemmq.proxy.rpc import GATHERED_BYTES, Caller, GrpcCall, Method, server_stream, unary
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code
from tandemmq.remoting.shared_bounds import LINES_MAX
from unit.proxy.calls import FakeCall, caller

Response = message_class("HeartbeatResponse")
Received = message_class("ReceiveMessageResponse")


async def admit(_call: GrpcCall, _request: Any) -> Caller:
    return caller()


async def fail(_caller: Caller, _request: Any, *_send: Any) -> Any:
    raise BrokerUnreachable("no broker")


METHODS = {
    "unary": (unary("Heartbeat", admit, fail), Response),
    "stream": (server_stream("ReceiveMessage", admit, fail), Received),
}


@pytest.mark.parametrize(("method", "shape"), METHODS.values(), ids=METHODS.keys())
async def test_a_client_cannot_write_a_line_per_call(
    method: Method, shape: Any, caplog: pytest.LogCaptureFixture
) -> None:
    call = FakeCall([b""] * 3 * LINES_MAX)
    for _ in range(3 * LINES_MAX):
        await method.serve(call)
    assert [answer.status.code for answer in call.answers(shape)] == [Code.INTERNAL_SERVER_ERROR] * 60
    assert caplog.text.count("proxy_rpc.failed") == LINES_MAX


async def test_a_call_knows_the_code_of_its_answer() -> None:
    async def answer(_caller: Caller, _request: Any) -> Any:
        return Response(status={"code": int(Code.FORBIDDEN)})

    async def stream(_caller: Caller, _request: Any, send: Any) -> None:
        status = {"code": int(Code.MESSAGE_NOT_FOUND)}
        await send([Received(status=status), Received(delivery_timestamp={"seconds": 1})])

    call = FakeCall([b""])
    await unary("Heartbeat", admit, answer).serve(call)
    assert call.code == Code.FORBIDDEN
    polled = FakeCall([b""])
    await server_stream("ReceiveMessage", admit, stream).serve(polled)
    assert polled.code == Code.MESSAGE_NOT_FOUND
    failed = FakeCall([b""])
    await METHODS["stream"][0].serve(failed)
    assert failed.code == Code.INTERNAL_SERVER_ERROR


async def test_the_elements_of_an_answer_are_asked_for_as_they_are_sent() -> None:
    """A slow client must not make the proxy hold all messages of its answer."""
    asked = 0

    def elements() -> Iterator[Any]:
        nonlocal asked
        for _ in range(9):
            asked += 1
            yield Received(message={"body": bytes(GATHERED_BYTES // 2)})

    async def stream(_caller: Caller, _request: Any, send: Any) -> None:
        await send(elements())

    call = FakeCall([b""])
    call.is_full = True
    serving = asyncio.ensure_future(server_stream("ReceiveMessage", admit, stream).serve(call))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (asked, call.sent) == (2, [])
    call.is_full = False
    await serving
    assert (asked, len(call.sent)) == (9, 9)
