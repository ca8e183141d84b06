"""`tandemmq topics`, `groups` and `dlq` against a cluster in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from dead_letter_rig import make_letters
from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.cli import app
from tandemmq.manage.dead_letters import DeadLetterReader, read_dead_letter_count, resend_all
from tandemmq.manage.tools import Target
from tandemmq.protocol.topic_names import dlq_topic
from waits import until


@dataclass(frozen=True)
class Nouns:
    """The cluster, and its commands."""

    managed: ManagedCluster

    async def run(self, *arguments: str, code: int = 0, given: str = "") -> str:
        """Returns the output, also that of a question."""
        words = [*arguments, "-n", self.managed.cluster.name_servers]
        # A separate thread, because a command runs an event loop.
        done = await asyncio.to_thread(CliRunner().invoke, app, words, input=given)
        assert done.exit_code == code, done.output
        return done.output

    async def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Returns the rows of the only table."""
        words = [*arguments, "--json", "-n", self.managed.cluster.name_servers]
        done = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert done.exit_code == 0, done.output
        (rows,) = json.loads(done.stdout).values()
        return list(rows)


@pytest.fixture
async def nouns() -> AsyncIterator[Nouns]:
    async with managed_cluster() as managed:
        yield Nouns(managed)


async def test_topics_are_created_described_altered_and_deleted(nouns: Nouns) -> None:
    (new,) = await nouns.rows("topics", "create", "Paid", "--queues", "2", "--type", "fifo")
    assert (new["read_queues"], new["write_queues"], new["permission"]) == (2, 2, "read and write")
    assert new["attributes"] == {"message.type": "FIFO"}
    assert "--exist-ok" in await nouns.run("topics", "create", "Paid", "--queues", "3", code=1)
    assert "nothing is changed" in await nouns.run("topics", "create", "Paid", "--exist-ok")
    await nouns.managed.send("Paid", 3)
    assert await nouns.rows("topics") == await nouns.rows("topics", "list")
    assert [(one["topic"], one["messages"]) for one in await nouns.rows("topics")] == [("Paid", 3)]
    assert "3 messages" in await nouns.run("topics", "describe", "Paid")
    (changed,) = await nouns.rows("topics", "alter", "Paid", "--queues", "4", "--permission", "read")
    assert (changed["write_queues"], changed["permission"]) == (4, "read")
    assert "keeps its read queues" in await nouns.run("topics", "alter", "Paid", "--queues", "1", code=1)
    (changed,) = await nouns.rows("topics", "alter", "Paid", "--attribute", "message.type=", "--force")
    assert changed["attributes"] == {}
    asked = await nouns.run("topics", "delete", "Paid", code=1, given="n\n")
    assert "with 3 messages" in asked
    assert "nothing is changed" in asked
    assert "--yes" in await nouns.run("topics", "delete", "Paid", code=1)  # the input ends
    await nouns.run("topics", "delete", "Paid", given="y\n")
    assert "not registered" in await nouns.run("topics", "describe", "Paid", code=1)


async def test_no_topic_is_created_while_a_broker_has_no_master(nouns: Nouns) -> None:
    await nouns.managed.register(Target("DefaultCluster", "broker-b", 1, "127.0.0.1:1"))
    refused = await nouns.run("topics", "create", "Paid", code=1)
    assert "nothing is changed: broker-b has no master now" in refused
    assert "Paid" not in await nouns.managed.tools.cluster_admin.topics()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("topics", "alter", "T"), "give a new value"),
        (("topics", "alter", "T", "--permission", "6"), "read-write"),
        (("topics", "create", "T", "--type", "lifo"), "must be one of NORMAL, FIFO"),
        (("topics", "create", "T", "--attribute", "a"), "expected NAME=VALUE"),
        (("groups", "reset", "g", "--to", "yesterday"), "expected earliest, latest, offset:N"),
        (("groups", "reset", "g", "--to", "offset:7"), "needs the queue"),
        (("groups", "reset", "g", "--to", "latest", "--queue", "broker-a/0"), "needs its topic"),
        (("groups", "reset", "g", "--to", "latest", "--topic", "T", "--queue", "0"), "a broker and a queue"),
        (("lag", "-g", "g", "--watch", "--max-lag", "1"), "exclude each other"),
        (("lag", "--topic", "T"), "also needs the group"),
        (("tail", "T", "--tag", "||"), "separate tags by ||"),
        (("browse", "T", "--tag", " || || "), "separate tags by ||"),
    ],
)
def test_mistakes_name_what_is_allowed(words: tuple[str, ...], reason: str) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "-n", "127.0.0.1:1"])
    assert done.exit_code == 2, done.output
    assert reason in done.output


async def test_a_group_is_moved_after_a_preview_and_deleted(nouns: Nouns) -> None:
    await nouns.managed.cluster.create_topic("Orders", queue_count=1)
    await nouns.managed.send("Orders", 5)
    await nouns.managed.consume("Orders", "billing", 3)
    assert "lag 2 messages" in await nouns.run("groups", "describe", "billing")
    (planned,) = await nouns.rows("groups", "reset", "billing", "--to", "earliest", "--dry-run")
    assert (planned["committed_offset"], planned["new_offset"], planned["repeated"]) == (3, 0, 3)
    asked = await nouns.run("groups", "reset", "billing", "--to", "latest", code=1, given="n\n")
    assert "skips 2, repeats 0" in asked
    await nouns.run("groups", "reset", "billing", "--to", "latest", given="y\n")
    place = ("--topic", "Orders", "--queue", f"{planned['broker']}/0")
    (moved,) = await nouns.rows("groups", "reset", "billing", "--to", "offset:1", *place, "--yes")
    assert moved == {"topic": "Orders", "queues": 1, "skipped": 0, "repeated": 4}
    assert "above 3" in await nouns.run("lag", "-g", "billing", "--max-lag", "3", code=3)
    await nouns.run("lag", "-g", "billing", "--max-lag", "4")
    assert "above 3 messages: billing" in await nouns.run("lag", "--max-lag", "3", code=3)
    await nouns.run("lag", "--max-lag", "4")
    assert "lag 4" in await nouns.run("groups", "delete", "billing", given="y\n")
    assert await nouns.rows("groups") == []
    assert "has the group" in await nouns.run("groups", "describe", "billing", code=1)


async def test_purged_dead_letters_are_gone_and_later_ones_are_seen(nouns: Nouns) -> None:
    cluster, tools = nouns.managed.cluster, nouns.managed.tools
    assert "no broker has the group" in await nouns.run("dlq", "purge", "readers", code=1)
    await make_letters(cluster, 3)

    async def has(count: int) -> bool:
        return (await read_dead_letter_count(tools, "readers")).kept == count

    await until(lambda: has(3))
    await cluster.create_topic("again")
    assert (await resend_all(tools, "readers", "again", count_max=9)).sent == 3
    assert await nouns.rows("dlq") == [{"group": "readers", "dead_letters": 3, "not_resent": 0}]
    assert "the 3 dead letters" in await nouns.run("dlq", "purge", "readers", code=1, given="n\n")
    assert await has(3)
    (gone,) = await nouns.rows("dlq", "purge", "readers", "--yes")
    assert gone == {"group": "readers", "dead_letters": 3}
    assert dlq_topic("readers") not in await tools.cluster_admin.topics()
    await make_letters(cluster, 2)
    await until(lambda: has(2))
    reader = DeadLetterReader(tools, "readers")
    await reader.open(again=False)
    assert [one.body async for _, part in reader.read() for one in part] == [b"0", b"1"]
