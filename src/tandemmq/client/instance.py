"""The client as brokers see it: an id, connections, current routes, heartbeats (spec semantics 2).

Producers and consumers are members of an instance; by default each has its own. `ClientInstance` owns all
background tasks: if a bug ends one of them, the instance fails, and every later call raises with that reason.
A broker's request is dispatched to the member that it concerns; `ProducerQuestions` answers for producers.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, ParamSpec, Protocol, Self, TypeVar, cast
from weakref import WeakSet

from tandemmq.api import broker_consume, nameserver
from tandemmq.api.calls import Call
from tandemmq.client.hooks import ConnectionEvents
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
from tandemmq.remoting.options import ConnectionOptions
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
"""The requests of brokers that a consumer answers (spec semantics 15)."""

PRODUCER_REQUESTS = (RequestCode.CHECK_TRANSACTION_STATE, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
"""The requests of brokers that a producer answers."""


OUTAGES = (BrokerUnreachable, NoRoute, NotServed, ServiceNotAvailable)
"""The errors of a group that has no master serving the request now, but may have one in a moment."""
OUTAGE_PAUSE_MS = (50, 200)
"""The pause before the next search for a serving master, as a range: clients must not all retry at once."""
SILENT_S = 1.0
"""The time without an answer after which the routes are refreshed: the broker's machine may be gone."""
UNDECODED_LINE_S = 10.0
"""The interval between two log lines about undecodable bodies: a topic may be full of them."""


P = ParamSpec("P")
T = TypeVar("T")
MasterCall = Callable[[str, float], Awaitable[T]]
"""A call to the broker at an address, with a timeout in seconds."""


class GroupMember(Protocol):
    """The interface of a consumer towards its instance."""

    @property
    def group(self) -> str: ...

    def describe(self) -> ConsumerData: ...

    def handle_broker_request(self, command: Command) -> Command | Waiting | None: ...


class Client(ABC):
    """The base of all clients; `async with` starts and closes the client."""

    _instance: ClientInstance

    @abstractmethod
    async def start(self) -> Self:
        """Connects to a name server and begins."""

    @abstractmethod
    async def close(self) -> None:
        """Ends everything that was started. If cancelled, it still ends everything, but waits for less."""

    @property
    def instance(self) -> ClientInstance:
        """The client instance of this client."""
        return self._instance

    @property
    def is_connected(self) -> bool:
        """True while a connection to a name server or to a broker is open, and no background task has
        failed.
        """
        return self._instance.is_connected

    async def ping(self) -> dict[str, float]:
        """Returns the round trip time, in seconds, of a name server and of each master that this client
        knows, by address: for readiness checks.

        Raises:  BrokerUnreachable or RequestTimeout for the first one without an answer; ClientError when the
                 client has failed.
        """
        return await self._instance.ping()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class ClientInstance:
    """The shared part of producers and consumers. Call `start` before use; `close` ends everything that
    `start` began.
    """

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
            options=ConnectionOptions(call_timeout_s=options.call_timeout_s),
            routes=routes,
            signer=request_mark(options),
            tls=make_client_tls(options.tls),
        )
        self._connections = ConnectionEvents(options.on_disconnected, options.on_reconnected)
        self.remoting.on_open, self.remoting.on_lost = self._on_open, self._connections.lost
        first = self.chance.below(len(addresses))
        self.name_servers = NameServers(self.remoting, addresses, first=first)
        self.routes = RouteCache(
            self.name_servers,
            clock=self.clock,
            tasks=self.tasks,
            refresh_s=options.route_refresh_s,
        )
        self.outages = Outages()
        self.client_id = ""
        self.broker_versions: dict[str, int] = {}
        """The versions of the brokers, by address, as far as they have answered a heartbeat."""
        self._is_started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: BaseException | None = None
        self.on_failure: list[Callable[[BaseException], None]] = []
        """The functions to call once, when a background task of this instance has died."""
        self._producer_groups: dict[str, None] = {INNER_PRODUCER_GROUP: None}
        self._consumers: dict[str, GroupMember] = {}
        self._heartbeat_requested = asyncio.Event()
        self._undecoded_count = 0
        self._undecoded_line_at_s = float("-inf")

    async def start(self) -> None:
        """Connects to a name server, chooses the client id, and starts refreshing routes and sending
        heartbeats.

        Raises:  BrokerUnreachable, naming the name servers, when none accepts a connection. ClientError when
                 the instance was started before.
        """
        if self._is_started:
            raise ClientError("clients are single-use: create a new one instead of starting this one again")
        self._is_started = True
        self._loop = asyncio.get_running_loop()
        _started.add(self)
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
        """Stops the tasks, then the connections. Raises ClientError in another event loop."""
        self.check_loop()
        try:
            await self.tasks.close()
        finally:
            await self.remoting.close()

    @property
    def is_connected(self) -> bool:
        """True while a connection is open, and no background task has died."""
        addresses = (*self.name_servers.addresses, *self.heartbeat_addresses(with_slaves=True))
        return self.failure is None and any(map(self.remoting.open_channel, addresses))

    async def ping(self) -> dict[str, float]:
        """Returns the round trip times as `Client.ping` does."""
        self.check_alive()
        began_s = self.clock.monotonic()
        await self.name_servers.ask(nameserver.query_cluster_info)
        times = {self.name_servers.current: self.clock.monotonic() - began_s}
        body = self._heartbeat()
        for address in self.heartbeat_addresses(with_slaves=False):
            began_s = self.clock.monotonic()
            await broker_consume.send_heartbeat(self.remoting, address, body)
            times[address] = self.clock.monotonic() - began_s
        return times

    def check_alive(self) -> None:
        """Raises ClientError when a background task of this instance has died, or in another event loop."""
        if self.failure is not None:
            raise ClientError(f"the client has failed: {self.failure!r}") from self.failure
        self.check_loop()

    def check_loop(self) -> None:
        """Raises ClientError in another event loop than the client's: there, no answer would ever come."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise ClientError(
                "the client was started in another event loop: use it there, or create one for each loop"
            )

    def add_producer(self, group: str) -> None:
        """Registers a producer group: from the next heartbeat on, brokers know this client as a member
        of it.
        """
        self._producer_groups[group] = None

    def add_consumer(self, member: GroupMember) -> None:
        """Registers a consumer: heartbeats name it, and brokers' requests about its group reach it.

        Raises:  ClientError for a second consumer of the same group: brokers could not distinguish the two.
        """
        if member.group in self._consumers:
            raise ClientError(f"this client already has a consumer of group {member.group!r}")
        self._consumers[member.group] = member

    def beat_soon(self) -> None:
        """Sends a heartbeat soon, because the content of heartbeats has changed."""
        self._heartbeat_requested.set()

    async def call_master(self, topic: str, broker_name: str, ask: MasterCall[T], *, timeout_s: float) -> T:
        """Returns the answer of the broker group's master, also when the master changes meanwhile.

        While the group has no master that serves the request, the route is refreshed until the deadline. A
        silent master is given up as soon as the route names another one. A request may therefore be executed
        twice.

        Raises:  the error of the last attempt; NoRoute while the route names no master.
        """
        deadline_s = self.clock.monotonic() + timeout_s
        low, high = OUTAGE_PAUSE_MS
        while True:
            try:
                address = self.routes.require_master(topic, broker_name)
                remaining_s = max(0.0, deadline_s - self.clock.monotonic())
                return await self._call_while_master(topic, broker_name, address, ask(address, remaining_s))
            except OUTAGES:
                pause_s = (low + self.chance.below(high - low)) / 1000
                if deadline_s - self.clock.monotonic() <= pause_s:
                    raise
                self.routes.refresh_soon(topic)
                await self.clock.sleep(pause_s)

    async def ask_master(
        self, topic: str, broker_name: str, call: Call[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Returns the master's answer to this request, as `call_master` does, within `call_timeout_s`."""
        return await self.call_master(
            topic,
            broker_name,
            lambda address, remaining_s: call.within(remaining_s, self.remoting, address, *args, **kwargs),
            timeout_s=self.options.call_timeout_s,
        )

    async def _call_while_master(self, topic: str, broker_name: str, address: str, asking: Awaitable[T]) -> T:
        """Returns the answer; raises BrokerUnreachable when the route names another master before the answer
        has come.
        """
        task = self.tasks.start("ask-master", settled(asking))
        try:
            while True:
                done, _ = await asyncio.wait((task,), timeout=SILENT_S)
                if task.cancelled():
                    raise ClientError("the client was closed during the call")
                if done:
                    answer, error = task.result()
                    if error is not None:
                        raise error
                    return cast(T, answer)
                if self.routes.master_address(topic, broker_name) not in (None, address):
                    raise BrokerUnreachable(f"broker {broker_name!r} has another master now")
                self.routes.refresh_soon(topic)
        finally:
            task.cancel()

    def report_undecoded(self, message: ReceivedMessage) -> None:
        """Counts a message that is delivered with its stored body, and logs the count now and then."""
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
        """Notifies all brokers that a member has left; an unreachable broker learns it from the closed
        connection.
        """
        if producer_group is not None:
            self._producer_groups.pop(producer_group, None)
        if consumer_group is not None:
            self._consumers.pop(consumer_group, None)
        for address in self.heartbeat_addresses(with_slaves=consumer_group is not None):
            try:
                await broker_consume.unregister_client.within(
                    1.0,
                    self.remoting,
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                )
            except TandemError as error:
                log.debug(events.HEARTBEAT_FAILED, extra={"address": address, "error": str(error)})

    def heartbeat_addresses(self, *, with_slaves: bool) -> list[str]:
        """Returns every known broker address, in a fixed order; only masters unless `with_slaves` is set."""
        return [
            address
            for _, replicas in sorted(self.routes.broker_addresses().items())
            for broker_id, address in sorted(replicas.items())
            if with_slaves or broker_id == MASTER_ID
        ]

    async def beat(self) -> None:
        """Sends one heartbeat to every broker; a failure is logged, and that broker is tried again at the
        next heartbeat.
        """
        addresses = self.heartbeat_addresses(with_slaves=bool(self._consumers))
        await asyncio.gather(*map(self.introduce, addresses))

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            client_id=self.client_id,
            producers=tuple(ProducerData(group=group) for group in self._producer_groups),
            consumers=tuple(member.describe() for member in self._consumers.values()),
        )

    async def learn_version(self, address: str) -> None:
        """Sends a heartbeat to a broker of unknown version; without an answer it stays unknown."""
        if address not in self.broker_versions:
            await self.introduce(address)

    async def introduce(self, address: str) -> None:
        """Sends a heartbeat to one broker; a failure is logged."""
        body = self._heartbeat()
        try:
            self.broker_versions[address] = await broker_consume.send_heartbeat(self.remoting, address, body)
        except TandemError as error:
            facts = {"address": address, "error": str(error)}
            self.outages.record_failure(log, events.HEARTBEAT_FAILED, address, facts)
            return
        self.outages.record_success(events.HEARTBEAT_FAILED, address)

    def _on_open(self, address: str) -> None:
        self._connections.opened(address)
        if address in self.broker_versions:  # a broker forgets its clients with their connections
            self.tasks.start("introduce", self.introduce(address))

    async def _beat(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.options.heartbeat_s):
                    await self._heartbeat_requested.wait()
            except TimeoutError:
                pass
            self._heartbeat_requested.clear()
            await self.beat()

    async def _local_ip(self) -> str:
        """Returns this client's own address on the connection to a name server; also proves that one is
        reachable.
        """
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
                None
                if command.is_oneway
                else command.reply(1, remark=f"this client has no consumer of group {group!r}")
            )
        return member.handle_broker_request(command)

    def _on_failure(self, name: str, error: BaseException) -> None:
        self.failure = error
        for callback in self.on_failure:
            callback(error)


FORKED: Final = "the process has forked since the client was started: start a client in each process"

_started: Final[WeakSet[ClientInstance]] = WeakSet()


def _fail_after_fork() -> None:
    """Makes the clients of the parent unusable in a child: both would write to the same connections."""
    for instance in _started:
        instance.failure = ClientError(FORKED)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_fail_after_fork)


async def settled(asking: Awaitable[T]) -> tuple[T | None, TandemError | None]:
    """Returns the answer or the error: a refused call must not end the client's task scope."""
    try:
        return await asking, None
    except TandemError as error:
        return None, error


async def _local_address(client: RemotingClient, address: str) -> str:
    channel = await client.channel(address)
    return channel.local[0]


class InstanceUse:
    """One client's use of an instance. It starts and closes an instance of its own; a shared one is left
    alone.
    """

    def __init__(self, namesrv: ServerNames, options: ClientOptions, shared: ClientInstance | None) -> None:
        self.instance = shared or ClientInstance(namesrv, options)
        self._owns_instance = shared is None

    async def start(self) -> None:
        """Starts the instance as `ClientInstance.start` does, if it is the client's own."""
        if self._owns_instance:
            await self.instance.start()

    async def close_member(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Leaves as `ClientInstance.leave` does, then calls `close`."""
        try:
            await self.instance.leave(producer_group=producer_group, consumer_group=consumer_group)
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes the instance as `ClientInstance.close` does, if it is the client's own."""
        if self._owns_instance:
            await self.instance.close()


ARRIVE_TIME = "ARRIVE_TIME"
REQUESTS_MAX = 16_384
"""The number of requests of one client that may wait for their reply; one more is rejected."""

OnCheck = Callable[[Channel, CheckTransactionRequest, ReceivedMessage], None]
Reply = asyncio.Future[ReceivedMessage]


class ProducerQuestions:
    """Handles what brokers send to producers: checks of a transaction's outcome, and replies to requests
    (spec semantics 15).

    It holds the callbacks of the client's transactional producers, and the replies that the client waits for.
    Both kinds are handled inside the read of a socket; the registered callback does the work that a check
    causes.
    """

    def __init__(self, clock: Clock, namespace: Namespace) -> None:
        self._clock = clock
        self._namespace = namespace
        self.checks: dict[str, OnCheck] = {}
        self._replies: dict[str, Reply] = {}

    def handle(self, channel: Channel, command: Command) -> Command | None:
        """Returns the answer; None for a check, which END_TRANSACTION answers later."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._handle_check(channel, command)
            return None
        return self._handle_reply(command)

    def expect_reply(self, correlation_id: str) -> Reply:
        """Returns a future for the reply; `forget_reply` must follow.

        Raises:  Busy at the bound.
        """
        if len(self._replies) >= REQUESTS_MAX:
            raise Busy(f"{REQUESTS_MAX} requests of this client are waiting for replies: try again later")
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
            return  # the broker checks again, and gives up eventually
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
