"""The route table alone; numbers in names are those of the check list, spec nameserver 11."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.errors import RequestRejected
from tandemmq.nameserver.route_table import RegisteredBroker, RouteTable, select_zone
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.route import QueueData, TopicRoute
from tandemmq.protocol.bodies.tables import TopicConfig

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"
OTHER = "10.0.0.3:10911"
CONNECTIONS = {address: object() for address in (MASTER, SLAVE, OTHER)}


def topics(*names: str, permission: int = 6, count: int = 4, sys_flag: int = 0) -> dict[str, TopicConfig]:
    return {
        name: TopicConfig(
            name=name,
            permission=permission,
            read_queue_count=count,
            write_queue_count=count,
            sys_flag=sys_flag,
        )
        for name in names
    }


def broker(broker_id: int = 0, address: str = MASTER, **changes: Any) -> RegisteredBroker:
    parts: dict[str, Any] = {
        "cluster": "C",
        "broker_name": "broker-a",
        "broker_id": broker_id,
        "address": address,
        "ha_address": address.replace("10911", "10912"),
        "data_version": DataVersion(counter=1, timestamp_ms=1),
        "topics": topics("T1", "T2"),
        "connection": CONNECTIONS.get(address),
    }
    return RegisteredBroker(**{**parts, **changes})


def addresses(table: RouteTable, topic: str = "T1") -> dict[int, str]:
    route = table.route(topic)
    assert route is not None
    return route.brokers[0].addresses


def permission(table: RouteTable, topic: str = "T1") -> int:
    route = table.route(topic)
    assert route is not None
    return route.queues[0].permission


@pytest.fixture
def table() -> RouteTable:
    made = RouteTable()
    assert made.register(broker(), 0) is None
    return made


def test_1_slave_learns_its_master_and_does_not_change_topics(table: RouteTable) -> None:
    assert addresses(table) == {0: MASTER}
    learned = table.register(broker(1, SLAVE, topics=topics("T1", "T9", count=99)), 1)
    assert learned is not None
    assert (learned.address, learned.ha_address) == (MASTER, "10.0.0.1:10912")
    assert addresses(table) == {0: MASTER, 1: SLAVE}
    assert table.topics() == ["T1", "T2"]
    route = table.route("T1")
    assert route is not None
    assert route.queues == (
        QueueData(broker_name="broker-a", permission=6, read_queue_count=4, write_queue_count=4),
    )


def test_slave_without_a_living_master_learns_nothing() -> None:
    table = RouteTable()
    assert table.register(broker(1, SLAVE), 0) is None
    assert table.route("T1") is None  # its topics do not count: it does not support acting masters
    assert table.topics() == []


def test_2_slave_that_became_master_is_listed_once(table: RouteTable) -> None:
    table.register(broker(1, SLAVE), 0)
    table.unregister("C", "broker-a", MASTER)
    table.register(broker(0, SLAVE), 1)
    assert addresses(table) == {0: SLAVE}


def test_3_first_registration_with_one_topic_is_refused_and_leaves_nothing() -> None:
    table = RouteTable()
    with pytest.raises(RequestRejected, match="all topics") as caught:
        table.register(broker(topics=topics("T1")), 0)
    assert caught.value.code == 1
    assert table.cluster_info().brokers == {}
    assert table.data_version(("C", MASTER)) is None
    table.register(broker(topics={}), 0)
    table.register(broker(topics=topics("T1"), data_version=DataVersion(counter=2)), 1)
    assert table.topics() == ["T1"]


def test_new_id_with_one_topic_is_refused_too(table: RouteTable) -> None:
    with pytest.raises(RequestRejected):
        table.register(broker(1, SLAVE, topics=topics("T1")), 1)
    assert addresses(table) == {0: MASTER}


def test_5_wiped_permission_survives_equal_versions_only(table: RouteTable) -> None:
    assert table.wipe_write_permission("broker-a") == 2
    table.register(broker(), 1)
    assert permission(table) == 4
    table.register(broker(data_version=DataVersion(counter=2)), 2)
    assert permission(table) == 6


def test_older_version_counts_as_changed(table: RouteTable) -> None:
    table.register(broker(data_version=DataVersion(counter=0), topics=topics("T1", "T2", count=1)), 1)
    route = table.route("T1")
    assert route is not None
    assert route.queues[0].read_queue_count == 1


def test_equal_version_adds_missing_topics_and_keeps_absent_ones(table: RouteTable) -> None:
    table.register(broker(topics=topics("T2", "T3", count=7)), 1)
    assert table.topics() == ["T1", "T2", "T3"]
    assert [table.route(name).queues[0].read_queue_count for name in ("T2", "T3")] == [4, 7]  # type: ignore[union-attr]


def test_missing_topics_go_when_asked(table: RouteTable) -> None:
    table.register(broker(address=OTHER, broker_name="broker-b"), 1)
    table.register(broker(topics=topics("T2", "T3")), 2, drops_missing_topics=True)
    assert table.topics() == ["T1", "T2", "T3"]
    route = table.route("T1")
    assert route is not None
    assert [data.broker_name for data in route.queues] == ["broker-b"]


def test_6_master_leaves_and_then_the_slave(table: RouteTable) -> None:
    table.register(broker(1, SLAVE), 0)
    gone = table.drop_connection(CONNECTIONS[MASTER])
    assert [live.address for live in gone] == [MASTER]
    assert addresses(table) == {1: SLAVE}
    assert permission(table) == 6
    table.drop_connection(CONNECTIONS[SLAVE])
    assert table.route("T1") is None
    info = table.cluster_info()
    assert (info.brokers, info.clusters, table.topics()) == ({}, {}, [])


def test_one_connection_of_several_brokers_takes_all_with_it(table: RouteTable) -> None:
    table.register(broker(address=OTHER, broker_name="broker-b", connection=CONNECTIONS[MASTER]), 0)
    assert len(table.drop_connection(CONNECTIONS[MASTER])) == 2
    assert table.topics() == []


def test_7_silent_brokers_expire_after_their_own_time(table: RouteTable) -> None:
    table.register(broker(1, SLAVE, heartbeat_timeout_ms=10_000), 0)
    assert table.expire(10) == []
    assert [live.address for live in table.expire(10.1)] == [SLAVE]
    table.touch(("C", MASTER), 100)
    table.touch(("C", "unknown"), 100)
    assert table.expire(219) == []
    assert [live.address for live in table.expire(220.5)] == [MASTER]
    assert table.route("T1") is None


def test_7_close_of_an_old_connection_does_nothing(table: RouteTable) -> None:
    table.register(broker(connection="newer"), 1)
    assert table.drop_connection(CONNECTIONS[MASTER]) == []
    assert addresses(table) == {0: MASTER}


def test_newcomer_of_an_older_term_does_not_replace_the_living_master(table: RouteTable) -> None:
    table.register(broker(data_version=DataVersion(counter=1, state_version=5)), 0)
    assert table.register(broker(0, OTHER, data_version=DataVersion(counter=9, state_version=4)), 1) is None
    assert addresses(table) == {0: MASTER}
    assert table.data_version(("C", OTHER)) is None
    table.register(broker(0, OTHER, data_version=DataVersion(state_version=5)), 2)
    assert addresses(table) == {0: OTHER}
    # The replaced broker still counts as live; its end must not affect its successor.
    table.drop_connection(CONNECTIONS[MASTER])
    assert addresses(table) == {0: OTHER}


def test_slave_that_claims_a_living_masters_place_is_taken_out(table: RouteTable) -> None:
    table.register(broker(data_version=DataVersion(state_version=5)), 0)
    table.register(broker(1, SLAVE), 0)
    table.register(broker(0, SLAVE), 1)
    assert addresses(table) == {0: MASTER}


def test_address_that_took_another_name_leaves_the_old_one(table: RouteTable) -> None:
    table.register(broker(broker_name="renamed"), 1)
    assert list(table.cluster_info().brokers) == ["renamed"]
    table.unregister("C", "broker-a", MASTER)
    assert table.data_version(("C", MASTER)) is not None


def test_unregister_goes_by_address_and_ignores_the_unknown(table: RouteTable) -> None:
    table.unregister("C", "broker-a", "10.9.9.9:1")
    table.unregister("C", "nobody", MASTER)
    assert addresses(table) == {0: MASTER}


def test_a_late_unregister_of_an_earlier_role_leaves_the_present_one(table: RouteTable) -> None:
    """A slave becomes master at its address, and the end of its old role is reported after that."""
    assert not table.unregister("C", "broker-a", MASTER, 2)
    assert addresses(table) == {0: MASTER}
    assert table.data_version(("C", MASTER)) is not None
    assert table.unregister("C", "broker-a", MASTER, 0)
    assert "broker-a" not in table.cluster_info().brokers
    assert table.unregister("C", "broker-a", MASTER, 0)  # already removed


def test_topic_stays_while_another_broker_has_it(table: RouteTable) -> None:
    table.register(broker(address=OTHER, broker_name="broker-b", topics=topics("T1", "B")), 0)
    table.unregister("C", "broker-a", MASTER)
    assert table.topics() == ["T1", "B"]
    assert table.cluster_info().clusters == {"C": ("broker-b",)}


# Acting master


def test_smallest_slave_gives_topics_without_the_write_bit() -> None:
    table = RouteTable()
    table.register(broker(1, SLAVE, is_acting_master_enabled=True), 0)
    assert permission(table) == 4
    plain = RouteTable()
    plain.register(broker(1, SLAVE, is_acting_master_enabled=False), 0)
    assert permission(plain) == 6


def test_loss_of_the_master_takes_the_write_bit_and_its_return_restores_it() -> None:
    table = RouteTable()
    table.register(broker(is_acting_master_enabled=True), 0)
    table.register(broker(2, SLAVE, is_acting_master_enabled=True), 0)
    table.unregister("C", "broker-a", MASTER)
    assert permission(table) == 4
    shown = table.route("T1", shows_acting_master=True)
    assert shown is not None
    assert shown.brokers[0].addresses == {0: SLAVE}
    assert addresses(table) == {2: SLAVE}
    table.register(broker(is_acting_master_enabled=True), 1)
    assert permission(table) == 6
    shown = table.route("T1", shows_acting_master=True)
    assert shown is not None
    assert shown.brokers[0].addresses == {0: MASTER, 2: SLAVE}


def test_acting_master_is_not_shown_for_sync_topics() -> None:
    table = RouteTable()
    topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    table.register(broker(1, SLAVE, topics=topics(topic, "T1"), is_acting_master_enabled=True), 0)
    route = table.route(topic, shows_acting_master=True)
    assert route is not None
    assert route.brokers[0].addresses == {1: SLAVE}


# Queries and administration


def test_filter_servers_appear_until_cleared(table: RouteTable) -> None:
    table.register(broker(filter_servers=("f:1", "f:2")), 1)
    assert table.route("T1").filter_servers == {MASTER: ["f:1", "f:2"]}  # type: ignore[union-attr]
    table.register(broker(filter_servers=None), 2)
    assert table.route("T1").filter_servers == {MASTER: ["f:1", "f:2"]}  # type: ignore[union-attr]
    table.register(broker(filter_servers=()), 3)
    assert table.route("T1").filter_servers == {}  # type: ignore[union-attr]


def test_topic_registered_alone(table: RouteTable) -> None:
    ours = QueueData(broker_name="broker-a", permission=6, read_queue_count=2, write_queue_count=2)
    theirs = QueueData(broker_name="nobody", permission=6)
    table.register_topic("New", [ours, theirs])
    assert table.route("New") is None
    table.register_topic("New", [ours])
    assert table.route("New").queues == (ours,)  # type: ignore[union-attr]
    table.register_topic("T1", [ours, theirs])
    assert table.route("T1").queues == (ours,)  # type: ignore[union-attr]
    table.register_topic("Empty", [])
    assert "Empty" not in table.topics()


def test_topics_by_cluster_flag_and_system(table: RouteTable) -> None:
    table.register(
        broker(cluster="D", broker_name="broker-d", address=OTHER, topics=topics("U", "T1", sys_flag=1)), 0
    )
    assert table.topics_of_cluster("C") == ["T1", "T2"]
    assert table.topics_of_cluster("D") == ["T1", "U"]
    assert table.topics_of_cluster("none") == []
    assert table.topics_with_flag(set_bits=1) == ["U"]  # T1's first broker has no flag
    table.register(
        broker(broker_name="broker-e", address="10.0.0.4:1", topics=topics("V", "W", sys_flag=3)), 0
    )
    assert table.topics_with_flag(set_bits=2) == ["V", "W"]
    assert table.topics_with_flag(set_bits=2, clear_bits=1) == []
    assert table.system_topics() == (["C", "broker-a", "broker-e", "D", "broker-d"], MASTER)
    assert RouteTable().system_topics() == ([], None)


def test_topic_deletion_by_cluster_and_everywhere(table: RouteTable) -> None:
    table.register(broker(cluster="D", broker_name="broker-d", address=OTHER), 0)
    table.delete_topic("T1", "D")
    assert [data.broker_name for data in table.route("T1").queues] == ["broker-a"]  # type: ignore[union-attr]
    table.delete_topic("T1", "C")
    assert table.route("T1") is None
    table.delete_topic("T2", None)
    table.delete_topic("T2", "C")
    table.delete_topic("T9", None)
    assert table.topics() == []


def test_added_permission_is_exactly_read_and_write() -> None:
    table = RouteTable()
    table.register(broker(topics=topics("T1", "T2", permission=7)), 0)
    assert table.add_write_permission("broker-a") == 2
    assert permission(table) == 6
    assert table.add_write_permission("nobody") == 0


def test_member_group_of_known_and_unknown_names(table: RouteTable) -> None:
    assert table.member_group("X", "broker-a").addresses == {0: MASTER}
    unknown = table.member_group("X", "nobody")
    assert (unknown.addresses, unknown.broker_name, unknown.cluster) == ({}, "nobody", "X")


def test_answers_are_copies(table: RouteTable) -> None:
    addresses(table)[7] = "x"
    table.cluster_info().brokers["broker-a"].addresses[8] = "y"
    assert addresses(table) == {0: MASTER}


def test_zone_filter_drops_masters_of_other_zones(table: RouteTable) -> None:
    table.register(broker(zone_name="Z1"), 1)
    table.register(broker(address=OTHER, broker_name="broker-b", zone_name="z2"), 1)
    table.register(broker(3, "10.0.0.5:1", broker_name="broker-c", is_acting_master_enabled=True), 1)
    route = table.route("T1")
    assert isinstance(route, TopicRoute)
    kept = select_zone(route, "Z2")
    assert [data.broker_name for data in kept.brokers] == ["broker-b", "broker-c"]
    assert [data.broker_name for data in kept.queues] == ["broker-b", "broker-c"]
    nothing = select_zone(select_zone(route, "none"), "none")
    assert [data.broker_name for data in nothing.queues] == ["broker-c"]


def test_what_would_be_too_much_is_refused_and_changes_nothing() -> None:
    table = RouteTable(brokers_max=2, topics_max=3)
    table.register(broker(), 0.0)
    with pytest.raises(RequestRejected, match=r"2 new topics .* more than 3"):
        table.register(broker(0, OTHER, broker_name="broker-b", topics=topics("T3", "T4")), 0.0)
    assert (table.broker_names(), sorted(table.topics())) == (["broker-a"], ["T1", "T2"])
    table.register(broker(0, OTHER, broker_name="broker-b", topics=topics("T1", "T3")), 0.0)
    with pytest.raises(RequestRejected, match="3 topics"):
        table.register_topic("T4", [QueueData(broker_name="broker-a")])
    with pytest.raises(RequestRejected, match="2 brokers"):
        table.register(broker(1, SLAVE), 0.0)
    # A live broker may always register again, and a freed place can be used.
    table.register(broker(), 1.0)
    table.unregister("C", "broker-b", OTHER)
    table.register(broker(1, SLAVE), 1.0)
    assert addresses(table) == {0: MASTER, 1: SLAVE}


NAMES = ("broker-a", "broker-b", "broker-c")
TOPICS = ("T1", "T2", "T3", "T4")


def queues_by_looking_at_all(table: RouteTable) -> set[tuple[str, str]]:
    """Returns (broker, topic) for all queues in routes."""
    routes = {topic: table.route(topic) for topic in table.topics()}
    assert None not in routes.values()  # every topic has a known broker
    return {(data.broker_name, topic) for topic, route in routes.items() if route for data in route.queues}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ("register", "register and drop", "leave", "register a topic", "delete", "delete of C")
            ),
            st.sampled_from(NAMES),
            st.lists(st.sampled_from(TOPICS), unique=True),
        ),
        max_size=30,
    )
)
def test_topics_of_a_broker_are_those_that_a_look_at_all_topics_finds(
    changes: list[tuple[str, str, list[str]]],
) -> None:
    table, expected = RouteTable(), set[tuple[str, str]]()
    for number, (change, name, chosen) in enumerate(changes):
        known = table.broker_names()
        one = chosen[0] if chosen else "T1"
        cluster = "C" if name != "broker-c" else "D"
        match change:
            case "register" | "register and drop":
                if name not in known and len(chosen) == 1:
                    continue
                drops = change == "register and drop"
                made = broker(
                    broker_name=name,
                    cluster=cluster,
                    address=f"{name}:1",
                    topics=topics(*chosen),
                    data_version=DataVersion(counter=number // 3),
                )
                table.register(made, number, drops_missing_topics=drops)
                if drops:
                    expected = {pair for pair in expected if pair[0] != name}
                expected |= {(name, topic) for topic in chosen}
            case "leave":
                table.unregister(cluster, name, f"{name}:1")
                expected = {pair for pair in expected if pair[0] != name}
            case "register a topic":
                table.register_topic(one, [QueueData(broker_name=name, permission=6)])
                expected |= {(name, one)} & {(other, one) for other in known}
            case "delete":
                table.delete_topic(one, None)
                expected = {pair for pair in expected if pair[1] != one}
            case _:
                table.delete_topic(one, "C")
                expected = {pair for pair in expected if pair[1] != one or pair[0] == "broker-c"}
        assert queues_by_looking_at_all(table) == expected
        for other in NAMES:
            count = sum(pair[0] == other for pair in expected)
            assert table.wipe_write_permission(other) == table.add_write_permission(other) == count
