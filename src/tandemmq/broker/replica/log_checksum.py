"""Comparison and repair of the CommitLog: serves its bytes and checksums to replicas and tools, and repairs
its damaged ranges.

`LogChecksums` serves bytes (TANDEM_READ_LOG) and checksums (TANDEM_READ_LOG_CHECKSUM); a slave also uses it
for its own half of a comparison. `LogHeal` requests the same from other brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from tandemmq.api.replica import read_log
from tandemmq.errors import BadRequest, Busy, RemoteProtocolError, StoreError, TandemError
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.requests.replica import (
    LogChecksumRequest,
    LogChecksumResponse,
    ReadLogRequest,
    ReadLogResponse,
)
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry import events
from tandemmq.units import MIB

log = logging.getLogger(__name__)

SLICE_BYTES: Final = 4 * MIB
RANGE_BYTES_MAX: Final = 64 * MIB
"""A longer range is truncated; the answer states the actual size."""
READ_BYTES_MAX: Final = 1 * MIB
"""The most bytes of the log in one answer; the caller requests the rest."""
WAITING_COUNT_MAX: Final = 16
"""At the bound a request is answered SYSTEM_BUSY."""


class Checksum(NamedTuple):
    """The CRC-32 of the first `size_bytes` bytes of a range."""

    size_bytes: int
    crc: int


class LogChecksums:
    """Serves bytes and checksums of ranges, one request at a time. Others wait in a queue; beyond its bound
    they are refused.

    Strategy: off the loop, in slices, so that a range of cold pages does not block it. The number of requests
              and the bytes per request are bounded, because any peer may ask. The range is truncated to the
              log.
    """

    def __init__(self, store: MessageStore, *, disk: Disk, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._disk = disk
        self._turn = asyncio.Lock()
        self._waiting_count = 0

    @property
    def store(self) -> MessageStore:
        return self._store

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.TANDEM_READ_LOG_CHECKSUM: self.handle_checksum,
            RequestCode.TANDEM_READ_LOG: self.handle_read,
        }

    async def handle_checksum(self, _channel: Channel, command: Command) -> Command:
        request = command.decode(LogChecksumRequest)
        _check_range(request.log_offset, request.size_bytes)
        found = Checksum(0, 0)  # a request for the ends alone does not wait
        if request.size_bytes:
            async with self._in_turn():
                found = await self.checksum(request.log_offset, min(request.size_bytes, RANGE_BYTES_MAX))
        header = LogChecksumResponse(
            min_offset=self._store.min_log_offset,
            max_offset=self._store.confirmed_log_offset,
            size_bytes=found.size_bytes,
            crc=found.crc,
            run_id=self._run_id,
            is_waiting=True if self._store.unverified_reason else None,
            is_slave=True if self._store.assigned_role is BrokerRole.SLAVE else None,
        )
        return command.reply(header=header)

    async def handle_read(self, _channel: Channel, command: Command) -> Command:
        request = command.decode(ReadLogRequest)
        _check_range(request.log_offset, request.size_bytes)
        end = self._store.confirmed.value
        size = max(0, min(request.size_bytes, READ_BYTES_MAX, end - request.log_offset))
        async with self._in_turn():
            data = await self._disk.offload(b"".join, self._slice(request.log_offset, size))
        header = ReadLogResponse(min_offset=self._store.min_log_offset, max_offset=end)
        return command.reply(header=header, body=data)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._waiting_count >= WAITING_COUNT_MAX:
            raise Busy("[OVERLOAD]too many requests for ranges of the log are waiting; try again later")
        self._waiting_count += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting_count -= 1

    async def checksum(self, log_offset: int, size_bytes: int) -> Checksum:
        """Returns the checksum of `[log_offset, log_offset + size_bytes)`, truncated to the log."""
        crc = done = 0
        while views := self._slice(log_offset + done, size_bytes - done):
            crc = await self._disk.offload(_checksum_of, views, crc)
            done += sum(map(len, views))
        return Checksum(done, crc)

    def _slice(self, log_offset: int, size_bytes: int) -> list[memoryview]:
        """Returns the next bytes to sum, up to SLICE_BYTES, as one view per file."""
        views: list[memoryview] = []
        remaining = min(size_bytes, SLICE_BYTES)
        while remaining:
            view = self._store.log.valid_view(log_offset, remaining)
            if not len(view):
                break
            views.append(view)
            log_offset += len(view)
            remaining -= len(view)
        return views


def _check_range(log_offset: int, size_bytes: int) -> None:
    if log_offset < 0 or size_bytes < 0:
        raise BadRequest(f"{size_bytes} bytes from offset {log_offset}: neither number may be negative")


def _checksum_of(views: list[memoryview], crc: int) -> int:
    for view in views:
        crc = crc32(view, crc)
    return crc


RETRY_S: Final = 5.0


@dataclass(eq=False)
class LogHeal:
    """Repairs damage that a start or a scrub found in this log, from other copies of the group.

    `run` is its task; it returns when nothing is damaged. `sources`: returns addresses of other copies.
    Strategy:  a slave asks its master before the ends of both logs are compared, because damage would look
               like a different history. A master asks the slaves that a name server lists or that reported an
               address. RocketMQ brokers do not serve bytes. A broker that cannot help now is asked again
               later.
    Knows not: which bytes fit: the store checks each record before it writes.
    """

    store: MessageStore
    _: KW_ONLY
    client: RemotingClient
    clock: Clock
    sources: Callable[[], Awaitable[Iterable[str]]]

    def __post_init__(self) -> None:
        self._reported_reason: str | None = None

    async def run(self) -> None:
        """Repairs until nothing is damaged. Raises: StoreError if the store has failed."""
        while self.store.damaged_ranges:
            await self.try_now()
            if self.store.damaged_ranges:
                await self.clock.sleep(RETRY_S)

    async def try_now(self) -> None:
        """Repairs as much as is possible now. Raises StoreError if the store has failed."""
        reasons = []
        for address in await self.sources() if self.store.damaged_ranges else ():
            try:
                await self._heal_from(address)
            except StoreError as error:
                if error.fatal:
                    raise
                reasons.append(f"{address}: {error}")
            except TandemError as error:
                reasons.append(f"{address}: {error}")
        reason = "; ".join(reasons)
        if reason and reason != self._reported_reason:
            log.warning(events.LOG_HEAL_REFUSED, extra={"reason": reason})
        self._reported_reason = reason

    async def _heal_from(self, address: str) -> None:
        async def fetch(log_offset: int, size: int) -> bytes:
            data = b""
            while remaining := size - len(data):
                at = log_offset + len(data)
                part = await read_log(self.client, address, at, min(remaining, READ_BYTES_MAX))
                if not part.data:
                    raise RemoteProtocolError(f"it returned no bytes from {at} on")
                data += part.data
            return data

        if self.store.damaged_ranges:
            await self.store.healer.heal_all(fetch)
