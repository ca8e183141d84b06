"""Brokers and a name server as a table: requests are answered at once, by code, without connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

from sim.manual_clock import ManualClock
from tandemmq.client.route_cache import NameServers
from tandemmq.errors import BrokerUnreachable, TandemError
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute, encode_topic_route
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import encode_host, encode_message_id
from tandemmq.protocol.requests.route import RouteRequest
from tandemmq.protocol.requests.send import RecallResponse, SendRequestV2, SendResponse
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.rpc import Caller
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import ConnectionOptions
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.cores import make_core

READ_WRITE = 6
LOG_OFFSET = 7_000
STORE_HOST = encode_host("10.0.0.1", 10911)
SendMessageRequest = message_class("SendMessageRequest")
CALLER = Caller(
    client_id="host@1@0@abc",
    language="JAVA",
    version="5.0.7",
    namespace="",
    peer=("192.0.2.7", 40000),
    deadline_s=inf,
)


@dataclass
class TopicRow:
    """One topic: its brokers with their numbers of queues, and its `message.type`."""

    queues: dict[str, int]
    kind: str = "NORMAL"
    permission: int = READ_WRITE
    order_conf: str | None = None


@dataclass
class BrokerTable:
    """A stand-in for a RemotingClient. `sends` and `oneway` are the requests, with their brokers' names."""

    topics: dict[str, TopicRow] = field(default_factory=dict)
    masters: dict[str, str] = field(default_factory=dict)
    """Broker name -> address; a broker without one has only a slave."""
    fail: Callable[[str, Command], TandemError | None] = lambda _name, _command: None
    code: int = 0
    remark: str | None = None
    recall_handle: str | None = None
    offset: int = 100
    sends: list[tuple[str, SendRequestV2, bytes]] = field(default_factory=list)
    oneway: list[tuple[str, Command]] = field(default_factory=list)
    recalls: list[tuple[str, Command]] = field(default_factory=list)
    route_queries: int = 0
    options: ConnectionOptions = field(default_factory=ConnectionOptions)

    def name_of(self, address: str) -> str:
        return next(name for name, one in self.masters.items() if one == address)

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        assert timeout_s > 0
        if address == "names:9876":
            return self._route(command)
        name = self.name_of(address)
        error = self.fail(name, command)
        if error is not None:
            raise error
        if command.code == RequestCode.GET_TOPIC_CONFIG:
            topic = command.fields["topic"]
            attributes = {"message.type": self.topics[topic].kind}
            return command.reply(body=encode_body(TopicConfig(name=topic, attributes=attributes)))
        if command.code == RequestCode.RECALL_MESSAGE:
            self.recalls.append((name, command))
            return command.reply(self.code, RecallResponse(message_id="RECALLED"), remark=self.remark)
        assert command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        header = command.decode(SendRequestV2)
        self.sends.append((name, header, bytes(command.body)))
        answer = SendResponse(
            message_id=encode_message_id(STORE_HOST, LOG_OFFSET),
            queue_id=header.queue_id,
            queue_offset=self.offset,
            recall_handle=self.recall_handle,
        )
        return command.reply(self.code, answer, remark=self.remark)

    async def send_oneway(self, address: str, command: Command) -> None:
        name = self.name_of(address)
        error = self.fail(name, command)
        if error is not None:
            raise error
        self.oneway.append((name, command))

    def _route(self, command: Command) -> Command:
        self.route_queries += 1
        row = self.topics.get(command.decode(RouteRequest).topic)
        if row is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        brokers = [
            BrokerData(
                broker_name=name,
                cluster="C",
                addresses={0: self.masters[name]} if name in self.masters else {1: f"{name}-slave:1"},
            )
            for name in row.queues
        ]
        queues = [
            QueueData(
                broker_name=name,
                permission=row.permission,
                read_queue_count=count,
                write_queue_count=count,
            )
            for name, count in row.queues.items()
        ]
        route = TopicRoute(brokers=tuple(brokers), queues=tuple(queues), order_topic_conf=row.order_conf)
        return command.reply(body=encode_topic_route(route))


class EagerClock(ManualClock):
    """A clock whose sleepers are woken at once, at their time."""

    async def sleep(self, delay_s: float) -> None:
        await self.pass_time(delay_s)


@dataclass
class SendRig:
    """The table, and the real `Brokers` in front of it."""

    table: BrokerTable
    clock: EagerClock
    chance: SeededRandom
    brokers: Brokers

    def core(self, **parts: Any) -> ProxyCore:
        """Returns the core of a proxy in front of the table."""
        return make_core(**{"brokers": self.brokers, "clock": self.clock, "chance": self.chance, **parts})


@asynccontextmanager
async def send_rig(**topics: TopicRow) -> AsyncIterator[SendRig]:
    """Builds a cluster of the brokers that the topics name."""
    names = sorted({name for row in topics.values() for name in row.queues})
    table = BrokerTable(topics, {name: f"{name}:10911" for name in names})
    client = cast(RemotingClient, table)
    clock, chance, tasks = EagerClock(), SeededRandom(1), TaskScope("proxy")
    try:
        name_servers = NameServers(client, ["names:9876"])
        yield SendRig(
            table, clock, chance, Brokers(client, name_servers, clock=clock, chance=chance, tasks=tasks)
        )
    finally:
        await tasks.close()


def unreachable(*names: str) -> Callable[[str, Command], TandemError | None]:
    """Makes the sends to these brokers fail as if no connection could be opened."""
    codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.END_TRANSACTION)
    return lambda name, command: (
        BrokerUnreachable(f"cannot connect to {name}") if name in names and command.code in codes else None
    )


def message(
    topic: str = "T", body: bytes = b"hello", message_id: str = "01AB", **system: Any
) -> dict[str, Any]:
    """Returns the fields of a Message; `user` are its user properties, the others system properties."""
    user = system.pop("user", {})
    kind = system.pop("kind", "NORMAL")
    return {
        "topic": {"name": topic},
        "body": body,
        "user_properties": user,
        "system_properties": {
            "message_id": message_id,
            "message_type": enum_number("MessageType", kind),
            **system,
        },
    }


def request(*messages: dict[str, Any]) -> Any:
    """Returns a SendMessageRequest."""
    return SendMessageRequest(messages=list(messages))
