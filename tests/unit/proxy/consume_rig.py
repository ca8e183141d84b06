"""One broker in memory with leases, and the handlers of consumers in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sim.manual_clock import ManualClock
from tandemmq.errors import BrokerUnreachable, TopicNotFound
from tandemmq.protocol.bodies.client import encode_consumer_list
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.pop_receipts import Handle, parse_handle, render_handle
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, encode_record, tag_hash_of
from tandemmq.protocol.requests import consume as headers
from tandemmq.protocol.requests.send import SendBackRequest
from tandemmq.proxy.acknowledging import ReceiptHandlers
from tandemmq.proxy.answer_budget import BYTES_MAX, AnswerBudget
from tandemmq.proxy.brokers import Brokers, TopicAccess
from tandemmq.proxy.lease_calls import LeaseCalls
from tandemmq.proxy.meters import Traffic
from tandemmq.proxy.receiving import ReceiveHandlers
from tandemmq.proxy.renewal import Renewal, RenewalOptions
from tandemmq.proxy.rpc import Caller
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.cores import make_core

TOPIC, GROUP, BROKER = "T", "G", "broker-a"


def route(*broker_names: str) -> TopicRoute:
    return TopicRoute(
        brokers=tuple(
            BrokerData(broker_name=name, cluster="c", addresses={0: f"{name}:1"}) for name in broker_names
        ),
        queues=tuple(
            QueueData(broker_name=name, permission=6, read_queue_count=1, write_queue_count=1)
            for name in broker_names
        ),
    )


@dataclass
class Held:
    """A message of the broker. `pop_time_ms` is 0 while no client holds it."""

    body: bytes
    tags: str = ""
    retry_count: int = 0
    pop_time_ms: int = 0
    start_offset: int = 0
    visible_at_ms: int = 0
    is_suspended: bool = False
    is_done: bool = False


class PopBroker:
    """A broker with one queue. `is_tandem`: it renews leases in place, and reports unknown handles."""

    def __init__(self, clock: ManualClock, *, is_tandem: bool = True) -> None:
        self.clock = clock
        self.is_tandem = is_tandem
        self.messages: list[Held] = []
        self.dead: list[SendBackRequest] = []
        self.asked: list[Command] = []
        self.members: tuple[str, ...] = ()
        self.is_down = False
        self.failures: dict[int, tuple[int, str]] = {}  # code of the request -> code and remark of the answer
        self.gate: asyncio.Event | None = None  # requests wait for it before they are executed
        self.options = SimpleNamespace(call_timeout_s=3.0)

    def asked_of(self, code: RequestCode) -> list[Any]:
        return [command.header for command in self.asked if command.code == code]

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        self.asked.append(command)
        if self.is_down:
            raise BrokerUnreachable(f"{address} is down")
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if command.code in self.failures:
            code, remark = self.failures[command.code]
            return command.reply(code, remark=remark)
        serve: dict[int, Callable[[Command, Any], Command]] = {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.POLLING_INFO: lambda command, _header: command.reply(0),
        }
        return serve[command.code](command, command.header)

    def _pop(self, command: Command, header: headers.PopRequest) -> Command:
        now_ms = self.clock.now_ms()
        found = [
            (offset, message)
            for offset, message in enumerate(self.messages)
            if not message.is_done and message.visible_at_ms <= now_ms
        ][: header.count_max]
        if not found:
            return command.reply(ResponseCode.POLLING_TIMEOUT, headers.PopResponse())
        start = found[0][0]
        records = []
        for offset, message in found:
            message.retry_count += message.pop_time_ms > 0 and not message.is_suspended
            message.pop_time_ms, message.start_offset = now_ms, start
            message.visible_at_ms, message.is_suspended = now_ms + header.invisible_ms, False
            records.append(self._record(offset, message))
        offsets = ",".join(str(offset) for offset, _ in found)
        response = headers.PopResponse(
            pop_time_ms=now_ms,
            invisible_ms=header.invisible_ms,
            start_offset_info=f"0 0 {start}",
            message_offset_info=f"0 0 {offsets}",
            is_renewable=header.is_renewable if self.is_tandem else None,
        )
        return command.reply(ResponseCode.SUCCESS, response, body=b"".join(records))

    def _record(self, offset: int, message: Held) -> bytes:
        properties = encode_properties(
            {"UNIQ_KEY": f"key-{offset}", "TAGS": message.tags}
            if message.tags
            else {"UNIQ_KEY": f"key-{offset}"}
        )
        new = NewRecord(
            topic=TOPIC,
            queue_id=0,
            body=message.body,
            properties=properties,
            born_at_ms=self.clock.now_ms(),
            born_host=bytes(8),
            retry_count=message.retry_count,
            tag_hash=tag_hash_of(properties),
        )
        return bytes(
            encode_record(
                new, queue_offset=offset, log_offset=1_000 + offset, stored_at_ms=1, store_host=bytes(8)
            )
        )

    def _held(self, header: headers.AckRequest) -> Held | None:
        handle = parse_handle(header.extra_info)
        if not 0 <= header.offset < len(self.messages):
            return None
        message = self.messages[header.offset]
        names_it = (handle.start_offset, handle.pop_time_ms) == (message.start_offset, message.pop_time_ms)
        is_held = not message.is_done and message.visible_at_ms > self.clock.now_ms()
        return message if names_it and is_held else None

    def _ack(self, command: Command, header: headers.AckRequest) -> Command:
        message = self._held(header)
        if message is not None:
            message.is_done = True
        elif self.is_tandem and header.is_strict:
            return command.reply(ResponseCode.NO_MESSAGE, remark="not held")
        return command.reply()

    def _change(self, command: Command, header: headers.ChangeInvisibleRequest) -> Command:
        now_ms, message = self.clock.now_ms(), self._held(header)
        if header.is_renewal and self.is_tandem:
            handle = parse_handle(header.extra_info)
            same = [
                one
                for one in self.messages
                if (one.start_offset, one.pop_time_ms) == (handle.start_offset, handle.pop_time_ms)
                and not one.is_done
                and one.visible_at_ms > now_ms
            ]
            if not same:
                return command.reply(ResponseCode.NO_MESSAGE, remark="not held")
            for one in same:
                one.visible_at_ms = now_ms + header.invisible_ms
            return command.reply(0, headers.ChangeInvisibleResponse(pop_time_ms=handle.pop_time_ms))
        if message is None:
            return command.reply(ResponseCode.NO_MESSAGE, remark="not held")
        message.start_offset, message.pop_time_ms = header.offset, now_ms + 1
        message.visible_at_ms, message.is_suspended = now_ms + header.invisible_ms, header.is_suspended
        response = headers.ChangeInvisibleResponse(
            pop_time_ms=message.pop_time_ms, invisible_ms=header.invisible_ms
        )
        return command.reply(0, response)

    def _send_back(self, command: Command, header: SendBackRequest) -> Command:
        self.dead.append(header)
        return command.reply()

    def _view(self, command: Command, header: headers.ViewMessageRequest) -> Command:
        offset = header.log_offset - 1_000
        if not 0 <= offset < len(self.messages):
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="no message there")
        return command.reply(body=self._record(offset, self.messages[offset]))

    def _members(self, command: Command, header: Any) -> Command:
        return command.reply(0, body=encode_consumer_list(self.members))

    def visible_in_ms(self) -> list[int | None]:
        """Returns, by message, the time until it is visible; None for one that is done."""
        now_ms = self.clock.now_ms()
        return [None if one.is_done else max(0, one.visible_at_ms - now_ms) for one in self.messages]


class OneBroker:
    """`Brokers` with one broker that has every topic but `Gone`."""

    def __init__(self, remoting: PopBroker, clock: ManualClock) -> None:
        self.remoting = remoting
        self.clock = clock
        self.group_config = SubscriptionGroupConfig(name=GROUP)
        self.names: tuple[str, ...] = (BROKER,)
        self.refreshed: list[str] = []
        self.topics = SimpleNamespace(refresh=self._refresh)

    async def topic(self, name: str) -> TopicAccess:
        await asyncio.sleep(0)
        if name == "Gone":
            raise TopicNotFound(f"no route of topic {name}")
        return TopicAccess(name, route(*self.names))

    async def _refresh(self, name: str) -> TopicAccess:
        self.refreshed.append(name)
        return await self.topic(name)

    async def group(self, name: str) -> SubscriptionGroupConfig:
        await asyncio.sleep(0)
        return self.group_config

    async def call_master(
        self,
        topic: str,
        broker_name: str,
        ask: Callable[[str, float], Awaitable[Any]],
        *,
        timeout_s: float = 3,
    ) -> Any:
        address = (await self.topic(topic)).view.master_address(broker_name)
        if address is None:
            raise BrokerUnreachable(f"broker {broker_name!r} has no master")
        return await ask(address, timeout_s)

    has_broker = Brokers.has_broker
    ask_master = Brokers.ask_master


class Clients:
    """The table of clients, with a set of ids."""

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.on_gone: list[Callable[[str], None]] = []

    def is_alive(self, client_id: str) -> bool:
        return client_id in self.alive

    def lose(self, client_id: str) -> None:
        self.alive.discard(client_id)
        for callback in self.on_gone:
            callback(client_id)


@dataclass
class Proxy:
    """The handlers of one proxy in front of the broker."""

    broker: PopBroker
    renewal_options: RenewalOptions = field(default_factory=RenewalOptions)
    held_receives_max: int = 20_000
    answer_bytes_max: int = BYTES_MAX
    clock: Any = None
    """The proxy's own clock; by default the broker's."""

    def __post_init__(self) -> None:
        self.clock = clock = self.clock or self.broker.clock
        self.brokers = OneBroker(self.broker, clock)
        self.clients = Clients("c1")
        self.tasks = TaskScope("proxy")
        self.answers = AnswerBudget(clock, Traffic(), bytes_max=self.answer_bytes_max)
        core = make_core(
            brokers=self.brokers,
            clients=self.clients,
            clock=clock,
            chance=SimpleNamespace(below=lambda end: 0),
            tasks=self.tasks,
            answers=self.answers,
        )
        self.calls = LeaseCalls(core.brokers, clock)
        self.renewal = Renewal(core, self.calls, self.renewal_options)
        self.receiving = ReceiveHandlers(core, self.calls, self.renewal, self.held_receives_max)
        self.receipts = ReceiptHandlers(core, self.calls, self.renewal)

    def caller(self, remaining_s: float = 23.0, client_id: str = "c1") -> Caller:
        deadline_s = self.clock.monotonic() + remaining_s
        return Caller(client_id, "JAVA", "5.0", "", ("127.0.0.1", 5), deadline_s)


def handle_of(offset: int = 0, *, pop_time_ms: int, broker: str = BROKER, invisible_ms: int = 60_000) -> str:
    return (
        render_handle(Handle(0, pop_time_ms, invisible_ms, 0, "0", broker, 0, offset)) + f" {1_000 + offset}"
    )
