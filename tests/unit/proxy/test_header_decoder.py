"""Request headers decode as hpack decodes them, for every form of a field."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKDecodingError, HPACKError, OversizedHeaderListError

from tandemmq.proxy.header_decoder import RequestDecoder

FIXED = [(b":method", b"POST"), (b":path", b"/a/B"), (b"te", b"trailers"), (b"x-mq-client-id", b"c" * 40)]


def decode(decoder: Decoder, data: bytes) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in decoder.decode(data, raw=True)]


@pytest.mark.parametrize("huffman", [True, False])
def test_blocks_of_a_connection_decode_while_the_table_forgets_entries(huffman: bool) -> None:
    encoder, decoder = Encoder(), RequestDecoder()
    for number in range(200):
        fields = [*FIXED, (b"x-mq-request-id", b"%036d" % number), (b"long", b"v" * (number * 7))]
        headers: list[HeaderTuple] = [HeaderTuple(*field) for field in fields]
        headers.append(NeverIndexedHeaderTuple(b"authorization", b"secret %d" % number))
        block = encoder.encode(headers, huffman=huffman)
        assert decode(decoder, block) == [*fields, (b"authorization", b"secret %d" % number)]


def test_the_size_of_the_table_may_change_between_blocks() -> None:
    encoder, decoder = Encoder(), RequestDecoder()
    for size in (4_096, 100, 0, 4_096):
        encoder.header_table_size = size
        assert decode(decoder, encoder.encode(FIXED)) == FIXED
        assert decode(decoder, encoder.encode(FIXED)) == FIXED


@pytest.mark.parametrize(
    "block",
    [
        b"\x82\x20",  # a size update behind a field
        b"\x80",  # index 0
        b"\xff\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # a huge index
        b"\xc6",  # an entry that the empty table lacks
        b"\x40\x05ab",  # ends within a name
        b"\x40\x01a",  # ends before the value
        b"\x40\x01a\xff",  # ends within a length
        b"\x40\x82\xff\xff\x01a",  # no Huffman code
        b"\x3f\xff\xff\x7f",  # a table larger than allowed
    ],
)
def test_a_block_that_cannot_be_decoded_is_refused(block: bytes) -> None:
    with pytest.raises((HPACKError, IndexError)):
        RequestDecoder().decode(block, raw=True)


def test_a_smaller_table_that_the_peer_was_told_must_be_confirmed() -> None:
    decoder = RequestDecoder()
    decoder.max_allowed_table_size = 100
    with pytest.raises(HPACKDecodingError):
        decoder.decode(b"\x82", raw=True)
    assert decode(decoder, b"\x3f\x45\x82") == [(b":method", b"GET")]


def test_a_large_header_list_is_refused() -> None:
    decoder = RequestDecoder()
    decoder.max_header_list_size = 1_000
    block = Encoder().encode([(b"a", b"v" * 400)])
    assert decode(decoder, block)
    with pytest.raises(OversizedHeaderListError):
        decoder.decode(b"\xbe" * 3, raw=True)
    empty = Encoder().encode([(b"e", b"")] * 31)
    with pytest.raises(OversizedHeaderListError):  # each field counts 32 bytes more than its texts
        decoder.decode(empty, raw=True)


def test_random_bytes_have_the_outcome_that_hpack_gives_them() -> None:
    """Also what the table holds afterwards: the next block depends on it."""
    dice = random.Random(7)
    encoder = Encoder()
    for _ in range(300):
        pair = (Decoder(), RequestDecoder())
        for _ in range(4):
            data = bytearray(encoder.encode([*FIXED, (b"n", b"%d" % dice.randrange(50))]))
            for _ in range(dice.randrange(3)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            outcomes = []
            for decoder in pair:
                try:
                    outcomes.append(decode(decoder, bytes(data)))
                except (HPACKError, IndexError):
                    outcomes.append([])
            assert outcomes[0] == outcomes[1]
            if not outcomes[0]:
                break
            tables = [
                [tuple(map(bytes, entry)) for entry in decoder.header_table.dynamic_entries]
                for decoder in pair
            ]
            assert tables[0] == tables[1]
