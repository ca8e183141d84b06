"""END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE.

A commit and the mark of its half message are one append, so a kill leaves both or neither, and a committed
message is not delivered twice because the broker was killed in between. A committed message with a delay
starts to wait at its commit.
Source: spec semantics 17, spec store 14, spec remoting 9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.postpone import DelayRule
from tandemmq.broker.delay.timers import DELIVERY_TIME_NAMES, has_delivery_time, plan_timer
from tandemmq.broker.query import load_record
from tandemmq.broker.transaction import half as halves
from tandemmq.errors import Busy, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.properties import decode_properties, find_property
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.protocol.requests.admin import ResumeCheckRequest
from tandemmq.protocol.requests.send import EndTransactionRequest
from tandemmq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from tandemmq.protocol.topic_names import DISCARD_TOPIC, HALF_TOPIC
from tandemmq.remoting.channel import Channel
from tandemmq.store.outcomes import NOT_STORED, Appended, PutStatus


def postpone_commit(commit: NewRecord, delay: DelayRule, now_ms: int) -> None:
    """Moves the message to the topic in which it waits, if it has a delay.

    A time that would be rejected now (too far ahead, timers switched off) is ignored: the transaction is
    committed, and its message must not be lost.
    """
    raw = commit.properties
    level = find_property(raw, names.DELAY.encode())
    if level is not None and level.isdigit() and len(level) < 10 and int(level) > 0:
        delay.postpone(commit, min(int(level), delay.level_max), now_ms)
        return
    if b"TIMER_DELIVER" not in raw and b"TIMER_DELAY" not in raw:
        return
    pairs = decode_properties(raw)
    if not has_delivery_time(pairs):
        return
    timer_properties: dict[str, str] = {name: pairs[name] for name in DELIVERY_TIME_NAMES if name in pairs}
    try:
        slot_ms = plan_timer(timer_properties, now_ms, delay.timers)
    except RequestRejected:
        return
    if slot_ms is not None:
        delay.postpone_until(commit, slot_ms)


@dataclass(slots=True)
class TransactionHandlers:
    """Handles the end of transactions."""

    core: BrokerCore
    decided: halves.Decided
    delay: DelayRule

    def handle_end(self, channel: Channel, command: Command) -> Command | None:
        """Handles END_TRANSACTION (37). Neither commit nor rollback: nothing is done and no answer is
        sent.
        """
        header = command.decode(EndTransactionRequest)
        self._check_is_master()
        if header.decision not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None
        half = self._find(header)
        root = halves.root_of(half)
        before = self.decided.get(root)
        if before is not None:
            if before == header.decision and self.decided.is_pending(root):
                raise Busy("the end of this transaction is being stored: try again")
            return self._repeat(command, before, header.decision)
        now_ms = self.core.clock.now_ms()
        offsets_to_mark = self.decided.offsets_to_mark(root, half.queue_offset)
        records = halves.make_ops(offsets_to_mark, self.core.store.appender.store_host, now_ms)
        is_commit = header.decision == TRANSACTION_COMMIT
        if is_commit:
            commit = self._make_commit(half)
            topic = commit.topic
            postpone_commit(commit, self.delay, now_ms)
            records.insert(0, commit)
        else:
            topic = half.text(names.REAL_TOPIC.encode())
        self.decided.end(root, header.decision)
        age_s = max(0, now_ms - half.born_at_ms) // 1000

        def on_outcome(is_stored: bool) -> None:
            (self.decided.settle if is_stored else self.decided.reopen)(root)
            if is_stored:
                self.core.stats.transactions.end(root, topic, is_commit=is_commit, age_s=age_s)

        self._append(channel, command, records, on_outcome)
        return None

    def handle_resume(self, channel: Channel, command: Command) -> Command | None:
        """Handles RESUME_CHECK_HALF_MESSAGE (323): restarts the checks of a half message, or of a discarded
        one.
        """
        header = command.decode(ResumeCheckRequest)
        self._check_is_master()
        half = load_record(self.core.store, decode_message_id(header.message_id).log_offset)
        if half is None or half.topic not in (HALF_TOPIC, DISCARD_TOPIC):
            raise RequestRejected(f"no half message has the id {(header.message_id or '')[:64]!r}")
        copy = halves.make_copy(half, check_times=0)
        if half.topic == DISCARD_TOPIC:
            # Its queue offset is not one of the half topic: the copy starts a transaction of its own.
            copy.properties = names.remove_property(
                copy.properties, names.TRAN_PREPARED_QUEUE_OFFSET.encode()
            )
        appended = self._append(channel, command, [copy], lambda _is_stored: None)
        if half.topic == HALF_TOPIC:
            self.decided.record_copy(halves.root_of(half), appended.queue_offset)
        else:
            topic = half.text(names.REAL_TOPIC.encode())
            self.core.stats.transactions.begin(appended.queue_offset, topic)
        return None

    def _check_is_master(self) -> None:
        if self.core.options.is_slave:
            raise RequestRejected(
                "this broker is a slave and ends no transactions: send to the master of this broker group",
                code=ResponseCode.SLAVE_NOT_AVAILABLE,
            )

    def _find(self, header: EndTransactionRequest) -> Record:
        """Returns the half message of the request.

        Raises:  RequestRejected if another message is stored there, or if it may only be ended when asked.
        """
        half = load_record(self.core.store, header.log_offset)
        if half is None or half.topic != HALF_TOPIC:
            raise RequestRejected(f"no half message is stored at log offset {header.log_offset}")
        group = half.text(names.PGROUP.encode())
        if group != header.producer_group:
            raise RequestRejected(
                f"the half message is of the group {group}, not of {header.producer_group[:160]}"
            )
        if half.queue_offset != header.half_queue_offset:
            raise RequestRejected(
                f"the half message has queue offset {half.queue_offset}, not {header.half_queue_offset}"
            )
        timeout_ms = self.core.options.transaction_timeout_ms
        if not header.is_from_check and halves.is_late(half, self.core.clock.now_ms(), timeout_ms):
            raise RequestRejected(
                "the message is past CHECK_IMMUNITY_TIME_IN_SECONDS: its producer must wait for a check",
                code=ResponseCode.ILLEGAL_OPERATION,
            )
        return half

    def _repeat(self, command: Command, before: int, decision: int) -> Command:
        """Returns the answer to a repeated end of a transaction; raises RequestRejected if the decision
        differs.
        """
        if before == decision:
            return command.reply()
        was = "committed" if before == TRANSACTION_COMMIT else "rolled back"
        raise RequestRejected(f"the transaction was already {was}")

    def _make_commit(self, half: Record) -> NewRecord:
        commit = halves.make_commit(half)
        if commit is None:
            raise RequestRejected("the half message names no topic (REAL_TOPIC)")
        return commit

    def _append(
        self,
        channel: Channel,
        command: Command,
        records: list[NewRecord],
        on_outcome: Callable[[bool], None],
    ) -> Appended:
        """Appends the records. `on_outcome` is called with whether they are stored, before the answer."""

        def answer(status: PutStatus) -> None:
            is_stored = status not in NOT_STORED
            on_outcome(is_stored)
            if command.is_oneway:
                return
            if is_stored:
                channel.send(command.reply())
            else:
                remark = f"the end of the transaction was not stored: {status.value}"
                channel.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))

        try:
            return self.core.store.appender.append(records, answer)
        except RequestRejected:
            on_outcome(False)
            raise
