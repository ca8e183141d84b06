"""Push consumers: clients with a session, whose proxy renews what they hold for long.

Invariants: a message does not come again while a living client holds it, also when the client has changed
            the proxy, unless a fault explains it or it was held longer than a proxy renews.
            A message of a client that is gone comes again soon, and not before its lease has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from sim.cluster.watch import EXCUSE_S
from sim.cluster.work.node import RETRY_S, Item
from sim.proxied.deliveries import HIDDEN_S_MAX, INVISIBLE_S, Held
from sim.proxied.grpc_client import CallFailed
from sim.proxied.nodes import EXPIRY_S, LIFE_S, ProxyNode
from sim.proxied.session import Session, consumer_settings
from sim.proxied.work import ProxiedWork

HELD_MAX = 12
"""The number of messages that a client holds at most before it receives again."""
GONE_S_MAX = EXPIRY_S + INVISIBLE_S + HIDDEN_S_MAX
"""The time within which the messages of a client that is gone come again."""
ACK_ATTEMPTS = 8
SPANS = ((60, (0, 400)), (30, (5_000, 25_000)), (4, (LIFE_S * 1000, LIFE_S * 1500)))
"""The times in milliseconds for which a message is held, with their relative frequencies."""
ORDERED = ((80, (0, 400)), (20, (5_000, 15_000)))
"""The same in an ordered group, where others wait for it."""
RESTING = ((1, (0, 400)),)
"""The same after the last fault."""


@dataclass(slots=True, eq=False)
class Holding:
    """A message in the hands of a client.

    since_s  the time of its delivery
    number   the client's number in its session
    gone_s   the time since when no living client holds it; None while one does
    """

    held: Held
    session: Session
    number: int
    process: object
    since_s: float
    gone_s: float | None = None


class PushWork(ProxiedWork):
    """Push consumers; each message is processed by a task of its own."""

    kind = "pushed"
    topic = "Pushed"
    group = "pushers"
    members = 2

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._holdings: dict[int, Holding] = {}
        """Message number -> who got it last, until it is acknowledged or postponed."""

    def forget(self) -> None:
        super().forget()
        now_s = self.world.loop.time()
        for holding in self._holdings.values():
            holding.gone_s = now_s if holding.gone_s is None else holding.gone_s

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        sessions = [
            Session(self, f"{self.name}-{n}", consumer_settings(self), lambda _command: None)
            for n in range(self.members)
        ]
        return [part for session in sessions for part in (session.run(), self._consume(session))]

    # One client.

    async def _consume(self, session: Session) -> None:
        dice, tasks = self.world.dice, set[asyncio.Task[None]]()
        while not self.is_ending:
            tasks = {task for task in tasks if not task.done()}
            proxy = session.proxy
            if proxy is None or len(tasks) >= HELD_MAX:
                await self.clock.sleep(0.1)
                continue
            number = session.number
            try:
                found = await self.receive(session.client_id, "renewed", proxy)
            except (CallFailed, OSError, TimeoutError) as error:
                self.world.note(f"{self.process} receive fails: {type(error).__name__} {error}")
                await self.clock.sleep(RETRY_S)
                continue
            self._hold(session, number, found)
            assert self._scope is not None
            if found:
                tasks.add(self._scope.start("process", self._process_of(session, found)))
            if not self.is_resting and dice.happens(10):
                await self._change(session)
        if tasks:
            await asyncio.wait(tasks)

    async def _change(self, session: Session) -> None:
        """Moves the client to another proxy, or ends it in order: no client has its messages then."""
        if self.world.dice.happens(60):
            self.count("moves")
            session.move()
            return
        self.count("departures")
        number, now_s = session.number, self.world.loop.time()
        for holding in self._holdings.values():
            if holding.session is session and holding.number == number and holding.gone_s is None:
                holding.gone_s = now_s
                self.give_up_lease(holding.held)
        await session.leave()

    def _hold(self, session: Session, number: int, found: list[Held]) -> None:
        now_s = self.world.loop.time()
        for held in found:
            if self._leases.get(held.item.number) is not held:
                continue  # the answer has broken off, and is handed back
            gone_s = None if number == session.number else now_s
            holding = Holding(held, session, number, self.process, now_s, gone_s)
            self._holdings[held.item.number] = holding

    async def _process_of(self, session: Session, found: list[Held]) -> None:
        """Processes the messages of one receive: all at once, or one after the other in an ordered group."""
        if self.is_ordered:
            for held in found:
                if not await self._process_one(session, held):
                    return
            return
        await asyncio.gather(*(self._process_one(session, held) for held in found))

    async def _process_one(self, session: Session, held: Held) -> bool:
        """Works on a message for a while; returns True if it was acknowledged."""
        dice = self.world.dice
        spans = RESTING if self.is_resting else ORDERED if self.is_ordered else SPANS
        low_ms, high_ms = dice.pick_weighted(spans)
        hold_s = dice.between(low_ms, high_ms) / 1000
        self.block(hold_s + GONE_S_MAX)
        end_s = self.world.loop.time() + hold_s
        while (now_s := self.world.loop.time()) < end_s and not self.is_ending:
            await self.clock.sleep(min(1.0, end_s - now_s))
        if hold_s > INVISIBLE_S:
            self.count("held for long")
        holding = self._holdings.get(held.item.number)
        if holding is None or holding.held is not held or holding.gone_s is not None:
            return False  # another client has it, or this one has left
        if not self.is_resting and dice.happens(10):
            self._holdings.pop(held.item.number, None)
            await self.postpone(held, dice.between(1, 5))
            return False
        return await self._insist(session, held)

    async def _insist(self, session: Session, held: Held) -> bool:
        """Acknowledges a message, at the client's proxy or another one, until there is an answer."""
        for _ in range(ACK_ATTEMPTS):
            proxy: ProxyNode | None = session.proxy if self.world.dice.happens(70) else None
            self._holdings.pop(held.item.number, None)
            if await self.acknowledge([held], proxy):
                return True
            await self.clock.sleep(RETRY_S)
        return False

    # Checks.

    def on_delivery(self, item: Item, where: str, attempt: int) -> None:
        super().on_delivery(item, where, attempt)
        holding = self._holdings.pop(item.number, None)
        world = self.world
        if holding is None or not world.is_quiet_since(holding.since_s - EXCUSE_S):
            return
        now_s, held_s = world.loop.time(), world.loop.time() - holding.since_s
        if holding.gone_s is None and held_s < LIFE_S - INVISIBLE_S:
            world.findings.broken.append(
                f"{where}: {item}, which {holding.session.client_id} has since {holding.since_s:.3f}"
            )
        elif holding.gone_s is not None and now_s - holding.gone_s > GONE_S_MAX and not self.is_ordered:
            world.findings.skipped.append(f"{where}: {item}, whose client is gone since {holding.gone_s:.3f}")


class PushOrderWork(PushWork):
    """Push consumers of an ordered group."""

    kind = "pushed order"
    topic = "PushedOrder"
    group = "orderly-pushers"
    message_type = "FIFO"
    is_ordered = True
