"""Changes of groups as fields of a request, and moves of one queue at brokers of different versions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tandemmq.api import broker_admin, broker_consume
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.client.groups import check_changes, move_group, move_queue
from tandemmq.errors import BadRequest, NotPermitted, RequestRejected
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import ClientConnection, ConsumerConnections
from tandemmq.protocol.bodies.tables import GroupRetryPolicy
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.client import RemotingClient

QUEUE = MessageQueue("Orders", "broker-a", 1)
ONLINE = ConsumerConnections(connections=(ClientConnection(client_id="c"),))


def test_changes_are_the_fields_of_a_request() -> None:
    policy = GroupRetryPolicy(kind="EXPONENTIAL")
    named = {"retry_count_max": -1, "is_orderly": True, "retry_policy": policy}
    assert check_changes(named) == named
    assert check_changes({"attributes": {"a": "1", "-b": "", "+c": "2"}}) == {
        "attributes": {"+a": "1", "-b": "", "+c": "2"}
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"retries": 3},
            "unknown setting 'retries' .* the settings are is_consume_enabled, .*retry_count_max",
        ),
        ({"name": "other"}, "unknown setting 'name'"),
        ({"retry_count_max": -2}, ">= -1 - at `\\$.retry_count_max`"),
        ({"retry_queue_count": "3"}, "Expected `int`, got `str` - at `\\$.retry_queue_count`"),
        ({"is_orderly": None}, "Expected `bool`, got `null`"),
    ],
)
def test_a_wrong_change_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        check_changes(changes)


@pytest.mark.parametrize(
    ("version", "online", "reason"),
    [
        ("V5_3_0", ONLINE, ""),
        ("V4_9_8", None, ""),
        ("V4_9_8", ONLINE, "moves one queue only while no member of 'billing' is online"),
        ("V4_9_8", NotPermitted("no right"), "the members of 'billing' are not known: no right"),
    ],
)
async def test_one_queue_is_moved_as_the_broker_can(
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    online: ConsumerConnections | NotPermitted | None,
    reason: str,
) -> None:
    asked: list[str] = []

    async def query_runtime_info(*_: object) -> dict[str, str]:
        return {"brokerVersionDesc": version}

    async def query_consumer_connections(*_: object) -> ConsumerConnections | None:
        if isinstance(online, NotPermitted):
            raise online
        return online

    async def reset_offsets(*_: object, queue_id: int, offset: int) -> dict[MessageQueue, int]:
        asked.append("reset")
        assert queue_id == QUEUE.queue_id
        return {QUEUE: offset}

    async def commit_offset(*_: object) -> None:
        asked.append("commit")

    for module, call in (
        (broker_admin, query_runtime_info),
        (broker_admin, query_consumer_connections),
        (broker_admin, reset_offsets),
        (broker_consume, commit_offset),
    ):
        monkeypatch.setattr(module, call.__name__, call)
    remoting = cast(RemotingClient, None)
    if reason:
        with pytest.raises(BadRequest, match=reason):
            await move_queue(remoting, "a:1", "billing", QUEUE, 7)
        assert asked == []
        return
    assert await move_queue(remoting, "a:1", "billing", QUEUE, 7) == {QUEUE: 7}
    assert asked == ["reset" if version.startswith("V5") else "commit"]


NO_OFFSET = RequestRejected("THe consumer group <billing> not exist", code=ResponseCode.SYSTEM_ERROR)
NOT_ONLINE = RequestRejected("Consumer not online", code=ResponseCode.CONSUMER_NOT_ONLINE)
OTHER = RequestRejected("no such topic", code=ResponseCode.SYSTEM_ERROR)


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([None], ["reset"]),
        ([NO_OFFSET, None], ["reset", "find", "commit 7", "reset"]),
        ([NO_OFFSET, NOT_ONLINE], ["reset", "find", "commit 7", "reset"]),
        ([NOT_ONLINE, NOT_ONLINE], ["reset", "find", "commit 7", "reset"]),
        ([OTHER], ["reset"]),
        ([NOT_ONLINE, OTHER], ["reset", "find", "commit 7", "reset"]),
    ],
)
@pytest.mark.parametrize("time_ms", [END_OF_QUEUE_MS, 1_000])
async def test_a_group_is_moved_also_where_the_broker_needs_offsets_and_members(
    monkeypatch: pytest.MonkeyPatch, answers: list[RequestRejected | None], asked: list[str], time_ms: int
) -> None:
    done: list[str] = []
    left = [*answers]

    async def reset_offsets(*_: object) -> dict[MessageQueue, int]:
        done.append("reset")
        error = left.pop(0)
        if error is not None:
            raise error
        return {QUEUE: 7}

    async def query_max_offset(*_: object) -> int:
        assert time_ms == END_OF_QUEUE_MS
        done.append("find")
        return 7

    async def search_offset(*given: object) -> int:
        assert given[-1] == time_ms == 1_000
        done.append("find")
        return 7

    async def commit_offset(*given: object) -> None:
        done.append(f"commit {given[-1]}")

    monkeypatch.setattr(broker_admin, "reset_offsets", reset_offsets)
    for call in (query_max_offset, search_offset, commit_offset):
        monkeypatch.setattr(broker_consume, call.__name__, call)
    moving = move_group(cast(RemotingClient, None), "a:1", "billing", [QUEUE], time_ms)
    if answers[-1] is OTHER:
        with pytest.raises(RequestRejected, match="no such topic"):
            await moving
    else:
        assert await moving == {QUEUE: 7}
    assert done == asked
