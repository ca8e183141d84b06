"""The two ids of a message: the broker's, which encodes its position, and the producer's (UNIQ_KEY).

Both are upper-case hex text. The broker's id is store host, port and log offset, so that a reader can connect
to the broker and fetch the message; tools and transactions depend on that. The producer's id is opaque to all
others.
Source:  spec store 3, spec remoting 12.2, spec semantics 3.5.
"""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from tandemmq.errors import BadRequest, LocalProtocolError
from tandemmq.units import EpochMs

HOST_BYTES_V4: Final = 8
HOST_BYTES_V6: Final = 20

_PORT: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_KEY_PREFIX: Final = struct.Struct(">HI")
_KEY_TAIL: Final = struct.Struct(">IH")


@lru_cache(maxsize=4096)
def encode_host(ip: str, port: int) -> bytes:
    """Returns the packed form of records and ids: 4 or 16 address bytes, then the port as an i32.

    Raises:  LocalProtocolError if `ip` is not a numeric address.
    """
    try:
        return ip_address(ip.partition("%")[0]).packed + _PORT.pack(port)
    except (ValueError, struct.error) as error:
        raise LocalProtocolError(f"host {ip!r} port {port!r}: {error}") from None


@lru_cache(maxsize=4096)
def decode_host(packed: bytes) -> tuple[str, int]:
    """Returns the numeric address and port of 8 or 20 packed bytes.

    Raises:  LocalProtocolError for any other length.
    """
    if len(packed) not in (HOST_BYTES_V4, HOST_BYTES_V6):
        raise LocalProtocolError(f"a packed host has 8 or 20 bytes, not {len(packed)}")
    return str(ip_address(packed[:-4])), _PORT.unpack(packed[-4:])[0]


class MessageId(NamedTuple):
    """The content of a broker's message id: the broker's address and the log offset of the message."""

    ip: str
    port: int
    log_offset: int


def encode_message_id(store_host: bytes, log_offset: int) -> str:
    """Returns 32 (IPv4) or 56 (IPv6) upper-case hex digits; `store_host` is packed."""
    return (store_host + _OFFSET.pack(log_offset)).hex().upper()


def decode_message_id(text: str) -> MessageId:
    """Returns the parts of a message id.

    Raises:  BadRequest if it is not 32 or 56 hex digits.
    """
    try:
        raw = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        raw = b""
    if len(text) not in (32, 56) or len(raw) * 2 != len(text):
        raise BadRequest(f"message id {text[:64]!r}: must be 32 or 56 hexadecimal digits")
    ip, port = decode_host(raw[:-8])
    return MessageId(ip, port, _OFFSET.unpack(raw[-8:])[0])


def month_start_ms(now_ms: int, utc_offset_ms: int = 0) -> EpochMs:
    """Returns the first instant of the month of `now_ms`, in the time zone of that offset."""
    zone = timezone(timedelta(milliseconds=utc_offset_ms))
    local = datetime.fromtimestamp(now_ms / 1000, zone)
    start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return EpochMs(int(start.timestamp() * 1000))


class UniqueKeys:
    """Creates the UNIQ_KEYs of one process: all differ while fewer than 65536 are created per millisecond.

    `process_hash` distinguishes processes with equal ip and pid (containers): any 32 random bits drawn at
    start. The time part is milliseconds since the local month began; it advances with the month.
    """

    __slots__ = ("_counter", "_month_end_ms", "_month_start_ms", "_prefix", "_utc_offset_ms")

    def __init__(self, ip: str, pid: int, process_hash: int, *, utc_offset_ms: int = 0) -> None:
        address = encode_host(ip, 0)[:-4]
        self._prefix = address + _KEY_PREFIX.pack(pid & 0xFFFF, process_hash & 0xFFFFFFFF)
        self._utc_offset_ms = utc_offset_ms
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._counter = 0

    def next(self, now_ms: int) -> str:
        """Returns a new key: 32 (IPv4) or 56 (IPv6) upper-case hex digits."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms = month_start_ms(now_ms, self._utc_offset_ms)
            self._month_end_ms = month_start_ms(self._month_start_ms + 32 * 86_400_000, self._utc_offset_ms)
        self._counter = self._counter + 1 & 0xFFFF
        elapsed_ms = now_ms - self._month_start_ms
        return (self._prefix + _KEY_TAIL.pack(elapsed_ms, self._counter)).hex().upper()
