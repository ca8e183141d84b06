"""A gRPC call in memory, and a caller: for tests of handlers without a transport."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from sim.manual_clock import ManualClock
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.rpc import Caller
from tandemmq.runtime.ports import Address

PEER: Address = ("127.0.0.1", 5555)


class FakeCall:
    """A `GrpcCall`. The requests wait already; `sent` holds the answers.

    After the last request the peer has ended its side, unless `ends=False`: then `receive` waits for `add` or
    `end`. While `is_full` is set, `send` waits as it does for a slow reader.
    """

    def __init__(
        self,
        requests: Sequence[bytes] = (),
        metadata: Mapping[str, str] | None = None,
        deadline_s: float = inf,
        peer: Address = PEER,
        *,
        ends: bool = True,
    ) -> None:
        self.metadata: Mapping[str, str] = {"x-mq-client-id": "c1"} if metadata is None else metadata
        self.deadline_s = deadline_s
        self.code = 0
        self.lines = LimitedLines(ManualClock())
        self.peer = peer
        self.sent: list[bytes] = []
        self.is_started = False
        self._requests: deque[bytes] = deque(requests)
        self._has_ended = ends
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def start(self) -> None:
        self.is_started = True

    async def send(self, *messages: bytes) -> None:
        self.is_started = True
        await self._room.wait()
        self.sent += messages
        self._changed.set()

    async def receive(self) -> bytes | None:
        while not self._requests:
            if self._has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._requests.popleft()

    def add(self, request: bytes) -> None:
        """Delivers one more request of the peer."""
        self._requests.append(request)
        self._changed.set()

    def end(self) -> None:
        """Ends the peer's side."""
        self._has_ended = True
        self._changed.set()

    @property
    def is_full(self) -> bool:
        return not self._room.is_set()

    @is_full.setter
    def is_full(self, value: bool) -> None:
        self._room.clear() if value else self._room.set()

    def answers(self, shape: Any) -> list[Any]:
        """Returns the answers as messages of the class `shape`."""
        return [shape.FromString(data) for data in self.sent]


def caller(client_id: str = "c1", **changes: Any) -> Caller:
    """Returns a caller with plain values; `changes` replaces fields."""
    plain = Caller(
        client_id=client_id,
        language="JAVA",
        version="5.0.8",
        namespace="",
        peer=PEER,
        deadline_s=inf,
    )
    return replace(plain, **changes)
