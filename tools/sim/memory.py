"""In-memory implementations of the network and disk ports, for unit tests and simulated clusters.

Connections behave like those of `runtime.network` as far as protocols can see. Bytes arrive in a later turn,
in order, joined as a socket would join them. A paused reader holds them up, and its writer is notified at the
high-water mark. Delivery goes only through the Clock's `call_soon`, so a test clock orders it.

Files behave like those of `runtime.disk`, including the losses in a power cut: until a file is synced, it
remembers the bytes that each write replaced, and `power_cut` restores them. A `DiskFault` from a test decides
how many bytes of a write arrive and whether a creation or a sync fails, so a fault-injecting disk is this one
with its own `DiskFault`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from sim.manual_clock import ManualClock
from tandemmq.errors import StoreLocked
from tandemmq.runtime.machine import SeededRandom, deliver
from tandemmq.runtime.ports import Address, Advice, Clock, ProtocolFactory, StreamProtocol, T
from tandemmq.units import Buffer

TOTAL_BYTES = 1 << 40
ADVICE_KEPT = 1000


class DiskFault(Protocol):
    """The faults of a `MemoryDisk`; each method is called before the operation takes effect."""

    def on_create(self, path: Path, size: int) -> None:
        """May raise OSError, for example ENOSPC; then no file is left behind."""

    def on_write(self, path: Path, offset: int, size: int) -> int:
        """Returns the number of bytes that arrive. If it is less than `size`, the write fails with ENOSPC
        after them.
        """

    def on_sync(self, path: Path) -> None:
        """May raise OSError; then nothing became durable."""


class NoFault:
    """A disk that always works."""

    def on_create(self, path: Path, size: int) -> None:
        return None

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return size

    def on_sync(self, path: Path) -> None:
        return None


class _Node:
    """The content of one file, kept alive by open files after its name is removed."""

    __slots__ = ("data", "is_entry_durable", "unsynced")

    def __init__(self, data: bytearray, *, is_entry_durable: bool) -> None:
        self.data = data
        self.is_entry_durable = is_entry_durable
        self.unsynced: list[tuple[int, bytes]] = []  # (offset, the replaced bytes)

    def undo(self, write: tuple[int, bytes]) -> None:
        offset, before = write
        self.data[offset : offset + len(before)] = before


class MemoryFile:
    """One open file of fixed length."""

    def __init__(self, path: Path, node: _Node, disk: MemoryDisk) -> None:
        self._path = path
        self._node = node
        self._disk = disk
        self._is_closed = False

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> int:
        return len(self._node.data)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check_open()
        data = b"".join(buffers)
        assert 0 <= offset <= offset + len(data) <= self.size, (self._path, offset, len(data), self.size)
        arrived = self._disk.fault.on_write(self._path, offset, len(data))
        end = offset + arrived
        if self._disk.tracks_unsynced:
            self._node.unsynced.append((offset, bytes(self._node.data[offset:end])))
        self._node.data[offset:end] = data[:arrived]
        if arrived < len(data):
            raise OSError(errno.ENOSPC, "no room", str(self._path))

    def pread(self, offset: int, size: int) -> bytes:
        self._check_open()
        return bytes(self._node.data[offset : offset + size])

    def view(self) -> memoryview:
        self._check_open()
        return memoryview(self._node.data).toreadonly()

    def sync(self) -> None:
        self._check_open()
        self._disk.fault.on_sync(self._path)
        self._node.unsynced.clear()
        self._node.is_entry_durable = True
        self._disk.sync_count += 1

    def advise(self, advice: Advice) -> None:
        self._disk.advised.append((self._path, advice))

    def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", str(self._path))


class MemoryLock:
    """A held lock file."""

    def __init__(self, path: Path, held: set[Path]) -> None:
        self._path = path
        self._held = held

    def release(self) -> None:
        self._held.discard(self._path)


class MemoryDisk:
    """One machine's files. A directory exists while it was created or contains something.

    With `tracks_unsynced` False no undo log is kept, which saves memory if no power is cut.
    """

    def __init__(self, *, fault: DiskFault | None = None, tracks_unsynced: bool = True) -> None:
        self.fault: DiskFault = fault or NoFault()
        self.tracks_unsynced = tracks_unsynced
        self.total_bytes = TOTAL_BYTES
        self.sync_count = 0
        self.advised: deque[tuple[Path, Advice]] = deque(maxlen=ADVICE_KEPT)
        self._nodes: dict[Path, _Node] = {}
        self._directories: set[Path] = set()
        self._locks: set[Path] = set()
        self._boot_count = 1

    def open(self, path: Path) -> MemoryFile:
        return MemoryFile(path, self._node(path), self)

    def create(self, path: Path, size: int, *, sparse: bool = False) -> MemoryFile:
        if path in self._nodes:
            raise FileExistsError(errno.EEXIST, "the file exists", str(path))
        self.fault.on_create(path, size)
        if not sparse and size > self.usage(path)[1]:
            raise OSError(errno.ENOSPC, "no room", str(path))
        self.make_dirs(path.parent)
        self._nodes[path] = _Node(bytearray(size), is_entry_durable=False)
        return self.open(path)

    def list(self, directory: Path) -> list[str]:
        depth = len(directory.parts)
        found = (path.parts for path in (*self._nodes, *self._directories))
        return sorted(
            {parts[depth] for parts in found if len(parts) > depth and parts[:depth] == directory.parts}
        )

    def exists(self, path: Path) -> bool:
        return path in self._nodes or path in self._directories

    def size(self, path: Path) -> int:
        return len(self._node(path).data)

    def remove(self, path: Path) -> None:
        if path in self._directories:
            if self.list(path):
                raise OSError(errno.ENOTEMPTY, "the directory is not empty", str(path))
            self._directories.discard(path)
        else:
            self._node(path)
            del self._nodes[path]

    def make_dirs(self, path: Path) -> None:
        self._directories.update((path, *path.parents))

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self._node(path).data)

    def write_atomically(
        self, path: Path, data: Buffer, *, keep_backup: bool = False, is_private: bool = False
    ) -> None:
        if self.fault.on_write(path, 0, len(data)) < len(data):
            raise OSError(errno.ENOSPC, "no room", str(path))
        self.fault.on_sync(path)
        self.make_dirs(path.parent)
        old = self._nodes.get(path)
        if keep_backup and old is not None:
            self._nodes[path.with_name(path.name + ".bak")] = old
        self._nodes[path] = _Node(bytearray(data), is_entry_durable=True)
        self.sync_count += 1

    def usage(self, path: Path) -> tuple[int, int]:
        return self.total_bytes, max(
            0, self.total_bytes - sum(len(node.data) for node in self._nodes.values())
        )

    def lock(self, path: Path) -> MemoryLock:
        if path in self._locks:
            raise StoreLocked(f"{path} is locked")
        self._locks.add(path)
        if path not in self._nodes:
            self.make_dirs(path.parent)
            self._nodes[path] = _Node(bytearray(b"lock"), is_entry_durable=True)
        return MemoryLock(path, self._locks)

    def boot_id(self) -> str:
        return f"boot-{self._boot_count}"

    async def offload(self, fn: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(0)  # a turn of the loop passes, as with a thread
        return fn(*args)

    def power_cut(self, survives: Callable[[Path, int], bool] | None = None) -> None:
        """Drops everything that was not synced, and all locks; open files must not be used any more.

        `survives(path, index)` keeps individual unsynced writes, as a real disk may; without it none
        survives. Undoing a write also undoes what a later one wrote to the same bytes.
        """
        for path, node in list(self._nodes.items()):
            for index, write in reversed(list(enumerate(node.unsynced))):
                if survives is None or not survives(path, index):
                    node.undo(write)
            node.unsynced.clear()
            if not node.is_entry_durable:
                del self._nodes[path]
        self._locks.clear()
        self._boot_count += 1

    def _node(self, path: Path) -> _Node:
        try:
            return self._nodes[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None


HIGH_WATER_BYTES = 65_536
FIRST_FREE_PORT = 40_000
_ANY_HOST = ("0.0.0.0", "::", "")


class MemoryTransport(asyncio.Transport):
    """One end of a connection; `_peer` is the other."""

    def __init__(self, clock: Clock, protocol: StreamProtocol, local: Address, remote: Address) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._clock = clock
        self._protocol = protocol
        self._peer: MemoryTransport | None = None  # None: the connection is gone
        self._unsent: list[bytes] = []  # in transit to the peer
        self._unsent_size = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._is_writer_paused = False
        self._is_reading = True
        self._is_closing = False
        self._is_delivery_due = False

    def join(self, peer: MemoryTransport) -> None:
        """Connects both ends; the accepting side is notified first."""
        self._peer, peer._peer = peer, self
        peer._protocol.connection_made(peer)
        self._protocol.connection_made(self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(StreamProtocol, protocol)

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Buffer) -> None:
        if self._is_closing or self._peer is None or not len(data):
            return
        self._unsent.append(bytes(data))
        self._unsent_size += len(data)
        self._schedule_delivery()
        if self._unsent_size > self._high and not self._is_writer_paused:
            self._is_writer_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._unsent_size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._peer is not None:
            self._peer._schedule_delivery()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._schedule_delivery()

    def abort(self) -> None:
        self._is_closing = True
        self._drop(None, ConnectionResetError("the peer aborted the connection"))

    def _schedule_delivery(self) -> None:
        if not self._is_delivery_due:
            self._is_delivery_due = True
            self._clock.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Passes unsent bytes to the peer; a closing end disconnects once nothing is left."""
        self._is_delivery_due = False
        peer = self._peer
        if peer is None:
            return
        if self._unsent and not peer._is_closing:
            if not peer._is_reading:
                return  # its resume_reading schedules a new delivery
            data = b"".join(self._unsent)
            self._unsent.clear()
            self._unsent_size = 0
            deliver(peer._protocol, data)
            if self._is_writer_paused and self._peer is not None:
                self._is_writer_paused = False
                self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._drop(None, None)

    def _drop(self, our_error: Exception | None, their_error: Exception | None) -> None:
        """Ends the connection for both sides; each protocol is notified in a later turn."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        self._unsent.clear()
        self._unsent_size = 0
        self._clock.call_soon(self._protocol.connection_lost, our_error)
        if peer._peer is not None:
            self._clock.call_soon(peer._on_end, their_error)

    def _on_end(self, error: Exception | None) -> None:
        if self._peer is None:
            return
        self._peer = None
        self._is_closing = True
        if error is None:
            self._protocol.eof_received()
        self._protocol.connection_lost(error)


class MemoryListener:
    """An open port of a `MemoryNetwork`."""

    def __init__(self, address: Address, listeners: dict[Address, ProtocolFactory]) -> None:
        self._address = address
        self._listeners = listeners

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._listeners.pop(self._address, None)


class MemoryNetwork:
    """All machines of a test; `host` is the source address of the connections."""

    def __init__(self, clock: Clock, *, host: str = "127.0.0.1") -> None:
        self._clock = clock
        self._host = host
        self._listeners: dict[Address, ProtocolFactory] = {}
        self._ports = itertools.count(FIRST_FREE_PORT)

    def at(self, host: str) -> MemoryNetwork:
        """Returns this network for a machine with the address `host`."""
        other = MemoryNetwork(self._clock, host=host)
        other._listeners, other._ports = self._listeners, self._ports
        return other

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> MemoryListener:
        address = (host, port or next(self._ports))
        if address in self._listeners:
            raise OSError(f"{address} is in use")
        self._listeners[address] = protocol_factory
        return MemoryListener(address, self._listeners)

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport:
        accept = self._find(host, port)
        if accept is None:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        local, remote = (self._host, next(self._ports)), (host, port)
        near = MemoryTransport(self._clock, protocol_factory(), local, remote)
        far = MemoryTransport(self._clock, accept(), remote, local)
        near.join(far)
        return near

    def _find(self, host: str, port: int) -> ProtocolFactory | None:
        for candidate in (host, *_ANY_HOST):
            accept = self._listeners.get((candidate, port))
            if accept is not None:
                return accept
        return None


__all__ = ["DiskFault", "ManualClock", "MemoryDisk", "MemoryFile", "MemoryNetwork", "NoFault", "SeededRandom"]
