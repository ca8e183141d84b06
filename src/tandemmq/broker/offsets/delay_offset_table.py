"""How far the delivery of each delay level has got (spec store 15 and 18: delayOffset.json)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.offset import DelayOffsetTable as Body
from tandemmq.protocol.bodies.offset import decode_delay_offsets, encode_delay_offsets


class DelayOffsetTable:
    """Next queue offset by delay level; `on_change` is called after each change."""

    def __init__(self, *, version_step: int = 200) -> None:
        self.data_version = DataVersion()
        self.on_change: list[Callable[[], None]] = []
        self._version_step = version_step
        self._updates = 0
        self._offsets: dict[int, int] = {}

    def update(self, level: int, offset: int, now_ms: int) -> None:
        """Take over where a level's delivery goes on."""
        self._offsets[level] = offset
        self._updates += 1
        if self._updates % self._version_step == 0:
            self.data_version = self.data_version.next(now_ms)
        self._after_change()

    def get(self, level: int) -> int | None:
        """None for a level of which nothing was delivered yet."""
        return self._offsets.get(level)

    def clamp(self, queue_end: Callable[[int], int], now_ms: int) -> int:
        """Lower every level that lies behind its queue's end to that end; how many."""
        ahead = {level: end for level, at in self._offsets.items() if at > (end := queue_end(level))}
        if ahead:
            self._offsets.update(ahead)
            self.data_version = self.data_version.next(now_ms)
            self._after_change()
        return len(ahead)

    def replace_all(self, offsets: Mapping[int, int], data_version: DataVersion) -> None:
        """Become the master's table, version included."""
        self._offsets = dict(offsets)
        self.data_version = data_version
        self._after_change()

    def snapshot(self) -> Body:
        """The table's content, valid until the next change: encode it before anything else runs."""
        return Body(offsets=self._offsets, data_version=self.data_version)

    def encode(self) -> bytes:
        """The content of delayOffset.json."""
        return encode_delay_offsets(self.snapshot())

    def load(self, data: bytes) -> None:
        """Take over the content of delayOffset.json; old files have no version."""
        table = decode_delay_offsets(data)
        self._offsets = dict(table.offsets)
        self.data_version = table.data_version

    def _after_change(self) -> None:
        for callback in self.on_change:
            callback()
