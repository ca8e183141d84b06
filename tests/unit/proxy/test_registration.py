"""The proxy as a client of brokers: spec proxy 1.1, 4.5."""

from __future__ import annotations

from typing import Any, cast

from sim.dice import Dice
from sim.manual_clock import ManualClock
from tandemmq.errors import BrokerUnreachable
from tandemmq.protocol.bodies.client import ConsumeType, Heartbeat
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.codes import OUR_VERSION, LanguageCode, RequestCode, render_version
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.route import UnregisterClientRequest
from tandemmq.proxy.clients import Clients, CommandStream
from tandemmq.proxy.registration import (
    GROUPS_MAX,
    BrokerRegistration,
    Seat,
    Seats,
    describe_consumer,
    remoting_version,
)
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.settings import ClientRole, Profile, Subscribed
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.calls import FakeCall, caller
from unit.proxy.cores import make_core
from unit.proxy.known_brokers import KnownBrokers, route

MASTERS = {"a": "10.0.0.1:10911", "b": "10.0.0.2:10911"}


class FakeConnections:
    """Connections to brokers that accept every request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Command]] = []
        self.failing: set[str] = set()
        self.is_closed = False

    async def request(self, address: str, command: Command, _timeout_s: float) -> Command:
        if address in self.failing:
            raise BrokerUnreachable("down")
        self.requests.append((address, command))
        return command.reply()

    async def close(self) -> None:
        self.is_closed = True

    def beats(self) -> list[tuple[str, Heartbeat]]:
        """The heartbeats since the last call, with the address of each."""
        found = [
            (address, decode_body(bytes(command.body), Heartbeat))
            for address, command in self.requests
            if command.code == RequestCode.HEART_BEAT
        ]
        self.requests = [one for one in self.requests if one[1].code != RequestCode.HEART_BEAT]
        return found

    def departures(self) -> list[tuple[str, str, str | None, str | None]]:
        headers = [
            (address, command.decode(UnregisterClientRequest))
            for address, command in self.requests
            if command.code == RequestCode.UNREGISTER_CLIENT
        ]
        self.requests.clear()
        return [(at, one.client_id, one.producer_group, one.consumer_group) for at, one in headers]


class KnownMasters(KnownBrokers):
    def __init__(self, connections: FakeConnections) -> None:
        super().__init__({"T": route(("a", 6, 1, 1), replicas={0: MASTERS["a"], 1: "10.0.0.9:10911"})})
        self.remoting = connections
        self.addresses = dict(MASTERS)

    async def masters(self) -> dict[str, str]:
        self._check()
        return self.addresses


class Proxy:
    def __init__(self, *, connections_max: int = 2) -> None:
        self.opened = [FakeConnections()]
        self.clock = ManualClock()
        self.known = KnownMasters(self.opened[0])
        self.clients = Clients(clock=self.clock, chance=Dice(1))
        self.registration = BrokerRegistration(
            make_core(clients=self.clients, brokers=self.known.brokers, clock=self.clock),
            client_id="proxy-1",
            open_connections=self.open,
            connections_max=connections_max,
        )

    def open(self) -> RemotingClient:
        self.opened.append(FakeConnections())
        return cast(RemotingClient, self.opened[-1])

    def add(self, client_id: str, profile: Profile, **headers: Any) -> None:
        settings = message_class("Settings")()
        self.clients.register(caller(client_id, **headers), profile, settings, CommandStream(FakeCall()))


def producer(*topics: str) -> Profile:
    return Profile(ClientRole.PRODUCER, topics=topics)


def consumer(group: str = "G", *topics: str, role: ClientRole = ClientRole.PUSH_CONSUMER) -> Profile:
    return Profile(role, group=group, subscriptions=tuple(Subscribed(one, "*", "TAG") for one in topics))


async def test_topics_are_producer_groups_at_every_master() -> None:
    proxy = Proxy()
    proxy.add("p1", producer("T", "U"))
    proxy.add("p2", producer("U"))
    proxy.clients.note_transaction("V", "p3")
    await proxy.registration.beat()
    beats = proxy.opened[0].beats()
    assert [address for address, _ in beats] == list(MASTERS.values())
    for _, body in beats:
        assert body.client_id == "proxy-1"
        assert [one.group for one in body.producers] == ["T", "U", "V"]
    proxy.clients.remove("p1")
    await proxy.registration.beat()
    assert [one.group for one in proxy.opened[0].beats()[0][1].producers] == ["U", "V"]
    assert proxy.opened[0].departures() == [
        (address, "proxy-1", "T", None) for address in MASTERS.values()
    ], "a topic without a producer is unregistered"


async def test_members_of_a_group_have_connections_of_their_own() -> None:
    proxy = Proxy()
    for number in range(3):
        proxy.add(f"c{number}", consumer("G", "T"))
    proxy.add("d", consumer("H", "T"))
    await proxy.registration.beat()
    first, second = proxy.opened
    assert [(address, body.client_id) for address, body in first.beats()] == [
        (MASTERS["a"], "c0"),
        (MASTERS["a"], "d"),
    ]
    assert [body.client_id for _, body in second.beats()] == ["c1"]
    assert len(proxy.registration.seats.unseated) == 1
    proxy.clients.remove("c0")
    await proxy.registration.beat()
    assert [body.client_id for _, body in first.beats()] == ["c2", "d"]
    assert first.departures() == [], "its successor on the connection must not be removed"
    assert not proxy.registration.seats.unseated
    proxy.clients.remove("d")
    await proxy.registration.beat()
    assert first.departures() == [(address, "d", None, "H") for address in MASTERS.values()]
    await proxy.registration.close()
    assert (first.is_closed, second.is_closed) == (False, True)


async def test_heartbeats_have_the_clients_language_and_version() -> None:
    proxy = Proxy()
    proxy.add("c", consumer("G", "T", role=ClientRole.SIMPLE_CONSUMER), language="RUST", version="5.0.3")
    await proxy.registration.beat()
    ((_, command),) = proxy.opened[0].requests
    assert command.language == LanguageCode.RUST
    assert render_version(command.version) == "V5_0_3"
    body = decode_body(bytes(command.body), Heartbeat)
    assert body.consumers[0].consume_type is ConsumeType.ACTIVELY
    assert body.consumers[0].subscriptions[0].topic == "T"


async def test_a_consumer_without_subscriptions_is_registered_everywhere() -> None:
    """Rust sends none."""
    proxy = Proxy()
    proxy.add("c", consumer())
    await proxy.registration.beat()
    assert [address for address, _ in proxy.opened[0].beats()] == list(MASTERS.values())


async def test_an_unreachable_broker_does_not_keep_others_from_heartbeats() -> None:
    proxy = Proxy()
    proxy.add("p", producer("T"))
    proxy.opened[0].failing = {MASTERS["a"]}
    await proxy.registration.beat()
    assert [address for address, _ in proxy.opened[0].beats()] == [MASTERS["b"]]
    proxy.known.failure = BrokerUnreachable("no name server")
    await proxy.registration.beat()
    assert proxy.opened[0].beats() == []


async def test_a_change_is_sent_soon_and_a_heartbeat_every_20_s() -> None:
    proxy = Proxy()
    tasks = TaskScope("proxy")
    proxy.add("p", producer("T"))
    tasks.start("registration", proxy.registration.run())
    await proxy.clock.pass_time(0)
    assert len(proxy.opened[0].beats()) == 2
    proxy.clients.note_transaction("V", "p")
    await proxy.clock.pass_time(1)
    assert len(proxy.opened[0].beats()) == 2
    await proxy.clock.pass_time(19)
    assert proxy.opened[0].beats() == []
    await proxy.clock.pass_time(1)
    assert len(proxy.opened[0].beats()) == 2
    await tasks.close()


async def test_topics_with_transactions_come_first() -> None:
    proxy = Proxy()
    for number in range(2):
        proxy.add(f"p{number}", producer(*(f"A{number}-{topic}" for topic in range(GROUPS_MAX // 2 + 1))))
    proxy.clients.note_transaction("Z", "p0")
    await proxy.registration.beat()
    groups = {one.group for one in proxy.opened[0].beats()[0][1].producers}
    assert len(groups) == GROUPS_MAX
    assert "Z" in groups


def test_a_member_keeps_its_seat_and_a_free_one_is_reused() -> None:
    seats = Seats(2)
    assert seats.update({"a": "G", "b": "G", "c": "G", "d": "H"}) == {}
    assert [seats.get(one) for one in "abcd"] == [Seat("G", 0), Seat("G", 1), None, Seat("H", 0)]
    assert seats.unseated == {"c"}
    assert seats.update({"b": "G", "c": "G", "d": "I"}) == {"d": Seat("H", 0)}
    assert [seats.get(one) for one in "bcd"] == [Seat("G", 1), Seat("G", 0), Seat("I", 0)]
    none = Seats(0)
    none.update({"a": "G"})
    assert none.unseated == {"a"}


def test_a_connection_has_a_bounded_number_of_groups() -> None:
    seats = Seats(2)
    seats.update({f"c{number}": f"G{number}" for number in range(GROUPS_MAX + 1)})
    assert seats.get(f"c{GROUPS_MAX}") == Seat(f"G{GROUPS_MAX}", 1)


def test_filters_are_described_as_brokers_expect() -> None:
    described = describe_consumer(
        Profile(
            ClientRole.PUSH_CONSUMER,
            group="G",
            subscriptions=(
                Subscribed("T", "a || b", "TAG"),
                Subscribed("U", "x > 1", "SQL92"),
                Subscribed("V", "((", "SQL92"),
                Subscribed("W", "||", "TAG"),
            ),
        ),
        7,
    )
    assert described.consume_type is ConsumeType.PASSIVELY
    tags, sql = described.subscriptions
    assert (tags.tags, len(tags.tag_hashes), tags.version) == ({"a", "b"}, 2, 7)
    assert (sql.expression, sql.expression_type) == ("x > 1", "SQL92")


def test_unknown_versions_count_as_ours() -> None:
    assert render_version(remoting_version("5.2.1")) == "V5_2_1"
    assert render_version(remoting_version("5.0.7-SNAPSHOT")) == "V5_0_7"
    for text in ("", "5", "4.9.4", "5.10.1", "x.y.z"):
        assert remoting_version(text) == OUR_VERSION
