"""Frames in a byte stream (spec remoting 1)."""

from __future__ import annotations

import struct

import pytest

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    FrameDecoder,
    encode_frame,
    encode_frame_head,
)
from tandemmq.protocol.requests.route import RouteRequest

JSON_EXAMPLE = (
    bytes.fromhex("000000810000007B")
    + b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,'
    + b'"serializeTypeCurrentRPC":"JSON","version":479}hi'
)
COMPACT_EXAMPLE = bytes.fromhex(
    "00000025010000210069" + "0001DF000000010000000000000000" + "0000000C0005746F7069630000000154"
)


def route_request(**changes: object) -> Command:
    command = Command(105, 1, 0, 0, 479, None, 0, b"", RouteRequest(topic="T"))
    for name, value in changes.items():
        setattr(command, name, value)
    return command


def test_json_frame_of_the_spec_is_written_byte_for_byte() -> None:
    command = route_request(body=b"hi", header=None, extra_fields={"topic": "T"})
    assert encode_frame(command) == JSON_EXAMPLE


def test_json_frame_of_the_spec_is_read() -> None:
    (command,) = FrameDecoder().feed(JSON_EXAMPLE)
    assert (command.code, command.opaque, command.flag, command.language, command.version) == (
        105,
        1,
        0,
        0,
        479,
    )
    assert command.body == b"hi"
    assert command.remark is None
    assert command.decode(RouteRequest).topic == "T"


def test_compact_frame_of_the_spec_is_written_byte_for_byte() -> None:
    command = route_request(serialize_type=SERIALIZE_ROCKETMQ, header=None, extra_fields={"topic": "T"})
    assert encode_frame(command) == COMPACT_EXAMPLE


def test_compact_frame_of_the_spec_is_read() -> None:
    (command,) = FrameDecoder().feed(COMPACT_EXAMPLE)
    assert (command.code, command.opaque, command.version, command.body) == (105, 1, 479, b"")
    assert command.fields == {"topic": "T"}
    assert command.decode(RouteRequest).topic == "T"


def test_many_frames_in_one_piece_come_in_order() -> None:
    stream = b"".join(encode_frame(route_request(opaque=number, body=b"x" * number)) for number in range(64))
    commands = FrameDecoder().feed(stream)
    assert [command.opaque for command in commands] == list(range(64))
    assert [len(command.body) for command in commands] == list(range(64))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_may_be_fed_and_reused_afterwards(kind: type) -> None:
    storage = bytearray(JSON_EXAMPLE)
    piece = storage if kind is bytearray else kind(storage)
    (command,) = FrameDecoder().feed(piece)
    storage[:] = b"\0" * len(storage)
    assert command.body == b"hi"
    assert command.decode(RouteRequest).topic == "T"


def test_frame_byte_by_byte() -> None:
    decoder = FrameDecoder()
    for position in range(len(JSON_EXAMPLE) - 1):
        assert decoder.feed(JSON_EXAMPLE[position : position + 1]) == []
        assert decoder.buffered_bytes == position + 1
    (command,) = decoder.feed(JSON_EXAMPLE[-1:])
    assert command.body == b"hi"
    assert decoder.buffered_bytes == 0


def test_large_frame_in_pieces_with_neighbours() -> None:
    large = encode_frame(route_request(opaque=2, body=bytes(range(256)) * 16384))
    stream = JSON_EXAMPLE + large + JSON_EXAMPLE
    decoder = FrameDecoder()
    commands = []
    for start in range(0, len(stream), 65536):
        commands += decoder.feed(stream[start : start + 65536])
    assert [command.opaque for command in commands] == [1, 2, 1]
    assert commands[1].body == bytes(range(256)) * 16384
    assert type(commands[1].body) is bytes


def test_closed_decoder_forgets_the_unfinished_frame() -> None:
    decoder = FrameDecoder()
    decoder.feed(JSON_EXAMPLE[:50])
    decoder.close()
    assert decoder.buffered_bytes == 0


BAD_HEADS = {
    "2 GiB": "7FFFFFFF 0000007B",
    "negative length": "80000000 0000007B",
    "minus one": "FFFFFFFF 0000007B",
    "one byte over the limit": "00FFFFFD 0000007B",
    "length 0": "00000000 00000000",
    "length 3": "00000003 00000000",
    "header longer than the frame": "00000010 0000000D",
    "header of 16 MiB in a small frame": "00000010 00FFFFFF",
    "header of 256 KiB": "00100000 00040000",
    "compact header of 16 MiB": "00FFFFF0 01FFFFF0",
    "serialize type 2": "00000081 0200007B",
    "serialize type 255": "00000081 FF00007B",
    "TLS client hello": "16030100 C5010000",
    "http": "47455420 2F204854",
}


@pytest.mark.parametrize("head", BAD_HEADS.values(), ids=BAD_HEADS.keys())
def test_impossible_head_is_refused_at_once(head: str) -> None:
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError):
        decoder.feed(bytes.fromhex(head))
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("head", BAD_HEADS.values(), ids=BAD_HEADS.keys())
def test_impossible_head_is_refused_byte_by_byte(head: str) -> None:
    decoder = FrameDecoder()

    def feed_bytes() -> None:
        for byte in bytes.fromhex(head):
            decoder.feed(bytes([byte]))

    with pytest.raises(RemoteProtocolError):
        feed_bytes()
    assert decoder.buffered_bytes == 0


def test_bad_length_is_refused_with_its_fourth_byte() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"\x7f\xff\xff") == []
    with pytest.raises(RemoteProtocolError, match="longer than the limit"):
        decoder.feed(b"\xff")


def test_bad_head_behind_a_good_frame_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(JSON_EXAMPLE + b"\xff\xff\xff\xff")


def test_broken_stream_stays_broken() -> None:
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError):
        decoder.feed(b"\xff\xff\xff\xff")
    with pytest.raises(RemoteProtocolError):
        decoder.feed(JSON_EXAMPLE)


def test_longest_frame_is_taken_and_a_longer_one_never_written() -> None:
    head = len(encode_frame(route_request()))
    longest = encode_frame(route_request(body=bytes(FRAME_BYTES_MAX - head)))
    assert len(longest) == FRAME_BYTES_MAX
    (command,) = FrameDecoder().feed(longest)
    assert len(command.body) == FRAME_BYTES_MAX - head
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        encode_frame(route_request(body=bytes(FRAME_BYTES_MAX - head + 1)))


def test_the_longest_properties_fit_a_header_however_they_are_escaped() -> None:
    escaped = "\\u0001" * 32_767
    header = f'{{"code":10,"extFields":{{"properties":"{escaped}"}}}}'.encode()
    frame = struct.pack(">iI", 4 + len(header), len(header)) + header
    (command,) = FrameDecoder().feed(frame)
    assert command.fields["properties"] == "\x01" * 32_767


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_a_header_that_peers_would_refuse_is_never_written(serialize_type: int) -> None:
    command = route_request(serialize_type=serialize_type)
    command.remark = "x" * HEADER_BYTES_MAX
    with pytest.raises(LocalProtocolError, match="exceeds the limit of 262143"):
        encode_frame(command)


def test_smaller_limit_of_the_decoder() -> None:
    frame = encode_frame(route_request(body=bytes(1000)))
    assert len(FrameDecoder(len(frame)).feed(frame)) == 1
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(len(frame) - 1).feed(frame)


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_head_alone_equals_the_start_of_the_frame(serialize_type: int) -> None:
    command = route_request(body=b"abcdef", serialize_type=serialize_type)
    frame = encode_frame(command)
    command.body = b""
    assert encode_frame_head(command, 6) + b"abcdef" == frame


def test_announced_body_counts_for_the_limit() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame_head(route_request(), FRAME_BYTES_MAX)


def test_empty_header_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(struct.pack(">iI", 6, 0) + b"hi")


def test_reply_keeps_opaque_and_header_form() -> None:
    for frame in (JSON_EXAMPLE, COMPACT_EXAMPLE):
        (request,) = FrameDecoder().feed(frame)
        reply = request.reply(17, remark="no such topic")
        (answer,) = FrameDecoder().feed(encode_frame(reply))
        assert (answer.opaque, answer.code, answer.remark) == (1, 17, "no such topic")
        assert answer.is_response
        assert answer.serialize_type == request.serialize_type


def test_flags() -> None:
    oneway = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True)
    assert oneway.is_oneway
    assert not oneway.is_response
    assert not Command.request(RequestCode.HEART_BEAT).is_oneway
