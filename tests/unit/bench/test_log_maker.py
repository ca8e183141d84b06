"""The log that benchmarks copy is one that a broker could have written."""

from __future__ import annotations

import pytest

from bench.catchup import LogMaker
from tandemmq.protocol import speedups
from tandemmq.protocol.record_scan import RecordColumns, topic_names
from tandemmq.replication.core.verifier import RecordVerifier

SEGMENT = 256 * 1024


def test_every_record_is_intact_and_queue_offsets_have_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "kernel", None)  # its runs have other fields
    maker = LogMaker(segment_bytes=SEGMENT, body_bytes=100)
    subject = RecordVerifier(0, segment_bytes=SEGMENT, record_bytes_max=SEGMENT)
    queue_ends: dict[tuple[str, int], int] = {}
    count = end = 0
    for log_offset, data in maker.pieces(5 * SEGMENT):
        assert log_offset == end
        end += len(data)
        runs, bad = subject.feed([data])
        assert bad is None
        for run in runs:
            if not isinstance(run.parsed, RecordColumns):
                assert not run.parsed, "the blank at the end of a file, by itself"
                continue
            count += len(run.parsed)
            for key, offset in _places(run.data, run.parsed):
                assert queue_ends.setdefault(key, 0) == offset
                queue_ends[key] += 1
    assert subject.held_bytes == 0
    assert end >= 5 * SEGMENT
    assert count == maker.count == sum(queue_ends.values())


def _places(data: memoryview, columns: RecordColumns) -> list[tuple[tuple[str, int], int]]:
    keys = zip(topic_names(data, columns), columns.queue_id.tolist(), strict=True)
    return list(zip(keys, columns.queue_offset.tolist(), strict=True))
