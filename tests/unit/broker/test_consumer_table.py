"""Membership and subscriptions of groups; every change is reported once (spec semantics 16.1)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sim.manual_clock import ManualClock
from tandemmq.broker.clients.consumer_table import (
    ConsumerTable,
    Consumption,
    HeldSubscription,
    Member,
    ProducerTable,
    make_subscription,
)
from tandemmq.broker.clients.handlers import ClientHandlers
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pull.filters import SqlBudget
from tandemmq.errors import BadRequest

CLUSTERING = Consumption("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")


class FakeChannel:
    pass


class ClosableChannel(FakeChannel):
    peer = ("10.0.0.9", 4711)
    is_closed = False

    def close(self, _reason: str) -> None:
        self.is_closed = True


def member(channel: object, client_id: str = "c1", heard_s: float = 0.0) -> Member:
    return Member(channel, client_id, 0, 479, heard_s=heard_s)  # type: ignore[arg-type]  # only its identity counts


def wants(topic: str, expression: str = "*", version: int = 1) -> HeldSubscription:
    return make_subscription(topic, expression, "TAG", version, SqlBudget())


def make_table() -> tuple[ConsumerTable, list[str]]:
    changed: list[str] = []
    table = ConsumerTable(groups_per_client_max=4)
    table.on_change.append(changed.append)
    return table, changed


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
        table.register(name, member(first, heard_s=5.0), CLUSTERING, [wants("T")])
    table.register("g", member(second, "c2"), CLUSTERING, [wants("T")])
    assert table.heard_s(first) == 5.0  # type: ignore[arg-type]  # as above
    changed.clear()
    table.drop_channel(first)  # type: ignore[arg-type]  # as above
    assert changed == ["g", "h"]
    assert table.heard_s(first) is None  # type: ignore[arg-type]  # as above
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


def test_a_wall_clock_that_is_set_expires_no_client() -> None:
    clock, (consumers, _) = ManualClock(), make_table()
    core = SimpleNamespace(
        options=BrokerOptions(channel_expired_ms=120_000),
        consumers=consumers,
        producers=ProducerTable(groups_per_client_max=4),
        clock=clock,
    )
    handlers = ClientHandlers(core)  # type: ignore[arg-type]  # needs no more of it
    channel = ClosableChannel()
    handlers._watched[channel] = None  # type: ignore[index]  # as above
    consumers.register("g", member(channel, heard_s=clock.monotonic()), CLUSTERING, [wants("T")])
    clock.skew_ms = 3_600_000
    handlers.drop_silent()
    assert consumers.members("g")
    clock.advance(120.001)
    handlers.drop_silent()
    assert not consumers.members("g")
    assert channel.is_closed
