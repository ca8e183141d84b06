"""The checks of half messages without a decision, on the master only: one task asks their producers.

`Asker` asks, `OpLog` records which half messages are done, and `TransactionChecks` is the task.
Source: spec semantics 17, spec store 14.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.durable import DurableWriter, Duty, Progress
from tandemmq.broker.topics.topic_table import make_topic
from tandemmq.broker.transaction import half as halves
from tandemmq.errors import MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import encode_message_id
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.protocol.requests.send import CheckTransactionRequest
from tandemmq.protocol.topic_names import DISCARD_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tandemmq.remoting.channel import Channel
from tandemmq.store.outcomes import Appended
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Asker:
    """Asks producers for the outcome of their transactions, the members of a group in turn:
    CHECK_TRANSACTION_STATE, oneway (spec semantics 17.6).

    The request contains the message, and any client may claim to belong to the group. So only members with
    the right to send to the message's topic are asked.
    """

    core: BrokerCore
    may_publish: Callable[[Channel, str], bool]
    _turn: int = 0

    def ask(self, half: Record, copy: NewRecord, appended: Appended) -> bool:
        """Asks one member. Returns False if no suitable member is online; the next round then tries again."""
        topic = half.text(names.REAL_TOPIC.encode())
        members = [
            member
            for member in self.core.producers.members(half.text(names.PGROUP.encode()))
            if not member.channel.is_closed and self.may_publish(member.channel, topic)
        ]
        if not members:
            return False
        self._turn += 1
        member = members[self._turn % len(members)]
        log_offset = appended.log_offsets[0]
        header = CheckTransactionRequest(
            half_queue_offset=appended.queue_offset,
            log_offset=log_offset,
            topic=HALF_TOPIC,
            unique_key=half.unique_key,
            transaction_id=half.unique_key,
            message_id=encode_message_id(half.store_host, log_offset),
            broker_name=self.core.options.broker_name,
        )
        body = halves.encode_for_check(
            copy,
            half,
            queue_offset=appended.queue_offset,
            log_offset=log_offset,
            at_ms=appended.stored_at_ms,
        )
        member.channel.send(
            Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, body=body, oneway=True)
        )
        return True


WINDOW_MAX = 1 << 26
"""The number of half messages tracked ahead of the progress: 8 MiB of bits. Op records for later ones wait to
be read.
"""
RECORDS_MAX = 1 << 22
"""The number of op records that may still be needed: 32 MiB. Further records wait to be read."""


class OpLog:
    """The set of done half messages from `half_offset` on."""

    def __init__(self, half_offset: int, op_offset: int) -> None:
        self._base = half_offset & ~7
        self._bits = bytearray()
        self._first = op_offset
        self._tops: array[int] = array("q")

    @property
    def next_op(self) -> int:
        """The op queue offset to read next."""
        return self._first + len(self._tops)

    def skip_to(self, op_offset: int) -> None:
        """Skips the records before `op_offset`, which retention deleted."""
        missing = op_offset - self.next_op
        if missing > 0:
            self._tops.extend([-1] * min(missing, RECORDS_MAX))
            if missing > RECORDS_MAX:
                self._first += missing - RECORDS_MAX

    def add(self, half_offsets: Sequence[int]) -> bool:
        """Adds the next op record. Returns False and changes nothing if there is no room."""
        top = max(half_offsets, default=-1)
        if top - self._base >= WINDOW_MAX or len(self._tops) >= RECORDS_MAX:
            return False
        self._tops.append(top)
        needed = (top - self._base >> 3) + 1
        if needed > len(self._bits):
            self._bits.extend(bytes(needed - len(self._bits)))
        for offset in half_offsets:
            place = offset - self._base
            if place >= 0:
                self._bits[place >> 3] |= 1 << (place & 7)
        return True

    def is_done(self, half_offset: int) -> bool:
        place = half_offset - self._base
        return 0 <= place >> 3 < len(self._bits) and bool(self._bits[place >> 3] & 1 << (place & 7))

    def settle(self, half_offset: int) -> int:
        """Forgets half messages below the progress. Returns the first op record that is still needed."""
        byte_count = (half_offset - self._base) >> 3
        if byte_count > 0:
            del self._bits[:byte_count]
            self._base += byte_count << 3
        done = 0
        for top in self._tops:
            if top >= half_offset:
                break
            done += 1
        del self._tops[:done]
        self._first += done
        return self._first


GROUP = "CID_RMQ_SYS_TRANS"
ROUND_S_MAX = 60.0
SETTLE_PERIOD_S = 1.0
SKIPPED_PER_TURN = 4_096
OPS_PER_TURN = 4_096
"""The number of op records read before other tasks of the loop get their turn."""


class TransactionChecks(Duty):
    """Checks open transactions; `stop` ends it between two messages.

    Owns: the offset up to which the half topic is settled, and the first op record needed from there on. Both
          are consumer offsets of the group CID_RMQ_SYS_TRANS, so they are saved and copied to slaves like all
          others, and a Java broker continues from them.
    Invariants: every half message before the progress has its mark in the log, was discarded, or has a later
                copy. The in-memory state of a transaction (`Decided`) only saves a question. A half message
                whose outcome is being stored holds up the round; one whose outcome is stored without its mark
                gets the mark. The progress is committed only once the marks and copies that it relies on are
                safe in the log (`Progress`), so no transaction is lost.
    Strategy: every transactionCheckInterval the half topic is scanned from the progress to its end. Half
              messages with a mark are skipped without being read. A round takes at most 60 s. The state is
              one bit per half message after the progress and, per op record, the highest half offset it
              names, which determines where a restart has to read from.
    """

    name = "checks"

    def __init__(self, core: BrokerCore, decided: halves.Decided, asker: Asker) -> None:
        options = core.options
        self._store, self._offsets, self._topics, self._clock = (
            core.store,
            core.offsets,
            core.topics,
            core.clock,
        )
        self._decided = decided
        self._counts = core.stats.transactions
        self._asker = asker
        self._limits = halves.CheckLimits(
            options.transaction_timeout_ms,
            options.transaction_check_count_max,
            core.store.options.file_reserved_hours,
        )
        self._period_s = options.transaction_check_period_ms / 1000
        self._writer = DurableWriter(core.store, core.clock)
        self._progress: Progress[tuple[int, int]] = Progress()
        super().__init__(core.clock)
        self._half_offset = 0
        self._ops = OpLog(0, 0)
        self._committed = (-1, -1)

    async def run(self) -> None:
        """Runs until `stop` is called."""
        self._load()
        await self._find_open()
        while not self._is_stopping:
            next_round_at = self._clock.monotonic() + self._period_s
            while not self._is_stopping and (left_s := next_round_at - self._clock.monotonic()) > 0:
                self._wake.clear()
                await self._wake.wait(min(left_s, SETTLE_PERIOD_S) if len(self._progress) else left_s)
                self.settle(self._writer.safe_end())
            if not self._is_stopping:
                await self.run_round()

    def settle(self, safe: int) -> None:
        """Commits the progress that became safe."""
        settled = self._progress.settle(safe)
        if settled and settled[-1] != self._committed:
            self._committed = half_offset, op_offset = settled[-1]
            now_ms = self._clock.now_ms()
            self._offsets.commit(GROUP, HALF_TOPIC, 0, half_offset, now_ms)
            self._offsets.commit(GROUP, OP_HALF_TOPIC, 0, op_offset, now_ms)

    async def run_round(self) -> None:
        """Scans the half topic once."""
        end = self._store.queue_max(HALF_TOPIC, 0)
        if self._half_offset >= end or self._progress.is_full:
            return
        stop_at = self._clock.monotonic() + ROUND_S_MAX
        await self._read_ops()
        while self._half_offset < end and not self._is_stopping and self._clock.monotonic() < stop_at:
            if self._ops.is_done(self._half_offset):
                self._half_offset += 1
                if self._half_offset % SKIPPED_PER_TURN == 0:
                    await self._clock.sleep(0)
                continue
            records, next_offset = self._writer.read(HALF_TOPIC, 0, self._half_offset)
            if not records:
                if next_offset <= self._half_offset:
                    break
                self._half_offset = next_offset  # retention deleted these messages
            elif not await self._check_halves(records, end):
                break
        op_offset = self._ops.settle(self._half_offset)
        self._progress.add(self._writer.log_end, (self._half_offset, op_offset), replaces=True)
        self.settle(self._writer.safe_end())

    def _load(self) -> None:
        self._half_offset = self._offset_of(HALF_TOPIC)
        op_offset = self._offset_of(OP_HALF_TOPIC)
        self._ops = OpLog(self._half_offset, op_offset)
        self._committed = (self._half_offset, op_offset)

    async def _find_open(self) -> None:
        """Counts the transactions that were open before this broker began to serve."""
        await self._read_ops()
        at, end = self._half_offset, self._store.queue_max(HALF_TOPIC, 0)
        while at < end and not self._is_stopping:
            if self._ops.is_done(at):
                at += 1
                if at % SKIPPED_PER_TURN == 0:
                    await self._clock.sleep(0)
                continue
            records, next_offset = self._writer.read(HALF_TOPIC, 0, at)
            for half in records:
                root = halves.root_of(half)
                if not self._ops.is_done(half.queue_offset) and root not in self._decided:
                    self._counts.begin(root, half.text(names.REAL_TOPIC.encode()))
            if next_offset <= at:
                return
            at = next_offset
            await self._clock.sleep(0)

    def _offset_of(self, topic: str) -> int:
        """Returns the saved progress, or the nearest offset that the queue has."""
        low, high = self._store.queue_min(topic, 0), self._store.queue_max(topic, 0)
        return min(max(self._offsets.committed(GROUP, topic, 0) or 0, low), high)

    async def _read_ops(self) -> None:
        """Reads all available op records."""
        read_count = 0
        while True:
            at = self._ops.next_op
            if at >= self._store.queue_max(OP_HALF_TOPIC, 0):
                return
            records, next_offset = self._writer.read(OP_HALF_TOPIC, 0, at)
            half_end = self._store.queue_max(HALF_TOPIC, 0)
            for record in records:
                self._ops.skip_to(record.queue_offset)
                if not self._ops.add([offset for offset in halves.ended_by(record) if offset < half_end]):
                    log.error(events.TRANSACTION_MARKS_FULL, extra={"op_offset": record.queue_offset})
                    return
            if self._ops.next_op < next_offset:
                self._ops.skip_to(next_offset)
            elif not records:
                return
            read_count += len(records)
            if read_count >= OPS_PER_TURN:
                read_count = 0
                await self._clock.sleep(0)

    async def _check_halves(self, records: list[Record], end: int) -> bool:
        """Settles half messages in order. Returns False if the round is over: the next half message is too
        young, or its outcome is being stored.
        """
        for half in records:
            if half.queue_offset >= end or self._is_stopping:
                return False
            if not self._ops.is_done(half.queue_offset) and not await self._settle_half(half):
                self._half_offset = half.queue_offset
                return False
            self._half_offset = half.queue_offset + 1
        return True

    async def _settle_half(self, half: Record) -> bool:
        """Settles a half message without a mark. Returns False if it cannot be settled yet."""
        await self._read_ops()
        if self._ops.is_done(half.queue_offset):
            return True
        root = halves.root_of(half)
        if self._decided.is_pending(root):
            return False  # if storing the outcome fails, the next round handles the message
        if root in self._decided:
            # The outcome was stored with the marks of other copies only.
            [mark] = halves.make_ops(
                [half.queue_offset], self._store.appender.store_host, self._clock.now_ms()
            )
            await self._append(mark)
            return True
        verdict = halves.plan_check(half, self._clock.now_ms(), self._limits)
        if verdict is halves.CheckVerdict.WAIT:
            return False
        if verdict is halves.CheckVerdict.RENEW:
            await self._append_copy(half, halves.make_copy(half))
        elif verdict is halves.CheckVerdict.DISCARD:
            await self._discard(half)
        else:
            copy = halves.make_copy(half, check_times=halves.check_times(half) + 1)
            appended = await self._append_copy(half, copy)
            if appended is not None and root not in self._decided:
                self._asker.ask(half, copy, appended)
        return True

    async def _discard(self, half: Record) -> None:
        self._topics.add_missing([make_topic(DISCARD_TOPIC, 1)], self._clock.now_ms())
        log.warning(
            events.TRANSACTION_DISCARDED,
            extra={
                "topic": half.text(names.REAL_TOPIC.encode()),
                "group": half.text(names.PGROUP.encode()),
                "unique_key": half.unique_key,
                "check_count": halves.check_times(half),
            },
        )
        await self._append(halves.make_discarded(half, DISCARD_TOPIC))
        self._counts.discard(halves.root_of(half), half.text(names.REAL_TOPIC.encode()))

    async def _append_copy(self, half: Record, copy: NewRecord) -> Appended | None:
        root = halves.root_of(half)

        def on_appended(appended: Appended) -> None:
            # At once: an outcome that arrives while the copy is being written must mark the copy as well.
            self._decided.record_copy(root, appended.queue_offset)

        return await self._append(copy, on_appended)

    async def _append(
        self, record: NewRecord, on_appended: Callable[[Appended], None] | None = None
    ) -> Appended | None:
        """Appends the record and returns its location, or None if it can never be stored."""
        try:
            return await self._writer.put([record], on_appended)
        except MessageIllegal as error:
            facts = {"unique_key": record.unique_key, "reason": error.remark}
            log.error(events.TRANSACTION_LOST, extra=facts)
            return None
