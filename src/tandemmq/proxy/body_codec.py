"""Bodies of messages between clients and brokers: compression and digests.

Clients get plain bodies: no client decodes every compression that brokers may store. Bodies from clients are
stored plain: consumers of the remoting protocol would fail on the gzip format.

At a bound: a stored body that inflates to more than `CONTENT_BYTES_MAX` is delivered as stored; a sent body
            that inflates to more than a message may have is refused.
Source:     spec proxy 5.11.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, Final

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.compression import CONTENT_BYTES_MAX
from tandemmq.protocol.record import Record
from tandemmq.protocol.sys_flag import COMPRESSED
from tandemmq.proxy.schema import enum_number

GZIP_MAGIC: Final = b"\x1f\x8b"
_ANY_HEADER: Final = zlib.MAX_WBITS + 32
"""The setting of zlib for streams with either a gzip or a zlib header."""
_MD5: Final = enum_number("DigestType", "MD5")


def plain_body(record: Record) -> bytes:
    """Returns the body as its producer wrote it; the stored bytes if they do not decode.

    Java's proxy stores gzip bodies with the flag of zlib, so those are recognized by their first bytes.
    """
    if not record.sys_flag & COMPRESSED:
        return record.body
    if record.body.startswith(GZIP_MAGIC):
        try:
            return inflate(record.body, CONTENT_BYTES_MAX)
        except RemoteProtocolError:
            return record.body
    return record.decode_content().data


class BodyTooLarge(RemoteProtocolError):
    """A compressed body that inflates to more bytes than are allowed."""


def inflate(body: bytes, bytes_max: int) -> bytes:
    """Returns the content of a gzip or a zlib stream; the C++ client sends the latter.

    Raises:  BodyTooLarge above `bytes_max`, RemoteProtocolError for bytes in another format.
    """
    assert bytes_max >= 0
    engine = zlib.decompressobj(_ANY_HEADER)
    try:
        content = engine.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"the message body is not a gzip stream: {error}") from None
    if len(content) > bytes_max:
        raise BodyTooLarge(f"the message body inflates to more than {bytes_max} bytes")
    if not engine.eof or engine.unused_data:
        raise RemoteProtocolError("the message body is not exactly one gzip stream")
    return content


def digest_of(body: bytes) -> dict[str, Any]:
    """Returns the fields of the digest of a body: its MD5, the one that all clients compare alike."""
    return {"type": _MD5, "checksum": hashlib.md5(body, usedforsecurity=False).hexdigest().upper()}
