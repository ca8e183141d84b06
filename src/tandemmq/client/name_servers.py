"""The name servers of a client: one is asked until it fails, then the next (spec remoting 5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tandemmq.errors import BrokerUnreachable, ClientError, RequestTimeout
from tandemmq.remoting.client import RemotingClient

T = TypeVar("T")


class NameServers:
    """All answer the same questions; the first to ask is drawn by the caller, to spread the load of many
    clients.
    """

    def __init__(self, client: RemotingClient, addresses: Sequence[str], *, first: int = 0) -> None:
        assert addresses
        self._client = client
        self._addresses = tuple(addresses)
        self._current = first % len(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    @property
    def current(self) -> str:
        """The one that is asked next."""
        return self._addresses[self._current]

    async def ask(self, question: Callable[[RemotingClient, str], Awaitable[T]]) -> T:
        """The answer of the first name server that gives one; a refusal is an answer too.

        Raises:  BrokerUnreachable or RequestTimeout of the last one when none answers.
        """
        last: ClientError | None = None
        for _ in self._addresses:
            address = self.current
            try:
                return await question(self._client, address)
            except (BrokerUnreachable, RequestTimeout) as error:
                last = error
                if self.current == address:
                    self._current = (self._current + 1) % len(self._addresses)
        assert last is not None
        raise last
