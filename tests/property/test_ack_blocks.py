"""Acks of one read as a block against the same acks one by one.

Two brokers pop the same messages and get the same acks in the same pieces; only one of them takes blocks.
Both answer the same bytes, and their logs, queues, leases, positions, offsets and statistics are equal.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from block_rig import QUEUES, Side, are_all_readable, with_header

from sim.dice import Dice
from sim.fuzz.mutate import flip
from tandemmq.broker.durable import DutyTasks
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.progress import BatchAck, BatchAckEntry, encode_bits
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import (
    FLAG_ONEWAY,
    SERIALIZE_ROCKETMQ,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.header_codec import Header
from tandemmq.protocol.pop_receipts import ORDERED_REVIVE_QUEUE, parse_handle, real_topic, split_items
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.requests.consume import (
    AckRequest,
    ChangeInvisibleRequest,
    PopRequest,
    PopResponse,
)
from tandemmq.units import ReplicaId

SEEDS = range(int(os.environ.get("TANDEMMQ_BLOCK_SEEDS", "20")))
POPPED = ("T", "Tags")
GROUPS = ("G", "G", "H")
ORDERED_GROUP = "Ordered"


class PopSide(Side):
    """A broker that also revives messages whose leases ended."""

    async def start(self) -> None:
        await super().start()
        self.duties = DutyTasks(self.store, lambda: [self.parts.pop.revive])
        self.duties.start()
        await self.clock.pass_time(0)
        for number in range(320):
            key = f"{number:032X}"
            record = NewRecord(
                topic=POPPED[number % 2],
                queue_id=number // 2 % QUEUES,
                body=b"x",
                properties=encode_properties({"UNIQ_KEY": key}),
                born_at_ms=0,
                born_host=bytes(8),
                unique_key=key,
            )
            self.store.appender.append([record], lambda _status: None)
            self.store.replies.acks.report(ReplicaId("slave"), self.store.appended.value)
            if number % 32 == 31:
                await self.clock.pass_time(0.01)

    def resize(self, topic: str, queue_count: int) -> None:
        """Gives the topic this number of read queues."""
        config = TopicConfig(name=topic, read_queue_count=queue_count, write_queue_count=QUEUES, permission=6)
        self.core.topics.put(config, self.clock.now_ms())

    async def end(self) -> dict[str, object]:
        await self.clock.pass_time(20)
        pop, stats = self.parts.pop, self.core.stats
        found: dict[str, object] = {
            "leases": sorted((lease.key, repr(lease)) for lease in pop.leases.all()),
            "next end": pop.leases.next_end_ms(),
            "positions": dict(pop.acks.lease_log.positions),
            "offsets": {
                (group, topic, queue_id): self.core.offsets.committed(group, topic, queue_id)
                for topic, queue_id in self.store.queues.table
                for group in {*GROUPS, ORDERED_GROUP, "CID_RMQ_SYS_REVIVE_GROUP"}
            },
            "acks": (stats.ack_count, stats.acks.rows, pop.acks.acked_count, pop.acks.changed_count),
            "check points": (stats.checkpoint_count, stats.checkpoints.rows),
            "redelivered": (stats.redelivered.rows, pop.revive.revived_count),
        }
        await self.duties.stop()
        return {**found, **await super().end()}


@dataclass(frozen=True)
class Held:
    """A popped message, as the request that acknowledges it."""

    ack: AckRequest
    opaque: int
    """The opaque of the pop."""


@dataclass
class Consumer:
    """Makes the pieces that a broker receives: pops, and acks of what came of them."""

    dice: Dice
    number: int = 0
    pops: dict[int, PopRequest] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    decoder: FrameDecoder = field(default_factory=FrameDecoder)

    def learn(self, answers: bytes) -> None:
        """Takes the messages of the pops that are answered here."""
        for answer in self.decoder.feed(answers):
            pop = self.pops.pop(answer.opaque, None)
            if pop is None or answer.code != ResponseCode.SUCCESS:
                continue
            header = answer.decode(PopResponse)
            starts = {item[:2]: item[2] for item in split_items(header.start_offset_info)}
            times = f"{header.pop_time_ms} {header.invisible_ms} {header.revive_queue_id}"
            for flag, queue_id, offsets in split_items(header.message_offset_info):
                for offset in offsets.split(","):
                    ack = AckRequest(
                        consumer_group=pop.consumer_group,
                        topic=real_topic(flag, pop.consumer_group, pop.topic),
                        queue_id=int(queue_id),
                        extra_info=f"{starts[flag, queue_id]} {times} {flag} b {queue_id} {offset}",
                        offset=int(offset),
                    )
                    self.held.append(Held(ack, answer.opaque))
        del self.held[:-400]

    def piece(self) -> bytes:
        """Returns the frames of one read: pops, or acks of which some may be odd."""
        dice = self.dice
        if not self.held or dice.happens(35):
            return b"".join(self.pop_frame() for _ in range(dice.pick((1, 1, 2, 5))))
        acks = [held.ack for held in self.choose()]
        if dice.happens(4):  # as if all had been popped in order
            acks = [_with(ack, extra_info=_ordered(ack.extra_info)) for ack in acks]
        odd = set() if dice.happens(55) else {dice.below(len(acks)) for _ in range(dice.pick((1, 1, 2)))}
        return b"".join(
            self.odd_frame(ack, acks) if index in odd else self.ack_frame(ack)
            for index, ack in enumerate(acks)
        )

    def choose(self) -> list[Held]:
        """Returns messages to acknowledge: of one pop or of several, in order or not, mostly once."""
        dice = self.dice
        wanted = dice.pick(self.held[-64:] if dice.happens(80) else self.held).opaque
        found = [held for held in self.held if held.opaque == wanted]
        if dice.happens(30):
            others = dice.pick((4, 16, 40))
            found += self.held[-others:]
        if dice.happens(30):
            found = found[dice.below(len(found)) :][: dice.pick((3, 4, 7))]
        if dice.happens(30):
            found = [dice.pick(found) for _ in found]  # some twice, in any order
        if dice.happens(80):
            self.held = [held for held in self.held if held not in found]
        return found

    def pop_frame(self) -> bytes:
        dice = self.dice
        is_ordered = dice.happens(10)
        pop = PopRequest(
            consumer_group=ORDERED_GROUP if is_ordered else dice.pick(GROUPS),
            topic=dice.pick(POPPED),
            queue_id=dice.pick((-1, -1, 0, 1)),
            count_max=dice.pick((1, 5, 32, 32)),
            invisible_ms=dice.pick((50, 1_000, 5_000, 60_000, 60_000)),
            is_ordered=is_ordered,
        )
        frame = self.frame(RequestCode.POP_MESSAGE, pop)
        self.pops[self.number] = pop
        return frame

    def ack_frame(self, ack: AckRequest) -> bytes:
        return self.frame(RequestCode.ACK_MESSAGE, ack)

    def frame(
        self,
        code: int,
        header: Header | None,
        *,
        flag: int = 0,
        serialize_type: int = 0,
        body: bytes = b"",
        opaque: int | None = None,
    ) -> bytes:
        self.number += 1
        command = Command.request(code, header, body=body)
        command.opaque, command.language = self.number if opaque is None else opaque, int(LanguageCode.JAVA)
        command.flag, command.serialize_type = flag, serialize_type
        return encode_frame(command)

    def odd_frame(self, ack: AckRequest, acks: Sequence[AckRequest]) -> bytes:
        """Returns a frame in the place of this ack: another request, or an ack that a block may not take."""
        dice = self.dice
        kind = dice.pick((*range(12), 4, 7))
        if kind == 0:  # two requests with one opaque
            return self.ack_frame(ack) + self.frame(
                RequestCode.ACK_MESSAGE, dice.pick(acks), opaque=self.number
            )
        if kind == 1:
            return self.frame(RequestCode.ACK_MESSAGE, _with(ack, is_strict=True))
        if kind == 2:
            group, topic = dice.pick((*GROUPS, "None")), dice.pick((*POPPED, "None", "%RETRY%G_T"))
            queue_id = dice.pick((-1, 0, 1, QUEUES, 2**31 - 1))
            change = dice.pick(({"consumer_group": group}, {"topic": topic}, {"queue_id": queue_id}))
            return self.ack_frame(_with(ack, **change))
        if kind == 3:
            offset = dice.pick((dice.below(40), dice.below(40), ack.offset + 1, -1, 1_000))
            head = ack.extra_info.rpartition(" ")[0]
            info = f"{head} {offset}" if dice.happens(70) else ack.extra_info
            return self.ack_frame(_with(ack, offset=offset, extra_info=info))
        if kind == 4:
            return self.ack_frame(_with(ack, extra_info=self.odd_handle(ack.extra_info)))
        if kind == 5:
            return self.frame(RequestCode.ACK_MESSAGE, ack, flag=dice.pick((FLAG_ONEWAY, 1, 4)))
        if kind == 6:
            if dice.happens(20):  # its header is JSON
                frame = bytearray(self.ack_frame(ack))
                frame[4] = SERIALIZE_ROCKETMQ
                return bytes(frame)
            return self.frame(RequestCode.ACK_MESSAGE, ack, serialize_type=SERIALIZE_ROCKETMQ)
        if kind == 7:
            return self.other_request(ack)
        if kind == 8:
            return self.frame(RequestCode.ACK_MESSAGE, ack, body=b"ignored")
        if kind == 9:
            return self.pop_frame()
        frame = self.ack_frame(ack)
        if kind == 10:
            old, new = dice.pick(_CHANGES)
            return with_header(frame, lambda header: header.replace(old, new, 1))
        return with_header(frame, lambda header: flip(header, dice))

    def odd_handle(self, text: str) -> str:
        """Returns another text in the place of the handle, which may name the same lease."""
        parts = text.split(" ")
        kind = self.dice.pick((0, 1, 2, 3, 4, 4, 5, 6))
        if kind == 0:
            return " ".join(parts[:-1])
        if kind == 1:
            return f"{text} {parts[-1]}"
        if kind == 2:  # the same lease in other words
            parts[self.dice.pick((2, 4, 5))] = "7"
        elif kind == 3:
            parts[self.dice.pick((0, 1, 7))] = f"0{parts[0]}"
        elif kind == 4:
            return _ordered(text)
        elif kind == 5:
            parts[self.dice.below(len(parts))] = self.dice.pick(("", "x", "-1", "9" * 20))
        else:
            parts[-1] = self.dice.pick(("0", "-1", "+1", f"0{parts[-1]}"))
        return " ".join(parts)

    def other_request(self, ack: AckRequest) -> bytes:
        """Returns a change of the message's invisible time, a renewal of its lease, or a batch of acks."""
        dice = self.dice
        if dice.happens(60):
            header = ChangeInvisibleRequest(
                consumer_group=ack.consumer_group,
                topic=ack.topic,
                queue_id=ack.queue_id,
                extra_info=ack.extra_info,
                offset=ack.offset,
                invisible_ms=dice.pick((10, 2_000, 60_000)),
                is_renewal=dice.happens(30),
            )
            self.held.append(Held(ack, self.number))  # its old handle is used again
            return self.frame(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        handle = parse_handle(ack.extra_info)
        entry = BatchAckEntry(
            bits=encode_bits([ack.offset - handle.start_offset]),
            group=ack.consumer_group,
            pop_time_ms=handle.pop_time_ms,
            queue_id=ack.queue_id,
            start_offset=handle.start_offset,
            topic=ack.topic,
        )
        batch = BatchAck(entries=[entry], broker_name="b")
        return self.frame(RequestCode.BATCH_ACK_MESSAGE, None, body=encode_body(batch))


def _ordered(text: str) -> str:
    """Returns the handle with the mark of an ordered pop."""
    parts = text.split(" ")
    parts[3] = str(ORDERED_REVIVE_QUEUE)
    return " ".join(parts)


def _with(ack: AckRequest, **changes: object) -> AckRequest:
    """Returns the ack with these changes."""
    return AckRequest(**{name: changes.get(name, getattr(ack, name)) for name in ack.__struct_fields__})


_CHANGES = (
    (b'"offset":"', b'"offset":" '),
    (b'"offset":"', b'"offset":"9","offset":"'),
    (b'"extraInfo"', b'"extrainfo"'),
    (b'"extraInfo":"', b'"extraInfo":"\\u0020'),
    (b'"queueId":"', b'"queueId":"+'),
    (b'"queueId"', b'"tandemStrict":1,"queueId"'),
    (b'"queueId"', b'"tandemStrict":"maybe","queueId"'),
    (b'"topic":"T', b'"topic":"\xff'),
    (b'"flag"', b'"flag":[],"flag"'),
    (b'"JAVA"', b"[1]"),
    (b'"JSON"', b'"J\xff"'),
    (b'{"code"', b'\n {"code"'),
    (b'"code":200051', b'"code":200051,"code":10'),
    (b'"code":200051', b'"code":10,"code":200051'),
    (b'"opaque":', b'"opaque":-'),
)
"""Changes to the JSON of a header: the text to replace, and the new text."""


async def run(seed: int, *, takes_blocks: bool) -> tuple[dict[str, object], Counter[int]]:
    """Sends the pieces of `seed` to a broker; returns its end, and the number of blocks it took by code."""
    side = PopSide(seed, takes_blocks=takes_blocks)
    await side.start()
    dice = Dice(seed + 1_000_000)
    consumer = Consumer(dice)
    rest = b""
    for index in range(60):
        stream = rest + consumer.piece()
        cut = len(stream) - (dice.below(300) if dice.happens(20) else 0)
        piece, rest = stream[:cut], stream[cut:]
        side.fault.is_full = index > 10 and dice.happens(4)
        if dice.happens(6):
            side.resize(dice.pick(POPPED), dice.pick((1, 2, QUEUES)))
        seen = len(side.transport.written)
        await side.receive(piece)
        if dice.happens(70):
            side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
        if side.fault.is_full:
            side.fault.is_full = False
            await side.clock.pass_time(dice.pick((0.01, 2)))
        if dice.happens(75):
            await side.clock.pass_time(dice.pick((0, 0, 0, 0.001, 0.1, 0.1, 1, 6)))
        consumer.learn(bytes(side.transport.written[seen:]))
    return await side.end(), side.blocks


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_block_does_what_its_acks_would_do_one_by_one(seed: int) -> None:
    together, _ = await run(seed, takes_blocks=True)
    alone, _ = await run(seed, takes_blocks=False)
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        assert together[name] == value, name


async def popped(*, takes_blocks: bool, groups: Sequence[str] = ("G",)) -> tuple[PopSide, Consumer]:
    """Returns a broker, and a consumer that holds 32 messages of one of its queues in each group."""
    side = PopSide(seed=0, takes_blocks=takes_blocks)
    await side.start()
    consumer = Consumer(Dice(0))
    for group in groups:
        pop = PopRequest(consumer_group=group, topic="T", queue_id=0, count_max=32, invisible_ms=60_000)
        await side.receive(consumer.frame(RequestCode.POP_MESSAGE, pop))
        consumer.pops[consumer.number] = pop
    side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
    await side.clock.pass_time(0.1)
    consumer.learn(bytes(side.transport.written))
    assert len(consumer.held) == 32 * len(groups)
    return side, consumer


def open_messages(side: PopSide) -> set[tuple[str, int]]:
    """Returns group and offset of each message that is held and not acknowledged."""
    return {
        (lease.key.group, offset)
        for lease in side.parts.pop.leases.all()
        for index, offset in enumerate(lease.offsets)
        if lease.is_open(index)
    }


async def acknowledge(
    change: Callable[[PopSide], None],
    edit: Callable[[bytes], bytes],
    arrange: Callable[[list[bytes]], None],
    *,
    takes_blocks: bool,
) -> dict[str, object]:
    """Pops messages, changes the broker, and acknowledges all in one read. `edit` changes their headers,
    `arrange` their order.
    """
    side, consumer = await popped(takes_blocks=takes_blocks)
    seen = len(side.transport.written)
    change(side)
    frames = [with_header(consumer.ack_frame(held.ack), edit) for held in consumer.held]
    arrange(frames)
    await side.receive(b"".join(frames))
    side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
    await side.clock.pass_time(0.1)
    answers = FrameDecoder().feed(bytes(side.transport.written[seen:]))
    return {
        "codes": Counter(answer.code for answer in answers),
        "blocks": side.blocks[RequestCode.ACK_MESSAGE],
        **await side.end(),
    }


async def compare(
    change: Callable[[PopSide], None] = lambda side: None,
    edit: Callable[[bytes], bytes] = lambda header: header,
    arrange: Callable[[list[bytes]], None] = lambda frames: None,
) -> tuple[object, object]:
    """Returns the codes of the answers, and the number of blocks, after comparing both brokers."""
    together = await acknowledge(change, edit, arrange, takes_blocks=True)
    alone = await acknowledge(change, edit, arrange, takes_blocks=False)
    blocks = together.pop("blocks"), alone.pop("blocks")
    assert blocks[1] == 0
    assert together == alone
    return together["codes"], blocks[0]


async def test_an_unchanged_broker_takes_the_acks_of_a_pop_as_a_block() -> None:
    assert await compare() == ({ResponseCode.SUCCESS: 32}, 1)


async def test_a_header_that_is_not_utf8_ends_the_connection_in_a_block_too() -> None:
    """The bytes are in a key that no decoder reads."""
    assert await compare(edit=lambda header: header[:-1] + b',"unknown":"\xff"}') == ({}, 0)


@pytest.mark.parametrize(("old", "new"), _CHANGES)
async def test_each_change_of_all_headers_does_what_it_would_do_one_by_one(old: bytes, new: bytes) -> None:
    """The seeds change few headers, and some changes are rare in them."""
    await compare(edit=lambda header: header.replace(old, new, 1))


async def test_acks_of_two_groups_with_one_handle_end_the_leases_of_both() -> None:
    """Groups with one queue of the revive topic may get equal handles, if they pop in one millisecond."""
    side, consumer = await popped(takes_blocks=True, groups=("G", "GG"))
    assert len({held.ack.extra_info for held in consumer.held}) == 32
    assert len(open_messages(side)) == 64
    seen = len(side.transport.written)
    await side.receive(b"".join(consumer.ack_frame(held.ack) for held in consumer.held))
    side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
    await side.clock.pass_time(0.1)
    answers = FrameDecoder().feed(bytes(side.transport.written[seen:]))
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 64
    assert side.blocks[RequestCode.ACK_MESSAGE] == 1
    assert open_messages(side) == set()


async def test_acks_that_cannot_be_stored_leave_those_that_are_stored() -> None:
    side, consumer = await popped(takes_blocks=True)
    frames = [consumer.ack_frame(held.ack) for held in consumer.held]
    rest = {("G", held.ack.offset) for held in consumer.held[16:]}
    await side.receive(b"".join(frames[:16]))
    side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
    await side.clock.pass_time(0.1)
    assert open_messages(side) == rest
    seen = len(side.transport.written)
    side.fault.is_full = True
    await side.receive(b"".join(frames[16:]))
    await side.clock.pass_time(0.1)
    answers = FrameDecoder().feed(bytes(side.transport.written[seen:]))
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 16
    assert side.blocks[RequestCode.ACK_MESSAGE] == 2
    assert open_messages(side) == rest


async def test_a_handle_whose_own_offset_is_no_number_is_refused_in_a_block_too() -> None:
    codes = {ResponseCode.INVALID_PARAMETER: 1, ResponseCode.SUCCESS: 31}
    assert await compare(edit=lambda header: header.replace(b' b 0 31"', b' b 0 +31"')) == (codes, 0)


async def test_acks_of_an_ordered_pop_take_no_lease_with_the_same_name() -> None:
    def edit(header: bytes) -> bytes:
        return re.sub(rb" 60000 \d+ ", b" 60000 %d " % ORDERED_REVIVE_QUEUE, header)

    assert await compare(edit=edit) == ({ResponseCode.SUCCESS: 32}, 0)


async def test_a_broker_whose_pops_have_stopped_takes_no_block() -> None:
    """Its table of leases is still there, but an ack of it would be lost."""
    assert await compare(lambda side: side.parts.pop.revive.stop()) == ({ResponseCode.SYSTEM_BUSY: 32}, 0)


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("first", [0, 10])
async def test_an_ack_of_a_message_that_retention_deleted_is_refused_in_a_block_too(
    monkeypatch: pytest.MonkeyPatch, first: int, *, is_reversed: bool
) -> None:
    """The acks of the deleted messages come first, last, or between others."""

    def delete(side: PopSide) -> None:
        monkeypatch.setattr(side.store, "queue_min", lambda topic, queue_id: 3 if topic == "T" else 0)

    def arrange(frames: list[bytes]) -> None:
        if is_reversed:
            frames.reverse()
        frames[:] = frames[first:] + frames[:first]

    codes = {ResponseCode.NO_MESSAGE: 3, ResponseCode.SUCCESS: 29}
    assert await compare(delete, arrange=arrange) == (codes, 0)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_changed_header_costs_no_other_ack_of_its_block(seed: int) -> None:
    """Each of the others is answered once and ends its message's lease, whatever the changed one says."""
    dice = Dice(seed + 2_000_000)
    side, consumer = await popped(takes_blocks=True)
    seen = len(side.transport.written)
    changed = dice.below(len(consumer.held))
    old, new = dice.pick(_CHANGES)
    frames = [consumer.ack_frame(held.ack) for held in consumer.held]
    frames[changed] = with_header(
        frames[changed],
        lambda header: header.replace(old, new, 1) if dice.happens(30) else flip(header, dice),
    )
    is_readable = are_all_readable(frames)
    await side.receive(b"".join(frames))
    side.store.replies.acks.report(ReplicaId("slave"), side.store.appended.value)
    await side.clock.pass_time(0.1)
    answers = FrameDecoder().feed(bytes(side.transport.written[seen:]))
    left = open_messages(side)
    if not is_readable:
        assert (answers, left) == ([], {("G", held.ack.offset) for held in consumer.held})
        return
    own = consumer.number - len(frames) + 1 + changed
    others = Counter({opaque: 1 for opaque in range(own - changed, consumer.number + 1) if opaque != own})
    assert others <= Counter(answer.opaque for answer in answers if answer.code == ResponseCode.SUCCESS)
    assert len(answers) <= len(frames)
    assert left <= {("G", consumer.held[changed].ack.offset)}


async def test_blocks_are_taken() -> None:
    counts = [(await run(seed, takes_blocks=True))[1] for seed in range(10)]
    assert sum(counts, Counter())[RequestCode.ACK_MESSAGE] > 33, counts


@pytest.mark.parametrize("place", range(5))
async def test_an_offset_outside_the_lease_leaves_the_block_to_the_single_handler(place: int) -> None:
    """Such an ack is answered at once and changes nothing; the others are answered when they are stored."""

    async def end(*, takes_blocks: bool) -> dict[str, object]:
        side = PopSide(1, takes_blocks=takes_blocks)
        await side.start()
        consumer = Consumer(Dice(1))
        pop = PopRequest(consumer_group="G", topic="T", queue_id=0, count_max=5, invisible_ms=60_000)
        consumer.pops[1] = pop
        await side.receive(consumer.frame(RequestCode.POP_MESSAGE, pop))
        await side.clock.pass_time(0.1)
        consumer.learn(bytes(side.transport.written))
        acks = [held.ack for held in consumer.held]
        head = acks[place].extra_info.rpartition(" ")[0]
        acks[place] = _with(acks[place], offset=20, extra_info=f"{head} 20")
        await side.receive(b"".join(map(consumer.ack_frame, acks)))
        return await side.end()

    assert await end(takes_blocks=True) == await end(takes_blocks=False)
