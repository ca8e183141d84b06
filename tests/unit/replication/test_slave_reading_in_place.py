"""A slave that reads into one buffer with room in front stores the same as one that joins pieces."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replica_logs import make_log

from no_history import connect
from tandemmq.replication.core import verifier
from tandemmq.replication.core.effects import Store
from tandemmq.replication.core.frames import encode_head
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.slave import SlaveSession

SEGMENT = 4096


def connected() -> SlaveSession:
    subject = SlaveSession(options=ReplicationOptions(), segment_bytes=SEGMENT)
    subject.on_assigned("10.0.0.1:10912")
    connect(subject, 0, 0)
    return subject


def frames(log: bytes, sizes: list[int]) -> bytes:
    """Returns the log in frames of these sizes, repeated, with a heartbeat before each; none crosses
    a file.
    """
    parts, position, index = [], 0, 0
    while position < len(log):
        size = min(sizes[index % len(sizes)], len(log) - position, SEGMENT - position % SEGMENT)
        parts += [encode_head(position, 0), encode_head(position, size), log[position : position + size]]
        position, index = position + size, index + 1
    return b"".join(parts)


@pytest.mark.parametrize("columns_bytes_min", [8, verifier.COLUMNS_BYTES_MIN])
@given(
    sizes=st.lists(st.integers(5, 3000), min_size=1, max_size=5),  # shorter ones are mostly heads, and slow
    reads=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    room=st.sampled_from([1, 40, 200, 8192]),
    is_limited=st.booleans(),
)
def test_any_cut_gives_the_log(
    columns_bytes_min: int, sizes: list[int], reads: list[int], room: int, is_limited: bool
) -> None:
    log, _ = make_log([10, 700, 0, 1500, 90, 33, 1200, 5, 2000, 64], segment_bytes=SEGMENT)
    stream = frames(log, sizes)
    subject, buffer = connected(), memoryview(bytearray(room + 3000))
    stored, position, index = b"", 0, 0
    with patch.object(verifier, "COLUMNS_BYTES_MIN", columns_bytes_min):
        while position < len(stream):
            size = min(reads[index % len(reads)], len(stream) - position)
            if is_limited:
                size = min(size, subject.frame_left)
            buffer[room : room + size] = stream[position : position + size]
            effects = subject.on_data(buffer[: room + size], 1, room)
            for effect in effects:
                if isinstance(effect, Store):
                    assert effect.log_offset == len(stored)
                    stored += bytes(effect.data)
            position, index = position + size, index + 1
    assert stored == log
    assert subject.reported == len(log)


def test_record_is_stored_from_the_given_buffer() -> None:
    log, offsets = make_log([100, 200], segment_bytes=SEGMENT)
    subject, buffer = connected(), memoryview(bytearray(SEGMENT))
    middle = offsets[1] - 10
    subject.on_data(encode_head(0, len(log)) + log[:middle], 1)
    assert subject.frame_left == len(log) - middle
    buffer[1000 : 1000 + len(log) - middle] = log[middle:]
    effects = subject.on_data(buffer[: 1000 + len(log) - middle], 1, 1000)
    (store,) = [effect for effect in effects if isinstance(effect, Store)]
    assert bytes(store.data) == log
    assert store.data.obj is buffer.obj
