"""The share of a topic's queues that a member reads: RocketMQ's strategies, and the change from the current
assignment; pure.

Every consumer of a group computes the same split from the same sorted inputs, so no coordinator is needed.
All members need the same strategy; each result equals RocketMQ's, so Java clients may be members (spec
semantics 12.2, 12.3). All clients sort the queues as `MessageQueue` does: by topic, broker name, queue id.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tandemmq.errors import ClientError
from tandemmq.protocol.bodies import MessageQueue

Allocate = Callable[[Collection[MessageQueue], Collection[str], str], list[MessageQueue]]
"""A strategy: the queues of one topic, the ids of the group's members, this member's id -> its share."""


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """The change of a rebalance in one topic: queues to release, then queues to start."""

    lost: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]


def allocate_averagely(
    queues: Collection[MessageQueue], client_ids: Collection[str], own_id: str
) -> list[MessageQueue]:
    """Returns a consecutive share of the queues; the first consumers get one more when the split is uneven.

    The share is empty when there are fewer queues than consumers before this one, or when its id is not
    in the list: the broker has not seen this client's heartbeat, and a guess would assign queues to two
    consumers.
    """
    ids = sorted(set(client_ids))
    if own_id not in ids or not queues:
        return []
    ordered = sorted(queues)
    index, remainder = ids.index(own_id), len(ordered) % len(ids)
    share, start = len(ordered) // len(ids), index * (len(ordered) // len(ids)) + min(index, remainder)
    return ordered[start : start + share + (1 if index < remainder else 0)]


def allocate_by_circle(
    queues: Collection[MessageQueue], client_ids: Collection[str], own_id: str
) -> list[MessageQueue]:
    """Returns a share dealt like cards: neighbouring queues, often of one broker, go to different members."""
    ids = sorted(set(client_ids))
    if own_id not in ids:
        return []
    return sorted(queues)[ids.index(own_id) :: len(ids)]


SERVER_STRATEGIES: dict[Allocate, str] = {allocate_averagely: "AVG", allocate_by_circle: "AVG_BY_CIRCLE"}
"""The strategies that brokers also support, with their names there (spec semantics 20.1)."""


@dataclass(frozen=True, slots=True)
class AllocateByConsistentHash:
    """Assigns queues by consistent hashing: a member that joins or leaves moves few queues of the others, but
    the shares are uneven. Go's clients use another ring and must not be members.
    """

    virtual_node_count: int = 10

    def __call__(
        self, queues: Collection[MessageQueue], client_ids: Collection[str], own_id: str
    ) -> list[MessageQueue]:
        ring = {
            _hash(f"{client_id}-{number}"): client_id
            for client_id in sorted(set(client_ids))
            for number in range(self.virtual_node_count)
        }
        points = sorted(ring)
        if not points:
            return []
        return [
            queue
            for queue in sorted(queues)
            if ring[points[bisect_left(points, _hash(_text_of(queue))) % len(points)]] == own_id
        ]


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """Assigns only queues of brokers in these rooms; such brokers are named `room@name`. Other members read
    the rest.
    """

    rooms: frozenset[str]

    def __call__(
        self, queues: Collection[MessageQueue], client_ids: Collection[str], own_id: str
    ) -> list[MessageQueue]:
        ids = sorted(set(client_ids))
        if own_id not in ids:
            return []
        near = [queue for queue in sorted(queues) if self._is_near(queue.broker_name)]
        index, share = ids.index(own_id), len(near) // len(ids)
        mine = near[index * share : (index + 1) * share]
        return mine + near[share * len(ids) :][index : index + 1]

    def _is_near(self, broker_name: str) -> bool:
        parts = broker_name.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class AllocateMachineRoomNearby:
    """Assigns queues to members in the same room, by another strategy; queues of rooms without a member are
    shared among all.

    room_of_queue, room_of_client  return the room of a queue's broker, and of a member by its client id
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]
    inner: Allocate = allocate_averagely

    def __call__(
        self, queues: Collection[MessageQueue], client_ids: Collection[str], own_id: str
    ) -> list[MessageQueue]:
        """Returns the share. Raises ClientError for a queue or a member without a room."""
        if own_id not in client_ids:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            queues_by_room.setdefault(_room(self.room_of_queue(queue), queue), []).append(queue)
        ids_by_room: dict[str, list[str]] = {}
        for client_id in sorted(set(client_ids)):
            ids_by_room.setdefault(_room(self.room_of_client(client_id), client_id), []).append(client_id)
        own_room = self.room_of_client(own_id)
        mine = self.inner(queues_by_room.pop(own_room, ()), ids_by_room[own_room], own_id)
        for room, others in sorted(queues_by_room.items()):
            if room not in ids_by_room:
                mine += self.inner(others, client_ids, own_id)
        return mine


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """Always assigns these queues, regardless of the other members. In topics that have none of them, such as
    the group's retry topic, the average share applies: some member must read these topics.
    """

    queues: tuple[MessageQueue, ...]

    def __call__(
        self, queues: Collection[MessageQueue], client_ids: Collection[str], own_id: str
    ) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        if not any(queue.topic in topics for queue in self.queues):
            return allocate_averagely(queues, client_ids, own_id)
        return [queue for queue in self.queues if queue in queues]


def plan_change(held: Iterable[MessageQueue], wanted: Iterable[MessageQueue]) -> OwnershipChange:
    """Returns the queues to release and to start so that exactly `wanted` is assigned, each in queue
    order.
    """
    held_set, wanted_set = set(held), set(wanted)
    return OwnershipChange(
        lost=tuple(sorted(held_set - wanted_set)),
        gained=tuple(sorted(wanted_set - held_set)),
    )


def _hash(text: str) -> int:
    """Returns the first four bytes of the MD5 as a number."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _text_of(queue: MessageQueue) -> str:
    """Returns the queue as Java prints it: all members must hash the same text."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _room(room: str, owner: object) -> str:
    if not room:
        raise ClientError(f"{owner} is in no machine room")
    return room
