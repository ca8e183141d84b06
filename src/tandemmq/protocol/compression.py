"""Compression of message bodies: producers compress, readers decompress, and the broker stores the bytes
unchanged.

zlib is always available; lz4 (frame format) and zstd need the extra of that name. A body may not inflate to
more than `CONTENT_BYTES_MAX`: the limit on messages applies before compression (spec semantics 1.5), so
anything larger is an attack or a mistake.

Brokers store whatever flag a sender claims. Readers therefore call `decode_content`, which keeps the raw
bytes of a body that does not decode; `decompress` raises, for callers that handle the error themselves.
Source:  spec remoting 12.3.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from tandemmq.errors import ConfigError, LocalProtocolError, ProtocolError, RemoteProtocolError, install_hint
from tandemmq.protocol.sys_flag import (
    COMPRESSED,
    COMPRESSION_LEGACY,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)
from tandemmq.units import MIB

CONTENT_BYTES_MAX: Final = 64 * MIB
LEVEL: Final = 5
"""RocketMQ's `compressLevel`, for zlib and zstd; lz4 uses its fastest level, as in RocketMQ."""
_ZSTD_STEP_BYTES: Final = 1024
"""The input step for zstd, whose object has no output bound: a step yields at most 32 MiB (128 KiB per 4
bytes).
"""


class Compression(Enum):
    """The compression of a producer; the names are those of RocketMQ's `compressType`."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


SYS_FLAGS: Final = {
    Compression.ZLIB: COMPRESSED | COMPRESSION_ZLIB,
    Compression.LZ4: COMPRESSED | COMPRESSION_LZ4,
    Compression.ZSTD: COMPRESSED | COMPRESSION_ZSTD,
}
"""The bits in a message's sysFlag that state the compression of its body."""


def compressor(kind: Compression) -> Callable[[bytes], bytes]:
    """Returns a function that compresses bodies; use it in one thread only.

    Raises:  ConfigError if the required extra is not installed.
    """
    if kind is Compression.ZLIB:
        return lambda body: zlib.compress(body, LEVEL)
    try:
        if kind is Compression.LZ4:
            frame = _optional("lz4.frame", "lz4")
            # Java's reader rejects frames with linked blocks.
            return lambda body: bytes(frame.compress(body, block_linked=False, store_size=False))
        engine = _optional("zstandard", "zstd").ZstdCompressor(level=LEVEL)
    except LocalProtocolError as error:
        raise ConfigError(f"compression {kind.value}: {error}") from None
    return lambda body: bytes(engine.compress(body))


class Content(NamedTuple):
    """The content of a stored body; with a `fault` the stored bytes, and the reason why they did not
    decode.
    """

    data: bytes
    fault: str = ""


def decode_content(body: bytes, sys_flag: int, *, bytes_max: int = CONTENT_BYTES_MAX) -> Content:
    """Returns the body as its sender wrote it; the stored bytes and the reason if they do not decode.

    Never raises on foreign bytes: one message with a body that contradicts its flag must not stop the reader
    of its queue. A missing extra (lz4, zstd) is a reason as well, and the bytes remain usable elsewhere.
    """
    if not sys_flag & COMPRESSED:
        return Content(body)
    try:
        return Content(decompress(body, sys_flag, bytes_max=bytes_max))
    except ProtocolError as error:
        return Content(body, str(error))


def decompress(body: bytes, sys_flag: int, *, bytes_max: int = CONTENT_BYTES_MAX) -> bytes:
    """Returns the content of a body whose sysFlag says compressed.

    Raises:  RemoteProtocolError if the bytes contradict the flag, or inflate to more than `bytes_max`;
             LocalProtocolError if the extra for lz4 or zstd is not installed.
    """
    kind = sys_flag & COMPRESSION_MASK
    if kind in (COMPRESSION_LEGACY, COMPRESSION_ZLIB):
        return _inflate_zlib(body, bytes_max)
    if kind == COMPRESSION_LZ4:
        return _inflate_lz4(body, bytes_max)
    if kind == COMPRESSION_ZSTD:
        return _inflate_zstd(body, bytes_max)
    raise RemoteProtocolError(f"compression kind {kind:#x} of a message body is unknown")


def _inflate_zlib(body: bytes, bytes_max: int) -> bytes:
    engine = zlib.decompressobj()
    try:
        content = engine.decompress(body, bytes_max)
    except zlib.error as error:
        raise RemoteProtocolError(f"message body is not a zlib stream: {error}") from None
    _require_whole(engine.eof, len(content), bytes_max, "zlib")
    return content


def _inflate_lz4(body: bytes, bytes_max: int) -> bytes:
    frame = _optional("lz4.frame", "lz4")
    engine = frame.LZ4FrameDecompressor()
    try:
        content: bytes = engine.decompress(body, max_length=bytes_max)
    except (RuntimeError, ValueError) as error:
        raise RemoteProtocolError(f"message body is not an lz4 frame: {error}") from None
    _require_whole(engine.eof, len(content), bytes_max, "lz4")
    return content


def _inflate_zstd(body: bytes, bytes_max: int) -> bytes:
    zstandard = _optional("zstandard", "zstd")
    content = bytearray()
    try:
        engine = zstandard.ZstdDecompressor().decompressobj()
        for start in range(0, len(body), _ZSTD_STEP_BYTES):
            content += engine.decompress(body[start : start + _ZSTD_STEP_BYTES])
            if engine.eof or len(content) > bytes_max:
                break
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(f"message body is not a zstd frame: {error}") from None
    _require_whole(engine.eof and len(content) <= bytes_max, len(content), bytes_max, "zstd")
    return bytes(content)


def _require_whole(is_whole: bool, size: int, bytes_max: int, kind: str) -> None:
    if is_whole:
        return
    if size >= bytes_max:
        raise RemoteProtocolError(f"message body inflates to more than {bytes_max} bytes")
    raise RemoteProtocolError(f"message body is a {kind} stream that stops before its end")


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise LocalProtocolError(
            f"a message body in {extra} needs the extra {extra}: {install_hint(extra)}"
        ) from None
