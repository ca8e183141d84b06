"""Requests of the gRPC proxy for the fuzzer: valid ones for every rpc, made from the schema, with nonsense in
some fields; their metadata; and sessions of HTTP/2 with damaged frames.

A new rpc or field is fuzzed from the day it is in the schema. The same dice yield the same bytes.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import h2.config
import h2.connection
from google.protobuf.descriptor import FieldDescriptor

from sim.dice import Dice
from sim.fuzz.corpus import GROUP, TOPIC
from sim.fuzz.mutate import NASTY_TEXTS, flip
from sim.fuzz.random_brokers import BROKERS
from tandemmq.protocol.pop_receipts import FLAG_NORMAL, Handle
from tandemmq.proxy.handles import Receipt
from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.transaction_ids import TransactionId, render_transaction_id

BROKER: Final = next(iter(BROKERS))
CLIENT_IDS: Final = ("c1", "c2", "host@1@0@abc")
TELEMETRY: Final = "Telemetry"
BODY_BYTES_MAX: Final = 60_000
FRAME_HEAD_BYTES: Final = 9

_SELDOM: Final = ("body_digest", "delivery_timestamp", "message_group", "priority")
"""Fields that make most sends invalid: a message is of one kind, and its digest must match."""
_USUAL: Final = {"message_type": "NORMAL", "body_encoding": "IDENTITY"}
_NASTY_32: Final = (-1, -(2**31), 2**31 - 1, 65_536, 99)
_NASTY_64: Final = (-1, -(2**63), 2**63 - 1, 2**53 + 1, 10**15)
_INT32S: Final = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM)


class Rpc(NamedTuple):
    """An rpc of the service, with the classes of its messages."""

    name: str
    request: Any
    response: Any
    is_unary: bool

    @property
    def path(self) -> str:
        return SERVICE + self.name


@cache
def rpcs() -> list[Rpc]:
    """Returns all rpcs of the schema."""
    service = message_class("HeartbeatRequest").DESCRIPTOR.file.services_by_name["MessagingService"]
    return [
        Rpc(
            method.name,
            message_class(method.input_type.name),
            message_class(method.output_type.name),
            not (method.client_streaming or method.server_streaming),
        )
        for method in service.methods
    ]


def make_body(rpc: Rpc, now_ms: int, dice: Dice) -> bytes:
    """Returns a request; most can be decoded."""
    request, wild = rpc.request(), dice.pick((0, 0, 2, 10, 50))
    if rpc.name == TELEMETRY and dice.happens(60):  # without settings a client is unknown
        _fill(request.settings, "settings", now_ms, wild, dice)
    else:
        _fill(request, "", now_ms, wild, dice)
    data: bytes = request.SerializeToString()[:BODY_BYTES_MAX]
    if dice.happens(85):
        return data
    kind = dice.below(5)
    if kind == 0:
        return flip(data, dice)
    if kind == 1:
        return data[: dice.below(len(data) + 1)]
    if kind == 2:  # text that is not UTF-8; the lengths stay valid
        return data.replace(TOPIC.encode(), b"F\xff\xc0z")
    if kind == 3:
        return data + bytes(dice.below(256) for _ in range(dice.between(1, 20)))
    return make_body(dice.pick(rpcs()), now_ms, dice)


def make_headers(path: str, dice: Dice) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a call; one in ten is odd."""
    found = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "localhost",
        ":path": path,
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-timeout": dice.pick(("30S", "30S", "20000m", "1H")),
        "x-mq-client-id": dice.pick(CLIENT_IDS),
        "x-mq-language": "JAVA",
        "x-mq-client-version": "5.0.8",
        "x-mq-protocol": "v2",
        "x-mq-namespace": "",
        "x-mq-date-time": "20261121T000000Z",
        "authorization": "MQv2-HMAC-SHA1 Credential=a/b, SignedHeaders=x-mq-date-time, Signature=00",
    }
    if dice.happens(10):
        name = dice.pick([name for name in found if name[0] != ":" and name not in ("te", "content-type")])
        text = dice.pick(NASTY_TEXTS)[:8_000]
        if dice.happens(30):
            del found[name]
        else:
            found[name] = "".join(one for one in text if one not in "\r\n\x00").strip()
    return [(name.encode(), value.encode()) for name, value in found.items()]


def _fill(message: Any, role: str, now_ms: int, wild: int, dice: Dice) -> None:
    """Sets the fields of a message; `wild` is the share of nonsense in percent."""
    for field in message.DESCRIPTOR.fields:
        if ("lite" in field.name or field.name in _SELDOM) and not dice.happens(5):
            continue
        if field.containing_oneof is not None and not dice.happens(60):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(_count(wild, dice)):
                key = dice.pick(NASTY_TEXTS) if dice.happens(wild) else f"k{dice.below(300)}"
                getattr(message, field.name)[key] = dice.pick(NASTY_TEXTS) if dice.happens(wild) else "v"
        elif field.is_repeated:
            for _ in range(_count(wild, dice)):
                if field.message_type is None:
                    getattr(message, field.name).append(_value(field, role, now_ms, wild, dice))
                else:
                    _fill(getattr(message, field.name).add(), field.name, now_ms, wild, dice)
        elif field.message_type is None:
            setattr(message, field.name, _value(field, role, now_ms, wild, dice))
        elif not dice.happens(wild / 2):
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), field.name, now_ms, wild, dice)


def _count(wild: int, dice: Dice) -> int:
    return dice.pick((0, 2, 33, 200)) if dice.happens(wild) else dice.pick((1, 1, 2))


def _value(field: Any, role: str, now_ms: int, wild: int, dice: Dice) -> Any:
    is_wild = dice.happens(wild)
    if field.enum_type is not None and not is_wild:
        if field.name in _USUAL and dice.happens(70):
            return field.enum_type.values_by_name[_USUAL[field.name]].number
        return dice.pick([value.number for value in field.enum_type.values])
    if field.cpp_type in _INT32S:
        return dice.pick(_NASTY_32) if is_wild else {"port": 8081, "batch_size": 16}.get(field.name, 0)
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        if is_wild:
            return dice.pick(_NASTY_64)
        return {"seconds": now_ms // 1000 if "time" in role and "timeout" not in role else 20}.get(
            field.name, 0
        )
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return dice.happens(50)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return dice.pick((1.5, -1.0, float("nan"), float("inf"))) if is_wild else 2.0
    if field.type == FieldDescriptor.TYPE_BYTES:
        return dice.pick((b"", b"\x00" * 5_000)) if is_wild else b"a body"
    return dice.pick(NASTY_TEXTS) if is_wild else _text(field.name, role, now_ms, dice)


def _text(name: str, role: str, now_ms: int, dice: Dice) -> str:
    if name == "name":
        return {"group": GROUP, "broker": BROKER}.get(role, TOPIC)
    if name == "receipt_handle":
        return _maybe_broken(_receipt(now_ms, dice), dice)
    if name == "transaction_id":
        return _maybe_broken(render_transaction_id(TransactionId(BROKER, 1, 2, "key-1")), dice)
    if name == "recall_handle":
        return _maybe_broken(urlsafe_b64encode(f"v1 {TOPIC} {BROKER} {now_ms} key-1".encode()).decode(), dice)
    return {"expression": "*", "tag": "a", "keys": "k1", "message_id": "01AB", "host": "127.0.0.1"}.get(
        name, ""
    )


def _receipt(now_ms: int, dice: Dice) -> str:
    offset = dice.below(100)
    handle = Handle(
        start_offset=offset,
        pop_time_ms=now_ms,
        invisible_ms=60_000,
        revive_queue_id=0,
        flag=FLAG_NORMAL,
        broker_name=BROKER,
        queue_id=0,
        offset=offset,
    )
    return Receipt(handle, 1_000 + offset, dice.pick((0, 10_800_000))).text


def _maybe_broken(text: str, dice: Dice) -> str:
    if dice.happens(80):
        return text
    kind = dice.below(4)
    place = dice.below(len(text))
    if kind == 0:
        return text[:place]
    if kind == 1:
        return text[:place] + dice.pick(("-", " ", "9" * 30, "\x00", "ä", "٣")) + text[place:]
    if kind == 2:
        return " ".join(reversed(text.split(" ")))
    return text + " " + text


def make_session(now_ms: int, dice: Dice) -> tuple[list[bytes], int]:
    """Returns the bytes of a connection, cut at any place, and the number of its frames."""
    frames: list[bytes] = []
    for data in _valid_session(now_ms, dice):
        frames += split_frames(data)
    for _ in range(dice.pick((0, 1, 1, 2, 5))):
        place = 1 + dice.below(len(frames))  # most sessions keep the preface
        dice.pick(_SESSION_CHANGES)(frames, min(place, len(frames) - 1), dice)
    if dice.happens(3):
        frames[0] = flip(frames[0], dice)
    data, pieces = b"".join(frames), []
    while data:
        size = dice.pick((1, 3, 9, 100, 1_000, 20_000))
        pieces.append(data[:size])
        data = data[size:]
    return pieces, len(frames)


def _valid_session(now_ms: int, dice: Dice) -> Sequence[bytes]:
    """Returns the writes of a client of HTTP/2 that never waits for an answer."""
    http2 = h2.connection.H2Connection(
        h2.config.H2Configuration(
            header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
    )
    http2.initiate_connection()
    found = [http2.data_to_send()]
    left = BODY_BYTES_MAX
    for _ in range(dice.between(1, 8)):
        stream_id, rpc = http2.get_next_available_stream_id(), dice.pick(rpcs())
        path = rpc.path if dice.happens(95) else dice.pick(NASTY_TEXTS)[:1_000]
        http2.send_headers(stream_id, make_headers(path, dice))
        body = frame_message(make_body(rpc, now_ms, dice)[: left // 2], dice)
        left -= len(body)
        place = dice.below(len(body) + 1)
        for part in (body[:place], body[place:]):
            for at in range(0, len(part), 16_384):
                http2.send_data(stream_id, part[at : at + 16_384])
        if dice.happens(80):
            http2.end_stream(stream_id)
        elif dice.happens(50):
            http2.reset_stream(stream_id)
        if dice.happens(10):
            http2.ping(b"fuzzfuzz")
        if dice.happens(10):
            http2.increment_flow_control_window(dice.between(1, 2**20))
        found.append(http2.data_to_send())
    return found


def frame_message(body: bytes, dice: Dice) -> bytes:
    """Returns a gRPC message with its prefix, which is false sometimes."""
    flag, size = 0, len(body)
    if dice.happens(3):
        flag = dice.pick((1, 2, 255))
    if dice.happens(3):
        size = dice.pick((0, 1, size + 1, 2**31, 2**32 - 1))
    return bytes((flag,)) + size.to_bytes(4) + body


def split_frames(data: bytes) -> list[bytes]:
    """Returns the frames of a client's bytes; the preface counts as one."""
    found = []
    while data:
        size = FRAME_HEAD_BYTES + int.from_bytes(data[:3])
        if data.startswith(b"PRI "):
            size = 24
        found.append(data[:size])
        data = data[size:]
    return found


def _flip_payload(frames: list[bytes], place: int, dice: Dice) -> None:
    frame = frames[place]
    frames[place] = frame[:FRAME_HEAD_BYTES] + flip(frame[FRAME_HEAD_BYTES:], dice)


def _flip_head(frames: list[bytes], place: int, dice: Dice) -> None:
    frame = frames[place]
    frames[place] = flip(frame[:FRAME_HEAD_BYTES], dice) + frame[FRAME_HEAD_BYTES:]


def _set_length(frames: list[bytes], place: int, dice: Dice) -> None:
    size = dice.pick((0, 1, 4, 16_384, 16_385, 2**24 - 1))
    frames[place] = size.to_bytes(3) + frames[place][3:]


def _drop(frames: list[bytes], place: int, dice: Dice) -> None:
    if len(frames) > 1:
        del frames[place]


def _repeat(frames: list[bytes], place: int, dice: Dice) -> None:
    frames[place:place] = [frames[place]] * dice.pick((1, 1, 10, 300))


def _swap(frames: list[bytes], place: int, dice: Dice) -> None:
    other = dice.below(len(frames))
    frames[place], frames[other] = frames[other], frames[place]


def _invent(frames: list[bytes], place: int, dice: Dice) -> None:
    """Inserts frames of any type, flags and stream, with a payload of any or of the right length."""
    for _ in range(dice.pick((1, 1, 5, 100))):
        kind = dice.pick((*range(11), 255))
        size = {2: 5, 3: 4, 4: 6 * dice.below(4), 6: 8, 7: 8, 8: 4}.get(kind, dice.below(40))
        if dice.happens(10):
            size = dice.below(40)
        head = bytes((kind, dice.pick((0, 0, 1, 4, 5, 8, 0x20, 255))))
        stream_id = dice.pick((0, 0, 1, 1, 3, 5, 2, 101, 2**31 - 1))
        payload = bytes(dice.pick((0, 0, 0, 1, 4, 127, 255, dice.below(256))) for _ in range(size))
        frames.insert(place, size.to_bytes(3) + head + stream_id.to_bytes(4) + payload)


def _cut(frames: list[bytes], place: int, dice: Dice) -> None:
    frames[place] = frames[place][: dice.below(len(frames[place]))]


_SESSION_CHANGES: Final = (
    _flip_payload,
    _flip_payload,
    _flip_head,
    _set_length,
    _drop,
    _repeat,
    _swap,
    _invent,
    _cut,
)
