"""What a route means to clients: where to send, where to read, who lives at which address (spec semantics
2.2), and which of these peers are avoided for a while because they failed a moment ago; pure.

Producers key the failures by broker name, consumers by address. One table serves all calls of a client: with
thousands of sends in flight the first failure spares the others the same wait. The time of avoidance doubles
with each failure in a row, from 2 s to 30 s, the range of RocketMQ's fault table (spec semantics 3.2), and
one success clears it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import TopicRoute

PERM_READ = 4
PERM_WRITE = 2
MASTER_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteView:
    """One topic as clients see it. Queues are sorted by broker name and queue id.

    publish_queues    of writable brokers that have a master
    subscribe_queues  of readable brokers, with or without a master
    addresses         broker name -> broker id -> `host:port`
    is_template       made from the auto-creation template: the topic itself does not exist yet
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...] = ()
    subscribe_queues: tuple[MessageQueue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    is_template: bool = False

    def master_address(self, broker_name: str) -> str | None:
        """Where sends to the broker go; None while it has no master."""
        replicas = self.addresses.get(broker_name)
        return None if replicas is None else replicas.get(MASTER_ID)


def build_view(topic: str, route: TopicRoute) -> RouteView:
    """The view of a topic's own route."""
    addresses = {broker.broker_name: dict(broker.addresses) for broker in route.brokers}
    readable: list[MessageQueue] = []
    writable: list[MessageQueue] = []
    for entry in route.queues:
        name = entry.broker_name
        if entry.permission & PERM_READ and addresses.get(name):
            readable += _queues(topic, name, entry.read_queue_count)
        if entry.permission & PERM_WRITE and MASTER_ID in addresses.get(name, {}):
            writable += _queues(topic, name, entry.write_queue_count)
    ordered = parse_order_queues(topic, route.order_topic_conf)
    return RouteView(
        topic=topic,
        publish_queues=tuple(ordered or sorted(writable, key=_order)),
        subscribe_queues=tuple(sorted(readable, key=_order)),
        addresses=addresses,
    )


def build_template_view(topic: str, template: TopicRoute, queue_count_max: int) -> RouteView:
    """The view of a topic that the first send will create, from the route of TBW102 (spec semantics 3.1)."""
    addresses = {broker.broker_name: dict(broker.addresses) for broker in template.brokers}
    queues: list[MessageQueue] = []
    for entry in template.queues:
        if entry.permission & PERM_WRITE and MASTER_ID in addresses.get(entry.broker_name, {}):
            queues += _queues(topic, entry.broker_name, min(queue_count_max, entry.read_queue_count))
    ordered = tuple(sorted(queues, key=_order))
    return RouteView(topic=topic, publish_queues=ordered, addresses=addresses, is_template=True)


def parse_order_queues(topic: str, order_conf: str | None) -> list[MessageQueue]:
    """Queues of an ordered topic from `broker:count;broker:count`, in that order; a bad piece is passed
    over.
    """
    queues: list[MessageQueue] = []
    for piece in (order_conf or "").split(";"):
        name, _, count = piece.strip().partition(":")
        if name and count.isdecimal() and len(count) <= 4:
            queues += _queues(topic, name, int(count))
    return queues


def _queues(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id) for queue_id in range(count)
    ]


def _order(queue: MessageQueue) -> tuple[str, int]:
    return (queue.broker_name, queue.queue_id)


AVOID_S_MIN = 2.0
AVOID_S_MAX = 30.0


class FaultyPeers:
    """Peer -> until when it is avoided."""

    __slots__ = ("_failures", "_until")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def __bool__(self) -> bool:
        """False while no peer has failed since its last success."""
        return bool(self._until)

    def note_failure(self, peer: str, now_s: float) -> None:
        """Avoid the peer from now on, longer with every failure in a row.

        Failures of sends that were in flight together count once: only a failure after the avoidance has run
        out makes the next one longer.
        """
        if self._until.get(peer, 0.0) > now_s:
            return
        failures = self._failures.get(peer, 0)
        self._failures[peer] = failures + 1
        self._until[peer] = now_s + min(AVOID_S_MIN * 2.0 ** min(failures, 10), AVOID_S_MAX)

    def note_success(self, peer: str) -> None:
        """The peer answered: it is as good as any other again."""
        if self._failures:
            self._failures.pop(peer, None)
            self._until.pop(peer, None)

    def avoided(self, now_s: float) -> frozenset[str]:
        """The peers to pass over now; empty in the usual case, without work."""
        if not self._until:
            return frozenset()
        return frozenset(peer for peer, until in self._until.items() if until > now_s)
