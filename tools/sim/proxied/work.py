"""Applications that use the proxies as RocketMQ 5 clients do, and the book that records their promises."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from sim.cluster.ledger import Ledger
from sim.cluster.nodes import BrokerNode
from sim.cluster.watch import EXCUSE_S, Watch
from sim.cluster.work.node import RETRY_S, Item
from sim.cluster.work.sharing import DirectWork
from sim.cluster.world import World
from sim.proxied.grpc_client import CallFailed, GrpcCall, GrpcConnection
from sim.proxied.nodes import ProxyNode
from tandemmq.api import broker_admin
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy.acknowledging import AckMessageResponse, ChangeInvisibleDurationResponse
from tandemmq.proxy.receiving import ReceiveMessageResponse
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.sending import SendMessageResponse
from tandemmq.proxy.statuses import Code

AckMessageRequest = message_class("AckMessageRequest")
ChangeInvisibleDurationRequest = message_class("ChangeInvisibleDurationRequest")
ReceiveMessageRequest = message_class("ReceiveMessageRequest")
SendMessageRequest = message_class("SendMessageRequest")

CALL_S = 4.0
POLL_S = 5
INVISIBLE_S = 10
CANCELLED_INVISIBLE_S = 60
"""The invisible time of receives that are cancelled: their messages must be visible long before its end."""
HIDDEN_S_MAX = 40.0
"""The time within which each message is delivered while no fault occurs."""
TAIL_COUNT = 12
"""The number of messages that are sent after the last fault."""
SLOW_WINDOW = 200
MEMBERS = 3

T = TypeVar("T")

Place = tuple[str, int, int]
"""Flag of the topic, queue and queue offset of a delivered message."""


@dataclass(slots=True)
class Held:
    """A message that a client has received."""

    item: Item
    place: Place
    handle: str
    message_id: str
    ends_ms: int


class ProxiedWork(DirectWork):
    """Sends, receives and acknowledgements through any of the proxies."""

    kind = "proxied"
    topic = "Proxied"
    group = "viewers"
    is_ordered: ClassVar[bool] = False

    def __init__(
        self, name: str, world: World, namesrv: str, ledger: Ledger, watch: Watch, proxies: list[ProxyNode]
    ) -> None:
        super().__init__(name, world, namesrv, ledger, watch)
        self._proxies = proxies
        self._connections: dict[tuple[str, bool], GrpcConnection] = {}
        self._done_at: dict[int, tuple[float, Place]] = {}
        """Message number -> the time at which an acknowledgement was answered with OK, and its place."""
        self._leases: dict[int, tuple[float, int, Place]] = {}
        """Message number -> the time since when a client holds it, and until when by the broker's clock."""
        self._lead_ms = 0
        self._blocked_until_s = 0.0
        """The end of the longest lease; messages behind it wait in an ordered group."""
        self._begun: set[int] = set()
        """The queues from which the group has acknowledged something."""
        self._begun_s = math.inf
        """The time since when the group has progress in all queues: an unknown one begins at the end."""

    # The process.

    def forget(self) -> None:
        super().forget()
        self._connections = {}

    async def prepare(self) -> None:
        attributes = {"message.type": "FIFO"} if self.is_ordered else None
        await self.admin.ensure_topic(self.topic, queue_count=self.queue_count, attributes=attributes)
        self.instance.routes.track(self.topic)
        await self.instance.routes.refresh(self.topic)
        config = SubscriptionGroupConfig(name=self.group, retry_count_max=1_000, is_orderly=self.is_ordered)
        await broker_admin.create_group(self.instance.remoting, self.master_address(), config)

    async def stop_server(self) -> None:
        await super().stop_server()
        for connection in self._connections.values():
            connection.close()

    async def load(self) -> None:
        while not self.is_resting:
            await self._send_one()
            await self.pause()
        for _ in range(TAIL_COUNT):
            await self._send_one()
            await self.pause()

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return [self._receive_on(n) for n in range(MEMBERS)]

    # Connections.

    async def _connection(self, proxy: ProxyNode, *, is_slow: bool = False) -> GrpcConnection:
        """Returns a connection to the proxy. Raises CallFailed, OSError, TimeoutError."""
        known = self._connections.get((proxy.name, is_slow))
        if known is not None and known.is_usable:
            return known
        window_bytes, read_s = (SLOW_WINDOW, 0.1) if is_slow else (65_535, 0.0)
        fresh = await GrpcConnection.open(
            self.network, self.clock, proxy.address, window_bytes=window_bytes, read_s=read_s
        )
        other = self._connections.get((proxy.name, is_slow))
        if other is not None and other.is_usable:
            fresh.close()  # another task was quicker
            return other
        self._connections[proxy.name, is_slow] = fresh
        return fresh

    async def _ask(self, name: str, request: Any, shape: Any) -> Any:
        """Returns the answer of one of the proxies; None if there is none."""
        proxy = self.world.dice.pick(self._proxies)
        try:
            connection = await self._connection(proxy)
            return await connection.ask(name, request, shape, client_id=self.name, timeout_s=CALL_S)
        except (CallFailed, OSError, TimeoutError) as error:
            self.world.note(f"{self.process} {name} at {proxy.name} fails: {error}")
            return None

    # Sends.

    async def _send_one(self) -> None:
        item = self.new_item()
        answer = await self._ask("SendMessage", self._request_of(item), SendMessageResponse)
        if answer is None:
            return
        item.end_s = self.world.loop.time()
        item.is_acknowledged = answer.status.code == Code.OK
        if item.is_acknowledged:
            item.place = -1, answer.entries[0].offset
            self.count("sent")
        self.world.note(f"{self.process} {item} {answer.status.code} {answer.status.message}")

    def message_group(self, item: Item) -> str:
        """Returns the message group of a message; empty without one."""
        return ""

    def _request_of(self, item: Item) -> Any:
        group = self.message_group(item)
        system: dict[str, Any] = {
            "message_id": f"{self.topic}{item.number:06d}",
            "message_type": enum_number("MessageType", "FIFO" if group else "NORMAL"),
        }
        if group:
            system["message_group"] = group
        message = {"topic": {"name": self.topic}, "body": item.body, "system_properties": system}
        return SendMessageRequest(messages=[message])

    # Receives.

    async def _receive_on(self, number: int) -> None:
        dice = self.world.dice
        while not self.is_ending:
            how = dice.pick_weighted(((60, "whole"), (25, "cancelled"), (15, "slow")))
            try:
                found = await self._receive(f"{self.name}-{number}", how)
            except (CallFailed, OSError, TimeoutError) as error:
                self.world.note(f"{self.process} receive fails: {type(error).__name__} {error}")
                await self.clock.sleep(RETRY_S)
                continue
            await self._process(found)
            if not found or dice.happens(30):
                await self.clock.sleep(dice.between(50, 500) / 1000)

    async def _receive(self, client_id: str, how: str) -> list[Held]:
        """Receives once. Raises CallFailed, OSError, TimeoutError; messages that came before are dropped."""
        dice, world = self.world.dice, self.world
        proxy = dice.pick(self._proxies)
        connection = await self._connection(proxy, is_slow=how == "slow")
        request = ReceiveMessageRequest(
            group={"name": self.group},
            message_queue={"topic": {"name": self.topic}},
            batch_size=dice.pick((1, 4, 32)),
            invisible_duration={"seconds": CANCELLED_INVISIBLE_S if how == "cancelled" else INVISIBLE_S},
            long_polling_timeout={"seconds": POLL_S},
        )
        begin_s = world.loop.time()
        end_s = begin_s + (POLL_S + CALL_S if how != "cancelled" else dice.between(0, 3_000) / 1000)
        call = connection.call("ReceiveMessage", request, client_id=client_id, timeout_s=POLL_S + CALL_S)
        found: list[Held] = []
        try:
            while (answer := await _next(call, end_s - world.loop.time())) is not None:
                held = self._on_answer(answer, begin_s, len(found))
                if held is not None:
                    found.append(held)
            for one in found:  # the messages of an answer that breaks off are handed back
                self._leases[one.item.number] = begin_s, one.ends_ms, one.place
        except TimeoutError:
            self.count("cancelled" if how == "cancelled" else "late")
        finally:
            call.cancel()
        if found and how == "cancelled":
            self._blocked_until_s = world.loop.time() + CANCELLED_INVISIBLE_S
        if call.is_cancelled:
            await self.clock.sleep(0.5)  # messages that crossed the cancellation
            count = len(found)
            for late in call.late:
                count += self._on_answer(late, begin_s, count) is not None
                self._blocked_until_s = world.loop.time() + CANCELLED_INVISIBLE_S
        return found

    def _on_answer(self, data: bytes, begin_s: float, count: int) -> Held | None:
        """Handles one element of a stream; returns the message that it holds."""
        answer = ReceiveMessageResponse.FromString(data)
        content = answer.WhichOneof("content")
        if content != "message":
            if content == "status" and count:
                self.world.findings.order.append(f"{self.process} got a status after {count} messages")
            return None
        return self._record(answer.message, begin_s)

    def _record(self, message: Any, begin_s: float) -> Held | None:
        """Checks a delivery, and records it."""
        world, system = self.world, message.system_properties
        start, pop_ms, invisible_ms, _, flag, *_ = system.receipt_handle.split(" ")
        place = flag, system.queue_id, system.queue_offset
        where = f"{self.process} received {'/'.join(map(str, place))} from {start}"
        item = self.book.find(message.body)
        if item is None:
            world.findings.broken.append(f"{where}, which was never sent: {message.body[:40]!r}")
            return None
        now_s = world.loop.time()
        world.note(f"{where}: {item}, attempt {system.delivery_attempt}")
        self._check_done(item, place, where)
        self._check_leased(item, place, begin_s, where)
        self.on_delivery(item, where)
        if self.group not in item.finished:
            self._check_hidden(item, now_s, where)
            if not self._is_retried(item) and system.delivery_attempt != 1:
                world.findings.broken.append(
                    f"{where}: {item} for the first time, as attempt {system.delivery_attempt}"
                )
        else:
            self.count("delivered again")
        item.finished[self.group] = now_s
        ends_ms = int(pop_ms) + int(invisible_ms)
        return Held(item, place, system.receipt_handle, system.message_id, ends_ms)

    def on_delivery(self, item: Item, where: str) -> None:
        """Checks further conditions of a delivery."""

    def _is_retried(self, item: Item) -> bool:
        """Returns True if a broker may count an attempt of which no client knows."""
        return not self.world.is_quiet_since(item.begin_s - EXCUSE_S)

    def _check_done(self, item: Item, place: Place, where: str) -> None:
        """Checks that the message was not acknowledged."""
        done_s, done_place = self._done_at.get(item.number, (None, place))
        if done_s is None or not self._is_kept(done_s):
            return
        # A send or a revival that met a fault may have made a copy.
        if place == done_place or self.world.is_quiet_since(item.begin_s - EXCUSE_S):
            self.world.findings.broken.append(f"{where}: {item}, acknowledged with OK at {done_s:.3f}")

    def _check_leased(self, item: Item, place: Place, begin_s: float, where: str) -> None:
        """Checks that no other client holds the message."""
        if self.is_ordered and not self.world.is_quiet_since(begin_s - INVISIBLE_S):
            return  # a master's fault ends the turn of a member
        since_s, ends_ms, held_place = self._leases.get(item.number, (0.0, 0, place))
        if place == held_place and not self._is_over(ends_ms) and self._is_kept(since_s):
            self.world.findings.broken.append(f"{where}: {item}, which another has since {since_s:.3f}")

    def _check_hidden(self, item: Item, now_s: float, where: str) -> None:
        """Checks that the first delivery is not late."""
        waited_s = now_s - max(item.end_s, self._blocked_until_s if self.is_ordered else 0.0)
        if item.is_acknowledged and self.world.is_quiet_since(item.end_s) and waited_s > HIDDEN_S_MAX:
            self.world.findings.skipped.append(f"{where}: {item} for the first time, {waited_s:.1f} s late")

    def _is_over(self, ends_ms: int) -> bool:
        """Returns True if some master may consider the lease as expired by now."""
        time_ms = int(self.world.loop.time() * 1000)
        broker_ms = max(node.clock.now_ms() for node in self._watch.brokers)
        self._lead_ms = max(self._lead_ms, broker_ms - time_ms)
        return self._lead_ms + time_ms >= ends_ms

    def _is_kept(self, at_s: float) -> bool:
        """Returns True if an answer of a broker at that time still holds for all later brokers."""
        is_discarded = any(begin_s <= at_s <= end_s for begin_s, end_s in self.world.discards)
        return not is_discarded and self._watch.promises.is_kept_since(at_s)

    # The ends of messages.

    async def _process(self, found: list[Held]) -> None:
        """Processes messages in order: acknowledges, postpones or abandons them. A member of an ordered group
        stops at the first one that was not acknowledged: the others are delivered again behind it.
        """
        dice = self.world.dice
        while found:
            count = 1 if self.is_ordered else dice.between(1, len(found))
            some, found = found[:count], found[count:]
            is_done = False
            if self.is_resting or dice.happens(75):
                is_done = await self._acknowledge(some)
            elif dice.happens(60):
                is_done = await self._postpone(some[0])
            if self.is_ordered and not is_done:
                return

    async def _acknowledge(self, some: list[Held]) -> bool:
        """Returns True if all are acknowledged."""
        request = AckMessageRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            entries=[{"message_id": one.message_id, "receipt_handle": one.handle} for one in some],
        )
        answer = await self._ask("AckMessage", request, AckMessageResponse)
        if answer is None:
            return False
        if [entry.receipt_handle for entry in answer.entries] != [one.handle for one in some]:
            self.world.findings.broken.append(f"{self.process} acknowledged {some} and got {answer}")
            return False
        for one, entry in zip(some, answer.entries, strict=True):
            self.world.note(f"{self.process} acknowledged {one.item}: {entry.status.code}")
            if entry.status.code == Code.OK:
                now_s = self.world.loop.time()
                self._done_at.setdefault(one.item.number, (now_s, one.place))
                self.count("acknowledged")
                self._begun.add(one.place[1])
                if len(self._begun) == self.queue_count:
                    self._begun_s = min(self._begun_s, now_s)
        return bool(answer.status.code == Code.OK)

    async def _postpone(self, one: Held) -> bool:
        """Changes the invisible time; returns True if the message was acknowledged nevertheless."""
        request = ChangeInvisibleDurationRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            receipt_handle=one.handle,
            message_id=one.message_id,
            invisible_duration={"seconds": self.world.dice.between(1, 5)},
        )
        self._leases.pop(one.item.number, None)  # nothing is promised until the answer arrives
        answer = await self._ask("ChangeInvisibleDuration", request, ChangeInvisibleDurationResponse)
        if answer is not None and answer.status.code == Code.OK:
            one.handle = answer.receipt_handle
            self.count("postponed")
            if self.world.dice.happens(50):
                return await self._acknowledge([one])
        return False

    # The end of the run.

    def is_owed(self, item: Item) -> bool:
        return item.begin_s > self._begun_s and super().is_owed(item)

    def missing(self, master: BrokerNode) -> list[str]:
        return self.unfinished(self.group, self.book.items)


class ProxiedOrderWork(ProxiedWork):
    """The same with message groups, whose messages are received in the order of the sends."""

    kind = "proxied order"
    topic = "ProxiedOrder"
    group = "orderly-viewers"
    is_ordered = True
    groups: ClassVar[tuple[str, ...]] = ("a", "b", "c", "d")

    def message_group(self, item: Item) -> str:
        return self.groups[item.number % len(self.groups)]

    def on_delivery(self, item: Item, where: str) -> None:
        """Checks that all earlier messages of the message group were delivered before."""
        if self.group in item.finished:
            return
        for earlier in self.book.items[item.number % len(self.groups) : item.number : len(self.groups)]:
            if self.group not in earlier.finished and self.is_owed(earlier):
                self.world.findings.order.append(f"{where}: {item} before {earlier}")


async def _next(call: GrpcCall, timeout_s: float) -> bytes | None:
    return await call.next(max(timeout_s, 0.0))
