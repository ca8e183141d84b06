"""The answer to a pop or a peek, made queue by queue (spec semantics 14.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.broker.pop.reading import Found, Taken, Want, with_handle
from tandemmq.protocol.pop_receipts import FLAG_NORMAL, Handle, join_items, offsets_item, start_item
from tandemmq.protocol.requests.pop import PopResponse


@dataclass(slots=True)
class Answer:
    """The lists of the answer's header, and its messages.

    `tells_retry_topic`: messages of a retry topic go out as they are stored
    (popResponseReturnActualRetryTopic); else they carry the topic that was asked for, and their handle.
    """

    pop_time_ms: int
    revive_queue_id: int
    broker_name: str
    tells_retry_topic: bool
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    records: list[memoryview | bytes] = field(default_factory=list)

    def add(self, taken: Taken, want: Want) -> None:
        """The messages of one queue."""
        source = taken.source
        self.starts.append(start_item(source.flag, source.queue_id, taken.start_offset))
        self.offsets.append(offsets_item(source.flag, source.queue_id, taken.offsets))
        if source.flag == FLAG_NORMAL or self.tells_retry_topic:
            self.records += taken.records
            return
        for record, offset in zip(taken.records, taken.offsets, strict=True):
            handle = Handle(
                taken.start_offset,
                self.pop_time_ms,
                want.invisible_ms,
                self.revive_queue_id,
                source.flag,
                self.broker_name,
                source.queue_id,
                offset,
            )
            self.records.append(with_handle(record, want.topic, handle))

    def header(self, want: Want, found: Found) -> PopResponse:
        """What goes before the messages; `found` says how many are left."""
        return PopResponse(
            pop_time_ms=self.pop_time_ms,
            invisible_ms=want.invisible_ms,
            revive_queue_id=self.revive_queue_id,
            rest_count=found.rest,
            start_offset_info=join_items(self.starts),
            message_offset_info=join_items(self.offsets),
            order_count_info=join_items(self.orders) if want.is_ordered else None,
        )
