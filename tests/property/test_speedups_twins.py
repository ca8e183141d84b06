"""The functions of the kernel against their twins in Python, on plain, odd and mutated input.

`make speedups` builds the kernel and runs these tests, then again with the sanitizers of the C compiler.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from log_writer import LogWriter

from sim.dice import Dice
from sim.fuzz.mutate import flip
from tandemmq.broker.send.block import SendColumns, read_columns
from tandemmq.broker.send.reply import BlockReply, ReplyForm
from tandemmq.errors import RemoteProtocolError, TandemError
from tandemmq.protocol import speedups
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.frame import Frame, FrameDecoder
from tandemmq.protocol.record import NewBatch, batch_sizes, encode_batch_records
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.store.appender import PlacedBlock
from tandemmq.store.dispatcher import _pack_apart
from tandemmq.store.outcomes import PutStatus
from tandemmq.store.record_block import PlacedBatch

kernel: Any = pytest.importorskip("tandemmq_speedups", reason="`make speedups` builds it")

SEEDS = range(int(os.environ.get("TANDEMMQ_TWIN_SEEDS", "400")))
CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
ADDED = "MSG_REGION\x01Zürich\x02TRACE_ON\x01true\x02"
NUMBERS = (0, 1, 7, -1, 4095, 2**31 - 1, -(2**31))
WIDE = (*NUMBERS, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**63, 10**30, True, 1.5, "1", None)
TEXTS = (
    "7F0000010001ABCDEF",
    "a",
    "k" * 300,
    "",
    "é",
    "\U0001f600",
    'q"uote',
    "back\\",
    "\x7f",
    "\n",
    "\x01",
    "\0",
)
SHORT = TEXTS[:2]


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "kernel", None)


@contextmanager
def used() -> Iterator[None]:
    speedups.kernel = kernel
    try:
        yield
    finally:
        speedups.kernel = None


def outcome(call: Callable[[], object]) -> object:
    """Returns the result, or the kind of error that the twin raises for odd input."""
    try:
        return call()
    except TandemError as error:
        return type(error), str(error)
    except Exception as error:  # noqa: BLE001  # struct.error and TypeError of columns that no caller makes
        return type(error)


def both(call: Callable[[], object]) -> object:
    """Checks that the call has the same outcome with the kernel and without; returns that outcome."""
    alone = outcome(call)
    with used():
        assert outcome(call) == alone
    return alone


def properties(dice: Dice) -> str:
    pairs = [("UNIQ_KEY", dice.pick(SHORT)), ("TAGS", dice.pick(SHORT)), ("WAIT", "true")]
    if dice.happens(40):
        pairs.append(("KEYS", "one two"))
    if dice.happens(20):
        name = dice.pick(
            ("note", "TAGS", "UNIQ_KEY", "KEYS", "WAIT", "DELAY", "DELTA", "POP_CK", "__X", "", "x_MSG")
        )
        pairs.insert(dice.below(len(pairs) + 1), (name, dice.pick((*TEXTS, "false", "UNIQ_KEY"))))
    if dice.happens(30):
        pairs.reverse()
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    if dice.happens(5):
        text = text.replace("\x01", dice.pick(("", "\x01\x01", "\x02")), 1)
    return text


def header(dice: Dice, code: int, topic: str, is_closed: bool, is_odd: bool) -> bytes:
    """Returns the JSON header of a send; `is_odd`: something in it is unusual."""
    shape = SendRequest if code == RequestCode.SEND_MESSAGE else SendRequestV2
    text = properties(dice)
    values: dict[str, Any] = {
        "producer_group": "group",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_count": "4",
        "queue_id": str(dice.below(4)),
        "sys_flag": "0",
        "born_at_ms": "1700000000000",
        "flag": str(dice.pick(NUMBERS)),
        "properties": text if is_closed else text[:-1],
        "retry_count": "0",
        "is_unit_mode": "false",
        "retry_count_max": "16",
        "is_batch": "false",
        "broker_name": "b",
    }
    for name in ("retry_count", "is_unit_mode", "retry_count_max", "is_batch", "broker_name"):
        if dice.happens(30):
            del values[name]
    if is_odd and dice.happens(60):
        odd = (
            *WIDE,
            "",
            "0x1",
            "+1",
            "-0",
            "007",
            "1e3",
            " 1",
            "1 ",
            "true",
            "é",
            "9" * 19,
            "-" + "9" * 18,
            [],
            {},
        )
        values[dice.pick(sorted(values))] = dice.pick(odd)
    fields = {
        wire: values[name]
        for name, wire in zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
        if name in values
    }
    head: dict[str, Any] = {
        "code": int(code),
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": dice.pick(NUMBERS),
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    if is_odd and dice.happens(40):
        head[dice.pick((*head, "remark", "x"))] = dice.pick((*WIDE, [1], {"a": 1}))
    separators = (", ", ": ") if is_odd and dice.happens(20) else (",", ":")
    raw = json.dumps(head, separators=separators, ensure_ascii=dice.happens(80)).encode()
    if is_odd and dice.happens(40):
        changes = (
            (b'"flag":', b'"flag":0,"flag":'),
            (b"\\u0001", b"\\u001"),
            (b"}}", b"}"),
            (b"TAGS", b"T\\u0041GS"),
        )
        raw = raw.replace(*dice.pick(changes), 1)
    return flip(raw, dice) if is_odd and dice.happens(50) else raw


def block(dice: Dice) -> tuple[RequestCode, list[Frame]]:
    """Returns the frames of one read."""
    code, topic, is_closed = dice.pick(CODES), dice.pick(("T", "Täg", "x" * 140)), dice.happens(50)
    count = dice.pick((1, 4, 8, 16, 70))
    odd = dice.below(count) if dice.happens(50) else -1
    frames: list[Frame] = []
    for index in range(count):
        is_odd = index == odd
        kind, body = 0, b"x" * (1 + dice.below(50))
        if is_odd and dice.happens(10):
            kind, body, topic = dice.pick(((1, body, topic), (0, b"", topic), (0, body, "Other")))
        frames.append((header(dice, code, topic, is_closed, is_odd), body, kind))
    return code, frames


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_of_sends_are_equal(seed: int) -> None:
    dice = Dice(seed)
    for _ in range(10):
        code, frames = block(dice)
        alone = read_columns(code, frames, ADDED)
        with used():
            beside = read_columns(code, frames, ADDED)
        if alone is None or beside is None:
            assert alone is beside, frames
            continue
        for name, ours, theirs in zip(SendColumns._fields, alone, beside, strict=True):
            if name != "text":
                ours, theirs = (tuple(one) if isinstance(one, list) else one for one in (ours, theirs))
                assert theirs == ours, (name, frames)


def _sends(seed: int, code: RequestCode, drop: tuple[str, ...]) -> list[Frame]:
    """Returns three equal sends, the second without the field at the path `drop`."""
    frames: list[Frame] = []
    for number in range(3):
        head = json.loads(header(Dice(seed), code, "T", is_closed=True, is_odd=False))
        if number == 1 and drop:
            *above, name = drop
            del (head["extFields"] if above else head)[name]
        frames.append((json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode(), b"body", 0))
    return frames


@pytest.mark.parametrize("code", CODES)
def test_a_send_that_lacks_a_field_is_read_as_without_the_kernel(code: RequestCode) -> None:
    read = partial(kernel.read_sends, code, code == RequestCode.SEND_MESSAGE_V2)
    seed = next(seed for seed in range(100) if read(_sends(seed, code, ()), b"") is not None)
    whole = json.loads(_sends(seed, code, ())[0][0])
    paths = [(name,) for name in whole] + [("extFields", name) for name in whole["extFields"]]
    refused = []
    for path in paths:
        frames = _sends(seed, code, path)
        alone = read_columns(code, frames, ADDED)
        if alone is None:
            refused.append(path)
            assert read(frames, b"") is None, path
            continue
        with used():
            beside = read_columns(code, frames, ADDED)
        assert beside is not None, path
        for ours, theirs in zip(alone, beside, strict=True):
            assert isinstance(ours, str) or theirs == ours or list(theirs) == list(ours), path
    assert ("code",) in refused
    assert len(refused) >= 9, refused


def test_the_kernel_takes_ordinary_sends() -> None:
    taken = tried = 0
    for seed in range(100):
        code, frames = block(Dice(seed))
        if read_columns(code, frames, ADDED) is not None:
            tried += 1
            is_v2 = code == RequestCode.SEND_MESSAGE_V2
            taken += kernel.read_sends(code, is_v2, frames, b"") is not None
    assert tried > 10
    assert taken > tried / 3, (taken, tried)


def stream(dice: Dice) -> bytes:
    pieces = []
    for _ in range(dice.below(6)):
        head, body = b"{}" * dice.below(20), b"x" * dice.below(300)
        size = (4 + len(head) + len(body)).to_bytes(4, "big")
        pieces.append(size + bytes([dice.pick((0, 0, 0, 1))]) + len(head).to_bytes(3, "big") + head + body)
    raw = b"".join(pieces)
    return flip(raw, dice) if raw and dice.happens(40) else raw


@pytest.mark.parametrize("seed", SEEDS)
def test_frames_of_streams_are_equal(seed: int) -> None:
    dice = Dice(seed)
    for _ in range(10):
        raw, bytes_max = stream(dice), dice.pick((64, 400, 1 << 24))
        cuts = sorted(dice.below(len(raw) + 1) for _ in range(dice.below(4)))
        ends = [*cuts, len(raw)]

        def split(raw: bytes = raw, ends: list[int] = ends, bytes_max: int = bytes_max) -> object:
            decoder, begin, found = FrameDecoder(bytes_max), 0, []
            for end in ends:
                try:
                    found += decoder.split(raw[begin:end])
                except RemoteProtocolError as error:
                    return found, str(error), decoder.buffered_bytes
                begin = end
            return found, decoder.buffered_bytes, decoder.unfinished_count

        both(split)


@pytest.mark.parametrize("size", [0x3FFFE, 0x3FFFF, 0x40000, 0x50000])
def test_headers_of_any_size_are_equal(size: int) -> None:
    raw = (4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + b"x" * size

    def split() -> object:
        return FrameDecoder(1 << 24).split(raw)

    found = both(split)
    assert isinstance(found, list) == (size <= 0x3FFFF), "other headers are refused"


@pytest.mark.parametrize("seed", SEEDS)
def test_records_are_equal(seed: int) -> None:
    dice = Dice(seed)
    for _ in range(10):
        count, odd = dice.pick((1, 2, 16)), dice.happens(30)

        def numbers(choices: tuple[Any, ...], count: int = count, odd: bool = odd) -> list[Any]:
            return [dice.pick(WIDE if odd and dice.happens(10) else choices) for _ in range(count)]

        body = b"body" * dice.below(100)
        batch = NewBatch(
            topic=dice.pick(("T", "x" * 200, "Täg")),
            queue_ids=numbers(NUMBERS),
            bodies=[dice.pick((body, memoryview(body)[:3], b"")) for _ in range(count)],
            properties=[b"p" * dice.pick((0, 1, 700)) for _ in range(count)],
            born_times_ms=numbers((0, 1_700_000_000_000, -1)),
            born_host=bytes(dice.pick((8, 20))),
            tag_hashes=[0] * count,
            flags=numbers(NUMBERS),
            sys_flag=dice.pick((0, 1, 0x30)),
            retry_count=dice.pick((0, 3)),
            keys=[""] * count,
            unique_keys=[""] * count,
            wait_stored=True,
        )
        host = bytes(dice.pick((8, 20)))
        sizes = batch_sizes(batch, len(host))
        log_offsets = numbers((0, 4096, 2**40))
        queue_offsets = dice.pick((range(count), numbers((0, 5))))
        if odd and dice.happens(30):
            sizes = dice.pick((sizes[1:], [*sizes[1:], 3], [*sizes[1:], 2**31]))
        places = {"queue_offsets": queue_offsets, "stored_at_ms": 9, "store_host": host}
        found = both(partial(encode_batch_records, batch, sizes, log_offsets, **places))
        assert odd or isinstance(found, bytes)


class Answers:
    """A channel that keeps the answers."""

    frames = b""

    def send_answers(self, opaques: object, frames: bytes) -> None:
        self.frames += frames


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_equal(seed: int) -> None:
    dice = Dice(seed)
    for _ in range(10):
        count, odd = dice.pick((1, 2, 40)), dice.happens(40)
        form = ReplyForm(
            bytes(dice.pick((8, 20))), dice.pick(("R", 'R"1%d', "Zürich%%")), is_traced=dice.happens(50)
        )
        columns = [
            [dice.pick(choices if not odd or dice.happens(90) else WIDE) for _ in range(count)]
            for choices in ((0, 2**40), NUMBERS, (0, 2**62), NUMBERS)
        ]
        keys = [dice.pick(TEXTS if odd else SHORT) for _ in range(count)]

        def render(form: ReplyForm = form, columns: Any = columns, keys: list[str] = keys) -> object:
            channel = Answers()
            reply = BlockReply(form, channel, columns[3], columns[1], keys)  # type: ignore[arg-type]
            reply.placed = PlacedBlock(columns[0], columns[2], ())
            reply.done(PutStatus.PUT_OK)
            return channel.frames

        found = both(render)
        assert odd or isinstance(found, bytes)


@pytest.mark.parametrize("seed", SEEDS)
def test_entries_of_queues_are_equal(seed: int) -> None:
    dice = Dice(seed)
    for _ in range(10):
        count, odd = dice.pick((1, 2, 40, 200)), dice.happens(30)
        queues: list[Any] = [f"queue {number}" for number in range(dice.pick((1, 4, 70)))]
        columns = [
            [dice.pick(choices if not odd or dice.happens(99) else WIDE) for _ in range(count)]
            for choices in ((0, 2**40), (91, 4096), NUMBERS)
        ]
        sizes = columns[1][1:] if odd and dice.happens(20) else columns[1]
        queue_of = [dice.pick(queues) for _ in range(count)]
        placed = PlacedBatch("T", 0, columns[0], sizes, columns[2], (), (), (), queue_of)
        found = both(partial(_pack_apart, placed))
        assert odd or isinstance(found, list)


JUNK: tuple[Any, ...] = (
    *WIDE,
    *(b"", b"x" * 9, b"\0\0\0\4\0\0\0\0", "é", bytearray(9), object(), range(3), {1: 2}, iter(())),
    *([], (), [1], (b"{}", b"b", 0), [(b"{}", b"b", 0)], [("x", "y", 0)], [(b"{}", b"", 0)]),
    *((b"",) * 6, ([1],) * 9, ([],) * 9),
)
COUNTS = {
    "split_frames": 4,
    "read_sends": 4,
    "encode_records": 5,
    "render_answers": 6,
    "pack_entries": 4,
    "read_records": 5,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_arguments_of_other_types_are_refused(seed: int) -> None:
    dice = Dice(seed)
    for name, count in COUNTS.items():
        for _ in range(20):
            arguments = [dice.pick(JUNK) for _ in range(count)]
            with suppress(TypeError, OverflowError, ValueError):
                getattr(kernel, name)(*arguments)


def test_no_memory_is_kept() -> None:
    dice = Dice(7)
    blocks, pieces = [block(dice) for _ in range(30)], [stream(dice) for _ in range(30)]
    log = LogWriter(dice, 0).write(40)

    def run() -> None:
        for code, frames in blocks:
            kernel.read_sends(code, code == RequestCode.SEND_MESSAGE_V2, frames, b"added")
        for piece in pieces:
            kernel.split_frames(piece, 0, 1 << 24, 0x3FFFF)
        for text in TEXTS:
            kernel.render_answers((b"x",) * 6, [1, 2], [2, 3], [3, 4], [text, "a"], [5, 6])
        for tag in (6, None):
            kernel.pack_entries(["a", "b"], [1, 2], [3, 4], [5, tag])
            kernel.encode_records(([57], [0], [0], [tag], [0], [0], [0], [b"abc"], [b""]), 0, 0, b"", b"")
        for end in (len(log), 500, 50):
            kernel.read_records(log, 0, end, 0, 4096)

    run()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(20):
        run()
    gc.collect()
    assert sys.getallocatedblocks() - before < 20
