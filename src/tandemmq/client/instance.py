"""One client as brokers see it: an id, connections, fresh routes, heartbeats (spec semantics 2).

Producers and consumers are members of an instance; by default each has its own. `ClientInstance` owns all
background tasks: when one dies by a fault of ours, the instance is failed and every later call says why. What
brokers ask goes to the member that it is about; for producers `ProducerQuestions` answers.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar, cast

from tandemmq.api import broker_consume
from tandemmq.client.namespace import Namespace, find_namespace, request_mark
from tandemmq.client.options import ClientOptions, ServerNames, parse_name_servers
from tandemmq.client.route_cache import NameServers, RouteCache
from tandemmq.errors import (
    BrokerUnreachable,
    Busy,
    ClientError,
    NoRoute,
    NotServed,
    RemoteProtocolError,
    ServiceNotAvailable,
    TandemError,
)
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies.client import ConsumerData, Heartbeat, ProducerData
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.message_id import UniqueKeys
from tandemmq.protocol.properties import append_property, find_property
from tandemmq.protocol.record import Record, decode_record
from tandemmq.protocol.requests.send import CheckTransactionRequest, PushReplyRequest
from tandemmq.protocol.topic_names import INNER_PRODUCER_GROUP
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Waiting
from tandemmq.remoting.tls import make_client_tls
from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork
from tandemmq.runtime.ports import Clock, Network, Random
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import Outages, event_logger
from tandemmq.units import MASTER_ID

log = event_logger(__name__)

BROKER_REQUESTS = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
"""What brokers ask of clients and we serve (spec semantics 15)."""

PRODUCER_REQUESTS = (RequestCode.CHECK_TRANSACTION_STATE, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
"""What they ask of producers."""


OUTAGES = (BrokerUnreachable, NoRoute, NotServed, ServiceNotAvailable)
"""The group has no master that serves the request now; it may have one in a moment."""
OUTAGE_PAUSE_MS = (50, 200)
"""Before looking again for a master that serves it, from..to: not all clients come at once."""
SILENT_S = 1.0
"""A request without an answer for so long makes the routes be asked: the broker's machine may be gone."""
UNDECODED_LINE_S = 10.0
"""Between two log lines about bodies that could not be decoded: a topic may be full of them."""


T = TypeVar("T")
AskMaster = Callable[[str, float], Awaitable[T]]
"""A call to the broker at an address, which may take so many seconds."""


class GroupMember(Protocol):
    """A consumer, as its instance needs it."""

    @property
    def group(self) -> str: ...

    def describe(self) -> ConsumerData: ...

    def handle_broker_request(self, command: Command) -> Command | Waiting | None: ...


class Client(ABC):
    """What applications make: `async with` starts and closes it."""

    @abstractmethod
    async def start(self) -> Self:
        """Reach a name server and begin."""

    @abstractmethod
    async def close(self) -> None:
        """End everything that was started. Also when it is cancelled: then it waits for less."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class ClientInstance:
    """Start it before use; `close` ends all it started."""

    def __init__(
        self,
        namesrv: ServerNames,
        options: ClientOptions,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        chance: Random | None = None,
    ) -> None:
        self.options = options
        self.clock: Clock = clock or LoopClock()
        self.chance: Random = chance or SystemRandom()
        self.tasks = TaskScope("client", self._on_failure)
        addresses = parse_name_servers(namesrv)
        self.namespace = find_namespace(options, addresses[0])
        self.questions = ProducerQuestions(self.clock, self.namespace)
        routes = {int(code): self._on_broker_request for code in BROKER_REQUESTS}
        routes |= {int(code): self.questions.handle for code in PRODUCER_REQUESTS}
        self.remoting = RemotingClient(
            network=network or TcpNetwork(),
            clock=self.clock,
            routes=routes,
            signer=request_mark(options),
            tls=make_client_tls(options.tls),
        )
        first = self.chance.below(len(addresses))
        self.name_servers = NameServers(self.remoting, addresses, first=first)
        self.routes = RouteCache(
            self.name_servers,
            clock=self.clock,
            tasks=self.tasks,
            refresh_s=options.route_refresh_s,
            timeout_s=options.call_timeout_s,
        )
        self.outages = Outages()
        self.client_id = ""
        self._is_begun = False
        self.failure: BaseException | None = None
        self.on_failure: list[Callable[[BaseException], None]] = []
        """Called once, when a background task of this instance has died."""
        self._producer_groups: dict[str, None] = {INNER_PRODUCER_GROUP: None}
        self._consumers: dict[str, GroupMember] = {}
        self._heartbeat_wanted = asyncio.Event()
        self._undecoded_count = 0
        self._undecoded_line_at_s = float("-inf")

    async def start(self) -> None:
        """Reach a name server, take an id, start refreshing and heartbeats.

        Raises:  BrokerUnreachable, naming the name servers, when none takes a connection. ClientError when it
                 was started before.
        """
        if self._is_begun:
            raise ClientError(
                "a client starts once: make another one in place of one that was started before"
            )
        self._is_begun = True
        try:
            ip = self.options.client_ip or await self._local_ip()
        except BaseException:
            await self.close()
            raise
        unique = f"{os.getpid()}#{self.chance.token_bytes(6).hex()}"
        unit = f"@{self.options.unit_name}" if self.options.unit_name else ""
        self.client_id = f"{ip}@{self.options.instance_name or unique}{unit}"
        process_hash = int.from_bytes(self.chance.token_bytes(4), "big")
        self.unique_keys = UniqueKeys(ip, os.getpid(), process_hash)
        self.tasks.start("routes", self.routes.run())
        self.tasks.start("heartbeat", self._beat())

    async def close(self) -> None:
        """Stop the tasks, then the connections."""
        try:
            await self.tasks.close()
        finally:
            await self.remoting.close()

    def check_alive(self) -> None:
        """Raises ClientError when a background task of this instance has died."""
        if self.failure is not None:
            raise ClientError(f"the client has failed: {self.failure!r}") from self.failure

    def add_producer(self, group: str) -> None:
        """From the next heartbeat on brokers know this client as a producer of the group."""
        self._producer_groups[group] = None

    def add_consumer(self, member: GroupMember) -> None:
        """Heartbeats name this consumer, and what brokers ask of its group reaches it.

        Raises:  ClientError for a second consumer of the same group: brokers could not tell them apart.
        """
        if member.group in self._consumers:
            raise ClientError(f"this client already has a consumer of group {member.group!r}")
        self._consumers[member.group] = member

    def beat_soon(self) -> None:
        """Something that heartbeats carry has changed."""
        self._heartbeat_wanted.set()

    async def ask_master(self, topic: str, broker_name: str, ask: AskMaster[T], *, timeout_s: float) -> T:
        """What the master of the broker group answers, whichever broker that is by then.

        While the group has no master that serves the request, the route is looked up again until the
        deadline; a master that is silent is left as soon as the route names another one. So a request may be
        carried out twice.

        Raises:  what the last attempt raised; NoRoute while the route names no master.
        """
        deadline_s = self.clock.monotonic() + timeout_s
        low, high = OUTAGE_PAUSE_MS
        while True:
            try:
                address = self._master_of(topic, broker_name)
                if address is None:
                    raise NoRoute(f"broker {broker_name!r} has no master for topic {topic!r}")
                left_s = max(0.0, deadline_s - self.clock.monotonic())
                return await self._ask_while_master(topic, broker_name, address, ask(address, left_s))
            except OUTAGES:
                pause_s = (low + self.chance.below(high - low)) / 1000
                if deadline_s - self.clock.monotonic() <= pause_s:
                    raise
                self.routes.refresh_soon(topic)
                await self.clock.sleep(pause_s)

    async def _ask_while_master(self, topic: str, broker_name: str, address: str, asking: Awaitable[T]) -> T:
        """The answer; BrokerUnreachable when the route names another master before it has come."""
        task = self.tasks.start("ask-master", _outcome_of(asking))
        try:
            while True:
                done, _ = await asyncio.wait((task,), timeout=SILENT_S)
                if task.cancelled():
                    raise ClientError("the client was closed meanwhile")
                if done:
                    answer, error = task.result()
                    if error is not None:
                        raise error
                    return cast(T, answer)
                if self._master_of(topic, broker_name) not in (None, address):
                    raise BrokerUnreachable(f"broker {broker_name!r} has another master now")
                self.routes.refresh_soon(topic)
        finally:
            task.cancel()

    def _master_of(self, topic: str, broker_name: str) -> str | None:
        view = self.routes.get(topic)
        return None if view is None else view.master_address(broker_name)

    def note_undecoded(self, message: ReceivedMessage) -> None:
        """A message is handed out with its stored body: counted, and logged now and then with the count."""
        self._undecoded_count += 1
        now_s = self.clock.monotonic()
        if now_s - self._undecoded_line_at_s < UNDECODED_LINE_S:
            return
        self._undecoded_line_at_s = now_s
        log.warning(
            events.MESSAGE_BODY_UNDECODED,
            extra={
                "topic": message.topic,
                "broker": message.broker_name,
                "queue_id": message.queue_id,
                "queue_offset": int(message.queue_offset),
                "unique_key": message.message_id,
                "error": message.body_fault,
                "count": self._undecoded_count,
            },
        )

    async def leave(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Tell all brokers that a member is gone; those that cannot be reached find out by the closed
        connection.
        """
        if producer_group is not None:
            self._producer_groups.pop(producer_group, None)
        if consumer_group is not None:
            self._consumers.pop(consumer_group, None)
        for address in self.heartbeat_addresses(with_slaves=consumer_group is not None):
            try:
                await broker_consume.unregister_client(
                    self.remoting,
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout_s=1.0,
                )
            except TandemError as error:
                log.debug(events.HEARTBEAT_FAILED, extra={"address": address, "error": str(error)})

    def heartbeat_addresses(self, *, with_slaves: bool) -> list[str]:
        """Every broker address that is known, in a fixed order; masters only for pure producers."""
        return [
            address
            for _, replicas in sorted(self.routes.broker_addresses().items())
            for broker_id, address in sorted(replicas.items())
            if with_slaves or broker_id == MASTER_ID
        ]

    async def beat(self) -> None:
        """One heartbeat to every broker; a broker that fails is logged and tried again next time."""
        body = Heartbeat(
            client_id=self.client_id,
            producers=tuple(ProducerData(group=group) for group in self._producer_groups),
            consumers=tuple(member.describe() for member in self._consumers.values()),
        )
        addresses = self.heartbeat_addresses(with_slaves=bool(self._consumers))
        await asyncio.gather(*(self._beat_one(address, body) for address in addresses))

    async def _beat_one(self, address: str, body: Heartbeat) -> None:
        try:
            await broker_consume.send_heartbeat(
                self.remoting, address, body, timeout_s=self.options.call_timeout_s
            )
        except TandemError as error:
            facts = {"address": address, "error": str(error)}
            self.outages.note_failure(log, events.HEARTBEAT_FAILED, address, facts)
            return
        self.outages.note_success(events.HEARTBEAT_FAILED, address)

    async def _beat(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.options.heartbeat_s):
                    await self._heartbeat_wanted.wait()
            except TimeoutError:
                pass
            self._heartbeat_wanted.clear()
            await self.beat()

    async def _local_ip(self) -> str:
        """The address under which the name server sees us; also proves that one can be reached."""
        try:
            return await self.name_servers.ask(_local_address)
        except ClientError as error:
            servers = ";".join(self.name_servers.addresses)
            raise BrokerUnreachable(f"no name server of {servers} can be reached: {error}") from error

    def _on_broker_request(self, channel: Channel, command: Command) -> Command | Waiting | None:
        group = command.fields.get("consumerGroup") or command.fields.get("group", "")
        member = self._consumers.get(group)
        if member is None:
            return (
                None if command.is_oneway else command.reply(1, remark=f"no consumer of group {group!r} here")
            )
        return member.handle_broker_request(command)

    def _on_failure(self, name: str, error: BaseException) -> None:
        self.failure = error
        for callback in self.on_failure:
            callback(error)


async def _outcome_of(asking: Awaitable[T]) -> tuple[T | None, TandemError | None]:
    """The answer or the error: a refused call must not end the client's task scope."""
    try:
        return await asking, None
    except TandemError as error:
        return None, error


async def _local_address(client: RemotingClient, address: str) -> str:
    channel = await client.channel(address)
    return channel.local[0]


class InstanceUse:
    """How one client uses an instance: its own lives as long as the client; a shared one is not touched."""

    def __init__(self, namesrv: ServerNames, options: ClientOptions, shared: ClientInstance | None) -> None:
        self.instance = shared or ClientInstance(namesrv, options)
        self._is_own = shared is None

    async def start(self) -> None:
        """As `ClientInstance.start`, if it is the client's own."""
        if self._is_own:
            await self.instance.start()

    async def close_member(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """As `ClientInstance.leave`, then as `close`."""
        try:
            await self.instance.leave(producer_group=producer_group, consumer_group=consumer_group)
        finally:
            await self.close()

    async def close(self) -> None:
        """As `ClientInstance.close`, if it is the client's own."""
        if self._is_own:
            await self.instance.close()


ARRIVE_TIME = "ARRIVE_TIME"
REQUESTS_MAX = 16_384
"""Requests of one client that wait for their reply; one more is refused."""

OnCheck = Callable[[Channel, CheckTransactionRequest, ReceivedMessage], None]
Reply = asyncio.Future[ReceivedMessage]


class ProducerQuestions:
    """What brokers ask of producers: how a transaction ended, and to take a reply (spec semantics 15).

    It knows the client's producers that answer checks, and the replies that the client waits for. Both
    questions are handled inside the read of a socket; the work that they cause is done by whoever registered.
    """

    def __init__(self, clock: Clock, namespace: Namespace) -> None:
        self._clock = clock
        self._namespace = namespace
        self.checks: dict[str, OnCheck] = {}
        self._replies: dict[str, Reply] = {}

    def handle(self, channel: Channel, command: Command) -> Command | None:
        """The answer; None for a check, which is answered later by END_TRANSACTION."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._handle_check(channel, command)
            return None
        return self._handle_reply(command)

    def expect_reply(self, correlation_id: str) -> Reply:
        """The reply, once it comes; `forget_reply` must follow.

        Raises:  Busy at the bound.
        """
        if len(self._replies) >= REQUESTS_MAX:
            raise Busy(f"{REQUESTS_MAX} requests of this client wait for their reply")
        future: Reply = asyncio.get_running_loop().create_future()
        self._replies[correlation_id] = future
        return future

    def forget_reply(self, correlation_id: str) -> None:
        self._replies.pop(correlation_id, None)

    def _handle_check(self, channel: Channel, command: Command) -> None:
        try:
            record = decode_record(command.body)
            message = ReceivedMessage(record, topic=self._namespace.unwrap(record.topic))
        except RemoteProtocolError:
            return  # the broker asks again, and gives up some day
        on_check = self.checks.get(message.properties.get(names.PGROUP, ""))
        if on_check is not None:
            on_check(channel, command.decode(CheckTransactionRequest), message)

    def _handle_reply(self, command: Command) -> Command:
        header = command.decode(PushReplyRequest)
        raw = (header.properties or "").encode("utf-8", "replace")
        correlation_id = find_property(raw, names.CORRELATION_ID.encode())
        future = self._replies.pop(str(correlation_id or b"", "utf-8", "replace"), None)
        if future is not None and not future.done():
            future.set_result(self._make_message(header, raw, command))
        return command.reply()

    def _make_message(self, header: PushReplyRequest, raw: bytes, command: Command) -> ReceivedMessage:
        body = bytes(command.body)
        record = Record(
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=0,
            log_offset=0,
            size=len(body),
            body=body,
            body_crc=0,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_at_ms=header.born_at_ms,
            born_host=bytes(8),
            stored_at_ms=header.stored_at_ms,
            store_host=bytes(8),
            retry_count=header.retry_count or 0,
            prepared_offset=0,
            raw_properties=append_property(raw, ARRIVE_TIME, str(self._clock.now_ms())),
        )
        return ReceivedMessage(record)
