"""Headers without a dynamic table, as any decoder reads them."""

from __future__ import annotations

import pytest
from hpack import Decoder, HeaderTuple

from tandemmq.proxy.header_encoder import StaticEncoder, _cached

LISTS = [
    [(b":status", b"200"), (b"content-type", b"application/grpc")],
    [(b"grpc-status", b"0")],
    [(b":status", b"415")],
    [(b"grpc-status", b"13"), (b"grpc-message", b"m" * 5000)],
    [(b"grpc-status", b"13"), (b"grpc-message", b"")],
]


@pytest.mark.parametrize("headers", LISTS)
def test_a_decoder_reads_the_same_headers(headers: list[tuple[bytes, bytes]]) -> None:
    encoder, decoder = StaticEncoder(), Decoder()
    for _ in range(2):
        block = encoder.encode([HeaderTuple(*pair) for pair in headers])
        assert list(decoder.decode(block, raw=True)) == headers
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("size", [0, 100, 1 << 30])
def test_a_changed_table_size_is_confirmed_once(size: int) -> None:
    encoder, decoder = StaticEncoder(), Decoder()
    decoder.max_allowed_table_size = size
    encoder.header_table_size = size
    blocks = [encoder.encode(LISTS[0]) for _ in range(2)]
    for block in blocks:
        assert list(decoder.decode(block, raw=True)) == LISTS[0]
    assert decoder.header_table_size == 0
    assert len(blocks[0]) == len(blocks[1]) + 1


def test_texts_of_errors_are_not_kept() -> None:
    encoder = StaticEncoder()
    for number in range(1000):
        encoder.encode([(b"grpc-status", b"12"), (b"grpc-message", b"%d" % number)])
        encoder.encode([(b"grpc-status", b"%d" % number)])
    assert len(_cached) <= 64
    assert not any(key[-1][0] == b"grpc-message" for key in _cached)
