"""Whether the progress that a consumer claims is progress in this log.

Consumers keep their progress in memory. A master that comes back without the end of its log, or a slave that
was shorter and takes its place, gives the queue offsets of what was lost to other messages: who goes on at
the old number skips them, and nobody notices once the queue has grown past it.

Invariants: each queue remembers where it ended when this life of the broker began (its life start). A client
            of a group is believed in a queue once this life has told it where it is: it asked for the group's
            offset, pulled at or below the life start, was reset, or showed a record that is in this log. A
            client that is not believed and claims more than the group's safe offset is moved there, once over
            each connection, because the answer may be lost with it.
            What the master keeps as committed is never a claim that was not believed, and what a slave keeps
            is never progress whose record is shown and is not in its copy.
            A client that shows a record in whose place this log has another is nowhere believed before it
            has followed, also when it was: it may have read at a slave meanwhile whose log had parted from
            this one. On a slave neither, when its copy reaches as far as that record: one that is behind has
            nothing in that place, or what was there before its topic was deleted, and refuses the reader. So
            does one whose copy begins behind the offset that the reader is to go back to.
            A record that is shown proves the place behind it and no further, whether the client got it or a
            filter passed over it: one from further below may be in both logs. Who claims more has read on at
            a slave whose copy begins behind that record, and is led back behind it.
Strategy:   duplicates rather than gaps. On a master one look into a dict for each pull; commits at or below
            the life start cost a comparison. One look into the log for each pull and commit that shows a
            record: readers go to slaves and come back, so nothing holds for the next one.
At a bound: after `count_max` believed queues of clients, or as many that were moved, every other client is
            believed, too.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from tandemmq.broker.clients.consumer_table import (
    ACTIVE_TYPE,
    BROADCASTING,
    FROM_LAST,
    ConsumerGroup,
    ConsumerTable,
)
from tandemmq.broker.offsets.offset_table import OffsetTable
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
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

BELIEVED_COUNT_MAX = 262_144

QueueName = tuple[str, int]
Who: TypeAlias = str | Channel
"""The id of a client, or its connection while no heartbeat has told the id."""


class Claims:
    """Judges what members of groups say about themselves; on a slave only by the record that they show."""

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        is_slave: bool,
        count_max: int = BELIEVED_COUNT_MAX,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._consumers = consumers
        self._is_slave = is_slave
        self._count_max = count_max
        self._count = 0
        self._believed: dict[tuple[str, Who], set[QueueName]] = {}
        self._hosts: dict[tuple[str, str], set[QueueName]] = {}  # where believed clients have come from
        # Who was moved, over which connection.
        self._moved: dict[tuple[str, Who, QueueName], Address] = {}
        offsets.on_topic_dropped.append(self._forget_topic)

    def judge_pull(self, channel: Channel, header: PullRequest) -> int | None:
        """None when the pull may go on where it asks, else the offset that it is to go on from.

        Raises:  RequestRejected for a consumer whose heartbeat has to come first, and on a slave for one that
                 has read further in its master's log than the copy goes.
        """
        if self._is_slave:
            return self._judge_in_copy(channel, header)
        if header.consumer_group == TOOLS_GROUP:
            return None  # it looks at what an operator names, and has no progress
        queue = (header.topic, header.queue_id)
        who = self._who(channel, header.consumer_group, header.client_id)
        seen = header.seen_record()
        has_seen = self._has(queue, seen)
        believed = self._believed.get((header.consumer_group, who))
        is_refuted = has_seen is False or self._has_gap(queue, seen, header.queue_offset)
        if believed is not None and queue in believed and not is_refuted:
            return None
        return self._judge_claim(channel, who, header, queue, seen, has_seen)

    def judge_held(self, channel: Channel, header: PullRequest) -> int | None:
        """The same for a pull that was held: a slave may have got meanwhile what shows where it belongs."""
        return self._judge_in_copy(channel, header) if self._is_slave else None

    def judge_overflow(self, channel: Channel, header: PullRequest) -> int | None:
        """The same for a pull behind the queue's end, which cannot be of this log whoever asks."""
        who = self._who(channel, header.consumer_group, header.client_id)
        if self._is_slave or not isinstance(who, str):
            return None
        queue = (header.topic, header.queue_id)
        key = (header.consumer_group, who, queue)
        if self._moved.get(key) == channel.peer:
            return None
        return self._move(channel, key, header.queue_offset, self._safe_offset(header.consumer_group, queue))

    def judge_commit(
        self, channel: Channel, header: UpdateOffsetRequest | PullRequest, *, is_tool: bool = False
    ) -> int:
        """What is to be kept of a commit; `is_tool`: the sender is not a member and waits for the answer."""
        offset = header.committed_offset
        queue = (header.topic, header.queue_id)
        is_old = self._is_slave or offset <= self._store.queue_life_start(*queue)
        if is_old and header.seen is None:
            return offset
        group = header.consumer_group
        who = self._who(channel, group, header.client_id)
        queue_end = self._store.queue_next(*queue)
        if not isinstance(who, str) and is_tool:
            return min(offset, queue_end)
        seen = header.seen_record()
        has_seen = self._has(queue, seen)
        if seen is not None and has_seen is False:
            return min(offset, self._safe_offset_without(group, queue, seen))
        if seen is not None:
            offset = min(offset, self._proven(queue, seen))
        if self._is_slave and seen is not None and not has_seen:
            # Nobody could say later what this progress rests on: whoever is told of it has no record to show.
            committed = self._offsets.committed(group, *queue)
            if committed is None:
                committed = self._beginning_of(self._consumers.get(group), queue)
            return min(offset, committed)
        if not self._is_believed(channel, group, who, queue):
            if is_old:
                return offset
            if seen is not None and has_seen:
                self._believe(channel, group, who, queue)
            else:
                return min(offset, self._safe_offset(group, queue))
        if offset > queue_end and not self._is_slave:
            return min(offset, self._safe_offset(group, queue))
        return offset

    def note_asked(self, channel: Channel, header: QueryOffsetRequest) -> None:
        """A client has been told where its group is, or that it begins anew."""
        who = self._who(channel, header.consumer_group, None)
        self._believe(channel, header.consumer_group, who, (header.topic, header.queue_id))

    def note_reset(self, channel: Channel, header: PullRequest) -> None:
        """A client has been told where an operator has set its group."""
        who = self._who(channel, header.consumer_group, header.client_id)
        self._believe(channel, header.consumer_group, who, (header.topic, header.queue_id))

    def _judge_claim(
        self,
        channel: Channel,
        who: Who,
        header: PullRequest,
        queue: QueueName,
        seen: SeenRecord | None,
        has_seen: bool | None,
    ) -> int | None:
        """Judge a client that is not believed, or that was and comes from a copy of another log."""
        group, offset = header.consumer_group, header.queue_offset
        is_claim = offset > self._store.queue_life_start(*queue)
        has_gap = self._has_gap(queue, seen, offset)
        if has_seen is False or has_gap or (is_claim and not self._is_believed(channel, group, who, queue)):
            if not isinstance(who, str):
                if _needs_heartbeat(header):
                    raise RequestRejected(
                        f"the group {group} has to say by a heartbeat of this connection who pulls queue"
                        f" {header.queue_id} of {header.topic} at {offset}",
                        code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                    )
                return None
            if seen is not None and has_seen is False:
                safe = self._safe_offset_without(group, queue, seen)
            elif seen is not None and (has_gap or has_seen):
                safe = self._proven(queue, seen)
            else:
                safe = self._safe_offset(group, queue)
            key = (group, who, queue)
            if offset > safe and self._can_move(channel, key):
                return self._move(channel, key, offset, safe)
        if isinstance(who, str) or _needs_heartbeat(header):
            self._believe(channel, group, who, queue)
        return None

    def _judge_in_copy(self, channel: Channel, header: PullRequest) -> int | None:
        """On a slave: only who shows a record in whose place the copy has another is not of its log.

        A record beyond the end of the copy refutes nothing: the copy may have yet to learn that its topic was
        deleted and made again. It has nothing for this reader until then.
        """
        if header.seen is None:
            return None
        group, queue, seen = header.consumer_group, (header.topic, header.queue_id), header.seen_record()
        key = (group, self._who(channel, group, header.client_id), queue)
        has_seen = self._has(queue, seen)
        if seen is None or has_seen is None:
            self._moved.pop(key, None)
            return None
        if has_seen:
            proven = self._proven(queue, seen)
            if header.queue_offset <= proven or not self._can_move(channel, key):
                self._moved.pop(key, None)
                return None
            return self._move(channel, key, header.queue_offset, proven)
        if seen.log_offset >= self._store.max_log_offset:
            raise RequestRejected(
                f"this slave's copy ends at {self._store.max_log_offset}, before the record at"
                f" {seen.log_offset} that the reader has seen of queue {header.queue_id} of {header.topic}:"
                " ask the master, or wait until it is copied",
                code=ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        safe = self._safe_offset_without(group, queue, seen)
        if self._may_be_before_copy(queue, safe):
            raise RequestRejected(
                f"this slave's copy of queue {header.queue_id} of {header.topic} begins at"
                f" {self._store.queue_min(*queue)}, and the reader may have to go on before that: ask the"
                " master",
                code=ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        if safe >= header.queue_offset or not self._can_move(channel, key):
            return None
        return self._move(channel, key, header.queue_offset, safe)

    def _can_move(self, channel: Channel, key: tuple[str, Who, QueueName]) -> bool:
        return self._moved.get(key) != channel.peer and len(self._moved) < self._count_max

    def _move(self, channel: Channel, key: tuple[str, Who, QueueName], claimed: int, safe: int) -> int:
        """Until it comes from there, or insists, its commits stay at what is safe."""
        group, who, (topic, queue_id) = key
        self._moved[key] = channel.peer
        believed = self._believed.get((group, who))
        if believed is not None and (topic, queue_id) in believed:
            believed.discard((topic, queue_id))
            self._count -= 1
        log.warning(
            events.CLAIM_REFUSED,
            extra={
                "group": group,
                "client": who,
                "topic": topic,
                "queue_id": queue_id,
                "claimed_offset": claimed,
                "safe_offset": safe,
                "life_start": self._store.queue_life_start(topic, queue_id),
            },
        )
        return safe

    def _safe_offset(self, group: str, queue: QueueName) -> int:
        """Everything below is finished, or was there when this life began."""
        safe = self._store.queue_life_start(*queue)
        online = self._consumers.get(group)
        if online is None or online.consumption.message_model != BROADCASTING:
            safe = max(safe, self._offsets.committed(group, *queue) or 0)
        if online is not None and online.consumption.consume_type == ACTIVE_TYPE:
            # Who keeps progress of its own begins wherever this life has led the group.
            safe = max(safe, self._offsets.pulled(group, *queue) or 0)
        return min(safe, self._store.queue_next(*queue))

    def _safe_offset_without(self, group: str, queue: QueueName, seen: SeenRecord) -> int:
        """The same for who shows a record that is not in this log.

        Other lives may lie between, and their logs may have parted below this life's start. The first record
        that is no older than the lost one is where they parted, unless clocks were set back. What the group
        has committed was lowered by each life of a master; but a slave keeps commits that nothing refutes
        yet, of this client, too. So the lowest of them holds. A group that has committed nothing here may
        have read nothing of this log: it goes on where it would begin. Below the beginning of a master's
        queue there is nothing to go on from; of a slave's copy there is, at its master.
        """
        online = self._consumers.get(group)
        committed = None
        if online is None or online.consumption.message_model != BROADCASTING:
            committed = self._offsets.committed(group, *queue)
        if committed is None:
            committed = self._beginning_of(online, queue)
        younger = self._store.offset_by_time(*queue, seen.stored_at_ms)
        safe = min(committed, younger, seen.queue_offset)
        return safe if self._is_slave else max(self._store.queue_min(*queue), safe)

    def _may_be_before_copy(self, queue: QueueName, safe: int) -> bool:
        """Whether the logs of a slave and of who reads there may have parted below what the copy holds: its
        first record may be no older than the lost one, and so may others be that it has not got.
        """
        begin = self._store.queue_min(*queue)
        return begin > 0 and safe <= begin

    def _beginning_of(self, online: ConsumerGroup | None, queue: QueueName) -> int:
        """Where a group that has committed nothing wants to begin, no higher than the life start: it may have
        read in the log of a master that had lost its disk, and none of what is here.

        Who begins with the newest wants what came since its subscription was made, which its version tells.
        """
        life_start = self._store.queue_life_start(*queue)
        if online is None or online.consumption.message_model == BROADCASTING:
            return life_start
        if online.consumption.consume_from_where != FROM_LAST:
            return 0 if self._is_slave else self._store.queue_min(*queue)
        subscription = online.subscriptions.get(queue[0])
        if subscription is None:
            return life_start
        return min(life_start, self._store.offset_by_time(*queue, subscription.version))

    def _proven(self, queue: QueueName, seen: SeenRecord) -> int:
        """How far a record of this log proves a place: right behind it, or where the queue begins by now."""
        return max(seen.queue_offset + 1, self._store.queue_min(*queue))

    def _has_gap(self, queue: QueueName, seen: SeenRecord | None, offset: int) -> bool:
        return seen is not None and offset > self._proven(queue, seen)

    def _has(self, queue: QueueName, seen: SeenRecord | None) -> bool | None:
        """None when that cannot be told: a slave may not have it yet, and an old record may be deleted."""
        if seen is None:
            return None
        if not self._is_slave and seen.queue_offset >= self._store.queue_next(*queue):
            return False
        return self._store.has_record(*queue, seen.queue_offset, seen.log_offset, seen.stored_at_ms)

    def _who(self, channel: Channel, group: str, client_id: str | None) -> Who:
        if client_id:
            return client_id
        member = self._consumers.member(group, channel)
        return channel if member is None else member.client_id

    def _is_believed(self, channel: Channel, group: str, who: Who, queue: QueueName) -> bool:
        """Also by what it was told over this connection, or its host was, before a heartbeat named it."""
        if self._count >= self._count_max:
            return True
        if queue in self._believed.get((group, who), ()) or queue in self._believed.get((group, channel), ()):
            return True
        return not isinstance(who, str) and queue in self._hosts.get((group, channel.peer[0]), ())

    def _believe(self, channel: Channel, group: str, who: Who, queue: QueueName) -> None:
        self._moved.pop((group, who, queue), None)
        if self._is_slave or self._count >= self._count_max:
            return
        key = (group, who)
        believed = self._believed.get(key)
        if believed is None:
            believed = self._believed[key] = set()
            if not isinstance(who, str) and self._drop_channel not in channel.on_close:
                channel.on_close.append(self._drop_channel)
        if queue not in believed:
            believed.add(queue)
            self._count += 1
        if isinstance(who, str):
            self._hosts.setdefault((group, channel.peer[0]), set()).add(queue)

    def _drop_channel(self, channel: Channel) -> None:
        for key in [key for key in self._believed if key[1] is channel]:
            self._count -= len(self._believed.pop(key))

    def _forget_topic(self, topic: str) -> None:
        """Its queues begin anew: nobody is anywhere in them."""
        for believed in (*self._believed.values(), *self._hosts.values()):
            believed.difference_update([queue for queue in believed if queue[0] == topic])
        self._moved = {key: peer for key, peer in self._moved.items() if key[2][0] != topic}
        self._count = sum(map(len, self._believed.values()))


def _needs_heartbeat(header: PullRequest) -> bool:
    """A pull as push consumers make it: it waits for messages and relies on a registered subscription."""
    return bool(header.sys_flag & PULL_SUSPEND) and not header.sys_flag & PULL_SUBSCRIPTION
