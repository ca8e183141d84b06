"""Compressed bodies."""

from __future__ import annotations

import importlib
import sys
import zlib
from typing import Any

import pytest

from tandemmq.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.compression import SYS_FLAGS, Compression, compressor, decode_content, decompress

CONTENT = b"0123456789" * 1000


@pytest.mark.parametrize("kind", [0x000, 0x300])
def test_zlib_bodies_are_inflated(kind: int) -> None:
    assert decompress(zlib.compress(CONTENT), 0x1 | kind) == CONTENT


@pytest.mark.parametrize(
    ("kind", "module", "sys_flag"),
    [("ZLIB", "zlib", 0x301), ("LZ4", "lz4.frame", 0x101), ("ZSTD", "zstandard", 0x201)],
)
def test_flag_says_what_the_body_is(kind: str, module: str, sys_flag: int) -> None:
    pytest.importorskip(module)
    compress = compressor(Compression(kind))
    for content in (CONTENT, CONTENT[:4096]):
        body = compress(content)
        assert len(body) < len(content) / 4
        assert decompress(body, SYS_FLAGS[Compression(kind)]) == content
    assert SYS_FLAGS[Compression(kind)] == sys_flag


def test_lz4_blocks_stand_alone_for_java_to_read() -> None:
    pytest.importorskip("lz4.frame")
    flags = compressor(Compression.LZ4)(CONTENT)[4]
    assert flags & 0b0010_0000, "bit 5: block independence"


@pytest.mark.parametrize("body", [b"", b"garbage", zlib.compress(CONTENT)[:-5]])
def test_broken_zlib_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decompress(body, 0x1)


def test_body_that_inflates_without_bound_is_refused() -> None:
    body = zlib.compress(CONTENT)
    assert decompress(body, 0x1, bytes_max=len(CONTENT)) == CONTENT
    with pytest.raises(RemoteProtocolError, match="more than 9999 bytes"):
        decompress(body, 0x1, bytes_max=9999)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="0x700"):
        decompress(b"x", 0x701)


@pytest.mark.parametrize(("sys_flag", "kind"), [(0x101, "lz4"), (0x201, "zstd")])
def test_missing_extra_is_named(sys_flag: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *_: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(LocalProtocolError, match=rf"pip install .* '\.\[{kind}\]'"):
        decompress(b"x", sys_flag)
    with pytest.raises(ConfigError, match=rf"pip install .* '\.\[{kind}\]'"):
        compressor(Compression(kind.upper()))


def test_lz4_frames_are_inflated() -> None:
    frame = pytest.importorskip("lz4.frame")
    body = frame.compress(CONTENT)
    assert decompress(body, 0x101) == CONTENT
    for bad in (b"", b"garbage....", body[:-6]):
        with pytest.raises(RemoteProtocolError):
            decompress(bad, 0x101)
    with pytest.raises(RemoteProtocolError, match="more than"):
        decompress(body, 0x101, bytes_max=9999)


def test_zstd_frames_are_inflated() -> None:
    zstandard = pytest.importorskip("zstandard")
    body = zstandard.ZstdCompressor().compress(CONTENT)
    assert decompress(body, 0x201) == CONTENT
    for bad in (b"", b"garbage....", body[:-6]):
        with pytest.raises(RemoteProtocolError):
            decompress(bad, 0x201)
    with pytest.raises(RemoteProtocolError, match="more than"):
        decompress(body, 0x201, bytes_max=9999)


def test_content_is_decoded_or_kept_with_the_reason() -> None:
    assert decode_content(b"plain", 0) == (b"plain", "")
    assert decode_content(zlib.compress(CONTENT), 0x1) == (CONTENT, "")
    for body, sys_flag, reason in (
        (b"garbage", 0x1, "not a zlib stream"),
        (zlib.compress(CONTENT)[:-5], 0x301, "stops before its end"),
        (b"x", 0x701, "0x700"),
    ):
        data, fault = decode_content(body, sys_flag)
        assert data == body
        assert reason in fault
    assert decode_content(zlib.compress(CONTENT), 0x1, bytes_max=9999)[1].endswith("more than 9999 bytes")


def test_content_without_its_extra_is_kept_with_the_name_of_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert decode_content(b"x", 0x201) == (
        b"x",
        "a message body in zstd needs the extra zstd: run `pip install -c constraints.txt '.[zstd]'`"
        " in a checkout of TandemMQ",
    )
