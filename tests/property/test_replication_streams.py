"""Replication without sockets: any split of the bytes, any cut of the connection, any garbage."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from no_history import connect
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.record import NewRecord, encode_blank, encode_record
from tandemmq.replication.core.effects import Acknowledged, Disconnect, Halt, Send, Store
from tandemmq.replication.core.frames import (
    ReportDecoder,
    TransferDecoder,
    TransferHead,
    encode_head,
    encode_report,
)
from tandemmq.replication.core.master import MasterSession
from tandemmq.replication.core.options import FirstTransfer, ReplicationOptions
from tandemmq.replication.core.progress import LogRange, SlaveState
from tandemmq.replication.core.slave import SlaveSession

SEGMENT = 2048
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
cuts = st.lists(st.integers(1, 700), min_size=1, max_size=8)


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, position, turn = [], 0, 0
    while position < len(data):
        pieces.append(data[position : position + sizes[turn % len(sizes)]])
        position += len(pieces[-1])
        turn += 1
    return pieces


def encode_log(body_sizes: list[int]) -> bytes:
    log = bytearray()
    for number, size in enumerate(body_sizes):
        while True:
            new = NewRecord(
                topic="T", queue_id=0, body=bytes(size), properties=b"", born_at_ms=1, born_host=HOST
            )
            record = encode_record(
                new, queue_offset=number, log_offset=len(log), stored_at_ms=2, store_host=HOST
            )
            room = SEGMENT - len(log) % SEGMENT
            if len(record) + 8 <= room:
                break
            log += encode_blank(room).ljust(room, b"\0")
        log += record
    return bytes(log)


def flat(events: list[TransferHead | memoryview]) -> list[TransferHead | int]:
    """Returns heads and single body bytes, so that the split into pieces does not matter."""
    result: list[TransferHead | int] = []
    for event in events:
        result += [event] if isinstance(event, TransferHead) else list(event)
    return result


@given(st.lists(st.binary(max_size=50), max_size=20), cuts)
def test_any_split_of_a_masters_stream_gives_the_same_events(bodies: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(encode_head(number, len(body)) + body for number, body in enumerate(bodies))
    whole = flat(TransferDecoder().feed(stream))
    decoder = TransferDecoder()
    parts = [flat(decoder.feed(piece)) for piece in split(stream, sizes)]
    assert [event for part in parts for event in part] == whole


@given(st.lists(st.integers(0, 2**63 - 1), max_size=40), st.lists(st.integers(1, 30), min_size=1))
def test_any_split_of_a_slaves_stream_gives_the_same_reports(reports: list[int], sizes: list[int]) -> None:
    decoder = ReportDecoder()
    stream = b"".join(map(encode_report, reports))
    assert [report for piece in split(stream, sizes) for report in decoder.feed(piece)] == reports


@given(st.binary(max_size=400), cuts)
def test_garbage_gives_only_remote_protocol_errors(data: bytes, sizes: list[int]) -> None:
    for decoder in (ReportDecoder(), TransferDecoder()):
        try:
            for piece in split(data, sizes):
                decoder.feed(piece)
        except RemoteProtocolError:
            continue


@given(st.binary(max_size=600), st.integers(0, 3000), cuts, st.booleans())
def test_garbage_never_reaches_a_slaves_log(
    data: bytes, log_end: int, sizes: list[int], has_head: bool
) -> None:
    slave = SlaveSession(options=ReplicationOptions(), segment_bytes=SEGMENT)
    slave.on_assigned("m:1")
    connect(slave, log_end, 0)
    if has_head:
        data = encode_head(log_end, len(data)) + data
    for piece in split(data, sizes):
        assert not any(isinstance(effect, Store) for effect in slave.on_data(piece, 1))


class Pair:
    """A master's log and a slave's, joined by bytes in flight."""

    def __init__(self, log: bytes, options: ReplicationOptions) -> None:
        self.log = log
        self.options = options
        self.appended = 0
        self.copy = b""
        self.copy_start: int | None = None
        self.slave = SlaveSession(options=options, segment_bytes=SEGMENT)
        self.slave.on_assigned("m:1")
        self.now_ms = 0
        self.frame_ends: set[int] = set()

    @property
    def copy_end(self) -> int:
        return (self.copy_start or 0) + len(self.copy)

    def connect(self) -> None:
        self.now_ms += 10_000
        self.slave.on_tick(self.now_ms)
        assert self.slave.state is SlaveState.DIALING
        self.master = MasterSession(options=self.options, segment_bytes=SEGMENT, now_ms=self.now_ms)
        self.to_master = self.to_slave = b""
        self.acknowledged = 0
        self.perform_slave(connect(self.slave, self.copy_end, self.now_ms))

    def disconnect(self) -> None:
        self.master.on_closed()
        self.slave.on_failed("cut", self.now_ms)

    def perform_slave(self, effects: list[object]) -> None:
        for effect in effects:
            assert not isinstance(effect, Disconnect | Halt), effect
            if isinstance(effect, Store):
                if self.copy_start is None:
                    self.copy_start = effect.log_offset
                assert effect.log_offset == self.copy_end
                assert effect.log_offset // SEGMENT == (effect.log_offset + len(effect.data) - 1) // SEGMENT
                self.copy += effect.data
            elif isinstance(effect, Send):
                self.to_master += effect.data
                # I2: every reported byte is stored.
                assert self.slave.reported <= self.copy_end

    def perform_master(self, effects: list[object]) -> None:
        for effect in effects:
            assert not isinstance(effect, Disconnect), effect
            if isinstance(effect, Acknowledged):
                assert self.acknowledged <= effect.log_offset <= self.copy_end
                self.acknowledged = effect.log_offset
            elif isinstance(effect, Send):
                self.to_slave += effect.data

    def run(self, sizes: list[int], *, steps: int) -> None:
        log_range = LogRange(0, self.appended)
        for turn in range(steps):
            size = sizes[turn % len(sizes)]
            data, self.to_master = self.to_master[:size], self.to_master[size:]
            if data:
                self.perform_master(self.master.on_data(data, log_range, self.now_ms))
            wanted = self.master.sendable_bytes(log_range, self.now_ms, bytes_max=1500)
            if wanted:
                start = self.master.next_offset
                view = memoryview(self.log)[start : start + wanted]
                self.to_slave += b"".join(self.master.frames(view, self.now_ms))
            data, self.to_slave = self.to_slave[:size], self.to_slave[size:]
            if data:
                self.perform_slave(self.slave.on_data(data, self.now_ms))
            if not (self.to_master or self.to_slave or wanted):
                return


@settings(max_examples=60)
@given(
    body_sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=25),
    batch=st.integers(1, 900),
    sizes=cuts,
    phases=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 60)), max_size=6),
    mode=st.sampled_from(FirstTransfer),
)
def test_copy_equals_the_masters_log_after_any_cuts(
    body_sizes: list[int],
    batch: int,
    sizes: list[int],
    phases: list[tuple[int, int]],
    mode: FirstTransfer,
) -> None:
    pair = Pair(encode_log(body_sizes), ReplicationOptions(transfer_bytes_max=batch, first_transfer=mode))
    for percent, steps in phases:
        pair.appended = max(pair.appended, len(pair.log) * percent // 100)
        pair.connect()
        pair.run(sizes, steps=steps)
        pair.disconnect()
        start = pair.copy_start or 0
        assert pair.copy == pair.log[start : pair.copy_end]
    pair.appended = len(pair.log)
    pair.connect()
    pair.run(sizes, steps=1_000_000)
    start = pair.copy_start or 0
    assert pair.copy == pair.log[start:]
    assert pair.acknowledged == (len(pair.log) if pair.copy else 0)
    if mode is not FirstTransfer.LAST_FILE:
        assert start == 0
