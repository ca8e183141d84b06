"""BlockingAdmin: for code without an event loop; a thin facade over `Admin`.

    with BlockingAdmin("127.0.0.1:9876") as admin:
        admin.create_topic("Orders", queue_count=8)

May be used from several threads. Results and errors are those of `Admin`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.api.broker_query import END_OF_TIME_MS
from tandemmq.client.admin import Admin, QueueRange
from tandemmq.client.blocking import Facade
from tandemmq.client.options import ClientOptions
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT
from tandemmq.protocol.record import Record
from tandemmq.units import QueueOffset


class BlockingAdmin(Facade[Admin]):
    """See `Admin`."""

    def __init__(self, namesrv: str, *, options: ClientOptions | None = None) -> None:
        super().__init__(lambda: Admin(namesrv, options=options))

    def cluster_info(self) -> ClusterInfo:
        """All registered brokers."""
        return self._call(self._running.cluster_info())

    def topics(self) -> list[str]:
        """The names of all topics."""
        return self._call(self._running.topics())

    def topic_route(self, topic: str) -> TopicRoute:
        """Queues and brokers of a topic."""
        return self._call(self._running.topic_route(topic))

    def runtime_info(self, address: str) -> dict[str, str]:
        """The figures of one broker."""
        return self._call(self._running.runtime_info(address))

    def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 4,
        permission: int = PERMISSION_DEFAULT,
        cluster: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Create the topic on every master of the cluster; returns when its route is known."""
        self._call(
            self._running.create_topic(
                topic, queue_count=queue_count, permission=permission, cluster=cluster, attributes=attributes
            )
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic on every broker of the cluster."""
        self._call(self._running.delete_topic(topic, cluster=cluster))

    def topic_offsets(self, topic: str) -> dict[MessageQueue, QueueRange]:
        """What each queue of the topic holds."""
        return self._call(self._running.topic_offsets(topic))

    def offsets_at(self, topic: str, time_ms: int) -> dict[MessageQueue, QueueOffset]:
        """Per queue the first message stored at or after a time."""
        return self._call(self._running.offsets_at(topic, time_ms))

    def message_count(self, topic: str) -> int:
        """How many messages the topic holds now."""
        return self._call(self._running.message_count(topic))

    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, QueueOffset | None]:
        """Per queue where the group goes on."""
        return self._call(self._running.committed_offsets(group, topic))

    def lag(self, group: str, topic: str) -> int:
        """How many messages of the topic the group has not finished."""
        return self._call(self._running.lag(group, topic))

    def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store where a group that is not running goes on in one queue."""
        self._call(self._running.set_offset(group, queue, offset))

    def reset_offsets(self, group: str, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Let a group go on from a time."""
        return self._call(self._running.reset_offsets(group, topic, time_ms))

    def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_at_ms: int = 0,
        end_at_ms: int = END_OF_TIME_MS,
    ) -> list[Record]:
        """Messages that carry the key and were stored between these times."""
        found = self._running.find_by_key(
            topic, key, count_max=count_max, begin_at_ms=begin_at_ms, end_at_ms=end_at_ms
        )
        return self._call(found)

    def find_by_unique_key(self, topic: str, unique_key: str) -> list[Record]:
        """The message with the producer's id; several when a send was repeated."""
        return self._call(self._running.find_by_unique_key(topic, unique_key))

    def find_by_id(self, message_id: str) -> Record | None:
        """The message of a broker's message id."""
        return self._call(self._running.find_by_id(message_id))
