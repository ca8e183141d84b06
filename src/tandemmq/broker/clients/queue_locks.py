"""Queue locks of orderly consumers: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.

A lock is renewed by requesting it again, and expires `expired_ms` after the last renewal (spec semantics
10.6, spec remoting 9.8). It may expire sooner if the connection of its last renewal is closed. Expired locks
are removed when their group next requests locks; a group without locks is removed as well. Times use the
monotonic clock: with the wall clock, a change of the time could release locks that clients still rely on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import invalid, read_body, require_group
from tandemmq.protocol.bodies.client import LockRequest, encode_lock_answer
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock

CLOSED_EXPIRED_MS: Final = 35_000
"""The expiry, in milliseconds, of a lock whose connection is closed. The lock does not expire at once: the
client may still be running, and may use its queues for the 30 s that a lock lasts on the client's side, plus
5 s for the current message.
"""


class LockConnection(Protocol):
    """The part of a client's connection that a lock needs."""

    @property
    def is_closed(self) -> bool: ...


class _Lock(NamedTuple):
    client_id: str
    renewed_s: float
    connection: LockConnection | None


class QueueLocks:
    """The locks by group and queue."""

    def __init__(self, expired_ms: int, clock: Clock) -> None:
        self._expired_ms = expired_ms
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        connection: LockConnection | None = None,
    ) -> list[MessageQueue]:
        """Acquires or renews the locks of `queues`, except those that another client holds. Returns the
        queues that `client_id` now holds, in the requested order. `connection`: that of the client.
        """
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or self._is_expired(lock):
                locks[queue] = _Lock(client_id, self._clock.monotonic(), connection)
                held.append(queue)
        self._drop_expired(group)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Releases the locks of `queues` that `client_id` holds."""
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
        """Returns True while any queue of the group is locked, so its consumers are orderly (spec semantics
        7.2).
        """
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
        if lock.connection is not None and lock.connection.is_closed:
            expired_ms = min(expired_ms, CLOSED_EXPIRED_MS)
        return self._clock.monotonic() - lock.renewed_s > expired_ms / 1000


@dataclass(slots=True)
class LockHandlers:
    """Locks queues of this broker for orderly consumers."""

    core: BrokerCore
    locks: QueueLocks

    def handle_lock(self, channel: Channel, command: Command) -> Command:
        """Handles LOCK_BATCH_MQ (41). The answer lists the queues the client now holds, which may be none."""
        request = self._read(command)
        require_group(self.core.groups, request.consumer_group, self.core.clock.now_ms(), channel.peer[0])
        queues = [queue for queue in request.queues if self._exists(queue)]
        held = self.locks.lock(request.consumer_group, request.client_id, queues, channel)
        return command.reply(body=encode_lock_answer(held))

    def handle_unlock(self, channel: Channel, command: Command) -> Command:
        """Handles UNLOCK_BATCH_MQ (42). Queues held by other clients stay locked."""
        request = self._read(command)
        self.locks.unlock(request.consumer_group, request.client_id, request.queues)
        return command.reply()

    def _read(self, command: Command) -> LockRequest:
        request = read_body(LockRequest, command.body)
        if not request.client_id or not request.consumer_group:
            raise invalid("clientId and consumerGroup must be given to lock or unlock queues")
        return request

    def _exists(self, queue: MessageQueue) -> bool:
        """Returns True for a queue of this broker; only those are locked, so the topics bound the locks."""
        config = self.core.topics.get(queue.topic)
        if config is None or queue.broker_name != self.core.options.broker_name:
            return False
        return 0 <= queue.queue_id < max(config.read_queue_count, config.write_queue_count)
