"""Renewal of the leases of push consumers, for as long as a client works on its messages.

A push consumer names no invisible time: its messages are leased for a short one, and the proxy that delivered
them renews the lease while the client is alive. Nothing is lost with this table: if its proxy is killed, the
messages appear again one invisible time after the last renewal, and handles are valid at every proxy.

A renewable lease is renewed in place, one request for all its open messages, and handles stay as they are.
Other brokers make a new handle for each message; then this table maps the handle of the client to the newest
one, and only this proxy accepts the old one (decision 027).

Invariants: a message is renewed under one handle at a time; an acknowledgement waits for a renewal that
            would replace its handle.
Strategy:   a heap of due times and one task; up to `IN_FLIGHT_MAX` renewals run at once.
At a bound: a message above `count_max` is not renewed, so its client has one invisible time for it.
Source:     spec proxy 5.12.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.api import broker_consume
from tandemmq.errors import TandemError
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.handles import Receipt, parse_receipt
from tandemmq.proxy.lease_calls import LeaseCalls
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.runtime.tasks import TimedEvent
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 256
DUE_KEPT: Final = 1_024
RETRY_S: Final = 1.0
"""The pause after a renewal that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalOptions:
    """The times of renewals, in milliseconds.

    invisible_ms  the invisible time of a delivered message, and of each renewal
    ahead_ms      a lease is renewed this long before it ends
    life_ms       no lease is renewed longer than this after its pop
    released_ms   the invisible time of the messages of a client that is gone
    """

    invisible_ms: int = 60_000  # defaultInvisibleTimeMills
    ahead_ms: int = 30_000  # renewAheadTimeMillis
    life_ms: int = 10_800_000  # renewMaxTimeMillis
    failures_max: int = 3  # maxRenewRetryTimes
    released_ms: int = 1_000  # invisibleTimeMillisWhenClear
    count_max: int = 200_000


class LeaseOwner(NamedTuple):
    """The client, the group and the topic of delivered messages."""

    client_id: str
    group: str
    topic: str


@dataclass(slots=True, eq=False)
class RenewedLease:
    """The messages that one request renews: those of a renewable lease, or one message of another lease.

    receipts      the newest receipt of each open message, by the handle that the client has
    is_in_place   True for a renewable lease, whose handles stay valid
    until_s       the end of the last renewal
    renewal_s     the time of the next renewal
    number        the valid entry of the heap; others of this lease are ignored
    recheck_s     the pause before the brokers are asked again whether the client is at another proxy
    """

    owner: LeaseOwner
    receipts: dict[str, Receipt]
    is_in_place: bool
    until_s: float
    renewal_s: float
    number: int = 0
    recheck_s: float = RETRY_S
    failure_count: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class Renewal:
    """The messages that this proxy renews."""

    core: ProxyCore
    calls: LeaseCalls
    options: RenewalOptions = field(default_factory=RenewalOptions)
    renewed_count: int = field(default=0, init=False)
    failed_count: int = field(default=0, init=False)
    released_count: int = field(default=0, init=False)
    unwatched_count: int = field(default=0, init=False)
    """The messages that were not renewed because of `count_max`."""
    _by_handle: dict[str, RenewedLease] = field(default_factory=dict, init=False)
    _by_client: dict[str, dict[RenewedLease, None]] = field(default_factory=dict, init=False)
    _due: list[tuple[float, int, RenewedLease]] = field(default_factory=list, init=False)
    _number: int = field(default=0, init=False)
    _in_flight: int = field(default=0, init=False)
    _releases: asyncio.Semaphore = field(init=False)
    _wake: TimedEvent = field(init=False)
    _lines: LimitedLines = field(init=False)

    def __post_init__(self) -> None:
        self._releases = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._wake, self._lines = TimedEvent(self.core.clock), LimitedLines(self.core.clock)
        self.core.clients.on_gone.append(self._on_gone)

    def __len__(self) -> int:
        """Returns the number of messages that are renewed."""
        return len(self._by_handle)

    def watch(self, owner: LeaseOwner, receipts: Sequence[Receipt]) -> None:
        """Renews these delivered messages of one pop until `forget`, or until their client is gone."""
        if len(self._by_handle) + len(receipts) > self.options.count_max:
            self.unwatched_count += len(receipts)
            facts = {"client_id": owner.client_id, "group": owner.group, "count": len(receipts)}
            self._lines.write(log, events.PROXY_RENEWAL_FULL, facts)
            return
        now_s = self.core.clock.monotonic()
        until_s = now_s + self.options.life_ms / 1000
        shared: dict[tuple[object, ...], RenewedLease] = {}
        for receipt in receipts:
            handle = receipt.handle
            place = (handle.broker_name, handle.flag, handle.queue_id, handle.start_offset)
            renewed = shared.get(place) if receipt.is_renewable else None
            if renewed is None:
                renewal_s = now_s + self._pause_s()
                renewed = shared[place] = RenewedLease(owner, {}, receipt.is_renewable, until_s, renewal_s)
                self._by_client.setdefault(owner.client_id, {})[renewed] = None
                self._schedule(renewed, renewal_s)
            renewed.receipts[receipt.text] = receipt
            self._by_handle[receipt.text] = renewed

    @asynccontextmanager
    async def newest(self, handle_text: str) -> AsyncIterator[Receipt]:
        """Provides the receipt that is valid for a client's handle. It is not replaced inside the block.

        Raises:  RpcRefused INVALID_RECEIPT_HANDLE for a text that is not a handle.
        """
        renewed = self._by_handle.get(handle_text)
        if renewed is None or renewed.is_in_place:
            yield parse_receipt(handle_text)
            return
        async with renewed.lock:
            yield renewed.receipts.get(handle_text) or parse_receipt(handle_text)

    def forget(self, handle_text: str) -> None:
        """Ends the renewal of a message: it is acknowledged, or its client chose an invisible time."""
        renewed = self._by_handle.pop(handle_text, None)
        if renewed is not None:
            renewed.receipts.pop(handle_text, None)
            if not renewed.receipts:
                self._drop(renewed)

    async def run(self) -> None:
        """Renews leases when they are due, until it is cancelled."""
        while True:
            self._wake.clear()
            now_s = self.core.clock.monotonic()
            while self._due and self._due[0][0] <= now_s and self._in_flight < IN_FLIGHT_MAX:
                _, number, renewed = heapq.heappop(self._due)
                if renewed.receipts and renewed.number == number:
                    self._in_flight += 1
                    self.core.tasks.start("renew", self._renew_counted(renewed))
            is_idle = not self._due or self._in_flight >= IN_FLIGHT_MAX
            await self._wake.wait(None if is_idle else self._due[0][0] - now_s)

    async def _renew_counted(self, renewed: RenewedLease) -> None:
        try:
            await self._renew(renewed)
        finally:
            self._in_flight -= 1
            self._wake.set()

    async def _renew(self, renewed: RenewedLease) -> None:
        if not renewed.receipts:
            return
        owner = renewed.owner
        now_s = self.core.clock.monotonic()
        remaining_ms = round((renewed.until_s - now_s) * 1000)
        if remaining_ms <= 0:
            self._log_end(renewed, "it was held too long")
            self._drop(renewed)
            return
        if not self.core.clients.is_alive(owner.client_id):
            if not await self._is_elsewhere(renewed):
                await self._release(renewed)
                return
            if now_s < renewed.renewal_s:
                # The brokers may list it only because this proxy has not unregistered it yet.
                renewed.recheck_s *= 2
                self._schedule(renewed, min(now_s + renewed.recheck_s, renewed.renewal_s))
                return
        try:
            async with renewed.lock:
                if renewed.receipts:
                    await self._extend(renewed, min(self.options.invisible_ms, remaining_ms))
        except TandemError as error:
            self.failed_count += 1
            renewed.failure_count += 1
            is_void = isinstance(error, RpcRefused) and error.code == Code.INVALID_RECEIPT_HANDLE
            if is_void or renewed.failure_count >= self.options.failures_max:
                if not is_void:  # a void lease is one whose messages were acknowledged at another proxy
                    self._log_end(renewed, str(error))
                self._drop(renewed)
            else:
                self._schedule(renewed, self.core.clock.monotonic() + RETRY_S)
            return
        self.renewed_count += 1
        renewed.failure_count = 0
        renewed.renewal_s = now_s + self._pause_s()
        self._schedule(renewed, renewed.renewal_s)

    async def _extend(self, renewed: RenewedLease, invisible_ms: int) -> None:
        _, group, topic = renewed.owner
        handle_text, receipt = next(iter(renewed.receipts.items()))
        if renewed.is_in_place:
            await self.calls.renew(group, topic, receipt, invisible_ms)
            return
        new = await self.calls.change(group, topic, receipt, invisible_ms)
        renewed.receipts[handle_text] = new

    async def _is_elsewhere(self, renewed: RenewedLease) -> bool:
        """Returns True if the brokers list the client, which is then connected to another proxy."""
        client_id, group, topic = renewed.owner
        _, receipt = next(iter(renewed.receipts.items()))
        try:
            members = await self.core.brokers.ask_master(
                broker_consume.query_consumer_ids, topic, receipt.handle.broker_name, group
            )
        except TandemError:
            return True  # the next renewal asks again
        return client_id in members

    def _on_gone(self, client_id: str) -> None:
        for renewed in list(self._by_client.get(client_id, ())):
            self.core.tasks.start("release", self._release_if_gone(renewed))

    async def _release_if_gone(self, renewed: RenewedLease) -> None:
        async with self._releases:
            if not renewed.receipts:
                return
            if await self._is_elsewhere(renewed):
                self._schedule(renewed, self.core.clock.monotonic() + RETRY_S)
            else:
                await self._release(renewed)

    async def _release(self, renewed: RenewedLease) -> None:
        """Makes the messages of a client that is gone visible soon."""
        async with renewed.lock:
            if not renewed.receipts:
                return
            try:
                await self._extend(renewed, self.options.released_ms)
                self.released_count += 1
            except TandemError as error:
                self._log_end(renewed, str(error), logging.INFO)
            self._drop(renewed)

    def _log_end(self, renewed: RenewedLease, reason: str, level: int = logging.WARNING) -> None:
        client_id, group, topic = renewed.owner
        count = len(renewed.receipts)
        facts = {"client_id": client_id, "group": group, "topic": topic, "count": count, "reason": reason}
        self._lines.write(log, events.PROXY_RENEWAL_ENDED, facts, level=level)

    def _drop(self, renewed: RenewedLease) -> None:
        for handle_text in renewed.receipts:
            self._by_handle.pop(handle_text, None)
        renewed.receipts.clear()
        of_client = self._by_client.get(renewed.owner.client_id, {})
        of_client.pop(renewed, None)
        if not of_client:
            self._by_client.pop(renewed.owner.client_id, None)
        if len(self._due) > DUE_KEPT and len(self._due) > 4 * len(self._by_handle):
            # Acknowledged messages would stay in the heap until they are due.
            self._due = [entry for entry in self._due if entry[2].receipts and entry[2].number == entry[1]]
            heapq.heapify(self._due)

    def _pause_s(self) -> float:
        """Returns the time between renewals; half of the lease if it is not longer than `ahead_ms`."""
        lease_ms, ahead_ms = self.options.invisible_ms, self.options.ahead_ms
        return (lease_ms - ahead_ms if ahead_ms < lease_ms else lease_ms / 2) / 1000

    def _schedule(self, renewed: RenewedLease, due_s: float) -> None:
        """Sets the time of the next work; an earlier entry of the heap is ignored from now on."""
        self._number += 1
        renewed.number = self._number
        heapq.heappush(self._due, (due_s, self._number, renewed))
        self._wake.set()
