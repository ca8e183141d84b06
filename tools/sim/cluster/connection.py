"""One simulated connection: two ends, and for each direction a pipe with its own queue and one timer.

Rules of the model (TCP's):
      - bytes of one direction arrive in order and completely, or the connection ends;
      - a blocked direction holds bytes back until it opens again; neither end is notified;
      - the kernel closes the sockets of a killed process; a host without power sends nothing, and its peers
        notice when their bytes are answered by a reset, or never;
      - bytes for a connection that is gone are answered by a reset.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from sim.cluster.loop import SimLoop, SimProcess
from sim.dice import Dice
from tandemmq.runtime.machine import deliver
from tandemmq.runtime.ports import Address, ProtocolFactory, StreamProtocol
from tandemmq.units import Buffer

KERNEL_BYTES = 65_536
"""The number of bytes that a socket accepts before its writer must wait."""
FIN, RESET = "fin", "reset"


class Host:
    """A machine in the network."""

    def __init__(self, name: str, ip: str, *, is_outside: bool = False) -> None:
        self.name = name
        self.ip = ip
        self.is_outside = is_outside
        """True if it is in the network of outside clients."""
        self.is_up = True


class LinkConditions(Protocol):
    """The interface of the network that connections run through."""

    loop: SimLoop
    dice: Dice
    context: contextvars.Context

    def forget(self, end: SimTransport) -> None: ...

    def is_open(self, source_ip: str, target_ip: str, port: int) -> bool: ...

    def latency_s(self) -> float: ...

    def cut_of(self, size: int) -> int: ...

    def count_bytes(self, pipe: Pipe, size: int) -> None: ...

    def after_delivery(self, host_name: str) -> None: ...


class Pipe:
    """One direction of one connection: from `source` to `target`. `port`: the port that was dialled."""

    def __init__(self, fabric: LinkConditions, source: SimTransport, target: SimTransport, port: int) -> None:
        self._fabric = fabric
        self.port = port
        self.source = source
        self.target = target
        self.size = 0
        self._items: deque[tuple[float, bytes | str]] = deque()
        self._newest_due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def route(self) -> tuple[str, str]:
        return self.source.host.ip, self.target.host.ip

    def push(self, item: bytes | str) -> None:
        due = self._fabric.loop.time() + self._fabric.latency_s()
        self._newest_due = max(self._newest_due, due)
        self._items.append((self._newest_due, item))
        if isinstance(item, bytes):
            self.size += len(item)
        self.arm()

    def clear(self) -> None:
        """Drops the bytes in transit."""
        self._items.clear()
        self.size = 0

    @property
    def is_over(self) -> bool:
        return self.source.is_gone and self.target.is_gone

    def arm(self, delay_s: float = 0.0) -> None:
        """Schedules the transport of queued bytes; does nothing while the route is blocked."""
        if self._timer is None and self._items and self._fabric.is_open(*self.route, self.port):
            due = max(self._items[0][0], self._fabric.loop.time() + delay_s)
            self._timer = self._fabric.loop.call_at(due, self._run, context=self._fabric.context)

    def _run(self) -> None:
        self._timer = None
        target = self.target
        if not self._items or not self._fabric.is_open(*self.route, self.port) or not target.host.is_up:
            return
        if target.is_gone:
            self._refuse()
            return
        if not target.is_readable:
            return  # its resume_reading schedules it again
        pieces: list[bytes] = []
        now = self._fabric.loop.time()
        while self._items and self._items[0][0] <= now and isinstance(self._items[0][1], bytes):
            pieces.append(self._items.popleft()[1])  # type: ignore[arg-type]  # asked in the line above
        if pieces:
            self._deliver(b"".join(pieces), now)
        elif self._items and self._items[0][0] <= now:
            end = self._items.popleft()[1]
            self._fabric.count_bytes(self, 0)
            target.schedule(target.on_fin if end == FIN else target.on_reset)
        self.arm()

    def _deliver(self, data: bytes, now: float) -> None:
        cut = self._fabric.cut_of(len(data))
        if cut < len(data):
            self._items.appendleft((now + self._fabric.dice.below(3) / 1000, data[cut:]))
            data = data[:cut]
        self._fabric.count_bytes(self, len(data))
        self.target.schedule(self.target.on_data, data)

    def on_read(self, size: int) -> None:
        """Handles a read of `size` bytes by the target's process."""
        self.size = max(0, self.size - size)
        if self.source.is_waiting_for_room:
            self.source.schedule(self.source.on_room)

    def _refuse(self) -> None:
        """Answers bytes for an end that is gone: its host's kernel sends a reset, unless they are a reset or
        an end.
        """
        has_data = any(isinstance(item, bytes) for _, item in self._items)
        self.clear()
        back = self.target.out
        if has_data and back is not None and not self.source.is_gone:
            back.clear()
            back.push(RESET)


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, fabric: LinkConditions, process: SimProcess, host: Host, local: Address, remote: Address
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._fabric = fabric
        self.process = process
        self.host = host
        self.protocol: StreamProtocol | None = None
        self.out: Pipe | None = None
        self.inbound: Pipe | None = None
        self.is_readable = True
        self.is_gone = False  # nothing is received or sent here any more
        self._is_closing = False
        self._is_writer_paused = False
        self._high, self._low = KERNEL_BYTES, KERNEL_BYTES // 4

    def begin(self, factory: ProtocolFactory) -> StreamProtocol:
        """Creates the protocol; runs inside the process that owns this end."""
        self.protocol = factory()
        self.protocol.connection_made(self)
        return self.protocol

    def schedule(self, fn: Callable[..., None], *args: Any) -> None:
        """Runs `fn` in the next turn, as a callback of this end's process."""
        self._fabric.loop.call_soon(fn, *args, context=self.process.context)

    # Calls from the protocol.

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Buffer) -> None:
        if self._is_closing or self.is_gone or not self.process.is_alive or not len(data):
            return
        assert self.out is not None
        self.out.push(bytes(data))
        if self.get_write_buffer_size() > self._high and not self._is_writer_paused:
            self._is_writer_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0 if self.out is None else max(0, self.out.size - KERNEL_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = KERNEL_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_reading(self) -> bool:
        return self.is_readable

    def pause_reading(self) -> None:
        self.is_readable = False

    def resume_reading(self) -> None:
        self.is_readable = True
        if self.inbound is not None:
            self.inbound.arm()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._finish_close()

    def abort(self) -> None:
        if self.is_gone or not self.process.is_alive:
            return
        self._is_closing = True
        if self.out is not None:
            self.out.clear()
            self.out.push(RESET)
        self._drop(None)

    # Calls from the network, inside the process of this end.

    @property
    def is_waiting_for_room(self) -> bool:
        return not self.is_gone and (self._is_writer_paused or self._is_closing)

    def on_room(self) -> None:
        if self.is_gone:
            return
        if self._is_writer_paused and self.get_write_buffer_size() <= self._low:
            self._is_writer_paused = False
            self.get_protocol().resume_writing()
        if self._is_closing:
            self._finish_close()

    def on_data(self, data: bytes) -> None:
        if self.inbound is not None:
            self.inbound.on_read(len(data))
        if self.is_gone or self._is_closing:
            return
        assert self.protocol is not None
        deliver(self.protocol, data)
        self._fabric.after_delivery(self.host.name)

    def on_fin(self) -> None:
        if self.is_gone:
            return
        assert self.protocol is not None
        if not self._is_closing:
            self.protocol.eof_received()
        self.close()
        self._finish_close()

    def on_reset(self) -> None:
        if not self.is_gone:
            self._is_closing = True
            self._drop(ConnectionResetError("the peer reset the connection"))

    def vanish(self, *, is_power_cut: bool) -> None:
        """Ends this side because its process is gone; without a power cut its kernel sends pending bytes and
        closes the connection.
        """
        self.is_gone = True
        self._fabric.forget(self)
        if self.out is None:
            return
        if is_power_cut:
            self.out.clear()
        else:
            self.out.push(self._fabric.dice.pick((FIN, RESET)))

    def _finish_close(self) -> None:
        if self.is_gone or self.get_write_buffer_size():
            return
        if self.out is not None:
            self.out.push(FIN)
        self._drop(None)

    def _drop(self, error: Exception | None) -> None:
        self.is_gone = True
        self._fabric.forget(self)
        if self.protocol is not None:
            self.schedule(self.protocol.connection_lost, error)
