"""The body of a batch send."""

from __future__ import annotations

import pytest

from batch_items import split_batch
from tandemmq.errors import LocalProtocolError, MessageIllegal
from tandemmq.protocol import batch as batch_module
from tandemmq.protocol.batch import encode_batch

SAMPLE = bytes.fromhex("00000026000000000000000000000000000000026869000E6101620257414954017472756502")
"""Spec remoting 12.6: body `hi`, a=b, WAIT=true."""


def test_sample_is_written_and_read() -> None:
    properties = b"a\x01b\x02WAIT\x01true\x02"
    assert encode_batch([(0, b"hi", properties)]) == SAMPLE
    (item,) = split_batch(SAMPLE)
    assert (item.flag, bytes(item.body), item.properties) == (0, b"hi", properties)


def test_messages_come_back_in_order_without_copied_bodies() -> None:
    sent = [(number, bytes([number]) * number, b"n\x01%d\x02" % number) for number in range(50)]
    data = encode_batch(sent)
    items = split_batch(data)
    assert [(item.flag, bytes(item.body), item.properties) for item in items] == sent
    assert items[3].body.obj is data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SAMPLE[:-1],
        SAMPLE + b"\x00",
        SAMPLE[:21],
        (37).to_bytes(4, "big") + SAMPLE[4:],
        (39).to_bytes(4, "big") + SAMPLE[4:],
        (2**31 - 1).to_bytes(4, "big") + SAMPLE[4:],
        b"\xff\xff\xff\xff" + SAMPLE[4:],
        SAMPLE[:16] + b"\xff\xff\xff\xff" + SAMPLE[20:],
        SAMPLE[:16] + b"\x7f\xff\xff\xff" + SAMPLE[20:],
        SAMPLE[:22] + b"\xff\xff" + SAMPLE[24:],
        bytes(22),
    ],
)
def test_batch_that_does_not_add_up_is_refused_as_a_whole(data: bytes) -> None:
    with pytest.raises(MessageIllegal):
        split_batch(data)
    with pytest.raises(MessageIllegal):
        split_batch(SAMPLE + data if data else b"")


@pytest.mark.parametrize("properties", [b"", b"\0", b"\2ab"])
@pytest.mark.parametrize("body_size", [0, 1, 5])
def test_messages_of_equal_sizes_are_split_as_others_are(
    monkeypatch: pytest.MonkeyPatch, body_size: int, properties: bytes
) -> None:
    raw = encode_batch([(number, bytes(body_size), properties) for number in range(5)])
    changed = [raw, raw + b"\0", raw[:-1], raw[: -len(raw) // 5]]
    for position in range(len(raw)):
        for value in (0, 1, raw[position] + 1, raw[position] - 1 & 0xFF, 128, 255):
            changed.append(raw[:position] + bytes([value]) + raw[position + 1 :])
    # Two messages whose length errors cancel out.
    one, other = encode_batch([(0, b"abc", b"d")]), encode_batch([(0, b"a", b"bcd")])
    changed += [one * 3 + other, other + one * 3, one * 4 + other * 4]
    quickly = list(map(_split_or_refuse, changed))
    monkeypatch.setattr(batch_module, "_EQUAL_COUNT_MIN", 1 << 30)
    assert quickly == list(map(_split_or_refuse, changed))


def _split_or_refuse(raw: bytes) -> object:
    try:
        return [(item.flag, bytes(item.body), item.properties) for item in split_batch(raw)]
    except MessageIllegal as error:
        return str(error)


def test_batch_of_too_many_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "BATCH_COUNT_MAX", 3)
    assert len(split_batch(SAMPLE * 3)) == 3
    with pytest.raises(MessageIllegal, match="more than 3"):
        split_batch(SAMPLE * 4)
    monkeypatch.setattr(batch_module, "BATCH_COUNT_MAX", 5)
    assert len(split_batch(SAMPLE * 5)) == 5
    with pytest.raises(MessageIllegal, match="more than 5"):
        split_batch(SAMPLE * 6)


def test_properties_that_do_not_fit_are_our_fault() -> None:
    with pytest.raises(LocalProtocolError, match="32768"):
        encode_batch([(0, b"x", bytes(32768))])
