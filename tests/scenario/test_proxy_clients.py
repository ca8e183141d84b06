"""Clients of a gRPC proxy as a real broker sees them: members, tools' queries, checks of transactions.

The telemetry streams of the clients are calls in memory; the connections to brokers are real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client_rig import Rig, running_rig

from tandemmq.api import broker_admin, broker_consume, broker_send
from tandemmq.client import Admin
from tandemmq.client.route_cache import NameServers
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import EndTransactionRequest, SendRequestV2
from tandemmq.proxy.broker_requests import RelayedRequests
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.callers import Callers
from tandemmq.proxy.clients import Clients, TelemetryCommand
from tandemmq.proxy.registration import BrokerRegistration
from tandemmq.proxy.routing import RoutingHandlers
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.sessions import SessionHandlers
from tandemmq.proxy.transaction_ids import parse_transaction_id
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.calls import FakeCall, caller
from unit.proxy.cores import make_core
from waits import until

QueryAssignmentRequest = message_class("QueryAssignmentRequest")
QueryRouteRequest = message_class("QueryRouteRequest")

CHECKED_FAST = {"transaction_timeout_ms": 50, "transaction_check_period_ms": 100}
PUBLISHING: dict[str, Any] = {"client_type": 1, "publishing": {"topics": [{"name": "Pay"}]}}


def subscription(group: str = "CG", topic: str = "T") -> dict[str, Any]:
    entry = {"topic": {"name": topic}, "expression": {"type": 1, "expression": "a||b"}}
    return {"client_type": 2, "subscription": {"group": {"name": group}, "subscriptions": [entry]}}


class Proxy:
    """The parts of a proxy that know clients, with connections to the brokers of a rig."""

    def __init__(self, namesrv: str) -> None:
        self.clock = LoopClock()
        self.tasks = TaskScope("proxy")
        chance = SeededRandom(3)
        self.clients = Clients(clock=self.clock, chance=chance)
        self.requests = RelayedRequests(self.clients, self.clock)
        self.remoting = self.open()
        names = NameServers(self.remoting, [namesrv])
        self.brokers = Brokers(self.remoting, names, clock=self.clock, chance=chance, tasks=self.tasks)
        core = make_core(
            clock=self.clock, chance=chance, tasks=self.tasks, clients=self.clients, brokers=self.brokers
        )
        self.registration = BrokerRegistration(core, client_id="proxy-1", open_connections=self.open)
        self.sessions = SessionHandlers(core)

    def open(self) -> RemotingClient:
        return RemotingClient(network=TcpNetwork(), clock=self.clock, routes=self.requests.routes())

    async def connect(self, client_id: str, settings: dict[str, Any], **headers: str) -> FakeCall:
        metadata = {"x-mq-client-id": client_id, **{f"x-mq-{name}": text for name, text in headers.items()}}
        call = FakeCall(metadata=metadata, ends=False)
        self.tasks.start("stream", self.sessions.serve_telemetry(call, Callers().admit))
        call.add(TelemetryCommand(settings=settings).SerializeToString())
        await next_command(call)
        return call

    async def close(self) -> None:
        await self.registration.close()
        await self.tasks.close()
        await self.remoting.close()


async def next_command(call: FakeCall) -> Any:
    await until(lambda: call.sent)
    return TelemetryCommand.FromString(call.sent.pop(0))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker(**CHECKED_FAST)
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=2)
            await admin.create_topic("Pay", queue_count=1)
        yield rig


@asynccontextmanager
async def running_proxy(rig: Rig) -> AsyncIterator[Proxy]:
    proxy = Proxy(rig.namesrv)
    try:
        yield proxy
    finally:
        await proxy.close()
    assert proxy.tasks.failure is None


async def test_tools_see_every_member_of_a_group(rig: Rig) -> None:
    async with running_proxy(rig) as proxy:
        await proxy.connect("c1", subscription(), language="RUST")
        await proxy.connect("c2", subscription(), language="GO")
        await proxy.connect("p1", PUBLISHING)
        await proxy.registration.beat()
        (address,) = (await proxy.brokers.masters()).values()

        async def members() -> dict[str, str]:
            found = await broker_admin.query_consumer_connections(proxy.remoting, address, "CG")
            return {one.client_id: one.language for one in found.connections} if found else {}

        assert await members() == {"c1": "RUST", "c2": "GO"}
        producers = await broker_admin.query_producer_connections(proxy.remoting, address, "Pay")
        assert [one.client_id for one in producers] == ["proxy-1"]
        proxy.clients.remove("c1")
        await proxy.registration.beat()
        assert await members() == {"c2": "GO"}
        await proxy.registration.close()
        await until(members_gone(members))


def members_gone(members: Any) -> Any:
    async def is_empty() -> bool:
        return await members() == {}

    return is_empty


async def test_tools_reach_each_member(rig: Rig) -> None:
    async with running_proxy(rig) as proxy:
        calls = {name: await proxy.connect(name, subscription()) for name in ("c1", "c2")}
        await proxy.registration.beat()
        (address,) = (await proxy.brokers.masters()).values()
        for name, call in calls.items():
            asking = proxy.tasks.start(
                "ask", broker_admin.query_running_info(proxy.remoting, address, "CG", name, has_stack=True)
            )
            nonce = (await next_command(call)).print_thread_stack_trace_command.nonce
            call.add(
                TelemetryCommand(
                    thread_stack_trace={"nonce": nonce, "thread_stack_trace": f"stack of {name}"}
                ).SerializeToString()
            )
            assert (await asking).stack == f"stack of {name}"


async def test_a_check_reaches_the_producer_and_its_id_ends_the_transaction(rig: Rig) -> None:
    async with running_proxy(rig) as proxy:
        call = await proxy.connect("p1", PUBLISHING)
        await proxy.registration.beat()
        ((name, address),) = (await proxy.brokers.masters()).items()
        properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "Pay", "UNIQ_KEY": "u1"})
        header = SendRequestV2(
            producer_group="Pay",
            topic="Pay",
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=0,
            sys_flag=4,
            born_at_ms=proxy.clock.now_ms(),
            flag=0,
            properties=properties.decode(),
        )
        await broker_send.send(proxy.remoting, address, header, b"100")
        command = (await next_command(call)).recover_orphaned_transaction_command
        assert (command.message.topic.name, command.message.body) == ("Pay", b"100")
        transaction = parse_transaction_id(command.transaction_id)
        assert (transaction.broker_name, transaction.unique_key) == (name, "u1")
        end = EndTransactionRequest(
            topic="Pay",
            producer_group="Pay",
            half_queue_offset=transaction.half_offset,
            log_offset=transaction.log_offset,
            decision=8,
            is_from_check=True,
            unique_key="u1",
            transaction_id="u1",
        )
        await broker_send.end_transaction(proxy.remoting, address, end)

        async def is_committed() -> bool:
            return await broker_consume.query_max_offset(proxy.remoting, address, topic="Pay", queue_id=0) > 0

        await until(is_committed)


async def test_routes_are_those_of_the_brokers(rig: Rig) -> None:
    async with running_proxy(rig) as proxy:
        routes = RoutingHandlers(proxy.brokers, lambda: ("proxy", 8081))
        answer = await routes.handle_query_route(caller(), QueryRouteRequest(topic={"name": "T"}))
        assert [(one.broker.name, one.broker.id, one.id) for one in answer.message_queues] == [
            ("broker-a", 0, 0),
            ("broker-a", 0, 1),
        ]
        answer = await routes.handle_query_assignment(
            caller(), QueryAssignmentRequest(topic={"name": "T"}, group={"name": "CG"})
        )
        assert [(one.message_queue.broker.name, one.message_queue.id) for one in answer.assignments] == [
            ("broker-a", -1)
        ]
