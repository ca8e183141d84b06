"""`StaticEncoder`: compresses response headers without a dynamic table (RFC 7541).

Responses have few different headers, so their encoded forms are computed once for all connections. A peer
that allows a large table gets none, and so cannot make the proxy keep the texts of its errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hpack import Encoder
from hpack.hpack import encode_integer

_OK: Final = (b":status", b"200")
_OK_INDEXED: Final = b"\x88"
_STATUS_NAME: Final = b"\x08"
"""A literal with the name `:status`, which is the eighth entry of the static table."""
_NO_TABLE: Final = b"\x20"
"""The update of the table's size to zero. It must follow when the peer has changed the allowed size."""
_CACHED_MAX: Final = 64

_cached: dict[tuple[Any, ...], bytes] = {}


class StaticEncoder(Encoder):
    """The encoder of one connection."""

    _update = b""

    @property
    def header_table_size(self) -> int:
        return 0

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        self._update = _NO_TABLE

    def encode(self, headers: Iterable[Any], huffman: bool = True) -> bytes:
        """Returns the header block of (name, value) pairs."""
        key = tuple(headers)
        block = _cached.get(key)
        if block is None:
            block = b"".join(_literal(*pair) for pair in key)
            if len(_cached) < _CACHED_MAX and key[-1][0] != b"grpc-message":
                _cached[key] = block
        if self._update:
            block, self._update = self._update + block, b""
        return block


def _literal(name: bytes, value: bytes) -> bytes:
    """Returns a header that no table keeps."""
    if name == _OK[0]:
        return _OK_INDEXED if value == _OK[1] else _STATUS_NAME + _text(value)
    return b"\0" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    return bytes(encode_integer(len(text), 7)) + text
