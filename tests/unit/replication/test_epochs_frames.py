"""The bytes of the AutoSwitch channel (spec controller 4.2)."""

from __future__ import annotations

import pytest

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.epochs import (
    EpochEntry,
    EpochList,
    EpochsAnswer,
    Handshake,
    MasterFrameDecoder,
    Report,
    SlaveFrameDecoder,
    TermHead,
    encode_answer,
    encode_handshake,
    encode_term_head,
    encode_term_report,
)

EPOCHS = EpochList((EpochEntry(1, 0), EpochEntry(2, 1570)))
HEARTBEAT = TermHead(3270, 0, EpochEntry(2, 1570), 3270)
FROM_SLAVE = bytes.fromhex("00000001 0000 0000 0000000000000002 00000002 0000000000000622")
FROM_MASTER = bytes.fromhex(
    "00000001 00000018 0000000000000CC6 00000002 00000001 0000000000000000 00000002 0000000000000622"
    "00000002 00000000 0000000000000CC6 00000002 0000000000000622 0000000000000CC6"
)


def test_the_bytes_are_those_of_rocketmq() -> None:
    assert encode_handshake(Handshake(2)) + encode_term_report(1570) == FROM_SLAVE
    assert encode_answer(EpochsAnswer(3270, EPOCHS)) + encode_term_head(HEARTBEAT) == FROM_MASTER
    assert encode_handshake(Handshake(1, from_last_file=True, is_learner=True))[4:8] == b"\0\1\0\1"
    assert (
        encode_answer(EpochsAnswer(0, EpochList())).hex() == "00000001" + "00000000" + "0" * 16 + "ffffffff"
    )


@pytest.mark.parametrize("cut", [1, 3, 7, 12, 1000])
def test_any_cut_of_the_stream_gives_the_same(cut: int) -> None:
    def feed_all(decoder: SlaveFrameDecoder | MasterFrameDecoder, data: bytes) -> list[object]:
        return [event for at in range(0, len(data), cut) for event in decoder.feed(data[at : at + cut])]

    assert feed_all(SlaveFrameDecoder(), FROM_SLAVE * 2) == [Handshake(2), Report(1570)] * 2
    head = TermHead(3270, 5, EpochEntry(2, 1570), 3000)
    data = FROM_MASTER + encode_term_head(head) + b"12345" + encode_term_head(HEARTBEAT)
    events = feed_all(MasterFrameDecoder(), data)
    body = b"".join(event for event in events if isinstance(event, memoryview))
    assert body == b"12345"
    frames = [event for event in events if not isinstance(event, memoryview)]
    assert frames == [EpochsAnswer(3270, EPOCHS), HEARTBEAT, head, HEARTBEAT]


@pytest.mark.parametrize(
    "frame",
    [
        "00000004 0000000000000000",  # not a state in which a slave sends
        "ffffffff",
        "00000002 ffffffffffffffff",  # a negative offset
        "00000001 0000 0000 ffffffffffffffff",
    ],
)
def test_invalid_slave_frame_raises(frame: str) -> None:
    with pytest.raises(RemoteProtocolError):
        SlaveFrameDecoder().feed(bytes.fromhex(frame))


@pytest.mark.parametrize(
    "frame",
    [
        "00000000",
        "00000001 00000017 0000000000000CC6 00000002",  # incomplete entries
        "00000001 7ffffff8 0000000000000CC6 00000002",
        "00000001 00000000 ffffffffffffffff ffffffff",
        "00000001 00000018 0000000000000CC6 00000002 00000002 0000000000000000 00000002 0000000000000622",
        "00000002 00400000 0000000000000CC6 00000002 0000000000000622 0000000000000CC6",
        "00000002 ffffffff 0000000000000CC6 00000002 0000000000000622 0000000000000CC6",
        "00000002 00000001 ffffffffffffffff 00000002 0000000000000622 0000000000000CC6",
    ],
)
def test_invalid_master_frame_raises(frame: str) -> None:
    with pytest.raises(RemoteProtocolError):
        MasterFrameDecoder().feed(bytes.fromhex(frame))


def test_a_master_without_a_file_says_so_in_heartbeats() -> None:
    empty = TermHead(-1, 0, EpochEntry(1, 0), 0)
    assert MasterFrameDecoder().feed(encode_term_head(empty)) == [empty]
