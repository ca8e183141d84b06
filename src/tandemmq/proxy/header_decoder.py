"""`RequestDecoder`: decompresses request headers (RFC 7541), as hpack does but several times as fast.

Nearly all fields of clients are references to the table, or enter it. The table itself, Huffman codes and
integers of several bytes are left to hpack, and so is a block that changes the size of the table.

At a bound: a header list over `max_header_list_size` raises OversizedHeaderListError, and h2 ends the
            connection.
"""

from __future__ import annotations

from typing import Any, Final

from hpack import Decoder
from hpack.exceptions import HPACKDecodingError, OversizedHeaderListError
from hpack.hpack import decode_integer
from hpack.huffman_table import decode_huffman

_INDEXED: Final = 0x80
_INSERTED: Final = 0x40
_SIZE_UPDATE: Final = 0x20
_HUFFMAN: Final = 0x80
_ENTRY_BYTES: Final = 32
"""The overhead of a field in a header list (RFC 7541, 4.1)."""


class RequestDecoder(Decoder):
    """The decoder of one connection."""

    def decode(self, data: bytes, raw: bool = False) -> list[Any]:
        """Returns the (name, value) pairs of a header block, as bytes.

        Raises:  HPACKError, or IndexError for a block that ends within a field.
        """
        if not data or data[0] & 0xE0 == _SIZE_UPDATE or self.header_table_size > self.max_allowed_table_size:
            return list(super().decode(data, raw=True))
        table, found, size, at = self.header_table, [], 0, 0
        while at < len(data):
            first = data[at]
            if first & _INDEXED:
                index, at = _read_integer(data, at, 0x7F)
                field = table.get_by_index(index)
            elif first & 0xE0 == _SIZE_UPDATE:
                raise HPACKDecodingError("a change of the table's size within a header block")
            else:
                index, at = _read_integer(data, at, 0x3F if first & _INSERTED else 0x0F)
                if index:
                    name = table.get_by_index(index)[0]
                else:
                    name, at = _read_text(data, at)
                value, at = _read_text(data, at)
                field = name, value
                if first & _INSERTED:
                    table.add(name, value)
            found.append(field)
            size += _ENTRY_BYTES + len(field[0]) + len(field[1])
            if size > self.max_header_list_size:
                raise OversizedHeaderListError(f"a header list of over {self.max_header_list_size} bytes")
        return found


def _read_integer(data: bytes, at: int, mask: int) -> tuple[int, int]:
    """Returns the integer in the low bits of the byte at `at`, and the position behind it."""
    value = data[at] & mask
    if value < mask:
        return value, at + 1
    value, size = decode_integer(data[at:], mask.bit_length())
    return value, at + size


def _read_text(data: bytes, at: int) -> tuple[bytes, int]:
    """Returns the text at `at`, and the position behind it."""
    is_huffman = data[at] & _HUFFMAN
    length, at = _read_integer(data, at, 0x7F)
    end = at + length
    if end > len(data):
        raise HPACKDecodingError("a header block ends within a text")
    text = data[at:end]
    return decode_huffman(text) if is_huffman else text, end
