"""Bits that turn over on the platter: whatever recovery and reading give back must be what was sent.

A record's checksum covers its body only (spec store 3), so bits are flipped where damage can be noticed: in
bodies, and in what says how long a record is. Losing records behind the damage is allowed
here; giving out a damaged one is not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tandemmq.errors import RequestRejected
from tandemmq.protocol.record import RecordError, decode_record
from tandemmq.sim.dice import Dice
from tandemmq.sim.image import Tear
from tandemmq.sim.ledger import Ledger, Send
from tandemmq.sim.machine import Machine
from tandemmq.sim.workload import STORE_HOST, random_options, random_record
from tandemmq.store import FlushMode, GetStatus, MessageStore, PutStatus

RECORDS = 60
ROUNDS = 6
_HEAD_FIELDS = ((0, 8), (84, 88))  # size, magic; body length


@dataclass(slots=True)
class FlipResult:
    """What one seed flipped; `returned` must be empty."""

    seed: int
    flipped_count: int = 0
    cut_count: int = 0  # recovery ended the log at or before the damage
    refused_count: int = 0  # a reader's checksum noticed it
    returned: list[str] = field(default_factory=list)


def run_flips(seed: int) -> FlipResult:
    """One seed: fill, flip a bit, start, read everything; several times over."""
    return asyncio.run(_FlipRun(seed).run())


class _FlipRun:
    def __init__(self, seed: int) -> None:
        self.result = FlipResult(seed)
        self.dice = Dice(seed)
        self.options = random_options(self.dice)
        is_sync = self.options.flush_mode is FlushMode.SYNC_FLUSH
        self.ledger = Ledger(
            is_sync=is_sync, is_pooled=self.options.uses_transient_pool, store_host=STORE_HOST
        )
        self.machine = Machine(
            self.options,
            dice=self.dice,
            ledger=self.ledger,
            note=lambda _: None,
            open_store=MessageStore.open,
        )
        self._sends: list[Send] = []

    async def run(self) -> FlipResult:
        machine = self.machine
        await machine.start()
        for _ in range(ROUNDS):
            await self._fill()
            if self.dice.happens(50):
                await machine.stop()
            else:
                machine.lose(is_power_cut=False, tear=Tear.EVERYTHING)
            await machine.replace()
            damaged = self._flip()
            await machine.start()
            self.ledger.is_frozen = False
            self._read(damaged)
            end = self._store.max_log_offset
            self.result.cut_count += damaged is not None and end <= damaged.log_offset
            self._sends = [send for send in self._sends if send.end <= end and send is not damaged]
        await machine.end_tasks()
        return self.result

    @property
    def _store(self) -> MessageStore:
        assert self.machine.store is not None
        return self.machine.store

    async def _fill(self) -> None:
        for number in range(RECORDS):
            record = random_record(self.dice, self.options, number)
            record.sys_flag = 0
            try:
                placed = self._store.append([record], _ignore)
            except RequestRejected:
                continue
            self._sends += self.ledger.add([record], placed, 0.0)
            await self.machine.pass_time(self.dice.between(0, 20) / 1000)
        await self.machine.pass_time(1)

    def _flip(self) -> Send | None:
        """Turn one bit of one record over; None when there was no record."""
        end = self._log_end()
        sends = [send for send in self._sends if send.end <= end]
        if not sends:
            return None
        send = self.dice.pick(sends)
        begin, stop = self.dice.pick(_HEAD_FIELDS)
        if send.record.body and self.dice.happens(75):
            begin, stop = 88, 88 + len(send.record.body)
        at = send.log_offset + self.dice.between(begin, stop - 1)
        size = self.options.commit_log_file_bytes
        node = self.machine.disk.image.files[self.options.log_dir / f"{at - at % size:020d}"]
        node.data[at % size] ^= 1 << self.dice.below(8)
        self.result.flipped_count += 1
        return send

    def _log_end(self) -> int:
        names = [int(path.name) for path in self.machine.disk.image.files if path.parent.name == "commitlog"]
        return max(names, default=0) + self.options.commit_log_file_bytes if names else 0

    def _read(self, damaged: Send | None) -> None:
        """Read every queue as a consumer does; whatever passes the checksum must be what was sent."""
        store = self._store
        for topic, queue_id in store.queue_keys():
            offset, end = store.queue_min(topic, queue_id), store.queue_max(topic, queue_id)
            while offset < end:
                result = store.get(topic, queue_id, offset, count_max=1)
                for view in result.slices:
                    self._judge(bytes(view), damaged)
                offset = (
                    max(offset + 1, result.next_offset) if result.status is GetStatus.FOUND else offset + 1
                )

    def _judge(self, data: bytes, damaged: Send | None) -> None:
        try:
            record = decode_record(data)
        except RecordError:
            self.result.refused_count += 1
            return
        candidates = self.ledger.by_offset.get(record.log_offset, [])
        if not any(send.data == data for send in candidates):
            self.result.returned.append(
                f"seed {self.result.seed}: {damaged} came back as {record.log_offset}"
            )


def _ignore(status: PutStatus) -> None:
    return None
