"""Which pulls are slowed down because their group reads too much from the disk (coldDataFlowControlEnable).

A record is cold when it lies farther behind the end of the log than accessMessageInMemoryMaxRatio of the
memory, which is also where transfer limits change and readers are sent to a slave. RocketMQ asks the kernel
which pages are in memory (mincore); the distance costs nothing. Source: spec semantics 20.3.
"""

from __future__ import annotations

from tandemmq.broker.clients.consumer_table import ACTIVE_TYPE, ConsumerTable
from tandemmq.broker.pull.cold_reads import ColdReads
from tandemmq.protocol.requests.pull import PullRequest
from tandemmq.protocol.topic_names import is_system_group
from tandemmq.store.message_store import MessageStore


class ColdControl:
    """Judges pulls; the broker's own groups and the groups of tools are never slowed down."""

    def __init__(self, reads: ColdReads, *, store: MessageStore, consumers: ConsumerTable) -> None:
        self._reads = reads
        self._store = store
        self._consumers = consumers

    def note(self, group: str, size: int) -> None:
        """A pull of the group read so many bytes of cold records."""
        if not is_system_group(group):
            self._reads.note(group, size)

    def is_over(self, header: PullRequest) -> bool:
        """Whether this pull would read cold records though its group read its share of them."""
        return self._reads.is_over(header.consumer_group) and self._store.is_far(
            header.topic, header.queue_id, header.queue_offset
        )

    def is_pushed(self, group: str) -> bool:
        """Whether the group's clients pull for a listener: they come again by themselves when refused."""
        online = self._consumers.get(group)
        return online is not None and online.consumption.consume_type != ACTIVE_TYPE
