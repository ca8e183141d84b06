"""Messages that a consumer sends back itself: the request for each kind of broker."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import FakeCluster, running_cluster
from test_push_consumer import QUEUE, fill, push

from tandemmq.client import ReceivedMessage
from tandemmq.client.consumer.returning import REASON_CHARS_MAX
from tandemmq.protocol.codes import VERSION_TIMERS
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import decode_records
from waits import until


def returned(cluster: FakeCluster) -> list[dict[str, str]]:
    """The properties of the messages in the retry topic."""
    records = [one for one, _ in cluster[0].queue("%RETRY%g", -1).records]
    return [record.properties for raw in records for record in decode_records(raw)]


@pytest.mark.parametrize(
    ("version", "delay_s", "expected"),
    [
        (VERSION_TIMERS, 7.5, ("TIMER_DELAY_MS", "7500")),
        (VERSION_TIMERS, 0, None),
        (VERSION_TIMERS - 1, 7.5, ("DELAY", "3")),
        (VERSION_TIMERS - 1, 10, ("DELAY", "3")),
        (VERSION_TIMERS - 1, 10.001, ("DELAY", "4")),
        (VERSION_TIMERS - 1, 7_201, ("DELAY", "18")),
        (VERSION_TIMERS - 1, 0, None),
    ],
)
async def test_brokers_without_timers_get_the_next_delay_level(
    version: int, delay_s: float, expected: tuple[str, str] | None
) -> None:
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        consumer.instance.broker_versions = {cluster[0].address: version}
        await message.retry_later(delay_s=delay_s)
        done.set()

    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        fill(cluster[0], 1)
        consumer = push(cluster, handle)
        async with consumer:
            await done.wait()
            await until(lambda: consumer.positions[QUEUE] == 1)
        (properties,) = returned(cluster)
    delays = {name: properties[name] for name in ("DELAY", "TIMER_DELAY_MS") if name in properties}
    assert delays == ({} if expected is None else dict([expected]))
    assert properties["RECONSUME_TIME"] == "1"
    assert properties["RETRY_TOPIC"] == "T"


async def test_the_times_of_an_earlier_delay_are_not_sent_again() -> None:
    """A broker delivers a message with TIMER_OUT_MS at once, because its timer has ended."""
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await message.retry_later(delay_s=3)
        done.set()

    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        cluster[0].put("T", 0, b"0", b"TIMER_OUT_MS\x011\x02TIMER_DELAY_MS\x015\x02TIMER_OWN\x017\x02")
        async with push(cluster, handle):
            await done.wait()
        (properties,) = returned(cluster)
    assert {name: value for name, value in properties.items() if name.startswith("TIMER")} == {
        "TIMER_DELAY_MS": "3000",
        "TIMER_OWN": "7",
    }


async def test_a_returned_message_keeps_the_id_of_its_first_delivery() -> None:
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        ids.append(message.message_id)
        await message.retry_later(delay_s=0)
        if len(ids) == 2:
            done.set()

    ids: list[str] = []
    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        cluster[0].put("T", 0, b"0")
        cluster[0].put("T", 0, b"1", encode_properties({"ORIGIN_MESSAGE_ID": "first", "RETRY_TOPIC": "T"}))
        async with push(cluster, handle, worker_count=1):
            await done.wait()
        assert [one["ORIGIN_MESSAGE_ID"] for one in returned(cluster)] == [ids[0], "first"]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("x" * REASON_CHARS_MAX, "x" * 1_024),
        ("x" * REASON_CHARS_MAX + "y", "x" * 1_024),
        ("no\x01such\x02name\n", "no such name"),
        (" \n", "unknown"),
    ],
)
async def test_the_reason_of_a_dead_letter_is_bounded(reason: str, expected: str) -> None:
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await message.dead_letter(reason=reason)
        done.set()

    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        fill(cluster[0], 1)
        async with push(cluster, handle):
            await done.wait()
        (properties,) = returned(cluster)
    assert properties["dead_letter_reason"] == expected
