"""Whatever brokers do, the tables of a name server are consistent."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tandemmq.errors import RequestRejected
from tandemmq.nameserver.route_table import RegisteredBroker, RouteTable
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.tables import TopicConfig

NAMES = st.sampled_from(["a", "b", "c"])
ADDRESSES = st.sampled_from(["h1:1", "h2:1", "h3:1", "h4:1"])
TOPICS = st.sets(st.sampled_from(["T1", "T2", "T3", "T4"]))
CONNECTIONS = [object() for _ in range(4)]


class RouteTableMachine(RuleBasedStateMachine):
    """Brokers register, fall silent, disconnect and leave in any order. A name stays in one cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now_s = 0.0

    @rule(
        name=NAMES,
        broker_id=st.integers(0, 2),
        address=ADDRESSES,
        topics=TOPICS,
        counter=st.integers(0, 2),
        state=st.integers(0, 1),
        connection=st.sampled_from(CONNECTIONS),
        acting=st.sampled_from([None, False, True]),
        drops=st.booleans(),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        topics: set[str],
        counter: int,
        state: int,
        connection: object,
        acting: bool | None,
        drops: bool,
    ) -> None:
        registration = RegisteredBroker(
            cluster="C1" if name == "a" else "C2",
            broker_name=name,
            broker_id=broker_id,
            address=address,
            ha_address="h:2",
            data_version=DataVersion(counter=counter, state_version=state),
            topics={topic: TopicConfig(name=topic) for topic in sorted(topics)},
            connection=connection,
            is_acting_master_enabled=acting,
        )
        before = self.snapshot()
        try:
            self.table.register(registration, self.now_s, drops_missing_topics=drops)
        except RequestRejected:
            assert self.snapshot() == before

    @rule(seconds=st.sampled_from([1.0, 60.0, 121.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.table.expire(self.now_s)

    @rule(connection=st.sampled_from(CONNECTIONS))
    def disconnect(self, connection: object) -> None:
        self.table.drop_connection(connection)
        assert self.table.drop_connection(connection) == []

    @rule(name=NAMES, address=ADDRESSES)
    def unregister(self, name: str, address: str) -> None:
        self.table.unregister("C1" if name == "a" else "C2", name, address)

    @rule(topic=st.sampled_from(["T1", "T2"]), cluster=st.sampled_from([None, "C1", "C2"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)

    @invariant()
    def tables_agree(self) -> None:
        info = self.table.cluster_info()
        assert sorted(name for names in info.clusters.values() for name in names) == sorted(info.brokers)
        for broker in info.brokers.values():
            assert broker.addresses
            assert len(set(broker.addresses.values())) == len(broker.addresses)
            assert broker.broker_name in info.clusters[broker.cluster]
        for topic in self.table.topics():
            route = self.table.route(topic)
            assert route is not None
            assert {data.broker_name for data in route.queues} == {
                broker.broker_name for broker in route.brokers
            }

    def snapshot(self) -> tuple[object, ...]:
        return self.table.cluster_info(), [self.table.route(topic) for topic in self.table.topics()]

    def teardown(self) -> None:
        self.table.expire(self.now_s + 1000)
        assert self.table.topics() == []
        assert self.table.cluster_info().brokers == {}
        empty = RouteTable()
        empty.members_version = self.table.members_version
        assert vars(self.table) == vars(empty)  # it keeps nothing of removed brokers


RouteTableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestRouteTable = RouteTableMachine.TestCase
