"""Sends of one read as a block against the same sends one by one.

Two brokers in memory get the same bytes in the same pieces; only one of them takes blocks. Whatever the
pieces contain, both answer the same bytes, and their logs, ConsumeQueues, indexes and statistics are equal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from block_rig import QUEUES, TOPICS, Side, are_all_readable, with_header

from sim.dice import Dice
from sim.fuzz.mutate import flip
from tandemmq.broker.send import block
from tandemmq.protocol import speedups
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import (
    FLAG_ONEWAY,
    SERIALIZE_ROCKETMQ,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.properties import render_claim
from tandemmq.protocol.record import decode_record
from tandemmq.protocol.requests.consume import GetMaxOffsetRequest
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2, SendResponse
from tandemmq.units import ReplicaId

SEEDS = range(60)


@dataclass
class Sender:
    """Makes the pieces that both brokers receive: mostly plain sends, with a few others among them."""

    dice: Dice
    number: int = 0
    opaque_step: int = 1
    """Below zero, later requests have lower opaques: a client may number its requests as it likes."""

    def piece(self) -> bytes:
        """Returns the frames of one read; in every other piece all are ordinary."""
        dice = self.dice
        count = dice.pick((1, 3, 4, 5, 8, 16, 40))
        style = self.style()
        odd = set() if dice.happens(50) else {dice.below(count) for _ in range(dice.pick((1, 1, 2)))}
        return b"".join(
            self.odd_frame(style) if index in odd else self.plain_frame(style) for index in range(count)
        )

    def style(self) -> dict[str, Any]:
        """Returns what the sends of one piece have in common."""
        dice = self.dice
        return {
            "topic": dice.pick(TOPICS),
            "ends": dice.happens(50),
            "keys": dice.pick(("", "", "same", "own")),
            "first": dice.happens(50),
            "tag": dice.pick(("Tag", "Tag", "Täg", "\U0001f600")),
            "key": dice.pick(("7F0000010001", "7F0000010001", "\u2028é")),
            "sys_flag": dice.pick((0, 0, 0, 1, 0x10, 0x20)),  # the marks of IPv6 hosts are not the sender's
            "code": dice.pick((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)),
        }

    def plain_frame(self, style: dict[str, Any], **changes: Any) -> bytes:
        return encode_frame(self.plain(style, **changes))

    def plain(
        self,
        style: dict[str, Any],
        *,
        pairs: dict[str, str] | None = None,
        body: bytes | None = None,
        code: int | None = None,
        text: str | None = None,
        **changes: Any,
    ) -> Command:
        """Returns an ordinary send with these changes to its header; `pairs` are added to its properties."""
        self.number += 1
        dice, number = self.dice, self.number
        code = style["code"] if code is None else code
        first = {} if style["keys"] == "" else {"KEYS": "order"}
        if style["keys"] == "own":
            first = {"KEYS": f"order{number} {'x' * dice.below(9)}"}
        unique_key, tag = f"{style['key']}{number:020X}", f"{style['tag']}{dice.below(4)}"
        own = {"UNIQ_KEY": unique_key, "WAIT": "true", "TAGS": tag}
        found = {**first, **own} if style["first"] else {**own, **first}
        if text is None:
            text = "".join(f"{name}\x01{value}\x02" for name, value in {**found, **(pairs or {})}.items())
            if not style["ends"]:
                text = text[:-1]
        fields: dict[str, Any] = {
            "producer_group": "group",
            "topic": style["topic"],
            "default_topic": "TBW102",
            "default_topic_queue_count": 4,
            "queue_id": dice.below(QUEUES),
            "sys_flag": style["sys_flag"],
            "born_at_ms": 1_700_000_000_000 + dice.below(5),
            "flag": dice.pick((0, 0, 7, -1)),
            "properties": text,
            **changes,
        }
        shape = SendRequest if code == RequestCode.SEND_MESSAGE else SendRequestV2
        command = Command.request(
            code, shape(**fields), body=b"x" * (1 + dice.below(200)) if body is None else body
        )
        command.language = int(LanguageCode.JAVA)
        command.opaque = number * self.opaque_step
        return command

    def odd_frame(self, style: dict[str, Any]) -> bytes:
        """Returns a frame that a block cannot take, or that only looks like one."""
        dice = self.dice
        kind = dice.below(10)
        if kind == 0:
            names = ("DELAY", "TRAN_MSG", "__SHARDINGKEY", "TIMER_DELIVER_MS", "POP_CK", "__CRC32#", "DELTA")
            return self.plain_frame(style, pairs={dice.pick(names): dice.pick(("1", "true", "x"))})
        if kind == 1:
            values = (
                "two\nlines",
                "Straße",
                "\U0001f600",
                "\u2028",
                "\0",
                "\0" * 600,
                'quoted "\\',
                "y" * 33_000,
            )
            name = dice.pick(("note", "KEYS", "TAGS", "UNIQ_KEY"))
            return self.plain_frame(style, pairs={name: dice.pick(values)})
        if kind == 2:
            pairs = {"WAIT": dice.pick(("false", "False", "no"))} if dice.happens(50) else _claim(self.number)
            return self.plain_frame(style, pairs=pairs)
        if kind == 3:
            twice = f"UNIQ_KEY\x01a{self.number}\x02TAGS\x01a\x02TAGS\x01b\x02UNIQ_KEY\x01b\x02\x02x"
            texts = ("", "TAGS\x01a\x02", "\x02\x02", "UNIQ_KEY\x01", "UNIQ_KEY\x01k\x02UNIQ_KEY\x01\x02")
            two = f"UNIQ_KEY\x01a{self.number}\x02note\x01x\nUNIQ_KEY\x01b{self.number}\x02"  # on two lines
            return self.plain_frame(style, properties=dice.pick((*texts, twice, two, None)))
        if kind == 4:
            frame = bytearray(self.plain_frame(style))
            frame[4] = SERIALIZE_ROCKETMQ  # its header is JSON
            return bytes(frame)
        if kind < 7:
            return self.other_request(style)
        if kind < 9:
            old, new = dice.pick(_CHANGES)
            return with_header(self.plain_frame(style), lambda header: header.replace(old, new, 1))
        return with_header(self.plain_frame(style), lambda header: flip(header, dice))

    def other_request(self, style: dict[str, Any]) -> bytes:
        """Returns a send with an unusual header or body, or a frame that is another request."""
        dice = self.dice
        kind = dice.below(11)
        if kind == 0:
            topic = dice.pick((*TOPICS, "New", "%RETRY%group", "bad topic"))
            return self.plain_frame({**style, "topic": topic})
        if kind == 1:
            return self.plain_frame(style, queue_id=dice.pick((-1, QUEUES, 2**31 - 1)))
        if kind == 2:
            return self.plain_frame(style, body=dice.pick((b"", b"y" * 700, b"z" * 20_000)))
        if kind == 3:
            return self.plain_frame(style, sys_flag=dice.pick((1, 4, 8, 12, 0x80, 0x10)))
        if kind == 4:
            return self.plain_frame(style, retry_count=dice.pick((0, 1, -1, 17)))
        if kind == 5:
            return self.plain_frame(
                style, code=dice.pick((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2))
            )
        if kind == 6:
            body = encode_batch([(0, b"one", b"UNIQ_KEY\x01b1\x02"), (1, b"two", b"TAGS\x01a\x02")])
            code = dice.pick((RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2))
            return self.plain_frame(style, code=code, is_batch=True, body=body)
        if kind == 7:
            header = GetMaxOffsetRequest(topic="T", queue_id=dice.below(QUEUES + 1))
            return encode_frame(Command.request(RequestCode.GET_MAX_OFFSET, header))
        command = self.plain(style)
        if kind == 8:
            command.flag |= FLAG_ONEWAY
        elif kind == 9:
            command.serialize_type = SERIALIZE_ROCKETMQ
        return encode_frame(command if kind < 10 else command.reply(0))


_CHANGES = (
    (b'"e":"', b'"e":" '),
    (b'"queueId":"', b'"queueId":" '),
    (b"TAGS", b"\\ud800"),
    (b"group", b"gr\xff"),
    (b'"flag"', b'"flag":[],"flag"'),
    (b',"flag"', b',"x":1}\n{"code":310,"flag"'),
    (b'{"code"', b'\n {"code"'),
    (b'"JAVA"', b"[1]"),
    (b'"JSON"', b'"J\xff"'),
    (b'"version":', b'"version":"x","version":'),
    (b'"code":310', b'"code":310,"code":10'),
    (b'"code":10', b'"code":10,"code":310'),
)
"""Changes to the JSON of a header: the text to replace, and the new text."""


def _claim(number: int) -> dict[str, str]:
    name, _, value = render_claim("producer", number, "").removesuffix("\x02").partition("\x01")
    return {name: value}


async def run(seed: int, *, takes_blocks: bool) -> tuple[dict[str, object], Counter[int]]:
    """Sends the pieces of `seed` to a broker; returns its end, and the number of blocks it took by code."""
    side = Side(seed, takes_blocks=takes_blocks)
    await side.start()
    dice = Dice(seed + 1_000_000)
    sender = Sender(dice, opaque_step=-1 if seed % 2 else 1)
    rest = b""
    for index in range(40):
        if dice.happens(30):
            side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
        stream = rest + sender.piece()
        cut = len(stream) - (dice.below(300) if dice.happens(20) else 0)
        piece, rest = stream[:cut], stream[cut:]
        side.fault.is_full = index > 10 and dice.happens(4)
        await side.receive(piece)
        if side.fault.is_full:
            side.fault.is_full = False
            await side.clock.pass_time(dice.pick((0.01, 2)))
        fate = dice.below(12)
        if fate == 0:
            await side.clock.pass_time(dice.pick((0.01, 0.2, 6)))
        elif fate < 6:
            await side.clock.pass_time(0)
    return await side.end(), side.blocks


@pytest.fixture(params=["twins", "kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Uses the functions in Python, then those of the kernel; the latter skips without `make speedups`."""
    is_used = request.param == "kernel"
    module = pytest.importorskip("tandemmq_speedups", reason="`make speedups` builds it") if is_used else None
    monkeypatch.setattr(speedups, "kernel", module)
    monkeypatch.setattr(block, "COUNT_MIN", block.COUNT_MIN_WITH_KERNEL)  # small ones must be right, too
    return is_used


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_block_does_what_its_sends_would_do_one_by_one(seed: int) -> None:
    together, _ = await run(seed, takes_blocks=True)
    alone, _ = await run(seed, takes_blocks=False)
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        assert together[name] == value, name


@pytest.mark.usefixtures("kernel")
async def test_blocks_are_taken() -> None:
    counts = [(await run(seed, takes_blocks=True))[1] for seed in range(30)]
    taken = sum(counts, Counter())
    assert min(taken[RequestCode.SEND_MESSAGE], taken[RequestCode.SEND_MESSAGE_V2]) > 32, counts


BATCH_BODY = encode_batch([(0, b"one", b"UNIQ_KEY\x01b1\x02"), (1, b"two", b"TAGS\x01a\x02")])
TWO_LINES = "UNIQ_KEY\x01a\x02note\x01x\nUNIQ_KEY\x01b\x02"


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize(
    "changes",
    [
        {"is_batch": True, "body": BATCH_BODY},
        {"properties": TWO_LINES},
        {"properties": TWO_LINES.removesuffix("\x02")},
        {"properties": ""},
        {"body": b""},
        {"retry_count": 1},
        {"queue_id": -1},
        {"queue_id": QUEUES},
        {"sys_flag": 0x10},
        {"topic": "%RETRY%group"},
    ],
    ids=repr,
)
async def test_one_unusual_send_is_handled_in_a_block_as_alone(code: int, changes: dict[str, Any]) -> None:
    """The seeds have few of each kind."""

    async def end(*, takes_blocks: bool) -> dict[str, object]:
        side = Side(1, takes_blocks=takes_blocks)
        await side.start()
        sender = Sender(Dice(1))
        style = {**sender.style(), "topic": "T", "sys_flag": 0, "code": code}
        pieces = [sender.plain_frame(style) for _ in range(8)]  # begins a file
        await side.receive(b"".join(pieces))
        pieces = [sender.plain_frame(style, **(changes if index == 3 else {})) for index in range(8)]
        await side.receive(b"".join(pieces))
        return await side.end()

    together, alone = await end(takes_blocks=True), await end(takes_blocks=False)
    assert together == alone


def check_stored(side: Side, sent: Command, answer: Command) -> None:
    """Checks that this send is stored, at the place that its answer names, and as its own request says."""
    header = sent.header
    assert isinstance(header, SendRequest | SendRequestV2)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    place = answer.decode(SendResponse)
    assert place.queue_id == header.queue_id
    log_offset = decode_message_id(place.message_id).log_offset
    view = side.store.read_record(log_offset)
    assert view is not None
    record = decode_record(view, check_seal=True, log_offset=log_offset)
    assert (record.body, record.topic, record.flag) == (sent.body, header.topic, header.flag)
    assert (record.queue_id, record.queue_offset) == (header.queue_id, place.queue_offset)
    assert record.born_at_ms == header.born_at_ms
    assert record.unique_key == place.transaction_id
    assert record.raw_properties.startswith((header.properties or "").encode())
    queue = side.store.queues.table[header.topic, header.queue_id]
    entry = queue.entry(place.queue_offset)
    assert entry is not None
    assert entry[:2] == (log_offset, record.size)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_changed_header_changes_nothing_for_the_other_sends_of_its_block(seed: int) -> None:
    """Each of the others is stored once, as its own request says, and answered with its own place."""
    dice = Dice(seed + 2_000_000)
    side = Side(seed, takes_blocks=True)
    await side.start()
    sender = Sender(dice, opaque_step=-1 if seed % 2 else 1)
    style = {**sender.style(), "topic": dice.pick(TOPICS[:2])}
    sends = [sender.plain(style) for _ in range(dice.pick((4, 8, 24)))]
    frames = [encode_frame(send) for send in sends]
    changed = dice.below(len(sends))
    if dice.happens(40):
        old, new = dice.pick(_CHANGES)
        frames[changed] = with_header(frames[changed], lambda header: header.replace(old, new, 1))
    elif dice.happens(60):
        frames[changed] = with_header(frames[changed], lambda header: flip(header, dice))
    else:
        frames[changed] = sender.odd_frame(style)
    is_readable = are_all_readable(frames)
    await side.receive(b"".join(frames))
    side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
    await side.clock.pass_time(1)
    found = FrameDecoder().feed(bytes(side.transport.written))
    if not is_readable:
        assert (found, side.store.appended.value) == ([], 0)
        return
    answers = {answer.opaque: answer for answer in found}
    del sends[changed]
    for send in sends:
        check_stored(side, send, answers[send.opaque])
    places = [answers[send.opaque].decode(SendResponse).message_id for send in sends]
    assert len(set(places)) == len(sends)
    await side.end()
