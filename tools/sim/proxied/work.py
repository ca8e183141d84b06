"""Simple consumers: each receives at any proxy, and acknowledges, postpones or abandons what it gets."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable
from typing import Any

from sim.cluster.nodes import BrokerNode
from sim.cluster.work.node import RETRY_S, Item
from sim.proxied.application import CALL_S
from sim.proxied.deliveries import INVISIBLE_S, DeliveredWork, Held
from sim.proxied.grpc_client import CallFailed, GrpcCall
from sim.proxied.nodes import ProxyNode
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code

AckMessageRequest = message_class("AckMessageRequest")
AckMessageResponse = message_class("AckMessageResponse")
ChangeInvisibleDurationRequest = message_class("ChangeInvisibleDurationRequest")
ChangeInvisibleDurationResponse = message_class("ChangeInvisibleDurationResponse")
ReceiveMessageRequest = message_class("ReceiveMessageRequest")
ReceiveMessageResponse = message_class("ReceiveMessageResponse")

POLL_S = 5
CANCELLED_INVISIBLE_S = 60
"""The invisible time of receives that are cancelled: their messages must be visible long before its end."""
CANCELLED_ORDERED_S = 20
"""The same in an ordered group, whose queue waits for what the client got before it cancelled."""
MEMBERS = 3


class ProxiedWork(DeliveredWork):
    """Sends, receives and acknowledgements through any of the proxies."""

    kind = "proxied"
    topic = "Proxied"
    group = "viewers"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begun: set[int] = set()
        """The queues from which the group has acknowledged something."""
        self._begun_s = math.inf
        """The time since when the group has progress in all queues: an unknown one begins at the end."""
        self._cancelled_s = CANCELLED_ORDERED_S if self.is_ordered else CANCELLED_INVISIBLE_S

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return [self._receive_on(n) for n in range(MEMBERS)]

    # Receives.

    async def _receive_on(self, number: int) -> None:
        dice = self.world.dice
        while not self.is_ending:
            how = dice.pick_weighted(((60, "whole"), (25, "cancelled"), (15, "slow")))
            try:
                found = await self.receive(f"{self.name}-{number}", how)
            except (CallFailed, OSError, TimeoutError) as error:
                self.world.note(f"{self.process} receive fails: {type(error).__name__} {error}")
                await self.clock.sleep(RETRY_S)
                continue
            await self.process_all(found)
            if not found or dice.happens(30):
                await self.clock.sleep(dice.between(50, 500) / 1000)

    async def receive(self, client_id: str, how: str, proxy: ProxyNode | None = None) -> list[Held]:
        """Receives once: "whole", "cancelled", "slow", or "renewed" by the proxy. Messages that came before
        an error are dropped.

        Raises:  CallFailed, OSError, TimeoutError.
        """
        dice, world = self.world.dice, self.world
        connection = await self.connection(proxy or dice.pick(self.proxies), is_slow=how == "slow")
        request = ReceiveMessageRequest(
            group={"name": self.group},
            message_queue={"topic": {"name": self.topic}},
            batch_size=dice.pick((1, 4, 32)),
            long_polling_timeout={"seconds": POLL_S},
            auto_renew=how == "renewed",
        )
        if how != "renewed":
            invisible_s = self._cancelled_s if how == "cancelled" else INVISIBLE_S
            request.invisible_duration.seconds = invisible_s
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
                self.keep_lease(one)
        except TimeoutError:
            self.count("cancelled" if how == "cancelled" else "late")
        finally:
            call.cancel()
        if found and how == "cancelled":
            self.block(self._cancelled_s)
        if call.is_cancelled:
            await self.clock.sleep(0.5)  # messages that crossed the cancellation
            count = len(found)
            for late in call.late:
                count += self._on_answer(late, begin_s, count) is not None
                self.block(self._cancelled_s)
        return found

    def _on_answer(self, data: bytes, begin_s: float, count: int) -> Held | None:
        """Handles one element of a stream; returns the message that it holds."""
        answer = ReceiveMessageResponse.FromString(data)
        content = answer.WhichOneof("content")
        if content != "message":
            if content == "status" and count:
                self.world.findings.order.append(f"{self.process} got a status after {count} messages")
            return None
        return self.record(answer.message, begin_s)

    # The ends of messages.

    async def process_all(self, found: list[Held]) -> None:
        """Processes messages in order: acknowledges, postpones or abandons them. A member of an ordered group
        stops at the first one that was not acknowledged: the others are delivered again behind it.
        """
        dice = self.world.dice
        while found:
            count = 1 if self.is_ordered else dice.between(1, len(found))
            some, found = found[:count], found[count:]
            is_done = await self.process_some(some)
            if self.is_ordered and not is_done:
                return

    async def process_some(self, some: list[Held]) -> bool:
        """Returns True if the messages are acknowledged."""
        dice = self.world.dice
        if self.is_resting or dice.happens(75):
            return await self.acknowledge(some)
        if dice.happens(60):
            return await self._postpone_or_done(some[0])
        return False

    async def acknowledge(self, some: list[Held], proxy: ProxyNode | None = None) -> bool:
        """Returns True if all are acknowledged."""
        request = AckMessageRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            entries=[{"message_id": one.message_id, "receipt_handle": one.handle} for one in some],
        )
        answer = await self.ask("AckMessage", request, AckMessageResponse, proxy=proxy)
        if answer is None:
            return False
        if [entry.receipt_handle for entry in answer.entries] != [one.handle for one in some]:
            self.world.findings.broken.append(f"{self.process} acknowledged {some} and got {answer}")
            return False
        for one, entry in zip(some, answer.entries, strict=True):
            self.world.note(f"{self.process} acknowledged {one.item}: {entry.status.code}")
            if entry.status.code == Code.OK:
                self.on_done(one)
            else:
                self.on_refused(one, entry.status.code)
        return bool(answer.status.code == Code.OK)

    def on_done(self, held: Held) -> None:
        super().on_done(held)
        self._begun.add(held.place[1])
        if len(self._begun) == self.queue_count:
            self._begun_s = min(self._begun_s, self.world.loop.time())

    async def postpone(self, one: Held, seconds: int) -> bool:
        """Changes the invisible time; returns True if a master has done it."""
        request = ChangeInvisibleDurationRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            receipt_handle=one.handle,
            message_id=one.message_id,
            invisible_duration={"seconds": seconds},
        )
        self.give_up_lease(one)  # nothing is promised until the answer arrives
        answer = await self.ask("ChangeInvisibleDuration", request, ChangeInvisibleDurationResponse)
        if answer is None or answer.status.code != Code.OK:
            return False
        one.handle = answer.receipt_handle
        self.count("postponed")
        return True

    async def _postpone_or_done(self, one: Held) -> bool:
        is_changed = await self.postpone(one, self.world.dice.between(1, 5))
        return is_changed and self.world.dice.happens(50) and await self.acknowledge([one])

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
    message_type = "FIFO"
    is_ordered = True


async def _next(call: GrpcCall, timeout_s: float) -> bytes | None:
    return await call.next(max(timeout_s, 0.0))
