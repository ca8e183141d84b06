"""A NATS server with JetStream as a process of this machine, and a load on it over NATS's text protocol.

The load is as light as the generator of prepared frames (`generator`): one connection, the same bytes
repeatedly, and no work per message that the measurement does not need. A send is a publish with a reply
subject. It is complete when JetStream has answered there with the sequence number of the message in the
stream. A pull consumer reads the backlog, with requests of READ_AT_ONCE messages.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from bench.java.clusters import HOST, MeasuredCluster, free_port, stop_process, wait_until_open
from bench.java.measure import LOAD_S_MAX
from tandemmq.bench.generator import LoadResult
from tandemmq.errors import TandemError

NATS: Final = "NATS JetStream"
STREAM: Final = "BENCH"
SUBJECT: Final = "bench"
FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin")
"""Debian's directory for servers, which is not always in PATH."""
READ_AT_ONCE: Final = 1000
"""The messages per pull, similar to the request of Kafka's consumer to a partition: 1 MiB."""
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
_NUMBERS: Final = itertools.count()
_STREAM: Final = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "retention": "limits"}
_CONSUMER: Final = {
    "stream_name": STREAM,
    "config": {
        "ack_policy": "none",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "mem_storage": True,
    },
}
Outcome = TypeVar("Outcome")


def find_nats() -> str:
    """Returns the path of the server's program.

    Raises:  TandemError naming the package if it is missing.
    """
    program = shutil.which("nats-server", path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))
    if program is None:
        raise TandemError("nats-server is missing (Debian and Ubuntu: apt-get install nats-server)")
    return program


def find_version(program: str) -> str:
    """Returns the version that the program prints: `nats-server: v2.9.10`."""
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True)
    return printed.stdout.strip().rpartition("v")[2]


@contextmanager
def running_nats(directory: Path, program: str) -> Iterator[MeasuredCluster]:
    """Runs a server with JetStream, otherwise with default settings, whose stream in files stores the
    messages of `SUBJECT`.

    Raises:  TandemError if it ends, does not listen, or rejects the stream.
    """
    directory.mkdir(parents=True)
    port, log = free_port(), directory / "nats.log"
    command = [program, "-js", "-sd", str(directory / "store"), "-a", HOST, "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until_open(process, port, NATS, log)
        address = f"{HOST}:{port}"
        _run(
            address,
            lambda connection: connection.request_api(f"STREAM.CREATE.{STREAM}", _STREAM),
            seconds_max=0,
        )
        yield MeasuredCluster(NATS, "", address, {"broker": process.pid})
    finally:
        stop_process(process)


class NatsFrame(NamedTuple):
    """A frame of the protocol. `subject` and `payload` belong to a message; in HMSG the payload begins with
    headers.
    """

    verb: bytes
    subject: bytes = b""
    payload: bytes = b""


class NatsFrames:
    """Splits the received bytes into frames, and buffers an incomplete one."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[NatsFrame]:
        """Returns the frames that are complete."""
        held = self._held + data if self._held else data
        frames = []
        at = 0
        while (line_end := held.find(b"\r\n", at)) >= 0:
            fields = held[at:line_end].split()
            verb = fields[0] if fields else b""
            if verb not in (b"MSG", b"HMSG"):
                frames.append(NatsFrame(verb, b"", held[at + len(verb) : line_end].strip()))
                at = line_end + 2
                continue
            begin = line_end + 2
            end = begin + int(fields[-1])
            if len(held) < end + 2:
                break
            frames.append(NatsFrame(verb, fields[1], held[begin:end]))
            at = end + 2
        self._held = held[at:]
        return frames


def publish_frame(subject: str, inbox: str, payload: bytes) -> bytes:
    """Returns the bytes that publish one message with the inbox as reply subject."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.encode(), len(payload), payload)


class _Connection(asyncio.Protocol):
    """A connection to the server. Its messages are passed to `on_messages`; after a failure, `failed` has the
    reason.
    """

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A separate inbox: answers to the requests of an earlier connection may still be sent to that
        # connection's inbox.
        self.inbox = f"inbox.{next(_NUMBERS)}"
        self.on_messages: Callable[[list[NatsFrame]], None] = lambda messages: None
        self.write: Callable[[bytes], None] = lambda data: None
        self._frames = NatsFrames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.write = transport.write
        self.write(_CONNECT + f"SUB {self.inbox} 1\r\n".encode())

    def data_received(self, data: bytes) -> None:
        messages = []
        for frame in self._frames.feed(data):
            if frame.verb == b"MSG":
                messages.append(frame)
            elif frame.verb == b"PING":
                self.write(b"PONG\r\n")
            elif frame.verb in (b"-ERR", b"HMSG"):
                # A message with headers is a rejection: the subject has no responder, or the pull is over.
                self._fail(TandemError(f"{NATS} answered {frame.payload.decode('utf-8', 'replace')!r}"))
        if messages:
            self.on_messages(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(TandemError(f"{NATS} closed the connection: {exc}"))

    def _fail(self, error: TandemError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def wait_for(self, done: asyncio.Future[Any]) -> None:
        """Waits until `done`. Raises:  TandemError if the connection fails first."""
        await asyncio.wait((done, self.failed), return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            self.failed.result()

    async def request_api(self, subject: str, payload: object = None) -> dict[str, Any]:
        """Returns JetStream's answer to a request of its API.

        Raises:  TandemError if it rejects the request.
        """
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_messages(messages: list[NatsFrame]) -> None:
            if not answered.done():
                answered.set_result(messages[0].payload)

        self.on_messages = on_messages
        data = b"" if payload is None else json.dumps(payload).encode()
        self.write(publish_frame(f"$JS.API.{subject}", self.inbox, data))
        await self.wait_for(answered)
        answer: dict[str, Any] = json.loads(answered.result())
        if "error" in answer:
            raise TandemError(f"{NATS} refused {subject}: {answer['error'].get('description')}")
        return answer


def _run(address: str, load: Callable[[_Connection], Awaitable[Outcome]], *, seconds_max: float) -> Outcome:
    """Runs the load over a separate connection and returns its result.

    Raises:  TandemError if it exceeds its time by LOAD_S_MAX; OSError without a server.
    """

    async def run() -> Outcome:
        host, _, port = address.rpartition(":")
        transport, connection = await asyncio.get_running_loop().create_connection(
            _Connection, host, int(port)
        )
        try:
            async with asyncio.timeout(seconds_max + LOAD_S_MAX):
                return await load(connection)
        except TimeoutError:
            raise TandemError(f"{NATS} does not answer") from None
        finally:
            transport.abort()
            if not connection.failed.cancel():
                connection.failed.exception()  # the failure is known; asyncio need not report it again

    return asyncio.run(run())


def send_load(address: str, *, body_bytes: int, in_flight: int, seconds: float) -> LoadResult:
    """Sends for the given time with a fixed number in flight. Acknowledgements of one stream arrive in the
    order of the sends.

    Raises:  TandemError, OSError if the server fails.
    """

    async def load(connection: _Connection) -> LoadResult:
        clock = time.perf_counter
        frame = publish_frame(SUBJECT, connection.inbox, b"x" * body_bytes)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed = 0
        latencies: list[float] = []

        def on_messages(messages: list[NatsFrame]) -> None:
            nonlocal failed
            now = clock()
            for message in messages:
                failed += b'"seq":' not in message.payload
                latencies.append((now - waiting.popleft()) * 1e6)
            if now < ends_at:
                waiting.extend([now] * len(messages))
                connection.write(frame * len(messages))
            elif not waiting and not done.done():
                done.set_result(None)

        connection.on_messages = on_messages
        begun = clock()
        ends_at = begun + seconds
        waiting = deque([begun] * in_flight)
        connection.write(frame * in_flight)
        await connection.wait_for(done)
        return LoadResult(
            count=len(latencies), seconds=clock() - begun, latencies_us=latencies, failed=failed
        )

    return _run(address, load, seconds_max=seconds)


def read_load(address: str, *, seconds: float) -> LoadResult:
    """Reads the stream for the given time, and starts again at its beginning after its end.

    Raises:  TandemError, OSError if the server fails.
    """

    async def load(connection: _Connection) -> LoadResult:
        state = (await connection.request_api(f"STREAM.INFO.{STREAM}"))["state"]
        if not state["messages"]:
            raise TandemError(f"{NATS} has nothing to read")
        begun = time.perf_counter()
        count = 0
        while time.perf_counter() < begun + seconds:
            consumer = (await connection.request_api(f"CONSUMER.CREATE.{STREAM}", _CONSUMER))["name"]
            count += await _read_through(connection, consumer, state["messages"], begun + seconds)
        return LoadResult(count=count, seconds=time.perf_counter() - begun, latencies_us=[], failed=0)

    return _run(address, load, seconds_max=seconds)


async def _read_through(connection: _Connection, consumer: str, total: int, ends_at: float) -> int:
    """Returns how many of the `total` messages arrived before the end. While one pull is served, another one
    waits.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer}"
    got = asked = 0

    def on_messages(messages: list[NatsFrame]) -> None:
        nonlocal got, asked
        got += len(messages)
        while asked < total and asked - got <= READ_AT_ONCE:
            # Never requests more than the stream has: otherwise a pull would wait, and be rejected later.
            batch = min(READ_AT_ONCE, total - asked)
            asked += batch
            connection.write(publish_frame(subject, connection.inbox, b'{"batch":%d}' % batch))
        if not done.done() and (got >= total or time.perf_counter() >= ends_at):
            done.set_result(None)

    connection.on_messages = on_messages
    on_messages([])
    await connection.wait_for(done)
    return got
