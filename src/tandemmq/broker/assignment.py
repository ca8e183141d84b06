"""The assignment of queues to the clients of a group: QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE.

`TopicQueues` knows the queues of a topic on all brokers. The allocations
are RocketMQ's, so that all brokers compute the same result. Source: spec semantics 12.3 and 20.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.api.nameserver import query_route
from tandemmq.broker.clients.consumer_table import BROADCASTING
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import invalid, read_body, require_group, require_topic
from tandemmq.broker.options import PERMISSION_READ
from tandemmq.broker.table_file import save_or_reject
from tandemmq.errors import NotPermitted, RequestRejected, TandemError
from tandemmq.protocol.bodies import client as bodies
from tandemmq.protocol.bodies.codec import MessageQueue, encode_body
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.command import Command
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.remoting.channel import Channel

KEPT_S: Final = 30.0
"""The time in seconds for which routes are cached: RocketMQ's refresh period (spec semantics 20.1)."""
TOPICS_MAX: Final = 4_096
ASK_TIMEOUT_S: Final = 2.0
"""The time in seconds for all name servers together: clients wait 3 s for their assignment."""


@dataclass(slots=True)
class TopicQueues:
    """The readable queues of topics on all brokers, as reported by the name servers and cached for KEPT_S.

    Without name servers only this broker's queues are used.

    At a bound: the topic whose route was fetched longest ago is forgotten.
    """

    core: BrokerCore
    _kept: dict[str, tuple[float, list[MessageQueue] | None]] = field(default_factory=dict, init=False)

    async def find(self, topic: str) -> list[MessageQueue] | None:
        """Returns the queues sorted by broker and queue; None if the topic is unknown."""
        kept = self._kept.get(topic)
        if kept is not None and self.core.clock.monotonic() - kept[0] < KEPT_S and kept[1] is not None:
            return kept[1]
        if not self.core.options.name_servers:
            return self._own(topic)
        is_known, queues = await self._ask(topic)
        if not is_known:  # no name server answered: an old route is better than none
            return kept[1] if kept is not None else None
        self._kept.pop(topic, None)
        while len(self._kept) >= TOPICS_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[topic] = (self.core.clock.monotonic(), queues)
        return queues

    async def _ask(self, topic: str) -> tuple[bool, list[MessageQueue] | None]:
        addresses = self.core.options.name_servers
        for address in addresses:
            try:
                timeout_s = ASK_TIMEOUT_S / len(addresses)
                route = await query_route.within(timeout_s, self.core.client, address, topic)
            except TandemError:
                continue
            return True, None if route is None else readable_queues(topic, route)
        return False, None

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self.core.topics.get(topic)
        if config is None or not config.is_readable:
            return None
        return _queues_of(topic, self.core.options.broker_name, config.read_queue_count)


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Returns the readable queues of a route, sorted by broker and queue."""
    queues: list[MessageQueue] = []
    for data in route.queues:
        if data.permission & PERMISSION_READ:
            queues += _queues_of(topic, data.broker_name, data.read_queue_count)
    return sorted(queues)


def _queues_of(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=broker_name, queue_id=number) for number in range(count)]


Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

ALL_QUEUES: Final = -1


def allocate_average(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Returns the client's block of adjacent queues; the first clients get one more if there is a
    remainder.
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    begin = index * share + min(index, more)
    return list(queues[begin : begin + share + (index < more)])


def allocate_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Returns every n-th queue, starting at the client's index."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: Final[Mapping[str, Allocate]] = {
    "AVG": allocate_average,
    "AVG_BY_CIRCLE": allocate_by_circle,
}
"""The two strategies of RocketMQ's brokers; for any other name no assignment is made."""


def allocate_pop(
    allocate: Allocate,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    share_count: int,
) -> list[MessageQueue]:
    """Returns the queues of one popping client, shared with others; queue id -1 stands for all queues of a
    broker.

    `share_count`: the number of following clients in the list whose queues this client also gets.
    """
    if share_count <= 0 or share_count >= len(client_ids) - 1:
        names = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic=topic, broker_name=broker, queue_id=ALL_QUEUES) for topic, broker in names]
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    found: dict[MessageQueue, None] = {}
    for step in range(share_count + 1):
        other = client_ids[(index + step) % len(client_ids)]
        found |= dict.fromkeys(allocate(other, queues, client_ids))
    return list(found)


SHARE_COUNT_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class AssignmentHandlers:
    """Assigns queues to clients."""

    core: BrokerCore
    queues: TopicQueues

    async def handle_query(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_ASSIGNMENT (400)."""
        query = read_body(bodies.AssignmentQuery, command.body)
        queues = await self.queues.find(query.topic)
        mode = self._mode_of(query)
        assigned = None if queues is None else self._assign(query, mode, queues)
        if assigned is None:
            return command.reply(body=encode_body(bodies.Assignments()))
        rows = [bodies.QueueAssignment(queue=queue, mode=mode.mode) for queue in assigned]
        return command.reply(body=encode_body(bodies.Assignments(queues=rows)))

    async def handle_set_mode(self, channel: Channel, command: Command) -> Command:
        """Handles SET_MESSAGE_REQUEST_MODE (401). The answer is sent once the mode is on disk. A missing
        group may be created.
        """
        mode = read_body(bodies.RequestMode, command.body)
        if self.core.options.is_slave:
            raise RequestRejected("a slave changes no modes: ask the master")
        if is_retry_topic(mode.topic):
            raise NotPermitted(f"the topic {mode.topic[:160]} is a retry topic: those are always pulled")
        require_topic(self.core.topics, mode.topic)
        if mode.mode not in (bodies.PULL, bodies.POP):
            raise invalid(f"mode {mode.mode[:32]!r} is neither {bodies.PULL} nor {bodies.POP}")
        if abs(mode.pop_share_queue_count) > SHARE_COUNT_MAX:
            raise invalid(f"popShareQueueNum {mode.pop_share_queue_count} is too large")
        require_group(self.core.groups, mode.group, self.core.clock.now_ms(), channel.peer[0])
        self.core.tables.request_modes.put(mode)
        await save_or_reject(self.core.tables.saver, self.core.tables.mode_file)
        return command.reply()

    def _mode_of(self, query: bodies.AssignmentQuery) -> bodies.RequestMode:
        mode = self.core.tables.request_modes.get(query.topic, query.group)
        if mode is not None:
            return mode
        options = self.core.options
        name = bodies.PULL if is_retry_topic(query.topic) else options.default_request_mode.value
        return bodies.RequestMode(
            topic=query.topic,
            group=query.group,
            mode=name,
            pop_share_queue_count=options.default_pop_share_count if name == bodies.POP else 0,
        )

    def _assign(
        self, query: bodies.AssignmentQuery, mode: bodies.RequestMode, queues: list[MessageQueue]
    ) -> list[MessageQueue] | None:
        """Returns the client's queues; None lets the client keep its current ones."""
        if query.message_model == BROADCASTING or not self.core.options.server_assignment_enable:
            return queues
        client_ids = sorted({member.client_id for member in self.core.consumers.members(query.group)})
        allocate = STRATEGIES.get(query.strategy_name)
        if not client_ids or allocate is None:
            return None
        if mode.mode == bodies.POP:
            return allocate_pop(allocate, query.client_id, queues, client_ids, mode.pop_share_queue_count)
        return allocate(query.client_id, queues, client_ids)
