"""The book of an application's deliveries: what each promises, and what must not be delivered again.

Invariants: a message that was acknowledged with OK is not delivered again, and none is delivered while a
            client holds it, unless a fault explains it: a lost master, or the end of the lease by the clock
            of any master.
Knows not:  how messages are received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sim.cluster.watch import EXCUSE_S
from sim.cluster.work.node import Item
from sim.proxied.application import GrpcApplication
from sim.proxied.nodes import INVISIBLE_MS, Renewed
from tandemmq.proxy.statuses import Code

INVISIBLE_S = 10
SKEW_MS = 4_000
"""The most by which the clocks of two machines differ."""
HIDDEN_S_MAX = 40.0
"""The time within which each message is delivered while no fault occurs."""

Place = tuple[str, int, int]
"""Flag of the topic, queue and queue offset of a delivered message."""


@dataclass(slots=True, eq=False)
class Held:
    """A message that a client has received.

    lease    the name of the broker's lease: flag, queue, start offset and pop time
    since_s  the time since when a broker is known to have it
    ends_ms  the end of the lease by the broker's clock
    got_s    the time of the delivery
    """

    item: Item
    place: Place
    handle: str
    message_id: str
    attempt: int
    lease: tuple[str, int, str, str]
    since_s: float
    ends_ms: int
    got_s: float


class DeliveredWork(GrpcApplication):
    """An application that checks what it receives."""

    groups: ClassVar[tuple[str, ...]] = ("a", "b", "c", "d")
    """The message groups of an ordered application."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._done_at: dict[int, tuple[float, Place]] = {}
        """Message number -> the time at which an acknowledgement was answered with OK, and its place."""
        self._leases: dict[int, Held] = {}
        """Message number -> its last delivery, while it is promised to be the only one."""
        self._blocked_until_s = 0.0
        """The end of the longest lease; messages behind it wait in an ordered group."""
        for proxy in self.proxies:
            proxy.on_renewal.append(self._on_renewal)

    def message_group(self, item: Item) -> str:
        return self.groups[item.number % len(self.groups)] if self.is_ordered else ""

    # Deliveries.

    def record(self, message: Any, begin_s: float) -> Held | None:
        """Checks a delivery of a receive that began at `begin_s`, and records it."""
        world, system = self.world, message.system_properties
        start, pop_ms, invisible_ms, _, flag, *_ = system.receipt_handle.split(" ")
        place = flag, system.queue_id, system.queue_offset
        where = f"{self.process} received {'/'.join(map(str, place))} from {start}"
        item = self.book.find(message.body)
        if item is None:
            world.findings.broken.append(f"{where}, which was never sent: {message.body[:40]!r}")
            return None
        now_s = world.loop.time()
        attempt = system.delivery_attempt
        world.note(f"{where}: {item}, attempt {attempt}")
        self._check_done(item, place, where)
        self._check_leased(item, place, begin_s, where)
        self.on_delivery(item, where, attempt)
        if self.group not in item.finished:
            self._check_hidden(item, now_s, where)
            if not self.is_disturbed(item) and attempt != 1:
                world.findings.broken.append(f"{where}: {item} for the first time, as attempt {attempt}")
        else:
            self.count("delivered again")
        item.finished[self.group] = now_s
        ends_ms = int(pop_ms) + int(invisible_ms)
        lease = flag, system.queue_id, start, pop_ms
        handle, message_id = system.receipt_handle, system.message_id
        return Held(item, place, handle, message_id, attempt, lease, begin_s, ends_ms, now_s)

    def keep_lease(self, held: Held) -> None:
        """Records that the client has got the whole answer: no other one gets the message now."""
        self._leases[held.item.number] = held

    def on_delivery(self, item: Item, where: str, attempt: int) -> None:
        """Checks that earlier messages of the message group were delivered before."""
        if attempt > self.retry_count_max + 1:
            self.world.findings.broken.append(f"{where}: {item} as attempt {attempt}")
        if not self.is_ordered or self.group in item.finished:
            return
        for earlier in self.book.items[item.number % len(self.groups) : item.number : len(self.groups)]:
            if self.group not in earlier.finished and self.is_owed(earlier):
                self.world.findings.order.append(f"{where}: {item} before {earlier}")

    def is_disturbed(self, item: Item) -> bool:
        """Returns True if a broker may count an attempt of which no client knows."""
        return not self.world.is_quiet_since(item.begin_s - EXCUSE_S)

    def _check_done(self, item: Item, place: Place, where: str) -> None:
        """Checks that the message was not acknowledged."""
        done_s, done_place = self._done_at.get(item.number, (None, place))
        if done_s is None or not self.is_kept(done_s):
            return
        # A send or a revival that met a fault may have made a copy.
        if place == done_place or not self.is_disturbed(item):
            self.world.findings.broken.append(f"{where}: {item}, acknowledged with OK at {done_s:.3f}")

    def _check_leased(self, item: Item, place: Place, begin_s: float, where: str) -> None:
        """Checks that no other client holds the message."""
        if self.is_ordered and not self.world.is_quiet_since(begin_s - INVISIBLE_S):
            return  # a master's fault ends the turn of a member
        held = self._leases.get(item.number)
        if held is None or place != held.place:
            return
        if not self._is_over(held.ends_ms) and self.is_kept(held.since_s):
            self.world.findings.broken.append(
                f"{where}: {item}, which another has since {held.since_s:.3f}, until {held.ends_ms}"
            )

    def _check_hidden(self, item: Item, now_s: float, where: str) -> None:
        """Checks that the first delivery is not late."""
        waited_s = now_s - max(item.end_s, self._blocked_until_s if self.is_ordered else 0.0)
        if item.is_acknowledged and self.world.is_quiet_since(item.end_s) and waited_s > HIDDEN_S_MAX:
            self.world.findings.skipped.append(f"{where}: {item} for the first time, {waited_s:.1f} s late")

    def _is_over(self, ends_ms: int) -> bool:
        """Returns True if some master may consider the lease as expired by now."""
        return self._watch.latest_ms() >= ends_ms

    def is_kept(self, at_s: float) -> bool:
        """Returns True if an answer of a broker at that time still holds for all later brokers."""
        is_discarded = any(begin_s <= at_s <= end_s for begin_s, end_s in self.world.discards)
        return not is_discarded and self._watch.promises.is_kept_since(at_s)

    def block(self, seconds: float) -> None:
        """Records that messages behind those of an ordered group may wait for so long."""
        self._blocked_until_s = max(self._blocked_until_s, self.world.loop.time() + seconds)

    # The ends of leases.

    def _on_renewal(self, renewed: Renewed) -> None:
        """Handles a proxy's renewal: a lease that may end early promises nothing, one that was prolonged
        until its new end.
        """
        if renewed.group != self.group:
            return
        for number, held in list(self._leases.items()):
            if held.lease != renewed.lease:
                continue
            if renewed.is_answered:
                held.since_s = self.world.loop.time()
                held.ends_ms = max(held.ends_ms, renewed.ends_ms)
            elif renewed.invisible_ms < INVISIBLE_MS:
                del self._leases[number]

    def on_done(self, held: Held) -> None:
        """Records an acknowledgement that was answered with OK."""
        self._done_at.setdefault(held.item.number, (self.world.loop.time(), held.place))
        self.count("acknowledged")

    def on_refused(self, held: Held, code: int) -> None:
        """Handles an acknowledgement that was answered with an error: a lease that has not ended is valid."""
        is_quiet = self.world.is_quiet_since(held.got_s - EXCUSE_S) and not self.world.is_clock_set
        # The proxy compares the handle with its own clock.
        is_held = self._leases.get(held.item.number) is held and not self._is_over(held.ends_ms - SKEW_MS)
        if code == Code.INVALID_RECEIPT_HANDLE and is_quiet and is_held:
            self.world.findings.broken.append(
                f"{self.process} could not acknowledge {held.item}, which it has since {held.got_s:.3f}"
            )

    def has_acknowledged(self, item: Item) -> bool:
        return item.number in self._done_at

    def give_up_lease(self, held: Held) -> None:
        """Records that the message is no longer promised to the client alone."""
        self._leases.pop(held.item.number, None)
