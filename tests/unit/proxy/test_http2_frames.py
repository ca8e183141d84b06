"""The reader of frames: whole frames only, whatever the pieces; control frames cost credit."""

from __future__ import annotations

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame, GoAwayFrame, PingFrame, PriorityFrame, SettingsFrame

from tandemmq.proxy.http2_frames import (
    CREDIT,
    CREDIT_PER_S,
    FRAMES_PER_TURN,
    PREFACE,
    FrameCredit,
    Http2Reader,
    Http2Refused,
)

SETTINGS = SettingsFrame(0).serialize()
PING = PingFrame(0, opaque_data=bytes(8)).serialize()
UNKNOWN = b"\0\0\2\x20\0" + (1).to_bytes(4) + b"xx"
DATA = DataFrame(1, data=b"payload").serialize()


def take_all(reader: Http2Reader) -> bytes:
    taken, has_more = b"", True
    while has_more:
        frames, has_more = reader.take(0.0)
        taken += frames
    return taken


def test_frames_are_whole_whatever_the_pieces() -> None:
    whole = PREFACE + SETTINGS + PING + DATA + DATA
    ends = {len(PREFACE), len(PREFACE + SETTINGS), len(PREFACE + SETTINGS + PING), len(whole) - len(DATA)}
    for size in range(1, len(whole) + 1):
        reader = Http2Reader(0.0)
        taken = b""
        for at in range(0, len(whole), size):
            reader.add(whole[at : at + size])
            taken += take_all(reader)
            assert len(taken) in {0, *ends, len(whole)}
        assert taken == whole


def test_frames_without_use_are_dropped() -> None:
    reader = Http2Reader(0.0)
    goaway = GoAwayFrame(0).serialize()
    reader.add(PREFACE + PriorityFrame(1).serialize() + SETTINGS + UNKNOWN + DATA)
    assert take_all(reader) == PREFACE + SETTINGS + DATA
    assert not reader.goes_away
    reader.add(DATA + goaway + DATA)
    assert take_all(reader) == DATA + DATA
    assert reader.goes_away


def test_at_most_so_many_frames_are_taken_at_once() -> None:
    reader = Http2Reader(0.0)
    reader.add(PREFACE + DATA * (FRAMES_PER_TURN + 1))
    assert reader.take(0.0) == (PREFACE + DATA * FRAMES_PER_TURN, True)
    assert reader.take(0.0) == (DATA, False)
    assert reader.take(0.0) == (b"", False)


@pytest.mark.parametrize("data", [b"x", b"PRI * HTTP/1.1", PREFACE[:-1] + b"x", bytes(30)])
def test_other_bytes_than_the_preface_are_refused(data: bytes) -> None:
    reader = Http2Reader(0.0)
    reader.add(data)
    with pytest.raises(Http2Refused) as caught:
        reader.take(0.0)
    assert caught.value.code is ErrorCodes.PROTOCOL_ERROR


def test_a_frame_is_refused_by_its_length_before_it_arrives() -> None:
    reader = Http2Reader(0.0)
    reader.add(PREFACE + (16_384).to_bytes(3) + bytes(6))
    assert reader.take(0.0) == (PREFACE, False)
    reader.add(bytes(16_384) + (16_385).to_bytes(3) + bytes(6))
    with pytest.raises(Http2Refused) as caught:
        reader.take(0.0)
    assert caught.value.code is ErrorCodes.FRAME_SIZE_ERROR


def test_credit_is_spent_refilled_and_granted() -> None:
    credit = FrameCredit(0.0)
    credit.spend(CREDIT, 0.0)
    with pytest.raises(Http2Refused):
        credit.spend(1, 0.0)
    credit = FrameCredit(0.0)
    credit.spend(CREDIT, 0.0)
    credit.spend(int(CREDIT_PER_S), 1.0)
    credit.grant(2 * CREDIT)
    credit.spend(2 * CREDIT, 1.0)
    with pytest.raises(Http2Refused):
        credit.spend(CREDIT + 1, 1_000_000.0)


@pytest.mark.parametrize(
    ("frame", "is_free"),
    [
        (DataFrame(1, data=b"x"), True),
        (DataFrame(1, data=b"x", flags=["PADDED"], pad_length=255), True),
        (DataFrame(1, flags=["END_STREAM"]), True),
        (DataFrame(1), False),
        (DataFrame(1, flags=["PADDED"], pad_length=255), False),
        (PingFrame(0, opaque_data=bytes(8)), False),
        (SettingsFrame(0), False),
    ],
)
def test_frames_that_carry_a_call_cost_no_credit(frame: DataFrame, is_free: bool) -> None:
    reader = Http2Reader(0.0)
    reader.add(PREFACE)
    try:
        for _ in range(CREDIT + 1):
            reader.add(frame.serialize())
            reader.take(0.0)
    except Http2Refused:
        assert not is_free
    else:
        assert is_free
