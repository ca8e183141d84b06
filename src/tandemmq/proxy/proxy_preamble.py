"""The PROXY protocol, versions 1 and 2: the line or block with which a load balancer names the real peer of a
connection that it forwards.

It is accepted only from the addresses that are configured, since any client could send it. A forwarded
connection without it is served, with the load balancer as its peer.

At a bound: a preamble that is broken, or longer than PREAMBLE_BYTES_MAX, or not complete in time, closes the
            connection.
Source:     spec proxy 1.2; the text of the PROXY protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple, cast

from tandemmq.runtime.ports import Address, Clock, TimerHandle

PREAMBLE_BYTES_MAX: Final = 4_096
_LINE_BYTES_MAX: Final = 107
_LINE_START: Final = b"PROXY "
_BLOCK_START: Final = b"\r\n\r\n\0\r\nQUIT\n"
_BLOCK_HEAD_BYTES: Final = 16
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""The length of an address by family and transport: TCP over IPv4, and over IPv6."""


class Preamble(NamedTuple):
    """A preamble, or its absence: `size` is 0 then. Without a `source` the peer is the sender itself."""

    size: int
    source: Address | None = None


def read_preamble(data: bytes) -> Preamble | None:
    """Returns the preamble at the start of a connection; None while more bytes are needed.

    Raises:  ValueError for a broken one.
    """
    if _BLOCK_START.startswith(data[: len(_BLOCK_START)]):
        return _read_block(data)
    if _LINE_START.startswith(data[: len(_LINE_START)]):
        return _read_line(data)
    return Preamble(0)


def _read_line(data: bytes) -> Preamble | None:
    end = data.find(b"\r\n", 0, _LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= _LINE_BYTES_MAX:
            raise ValueError("a line without an end")
        return None
    words = data[:end].decode("ascii").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return Preamble(end + 2)
    _, family, source, _, port, _ = words
    if family not in ("TCP4", "TCP6"):
        raise ValueError(f"unknown family {family}")
    return Preamble(end + 2, (str(ip_address(source)), int(port)))


def _read_block(data: bytes) -> Preamble | None:
    if len(data) < _BLOCK_HEAD_BYTES:
        return None
    command, family, length = data[12], data[13], int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXY):
        raise ValueError(f"unknown command {command:#x}")
    size = _BLOCK_HEAD_BYTES + length
    if size > PREAMBLE_BYTES_MAX:
        raise ValueError(f"{size} bytes")
    if len(data) < size:
        return None
    width = _ADDRESS_BYTES.get(family)
    if command == _LOCAL or width is None:
        return Preamble(size)
    if length < 2 * width + 4:
        raise ValueError("the addresses are cut")
    source = data[_BLOCK_HEAD_BYTES : _BLOCK_HEAD_BYTES + width]
    port_at = _BLOCK_HEAD_BYTES + 2 * width
    return Preamble(size, (str(ip_address(source)), int.from_bytes(data[port_at : port_at + 2])))


@dataclass(eq=False)
class PreambleReader(asyncio.Protocol):
    """An accepted connection that may begin with a preamble, if its peer is one of `trusted`.

    make_next   creates the protocol that takes over; it gets the source of the preamble
    on_decided  called before that, or when the connection is lost; with the reason if it was refused
    """

    trusted: frozenset[str]
    make_next: Callable[[Address | None], asyncio.Protocol]
    clock: Clock
    time_s: float
    on_decided: Callable[[PreambleReader, str], None]
    peer: Address = ("", 0)
    _reason: str = ""
    _data: bytes = b""
    _wire: asyncio.Transport | None = None
    _timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        endpoint = transport.get_extra_info("peername")
        self.peer = (str(endpoint[0]), int(endpoint[1])) if endpoint else ("", 0)
        if self.peer[0] in self.trusted:
            self._timer = self.clock.call_later(self.time_s, self._refuse, "it is not complete in time")
        else:
            self._hand_over(None, b"")

    def data_received(self, data: bytes) -> None:
        if self._wire is None:
            return
        self._data += data
        try:
            preamble = read_preamble(self._data)
        except ValueError as error:
            self._refuse(str(error))
            return
        if preamble is not None:
            self._stop_timer()
            self._hand_over(preamble.source, self._data[preamble.size :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._wire is not None:
            self._wire = None
            self.on_decided(self, self._reason)

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._wire is not None:
            self._wire.abort()

    def _hand_over(self, source: Address | None, rest: bytes) -> None:
        assert self._wire is not None
        wire, self._wire = self._wire, None
        self.on_decided(self, "")
        following = self.make_next(source)
        wire.set_protocol(following)
        following.connection_made(wire)
        if rest:
            following.data_received(rest)

    def _refuse(self, reason: str) -> None:
        self._stop_timer()
        self._reason = reason
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
