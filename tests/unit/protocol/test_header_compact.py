"""The ROCKETMQ header form (spec remoting 3)."""

from __future__ import annotations

import struct

import pytest

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.codes import LanguageCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.header_compact import decode_header_compact, encode_header_compact
from tandemmq.protocol.requests.consume import QueryOffsetRequest


def fixed(code: int = 105, language: int = 0, flag: int = 0, remark: bytes = b"") -> bytes:
    return struct.pack(">hbhiii", code, language, 479, 1, flag, len(remark)) + remark


def pair(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value


def block(*pairs: bytes) -> bytes:
    joined = b"".join(pairs)
    return struct.pack(">i", len(joined)) + joined


def read(header: bytes) -> Command:
    return decode_header_compact(header, b"body")


def test_fields_remark_and_typed_header() -> None:
    command = read(
        fixed(14, remark="ремарк".encode())
        + block(pair(b"consumerGroup", b"g"), pair(b"topic", "主".encode()), pair(b"queueId", b"3"))
    )
    assert command.remark == "ремарк"
    assert command.body == b"body"
    assert command.decode(QueryOffsetRequest) == QueryOffsetRequest(
        consumer_group="g", topic="主", queue_id=3
    )


def test_last_of_equal_keys_counts() -> None:
    assert read(fixed() + block(pair(b"k", b"1"), pair(b"k", b"2"))).fields == {"k": "2"}


def test_empty_value_and_empty_remark_read_as_absent() -> None:
    command = read(fixed() + block(pair(b"k", b""), pair(b"x", b"y")))
    assert command.fields == {"x": "y"}
    assert command.remark is None


@pytest.mark.parametrize("language", [-1, 14, 127])
def test_unknown_language_is_other(language: int) -> None:
    assert read(fixed(language=language) + block()).language == LanguageCode.OTHER


def test_code_above_16_bits_is_cut_as_in_java() -> None:
    assert read(encode_header_compact(Command(200050))).code == 3442
    assert read(encode_header_compact(Command(40000))).code == 40000 - 65536
    assert read(encode_header_compact(Command(-1000))).code == -1000


def test_written_header_leaves_out_empty_values() -> None:
    command = Command(1, fields_json=b"", extra_fields={"a": "", "b": "c"}, remark="r")
    again = read(encode_header_compact(command))
    assert again.fields == {"b": "c"}
    assert again.remark == "r"


BAD_HEADERS = {
    "empty": b"",
    "fixed part cut": fixed()[:-1],
    "no field length": fixed(),
    "remark beyond the end": struct.pack(">hbhiii", 1, 0, 1, 1, 0, 100) + b"abc",
    "remark of negative length": struct.pack(">hbhiii", 1, 0, 1, 1, 0, -1) + block(),
    "remark of 2 GiB": struct.pack(">hbhiii", 1, 0, 1, 1, 0, 2**31 - 1) + block(),
    "remark no UTF-8": fixed(remark=b"\xff") + block(),
    "fields beyond the end": fixed() + struct.pack(">i", 100) + pair(b"a", b"b"),
    "fields of negative length": fixed() + struct.pack(">i", -1),
    "key of negative length": fixed() + block(struct.pack(">h", -1)),
    "key beyond the end": fixed() + block(struct.pack(">h", 32767) + b"a"),
    "value of negative length": fixed() + block(struct.pack(">h", 1) + b"a" + struct.pack(">i", -5)),
    "value beyond the end": fixed() + block(struct.pack(">h", 1) + b"a" + struct.pack(">i", 2**30) + b"x"),
    "value crosses the end of the fields": fixed() + struct.pack(">i", 8) + pair(b"a", b"bcd"),
    "key no UTF-8": fixed() + block(pair(b"\xff", b"a")),
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_unreadable_header_is_the_peers_fault(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(header)


@pytest.mark.parametrize("command", [Command(1, opaque=2**31), Command(1, extra_fields={"k" * 40000: "v"})])
def test_oversized_header_raises_local_protocol_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        encode_header_compact(command)
