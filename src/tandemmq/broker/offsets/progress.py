"""The progress of groups in queues, as tools and metrics report it (spec semantics 19 and spec metrics 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tandemmq.broker.clients.consumer_table import BROADCASTING
from tandemmq.broker.core import BrokerCore


class QueueMarks(NamedTuple):
    """The end of a queue, and a group's offsets in it; without a committed offset everything is still to be
    consumed.
    """

    end: int
    committed: int
    pulled: int
    """The offset of the group's next pull, at least `committed`."""


@dataclass(frozen=True, slots=True)
class ProgressReader:
    """Reads the progress of groups from the tables."""

    core: BrokerCore

    def has_lag(self, group: str, topic: str) -> bool:
        """Returns False if the group does not consume the topic through this broker.

        That is the case if an online group no longer subscribes to the topic. It is also the case for an
        online broadcasting group without offsets: its clients keep their own progress.
        """
        online = self.core.consumers.get(group)
        if online is None:
            return True
        if online.subscriptions and topic not in online.subscriptions:
            return False
        return not self.is_broadcasting(group) or bool(self.core.offsets.committed_queues(group, topic))

    def is_broadcasting(self, group: str) -> bool:
        """Returns True if the group is online and each of its clients consumes every message."""
        online = self.core.consumers.get(group)
        return online is not None and online.consumption.message_model == BROADCASTING

    def of_queue(self, group: str, topic: str, queue_id: int) -> QueueMarks:
        """Returns the progress of the group in one queue."""
        committed = self.core.offsets.committed(group, topic, queue_id) or 0
        pulled = self.core.offsets.pulled(group, topic, queue_id) or 0
        return QueueMarks(self.core.store.queue_max(topic, queue_id), committed, max(pulled, committed))
