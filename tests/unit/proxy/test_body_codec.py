"""Bodies: what brokers store in any compression arrives plain, and nothing inflates without a bound."""

from __future__ import annotations

import gzip
import zlib

import pytest

from tandemmq.errors import RemoteProtocolError
from tandemmq.proxy.body_codec import BodyTooLarge, digest_of, inflate


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_inflate_stops_at_the_limit(pack):
    packed = pack(bytes(1000))
    assert inflate(packed, 1000) == bytes(1000)
    for limit in (999, 1, 0):
        with pytest.raises(BodyTooLarge, match=f"more than {limit} bytes"):
            inflate(packed, limit)


@pytest.mark.parametrize(
    "body", [b"", b"x", b"\x1f\x8b", gzip.compress(b"abc", mtime=0)[:-1], gzip.compress(b"abc", mtime=0) * 2]
)
def test_other_bytes_are_refused(body: bytes):
    with pytest.raises(RemoteProtocolError):
        inflate(body, 1000)


def test_digest_is_md5_in_upper_case():
    assert digest_of(b"hello") == {"type": 2, "checksum": "5D41402ABC4B2A76B9719D911017C592"}
