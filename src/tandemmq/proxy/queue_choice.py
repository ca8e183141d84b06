"""The queue of a sent message: by its group, or in turn.

Every proxy must choose the same queue for a group, Java's as well, or the order of its messages is lost. The
choice depends on nothing but the group and the list of queues.

Source: spec proxy 5.5.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.client.producer.sender import START_BOUND, QueueChoice
from tandemmq.client.route_cache import FaultyPeers, RouteView
from tandemmq.errors import BrokerUnreachable, RequestTimeout, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.hashes import java_hash
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.runtime.ports import Clock, Random
from tandemmq.units import MASTER_ID

_MULTIPLIER: Final = 2862933555777941757
_MASK: Final = 2**64 - 1
TOPICS_MAX: Final = 20_000
"""The number of topics whose turn is kept; the first one is dropped, and starts at a random queue again."""


def jump_hash(value: int, count: int) -> int:
    """Returns a bucket in `[0, count)`; few values change their bucket when `count` changes.

    Java adds 1 to a 31-bit number with a sign: the highest one becomes negative, which ends the search.
    """
    assert count > 0
    state = value & _MASK
    bucket = 0
    while True:
        state = (state * _MULTIPLIER + 1) & _MASK
        step = (state >> 33) + 1
        if step == 2**31:
            return bucket
        following = int((bucket + 1) / (step / 2**31))
        if following >= count:
            return bucket
        bucket = following


def queue_index(group: str, count: int) -> int:
    """Returns the index of the queue of a message group among `count` queues."""
    return jump_hash(java_hash(group), count)


class NoWritableQueue(RpcRefused):
    """A topic without a writable queue at any master. `is_outage`: one of its brokers lacks a master now."""

    def __init__(self, view: RouteView) -> None:
        super().__init__(Code.FORBIDDEN, f"topic {view.topic} has no writable queue at any master")
        self.is_outage = any(MASTER_ID not in replicas for replicas in view.addresses.values())


def write_queues(view: RouteView) -> list[MessageQueue]:
    """Returns the queues of the topic's masters, sorted by broker name and queue id; those of the order
    configuration if there is one. Raises NoWritableQueue.
    """
    queues = [queue for queue in view.publish_queues if view.master_address(queue.broker_name) is not None]
    if not queues:
        raise NoWritableQueue(view)
    queues.sort(key=lambda queue: (queue.broker_name, queue.queue_id))
    return queues


class _TopicQueues(NamedTuple):
    """The write queues of one topic's route, and the turn of messages without a group."""

    view: RouteView
    queues: list[MessageQueue]
    turn: QueueChoice


@dataclass(slots=True)
class QueueChooser:
    """The choice of queues for all topics. Queues of a broker that has just failed are avoided, unless the
    message has a group.
    """

    clock: Clock
    chance: Random
    _faulty: FaultyPeers = field(default_factory=FaultyPeers, init=False)
    _topics: dict[str, _TopicQueues] = field(default_factory=dict, init=False)

    def choose(self, view: RouteView, group: str, avoid: Collection[str] = ()) -> MessageQueue:
        """Returns the queue of the group. Without a group: the next queue in turn whose broker is not in
        `avoid`, or any next queue if all brokers are. Raises NoWritableQueue.
        """
        topic = self._queues_of(view)
        if group:
            return topic.queues[queue_index(group, len(topic.queues))]
        faulty = self._faulty.avoided(self.clock.monotonic()) if self._faulty else frozenset()
        return topic.turn.next_queue(topic.queues, faulty.union(avoid))

    def record_success(self, broker_name: str) -> None:
        """Ends the avoidance of a broker that answered."""
        self._faulty.record_success(broker_name)

    def record_failure(self, broker_name: str, error: TandemError) -> None:
        """Avoids a broker that could not be reached or did not answer, from now on for a while."""
        if isinstance(error, BrokerUnreachable | RequestTimeout):
            self._faulty.record_failure(broker_name, self.clock.monotonic())

    def _queues_of(self, view: RouteView) -> _TopicQueues:
        """Returns the queues of the view, computed once for each view."""
        known = self._topics.get(view.topic)
        if known is not None and known.view is view:
            return known
        turn = QueueChoice(self.chance.below(START_BOUND)) if known is None else known.turn
        fresh = _TopicQueues(view, write_queues(view), turn)
        if known is None and len(self._topics) >= TOPICS_MAX:
            del self._topics[next(iter(self._topics))]
        self._topics[view.topic] = fresh
        return fresh
