"""`AnswerBudget`: the memory of answers that wait until their clients read them, over all connections.

Flow control lets a client read as slowly as it likes, so the messages of its receives and pulls stay in the
memory of the proxy. `ReceiveHandlers` and `PullConsumerHandlers` share one budget.

At a bound: while `bytes_max` wait, receives and pulls are refused with TOO_MANY_REQUESTS, and nothing is
            popped for them; a pop that returns then is handed back. Answers of which nothing was read for
            `stall_s` are ended first: they make room for clients that read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from tandemmq.protocol.record import Record
from tandemmq.proxy.meters import Limit, Traffic
from tandemmq.proxy.rpc import GrpcFailure, GrpcStatus, Message, Send
from tandemmq.runtime.ports import Clock
from tandemmq.units import MIB

BYTES_MAX: Final = 256 * MIB
STALL_S: Final = 30.0
SCAN_PAUSE_S: Final = 0.5
"""The least time between searches for stalled answers: refusals at the bound must stay cheap."""
MESSAGE_BYTES: Final = 1_024
"""The memory of a message beside its body, about."""


@dataclass(eq=False, slots=True)
class _UnreadAnswer:
    """An answer in memory, and the time since which its client has read nothing of it."""

    size: int
    since_s: float
    scope: asyncio.Timeout
    is_ended: bool = False


@dataclass(slots=True)
class AnswerBudget:
    """The answers in memory, in the order of their beginnings."""

    clock: Clock
    traffic: Traffic
    bytes_max: int = BYTES_MAX
    stall_s: float = STALL_S
    byte_count: int = field(default=0, init=False)
    _unread: dict[_UnreadAnswer, None] = field(default_factory=dict, init=False)
    _next_scan_s: float = field(default=0.0, init=False)

    def check_room(self, size: int = 1) -> None:
        """Raises RpcRefused TOO_MANY_REQUESTS unless `size` more bytes fit; a single answer always does."""
        if self._has_room(size):
            return
        self._end_stalled()
        if not self._has_room(size):
            raise self.traffic.refusal(
                Limit.ANSWER_BYTES,
                f"{self.byte_count} bytes of answers wait for clients to read them, at most"
                f" {self.bytes_max} are kept: try later",
            )

    @asynccontextmanager
    async def hold(self, size: int, send: Send) -> AsyncIterator[Send]:
        """Provides the function that sends an answer of `size` bytes, which are counted inside the block.

        Raises:  RpcRefused as `check_room`; GrpcFailure RESOURCE_EXHAUSTED when the client does not read and
                 others need the room.
        """
        self.check_room(size)
        if not size:
            yield send
            return
        try:
            async with asyncio.timeout(None) as scope:
                unread = _UnreadAnswer(size, self.clock.monotonic(), scope)
                self._unread[unread] = None
                self.byte_count += size

                def watch(elements: Iterable[Message]) -> Iterator[Message]:
                    for element in elements:
                        unread.since_s = self.clock.monotonic()  # those before are read, or sent with it
                        yield element

                try:
                    yield lambda elements: send(watch(elements))
                finally:
                    self._forget(unread)
        except TimeoutError:
            if not unread.is_ended:
                raise
            raise GrpcFailure(
                GrpcStatus.RESOURCE_EXHAUSTED, f"the client has read nothing for {self.stall_s:g} s"
            ) from None

    def _has_room(self, size: int) -> bool:
        return not size or not self.byte_count or self.byte_count + size <= self.bytes_max

    def _end_stalled(self) -> None:
        now_s = self.clock.monotonic()
        if now_s < self._next_scan_s:
            return
        self._next_scan_s = now_s + SCAN_PAUSE_S
        before_s = now_s - self.stall_s
        for unread in [one for one in self._unread if one.since_s <= before_s]:
            unread.is_ended = True
            unread.scope.reschedule(asyncio.get_running_loop().time())
            self._forget(unread)

    def _forget(self, unread: _UnreadAnswer) -> None:
        if unread in self._unread:
            del self._unread[unread]
            self.byte_count -= unread.size


def size_of(records: Iterable[Record]) -> int:
    """Returns the memory of these messages, about."""
    return sum(len(record.body) + MESSAGE_BYTES for record in records)
