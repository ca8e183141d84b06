"""The records of a batch: each as if it had come alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.send.handlers import make_batch
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.record import NewRecord

HEADER: Any = SimpleNamespace(sys_flag=0, born_at_ms=7, retry_count=None, properties="")
TARGET: Any = SimpleNamespace(topic="T", is_retry=False, sys_flag=0)

NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "POP_CK", "__CRC32#", "DELAY", "WAIT", "a", ""])
VALUES = st.sampled_from(["", "0", "1", "x", "k1 k2", "TAGS\x01z", "UNIQ_KEY\x01u"])
PIECES = st.one_of(st.builds("{}\x01{}".format, NAMES, VALUES), st.sampled_from(["", "junk"]))
PROPERTIES = st.builds(
    lambda pieces, is_ended: ("\x02".join(pieces) + "\x02" * is_ended).encode(),
    st.lists(PIECES, max_size=5),
    st.booleans(),
)


def _make(*properties: bytes) -> list[NewRecord] | None:
    """None when the batch is refused."""
    body = encode_batch([(n, b"body%d" % n, one) for n, one in enumerate(properties)])
    try:
        return make_batch(body, HEADER, TARGET, 3, born_host=b"12345678", body_bytes_max=1 << 20).records()
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


@pytest.mark.parametrize("name", ["DELAY", "TRAN_MSG", "TIMER_DELAY_MS", "INNER_NUM"])
def test_what_a_batch_may_not_have_is_refused_in_any_place(name: str) -> None:
    good = b"UNIQ_KEY\x01u\x02TAGS\x01a\x02"
    assert _make(good, good + f"{name}\x011\x02".encode()) is None
    assert _make(good, good + f"{name}\x010\x02".encode()) is not None
