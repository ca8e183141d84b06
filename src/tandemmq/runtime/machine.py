"""The real machine, except its disk: the clock of the running event loop, chance (real and seeded), memory,
and TCP connections. `deliver` passes bytes to a protocol as these connections do, for networks in memory.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import secrets
import socket
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Self, TypeVar

from tandemmq.runtime.ports import Address, ProtocolFactory, StreamProtocol, TimerHandle
from tandemmq.units import MIB, EpochMs

T = TypeVar("T")

BACKLOG = 1024

LEFT_MAX: Final = 4
"""The most threads whose calls took too long and still run."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_MAPPED_BYTES_MIN = 4 * MIB
_FREE_BYTES_MAX = 32 * MIB


def keep_freed_memory() -> bool:
    """Makes this process keep freed memory, within bounds, instead of returning it to the system at once.
    Returns False if the C library cannot, or if its environment variables are set.

    Each large frame and each large write briefly needs some hundred KiB. By default glibc returns them to the
    system, which fills every page with zeros for the next one: a sixth of the processor time of a broker for
    batches of 256 KiB.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        import ctypes  # clients need none of this

        set_option = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):  # a Python without libffi, another C library
        return False
    is_set: bool = set_option(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN) == 1
    return is_set and set_option(_M_TRIM_THRESHOLD, _FREE_BYTES_MAX) == 1


def is_optimized_python() -> bool:
    """Returns False if this Python was built without profile-guided optimisation, so that each message costs
    more. Distributions build theirs with it, and record nothing.
    """
    try:
        arguments: str = sysconfig.get_config_var("CONFIG_ARGS") or ""
    except ImportError:  # an application with its own Python, without the record of the build
        return True
    return not arguments or "--enable-optimizations" in arguments or "--prefix=/usr'" in arguments


class CallThread:
    """A thread of its own for the calls of libraries that wait for the network, so that they hold up neither
    the loop nor work for the disk. A context manager; a call in progress at its end is not waited for, not
    even by the end of the process.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._left: list[Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_thread()

    async def run(self, call: Callable[[], T], timeout_s: float) -> T:
        """Returns the result of the call. Raises its exception; TimeoutError if it takes too long, or if
        `LEFT_MAX` such calls have not returned yet. The next call then has a new thread.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        if self._thread is None:
            self._left = [thread for thread in self._left if thread.is_alive()]
            if len(self._left) >= LEFT_MAX:
                raise TimeoutError(f"{LEFT_MAX} earlier calls have not returned")
            self._thread = Thread(target=_serve, args=(self._calls,), name="calls", daemon=True)
            self._thread.start()
        self._calls.put(partial(_perform, call, loop, outcome))
        try:
            async with asyncio.timeout(timeout_s):
                return await outcome
        finally:
            if outcome.cancelled():
                self._leave_thread()

    def _leave_thread(self) -> None:
        """Lets the thread end after its call."""
        if self._thread is not None:
            self._calls.put(None)
            self._left.append(self._thread)
            self._calls, self._thread = SimpleQueue(), None


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


def _perform(call: Callable[[], T], loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[T]) -> None:
    try:
        settle = partial(outcome.set_result, call())
    except Exception as error:  # noqa: BLE001  # of any kind: the waiting task gets it
        settle = partial(outcome.set_exception, error)

    def report() -> None:
        if not outcome.done():
            settle()

    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(report)


class LoopClock:
    """Timers of the running event loop (asyncio's or uvloop's), and the system's wall time; used only from
    the loop's thread.

    The loop is looked up at each call and not stored, so one clock serves every loop of a process.
    """

    def now_ms(self) -> EpochMs:
        return EpochMs(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, fn, *args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(fn, *args)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


def unpredictable_bytes(count: int) -> bytes:
    """Returns bytes for secrets and challenges; never the same twice, not even under a seed."""
    return secrets.token_bytes(count)


class SystemRandom:
    """A random source seeded once by the operating system; not for secrets."""

    def __init__(self) -> None:
        self._random = random.Random()

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


class SeededRandom(SystemRandom):
    """A random source whose seed gives the same sequence on every machine."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)


@functools.cache
def instance_id() -> str:
    """Returns a random UUID, the same until the process ends."""
    import uuid  # only servers that push need it

    return str(uuid.uuid4())


def local_address() -> str:
    """Returns the address that other machines see: that of the default route, IPv4 first; without a route the
    loopback address.
    """
    for family, documentation in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                # Connecting a datagram socket only queries the routing table; it sends nothing.
                probe.connect((documentation, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def resolve_host(host: str) -> str:
    """Returns the numeric address of a host name, IPv4 first; a number is returned as it is. Raises
    OSError.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    first = min(found, key=lambda one: one[0] != socket.AF_INET)
    return str(first[4][0]).partition("%")[0]


class TcpListener:
    """The listening sockets of one port: one, or one for each family. The first one's address is shown."""

    def __init__(self, *servers: asyncio.Server) -> None:
        self._servers = servers
        host, port = servers[0].sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        for server in self._servers:
            await close_server(server)


async def close_server(server: asyncio.Server) -> None:
    """Stops listening. Connections accepted before have a protocol that owns them; they are not waited
    for.
    """
    try:
        if isinstance(server, asyncio.Server):  # uvloop's server is another class
            # Python's server accepts in one turn of the loop and creates the transport in the next. If it is
            # closed in between, it refuses the transport, and the connection stays open without an owner.
            for listener in server.sockets:
                server.get_loop().remove_reader(listener.fileno())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    finally:
        # From Python 3.12 on, wait_closed would also wait for every accepted connection.
        server.close()


class TcpNetwork:
    """Sockets without delay (TCP_NODELAY) and without keep-alive probes (spec remoting 5)."""

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> TcpListener:
        """Listens on one address; `::` means all addresses of both families, as in Java. Each family has a
        socket of its own, so that IPv4 peers do not appear as IPv6 ones.
        """
        server = await self._serve(host, port, protocol_factory)
        if host != "::":
            return TcpListener(server)
        try:
            v4_server = await self._serve("0.0.0.0", server.sockets[0].getsockname()[1], protocol_factory)
        except OSError:
            await close_server(server)
            raise
        return TcpListener(server, v4_server)

    async def _serve(self, host: str, port: int, protocol_factory: ProtocolFactory) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            protocol_factory, host, port, backlog=BACKLOG, reuse_address=True
        )

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport:
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(protocol_factory, host, port)
        return transport


def reserve_port(host: str) -> socket.socket:
    """Returns a socket that reserves a port chosen by the system, and lets the project's servers listen on
    it.

    The socket is bound and does not listen. Linux lets another socket bind and listen there because both set
    SO_REUSEADDR, and assigns the port to no process that does not name it.
    """
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, 0))
    except OSError:
        one.close()
        raise
    return one


def deliver(protocol: StreamProtocol, data: bytes) -> None:
    """Passes `data` to a protocol, whole, or in pieces through the buffer that it offers."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    rest = memoryview(data)
    while rest:
        room = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(rest), len(room))
        assert count, "a protocol must offer room when bytes come"
        room[:count] = rest[:count]
        protocol.buffer_updated(count)
        rest = rest[count:]
