"""Tests of the queue of agents. They need TandemMQ and pytest; leases and retries end by travel in time."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from agents import LEASE_S, RETRY_S, Agent, consumer_of

from tandemmq.client import Message, Producer


@pytest.fixture
def answers(tandemmq_cluster, topic):
    name = f"{topic}-answers"
    tandemmq_cluster.create_topic(name)
    return name


@asynccontextmanager
async def agent(cluster, topic, answers, model):
    async with (
        Producer("test", cluster.name_servers) as producer,
        consumer_of(cluster.name_servers, topic, f"agents-{topic}") as consumer,
    ):
        working = asyncio.create_task(Agent(producer, consumer, model, answers).work())
        try:
            yield
        finally:
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working


async def until(is_met):
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(is_met):  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0.05)


def test_prompts_are_answered_by_several_agents(tandemmq_cluster, topic, producer, answers, published):
    async def shout(prompt):
        return prompt.upper()

    async def scenario():
        async with (
            agent(tandemmq_cluster, topic, answers, shout),
            agent(tandemmq_cluster, topic, answers, shout),
        ):
            await until(lambda: len(published(answers)) == 10)

    for number in range(10):
        producer.send(Message(topic, b"prompt %d" % number, keys=str(number)))
    asyncio.run(scenario())
    assert {one.keys[0]: one.body for one in published(answers)} == {
        str(number): b"PROMPT %d" % number for number in range(10)
    }


def test_the_task_of_an_agent_that_died_goes_to_another(
    tandemmq_cluster, topic, producer, answers, published
):
    has_begun = asyncio.Event()

    async def hang(prompt):
        has_begun.set()
        await asyncio.Event().wait()

    async def answer(prompt):
        return "42"

    async def scenario():
        async with agent(tandemmq_cluster, topic, answers, hang):
            await has_begun.wait()
        await asyncio.to_thread(tandemmq_cluster.travel, LEASE_S)
        async with agent(tandemmq_cluster, topic, answers, answer):
            await until(lambda: len(published(answers)) == 1)

    producer.send(Message(topic, b"why?", keys="7"))
    asyncio.run(scenario())


def test_a_prompt_that_the_model_refuses_becomes_a_dead_letter(
    tandemmq_cluster, topic, producer, answers, published
):
    tries = []

    async def refuse(prompt):
        tries.append(prompt)
        raise ValueError("not this one")

    async def scenario():
        async with agent(tandemmq_cluster, topic, answers, refuse):
            for count in (1, 2, 3):
                await until(lambda count=count: len(tries) == count)
                await asyncio.to_thread(tandemmq_cluster.travel, RETRY_S)
            await until(lambda: published(f"%DLQ%agents-{topic}"))

    producer.send(Message(topic, b"bad"))
    asyncio.run(scenario())
    assert published(answers) == []
