"""CRC-32 as records, bodies and registrations carry it: zlib's, from zlib-ng where it is installed.

Every message is summed when it is stored, again on each slave, and when Spark reads it. For 1 KiB the
standard library takes 0.4 to 0.9 us, zlib-ng 0.1 us (it uses the processor's carry-less multiplication); the
results are the same. A JSON file of ours carries it, too, as its last key: a turned bit in an offset would
otherwise be another offset.
"""

from __future__ import annotations

import re

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # no wheel for this platform: slower, not different
    from zlib import crc32

__all__ = ["crc32", "seal_json", "unseal_json"]

_SEAL = re.compile(rb',?"tandemCrc32":"([0-9a-f]{8})"\}\Z')


def seal_json(data: bytes) -> bytes:
    """The object with its checksum as the last key, which RocketMQ ignores. What is no object stays."""
    if not data.endswith(b"}"):
        return data
    comma = b"" if data == b"{}" else b","
    return b'%b%b"tandemCrc32":"%08x"}' % (data[:-1], comma, crc32(data))


def unseal_json(data: bytes) -> bytes:
    """The object as it was sealed; as it is when no key at its end is a checksum: RocketMQ wrote it, or a
    person.

    Raises:  ValueError when the checksum is of another content.
    """
    found = _SEAL.search(data)
    if found is None:
        return data
    content = data[: found.start()] + b"}"
    if crc32(content) != int(found[1], 16):
        raise ValueError(
            "its content is not what its checksum says: it is damaged, or was changed by hand"
            " (whoever changes it takes the key tandemCrc32 out)"
        )
    return content
