"""The hashes of the file formats: the 32-bit hash of a Java string, used for ConsumeQueue tags and index
slots, and the CRC-32 of records, bodies, registrations and our JSON files.

A Java string's hash is h = s[0]*31^(n-1) + ... + s[n-1] over UTF-16 code units, modulo 2^32, signed. A
character outside the BMP is two units. Tags repeat and are cached; keys hardly ever do and must not evict the
tags, so `java_hash` is not cached. Source: spec store 5 (tagsCode), 8 (keyHash).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, repeat
from operator import mul
from struct import unpack
from typing import TYPE_CHECKING, Final

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # no wheel for this platform: slower, same results
    from zlib import crc32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "TAG_KEY_HEAD",
    "crc32",
    "java_hash",
    "java_hashes",
    "key_hash",
    "key_head",
    "seal_json",
    "tag_hash",
    "unseal_json",
]

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_LENGTH_MAX: Final = 4096

# 31^k mod 2^32 with the highest power first: the weights of an n-unit text are the last n of them.
_POWERS: Final = tuple(accumulate(range(1, _LENGTH_MAX), lambda power, _: power * 31 & _MASK, initial=1))[
    ::-1
]


@lru_cache(maxsize=256)
def _weights(length: int) -> tuple[int, ...]:
    return _POWERS[_LENGTH_MAX - length :]


def _units(text: str) -> Sequence[int]:
    """Returns UTF-16 code units; a lone surrogate stays one unit, as in Java."""
    if text.isascii():
        return text.encode("ascii")
    wide = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(wide) // 2}H", wide)


def _unsigned(text: str) -> int:
    units = _units(text)
    if len(units) <= _LENGTH_MAX:
        return int(sum(map(mul, units, _weights(len(units))))) & _MASK
    value = 0
    for unit in units:
        value = value * 31 + unit & _MASK
    return value


def java_hash(text: str) -> int:
    """Returns `text.hashCode()` of Java: -2^31 .. 2^31 - 1."""
    value = _unsigned(text)
    return value - ((value & _SIGN) << 1)


@lru_cache(maxsize=16384)
def tag_hash(tags: str) -> int:
    """Returns the ConsumeQueue's tagsCode: the hash of the whole TAGS property, 0 without one (spec
    store 5).
    """
    return java_hash(tags)


@lru_cache(maxsize=4096)
def key_head(topic: str) -> int:
    """Returns the hash of the prefix of each key of a topic, for `java_hashes`."""
    return _unsigned(topic + "#")


def _hash_after_prefix(head: int, text: str) -> int:
    """Returns the hash of the concatenation: hash(a + b) = hash(a) * 31^len(b) + hash(b)."""
    return (head * pow(31, len(_units(text)), 1 << 32) + _unsigned(text)) & _MASK


def key_hash(topic: str, key: str) -> int:
    """Returns the index file's hash of `topic#key`: 0 .. 2^31 - 1 (spec store 8).

    The topic's half is cached.
    """
    value = _hash_after_prefix(key_head(topic), key)
    if value < _SIGN:
        return value
    # abs() of a Java int; -2^31 has no positive twin and becomes 0.
    return (_SIGN << 1) - value if value > _SIGN else 0


TAG_KEY_HEAD: Final = "T#"
"""The prefix of a message's tags in the index of RocketMQ 5.4 and later, `topic#T#tags` (spec store 8)."""


@cache
def _powers_rising() -> NDArray[np.uint32]:
    import numpy as np

    return np.array(_POWERS[::-1], dtype=np.uint32)


def java_hashes(texts: Sequence[str], heads: Sequence[int] = ()) -> NDArray[np.int32]:
    """Returns `java_hash` of every text at once; about ten times faster for a few hundred texts or more.

    `heads`: for each text the hash, 0 .. 2^32 - 1, of its prefix; empty without prefixes.
    Shape:   (len(texts),), dtype int32.
    """
    # Imported here: only stores need numpy, and a client that hashes its own tags must not pay 0.1 s and 30
    # MiB.
    import numpy as np

    count = len(texts)
    assert not heads or len(heads) == count, (len(heads), count)
    joined = "".join(texts)
    widths = set(map(len, texts))
    if not joined.isascii() or max(widths, default=0) >= _LENGTH_MAX:
        pairs = zip(texts, heads or repeat(0))  # noqa: B905  # the zeros are endless
        return np.array([_hash_after_prefix(head, text) for text, head in pairs], np.uint32).view(np.int32)
    units = np.frombuffer(joined.encode("ascii"), dtype=np.uint8)
    powers = _powers_rising()
    result: NDArray[np.uint32]
    if len(widths) == 1:
        # The unique keys of one topic have equal lengths: a table with a row for each text.
        shift = powers[len(units) // count]
        result = units.reshape(count, -1).astype(np.uint32) @ powers[: len(units) // count][::-1]
    else:
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=count)
        shift = powers[lengths]
        result = np.zeros(count, dtype=np.uint32)
        ends = np.cumsum(lengths)
        weights = powers[np.repeat(ends, lengths) - 1 - np.arange(len(units))]
        filled = lengths > 0
        if filled.any():
            result[filled] = np.add.reduceat(units * weights, (ends - lengths)[filled], dtype=np.uint32)
    if heads:
        result += np.array(heads, dtype=np.uint32) * shift
    return result.view(np.int32)


# The CRC-32 is zlib's; zlib-ng computes it where installed.
#
# The checksum of a message is computed when it is stored, again on each slave, and when Spark reads it. For
# 1 KiB the standard library takes 0.4 to 0.9 us, zlib-ng 0.1 us (it uses the processor's carry-less
# multiplication); the results are the same. Our JSON files carry a checksum, too, as their last key:
# otherwise a bit flip could turn one valid offset into another.

_SEAL = re.compile(rb',?"tandemCrc32":"([0-9a-f]{8})"\}\Z')


def seal_json(data: bytes) -> bytes:
    """Returns the object with its checksum as the last key, which RocketMQ ignores. Other texts are
    unchanged.
    """
    if not data.endswith(b"}"):
        return data
    comma = b"" if data == b"{}" else b","
    return b'%b%b"tandemCrc32":"%08x"}' % (data[:-1], comma, crc32(data))


def unseal_json(data: bytes) -> bytes:
    """Returns the object as it was sealed; unchanged if it ends without a checksum (RocketMQ or an operator
    wrote it).

    Raises:  ValueError when the checksum does not match the content.
    """
    found = _SEAL.search(data)
    if found is None:
        return data
    content = data[: found.start()] + b"}"
    if crc32(content) != int(found[1], 16):
        raise ValueError(
            "its content does not match its checksum: the file is damaged, or was edited by hand"
            " (after an edit, remove its key tandemCrc32)"
        )
    return content
