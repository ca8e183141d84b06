"""Hashes of properties read as tables are equal to those of each property read alone."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tandemmq.protocol.record import NewRecord, encode_record
from tandemmq.protocol.record_scan import read_intact
from tandemmq.store.columns import PropertyScan
from tandemmq.store.record_block import LAYOUT_COUNT_MAX, PropertyHashes

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
ODD = [
    b"",
    b"plain",
    b"TAGS\x01\x02",
    b"TAGS\x01a\x02TAGS\x01b\x02TAGS\x01\x02",
    b"XTAGS\x01a\x02KEYS\x01%b %b\x02",
    b"KEYS\x01%b\x01%b\x02UNIQ_KEY\x01\xc3\xa9%b\x02",
    b"\x02\x02\x01\x02KEYS\x01%b\x02",
    b"TAGS\x01%b",
    b"A\x01KEYS\x01%b\x02",
]
LIKELY = [
    b"UNIQ_KEY\x01%b\x02TAGS\x01%b\x02WAIT\x01true\x02",
    b"KEYS\x01%b\x02UNIQ_KEY\x01%b\x02",
    b"WAIT\x01true\x02",
]


def text(dice: Random, size: int) -> bytes:
    """Returns a value, occasionally one that a table must not use as it is."""
    odd = dice.choice([b" ", b"\x01", b"\x00", b"\xc3\xa9", b"\xff"]) if dice.random() < 0.03 else b"x"
    return (odd + b"%x" % dice.getrandbits(160))[:size].ljust(size, b"0")


def properties(dice: Random, forms: list[bytes], sizes: list[int]) -> bytes:
    form = dice.choice(forms)
    return form % tuple(text(dice, dice.choice(sizes)) for _ in range(form.count(b"%b")))


@pytest.mark.parametrize("seed", range(60))
def test_tables_and_single_looks_agree(seed: int) -> None:
    dice = Random(seed)
    forms = dice.choice([LIKELY[:1], LIKELY, LIKELY * 9 + ODD, ODD])
    sizes = dice.choice([[4], [8, 9], list(range(1, 40))])
    topics = ["a", "päyments"]
    log = bytearray()
    for number in range(dice.choice([1, 15, 200, 900])):
        new = NewRecord(
            topic=topics[number % 2],
            queue_id=0,
            body=b"",
            properties=properties(dice, forms, sizes),
            born_at_ms=1,
            born_host=HOST,
        )
        log += encode_record(new, queue_offset=number, log_offset=len(log), stored_at_ms=2, store_host=HOST)
    view = memoryview(bytes(log))
    columns = read_intact(view, log_offset=0, record_bytes_max=1 << 20)
    assert columns.end == len(log)
    tables, single = PropertyHashes(view, columns), PropertyScan(view, columns)
    assert tables.tag_hashes().tolist() == single.tag_hashes().tolist()
    topic = np.arange(len(columns)) % 2
    is_keyed = np.array([dice.random() < 0.8 for _ in range(len(columns))])
    for found, wanted in zip(
        tables.key_hashes(topics, topic, is_keyed), single.key_hashes(topics, topic, is_keyed), strict=True
    ):
        assert found.tolist() == wanted.tolist()
    assert len(tables._layouts) <= LAYOUT_COUNT_MAX
    if forms == LIKELY[:1] and sizes == [4] and len(columns) >= 200:
        assert tables._layouts
