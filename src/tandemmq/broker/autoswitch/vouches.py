"""Vouches: a master may go on without a lease while all other members of its set promise to stay slaves.

Strategy:   each slave asks its master again and again, and brings back the token of the answer before. While
            the master is short of a lease it says so; from then on each question is a promise not to take
            office for PROMISE_S, made when it was sent. The master counts it from when it gave the token out,
            which was before that: so neither a stall nor a network that delivers late makes an old promise
            look new. While controllers grant leases nobody promises anything, and elections wait for nobody.
Invariants: what a master counts ends before the promise does, if clock rates differ by less than 5 %.
Source:     spec controller 10.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tandemmq.api.controller import vouch
from tandemmq.errors import ClientError, RequestRejected
from tandemmq.protocol.requests.controller import VouchRequest, VouchResponse
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock

COUNTED_S: Final = 1.2
"""As long as a lease."""
PROMISE_S: Final = 1.33
TIMEOUT_S: Final = 0.5
TOKENS_PER_S: Final = 1_000_000


class Vouches:
    """A master's: who stays its slave, and since when that is certain."""

    def __init__(self) -> None:
        self._begun_s = float("inf")
        self._heard: dict[int, tuple[float, Channel]] = {}

    def begin_term(self, now_s: float) -> None:
        """What was promised to an earlier master counts for nothing."""
        self._begun_s = now_s
        self._heard.clear()

    def hear(self, broker_id: int, token: int, channel: Channel, now_s: float) -> None:
        """A promise; a token that this term has not given out is none."""
        since_s = token / TOKENS_PER_S
        if not self._begun_s <= since_s <= now_s:
            return
        before = self._heard.get(broker_id)
        if before is None or before[1] is not channel:
            # A process that has ended keeps no promise.
            channel.on_close.append(lambda gone: self._forget(broker_id, gone))
        self._heard[broker_id] = since_s, channel

    def _forget(self, broker_id: int, channel: Channel) -> None:
        heard = self._heard.get(broker_id)
        if heard is not None and heard[1] is channel:
            del self._heard[broker_id]

    def have_all(self, ids: Iterable[int], now_s: float) -> bool:
        """Whether each of these keeps a promise still."""
        return all(one in self._heard and self._heard[one][0] >= now_s - COUNTED_S for one in ids)

    @staticmethod
    def new_token(now_s: float) -> int:
        """The moment, rounded down."""
        return int(now_s * TOKENS_PER_S)


class Promise:
    """A slave's: until when it must not take office."""

    def __init__(self, *, client: RemotingClient, clock: Clock, period_s: float) -> None:
        self._client = client
        self._clock = clock
        self._period_s = period_s
        self._until_s = float("-inf")

    async def wait(self) -> None:
        """Returns when nothing is promised."""
        rest_s = self._until_s - self._clock.monotonic()
        if rest_s > 0:
            await self._clock.sleep(rest_s)

    async def keep(self, address: str, make: Callable[[int | None], VouchRequest]) -> None:
        """Never returns: tells the master at `address` again and again that this broker is its slave."""
        token: int | None = None
        while True:
            begun_s = self._clock.monotonic()
            if token is not None:
                self._until_s = max(self._until_s, begun_s + PROMISE_S)
            answer: VouchResponse | None = None
            try:
                answer = await vouch(self._client, address, make(token), timeout_s=TIMEOUT_S)
            except (ClientError, RequestRejected):
                pass  # nobody is there, or it serves another term
            is_first = token is None
            token = None if answer is None or not answer.is_wanted else answer.token
            if token is not None and is_first:
                continue
            await self._clock.sleep(max(0.0, begun_s + self._period_s - self._clock.monotonic()))
