"""The table of clients: its index of producers, and the server's side of telemetry streams."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.dice import Dice
from sim.manual_clock import ManualClock
from tandemmq.proxy.clients import Clients, CommandStream, version_numbers
from tandemmq.proxy.rpc import GrpcFailure, GrpcStatus
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.settings import TOPICS_MAX, ClientRole, Profile
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.calls import FakeCall, caller
from waits import until

Settings = message_class("Settings")
NAMES = st.sampled_from(["a", "b", "c"])
TOPICS = st.lists(st.sampled_from(["T", "U", "V"]), unique=True, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("producer"), NAMES, TOPICS),
    st.tuples(st.just("consumer"), NAMES, TOPICS),
    st.tuples(st.just("transaction"), NAMES, TOPICS),
    st.tuples(st.just("remove"), NAMES, TOPICS),
    st.tuples(st.just("silence"), NAMES, TOPICS),
)


class BrokenCall(FakeCall):
    async def send(self, *messages: bytes) -> None:
        raise GrpcFailure(GrpcStatus.CANCELLED, "the connection is lost")


def make_clients() -> tuple[ManualClock, Clients]:
    clock = ManualClock()
    return clock, Clients(clock=clock, chance=Dice(1))


def stream() -> CommandStream:
    return CommandStream(FakeCall())


@given(st.lists(STEPS, max_size=30))
def test_the_index_of_producers_is_that_of_the_clients(steps: list[tuple[str, str, list[str]]]) -> None:
    clock, clients = make_clients()
    gone: list[str] = []
    clients.on_gone.append(gone.append)
    known: set[str] = set()
    for step, name, topics in steps:
        match step:
            case "producer":
                clients.register(
                    caller(name), Profile(ClientRole.PRODUCER, topics=tuple(topics)), Settings(), stream()
                )
                known.add(name)
            case "consumer":
                clients.register(
                    caller(name), Profile(ClientRole.PUSH_CONSUMER, group="G"), Settings(), stream()
                )
                known.add(name)
            case "transaction":
                for topic in topics:
                    clients.note_transaction(topic, name)
                    known.add(name)
            case "remove":
                clients.remove(name)
                known.discard(name)
            case _:
                clock.advance(120)
                clients.expire()
                known.clear()
        assert {client.client_id for client in clients} == known
        assert clients.produced_topics == sorted(
            {one for client in clients for one in client.produced_topics}
        )
        assert all(not clients.is_alive(one) or one in known for one in gone)


def test_a_client_notes_a_bounded_number_of_topics() -> None:
    _, clients = make_clients()
    for number in range(TOPICS_MAX + 5):
        clients.note_transaction(f"T{number}", "p")
    assert len(clients.produced_topics) == TOPICS_MAX


def test_versions_are_numbers_or_nothing() -> None:
    assert version_numbers("5.1.0-SNAPSHOT") == (5, 1, 0)
    for text in ("", "v5", "5.x", "5.1." + "9" * 50, "５.1.0"):
        assert version_numbers(text) == ()


async def test_a_stream_whose_client_is_lost_ends() -> None:
    made = CommandStream(BrokenCall())
    tasks = TaskScope("proxy")
    assert made.put(settings={})
    has_left = asyncio.Event()

    async def read() -> None:
        async with made.reading():
            await asyncio.Event().wait()
        has_left.set()

    tasks.start("read", read())
    tasks.start("write", made.write())
    await until(has_left.is_set)
    assert made.is_ended
    assert not made.put(settings={})
    await tasks.close()
    assert tasks.failure is None


async def test_a_stream_is_closed_after_its_commands() -> None:
    """A proxy that stops sends the waiting commands and ends the call with success."""
    call = FakeCall(ends=False)
    made = CommandStream(call)
    assert made.put(settings={})
    made.close_when_sent()
    assert not made.put(settings={})
    tasks = TaskScope("proxy")
    async with made.reading():
        tasks.start("write", made.write())
        await asyncio.Event().wait()
    assert len(call.sent) == 1
    await tasks.close()


async def test_a_timeout_of_the_reader_is_not_hidden() -> None:
    made = stream()
    with pytest.raises(TimeoutError):
        async with made.reading():
            raise TimeoutError
    made.end()
    async with made.reading():
        raise TimeoutError
