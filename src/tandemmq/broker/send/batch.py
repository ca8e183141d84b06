"""A batch send, split into its records; all of them are stored, or none. Pure.

Each message keeps its own properties; those in the request's header only say whether to wait and what to
answer (the form of 5.3.4; earlier brokers merged them in, which hid each message's own unique key).
Source: spec store 4.1, spec remoting 12.6, spec semantics 5 (row 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count, repeat
from typing import TypeAlias

from tandemmq.broker.send.targets import SendHeader, SendTarget
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.batch import split_columns
from tandemmq.protocol.properties import append_property, find_property, remove_property
from tandemmq.protocol.record import NewBatch, tag_hash_of
from tandemmq.protocol.sys_flag import INNER_BATCH, TRANSACTION_MASK
from tandemmq.protocol.topic_names import TOPIC_CHARS_MAX
from tandemmq.units import Buffer

_REFUSED_NAMES = (
    b"DELAY",
    b"TRAN_MSG",
    b"TIMER_DELAY_SEC",
    b"TIMER_DELAY_MS",
    b"TIMER_DELIVER_MS",
    b"INNER_NUM",
)
_REMOVED_NAMES = (b"POP_CK", b"__CRC32#")
_UNCLEAN_PARTS = (b"DEL", b"TRAN_MSG", b"INNER_NUM", b"POP_CK", b"__CRC32#")
"""Fragments of all rejected and removed names: properties without any fragment contain none of those
names.
"""
assert all(any(part in name for part in _UNCLEAN_PARTS) for name in (*_REFUSED_NAMES, *_REMOVED_NAMES))
_UNIQUE_MARK = b"UNIQ_KEY\x01"
_KNOWN_BYTES_MAX = 256
"""The longest properties, in bytes, whose parsed form is cached."""
_ALIKE_COUNT_MIN = 8
"""The batch size from which on checking for uniform properties pays off."""


def make_batch(
    body: Buffer,
    header: SendHeader,
    target: SendTarget,
    queue_id: int,
    *,
    born_host: bytes,
    body_bytes_max: int,
    next_key: Callable[[], str],
    wait_stored: bool = True,
) -> NewBatch:
    """Returns the records of a batch, in order; a message without UNIQ_KEY gets the next key.

    Raises:  MessageIllegal naming what a batch may not be.
    """
    topic = target.topic
    if len(topic) > TOPIC_CHARS_MAX:
        raise MessageIllegal(
            f"a batch's topic has {len(topic)} characters, at most {TOPIC_CHARS_MAX} are allowed"
        )
    if target.is_retry:
        raise MessageIllegal(f"a batch cannot be sent to the retry topic {topic}")
    if header.sys_flag & (TRANSACTION_MASK | INNER_BATCH):
        raise MessageIllegal(
            f"a batch cannot be transactional or an inner batch (sysFlag {header.sys_flag:#x})"
        )
    if len(body) > body_bytes_max:
        raise MessageIllegal(
            f"the batch has {len(body)} bytes, at most {body_bytes_max} are allowed (maxMessageSize)"
        )
    flags, bodies, properties = split_columns(body)
    if not all(bodies):
        index = next(index for index, one in enumerate(bodies) if not one)
        raise MessageIllegal(f"message {index} of the batch has no body: at least one byte is needed")
    unique_keys, tag_hashes, keys = read_parts(properties)
    if not all(unique_keys):
        for index, key in enumerate(unique_keys):
            if not key:
                key = unique_keys[index] = next_key()
                properties[index] = append_property(properties[index], "UNIQ_KEY", key)
    return NewBatch(
        topic=topic,
        queue_ids=[queue_id] * len(bodies),
        bodies=bodies,
        properties=properties,
        born_times_ms=[header.born_at_ms] * len(bodies),
        born_host=born_host,
        tag_hashes=tag_hashes,
        flags=flags,
        sys_flag=header.sys_flag | target.sys_flag,
        retry_count=header.retry_count or 0,
        keys=keys,
        unique_keys=unique_keys,
        wait_stored=wait_stored,
    )


_PartFacts: TypeAlias = "tuple[Sequence[bytes], Sequence[int], Sequence[str]]"
"""For each message of a batch: its unique key (empty without one), the hash of its tags, and its keys."""


def read_parts(properties: list[bytes]) -> tuple[list[str], Sequence[int], Sequence[str]]:
    """Returns the unique key of each message (empty without one), the hash of its tags, and its keys; strips
    the names in `_REMOVED_NAMES` from the properties.

    Raises:  MessageIllegal naming what a batch may not have.
    """
    found, tag_hashes, keys = _read_alike(properties) or _read_each(properties)
    return str(b"\x02".join(found), "utf-8", "replace").split("\x02"), tag_hashes, keys


def _read_alike(properties: list[bytes]) -> _PartFacts | None:
    """Reads the properties as `_read_each` does, but faster, for messages with a common beginning, unique
    keys of one length, and few distinct endings. Returns None for other messages.
    """
    if len(properties) < _ALIKE_COUNT_MIN:
        return None
    first = properties[0]
    begin = first.find(_UNIQUE_MARK) + len(_UNIQUE_MARK)
    end = first.find(b"\x02", begin)
    if end <= begin:
        return None
    head = first[:begin]
    unique_keys = [text[begin:end] for text in properties]
    if b"\x02" in b"".join(unique_keys) or not all(map(bytes.startswith, properties, repeat(head))):
        return None
    rests = [text[end:] for text in properties]
    ways = set(rests)
    if len(ways) > max(4, len(rests) // 4) or begin + max(map(len, ways)) > _KNOWN_BYTES_MAX:
        return None
    found = {rest: _read_around(head, rest) for rest in ways}
    if None in found.values():
        return None
    tag_hashes, keys = zip(*map(found.__getitem__, rests), strict=True)
    return unique_keys, tag_hashes, keys


@lru_cache(maxsize=1024)
def _read_around(head: bytes, rest: bytes) -> tuple[int, str] | None:
    """Reads properties as `_read_part` does, from the text before and after a unique key's value. Returns
    None if another unique key may count, or if a name may have to be rejected or removed.
    """
    is_pair = head == _UNIQUE_MARK or head.endswith(b"\x02" + _UNIQUE_MARK)
    if not is_pair or rest[:1] != b"\x02" or _UNIQUE_MARK in rest or _may_be_unclean(head + rest):
        return None
    return _read_part(head + rest)


def _read_each(properties: list[bytes]) -> _PartFacts:
    """Reads the properties of each message, as `read_parts` does."""
    if _may_be_unclean(b"".join(properties)):
        properties[:] = map(_clean_part, properties, count())
    unique_keys: list[bytes] = []
    tag_hashes: list[int] = []
    keys: list[str] = []
    for text in properties:
        unique_key, rest = _part_unique_key(text)
        read = _read_part if len(rest) <= _KNOWN_BYTES_MAX else _read_part.__wrapped__
        tag_hash, text_keys = read(rest)
        unique_keys.append(unique_key)
        tag_hashes.append(tag_hash)
        keys.append(text_keys)
    return unique_keys, tag_hashes, keys


def _part_unique_key(properties: bytes) -> tuple[bytes, bytes]:
    """Returns the unique key (empty without one) and the properties without that pair."""
    start = properties.rfind(_UNIQUE_MARK)
    if start == 0 or (start > 0 and properties[start - 1] == 2):
        begin = start + len(_UNIQUE_MARK)
        end = properties.find(b"\x02", begin)
        if end > begin:
            return properties[begin:end], properties[:start] + properties[end:]
    return find_property(properties, b"UNIQ_KEY") or b"", properties


def _may_be_unclean(properties: bytes) -> bool:
    return max(map(properties.find, _UNCLEAN_PARTS)) >= 0


@lru_cache(maxsize=1024)
def _read_part(properties: bytes) -> tuple[int, str]:
    """Returns the hash of the tags, and the keys."""
    return tag_hash_of(properties), str(find_property(properties, b"KEYS") or b"", "utf-8", "replace")


def _clean_part(properties: bytes, index: int) -> bytes:
    for name in _REFUSED_NAMES:
        if name in properties and _has_effect(find_property(properties, name)):
            raise MessageIllegal(f"message {index} of the batch: {name.decode()} is not allowed in a batch")
    for name in _REMOVED_NAMES:
        properties = remove_property(properties, name)
    return properties


def _has_effect(value: bytes | None) -> bool:
    return value is not None and value.lower() not in (b"0", b"-1", b"false")
