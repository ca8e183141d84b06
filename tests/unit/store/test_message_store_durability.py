"""The table of docs/durability.md: what remains of a message answered with SEND_OK after each fault.

A master and a slave have disks of their own. The slave writes and acknowledges the bytes from the master.
Only the flushes that the settings require before the answer take place, which is the worst moment.
"""

from __future__ import annotations

from typing import Any

import pytest
from store_rig import Rig, bodies, record

from tandemmq.store import BrokerRole, FlushMode, MessageStore, PutStatus
from tandemmq.units import ReplicaId

ASYNC, SYNC = FlushMode.ASYNC_FLUSH, FlushMode.SYNC_FLUSH
KEPT, LOST = [b"promised"], []

SETTINGS: dict[str, dict[str, Any]] = {
    "one copy, ASYNC_FLUSH": {"flush_mode": ASYNC},
    "one copy, SYNC_FLUSH": {"flush_mode": SYNC},
    "two copies, ASYNC_FLUSH": {
        "flush_mode": ASYNC,
        "role": BrokerRole.SYNC_MASTER,
        "in_sync_replicas": 2,
    },
    "two copies, SYNC_FLUSH": {"flush_mode": SYNC, "role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2},
    "pool": {"transient_pool_enable": True},
    "pool, two copies": {
        "transient_pool_enable": True,
        "role": BrokerRole.SYNC_MASTER,
        "in_sync_replicas": 2,
    },
}

FAULTS = ("master killed", "master's power", "master's disk", "slave lost", "both lose power", "both killed")

MASTERS_LOG_IS_SHORT = {
    ("two copies, ASYNC_FLUSH", "master's power"),
    ("pool, two copies", "master's power"),
}
"""The cases in which the slave's log is used afterwards by the documented rule: the slave becomes master, or
the master fetches the missing bytes from it. Otherwise the master's own log is used, if it exists.
"""

LEFT: dict[str, tuple[list[bytes], ...]] = {
    "one copy, ASYNC_FLUSH": (KEPT, LOST, LOST, KEPT, LOST, KEPT),
    "one copy, SYNC_FLUSH": (KEPT, KEPT, LOST, KEPT, KEPT, KEPT),
    "two copies, ASYNC_FLUSH": (KEPT, KEPT, KEPT, KEPT, LOST, KEPT),
    "two copies, SYNC_FLUSH": (KEPT, KEPT, KEPT, KEPT, KEPT, KEPT),
    "pool": (LOST, LOST, LOST, KEPT, LOST, LOST),
    "pool, two copies": (KEPT, KEPT, KEPT, KEPT, LOST, KEPT),
}


class Pair:
    """A master and a slave that copies only on request: with one copy a send does not wait for it."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.master = Rig(**settings)
        plain = {"flush_mode": settings.get("flush_mode", ASYNC)}
        self.slave = Rig(**plain, role=BrokerRole.SLAVE)

    @property
    def has_two_copies(self) -> bool:
        return "in_sync_replicas" in self.settings

    async def promise(self) -> tuple[MessageStore, MessageStore]:
        """Returns both stores after the message was answered with SEND_OK."""
        master, slave = await self.master.open(), await self.slave.open()
        statuses: list[PutStatus] = []
        master.appender.append([record(b"promised")], statuses.append)
        self.master.clock.run_soon()
        if self.has_two_copies:
            assert statuses == [], "not before the slave has it"
            await self.master.clock.pass_time(0.3 if "transient_pool_enable" in self.settings else 0.01)
            slave.append_raw(0, memoryview(bytes(master.log.valid_view(0, 4096))))
            master.replies.acks.report(ReplicaId("slave"), slave.appended.value)
        elif self.settings.get("flush_mode") is SYNC:
            assert statuses == [], "not before the disk has it"
            await self.master.clock.pass_time(0.01)
        if self.has_two_copies and self.settings.get("flush_mode") is SYNC:
            await self.master.clock.pass_time(0.01)
        assert statuses == [PutStatus.PUT_OK]
        return master, slave

    async def left_after(self, fault: str, *, is_masters_log_used: bool) -> list[bytes]:
        """Returns the messages of the copy with which the cluster continues."""
        running, _ = await self.promise()
        if fault == "slave lost":
            await self.master.clock.pass_time(0.3)
            return bodies(running)
        if fault in ("master's power", "both lose power"):
            self.master.power_cut()
        else:
            self.master.kill()
        if fault == "both lose power":
            self.slave.power_cut()
        else:
            self.slave.kill()
        if is_masters_log_used:
            return bodies(await self.master.open())
        return bodies(await self.slave.open()) if self.has_two_copies else []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SETTINGS)
async def test_acknowledged_message_after_each_fault_matches_the_durability_table(
    name: str, fault: str
) -> None:
    is_masters_log_used = fault != "master's disk" and (name, fault) not in MASTERS_LOG_IS_SHORT
    left = await Pair(**SETTINGS[name]).left_after(fault, is_masters_log_used=is_masters_log_used)
    assert left == LEFT[name][FAULTS.index(fault)]


@pytest.mark.parametrize(("name", "fault"), sorted(MASTERS_LOG_IS_SHORT))
async def test_the_rule_is_needed_where_the_masters_log_is_short(name: str, fault: str) -> None:
    assert await Pair(**SETTINGS[name]).left_after(fault, is_masters_log_used=True) == LOST


@pytest.mark.parametrize(
    ("settings", "expected", "after_s"),
    [
        ({"role": BrokerRole.ASYNC_MASTER}, PutStatus.PUT_OK, 0.0),
        ({"role": BrokerRole.SYNC_MASTER}, PutStatus.PUT_OK, 0.0),
        ({"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2}, PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0),
        (
            {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 1, "sync_master_compat4": True},
            PutStatus.SLAVE_NOT_AVAILABLE,
            0.0,
        ),
    ],
)
async def test_send_status_without_a_slave(
    settings: dict[str, Any], expected: PutStatus, after_s: float
) -> None:
    """The message is stored and readable in every case."""
    rig = Rig(**settings)
    store = await rig.open()
    statuses = rig.put(store, record(b"x"))
    if after_s:
        assert statuses == []
        await rig.clock.pass_time(after_s - 0.1)
        assert statuses == []
        await rig.clock.pass_time(0.2)
    assert statuses == [expected]
    assert bodies(store) == [b"x"]


@pytest.mark.parametrize("name", ["two copies, SYNC_FLUSH", "one copy, SYNC_FLUSH"])
async def test_a_message_that_does_not_wait_is_as_safe_as_in_one_page_cache(name: str) -> None:
    """wait_stored=False, RocketMQ's waitStoreMsgOK."""
    rig = Rig(**SETTINGS[name])
    store = await rig.open()
    assert rig.put(store, record(b"x", waits=False)) == [PutStatus.PUT_OK]
    rig.power_cut()
    assert bodies(await rig.open()) == []
