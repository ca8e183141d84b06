"""Memory outside the Python heap that the kernel is asked never to swap out.

Strategy:   an anonymous map costs nothing until it is written; it is locked page by page as that happens
            (mlock2 with MLOCK_ONFAULT), because locking a gibibyte at once would stop the loop for as long as
            it takes to zero it. Where the kernel refuses (RLIMIT_MEMLOCK), the memory is an ordinary map.
"""

from __future__ import annotations

import ctypes
import mmap

_MLOCK_ONFAULT = 1


class LockedMemory:
    """`size` zero bytes, given back when the last view of them is gone.

    `is_locked` False: the kernel may swap them out, everything else works.
    """

    __slots__ = ("_map", "is_locked", "view")

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self.is_locked = _lock(self._map, size)
        self.view = memoryview(self._map)


def _lock(memory: mmap.mmap, size: int) -> bool:
    try:
        lock = ctypes.CDLL(None, use_errno=True).mlock2
    except (OSError, AttributeError):  # a C library without it
        return False
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    return bool(lock(address, ctypes.c_size_t(size), ctypes.c_int(_MLOCK_ONFAULT)) == 0)
