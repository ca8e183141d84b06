"""Compressed bodies."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

import pytest

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.compression import compress_zlib, decompress

CONTENT = b"0123456789" * 1000


@pytest.mark.parametrize("kind", [0x000, 0x300])
def test_zlib_bodies_are_inflated(kind: int) -> None:
    assert decompress(zlib.compress(CONTENT), 0x1 | kind) == CONTENT


def test_flag_says_what_the_body_is() -> None:
    body, sys_flag = compress_zlib(CONTENT, 0x4 | 0x100)
    assert sys_flag == 0x4 | 0x300 | 0x1
    assert decompress(body, sys_flag) == CONTENT


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


@pytest.mark.parametrize(("kind", "package"), [(0x100, "lz4"), (0x200, "zstandard")])
def test_missing_package_is_named(kind: int, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *_: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(LocalProtocolError, match=f"install the package '{package}'"):
        decompress(b"x", 0x1 | kind)


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
