"""A batch send, taken apart into the records it stands for: all of them or none. Pure.

Every message keeps its own properties; those of the request's header only say whether to wait and what to
answer (the form of 5.3.4; earlier brokers merged them in, which hid each message's own unique key).
Source: spec store 4.1, spec remoting 12.6, spec semantics 5 (row 8).
"""

from __future__ import annotations

from functools import lru_cache

from tandemmq.broker.send.assembly import find_value
from tandemmq.broker.send.targets import SendHeader, SendTarget
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.batch import split_columns
from tandemmq.protocol.command import Buffer
from tandemmq.protocol.properties import find_property, remove_property
from tandemmq.protocol.record import NewBatch, tag_hash_of
from tandemmq.protocol.sys_flag import INNER_BATCH, TRANSACTION_MASK
from tandemmq.protocol.topic_names import TOPIC_CHARS_MAX

_REFUSED_NAMES = (
    b"DELAY",
    b"TRAN_MSG",
    b"TIMER_DELAY_SEC",
    b"TIMER_DELAY_MS",
    b"TIMER_DELIVER_MS",
    b"INNER_NUM",
)
_REMOVED_NAMES = (b"POP_CK", b"__CRC32#")
_UNIQUE_MARK = b"UNIQ_KEY\x01"
_KNOWN_BYTES_MAX = 256
"""Longer properties are not kept."""


def make_batch(
    body: Buffer,
    header: SendHeader,
    target: SendTarget,
    queue_id: int,
    *,
    born_host: bytes,
    body_bytes_max: int,
) -> NewBatch:
    """The records of a batch, in order; one without UNIQ_KEY has an empty unique key.

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
    wait_stored = find_value(header.properties or "", "WAIT\x01").lower() != "false"
    flags, bodies, properties = split_columns(body)
    if not all(bodies):
        index = next(index for index, one in enumerate(bodies) if not one)
        raise MessageIllegal(f"message {index} of the batch has no body: at least one byte is needed")
    tag_hashes: list[int] = []
    keys: list[str] = []
    unique_keys: list[bytes] = []
    # Many messages differ in their unique key only: the rest is looked at once.
    for index, text in enumerate(properties):
        unique_key, rest = _part_unique_key(text)
        found = _read_plain(rest) if len(rest) <= _KNOWN_BYTES_MAX else None
        if found is None:
            text = properties[index] = _clean(text, index)
            found = _read(text)
        tag_hashes.append(found[0])
        keys.append(found[1])
        unique_keys.append(unique_key)
    return NewBatch(
        topic=topic,
        queue_id=queue_id,
        bodies=bodies,
        properties=properties,
        born_at_ms=header.born_at_ms,
        born_host=born_host,
        tag_hashes=tag_hashes,
        flags=flags,
        sys_flag=header.sys_flag | target.sys_flag,
        retry_count=header.retry_count or 0,
        keys=keys,
        unique_keys=str(b"\x02".join(unique_keys), "utf-8", "replace").split("\x02"),
        wait_stored=wait_stored,
    )


def _part_unique_key(properties: bytes) -> tuple[bytes, bytes]:
    """The unique key, empty without one, and the properties without that pair."""
    start = properties.rfind(_UNIQUE_MARK)
    if start == 0 or (start > 0 and properties[start - 1] == 2):
        begin = start + len(_UNIQUE_MARK)
        end = properties.find(b"\x02", begin)
        if end > begin:
            return properties[begin:end], properties[:start] + properties[end:]
    return find_property(properties, b"UNIQ_KEY") or b"", properties


@lru_cache(maxsize=1024)
def _read_plain(properties: bytes) -> tuple[int, str] | None:
    """As `_read`; None if there may be something that has to be refused or removed."""
    if any(name in properties for name in (*_REFUSED_NAMES, *_REMOVED_NAMES)):
        return None
    return _read(properties)


def _read(properties: bytes) -> tuple[int, str]:
    """The hash of the tags, and the keys."""
    return tag_hash_of(properties), str(find_property(properties, b"KEYS") or b"", "utf-8", "replace")


def _clean(properties: bytes, index: int) -> bytes:
    for name in _REFUSED_NAMES:
        if name in properties and _has_effect(find_property(properties, name)):
            raise MessageIllegal(f"message {index} of the batch: {name.decode()} is not allowed in a batch")
    for name in _REMOVED_NAMES:
        properties = remove_property(properties, name)
    return properties


def _has_effect(value: bytes | None) -> bool:
    return value is not None and value.lower() not in (b"0", b"-1", b"false")
