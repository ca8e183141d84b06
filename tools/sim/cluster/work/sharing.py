"""Work in which it matters which client gets a message, or how often: pops, numbered sends, orderly
groups.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from sim.cluster.checkers import read_queue
from sim.cluster.nodes import BrokerNode
from sim.cluster.settings import BROKER_NAME
from sim.cluster.work.node import RETRY_S, Item, WorkNode
from tandemmq.api import broker_admin, broker_send
from tandemmq.api.calls import call_raw
from tandemmq.client import Consumer, Message, Producer, ProducerOptions, SendStatus
from tandemmq.errors import NoRoute, RequestRejected, TandemError
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import encode_properties, render_claim
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import (
    AckRequest,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    PopRequest,
    PopResponse,
)
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import AUTO_CREATE_TOPIC

CALL_S = 4.0
"""More than the 3 s that a synchronous master waits for its slaves."""
ONCE = ProducerOptions(timeout_s=4.0, retry_count_max=0)
"""A send that is not repeated leaves at most one copy."""
PRIORITIES = 8


class DirectWork(WorkNode):
    """The base of kinds that send the broker's requests themselves."""

    def master_address(self) -> str:
        """Returns the master's address. Raises NoRoute while there is none."""
        view = self.instance.routes.get(self.topic)
        address = None if view is None else view.master_address(BROKER_NAME)
        if address is None:
            raise NoRoute(f"no master has topic {self.topic!r}")
        return address

    async def call_raw(self, code: RequestCode, header: Any) -> Command:
        """Returns the master's answer, whatever its code. Raises TandemError if there is none."""
        return await call_raw(self.instance.remoting, self.master_address(), code, header, timeout_s=CALL_S)


@dataclass(slots=True)
class Popped:
    """A message that this application holds until `ends_ms` by its broker's clock."""

    item: Item
    record: Record
    topic: str
    handle: str
    ends_ms: int


class PopWork(DirectWork):
    """Pops as sent by RocketMQ 5 clients: acknowledged, postponed, or abandoned. In every second run the
    messages have priorities.
    """

    kind = "pop"
    topic = "Popped"
    group = "poppers"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._leases: dict[int, tuple[float, int]] = {}
        """Message number -> the time since when a client holds it, and until when by the broker's clock."""
        self._first_at: dict[int, tuple[float, tuple[str, int, int]]] = {}
        """Message number -> the time and place of the first pop."""
        self._done_at: dict[int, tuple[float, tuple[str, int, int]]] = {}
        """The time at which the broker accepted the acknowledgement, and its place."""
        self._doubtful: set[int] = set()
        """The messages for which an acknowledgement was sent, without knowing if the broker accepted it in
        time.
        """
        self._has_priorities = self.world.dice.happens(50)

    async def prepare(self) -> None:
        await super().prepare()
        if self._has_priorities:
            await self.admin.update_topic(self.topic, attributes={"message.type": "PRIORITY"})
        self.instance.routes.track(self.topic)
        await self.instance.routes.refresh(self.topic)
        config = SubscriptionGroupConfig(name=self.group, retry_count_max=1_000)
        await broker_admin.create_group(self.instance.remoting, self.master_address(), config)

    async def load(self) -> None:
        producer = Producer(f"producers-{self.name}", options=ONCE, instance=self.instance)
        await producer.start()
        self._open.append(producer)
        while not self.is_resting:
            item = self.new_item()
            priority = item.number % PRIORITIES if self._has_priorities else None
            await self.send(producer, item, Message(topic=self.topic, body=item.body, priority=priority))
            await self.pause()

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return [self._pop_on() for _ in range(2)]

    async def _pop_on(self) -> None:
        dice = self.world.dice
        while not self.is_ending:
            try:
                popped = await self._pop()
            except TandemError:
                await self.clock.sleep(RETRY_S)
                continue
            for one in popped:
                if self.is_resting or dice.happens(60):
                    await self._acknowledge(one)
                elif dice.happens(40):
                    await self._postpone(one)
            if not popped or dice.happens(30):
                await self.clock.sleep(dice.between(50, 500) / 1000)

    async def _pop(self) -> list[Popped]:
        dice = self.world.dice
        begin_s = self.world.loop.time()
        invisible_ms = 20_000 if self.is_resting else dice.pick((2_000, 5_000, 12_000))
        header = PopRequest(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=-1,
            count_max=dice.pick((1, 4, 32)),
            invisible_ms=invisible_ms,
            poll_ms=dice.pick((0, 1_000)),
            born_at_ms=self._broker_now_ms(),
            expression_type="TAG",
            expression="*",
        )
        answer = await self.call_raw(RequestCode.POP_MESSAGE, header)
        if answer.code != ResponseCode.SUCCESS:
            return []
        response = answer.decode(PopResponse)
        starts = dict(_start(text) for text in (response.start_offset_info or "").split(";") if text)
        found = []
        for record in decode_records(answer.body):
            handle = record.properties.get("POP_CK", "")
            if not handle:
                handle = (
                    f"{starts['0', str(record.queue_id)]} {response.pop_time_ms} {response.invisible_ms}"
                    f" {response.revive_queue_id} 0 {BROKER_NAME} {record.queue_id} {record.queue_offset}"
                )
            retry = f"%RETRY%{self.group}_{self.topic}"
            topic = self.topic if handle.split(" ")[4] == "0" else retry
            item = self._record_popped(record, topic)
            if item is not None:
                popped = Popped(item, record, topic, handle, _end_of(handle))
                self._leases[item.number] = begin_s, popped.ends_ms
                found.append(popped)
        return found

    def _broker_now_ms(self) -> int:
        """Returns the master's time. A broker refuses a pop that has timed out by its own clock, so clocks
        must agree.
        """
        return next(node.clock.now_ms() for node in self._watch.brokers if not node.broker_id)

    def _is_over(self, ends_ms: int) -> bool:
        """Returns True if some master may consider the lease as expired by now."""
        return self._watch.latest_ms() >= ends_ms

    def _is_kept(self, at_s: float) -> bool:
        """Returns True if an answer of a broker at that time still holds for all later brokers."""
        is_discarded = any(begin_s <= at_s <= end_s for begin_s, end_s in self.world.discards)
        return not is_discarded and self._watch.promises.is_kept_since(at_s)

    def _record_popped(self, record: Record, topic: str) -> Item | None:
        world = self.world
        item = self.book.find(record.content)
        where = f"{self.process} popped {topic}/{record.queue_id}:{record.queue_offset}"
        if item is None:
            world.findings.broken.append(f"{where}, which was never sent: {record.content[:40]!r}")
            return None
        now_s = world.loop.time()
        world.note(f"{where}: {item}")
        place = topic, record.queue_id, record.queue_offset
        first_s, first_place = self._first_at.setdefault(item.number, (now_s, place))
        # If the progress of the revive was lost, a message that it had already revived gets a second copy.
        may_be_copied = not self._is_kept(first_s)
        done_s, done_place = self._done_at.get(item.number, (None, place))
        if done_s is not None and self._is_kept(done_s) and not (may_be_copied and place != done_place):
            world.findings.broken.append(f"{where}: {item}, whose acknowledgement was taken at {done_s:.3f}")
        since_s, ends_ms = self._leases.get(item.number, (0.0, 0))
        is_copy = place != first_place and may_be_copied
        if done_s is None and not self._is_over(ends_ms) and self._is_kept(since_s) and not is_copy:
            world.findings.broken.append(f"{where}: {item}, which another has since {since_s:.3f}")
        if item.finished:
            self.count("popped again")
        item.finished[self.group] = now_s
        return item

    async def _acknowledge(self, one: Popped) -> None:
        header = AckRequest(
            consumer_group=self.group,
            topic=one.topic,
            queue_id=one.record.queue_id,
            extra_info=one.handle,
            offset=one.record.queue_offset,
        )
        self._doubtful.add(one.item.number)
        try:
            answer = await self.call_raw(RequestCode.ACK_MESSAGE, header)
        except TandemError:
            return
        now_s = self.world.loop.time()
        # After its end it may have been revived before the acknowledgement arrived.
        if answer.code == ResponseCode.SUCCESS and not self._is_over(one.ends_ms):
            self._doubtful.discard(one.item.number)
            place = one.topic, one.record.queue_id, one.record.queue_offset
            self._done_at[one.item.number] = now_s, place
            self.count("acknowledged")
            self.world.note(f"{self.process} has acknowledged {one.item}")

    async def _postpone(self, one: Popped) -> None:
        dice = self.world.dice
        invisible_ms = dice.pick((1_000, 6_000, 15_000))
        header = ChangeInvisibleRequest(
            consumer_group=self.group,
            topic=one.topic,
            queue_id=one.record.queue_id,
            extra_info=one.handle,
            offset=one.record.queue_offset,
            invisible_ms=invisible_ms,
        )
        # It is unknown whether it was postponed until the answer arrives: nothing is promised until then.
        since_s, _ = self._leases.pop(one.item.number, (0.0, 0))
        try:
            answer = await self.call_raw(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        except TandemError:
            return
        if answer.code != ResponseCode.SUCCESS or self._is_over(one.ends_ms):
            return
        response = answer.decode(ChangeInvisibleResponse)
        parts = one.handle.split(" ")
        parts[0] = str(one.record.queue_offset)
        parts[1:4] = [str(response.pop_time_ms), str(response.invisible_ms), str(response.revive_queue_id)]
        one.handle = " ".join(parts)
        one.ends_ms = _end_of(one.handle)
        self._leases[one.item.number] = since_s, one.ends_ms
        self.count("put off")
        if dice.happens(50):
            await self._acknowledge(one)

    def missing(self, master: BrokerNode) -> list[str]:
        return [
            f"pop {item} was never acknowledged"
            for item in self.book.items
            if item.number not in self._done_at and item.number not in self._doubtful and self.is_owed(item)
        ]


def _end_of(handle: str) -> int:
    """Returns the end of a handle's lease: pop time plus invisible time."""
    _, pop_time_ms, invisible_ms, *_ = handle.split(" ")
    return int(pop_time_ms) + int(invisible_ms)


def _start(text: str) -> tuple[tuple[str, str], str]:
    """Parses one item of startOffsetInfo: flag and queue, and the offset at which the check point begins."""
    flag, queue_id, offset = text.split(" ")
    return (flag, queue_id), offset


class NumberedWork(DirectWork):
    """Sends that carry numbers, repeated until they are answered: each is in the log once (decision 010)."""

    kind = "numbered"
    topic = "Numbered"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._epoch = 0
        self._run = 0
        """The current run of numbers: a new one begins where an old one cannot continue."""
        self._first = 0
        """The number of the first message of the run."""
        self._safe = 0
        """The number below which all messages are answered."""
        self._keys: dict[str, Item] = {}

    async def prepare(self) -> None:
        await super().prepare()
        self.instance.routes.track(self.topic)
        await self.instance.routes.refresh(self.topic)

    async def load(self) -> None:
        dice = self.world.dice
        self._epoch += dice.between(0, 1)
        # Like a job that restarts at its last check point.
        at = self._safe = max(self._first, self._safe - dice.between(0, 6))
        while not self.is_resting:
            end = at + dice.between(1, 6)
            while len(self.book.items) < end:
                item = self.new_item()
                self._keys[self._key(item.number)] = item
            if await self._send(at, end):
                at = end
            elif at < self._first:
                at = self._first
            await self.pause()

    def _key(self, number: int) -> str:
        return f"{self._run:020X}{number:012X}"

    async def _send(self, begin: int, end: int) -> bool:
        """Returns True if all of them are stored as safely as promised."""
        items = self.book.items[begin:end]
        claim = render_claim("numberer", self._epoch, self._key(begin - 1) if begin > self._first else "")
        header = SendRequestV2(
            producer_group="numberers",
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=4,
            queue_id=0,
            sys_flag=0,
            born_at_ms=self.clock.now_ms(),
            flag=0,
            properties=claim,
            is_batch=True,
        )
        body = encode_batch(
            (0, item.body, encode_properties({"UNIQ_KEY": self._key(item.number)})) for item in items
        )
        begin_s = self.world.loop.time()
        where = f"{self.process} numbered {begin}..{end - 1} of run {self._run}.{self._epoch}"
        try:
            answer = await broker_send.send(
                self.instance.remoting, self.master_address(), header, body, timeout_s=CALL_S
            )
        except RequestRejected as error:
            self.world.note(f"{where} refused: {error}")
            if error.code == ResponseCode.ILLEGAL_OPERATION:
                self._on_illegal(begin, begin_s, error)
            return False
        except TandemError as error:
            self.world.note(f"{where} fails: {type(error).__name__}")
            return False
        self.world.note(f"{where} {answer.status.name} at {answer.queue_offset}")
        self.count("batches")
        if answer.status is not SendStatus.SEND_OK:
            return False
        for item in items:
            if not item.is_acknowledged:
                item.is_acknowledged, item.end_s = True, self.world.loop.time()
        self._safe = max(self._safe, end)
        return True

    def _on_illegal(self, begin: int, begin_s: float, error: RequestRejected) -> None:
        """Handles a broker that cannot continue from its state; the only valid reason is that the preceding
        message is missing.

        If that message is only hidden, the run is retried, like a job that fails until an operator has
        intervened: the next master must know the end of the run.
        """
        is_first = begin == self._first
        if not is_first and self._watch.promises.may_be_hidden(begin_s):
            self.count("refused by an empty master")
            return
        if is_first or self.is_owed(self.book.items[begin - 1]):
            self.world.findings.lost.append(f"numbered sends cannot continue: {error}")
        self.count("runs broken")
        self._run += 1
        self._first = self._safe = len(self.book.items)

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return ()

    def missing(self, master: BrokerNode) -> list[str]:
        return []

    def check(self, master: BrokerNode) -> None:
        """Checks that the queue has every message once, in the order of the numbers."""
        assert master.store is not None
        findings = self.world.findings
        held: set[Item] = set()
        before = ""
        for record in read_queue(master.store, (self.topic, 0)):
            item = self._keys.get(record.unique_key)
            if item is None or item.body != record.content:
                findings.broken.append(f"{self.topic}:{record.queue_offset} was never sent")
            elif item in held:
                findings.broken.append(f"numbered {item} is stored again at {record.queue_offset}")
            else:
                held.add(item)
                if record.unique_key < before:
                    findings.order.append(f"numbered {record.unique_key} is stored behind {before}")
                before = record.unique_key
        findings.lost += [
            f"numbered {item}" for item in self.book.items if item not in held and self.is_owed(item)
        ]


@dataclass(slots=True)
class Turns:
    """The common progress of the members of an orderly group."""

    highest: dict[int, int] = field(default_factory=dict)
    """Queue -> the last offset that was processed."""
    busy: dict[int, tuple[OrderedWork, object, float]] = field(default_factory=dict)
    """Queue -> the member, its process, and the time since when it holds work of the queue."""


class OrderedWork(WorkNode):
    """A member of a group that processes each queue strictly in order, one member at a time."""

    kind = "ordered"
    topic = "Ordered"
    group = "orderly"

    def __init__(self, *args: Any, first: OrderedWork | None = None) -> None:
        """`first`: the member that sends; the others share its book."""
        super().__init__(*args)
        self._is_sender = first is None
        self._turns: Turns = Turns() if first is None else first._turns
        if first is not None:
            self.book = first.book

    async def load(self) -> None:
        if not self._is_sender:
            return
        producer = Producer(f"producers-{self.name}", options=ONCE, instance=self.instance)
        await producer.start()
        self._open.append(producer)
        while not self.is_resting:
            item = self.new_item()
            await self.send(producer, item, Message(topic=self.topic, body=item.body))
            await self.pause()

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._work(),)

    async def _work(self) -> None:
        dice = self.world.dice
        consumer = await self.open_consumer(
            self.group,
            lambda consumer: consumer.subscribe(self.topic),
            orderly=True,
            orderly_batch_count_max=dice.pick((1, 3)),
        )
        while not self.is_ending:
            await self._work_once(consumer)

    async def _work_once(self, consumer: Consumer) -> None:
        dice, world, turns = self.world.dice, self.world, self._turns
        messages = await consumer.poll(dice.between(1, 8), 0.5)
        self._release()
        queues = sorted({message.queue_id for message in messages})
        for queue_id in queues:
            self._acquire(queue_id)
        suspended: set[int] = set()
        for message in messages:
            queue_id, offset = message.queue_id, message.queue_offset
            if queue_id in suspended:
                continue
            highest = turns.highest.get(queue_id, -1)
            if offset > highest + 1:
                world.findings.skipped.append(
                    f"{self.process} got {self.topic}/{queue_id}:{offset}, the group was at {highest}"
                )
            if dice.happens(4):
                suspended.add(queue_id)
                await consumer.suspend(message, delay_s=dice.between(100, 1_500) / 1000)
                self.count("suspended")
                continue
            turns.highest[queue_id] = max(highest, offset)
            self.finish(self.group, message)
        if messages and dice.happens(40):
            await self.clock.sleep(dice.between(10, 300) / 1000)

    def _acquire(self, queue_id: int) -> None:
        other, process, since_s = self._turns.busy.get(queue_id, (self, self.process, 0.0))
        now_s = self.world.loop.time()
        is_working = other is not self and other.is_running and other.process is process
        # A lost master has forgotten the holders of its locks.
        if is_working and not self.world.had_fault(since_s - 60.0, now_s):
            self.world.findings.order.append(
                f"{self.process} has {self.topic}/{queue_id} while {process} works on it"
            )
        self._turns.busy[queue_id] = self, self.process, now_s

    def _release(self) -> None:
        for queue_id, (member, _, _) in list(self._turns.busy.items()):
            if member is self:
                del self._turns.busy[queue_id]

    def missing(self, master: BrokerNode) -> list[str]:
        return self.unfinished(self.group, self.book.items) if self._is_sender else []
