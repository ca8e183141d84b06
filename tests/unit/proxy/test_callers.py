"""The caller of an rpc: spec proxy 3.1."""

from __future__ import annotations

import pytest

from tandemmq.proxy.callers import Callers, language_of
from tandemmq.proxy.rpc import Caller, Message
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.runtime.ports import Address
from unit.proxy.calls import PEER, FakeCall


async def admit(metadata: dict[str, str], callers: Callers | None = None) -> Caller:
    return await (callers or Callers()).admit(FakeCall(metadata=metadata, deadline_s=7.0), None)


async def refusal(metadata: dict[str, str]) -> Code:
    with pytest.raises(RpcRefused) as refused:
        await admit(metadata)
    return refused.value.code


async def test_headers_become_the_caller() -> None:
    caller = await admit(
        {
            "x-mq-client-id": "host@1@0@abc",
            "x-mq-language": "HTTP",
            "x-mq-client-version": "1.0.8",
            "x-mq-namespace": "shop",
            "x-mq-channel-id": "ignored",
            "rpc-remote-address": "9.9.9.9:1",
        }
    )
    assert caller == Caller("host@1@0@abc", "HTTP", "1.0.8", "shop", PEER, 7.0, "")


async def test_only_the_client_id_is_required() -> None:
    assert await admit({"x-mq-client-id": "c"}) == Caller("c", "OTHER", "", "", PEER, 7.0, "")
    for metadata in ({}, {"x-mq-client-id": ""}, {"x-mq-client-id": "  "}):
        assert await refusal(metadata) == Code.CLIENT_ID_REQUIRED


async def test_headers_are_bounded() -> None:
    assert await refusal({"x-mq-client-id": "c" * 1025}) == Code.BAD_REQUEST
    assert await refusal({"x-mq-client-id": "a\x07b"}) == Code.BAD_REQUEST
    assert await refusal({"x-mq-client-id": "c", "x-mq-namespace": "n" * 256}) == Code.BAD_REQUEST
    caller = await admit(
        {"x-mq-client-id": "c", "x-mq-client-version": "9" * 5000, "x-mq-language": "x" * 5000}
    )
    assert (len(caller.version), caller.language) == (64, "OTHER")


def test_each_clients_language_is_known() -> None:
    names = {
        text: language_of(text).name for text in ("JAVA", "CPP", "GO", "DOTNET", "RUST", "PYTHON", "HTTP")
    }
    assert all(text == name for text, name in names.items())
    assert language_of("golang").name == "GO"
    assert language_of("COBOL").name == "OTHER"


async def test_without_access_control_any_header_passes() -> None:
    metadata = {"x-mq-client-id": "c", "authorization": "MQv2-HMAC-SHA1 Credential=/"}
    assert (await Callers().admit(FakeCall(metadata=metadata), None)).access_key == ""


async def test_access_is_checked_before_the_client_id() -> None:
    async def check(metadata: object, peer: Address, request: Message) -> str:
        if request == "refused":
            raise RpcRefused(Code.UNAUTHORIZED, "no")
        return "alice"

    callers = Callers([check])
    assert (await callers.admit(FakeCall(metadata={"x-mq-client-id": "c"}), None)).access_key == "alice"
    with pytest.raises(RpcRefused) as refused:
        await callers.admit(FakeCall(metadata={}), "refused")
    assert refused.value.code == Code.UNAUTHORIZED


async def test_a_check_that_names_nobody_keeps_the_user_of_the_one_before() -> None:
    async def name(metadata: object, peer: Address, request: Message) -> str:
        return "alice"

    async def name_nobody(metadata: object, peer: Address, request: Message) -> str:
        return ""

    callers = Callers([name, name_nobody])
    assert (await callers.admit(FakeCall(metadata={"x-mq-client-id": "c"}), None)).access_key == "alice"
