"""The push of table changes (TANDEM_AWAIT_TABLES): a slave copies topics and groups as soon as they change.

`TableChangeSubscriber` is the slave's half, `TableChangeServer` the master's. They transfer no table: a
change only makes the next round of the periodic copy start at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from tandemmq.api.replica import await_tables
from tandemmq.broker.replica.config_sync import ConfigSync, ReplicaTables
from tandemmq.errors import Busy, RequestRejected, TandemError
from tandemmq.protocol.bodies.codec import DataVersion, decode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import AwaitTablesRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.runtime.tasks import TimedEvent

WAIT_MS: Final = 15_000
PAUSE_S: Final = 0.05
"""The pause between an answer and the next request; the round that the answer started is usually complete by
then.
"""
WATCH_S: Final = 0.01
RETRY_S: Final = 1.0
ROUND_S_MAX: Final = 2.0

Versions = tuple[DataVersion, DataVersion]


@dataclass(eq=False)
class TableChangeSubscriber:
    """The slave's half: asks its master to report changes of topics or groups. `run` is its task.

    Support is detected by trying: a master that does not support the request is not asked again while it
    keeps its address, and the periodic copy continues, as it does with RocketMQ.

    `broker_id`: this broker's id, if the master relies on the tables that it holds.
    """

    tables: ReplicaTables
    sync: ConfigSync
    _: KW_ONLY
    client: RemotingClient
    clock: Clock
    broker_id: int | None = None

    def __post_init__(self) -> None:
        self._unsupported_by: str | None = None
        """The address of a master that does not support the request."""
        self._last_answered: Versions | None = None
        """The versions that were sent with the last answered request."""

    async def run(self) -> None:
        """Sends one request after the other. Never returns."""
        while True:
            master = self.sync.master
            if master != self._unsupported_by:
                self._unsupported_by = None
            if master is None:
                # A slave that starts soon learns its master, and a change may follow at once.
                await self.clock.sleep(PAUSE_S)
                continue
            if self._unsupported_by is not None:
                await self.clock.sleep(RETRY_S)
                continue
            held, started_at = self._versions(), self.clock.monotonic()
            if held is None:
                await self.clock.sleep(PAUSE_S)
                continue
            is_answered = await self._watch_once(master, held)
            is_early = self.clock.monotonic() - started_at < RETRY_S
            # The same change was reported again: the rounds do not bring it, so asking faster is useless.
            is_useless = is_early and held == self._last_answered
            self._last_answered = held if is_answered else None
            await self.clock.sleep(PAUSE_S if is_answered and not is_useless else RETRY_S)

    async def _watch_once(self, master: str, held: Versions) -> bool:
        """Sends one request; returns False if the master could not be asked."""
        try:
            await await_tables(self.client, master, *held, wait_ms=WAIT_MS, broker_id=self.broker_id)
        except RequestRejected as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._unsupported_by = master
            return False
        except TandemError:
            return False  # the periodic copy reports it
        if self._versions() == held:
            self.sync.wake()
            if self.broker_id is not None:
                await self._await_round(self.sync.round_count + 1)
        return True

    async def _await_round(self, number: int) -> None:
        """Waits for the round that the answer started, not the one in progress; a distant master needs a
        while.
        """
        ends_at_s = self.clock.monotonic() + ROUND_S_MAX
        while self.sync.complete_round < number and self.clock.monotonic() < ends_at_s:
            await self.clock.sleep(WATCH_S)

    def _versions(self) -> Versions | None:
        """Returns the versions held; if the master relies on them, only those of a complete round."""
        if self.broker_id is not None:
            return self.sync.held
        return self.tables.topics.data_version, self.tables.groups.data_version


WAIT_MS_MAX: Final = 60_000
HELD_S_MAX: Final = 3.0
"""Above the default of haMaxTimeSlaveNotCatchup: a slave that does not answer has usually left the set by
then.
"""
DEPARTURE_CHECK_S: Final = 0.1
"""The interval at which a slave's departure from the set is noticed."""
WAITING_COUNT_MAX: Final = 256
"""At the bound a request is answered at once, so that slaves poll."""


class TableChangeServer:
    """The master's half: holds the requests of all slaves until topics or groups change.

    A slave that may be elected sends its id with its versions. A change is answered to its author only when
    all those slaves have it (`wait_held`), so that the next master has it, too. Slaves that never request are
    not waited for. Held requests are answered in the loop turn after the first change, so a burst of changes
    costs one answer.
    Invariants: an answer is sent once; a version that already differs is answered at once, so no change
                between two requests is missed.
    """

    def __init__(self, tables: ReplicaTables, *, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._held: dict[int, tuple[Channel, Command, TimerHandle]] = {}
        self._reported: dict[int, tuple[tuple[DataVersion, DataVersion], Channel]] = {}
        self._report_arrived = TimedEvent(clock)
        self._count = 0
        self._is_due = False
        tables.topics.on_change.append(self._on_change)
        tables.groups.on_change.append(self._on_change)

    def __len__(self) -> int:
        return len(self._held)

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.TANDEM_AWAIT_TABLES: self.handle_await}

    def handle_await(self, channel: Channel, command: Command) -> Command | None:
        request = command.decode(AwaitTablesRequest)
        held = decode_body(request.topics, DataVersion), decode_body(request.groups, DataVersion)
        if request.broker_id is not None:
            self._record_held(request.broker_id, held, channel)
        is_current = held == self._versions()
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        if not is_current or wait_ms <= 0 or len(self._held) >= WAITING_COUNT_MAX:
            return command.reply()
        self._count += 1
        key = self._count
        timer = self._clock.call_later(wait_ms / 1000, self._answer, key)
        self._held[key] = channel, command, timer
        return None

    def _versions(self) -> tuple[DataVersion, DataVersion]:
        return self._tables.topics.data_version, self._tables.groups.data_version

    def _record_held(self, broker_id: int, held: tuple[DataVersion, DataVersion], channel: Channel) -> None:
        before = self._reported.get(broker_id)
        if before is None or before[1] is not channel:
            channel.on_close.append(lambda closed: self._forget(broker_id, closed))
        self._reported[broker_id] = held, channel
        self._report_arrived.set()

    def _forget(self, broker_id: int, channel: Channel) -> None:
        if broker_id in self._reported and self._reported[broker_id][1] is channel:
            del self._reported[broker_id]
            self._report_arrived.set()

    def holds(self, broker_id: int) -> bool:
        """Returns True if this slave has reported that it holds the current tables."""
        return broker_id in self._reported and not self._is_behind(broker_id, self._versions())

    def _is_behind(self, broker_id: int, versions: tuple[DataVersion, DataVersion]) -> bool:
        held, _ = self._reported[broker_id]
        return any(one.order < wanted.order for one, wanted in zip(held, versions, strict=True))

    async def wait_held(self, needed: Callable[[], Iterable[int]]) -> None:
        """Waits until those of `needed` that send requests here hold the current tables.

        Raises:  Busy after HELD_S_MAX.
        """
        versions = self._versions()
        ends_at_s = self._clock.monotonic() + HELD_S_MAX

        def is_missing(broker_id: int) -> bool:
            return broker_id in self._reported and self._is_behind(broker_id, versions)

        while missing := [one for one in needed() if is_missing(one)]:
            if self._clock.monotonic() >= ends_at_s:
                names = ", ".join(map(str, sorted(missing)))
                raise Busy(
                    f"the change is applied here, but after {HELD_S_MAX:g} s not yet at the brokers {names}"
                    " of the SyncStateSet: try again"
                )
            self._report_arrived.clear()
            await self._report_arrived.wait(DEPARTURE_CHECK_S)

    def close(self) -> None:
        """Answers all held requests, because the broker stops."""
        for key in list(self._held):
            self._answer(key)

    def _on_change(self, _names: list[str]) -> None:
        if self._held and not self._is_due:
            self._is_due = True
            self._clock.call_soon(self._answer_all)

    def _answer_all(self) -> None:
        self._is_due = False
        self.close()

    def _answer(self, key: int) -> None:
        channel, command, timer = self._held.pop(key)
        timer.cancel()
        if not channel.is_closed:
            channel.send(command.reply())
