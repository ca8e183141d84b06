"""The records of a batch: each is stored as if it had been sent alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.send.batch import make_batch
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.properties import append_property, decode_properties, remove_property
from tandemmq.protocol.record import NewBatch, NewRecord

HEADER: Any = SimpleNamespace(sys_flag=0, born_at_ms=7, retry_count=None, properties="")
TARGET: Any = SimpleNamespace(topic="T", is_retry=False, sys_flag=0)

NEXT_KEY = "next"

NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "POP_CK", "__CRC32#", "DELAY", "WAIT", "a", ""])
VALUES = st.sampled_from(["", "0", "1", "x", "k1 k2", "TAGS\x01z", "UNIQ_KEY\x01u"])
PIECES = st.one_of(st.builds("{}\x01{}".format, NAMES, VALUES), st.sampled_from(["", "junk"]))
PROPERTIES = st.builds(
    lambda pieces, is_ended: ("\x02".join(pieces) + "\x02" * is_ended).encode(),
    st.lists(PIECES, max_size=5),
    st.booleans(),
)


def batch_of(body: bytes) -> NewBatch:
    return make_batch(
        body, HEADER, TARGET, 3, born_host=b"12345678", body_bytes_max=1 << 20, next_key=lambda: NEXT_KEY
    )


def _make(*properties: bytes) -> list[NewRecord] | None:
    """Returns the records; None if the batch is refused."""
    body = encode_batch([(n, b"body%d" % n, one) for n, one in enumerate(properties)])
    try:
        return batch_of(body).records()
    except MessageIllegal:
        return None


def _facts(record: NewRecord) -> tuple[object, ...]:
    return record.properties, record.unique_key, record.keys, record.tag_hash, record.queue_id


@given(st.lists(PROPERTIES, min_size=1, max_size=6))
def test_each_message_is_stored_as_if_it_had_come_alone(properties: list[bytes]) -> None:
    alone = [_make(one) for one in properties]
    together = _make(*properties)
    if None in alone:
        assert together is None
        return
    assert together is not None
    assert [record.flag for record in together] == list(range(len(properties)))
    assert list(map(_facts, together)) == [_facts(one[0]) for one in alone if one]


# Batches of messages that are nearly equal except for their unique keys.

HEADS = [b"", b"TAGS\x01h\x02", b"a\x01", b"UNIQ_KEY\x01old\x02", b"x", b"POP_CK\x01p\x02", b"DELAY\x011\x02"]
KEYS = [
    b"",
    b"five5",
    b"tre",
    b"\x01abc",
    b"a\x02bc",
    b"\x02abc",
    b"\xff\xfe\xfd\xfc",
    bytes(4),
    b"UNIQ_KEY\x01abc",
]
RESTS = [
    b"\x02TAGS\x01bc\x02KEYS\x01k1 k2\x02",
    b"\x02WAIT\x01true\x02TAGS\x01a\x02",
    b"\x02TAGS\x01a",
    b"",
    b"\x02",
    b"x\x02",
    b"\x02UNIQ_KEY\x01later\x02",
    b"\x02a\x01UNIQ_KEY\x01x\x02",
    b"\x02a\x01TAGS\x01x\x02",
    b"\x02KEYS\x01\xff\x02",
    b"\x02DELAY\x010\x02",
    b"\x02DELAY\x013\x02",
    b"\x02TIMER_DELIVER_MS\x01700\x02",
    b"\x02POP_CK\x01c\x02TAGS\x01b\x02",
    b"\x02__CRC32#\x011",
    b"\x02note\x01" + b"n" * 300 + b"\x02",
    b"\x02note\x01" + b"n" * 32700 + b"\x02",
]


@st.composite
def _alike(draw: st.DrawFn) -> list[bytes]:
    head = draw(st.sampled_from(HEADS))
    rests = draw(st.lists(st.sampled_from(RESTS), min_size=1, max_size=3))
    ways = draw(st.lists(st.integers(0, len(rests) - 1), min_size=1, max_size=24))
    texts = [head + b"UNIQ_KEY\x01%04d%b" % (number, rests[way]) for number, way in enumerate(ways)]
    for index in draw(st.lists(st.integers(0, len(ways) - 1), max_size=2)):
        texts[index] = draw(PROPERTIES)
    return texts


@given(_alike(), st.booleans())
def test_messages_that_are_alike_are_stored_as_their_properties_say(
    texts: list[bytes], is_equal: bool
) -> None:
    _check(texts, is_equal=is_equal)


@pytest.mark.parametrize("head", HEADS)
def test_one_message_that_is_unlike_the_others_is_stored_as_its_properties_say(head: bytes) -> None:
    for rest in RESTS[:-1]:
        alike = [head + b"UNIQ_KEY\x01%04d%b" % (number, rest) for number in range(8)]
        _check(alike, is_equal=True)
        for key, other in [*((key, rest) for key in KEYS), *((b"four", other) for other in RESTS)]:
            _check([*alike, head + b"UNIQ_KEY\x01" + key + other], is_equal=False)
        for unlike in (b"", b"y" + alike[0][1:], alike[0][1:], alike[0]):
            _check([*alike[:4], unlike, *alike[4:]], is_equal=True)


def _check(texts: list[bytes], *, is_equal: bool) -> None:
    bodies = [b"b%03d" % number if is_equal else b"b" * (number + 1) for number in range(len(texts))]
    flags = [number * 7 for number in range(len(texts))]
    body = encode_batch(zip(flags, bodies, texts, strict=True))
    refusal = next(filter(None, map(_refusal, texts, range(len(texts)))), None)
    if refusal is not None:
        with pytest.raises(MessageIllegal) as refused:
            batch_of(body)
        assert refused.value.remark == refusal
        return
    batch = batch_of(body)
    assert list(map(bytes, batch.bodies)) == bodies
    assert list(batch.flags) == flags
    said = list(map(decode_properties, texts))
    kept = [remove_property(remove_property(text, b"POP_CK"), b"__CRC32#") for text in texts]
    assert batch.properties == [
        text if pairs.get("UNIQ_KEY") else append_property(text, "UNIQ_KEY", NEXT_KEY)
        for text, pairs in zip(kept, said, strict=True)
    ]
    assert batch.unique_keys == [pairs.get("UNIQ_KEY", NEXT_KEY) for pairs in said]
    assert list(batch.keys) == [pairs.get("KEYS", "") for pairs in said]
    assert list(batch.tag_hashes) == [java_hash(pairs.get("TAGS", "")) for pairs in said]


def _refusal(text: bytes, index: int) -> str | None:
    said = decode_properties(text)
    for name in ("DELAY", "TRAN_MSG", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "INNER_NUM"):
        if said.get(name, "0").lower() not in ("0", "-1", "false"):
            return f"message {index} of the batch: {name} is not allowed in a batch"
    return None


def test_messages_that_go_on_in_their_own_ways_are_looked_at_one_by_one() -> None:
    texts = [b"UNIQ_KEY\x01u%03d\x02KEYS\x01k%d\x02TAGS\x01t\x02" % (n, n) for n in range(300)]
    records = _make(*texts)
    assert records is not None
    assert [record.keys for record in records] == [f"k{n}" for n in range(300)]
    assert [record.unique_key for record in records] == [f"u{n:03}" for n in range(300)]
    assert _make(*texts, texts[0] + b"DELAY\x013\x02") is None


@pytest.mark.parametrize("name", ["DELAY", "TRAN_MSG", "TIMER_DELAY_MS", "INNER_NUM"])
def test_batch_with_a_forbidden_property_is_refused(name: str) -> None:
    good = b"UNIQ_KEY\x01u\x02TAGS\x01a\x02"
    assert _make(good, good + f"{name}\x011\x02".encode()) is None
    assert _make(good, good + f"{name}\x010\x02".encode()) is not None
