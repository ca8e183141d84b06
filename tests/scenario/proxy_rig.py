"""The handlers of one proxy for consumers, in front of a real cluster, without the transport of gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tandemmq.client.route_cache import NameServers
from tandemmq.proxy.acknowledging import ReceiptHandlers
from tandemmq.proxy.answer_budget import AnswerBudget
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.clients import Clients
from tandemmq.proxy.lease_calls import LeaseCalls
from tandemmq.proxy.meters import Traffic
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.receiving import ReceiveHandlers
from tandemmq.proxy.renewal import Renewal, RenewalOptions
from tandemmq.proxy.rpc import Caller
from tandemmq.proxy.schema import message_class
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.cores import make_core

AckMessageRequest = message_class("AckMessageRequest")
ChangeInvisibleDurationRequest = message_class("ChangeInvisibleDurationRequest")
ReceiveMessageRequest = message_class("ReceiveMessageRequest")


class Everybody(Clients):
    """A table of clients in which all live."""

    def is_alive(self, client_id: str) -> bool:
        return True


class ConsumerProxy:
    """The handlers, and short forms of the rpcs for tests."""

    def __init__(self, name_servers: str, group: str, renewal: RenewalOptions, poll_ms: int) -> None:
        clock, chance = LoopClock(), SeededRandom(1)
        self.clock, self.group = clock, group
        self.tasks = TaskScope("proxy")
        self.answers = AnswerBudget(clock, Traffic())
        self.remoting = RemotingClient(network=TcpNetwork(), clock=clock)
        names = NameServers(self.remoting, [name_servers])
        self.brokers = Brokers(self.remoting, names, clock=clock, chance=chance, tasks=self.tasks)
        self.calls = LeaseCalls(self.brokers, clock)
        clients = Everybody(clock=clock, chance=chance)
        core = make_core(
            options=ProxyOptions(poll_ms_min=poll_ms, invisible_ms_min=100),
            clock=clock,
            chance=chance,
            tasks=self.tasks,
            clients=clients,
            brokers=self.brokers,
            answers=self.answers,
        )
        self.renewal = Renewal(core, self.calls, renewal)
        self.receiving = ReceiveHandlers(core, self.calls, self.renewal)
        self.receipts = ReceiptHandlers(core, self.calls, self.renewal)
        self.tasks.start("renewal", self.renewal.run())

    async def close(self) -> None:
        """Ends everything at once, as a kill does: nothing is handed back."""
        await self.tasks.close()
        await self.remoting.close()

    def caller(self, remaining_s: float = 60.0, client_id: str = "c1") -> Caller:
        deadline_s = self.clock.monotonic() + remaining_s
        return Caller(client_id, "JAVA", "5.0", "", ("127.0.0.1", 5), deadline_s)

    def ask_receive(self, topic: str, answers: list[Any], **changes: Any) -> asyncio.Task[None]:
        """Begins a receive, whose messages are added to `answers`."""
        values = {
            "group": {"name": self.group},
            "message_queue": {"topic": {"name": topic}},
            "batch_size": 32,
            "invisible_duration": {"seconds": 60},
            "long_polling_timeout": {"seconds": 20},
            **changes,
        }

        async def send(elements: Iterable[Any]) -> None:
            answers.extend(one.message for one in elements if one.WhichOneof("content") == "message")

        request = ReceiveMessageRequest(**values)
        return asyncio.create_task(self.receiving.handle_receive(self.caller(), request, send))

    async def receive(self, topic: str, **changes: Any) -> list[Any]:
        """Returns the messages of one receive."""
        answers: list[Any] = []
        await self.ask_receive(topic, answers, **changes)
        return answers

    async def receive_all(self, topic: str, count: int, **changes: Any) -> list[Any]:
        """Returns exactly `count` messages."""
        found: list[Any] = []
        while len(found) < count:
            found += await self.receive(topic, **changes)
        assert len(found) == count
        return found

    async def ack(self, topic: str, *messages: Any) -> list[int]:
        """Returns the codes of the entries."""
        entries = [{"receipt_handle": handle_of(message)} for message in messages]
        request = AckMessageRequest(group={"name": self.group}, topic={"name": topic}, entries=entries)
        answer = await self.receipts.handle_ack(self.caller(), request)
        return [entry.status.code for entry in answer.entries]

    async def change(self, topic: str, message: Any, invisible_ms: int) -> int:
        """Returns the code of the answer."""
        request = ChangeInvisibleDurationRequest(
            group={"name": self.group},
            topic={"name": topic},
            receipt_handle=handle_of(message),
            invisible_duration={"nanos": invisible_ms * 1_000_000},
        )
        return int((await self.receipts.handle_change(self.caller(), request)).status.code)


def handle_of(message: Any) -> str:
    return str(message.system_properties.receipt_handle)


@asynccontextmanager
async def consumer_proxy(
    name_servers: str, group: str = "G", *, renewal: RenewalOptions | None = None, poll_ms: int = 200
) -> AsyncIterator[ConsumerProxy]:
    proxy = ConsumerProxy(name_servers, group, renewal or RenewalOptions(), poll_ms)
    try:
        yield proxy
    finally:
        await proxy.close()
    assert proxy.tasks.failure is None
