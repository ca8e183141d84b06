"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ (spec remoting 9.8, spec semantics 10.6)."""

from __future__ import annotations

from tandemmq.broker.clients.queue_locks import QueueLocks
from tandemmq.broker.guards import invalid, read_body, require_group
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.protocol.bodies.client import LockRequest, decode_lock_request, encode_lock_answer
from tandemmq.protocol.bodies.message_queue import MessageQueue
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock


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
        now_ms = self._clock.now_ms()
        require_group(self._groups, request.consumer_group, now_ms)
        queues = [queue for queue in request.queues if self._exists(queue)]
        held = self._locks.lock(request.consumer_group, request.client_id, queues, now_ms, channel)
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
