"""Dead letters: counted, sent again once, edited, exported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dead_letter_rig import make_letters
from managed_cluster import managed_cluster
from tandemmq.client import Consumer, ReceivedMessage
from tandemmq.errors import BadRequest
from tandemmq.manage import dead_letters
from tandemmq.manage.dead_letters import (
    ORIGIN,
    DeadLetterCount,
    DeadLetterSender,
    LetterEdit,
    count_resent,
    export_letters,
    find_letter,
    origin_of,
    read_dead_letter_count,
    read_dead_letter_counts,
    read_dead_letter_groups,
    resend_all,
    resend_chosen,
)
from tandemmq.manage.message_scan import scan_messages
from tandemmq.manage.tools import Tools
from tandemmq.protocol.topic_names import dlq_topic
from tandemmq.testing.cluster import consumer_options
from waits import until


async def letters_of(tools: Tools, count: int) -> list[ReceivedMessage]:
    """Returns the letters, oldest first, once all are there."""

    async def are_there() -> bool:
        return (await read_dead_letter_count(tools, "readers")).kept == count

    await until(are_there)
    return list((await scan_messages(tools, dlq_topic("readers"), newest_first=False)).messages)


async def bodies_of(tools: Tools, topic: str) -> list[bytes]:
    return [one.body for one in (await scan_messages(tools, topic, newest_first=False)).messages]


async def test_all_letters_are_sent_once_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "RESEND_COUNT", 2)
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        assert await read_dead_letter_groups(tools) == []
        await make_letters(cluster, 5)
        letters = await letters_of(tools, 5)
        assert origin_of(letters[0]) == "orders"
        assert await count_resent(tools, letters[0], "orders") == 0
        assert await read_dead_letter_groups(tools) == ["readers"]
        counts = await read_dead_letter_counts(tools, ["readers", "nobody"])
        assert counts["readers"] == DeadLetterCount("readers", 5, 5)
        assert "nobody" in counts["nobody"].error
        await cluster.create_topic("again", queue_count=1)
        first = await resend_all(tools, "readers", "again", count_max=3)
        assert first.error == ""
        assert (first.sent, first.left) == (3, 2)
        second = await resend_all(tools, "readers", "again", count_max=100)
        assert (second.sent, second.left) == (2, 0)
        assert (await resend_all(tools, "readers", "again", count_max=100)).sent == 0
        assert await bodies_of(tools, "again") == [b"%d" % number for number in range(5)]
        assert await read_dead_letter_count(tools, "readers") == DeadLetterCount("readers", 5, 0)


async def test_a_letter_that_fails_does_not_repeat_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await make_letters(cluster, 3)
        bad = (await letters_of(tools, 3))[2].message_id
        await cluster.create_topic("again", queue_count=1)
        send_one = DeadLetterSender._send_one

        async def fail_one(self: DeadLetterSender, message: ReceivedMessage, *rest: Any) -> Any:
            if message.message_id == bad:
                raise BadRequest("a bad letter")
            return await send_one(self, message, *rest)

        monkeypatch.setattr(DeadLetterSender, "_send_one", fail_one)
        for sent in (2, 0):
            outcome = await resend_all(tools, "readers", "again", count_max=100)
            assert (outcome.sent, outcome.left) == (sent, 1)
            assert "a bad letter" in outcome.error
        assert await bodies_of(tools, "again") == [b"0", b"1"]


async def test_chosen_letters_go_to_their_origin_edited() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await make_letters(cluster, 2)
        letters = await letters_of(tools, 2)
        one = letters[1]
        place = (one.broker_name, one.queue_id)
        assert await find_letter(tools, "readers", *place, one.queue_offset + 9) is None
        found = await find_letter(tools, "readers", *place, one.queue_offset)
        assert found is not None
        edit = LetterEdit(body=b"mended", tags="t", keys="", properties={"c": "d"})
        outcome = await resend_chosen(tools, "readers", ORIGIN, [found], edit)
        assert (outcome.sent, outcome.left, outcome.error) == (1, 0, "")
        last = (await scan_messages(tools, "orders")).messages[0]
        assert (last.body, last.tags, last.keys) == (b"mended", "t", ())
        assert last.properties["c"] == "d"
        assert "a" not in last.properties
        assert last.record.unique_key == found.record.unique_key

        async def is_known() -> bool:
            return await count_resent(tools, found, "orders") == 1

        await until(is_known)
        with pytest.raises(BadRequest, match="reserved"):
            LetterEdit(properties={"UNIQ_KEY": "x"}).pairs({})
        with pytest.raises(BadRequest):
            await resend_chosen(tools, "readers", "no topic!", [found])
        refused = await resend_chosen(tools, "readers", "missing-topic", [found, found])
        assert (refused.sent, refused.left) == (0, 2)
        assert "missing-topic" in refused.error


async def test_only_the_group_receives_letters_sent_to_its_retries() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await make_letters(cluster, 1)
        letters = await letters_of(tools, 1)
        assert (await resend_chosen(tools, "readers", "", letters)).sent == 1
        async with Consumer("readers", cluster.name_servers, options=consumer_options()) as consumer:
            consumer.subscribe("orders")
            received: list[ReceivedMessage] = []

            async def is_back() -> bool:
                received.extend(await consumer.poll(8, timeout_s=0.1))
                return bool(received)

            await until(is_back)
            assert (received[0].topic, received[0].body) == ("orders", b"0")


async def test_letters_are_exported_as_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await make_letters(cluster, 3)
        await letters_of(tools, 3)
        content, is_cut = await export_letters(tools, "readers")
        assert not is_cut
        assert [json.loads(line)["body"] for line in content.splitlines()] == ["0", "1", "2"]
        monkeypatch.setattr(dead_letters, "EXPORT_MAX", 2)
        content, is_cut = await export_letters(tools, "readers")
        assert is_cut
        assert content.count(b"\n") == 2
        assert await export_letters(tools, "nobody") == (b"", False)
