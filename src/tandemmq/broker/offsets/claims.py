"""Verification of the progress that consumers claim against this log.

Consumers keep their progress in memory. A master that restarts without the end of its log, or a shorter slave
that replaces it, reuses the lost messages' queue offsets for other messages. A consumer that continued at its
old offset would skip those, unnoticed once the queue has grown past it.

Invariants: each queue records its end at the start of this broker run (its run start). A client's claims in
            a queue are trusted once this run has sent the client its position. That is: the client queried
            the group's offset, pulled at or below the run start, was reset, presented a record that this
            log contains, or, in a broadcasting group, begins at the end or the offset by time that its
            connection was answered: such a client has no progress at the broker to query.
            A client that is not trusted and claims more than the group's safe offset is moved there. This
            happens once per connection, because the answer may be lost with the connection.
            The master never commits a claim that was not trusted. A slave never commits progress based on a
            presented record that its copy lacks.
            A client that presents a record this log does not contain has read from a diverged replica. Its
            claims are not trusted, even if they were before, until the client has accepted the corrected
            position.
            A slave applies the same rule only if its copy reaches as far as the record. A slave that is
            behind cannot tell and rejects the read. A slave whose copy begins after the corrected position
            rejects the read as well.
            A presented record proves the offset after it and nothing beyond, whether the client received the
            record or a filter skipped it: an older record may be in both logs. A client that claims more has
            read from a slave whose copy begins after the record, and is moved back to the offset after it.
Strategy: duplicates rather than gaps. On a master each pull costs one dict lookup, and commits at or below
          the run start cost a comparison. Each pull and commit that presents a record costs one log lookup;
          it is not cached, because consumers move between master and slaves.
At a bound: once `count_max` queues of clients are trusted, or as many clients moved, all other clients are
            trusted as well.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, TypeAlias

from tandemmq.broker.clients.consumer_table import ACTIVE_TYPE, BROADCASTING, FROM_LAST
from tandemmq.broker.core import BrokerCore
from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.consume import (
    PullRequest,
    QueryOffsetRequest,
    SeenRecord,
    UpdateOffsetRequest,
)
from tandemmq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from tandemmq.protocol.topic_names import TOOLS_GROUP
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Address
from tandemmq.store.outcomes import QueueBounds
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

TRUSTED_COUNT_MAX = 262_144
OFFSET_RESET = "OFFSET_RESET"
"""The remark for a consumer whose group an operator has reset."""
CLAIM_REFUSED = "OFFSET_NOT_OF_THIS_LOG"
"""The remark for a consumer that is sent to another offset because its claim does not match this log."""

QueueName = tuple[str, int]
MemberId: TypeAlias = str | Channel
"""A client's id, or its connection until a heartbeat has reported the id."""


class Moved(NamedTuple):
    """The answer to a pull that may not continue at its offset: the offset to continue from, and a remark."""

    offset: int
    remark: str


class _Claim(NamedTuple):
    """A client's claim to have progress in one queue, and the facts that decide it.

    `seen`: the record that the client presents. `is_in_log`: whether this log contains the record; None
    without a record, and if unknown. `proven`: the offset that the record proves if this log contains it.
    """

    channel: Channel
    group: str
    member: MemberId
    queue: QueueName
    bounds: QueueBounds
    seen: SeenRecord | None
    is_in_log: bool | None
    proven: int | None

    @property
    def key(self) -> tuple[str, MemberId, QueueName]:
        return self.group, self.member, self.queue

    def is_beyond(self, offset: int) -> bool:
        """Returns True if the client claims more than its record proves."""
        return self.proven is not None and offset > self.proven


class Claims:
    """Judges the claims of group members. A slave judges only by the records that clients present."""

    def __init__(self, core: BrokerCore, *, count_max: int = TRUSTED_COUNT_MAX) -> None:
        self._store, self._offsets, self._consumers = core.store, core.offsets, core.consumers
        self._may_commit = core.may_commit
        self._is_slave = core.options.is_slave
        self._count_max = count_max
        self._count = 0
        self._trusted: dict[tuple[str, MemberId], set[QueueName]] = {}
        self._hosts: dict[tuple[str, str], set[QueueName]] = {}  # hosts from which trusted clients connected
        # The connection over which each client was last moved.
        self._moved: dict[tuple[str, MemberId, QueueName], Address] = {}
        # The offsets that connections asked for last, by queue; each counts for one pull.
        self._answered: dict[Channel, dict[QueueName, int]] = {}
        self._answered_count = 0
        core.offsets.on_topic_dropped.append(self._forget_topic)

    def judge(self, channel: Channel, header: PullRequest, now_ms: int) -> Moved | None:
        """Judges a pull before it reads, and stores the offset that it commits. Returns None if the pull may
        continue at its offset.

        Raises:  RequestRejected for a consumer whose heartbeat must come first, and on a slave for a consumer
                that has read further in its master's log than the slave's copy reaches.
        """
        group, queue = header.consumer_group, (header.topic, header.queue_id)
        reset = self._offsets.consume_reset(group, *queue)
        if reset is not None:
            self._trust(channel, group, self._member_of(channel, group, header.client_id), queue)
            return Moved(reset, OFFSET_RESET)
        claim = self._claim_of(channel, header)
        safe = self._judge_in_copy(claim, header) if self._is_slave else self._judge_pull(claim, header)
        if safe is not None:
            return Moved(safe, CLAIM_REFUSED)
        if header.commits_offset and header.committed_offset >= 0 and self._may_commit():
            offset = self._judge_commit(claim, header.committed_offset)
            self._offsets.commit(group, *queue, offset, now_ms)
        # A known client beyond the queue's end has read another log, also if it is trusted.
        is_overflow = header.queue_offset > claim.bounds.next_offset and not self._is_slave
        if is_overflow and isinstance(claim.member, str) and self._moved.get(claim.key) != channel.peer:
            return Moved(self._move(claim, header.queue_offset, self._safe_offset(claim)), CLAIM_REFUSED)
        return None

    def judge_held(self, channel: Channel, header: PullRequest) -> Moved | None:
        """Judges a pull that was held, as `judge` does on a slave: the copy may since have received the
        records that decide the claim. Returns None on a master.
        """
        safe = None
        if self._is_slave:
            safe = self._judge_in_copy(self._claim_of(channel, header), header)
        return None if safe is None else Moved(safe, CLAIM_REFUSED)

    def judge_commit(
        self, channel: Channel, header: UpdateOffsetRequest | PullRequest, *, is_tool: bool = False
    ) -> int:
        """Returns the offset to store for a commit. `is_tool`: the sender waits for the answer; it is trusted
        up to the queue's end if it is not a known client.
        """
        return self._judge_commit(self._claim_of(channel, header), header.committed_offset, is_tool=is_tool)

    def trust(self, channel: Channel, header: QueryOffsetRequest) -> None:
        """Records that a client received its group's offset, or learned that the group starts anew."""
        member = self._member_of(channel, header.consumer_group, None)
        self._trust(channel, header.consumer_group, member, (header.topic, header.queue_id))

    def record_answer(self, channel: Channel, queue: QueueName, offset: int) -> None:
        """Records the end of a queue, or its offset at a time, as last answered to a connection. At the bound
        nothing more is recorded.
        """
        if self._is_slave or self._answered_count >= self._count_max:
            return
        answered = self._answered.get(channel)
        if answered is None:
            answered = self._answered[channel] = {}
            channel.on_close.append(self._drop_answers)
        self._answered_count += queue not in answered
        answered[queue] = offset

    def _claim_of(self, channel: Channel, header: UpdateOffsetRequest | PullRequest) -> _Claim:
        queue = (header.topic, header.queue_id)
        bounds, seen = self._store.queue_bounds(*queue), header.seen_record()
        is_in_log = proven = None
        if seen is not None:
            proven = max(seen.queue_offset + 1, bounds.min_offset)
            # A slave may not have the record yet, and an old record may have been deleted.
            is_in_log = False
            if self._is_slave or seen.queue_offset < bounds.next_offset:
                is_in_log = self._store.reader.has_record(*queue, *seen)
        member = self._member_of(channel, header.consumer_group, header.client_id)
        return _Claim(channel, header.consumer_group, member, queue, bounds, seen, is_in_log, proven)

    def _judge_pull(self, claim: _Claim, header: PullRequest) -> int | None:
        """Judges a pull on a master. Returns the offset to which the client is moved, or None.

        Raises:  RequestRejected for a consumer whose heartbeat must come first.
        """
        group, member, queue = claim.key
        offset = header.queue_offset
        if group == TOOLS_GROUP:
            return None  # tools read offsets that an operator names, and have no progress
        is_refuted = claim.is_in_log is False or claim.is_beyond(offset)
        if not is_refuted and queue in self._trusted.get((group, member), ()):
            return None
        is_claim = offset > claim.bounds.run_start
        if is_claim and claim.seen is None and self._begins_at_answer(claim, offset):
            is_claim = False
        if is_refuted or (is_claim and not self._is_trusted(claim)):
            if not isinstance(member, str):
                if _needs_heartbeat(header):
                    raise RequestRejected(
                        f"a member of group {group} must send a heartbeat on this connection before it pulls"
                        f" queue {header.queue_id} of {header.topic} at {offset}",
                        code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                    )
                return None
            if claim.is_in_log is False:
                safe = self._safe_offset_without(claim)
            elif claim.proven is not None and (is_refuted or claim.is_in_log):
                safe = claim.proven
            else:
                safe = self._safe_offset(claim)
            if offset > safe and self._can_move(claim):
                return self._move(claim, offset, safe)
        if isinstance(member, str) or _needs_heartbeat(header):
            self._trust(claim.channel, group, member, queue)
        return None

    def _judge_commit(self, claim: _Claim, offset: int, *, is_tool: bool = False) -> int:
        is_old = self._is_slave or offset <= claim.bounds.run_start
        if is_old and claim.seen is None:
            return offset
        if not isinstance(claim.member, str) and is_tool:
            return min(offset, claim.bounds.next_offset)
        if claim.is_in_log is False:
            return min(offset, self._safe_offset_without(claim))
        if claim.proven is not None:
            offset = min(offset, claim.proven)
        if self._is_slave and not claim.is_in_log:
            # Later clients could not verify this progress: the broker has no record to present with it.
            committed = self._offsets.committed(claim.group, *claim.queue)
            return min(offset, self._beginning_of(claim) if committed is None else committed)
        if not self._is_trusted(claim):
            if is_old:
                return offset
            if not claim.is_in_log:
                return min(offset, self._safe_offset(claim))
            self._trust(claim.channel, *claim.key)
        if offset > claim.bounds.next_offset and not self._is_slave:
            return min(offset, self._safe_offset(claim))
        return offset

    def _judge_in_copy(self, claim: _Claim, header: PullRequest) -> int | None:
        """Judges a pull on a slave. Only a record that contradicts the copy proves that the client's log
        diverged.

        A record beyond the end of the copy contradicts nothing: the slave may not know yet that the topic was
        deleted and created again. Until then it cannot serve this client.

        Raises:  RequestRejected if the copy does not reach far enough up or down to decide.
        """
        seen, offset = claim.seen, header.queue_offset
        if seen is None or claim.proven is None:
            return None
        if claim.is_in_log is None:
            self._moved.pop(claim.key, None)
            return None
        if claim.is_in_log:
            if not claim.is_beyond(offset) or not self._can_move(claim):
                self._moved.pop(claim.key, None)
                return None
            return self._move(claim, offset, claim.proven)
        if seen.log_offset >= self._store.max_log_offset:
            raise RequestRejected(
                f"this slave's copy ends at {self._store.max_log_offset}, before the record at"
                f" {seen.log_offset} that the reader has seen of queue {header.queue_id} of {header.topic}:"
                " ask the master, or wait until it is copied",
                code=ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        safe, begin = self._safe_offset_without(claim), claim.bounds.min_offset
        # The logs may have diverged before the copy's first record: that record may not be older than the
        # lost one, and neither may earlier records that the copy lacks.
        if begin > 0 and safe <= begin:
            raise RequestRejected(
                f"this slave's copy of queue {header.queue_id} of {header.topic} begins at {begin}, and the"
                " reader may have to continue before that: ask the master",
                code=ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        if safe >= offset or not self._can_move(claim):
            return None
        return self._move(claim, offset, safe)

    def _can_move(self, claim: _Claim) -> bool:
        return self._moved.get(claim.key) != claim.channel.peer and len(self._moved) < self._count_max

    def _move(self, claim: _Claim, offset: int, safe: int) -> int:
        """Moves the client to `safe`; its commits are limited to that until it continues there or insists."""
        self._moved[claim.key] = claim.channel.peer
        trusted = self._trusted.get((claim.group, claim.member))
        if trusted is not None and claim.queue in trusted:
            trusted.discard(claim.queue)
            self._count -= 1
        log.warning(
            events.CLAIM_REFUSED,
            extra={
                "group": claim.group,
                "client": claim.member,
                "topic": claim.queue[0],
                "queue_id": claim.queue[1],
                "claimed_offset": offset,
                "safe_offset": safe,
                "run_start": claim.bounds.run_start,
            },
        )
        return safe

    def _safe_offset(self, claim: _Claim) -> int:
        """Returns the group's safe offset: messages below it were consumed, or existed when this run
        started.
        """
        group, queue, safe = claim.group, claim.queue, claim.bounds.run_start
        online = self._consumers.get(group)
        if online is None or online.consumption.message_model != BROADCASTING:
            safe = max(safe, self._offsets.committed(group, *queue) or 0)
        if online is not None and online.consumption.consume_type == ACTIVE_TYPE:
            # A client that keeps its own progress may continue as far as this run has served the group.
            safe = max(safe, self._offsets.pulled(group, *queue) or 0)
        return min(safe, claim.bounds.next_offset)

    def _safe_offset_without(self, claim: _Claim) -> int:
        """Returns the safe offset for a consumer whose last-read record is not in this log.

        The logs may have diverged in an earlier run, below this run's run start. Unless clocks were set
        back, they diverged no later than the first record here that is not older than the lost one.
        In the lost record's log, earlier records of the queue begin before it. A record here that begins
        after it is therefore none of them. Such a record may lie far below the lost one's queue offset if the
        other log was that of a master that had lost its disk.
        Every master run lowered the group's committed offset, but a slave stores commits that nothing has
        contradicted yet, including this client's. The result is therefore the lowest of the committed offset,
        the first record that is not older, the first that begins later, and the lost record's own offset.
        A group without a commit here may have read nothing of this log, so its initial position counts
        instead. On a master the result is never below the beginning of the queue; below a slave's beginning,
        the master can still serve the client.
        """
        seen, online = claim.seen, self._consumers.get(claim.group)
        assert seen is not None
        committed = None
        if online is None or online.consumption.message_model != BROADCASTING:
            committed = self._offsets.committed(claim.group, *claim.queue)
        if committed is None:
            committed = self._beginning_of(claim)
        younger = self._store.reader.offset_by_time(*claim.queue, seen.stored_at_ms)
        beyond = self._store.reader.offset_beyond(*claim.queue, seen.log_offset)
        safe = min(committed, younger, beyond, seen.queue_offset)
        return safe if self._is_slave else max(claim.bounds.min_offset, safe)

    def _beginning_of(self, claim: _Claim) -> int:
        """Returns the initial position of a group without a commit, no higher than the run start. The group
        may have read from a master that lost its disk, and nothing of this log.

        A group that starts at the newest message needs all messages since its subscription was made, which
        the subscription's version records.
        """
        online, run_start = self._consumers.get(claim.group), claim.bounds.run_start
        if online is None or online.consumption.message_model == BROADCASTING:
            return run_start
        if online.consumption.consume_from_where != FROM_LAST:
            return 0 if self._is_slave else claim.bounds.min_offset
        subscription = online.subscriptions.get(claim.queue[0])
        if subscription is None:
            return run_start
        return min(run_start, self._store.reader.offset_by_time(*claim.queue, subscription.version))

    def _member_of(self, channel: Channel, group: str, client_id: str | None) -> MemberId:
        if client_id:
            return client_id
        found = self._consumers.member(group, channel)
        return channel if found is None else found.client_id

    def _is_trusted(self, claim: _Claim) -> bool:
        """Returns True if the client is trusted in the queue: by its id, by this connection, or, before a
        heartbeat, by its host.
        """
        channel, (group, member, queue) = claim.channel, claim.key
        if self._count >= self._count_max:
            return True
        if queue in self._trusted.get((group, member), ()) or queue in self._trusted.get(
            (group, channel), ()
        ):
            return True
        return not isinstance(member, str) and queue in self._hosts.get((group, channel.peer[0]), ())

    def _trust(self, channel: Channel, group: str, member: MemberId, queue: QueueName) -> None:
        self._moved.pop((group, member, queue), None)
        if self._is_slave or self._count >= self._count_max:
            return
        key = (group, member)
        trusted = self._trusted.get(key)
        if trusted is None:
            trusted = self._trusted[key] = set()
            if not isinstance(member, str) and self._drop_channel not in channel.on_close:
                channel.on_close.append(self._drop_channel)
        if queue not in trusted:
            trusted.add(queue)
            self._count += 1
        if isinstance(member, str):
            self._hosts.setdefault((group, channel.peer[0]), set()).add(queue)

    def _begins_at_answer(self, claim: _Claim, offset: int) -> bool:
        """Returns True if a member of a broadcasting group pulls at the offset that its connection was just
        answered. A later pull needs another reason, because the client may have read another log since.
        """
        online = self._consumers.get(claim.group)
        if online is None or online.consumption.message_model != BROADCASTING:
            return False
        answered = self._answered.get(claim.channel, {}).pop(claim.queue, None)
        self._answered_count -= answered is not None
        return answered == offset

    def _drop_answers(self, channel: Channel) -> None:
        self._answered_count -= len(self._answered.pop(channel, ()))

    def _drop_channel(self, channel: Channel) -> None:
        for key in [key for key in self._trusted if key[1] is channel]:
            self._count -= len(self._trusted.pop(key))

    def _forget_topic(self, topic: str) -> None:
        """Drops the state of a deleted topic: its queues start anew."""
        for trusted in (*self._trusted.values(), *self._hosts.values()):
            trusted.difference_update([queue for queue in trusted if queue[0] == topic])
        for answered in self._answered.values():
            for queue in [queue for queue in answered if queue[0] == topic]:
                del answered[queue]
                self._answered_count -= 1
        self._moved = {key: peer for key, peer in self._moved.items() if key[2][0] != topic}
        self._count = sum(map(len, self._trusted.values()))


def _needs_heartbeat(header: PullRequest) -> bool:
    """Returns True for the pull of a push consumer: it waits and relies on a registered subscription."""
    return bool(header.sys_flag & PULL_SUSPEND) and not header.sys_flag & PULL_SUBSCRIPTION
