"""Membership and subscriptions of groups; every change is told once (spec semantics 16.1)."""

from __future__ import annotations

import pytest

from tandemmq.broker.clients.consumer_table import ConsumerTable, Consumption, Subscription, make_subscription
from tandemmq.broker.clients.membership import Member
from tandemmq.broker.clients.producer_table import ProducerTable
from tandemmq.errors import BadRequest

CLUSTERING = Consumption("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")


class FakeChannel:
    pass


def member(channel: object, client_id: str = "c1", seen_at_ms: int = 0) -> Member:
    return Member(channel, client_id, 0, 479, seen_at_ms)  # type: ignore[arg-type]  # only its identity counts


def wants(topic: str, expression: str = "*", version: int = 1) -> Subscription:
    return make_subscription(topic, expression, "TAG", version)


def make_table() -> tuple[ConsumerTable, list[str]]:
    changed: list[str] = []
    return ConsumerTable(groups_per_client_max=4, on_change=changed.append), changed


def test_joining_changing_and_leaving_are_told() -> None:
    table, changed = make_table()
    channel = FakeChannel()
    assert table.register("g", member(channel), CLUSTERING, [wants("T")])
    assert not table.register("g", member(channel), CLUSTERING, [wants("T", "a", 2)])
    assert table.register("g", member(channel), CLUSTERING, [wants("T"), wants("U")])
    assert table.register("g", member(channel, "c2"), CLUSTERING, [wants("T"), wants("U")])
    assert [m.client_id for m in table.members("g")] == ["c2"]
    table.drop_channel(channel)  # type: ignore[arg-type]  # as above
    assert changed == ["g"] * 4
    assert table.get("g") is None
    assert table.groups == []


def test_newest_version_of_a_subscription_counts() -> None:
    table, _ = make_table()
    table.register("g", member(FakeChannel()), CLUSTERING, [wants("T", "new", 5)])
    table.register("g", member(FakeChannel(), "c2"), CLUSTERING, [wants("T", "old", 4)])
    group = table.get("g")
    assert group is not None
    assert group.subscriptions["T"].expression == "new"


def test_heartbeat_without_subscriptions_keeps_them() -> None:
    table, _ = make_table()
    channel = FakeChannel()
    table.register("g", member(channel), CLUSTERING, [wants("T")])
    assert not table.register("g", member(channel), CLUSTERING, None)
    group = table.get("g")
    assert group is not None
    assert list(group.subscriptions) == ["T"]
    assert table.groups_of_topic("T") == ["g"]


def test_connection_leaves_all_its_groups() -> None:
    table, changed = make_table()
    first, second = FakeChannel(), FakeChannel()
    for name in ("g", "h"):
        table.register(name, member(first, seen_at_ms=5), CLUSTERING, [wants("T")])
    table.register("g", member(second, "c2"), CLUSTERING, [wants("T")])
    assert table.seen_at_ms(first) == 5  # type: ignore[arg-type]  # as above
    changed.clear()
    table.drop_channel(first)  # type: ignore[arg-type]  # as above
    assert changed == ["g", "h"]
    assert table.seen_at_ms(first) == 0  # type: ignore[arg-type]  # as above
    assert [m.client_id for m in table.members("g")] == ["c2"]
    assert table.find_client("g", "c2") is not None
    assert table.find_client("g", "c1") is None
    table.drop_channel(first)  # type: ignore[arg-type]  # nothing is left to drop
    table.unregister("nowhere", second)  # type: ignore[arg-type]  # no such group


def test_groups_of_one_connection_are_bounded() -> None:
    table, _ = make_table()
    channel = FakeChannel()
    for number in range(4):
        table.register(f"g{number}", member(channel), CLUSTERING, [])
    with pytest.raises(BadRequest, match="4"):
        table.register("g4", member(channel), CLUSTERING, [])
    assert table.get("g4") is None


def test_producers_come_and_go() -> None:
    table = ProducerTable(groups_per_client_max=4)
    channel = FakeChannel()
    table.register("p", member(channel))
    assert (table.groups, [m.client_id for m in table.members("p")]) == (["p"], ["c1"])
    table.unregister("p", channel)  # type: ignore[arg-type]  # as above
    assert table.groups == []
