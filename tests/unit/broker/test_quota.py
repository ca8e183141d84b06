"""The topics and groups that one address may create by use, and those that are not counted."""

from __future__ import annotations

import pytest

from sim.memory import ManualClock
from tandemmq.broker.topics import quota as quotas
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.quota import PERIOD_S, CreationQuota
from tandemmq.errors import Busy, NotPermitted


def test_an_address_makes_so_many_at_once_and_as_many_within_an_hour() -> None:
    clock = ManualClock()
    quota = CreationQuota(4, clock)
    for number in range(4):
        quota.take("10.0.0.1", f"T{number}")
    with pytest.raises(NotPermitted, match=r"10\.0\.0\.1 has created 4 .*autoCreatePerAddressMax"):
        quota.take("10.0.0.1", "T4")
    quota.take("10.0.0.2", "T4")
    clock.advance(PERIOD_S / 4)
    quota.take("10.0.0.1", "T4")
    with pytest.raises(NotPermitted):
        quota.take("10.0.0.1", "T5")
    clock.advance(10 * PERIOD_S)
    for number in range(4):
        quota.take("10.0.0.1", f"U{number}")
    with pytest.raises(NotPermitted):
        quota.take("10.0.0.1", "U4")


@pytest.mark.parametrize(
    ("one", "other"),
    [("2001:db8::1", "2001:db8::ffff"), ("fe80::1%eth0", "fe80::2"), ("::ffff:10.0.0.1", "10.0.0.1")],
)
def test_one_network_of_ipv6_is_one_address(one: str, other: str) -> None:
    quota = CreationQuota(1, ManualClock())
    quota.take(one, "T")
    with pytest.raises(NotPermitted):
        quota.take(other, "U")
    quota.take("2001:db8:0:1::1", "U")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", ""])
def test_this_machine_is_not_counted_and_nobody_without_a_bound(host: str) -> None:
    bounded, unbounded = CreationQuota(1, ManualClock()), CreationQuota(0, ManualClock())
    for number in range(9):
        bounded.take(host, f"T{number}")
        unbounded.take("10.0.0.1", f"T{number}")


def test_addresses_are_forgotten_in_the_order_in_which_they_last_made_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "ADDRESSES_MAX", 2)
    quota = CreationQuota(2, ManualClock())
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3"):
        quota.take(host, "T")
    with pytest.raises(NotPermitted):
        quota.take("10.0.0.1", "U")
    quota.take("10.0.0.2", "U")
    quota.take("10.0.0.2", "V")


def test_a_table_counts_only_groups_that_it_makes() -> None:
    quota = CreationQuota(1, ManualClock())
    table = GroupTable(quota=quota, count_max=2)
    for _ in range(3):
        assert table.find_or_create("g", 0, "10.0.0.1") is not None
        assert table.find_or_create("no/slash", 0, "10.0.0.1") is None
    with pytest.raises(NotPermitted):
        table.find_or_create("h", 0, "10.0.0.1")
    assert table.get("h") is None
    assert table.find_or_create("h", 0) is not None
    with pytest.raises(Busy):
        table.find_or_create("i", 0, "10.0.0.2")
    quota.take("10.0.0.2", "what was refused for want of room does not count")
