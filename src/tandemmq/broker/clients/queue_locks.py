"""Which client holds which queue of a group, for orderly consumption; LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.

A lock is renewed by asking for it again and is free once `expired_ms` have passed since (spec semantics 10.6,
spec remoting 9.8); sooner, when the connection is closed over which it was renewed last. Expired locks go
when their group is asked for, and a group without locks goes with them. Time is the monotonic clock's: a wall
clock that is set would free what its holder still trusts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from tandemmq.broker.guards import invalid, read_body, require_group
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.protocol.bodies.client import LockRequest, decode_lock_request, encode_lock_answer
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock

LEFT_EXPIRED_MS: Final = 35_000
"""When the lock of a closed connection is free. Not at once: the client may live and go on with what it has
for the 30 s that a lock lasts on its side, and 5 s for the message that it is at.
"""


class Holder(Protocol):
    """What is asked of a connection."""

    @property
    def is_closed(self) -> bool: ...


class _Lock(NamedTuple):
    client_id: str
    renewed_s: float
    holder: Holder | None


class QueueLocks:
    """Locks by group and queue."""

    def __init__(self, expired_ms: int, clock: Clock) -> None:
        self._expired_ms = expired_ms
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        holder: Holder | None = None,
    ) -> list[MessageQueue]:
        """The queues that `client_id` now holds, in the order asked. `holder`: its connection."""
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or self._is_expired(lock):
                locks[queue] = _Lock(client_id, self._clock.monotonic(), holder)
                held.append(queue)
        self._drop_expired(group)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._groups[group]

    def has_lock(self, group: str) -> bool:
        """True while any queue of the group is locked: its consumers are orderly (spec semantics 7.2)."""
        locks = self._groups.get(group)
        return locks is not None and any(not self._is_expired(lock) for lock in locks.values())

    def _drop_expired(self, group: str) -> None:
        locks = self._groups[group]
        for queue in [queue for queue, lock in locks.items() if self._is_expired(lock)]:
            del locks[queue]
        if not locks:
            del self._groups[group]

    def _is_expired(self, lock: _Lock) -> bool:
        expired_ms = self._expired_ms
        if lock.holder is not None and lock.holder.is_closed:
            expired_ms = min(expired_ms, LEFT_EXPIRED_MS)
        return self._clock.monotonic() - lock.renewed_s > expired_ms / 1000


class LockHandlers:
    """Locks queues of this broker for orderly consumers."""

    def __init__(
        self, broker_name: str, *, locks: QueueLocks, topics: TopicTable, groups: GroupTable, clock: Clock
    ) -> None:
        self._broker_name = broker_name
        self._locks = locks
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def handle_lock(self, channel: Channel, command: Command) -> Command:
        """LOCK_BATCH_MQ (41): the answer names the queues that the client holds now; maybe none."""
        request = self._read(command)
        require_group(self._groups, request.consumer_group, self._clock.now_ms(), channel.peer[0])
        queues = [queue for queue in request.queues if self._exists(queue)]
        held = self._locks.lock(request.consumer_group, request.client_id, queues, channel)
        return command.reply(body=encode_lock_answer(held))

    def handle_unlock(self, channel: Channel, command: Command) -> Command:
        """UNLOCK_BATCH_MQ (42): queues that someone else holds stay locked."""
        request = self._read(command)
        self._locks.unlock(request.consumer_group, request.client_id, request.queues)
        return command.reply()

    def _read(self, command: Command) -> LockRequest:
        request = read_body(decode_lock_request, command.body)
        if not request.client_id or not request.consumer_group:
            raise invalid("clientId and consumerGroup must be given to lock or unlock queues")
        return request

    def _exists(self, queue: MessageQueue) -> bool:
        """Locks are kept for real queues only, so their number is bounded by the topics."""
        config = self._topics.get(queue.topic)
        if config is None or queue.broker_name != self._broker_name:
            return False
        return 0 <= queue.queue_id < max(config.read_queue_count, config.write_queue_count)
