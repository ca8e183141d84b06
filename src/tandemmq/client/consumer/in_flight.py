"""Messages of one queue that were pulled and are not finished; pure.

The committed offset is the lowest unfinished message, or the next offset to pull when nothing is unfinished:
a crash repeats messages but never skips one (spec semantics 10.3). Offsets the broker filtered out are
covered by the next offset, so a queue without matching messages moves on too.
"""

from __future__ import annotations

from collections import OrderedDict


class InFlight:
    """The unfinished messages of one owned queue, in offset order."""

    __slots__ = ("_sizes", "bytes", "next_offset")

    def __init__(self, start_offset: int) -> None:
        self._sizes: OrderedDict[int, tuple[int, object]] = OrderedDict()
        self.bytes = 0
        self.next_offset = start_offset

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, offset: int, size_bytes: int, message: object = None) -> None:
        """One more message was pulled; offsets come in rising order."""
        assert offset >= self.next_offset, f"offset {offset} was pulled twice, next is {self.next_offset}"
        self._sizes[offset] = size_bytes, message
        self.bytes += size_bytes
        self.next_offset = offset + 1

    def advance(self, next_offset: int) -> None:
        """The broker says that nothing for us lies below `next_offset`; never goes back."""
        if next_offset > self.next_offset:
            self.next_offset = next_offset

    def is_other(self, offset: int, message: object) -> bool:
        """Another message is unfinished here: we were moved, and the broker's log has something else now."""
        unfinished = self._sizes.get(offset)
        return unfinished is not None and unfinished[1] is not message

    def holds(self, offset: int, message: object) -> bool:
        """This very message is unfinished here."""
        unfinished = self._sizes.get(offset)
        return unfinished is not None and unfinished[1] is message

    def finish(self, offset: int) -> bool:
        """The application is done with the message; False when it was not (or no longer) unfinished."""
        unfinished = self._sizes.pop(offset, None)
        if unfinished is None:
            return False
        self.bytes -= unfinished[0]
        return True

    @property
    def committed_offset(self) -> int:
        """Where another consumer would have to go on: everything below is finished."""
        for offset in self._sizes:
            return offset
        return self.next_offset

    @property
    def span(self) -> int:
        """From the lowest unfinished offset to the next one to pull; large when one message is stuck."""
        return self.next_offset - self.committed_offset
