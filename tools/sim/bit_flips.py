"""Bit flips on the platter: recovery and reads must return only data that was sent.

A record's checksum covers its body only (spec store 3), so bits are flipped where damage can be detected: in
bodies, in the fields that hold lengths, and in the queue offset. Records that were on disk before a power
cut, or written before a clean stop or a kill, stay readable, except for the damaged record, which is never
returned. Then the bit is flipped back, as a repair does: the record is readable again, and sends are
accepted. A bit flip in a queue's entry after a clean stop loses nothing: the start repairs it, or the scrub
does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from sim.dice import Dice
from sim.image import Tear
from sim.ledger import Ledger, Send
from sim.machine import Machine
from sim.workload import STORE_HOST, random_options, random_record
from tandemmq.errors import RequestRejected
from tandemmq.protocol.record import RecordError, decode_record
from tandemmq.store import FlushMode, GetStatus, MessageStore, PutStatus
from tandemmq.store.checkpoint import CheckpointTimes, decode_checkpoint
from tandemmq.store.options import QUEUE_UNIT_BYTES

THOROUGH_FLUSH_S = 61
RECORDS = 60
ROUNDS = 6
_NUMBER = slice(20, 28)
_HEAD_FIELDS = ((0, 8), (84, 88), (_NUMBER.start, _NUMBER.stop))  # size, magic; body length; queue offset


@dataclass(slots=True)
class FlipResult:
    """The flips and findings of one seed; `returned` and `lost` must be empty."""

    seed: int
    flipped_count: int = 0
    cut_count: int = 0  # recovery mistook the damage for a torn tail, which is allowed after a power cut
    refused_count: int = 0  # detected by a reader's checksum
    entry_count: int = 0  # bits of queue entries
    fenced_count: int = 0  # detected by recovery, and sends are refused
    returned: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Flip:
    """A bit flip in one record; `below_mark`: the checkpoint recorded that the record was on disk."""

    send: Send
    at: int
    mask: int
    below_mark: bool

    @property
    def number(self) -> int | None:
        """The queue offset that the record has now; None if the flip is elsewhere."""
        place = self.at - self.send.log_offset
        if not _NUMBER.start <= place < _NUMBER.stop:
            return None
        raw = bytearray(self.send.data[_NUMBER])
        raw[place - _NUMBER.start] ^= self.mask
        return int.from_bytes(raw, "big", signed=True)


def run_flips(seed: int) -> FlipResult:
    """Runs one seed: fills the store, flips a bit, starts it and reads everything, several times."""
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
        self._was_power_cut = self._was_stopped = False

    async def run(self) -> FlipResult:
        await self.machine.start()
        for _ in range(ROUNDS):
            await self._fill()
            kept_end = await self._end_run()
            is_of_entry = self._was_stopped and self.dice.happens(50) and self._flip_entry()
            flip = None if is_of_entry else self._flip(kept_end)
            await self._start()
            if is_of_entry:
                await self._store.scrub(self._store.min_log_offset, self._store.max_log_offset)
                # The repair is on disk then. A power cut before that brings the wrong entry back, and the
                # next scrub repairs it again.
                await self.machine.pass_time(THOROUGH_FLUSH_S)
            found = self._read(flip)
            self._check_kept(kept_end, flip, found)
            self._sends = [send for send in self._sends if send in found]
            if flip is not None and self._store.max_log_offset > flip.send.log_offset:
                await self._heal(flip)
        await self.machine.end_tasks()
        return self.result

    async def _end_run(self) -> int:
        """Stops, kills or cuts the power; returns the offset up to which the log must survive."""
        machine, store = self.machine, self._store
        way = self.dice.below(3)
        self._was_stopped, self._was_power_cut = way == 0, way == 1
        if way == 0:
            await machine.stop()
            kept_end = store.max_log_offset
        else:
            kept_end = store.flushed.value if self._was_power_cut else store.appended.value
            machine.lose(is_power_cut=self._was_power_cut, tear=self.dice.pick(tuple(Tear)))
        await machine.replace()
        return kept_end

    async def _start(self) -> None:
        machine = self.machine
        is_open = await machine.start()
        assert is_open, f"seed {self.result.seed}: the store does not open"
        end = self._store.max_log_offset
        self.ledger.written_end = self.ledger.durable_end = end
        self.ledger.is_frozen = False

    def _check_kept(self, kept_end: int, flip: Flip | None, found: set[Send]) -> None:
        """Checks that undamaged records are there. A flip beyond the mark may look like the tear of a power
        cut, and end the log.
        """
        store, result = self._store, self.result
        damaged = None if flip is None else flip.send
        if flip is not None and store.max_log_offset <= flip.send.log_offset:
            result.cut_count += 1
            if not flip.below_mark and self._was_power_cut:
                kept_end = min(kept_end, flip.send.log_offset)
        result.fenced_count += bool(store.damaged_ranges)
        result.lost += [
            f"seed {result.seed}: {send} is gone, {damaged} was damaged"
            for send in self._sends
            if send.end <= kept_end and send is not damaged and send not in found
        ]

    async def _heal(self, flip: Flip) -> None:
        """Flips the bit back while nothing runs, and lets the queues be rebuilt from the log."""
        await self.machine.stop()
        await self.machine.replace()
        self._flip_byte(flip)
        files = self.machine.disk.image.files
        for path in [path for path in files if "consumequeue" in path.parts]:
            del files[path]
        await self._start()
        if flip.send not in self._sends:
            self._sends.append(flip.send)
        found = self._read(None)
        missing = [send for send in self._sends if send not in found]
        self.result.lost += [f"seed {self.result.seed}: {send} did not come back" for send in missing]
        assert not self._store.damaged_ranges

    @property
    def _store(self) -> MessageStore:
        assert self.machine.store is not None
        return self.machine.store

    async def _fill(self) -> None:
        for number in range(RECORDS):
            record = random_record(self.dice, self.options, number)
            record.sys_flag = 0
            try:
                placed = self._store.appender.append([record], _ignore)
            except RequestRejected:
                continue
            self._sends += self.ledger.add([record], placed, 0.0)
            await self.machine.pass_time(self.dice.between(0, 20) / 1000)
        await self.machine.pass_time(1)

    def _flip(self, kept_end: int) -> Flip | None:
        """Flips one bit of one record; returns None if there is no record."""
        sends = [send for send in self._sends if send.end <= kept_end]
        if not sends:
            return None
        send = self.dice.pick(sends)
        begin, stop = self.dice.pick(_HEAD_FIELDS)
        if send.record.body and self.dice.happens(60):
            begin, stop = 88, 88 + len(send.record.body)
        elif begin == _NUMBER.start:
            send = self.dice.pick(sends[-RECORDS:])  # a start trusts the entries of older ones
        checkpoint = self.machine.disk.image.files.get(self.options.root / "checkpoint")
        times = CheckpointTimes() if checkpoint is None else decode_checkpoint(bytes(checkpoint.data))
        flip = Flip(
            send=send,
            at=send.log_offset + self.dice.between(begin, stop - 1),
            mask=1 << self.dice.below(8),
            below_mark=send.end <= (times.durable_log_offset or 0),
        )
        if flip.number == 0 or (flip.number is not None and self._is_last(send)):
            # A topic that was created again begins with 0, and after the last record of a queue nothing
            # reveals it.
            flip = replace(flip, at=send.log_offset)
        self._flip_byte(flip)
        self.result.flipped_count += 1
        return flip

    def _is_last(self, send: Send) -> bool:
        """Returns True for the last record of its queue."""
        key = send.record.topic, send.record.queue_id
        others = (one for one in self._sends if (one.record.topic, one.record.queue_id) == key)
        return all(one.log_offset <= send.log_offset for one in others)

    def _flip_entry(self) -> bool:
        """Flips one bit of one queue entry while nothing runs; returns False if there is no entry."""
        files = self.machine.disk.image.files
        queues = sorted(path for path in files if "consumequeue" in path.parts)
        entries = [
            (path, at)
            for path in queues
            for at in range(0, len(files[path].data), QUEUE_UNIT_BYTES)
            if any(files[path].data[at : at + QUEUE_UNIT_BYTES])
        ]
        if not entries:
            return False
        path, at = self.dice.pick(entries)
        files[path].data[at + self.dice.below(QUEUE_UNIT_BYTES)] ^= 1 << self.dice.below(8)
        self.result.entry_count += 1
        return True

    def _flip_byte(self, flip: Flip) -> None:
        size = self.options.commit_log_file_bytes
        name = f"{flip.at - flip.at % size:020d}"
        self.machine.disk.image.files[self.options.log_dir / name].data[flip.at % size] ^= flip.mask

    def _read(self, flip: Flip | None) -> set[Send]:
        """Reads every queue as a consumer does; a record that passes the checksum must be one that
        was sent.
        """
        store = self._store
        found: set[Send] = set()
        for topic, queue_id in store.queue_keys():
            offset, end = store.queue_min(topic, queue_id), store.queue_max(topic, queue_id)
            while offset < end:
                result = store.reader.get(topic, queue_id, offset, count_max=1)
                for view in result.slices:
                    send = self._classify(bytes(view), flip)
                    if send is not None:
                        found.add(send)
                offset = (
                    max(offset + 1, result.next_offset) if result.status is GetStatus.FOUND else offset + 1
                )
        return found

    def _classify(self, data: bytes, flip: Flip | None) -> Send | None:
        try:
            record = decode_record(data)
        except RecordError:
            self.result.refused_count += 1
            return None
        for send in self.ledger.by_offset.get(record.log_offset, []):
            if send.data == data:
                return send
            if flip is not None and send is flip.send and flip.number == record.queue_offset:
                # If its entry was on disk, the record is served as it is: its queue offset is not used.
                raw = bytearray(data)
                raw[_NUMBER] = send.data[_NUMBER]
                if raw == send.data:
                    return send
        self.result.returned.append(f"seed {self.result.seed}: {flip} came back as {record.log_offset}")
        return None


def _ignore(status: PutStatus) -> None:
    return None
