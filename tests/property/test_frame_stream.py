"""Any split of a byte stream gives the same commands; garbage raises only RemoteProtocolError.

Source:  spec remoting 1 to 3.
"""

from __future__ import annotations

import json
import struct
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.errors import BadRequest, RemoteProtocolError
from tandemmq.protocol.catalogue import CATALOGUE
from tandemmq.protocol.codes import SERIALIZE_JSON, SERIALIZE_ROCKETMQ
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.header_codec import Header, Int32, Int64

INT32 = st.integers(-(2**31), 2**31 - 1)
# Half surrogate pairs have no UTF-8; the binary form treats an empty value as absent.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FIELDS = st.dictionaries(TEXT, TEXT.filter(bool), max_size=6)
HEADER_TYPES = sorted(
    {kind for entry in CATALOGUE.values() for kind in (entry.request, entry.response) if kind is not None},
    key=lambda kind: kind.__name__,
)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    return Command(
        code=draw(st.integers(-(2**15), 2**15 - 1)),
        opaque=draw(INT32),
        flag=draw(INT32),
        language=draw(st.integers(0, 13)),
        version=draw(st.integers(0, 1000)),
        remark=draw(st.none() | TEXT.filter(bool)),
        serialize_type=draw(st.sampled_from([SERIALIZE_JSON, SERIALIZE_ROCKETMQ])),
        body=draw(st.binary(max_size=200)),
        extra_fields=draw(FIELDS),
    )


def facts(command: Command) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.language,
        command.version,
        command.remark,
        command.serialize_type,
        bytes(command.body),
        dict(command.fields),
    )


@given(st.lists(commands(), max_size=8), st.data())
def test_any_cut_gives_the_same_commands(sent: list[Command], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = FrameDecoder()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
        assert decoder.buffered_bytes <= max(map(len, map(encode_frame, sent)), default=0)
    assert [facts(command) for command in received] == [facts(command) for command in sent]
    assert decoder.buffered_bytes == 0


def read_all(stream: bytes, size: int) -> list[Command]:
    decoder = FrameDecoder()
    received = []
    for start in range(0, len(stream), size):
        received += decoder.feed(stream[start : start + size])
    return received


def look_at(command: Command) -> None:
    """Does everything that a handler may do with a command; only the documented errors may be raised."""
    for header_type in HEADER_TYPES:
        try:
            command.decode(header_type)
        except BadRequest:
            pass
    try:
        assert all(isinstance(item, str) for pair in command.fields.items() for item in pair)
        encode_frame(command.reply(0, fields=command.fields))
    except RemoteProtocolError:
        pass


@given(st.binary(max_size=300), st.integers(1, 300))
@settings(max_examples=300)
def test_garbage_gives_only_remote_protocol_error(stream: bytes, size: int) -> None:
    try:
        received = read_all(stream, size)
    except RemoteProtocolError:
        return
    for command in received:
        look_at(command)


@given(st.integers(0, 1), st.binary(max_size=120), st.binary(max_size=20))
@settings(max_examples=300)
def test_garbage_inside_a_good_frame(kind: int, header: bytes, body: bytes) -> None:
    head = struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header))
    try:
        received = FrameDecoder().feed(head + header + body)
    except RemoteProtocolError:
        return
    for command in received:
        look_at(command)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HEADER_KEYS = st.sampled_from(["code", "opaque", "flag", "language", "version", "remark", "extFields", "x"])
FIELD_NAMES = st.sampled_from(
    sorted({name for kind in HEADER_TYPES for name in kind.__struct_encode_fields__})
)


@given(st.dictionaries(HEADER_KEYS, JSON_VALUES), st.dictionaries(FIELD_NAMES, JSON_VALUES, max_size=8))
@settings(max_examples=300)
def test_odd_json_headers(header: dict[str, object], fields: dict[str, object]) -> None:
    text = json.dumps({"code": 310, "extFields": fields, **header}).encode()
    frame = struct.pack(">iI", 4 + len(text), len(text)) + text
    try:
        received = FrameDecoder().feed(frame)
    except RemoteProtocolError:
        return
    for command in received:
        look_at(command)


@given(st.data())
def test_mutated_frames(data: st.DataObject) -> None:
    frame = bytearray(encode_frame(data.draw(commands())))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = read_all(bytes(frame), 64)
    except RemoteProtocolError:
        return
    for command in received:
        look_at(command)


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT.filter(bool),
    bool: st.booleans(),
    Int32: INT32,
    Int64: st.integers(-(2**63), 2**63 - 1),
}


def header_strategy(kind: type[Header]) -> st.SearchStrategy[Header]:
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        plain = (
            [one for one in get_args(hint) if one is not NoneType] if NoneType in get_args(hint) else [hint]
        )
        fields[name] = VALUES[plain[0]] if plain == [hint] else st.none() | VALUES[plain[0]]
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", HEADER_TYPES, ids=lambda kind: kind.__name__)
@given(st.data())
@settings(max_examples=15)
def test_typed_header_round_trip(kind: type[Header], data: st.DataObject) -> None:
    header = data.draw(header_strategy(kind))
    for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ):
        command = Command.request(310, header, serialize_type=serialize_type)
        (received,) = FrameDecoder().feed(encode_frame(command))
        assert received.decode(kind) == header
        assert received.fields == command.fields
