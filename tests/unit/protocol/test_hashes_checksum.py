"""Both implementations of the checksum agree."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.protocol.hashes import crc32


@given(st.binary(max_size=5_000), st.binary(max_size=100))
def test_it_is_the_checksum_of_zlib_also_when_continued(data: bytes, more: bytes) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(more), crc32(data)) == zlib.crc32(data + more)
