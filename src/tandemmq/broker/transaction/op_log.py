"""Which half messages are done, by what was read of the op topic. Pure.

A bit per half message that is not behind the progress; and per op record the highest half offset it names, to
know from which op record on a restart has to read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

WINDOW_MAX = 1 << 26
"""Half messages ahead of the progress: 8 MiB of bits. Beyond, op records wait to be read."""
RECORDS_MAX = 1 << 22
"""Op records that may still be needed: 32 MiB. Beyond, the same."""


class OpLog:
    """The done half messages from `half_offset` on."""

    def __init__(self, half_offset: int, op_offset: int) -> None:
        self._base = half_offset & ~7
        self._bits = bytearray()
        self._first = op_offset
        self._tops: array[int] = array("q")

    @property
    def next_op(self) -> int:
        """The op queue offset to read next."""
        return self._first + len(self._tops)

    def skip_to(self, op_offset: int) -> None:
        """Records before it are gone: retention deleted them."""
        missing = op_offset - self.next_op
        if missing > 0:
            self._tops.extend([-1] * min(missing, RECORDS_MAX))
            if missing > RECORDS_MAX:
                self._first += missing - RECORDS_MAX

    def add(self, half_offsets: Sequence[int]) -> bool:
        """Take over the next op record; False, and nothing was done, when there is no room."""
        top = max(half_offsets, default=-1)
        if top - self._base >= WINDOW_MAX or len(self._tops) >= RECORDS_MAX:
            return False
        self._tops.append(top)
        needed = (top - self._base >> 3) + 1
        if needed > len(self._bits):
            self._bits.extend(bytes(needed - len(self._bits)))
        for offset in half_offsets:
            place = offset - self._base
            if place >= 0:
                self._bits[place >> 3] |= 1 << (place & 7)
        return True

    def is_done(self, half_offset: int) -> bool:
        place = half_offset - self._base
        return 0 <= place >> 3 < len(self._bits) and bool(self._bits[place >> 3] & 1 << (place & 7))

    def settle(self, half_offset: int) -> int:
        """Forget what is behind the progress; the first op record that is needed from then on."""
        passed = (half_offset - self._base) >> 3
        if passed > 0:
            del self._bits[:passed]
            self._base += passed << 3
        done = 0
        for top in self._tops:
            if top >= half_offset:
                break
            done += 1
        del self._tops[:done]
        self._first += done
        return self._first
