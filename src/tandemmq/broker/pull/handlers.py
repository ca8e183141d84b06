"""PULL_MESSAGE and LITE_PULL_MESSAGE: admit, read, then answer or hold.

`plan_pull` decides the answer from the store's result; `PullHandlers` handles the requests. Message bytes are
passed unchanged from the mapped log to the connection; nothing decodes them. A pull that finds nothing new
and may wait is held by `LongPolls` and read again when its queue gets messages.
Source: spec semantics 8, spec remoting 9.3, spec replication 8.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import answer_failure
from tandemmq.broker.offsets.claims import Claims, Moved
from tandemmq.broker.pull.admission import AdmittedPull, PullAdmission, PullForbidden
from tandemmq.broker.pull.cold_reads import ColdControl
from tandemmq.broker.pull.long_poll import HeldPull, WakeReason
from tandemmq.broker.replica.replica import GroupReplica
from tandemmq.errors import Busy, RequestRejected, StoreError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame_head
from tandemmq.protocol.requests.consume import ForbiddenResponse, PullRequest, PullResponse, SeenRecord
from tandemmq.protocol.sys_flag import PULL_SUSPEND
from tandemmq.remoting.channel import Channel
from tandemmq.replication.core.progress import LogRange
from tandemmq.store import GET_BYTES_MAX
from tandemmq.store.outcomes import GetResult, GetStatus, RecordFilter
from tandemmq.units import MASTER_ID

log = logging.getLogger(__name__)

# The plan: the answer to a pull, decided from the store's result. Pure.
#
# Source: spec semantics 8.3, spec replication 8.2 and 8.3.


_FOUND = int(ResponseCode.SUCCESS)
_NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
_RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)

_CODES = {
    GetStatus.FOUND: _FOUND,
    GetStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: _NOT_FOUND,  # _MOVED for a requested offset other than 0
}


class AnsweringReplica(NamedTuple):
    """The facts about this replica that affect a pull's answer."""

    broker_id: int
    has_master: bool  # a live master is known (always True on the master itself)
    slave_read_enable: bool
    offset_check_in_slave: bool


class PullPlan(NamedTuple):
    """The answer: response code, next offset, broker to ask next, and whether the pull may be held."""

    code: int
    next_offset: int
    suggested_broker_id: int
    can_hold: bool


def plan_pull(
    result: GetResult, requested_offset: int, replica: AnsweringReplica, *, normal_id: int, slow_id: int
) -> PullPlan:
    """Returns the answer to a pull at `requested_offset`.

    `normal_id` and `slow_id` are the group's brokerId and whichBrokerWhenConsumeSlowly.
    """
    code = _CODES[result.status]
    if result.status is GetStatus.NO_MESSAGE_IN_QUEUE and requested_offset != 0:
        code = _MOVED
    suggested = MASTER_ID
    if replica.slave_read_enable:
        suggested = slow_id if result.suggest_slave else normal_id
    plan = PullPlan(code, result.next_offset, suggested, code == _NOT_FOUND)
    if replica.broker_id != MASTER_ID:
        return _plan_on_slave(plan, result, requested_offset, replica, normal_id)
    return plan


def _plan_on_slave(
    plan: PullPlan, result: GetResult, requested_offset: int, replica: AnsweringReplica, normal_id: int
) -> PullPlan:
    if replica.has_master and not result.suggest_slave:
        # The consumer has caught up: it is redirected to the master and must not wait here.
        if plan.code == _FOUND:
            return plan._replace(suggested_broker_id=MASTER_ID)
        return PullPlan(_RETRY, plan.next_offset, MASTER_ID, False)
    if plan.code == _MOVED and not replica.offset_check_in_slave:
        # This slave may just be behind, so it does not move the consumer's offset. Without a master, a
        # consumer ahead of the slave would retry at once and for ever, so its pull may be held.
        is_ahead = not replica.has_master and requested_offset > result.max_offset
        return PullPlan(_RETRY, requested_offset, normal_id, is_ahead)
    return plan


SQL_WORK_MAX = 20_000
"""The number of SQL92 terms evaluated for one pull, about 10 ms of work; the next pull evaluates the rest."""
COLD_HOLD_S = 3.0
"""The hold time, in seconds, of a pull whose group is over its threshold of cold reads, as in RocketMQ."""
COLD_HOLD_UNASKED_S = 1.0
"""The same hold time, in seconds, for a client that did not ask to be held and may not wait that long: the
Spark source.
"""
SKIPPED_HOLD_S = 5.0
"""The remaining hold time, in seconds, after new messages that the group's filter rejects. RocketMQ checks
held pulls every 5 s and answers those behind the end.
"""
COLD_QUEUE = ("", 0)
"""The queue on which slowed-down pulls are held: no topic has this name, so only their deadline wakes
them.
"""


class Pull(NamedTuple):
    """A pull in progress: its connection, request and permission."""

    channel: Channel
    command: Command
    header: PullRequest
    admitted: AdmittedPull


class PullHandlers:
    """Handles pulls. `replica` is replaced when a slave gains or loses its master."""

    def __init__(
        self, core: BrokerCore, claims: Claims, cold: ColdControl, replication: GroupReplica
    ) -> None:
        self.core = core
        self.claims = claims
        self.cold = cold
        self.admission = PullAdmission(core)
        core.offsets.on_topic_dropped.append(core.long_polls.wake_topic)
        self.replica = AnsweringReplica(
            broker_id=core.options.broker_id,
            has_master=replication.is_master_known,
            slave_read_enable=core.options.slave_read_enable,
            offset_check_in_slave=core.store.options.offset_check_in_slave,
        )
        self.is_copied = replication.is_copied

    def set_has_master(self, has_master: bool) -> None:
        """Sets whether a live master of this broker group is known; this decides where consumers are
        redirected.
        """
        self.replica = self.replica._replace(has_master=has_master)

    def handle_pull(self, channel: Channel, command: Command) -> Command | None:
        """Handles PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""
        try:
            return self._pull(channel, command)
        except RequestRejected as error:
            self.core.stats.count_pull_ending(error.code)
            raise

    def _pull(self, channel: Channel, command: Command) -> Command | None:
        header = command.decode(PullRequest)
        now_ms = self.core.clock.now_ms()
        try:
            admitted = self.admission.admit(channel, command.code, header, now_ms)
        except PullForbidden as error:
            self.core.stats.count_pull_ending(error.code)
            return command.reply(
                error.code, ForbiddenResponse(forbidden_type=error.forbidden_type), remark=error.remark
            )
        pull = Pull(channel, command, header, admitted)
        moved = self.claims.judge(channel, header, now_ms)
        if moved is not None:
            return self._answer_moved(pull, moved)
        if self.core.options.cold_control_enable and self.cold.is_over(header):
            self._slow_down(pull)
            return None
        result, plan = self._read(pull, header.queue_offset)
        if plan.can_hold and header.sys_flag & PULL_SUSPEND and self._hold(pull, plan):
            return None
        self._answer(pull, result, plan)
        return None

    def _read(self, pull: Pull, offset: int, *, count_max: int | None = None) -> tuple[GetResult, PullPlan]:
        """Reads from `offset` on and plans the answer; `count_max` overrides the pull's own maximum.

        A pull for 0 messages gets one, as in RocketMQ: Go's pull consumer asks for 0 if no number is set.
        """
        header, group, sql = pull.header, pull.admitted.group, pull.admitted.sql
        is_bulk = header.bulk_bytes is not None and header.bulk_bytes > 0
        requested_max = (
            header.count_max if is_bulk else min(header.count_max, self.core.options.pull_message_count_max)
        )
        bytes_max = header.bulk_bytes if is_bulk else header.bytes_max
        result = self.core.store.reader.get(
            header.topic,
            header.queue_id,
            offset,
            count_max=max(1, count_max or requested_max),
            bytes_max=bytes_max if bytes_max is not None and bytes_max > 0 else GET_BYTES_MAX,
            tag_hashes=pull.admitted.tag_hashes,
            record_filter=None
            if sql is None
            else RecordFilter(sql.matches_properties, SQL_WORK_MAX // sql.size, sql.tag_hashes, sql.select),
            is_bulk=is_bulk,
        )
        if result.suggest_slave and self.core.options.cold_control_enable:
            self.cold.record(header.consumer_group, result.bytes + result.rejected_bytes)
        slow_id = group.slow_read_broker_id
        if self._keeps_slow(header, result, slow_id):
            slow_id = group.broker_id
        return result, plan_pull(result, offset, self.replica, normal_id=group.broker_id, slow_id=slow_id)

    def _keeps_slow(self, header: PullRequest, result: GetResult, slow_id: int) -> bool:
        """Returns True if the master keeps serving a lagging consumer instead of redirecting it to the slave,
        because the slave is not known to hold the next message. A slave that was cut off may still hold
        messages of a topic deleted since.
        """
        replica = self.replica
        if not (result.suggest_slave and replica.slave_read_enable and replica.broker_id == MASTER_ID):
            return False
        entries = self.core.store.queue_entries(header.topic, header.queue_id, result.next_offset, 1)
        return not any(self.is_copied(slow_id, LogRange(at, at + size)) for at, size, _tag in entries)

    def _answer(self, pull: Pull, result: GetResult, plan: PullPlan) -> None:
        header = pull.header
        sizes = result.sizes if header.wants_sizes else b""
        self.core.offsets.record_pulled(
            header.consumer_group, header.topic, header.queue_id, plan.next_offset
        )
        response = PullResponse(
            suggested_broker_id=plan.suggested_broker_id,
            next_offset=plan.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            topic_sys_flag=pull.admitted.topic.sys_flag,
            group_sys_flag=pull.admitted.group.sys_flag,
            sizes_bytes=len(sizes) or None,
            passed=self._last_scanned(header, result, plan),
        )
        reply = pull.command.reply(plan.code, response, remark=result.status.value)
        stats = self.core.stats
        if plan.code != _FOUND:
            stats.missed_count += 1
            stats.count_pull_ending(plan.code)
            pull.channel.send(reply)
            return
        stats.found_count += 1
        stats.got_count += result.count
        stats.topics_out.add(header.topic, result.count)
        stats.groups_out.add(f"{header.topic}@{header.consumer_group}", result.count, result.bytes)
        stats.got_bytes += result.bytes
        slices = [*result.slices, memoryview(sizes)] if sizes else result.slices
        pull.channel.send_frame(encode_frame_head(reply, result.bytes + len(sizes)), *slices)

    def _last_scanned(self, header: PullRequest, result: GetResult, plan: PullPlan) -> str | None:
        """Returns the last record scanned, for a client that presents records; None if every scanned record
        was returned.
        """
        end = plan.next_offset
        if header.client_id is None or end - header.queue_offset <= result.count:
            return None
        found = self.core.store.reader.find_record(header.topic, header.queue_id, end - 1)
        return None if found is None else SeenRecord(end - 1, *found).render()

    def _answer_moved(self, pull: Pull, moved: Moved) -> Command:
        """Moves the client to another offset: an operator reset the group (spec semantics 8.2), or the
        client's claim does not match this log.
        """
        bounds = self.core.store.queue_bounds(pull.header.topic, pull.header.queue_id)
        self.core.stats.count_pull_ending(_MOVED)
        response = PullResponse(
            suggested_broker_id=pull.admitted.group.broker_id if self.core.options.slave_read_enable else 0,
            next_offset=moved.offset,
            min_offset=bounds.min_offset,
            max_offset=bounds.max_offset,
        )
        return pull.command.reply(_MOVED, response, remark=moved.remark)

    def _hold(self, pull: Pull, plan: PullPlan) -> bool:
        options, header = self.core.options, pull.header
        hold_ms = header.suspend_timeout_ms if options.long_polling_enable else options.short_polling_ms
        hold_ms = min(max(hold_ms, 0), options.long_poll_ms_max)
        return self.core.long_polls.hold(
            HeldPull(
                channel=pull.channel,
                queue=(header.topic, header.queue_id),
                offset=plan.next_offset,
                deadline_s=self.core.clock.monotonic() + hold_ms / 1000,
                request=pull,
                on_wake=self._on_wake,
            )
        )

    def _slow_down(self, pull: Pull) -> None:
        """Holds or rejects a pull whose group is over its threshold of cold reads (spec semantics 20.3).

        A pull consumer waits and then gets one message. A push consumer is rejected; it retries by itself.

        Raises:  Busy.
        """
        header = pull.header
        hold_s = COLD_HOLD_S if header.sys_flag & PULL_SUSPEND else COLD_HOLD_UNASKED_S
        if not self.cold.is_pushed(header.consumer_group) and self.core.long_polls.hold(
            HeldPull(
                channel=pull.channel,
                queue=COLD_QUEUE,
                offset=header.queue_offset,
                deadline_s=self.core.clock.monotonic() + hold_s,
                request=pull,
                on_wake=self._on_cold_wake,
            )
        ):
            return
        raise Busy(
            f"the group {header.consumer_group} has reached its limit for old messages: try again later"
            " (coldDataFlowControlEnable)"
        )

    def _on_cold_wake(self, held: HeldPull[Pull], _reason: WakeReason) -> None:
        """Answers a slowed-down pull with one message."""
        found = self._read_again(held, count_max=1)
        if found is not None:
            self._answer(held.request, *found)

    def _on_wake(self, held: HeldPull[Pull], reason: WakeReason) -> None:
        """Answers a held pull, or holds it again until its deadline."""
        pull = held.request
        found = self._read_again(held)
        if found is None:
            return
        result, plan = found
        if reason is WakeReason.NEW_MESSAGES:
            if result.status is GetStatus.NO_MATCHED_MESSAGE and plan.next_offset >= result.max_offset:
                # No new message is for this group: the pull is held behind the scanned messages. The hold is
                # short, because the client must learn its new offset to commit it.
                held.offset = plan.next_offset
                held.deadline_s = min(held.deadline_s, self.core.clock.monotonic() + SKIPPED_HOLD_S)
                if self.core.long_polls.hold(held):
                    return
            elif plan.can_hold and self.core.long_polls.hold(held):
                return
        self._answer(pull, result, plan)

    def _read_again(
        self, held: HeldPull[Pull], *, count_max: int | None = None
    ) -> tuple[GetResult, PullPlan] | None:
        """Reads for a pull that was held. Returns None if the connection is closed, the client was moved, or
        an error was answered.
        """
        pull = held.request
        if pull.channel.is_closed:
            return None
        try:
            moved = self.claims.judge_held(pull.channel, pull.header)
            if moved is not None:
                pull.channel.send(self._answer_moved(pull, moved))
                return None
            return self._read(pull, held.offset, count_max=count_max)
        except (RequestRejected, StoreError, OSError) as error:
            answer_failure(self.core.stats, pull.channel, pull.command, pull.header.topic, error)
        return None
