"""Hosts and ids of messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tandemmq.errors import BadRequest, LocalProtocolError
from tandemmq.protocol.message_id import (
    UniqueKeys,
    decode_host,
    decode_message_id,
    encode_host,
    encode_message_id,
    month_start_ms,
)


@pytest.mark.parametrize(("ip", "size"), [("10.0.0.1", 8), ("2001:db8::7", 20)])
def test_hosts_are_packed_and_unpacked(ip: str, size: int) -> None:
    packed = encode_host(ip, 10911)
    assert len(packed) == size
    assert decode_host(packed) == (ip, 10911)


def test_scope_of_a_link_local_address_is_left_out() -> None:
    assert encode_host("fe80::1%eth0", 1) == encode_host("fe80::1", 1)


@pytest.mark.parametrize("ip", ["localhost", "", "1.2.3"])
def test_only_numeric_hosts_can_be_packed(ip: str) -> None:
    with pytest.raises(LocalProtocolError):
        encode_host(ip, 1)


def test_host_of_another_length_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="8 or 20"):
        decode_host(bytes(9))


@pytest.mark.parametrize("text", ["C0A8000A00002A9F0000000000000000", "7F00000100002A9F00000000000004D2"])
def test_message_ids_are_read_and_written(text: str) -> None:
    parts = decode_message_id(text)
    assert encode_message_id(encode_host(parts.ip, parts.port), parts.log_offset) == text
    assert decode_message_id(text.lower()) == parts


def test_message_id_of_an_ipv6_broker_has_56_digits() -> None:
    text = encode_message_id(encode_host("2001:db8::7", 10911), 1 << 40)
    assert len(text) == 56
    assert decode_message_id(text) == ("2001:db8::7", 10911, 1 << 40)


@pytest.mark.parametrize(
    "text", ["", "C0A8", "g" * 32, "C0 A8000A00002A9F000000000000000", "0" * 55, "é" * 32]
)
def test_other_text_is_no_message_id(text: str) -> None:
    with pytest.raises(BadRequest, match="32 or 56"):
        decode_message_id(text)


def test_unique_keys_tell_maker_time_and_count() -> None:
    keys = UniqueKeys("10.0.0.1", 0x1F90, 0x18B4AAC2)
    now_ms = month_start_ms(1_700_000_000_000) + 0x1234
    assert keys.next(now_ms) == "0A0000011F9018B4AAC2" + "00001234" + "0001"
    assert keys.next(now_ms) == "0A0000011F9018B4AAC2" + "00001234" + "0002"
    assert len(UniqueKeys("2001:db8::7", 1, 2).next(now_ms)) == 56


def test_unique_keys_differ_within_a_millisecond() -> None:
    keys = UniqueKeys("10.0.0.1", 1, 2)
    assert len({keys.next(1_700_000_000_000) for _ in range(65536)}) == 65536


def test_unique_keys_start_anew_with_the_month() -> None:
    keys = UniqueKeys("10.0.0.1", 1, 2)
    february = int(datetime(2024, 2, 1, tzinfo=UTC).timestamp() * 1000)
    assert keys.next(february - 1)[20:28] == f"{31 * 86_400_000 - 1:08X}"
    assert keys.next(february)[20:28] == "00000000"


def test_month_begins_in_the_local_time_zone() -> None:
    february = int(datetime(2024, 2, 1, tzinfo=UTC).timestamp() * 1000)
    hour = 3_600_000
    assert month_start_ms(february, 2 * hour) == february - 2 * hour
    assert month_start_ms(february + 29 * 86_400_000 - 1) == february
