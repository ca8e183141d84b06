"""A queue of tasks for AI agents: each worker takes one task, keeps its lease while the model thinks, and
publishes the answer.

A task whose worker died goes to another one as soon as the lease ends. A task that the model fails is tried
again later, and goes to the dead letters after `TRIES`. Run it with `python agents.py 127.0.0.1:9876`.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tandemmq.client import Message, PopConsumer, PopOptions, Producer, StartFrom

TASKS, ANSWERS, GROUP = "AgentTasks", "AgentAnswers", "agents"
LEASE_S = 30.0
RETRY_S = 10.0
TRIES = 3

Model = Callable[[str], Awaitable[str]]
"""The model: a prompt, and the answer."""


class Agent:
    """One worker."""

    def __init__(
        self, producer: Producer, consumer: PopConsumer, model: Model, answers: str = ANSWERS
    ) -> None:
        self._producer, self._consumer, self._model, self._answers = producer, consumer, model, answers

    async def work(self) -> None:
        """Does task after task."""
        while True:
            for task in await self._consumer.receive(1, invisible_s=LEASE_S):
                await self.do(task)

    async def do(self, task) -> None:
        """Does one task."""
        renewal = asyncio.create_task(self._renew(task))
        try:
            answer = await self._model(task.body.decode())
        except Exception as error:  # noqa: BLE001  # any error of the model
            if task.retry_count + 1 >= TRIES:
                await task.dead_letter(reason=str(error))
            else:
                await self._consumer.nack(task, delay_s=RETRY_S)
        else:
            # A worker that dies here answers again: readers know answers by their key.
            await self._producer.send(Message(self._answers, answer.encode(), keys=task.keys))
            await self._consumer.ack(task)
        finally:
            renewal.cancel()
            with suppress(asyncio.CancelledError):
                await renewal

    async def _renew(self, task) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            await self._consumer.change_invisible(task, LEASE_S)


def consumer_of(name_servers: str, topic: str = TASKS, group: str = GROUP) -> PopConsumer:
    consumer = PopConsumer(group, name_servers, options=PopOptions(start_from=StartFrom.FIRST))
    consumer.subscribe(topic)
    return consumer


async def think(prompt: str) -> str:
    """Stands for a call of a model."""
    await asyncio.sleep(1)
    return f"I have thought about: {prompt}"


async def main(name_servers: str, workers: int = 4) -> None:
    async with Producer(GROUP, name_servers) as producer, consumer_of(name_servers) as consumer:
        await asyncio.gather(*(Agent(producer, consumer, think).work() for _ in range(workers)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
