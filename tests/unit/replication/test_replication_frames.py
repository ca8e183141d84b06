import pytest

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.frames import (
    BODY_BYTES_MAX,
    ReportDecoder,
    TransferDecoder,
    TransferHead,
    encode_head,
    encode_report,
)


def test_report_and_heartbeat_have_the_bytes_of_the_spec() -> None:
    assert encode_report(1 << 20).hex(" ") == "00 00 00 00 00 10 00 00"
    assert encode_head(1 << 20, 0).hex(" ") == "00 00 00 00 00 10 00 00 00 00 00 00"


def test_reports_that_arrive_together_come_out_in_order() -> None:
    decoder = ReportDecoder()
    assert decoder.feed(encode_report(1) + encode_report(2) + b"\0\0") == (1, 2)
    assert decoder.feed(b"\0" * 5 + b"\x03") == (3,)
    assert decoder.feed(b"") == ()


def test_negative_report_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="negative"):
        ReportDecoder().feed(encode_report(-1))


def test_body_comes_out_as_it_arrives() -> None:
    decoder = TransferDecoder()
    frame = encode_head(64, 5) + b"abcde" + encode_head(69, 0)
    assert decoder.feed(frame[:14]) == [TransferHead(64, 5), b"ab"]
    assert decoder.feed(frame[14:20]) == [b"cde"]
    assert decoder.buffered_bytes == 3
    assert decoder.feed(frame[20:]) == [TransferHead(69, 0)]
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("head", [(-1, 0), (0, -1)])
def test_impossible_head_is_refused(head: tuple[int, int]) -> None:
    data = head[0].to_bytes(8, "big", signed=True) + head[1].to_bytes(4, "big", signed=True)
    with pytest.raises(RemoteProtocolError):
        TransferDecoder().feed(data)


def test_body_larger_than_a_slave_can_hold_is_refused() -> None:
    assert TransferDecoder().feed(encode_head(0, BODY_BYTES_MAX)) == [TransferHead(0, BODY_BYTES_MAX)]
    with pytest.raises(RemoteProtocolError, match="allowed are"):
        TransferDecoder().feed(bytes(8) + (BODY_BYTES_MAX + 1).to_bytes(4, "big"))
