"""Bodies that a client compressed: the broker carries them as they are, readers inflate them here.

zlib is always there; lz4 (frame format) and zstandard only if their packages are installed. A body may not
inflate to more than `CONTENT_BYTES_MAX`: the limit on messages holds before compression (spec semantics 1.5),
so anything larger is an attack or a mistake.
Source: spec remoting 12.3.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
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
ZLIB_LEVEL: Final = 5
_ZSTD_STEP_BYTES: Final = 1024
"""zstd's object takes no bound on its output; so much input gives 32 MiB at most (128 KiB per 4 bytes)."""


def compress_zlib(body: bytes, sys_flag: int) -> tuple[bytes, int]:
    """The body as zlib and the flag that says so."""
    return zlib.compress(body, ZLIB_LEVEL), sys_flag & ~COMPRESSION_MASK | COMPRESSED | COMPRESSION_ZLIB


def decompress(body: bytes, sys_flag: int, *, bytes_max: int = CONTENT_BYTES_MAX) -> bytes:
    """The content of a body whose sysFlag says compressed.

    Raises:  RemoteProtocolError if the bytes are not what the flag says, or inflate to more than `bytes_max`;
             LocalProtocolError if the package for lz4 or zstd is not installed.
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
        raise RemoteProtocolError(f"message body is no zlib stream: {error}") from None
    _require_whole(engine.eof, len(content), bytes_max, "zlib")
    return content


def _inflate_lz4(body: bytes, bytes_max: int) -> bytes:
    frame = _optional("lz4.frame", "lz4")
    engine = frame.LZ4FrameDecompressor()
    try:
        content: bytes = engine.decompress(body, max_length=bytes_max)
    except (RuntimeError, ValueError) as error:
        raise RemoteProtocolError(f"message body is no lz4 frame: {error}") from None
    _require_whole(engine.eof, len(content), bytes_max, "lz4")
    return content


def _inflate_zstd(body: bytes, bytes_max: int) -> bytes:
    zstandard = _optional("zstandard", "zstandard")
    content = bytearray()
    try:
        engine = zstandard.ZstdDecompressor().decompressobj()
        for start in range(0, len(body), _ZSTD_STEP_BYTES):
            content += engine.decompress(body[start : start + _ZSTD_STEP_BYTES])
            if engine.eof or len(content) > bytes_max:
                break
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(f"message body is no zstd frame: {error}") from None
    _require_whole(engine.eof and len(content) <= bytes_max, len(content), bytes_max, "zstd")
    return bytes(content)


def _require_whole(is_whole: bool, size: int, bytes_max: int, kind: str) -> None:
    if is_whole:
        return
    if size >= bytes_max:
        raise RemoteProtocolError(f"message body inflates to more than {bytes_max} bytes")
    raise RemoteProtocolError(f"message body is a {kind} stream that stops before its end")


def _optional(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise LocalProtocolError(f"to read this message body install the package {package!r}") from None
