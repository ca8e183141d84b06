"""How networks in memory hand bytes to a protocol: as sockets do."""

from __future__ import annotations

import asyncio

from tandemmq.runtime.ports import StreamProtocol


def deliver(protocol: StreamProtocol, data: bytes) -> None:
    """Give `data` to a protocol, whole, or piece by piece into the buffer that it offers."""
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
