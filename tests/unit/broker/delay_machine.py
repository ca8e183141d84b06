"""A machine that delivers delayed messages: its disk, its clock, and a broker's store and tables on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sim.memory import ManualClock, MemoryDisk
from tandemmq.broker.delay.delivery import make_deliveries
from tandemmq.broker.delay.postpone import DelayRule
from tandemmq.broker.delay.timers import COUNT_MAX, ROLL_AFTER_MS, TimerLimits, plan_timer
from tandemmq.broker.durable import DutyTasks
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.tables import Tables
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, Record, decode_records
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import GetStatus, MessageStore, StoreOptions
from tandemmq.units import ReplicaId

ROOT = Path("/broker")
HOST = b"\x0a\x00\x00\x01\x00\x00\xd4\x31"
DELAYS_MS = (1_000, 5_000, 10_000, 30_000)


class Machine:
    """Call `start`, then `stop`, `kill` or `power_cut`, any number of times."""

    def __init__(
        self, *, count_max: int = COUNT_MAX, roll_after_ms: int = ROLL_AFTER_MS, **store_changes: object
    ) -> None:
        self.count_max = count_max
        self.roll_after_ms = roll_after_ms
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.store_changes = store_changes
        self.store: MessageStore | None = None
        self.delivery: DutyTasks | None = None

    async def start(self, *, delivers: bool = True) -> None:
        settings: dict[str, object] = {
            "commit_log_file_bytes": 64 * 1024,
            "consume_queue_file_bytes": 4_000,
            "key_index_enable": False,
            "delay_levels_ms": DELAYS_MS,
            **self.store_changes,
        }
        options = BrokerOptions()
        store_options = StoreOptions(root=ROOT, **settings)  # type: ignore[arg-type]  # real fields
        self.store = await MessageStore.open(store_options, disk=self.disk, clock=self.clock)
        self.tables = Tables(options, ROOT / "config", disk=self.disk, clock=self.clock)
        self.tables.load(delay_level_count=len(store_options.delay_levels_ms))
        self.scope = TaskScope("test")
        self.scope.start("saver", self.tables.saver.run())
        self.rule = DelayRule(store_options.delay_levels_ms, TimerLimits())
        core: Any = SimpleNamespace(
            options=options,
            store=self.store,
            tables=self.tables,
            clock=self.clock,
            stats=BrokerStats(0.0),
        )
        make = partial(
            make_deliveries,
            core,
            timer_count_max=self.count_max,
            roll_after_ms=self.roll_after_ms,
        )
        self.delivery = DutyTasks(self.store, make)
        if delivers:
            self.delivery.start()
        await self.clock.pass_time(0)

    async def stop(self) -> None:
        """Stops in the same way as `Broker.stop`."""
        assert self.store is not None
        assert self.delivery is not None
        await self.delivery.stop()
        await self.tables.saver.close()
        await self.scope.close()
        await self.store.close()
        self.delivery.settle()
        await self.tables.saver.close()
        self._forget_timers()

    async def kill(self) -> None:
        """Kills the process; its writes stay in the page cache."""
        assert self.store is not None
        assert self.delivery is not None
        await self.delivery._scope.close()
        await self.scope.close()
        await self.store._core.tasks.close()
        self.disk._locks.clear()
        self._forget_timers()

    async def power_cut(self) -> None:
        """Cuts the power: unsynced writes are lost, too."""
        await self.kill()
        self.disk.power_cut()

    def _forget_timers(self) -> None:
        skew_ms = self.clock.skew_ms
        self.clock = ManualClock(now_ms=self.clock.now_ms() - skew_ms)
        self.clock.skew_ms = skew_ms

    def slave_has_all(self) -> None:
        """Makes an in-sync slave acknowledge the whole current log."""
        assert self.store is not None
        self.store.replies.acks.report(ReplicaId("slave"), self.store.appended.value)

    def delay(self, name: str, level: int, *, topic: str = "T") -> None:
        """Sends a message for a delay level."""
        record = self._record(name, topic, {"DELAY": str(level)})
        self.rule.postpone(record, min(level, self.rule.level_max), self.clock.now_ms())
        self._append(record)

    def time(self, name: str, timer_properties: Mapping[str, str], *, topic: str = "T") -> None:
        """Sends a message for a given time; one that is already due is stored at once."""
        record = self._record(name, topic, timer_properties)
        slot_ms = plan_timer(timer_properties, self.clock.now_ms(), self.rule.timers)
        if slot_ms is not None:
            self.rule.postpone_until(record, slot_ms)
        self._append(record)

    def _record(self, name: str, topic: str, pairs: Mapping[str, str]) -> NewRecord:
        properties = encode_properties({"UNIQ_KEY": name, **pairs})
        return NewRecord(
            topic=topic,
            queue_id=0,
            body=name.encode(),
            properties=properties,
            born_at_ms=self.clock.now_ms(),
            born_host=HOST,
            unique_key=name,
        )

    def _append(self, record: NewRecord) -> None:
        assert self.store is not None
        self.store.appender.append([record], lambda _status: None)
        self.store.appender.write_staged()

    def delivered(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """Returns every message of one of the topic's queues."""
        assert self.store is not None
        found: list[Record] = []
        at = self.store.queue_min(topic, queue_id)
        while True:
            got = self.store.reader.get(topic, queue_id, at, count_max=32)
            if got.status is not GetStatus.FOUND:
                return found
            found += [record for view in got.slices for record in decode_records(view)]
            at = got.next_offset

    def names(self, topic: str = "T") -> list[str]:
        return [record.body.decode() for record in self.delivered(topic)]
