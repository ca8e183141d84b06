"""The proxy as a client of brokers: heartbeats in the name of the clients that it serves.

Producers are registered under one identity, that of the proxy, on the connection that all requests use: each
topic that some client produces is a producer group, so that brokers send their transaction checks here.

Consumers are registered under their own identity, so that tools see and reach them. Brokers tell the members
of a group apart by their connections. So the first member of each group uses the connection of requests, the
second one the next connection, and so on.

Invariants: no two members of a group share a connection; a client that has left is unregistered at the next
            heartbeat, and the clients of a proxy that ends by the end of its connections.
At a bound: members that find no connection are not registered. They consume like all others, because pops
            need no registration, but tools do not see them. Of more than GROUPS_MAX topics, those with
            transactions are registered first.
Source:     spec proxy 1.1, 4.5, 5.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.client.consumer.subscription import parse_sql, parse_subscription
from tandemmq.errors import BadRequest, TandemError
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies import client as bodies
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.codes import OUR_VERSION, LanguageCode, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.route import UnregisterClientRequest
from tandemmq.proxy.brokers import CALL_S
from tandemmq.proxy.clients import GrpcClient, version_numbers
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.settings import ClientRole, Profile
from tandemmq.remoting.client import RemotingClient
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import Outages

log = logging.getLogger(__name__)

BEAT_S: Final = 20.0
BEAT_PAUSE_S: Final = 1.0
"""The least time between two heartbeats: a hundred clients that start together cause one."""
REQUESTS_AT_ONCE: Final = 64
GROUPS_MAX: Final = 1_000
"""The groups on one connection; our brokers accept 1024 of each kind."""
FIRST_5_VERSION: Final = 413


class Seat(NamedTuple):
    """The place of a consumer: its group, and the number of the connection on which it is registered."""

    group: str
    connection: int


@dataclass(slots=True)
class Seats:
    """The seats of the members of all groups: no two members of a group share a connection. Pure.

    A member keeps its seat until it leaves its group; a new member gets the seat with the lowest free number.
    """

    connections_max: int
    _seats: dict[str, Seat] = field(default_factory=dict, init=False)
    _taken: set[Seat] = field(default_factory=set, init=False)
    _counts: Counter[int] = field(default_factory=Counter, init=False)
    unseated: set[str] = field(default_factory=set, init=False)
    """The members without a seat, by client id."""

    def get(self, client_id: str) -> Seat | None:
        return self._seats.get(client_id)

    def update(self, groups: dict[str, str]) -> dict[str, Seat]:
        """Assigns seats to the members, given as group by client id. Returns the seats that are free now, by
        the client id of the member that left it.
        """
        freed = {
            client_id: seat for client_id, seat in self._seats.items() if groups.get(client_id) != seat.group
        }
        for client_id, seat in freed.items():
            del self._seats[client_id]
            self._taken.discard(seat)
            self._counts[seat.connection] -= 1
        self.unseated = set()
        for client_id, group in groups.items():
            if client_id in self._seats:
                continue
            free = self._free_seat(group)
            if free is None:
                self.unseated.add(client_id)
            else:
                self._seats[client_id] = free
                self._taken.add(free)
                self._counts[free.connection] += 1
        # Brokers replace a member on its connection; unregistering it could remove the new one.
        return {client_id: seat for client_id, seat in freed.items() if seat not in self._taken}

    def _free_seat(self, group: str) -> Seat | None:
        for connection in range(self.connections_max):
            seat = Seat(group, connection)
            if seat not in self._taken and self._counts[connection] < GROUPS_MAX:
                return seat
        return None


def describe_consumer(profile: Profile, version: int) -> bodies.ConsumerData:
    """Returns a consumer as heartbeats name it; a filter that cannot be parsed is left out."""
    described: list[bodies.SubscriptionData] = []
    for topic, expression, kind in profile.subscriptions:
        parse = parse_sql if kind == "SQL92" else parse_subscription
        try:
            described.append(parse(topic, expression, version).describe())
        except BadRequest:
            continue  # each receive names its own filter, and reports the fault
    is_simple = profile.role is ClientRole.SIMPLE_CONSUMER
    return bodies.ConsumerData(
        group=profile.group,
        consume_type=bodies.ConsumeType.ACTIVELY if is_simple else bodies.ConsumeType.PASSIVELY,
        subscriptions=tuple(described),
    )


def remoting_version(text: str) -> int:
    """Returns the number that stands for a version such as 5.1.0 on the wire of brokers; ours if unknown."""
    numbers = version_numbers(text)
    if len(numbers) < 3 or numbers[0] != 5 or max(numbers[1:3]) > 9:
        return OUR_VERSION
    return FIRST_5_VERSION + 2 * (10 * numbers[1] + numbers[2])


@dataclass(slots=True)
class BrokerRegistration:
    """Sends the heartbeats. `run` is a task of the proxy.

    `open_connections` makes a further set of connections to brokers, with the routes of `RelayedRequests`.
    """

    core: ProxyCore
    client_id: str
    open_connections: Callable[[], RemotingClient]
    connections_max: int = 16
    seats: Seats = field(init=False)
    _connections: list[RemotingClient] = field(init=False)
    _produced: frozenset[str] = field(default=frozenset(), init=False)
    _bodies: dict[str, tuple[Profile, bytes]] = field(default_factory=dict, init=False)
    _requested: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _outages: Outages = field(default_factory=Outages, init=False)

    def __post_init__(self) -> None:
        self.seats, self._connections = Seats(self.connections_max), [self.core.brokers.remoting]
        self.core.clients.on_change.append(self._requested.set)

    async def run(self) -> None:
        """Sends a heartbeat now, every BEAT_S, and soon after a change of the clients."""
        while True:
            self._requested.clear()
            await self.beat()
            await self.core.clock.sleep(BEAT_PAUSE_S)
            timer = self.core.clock.call_later(BEAT_S - BEAT_PAUSE_S, self._requested.set)
            try:
                await self._requested.wait()
            finally:
                timer.cancel()

    async def close(self) -> None:
        """Closes the connections of consumers, which unregisters them."""
        for remoting in self._connections[1:]:
            await remoting.close()

    async def beat(self) -> None:
        """Sends one heartbeat for each client to every master that concerns it. A failure is logged; the next
        heartbeat tries again.
        """
        try:
            masters = list((await self.core.brokers.masters()).values())
        except TandemError as error:
            self._log_failure("name servers", error)
            return
        await self._send_all(self._producer_requests(masters))
        # Consumers come second: their requests need the routes of topics, for which no producer must wait.
        await self._send_all(await self._consumer_requests(masters))

    async def _send_all(self, requests: Sequence[_Request]) -> None:
        for begin in range(0, len(requests), REQUESTS_AT_ONCE):
            await asyncio.gather(*(self._send(*one) for one in requests[begin : begin + REQUESTS_AT_ONCE]))

    def _producer_requests(self, masters: Iterable[str]) -> list[_Request]:
        topics = self._registered_topics()
        left, self._produced = self._produced - topics, topics
        body = encode_body(
            bodies.Heartbeat(
                client_id=self.client_id,
                producers=tuple(bodies.ProducerData(group=one) for one in sorted(topics)),
            )
        )
        requests = []
        for address in masters:
            if topics:
                requests.append(_Request(0, address, Command.request(RequestCode.HEART_BEAT, body=body)))
            requests += [
                _Request(0, address, _unregister_command(self.client_id, producer_group=topic))
                for topic in sorted(left)
            ]
        return requests

    def _registered_topics(self) -> frozenset[str]:
        topics = self.core.clients.produced_topics
        if len(topics) > GROUPS_MAX:
            checked = {topic for client in self.core.clients for topic in client.transaction_topics}
            topics = sorted(topics, key=lambda topic: topic not in checked)[:GROUPS_MAX]
        return frozenset(topics)

    async def _consumer_requests(self, masters: list[str]) -> list[_Request]:
        consumers = {
            client.client_id: (client, client.profile)
            for client in self.core.clients
            if client.profile is not None and client.profile.group
        }
        freed = self.seats.update({key: profile.group for key, (_, profile) in consumers.items()})
        for client_id in self._bodies.keys() - consumers.keys():
            del self._bodies[client_id]
        requests = [
            _Request(seat.connection, address, _unregister_command(client_id, consumer_group=seat.group))
            for client_id, seat in freed.items()
            for address in masters
        ]
        for client_id, (client, profile) in consumers.items():
            seat = self.seats.get(client_id)
            if seat is None:
                continue
            body = self._body_of(client, profile)
            for address in await self._masters_of(profile, masters):
                requests.append(_Request(seat.connection, address, _heartbeat_command(client, body)))
        return requests

    def _body_of(self, client: GrpcClient, profile: Profile) -> bytes:
        """Returns the heartbeat's body of a consumer, which is made once per change: filters cost time."""
        made = self._bodies.get(client.client_id)
        if made is None or made[0] is not profile:
            consumer = describe_consumer(profile, client.changed_at_ms)
            body = encode_body(bodies.Heartbeat(client_id=client.client_id, consumers=(consumer,)))
            made = self._bodies[client.client_id] = (profile, body)
        return made[1]

    async def _masters_of(self, profile: Profile, masters: list[str]) -> list[str]:
        """Returns the masters of the topics that a consumer subscribes; all masters if it names none."""
        found: dict[str, None] = {}
        for subscribed in profile.subscriptions:
            try:
                access = await self.core.brokers.topic(subscribed.topic)
            except TandemError:
                continue
            found.update(dict.fromkeys(access.route.masters))
        return list(found) or masters

    async def _send(self, connection: int, address: str, command: Command) -> None:
        try:
            answer = await self._connection(connection).request(address, command, CALL_S)
            if answer.code != ResponseCode.SUCCESS:
                raise rejections.to_error(answer)
        except TandemError as error:
            self._log_failure(address, error)
            return
        self._outages.record_success(events.HEARTBEAT_FAILED, address)

    def _connection(self, number: int) -> RemotingClient:
        while len(self._connections) <= number:
            self._connections.append(self.open_connections())
        return self._connections[number]

    def _log_failure(self, address: str, error: TandemError) -> None:
        facts = {"address": address, "error": str(error)}
        self._outages.record_failure(log, events.HEARTBEAT_FAILED, address, facts)


class _Request(NamedTuple):
    connection: int
    address: str
    command: Command


def _unregister_command(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> Command:
    header = UnregisterClientRequest(client_id, producer_group, consumer_group)
    return Command.request(RequestCode.UNREGISTER_CLIENT, header)


def _heartbeat_command(client: GrpcClient, body: bytes) -> Command:
    """Returns a heartbeat in the name of a client, with its language and version."""
    command = Command.request(RequestCode.HEART_BEAT, body=body)
    command.language = int(LanguageCode[client.language])
    command.version = remoting_version(client.version)
    return command
