"""Small store directories of Java brokers: our checks find no fault, our encoder creates the same bytes.

The files were made by `tests/interop/capture.py`; one RocketMQ release line each.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from tandemmq.protocol.record import NewRecord, RecordError, decode_record, encode_record
from tandemmq.protocol.record_check import consume_tag
from tandemmq.store.inspect import InspectOptions, check_store
from tandemmq.store.inspect.index_check import IndexLayout

FOLDER = Path(__file__).parent / "vectors"
SENT = 116
"""The number of messages sent by the client of the tag test: each is in a queue and in the log."""


@pytest.fixture(params=["java-4.9", "java-5.x"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(FOLDER / f"{request.param}.zip") as source:
        source.extractall(tmp_path)
    return tmp_path


def test_our_check_finds_nothing_wrong(root: Path) -> None:
    report = check_store(InspectOptions(root=root, index_layout=IndexLayout(64, 256)))
    assert report.is_clean, report.findings
    assert report.record_count >= SENT
    assert report.entry_count >= SENT
    assert report.index_entries >= SENT


def test_our_encoder_makes_the_same_bytes(root: Path) -> None:
    """The ConsumeQueue entry of each record is also equal to ours."""
    (path,) = (root / "commitlog").iterdir()
    log = path.read_bytes()
    position = count = 0
    while True:
        try:
            record = decode_record(log, position, log_offset=position)
        except RecordError:
            break
        new = NewRecord(
            topic=record.topic,
            queue_id=record.queue_id,
            body=record.body,
            properties=record.raw_properties,
            born_at_ms=record.born_at_ms,
            born_host=record.born_host,
            flag=record.flag,
            sys_flag=record.sys_flag,
            retry_count=record.retry_count,
            prepared_offset=record.prepared_offset,
        )
        again = encode_record(
            new,
            queue_offset=record.queue_offset,
            log_offset=record.log_offset,
            stored_at_ms=record.stored_at_ms,
            store_host=record.store_host,
        )
        assert again == log[position : position + record.size]
        tag = consume_tag(record.topic, record.raw_properties, record.stored_at_ms)
        entry = np.array([(position, record.size, tag)], ">i8,>i4,>i8").tobytes()
        assert entry_of(root, record.topic, record.queue_id, record.queue_offset) == entry
        position += record.size
        count += 1
    assert count >= SENT
    assert not any(log[position:])


def entry_of(root: Path, topic: str, queue_id: int, queue_offset: int) -> bytes:
    files = sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())
    return b"".join(file.read_bytes() for file in files)[queue_offset * 20 : queue_offset * 20 + 20]
