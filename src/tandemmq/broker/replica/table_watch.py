"""The slave's half of the push of tables: asks its master to say when topics or groups change.

Negotiated by trying: a master that does not support the request is not asked again while it keeps its
address, and the periodic copy goes on as it does with RocketMQ. The periodic copy stays with ours too; this
only makes the next round come at once.
"""

from __future__ import annotations

from typing import Final

from tandemmq.api.replica import await_tables
from tandemmq.broker.replica.config_sync import ConfigSync
from tandemmq.broker.replica.tables import ReplicaTables
from tandemmq.errors import RequestRejected, TandemError
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock

WAIT_MS: Final = 15_000
PAUSE_S: Final = 0.05
"""Between an answer and the next request: the round that the answer woke is mostly over then."""
LOOK_S: Final = 0.01
RETRY_S: Final = 1.0

Versions = tuple[DataVersion, DataVersion]


class TableWatch:
    """`run` is its task."""

    def __init__(
        self,
        tables: ReplicaTables,
        sync: ConfigSync,
        *,
        client: RemotingClient,
        clock: Clock,
        broker_id: int | None = None,
    ) -> None:
        """`broker_id`: ours, where the master counts on what we hold."""
        self._broker_id = broker_id
        self._tables = tables
        self._sync = sync
        self._client = client
        self._clock = clock
        self._mute: str | None = None
        """A master that does not support the request."""
        self._told: Versions | None = None
        """The versions with which the last answer came."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            master = self._sync.master
            if master != self._mute:
                self._mute = None
            if master is None or self._mute is not None:
                await self._clock.sleep(RETRY_S)
                continue
            held, begun_at = self._versions(), self._clock.monotonic()
            if held is None:
                await self._clock.sleep(PAUSE_S)
                continue
            is_answered = await self._watch_once(master, held)
            is_early = self._clock.monotonic() - begun_at < RETRY_S
            # Told of the same change again: the rounds do not bring it, so asking faster is no use.
            is_useless = is_early and held == self._told
            if is_answered and self._broker_id is not None:
                await self._await_round()
            self._told = held if is_answered else None
            await self._clock.sleep(PAUSE_S if is_answered and not is_useless else RETRY_S)

    async def _watch_once(self, master: str, held: Versions) -> bool:
        """False when the master could not be asked."""
        try:
            await await_tables(self._client, master, *held, wait_ms=WAIT_MS, broker_id=self._broker_id)
        except RequestRejected as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._mute = master
            return False
        except TandemError:
            return False  # the periodic copy tells of it
        if self._versions() == held:
            self._sync.wake()
        return True

    async def _await_round(self) -> None:
        """The round that the answer woke."""
        before, ends_at_s = self._sync.round_count, self._clock.monotonic() + RETRY_S
        while self._sync.round_count == before and self._clock.monotonic() < ends_at_s:
            await self._clock.sleep(LOOK_S)

    def _versions(self) -> Versions | None:
        """What we have; where the master counts on it, only what a whole round has brought."""
        if self._broker_id is not None:
            return self._sync.held
        return self._tables.topics.data_version, self._tables.groups.data_version
