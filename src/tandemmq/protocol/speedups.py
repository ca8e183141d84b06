"""The optional kernel: functions of `tandemmq-speedups` in C, which servers use if it is installed.

A caller asks the kernel first. Each function returns what its twin, the caller's own code, would return. For
input that it leaves to the twin it returns None; `split_frames` stops there. `runtime.speedups` loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

Ints = Sequence[int]
INTERFACE: Final = 2
"""The number of these signatures and their meaning. It rises with each change, here and in the kernel."""


class Kernel(Protocol):
    """The functions of the kernel; their twins document them."""

    def split_frames(
        self, piece: bytes, position: int, frame_bytes_max: int, header_bytes_max: int, /
    ) -> tuple[list[tuple[bytes, bytes, int]], int]: ...

    # Any: the columns of `SendColumns`, which belongs to a higher floor, and the queues of a block.
    def read_sends(
        self, code: int, is_v2: bool, frames: Sequence[object], added: bytes, /
    ) -> tuple[Any, ...] | None: ...

    def encode_records(
        self, columns: tuple[object, ...], magic: int, sys_flag: int, shared: bytes, topic_field: bytes, /
    ) -> bytes | None: ...

    def render_answers(
        self, pieces: tuple[bytes, ...], log_offsets: Ints, queue_ids: Ints, queue_offsets: Ints,
        unique_keys: Sequence[str], opaques: Ints, /,
    ) -> bytes | None: ...  # fmt: skip

    def pack_entries(
        self, queues: Sequence[Any], log_offsets: Ints, sizes: Ints, tag_hashes: Ints, /
    ) -> list[tuple[Any, bytes, int]] | None: ...

    # The columns of `read_run`.
    def read_records(
        self, buffer: memoryview, position: int, end: int, log_offset: int, record_bytes_max: int, /
    ) -> tuple[Any, ...] | None: ...


kernel: Kernel | None = None
"""The functions in use; None without the kernel."""
state = "not loaded"
"""The word `used`, or the reason why the kernel is not: `not installed`, `refused: ...`."""
