"""Registration with the name servers: all topics at start and every period, changed ones at once.

Each name server has its own link, so that a slow or dead one delays no other. A link remembers the changes
its server has not confirmed, because a server that saw a later change ignores a full registration of the same
version (spec nameserver 3.5). An unreachable server causes one warning and is retried soon. A server forgets
a broker whose connection ended, so the link then registers at once.
Source: spec nameserver 3.1, 3.4, 3.5 and 4; spec replication 7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import msgspec

from tandemmq.api.nameserver import BrokerIdentity, Registered, register_broker, unregister_broker
from tandemmq.broker.core import BrokerCore
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.bodies.register import RegisterBrokerBody
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT, TopicConfig, TopicConfigTable
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.tasks import TaskScope, TimedEvent
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RETRY_S = 2.0
"""The retry delay for an unreachable name server, in seconds; RocketMQ waits for the next period."""

UNREGISTER_TIMEOUT_S = 3.0

REGISTRATION_WAIT_S = 3.0
"""The longest wait of a topic creation for the name servers, in seconds; tools wait 5 s for the answer."""


class Registration:
    """The links to all name servers. `on_answer` gets the reported master after each answer."""

    def __init__(
        self,
        core: BrokerCore,
        *,
        scope: TaskScope,
        on_answer: Callable[[Registered], None],
        is_disconnected: Callable[[], bool] = lambda: False,
        may_register: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """Creates the links. `is_disconnected`: returns True on a slave without a connection to its reported
        master. `may_register`: called with the address of a name server before each registration; if it
        returns False the link ends.
        """
        self._options, self._topics, self._clock = core.options, core.topics, core.clock
        self._is_disconnected = is_disconnected
        self._may_register = may_register
        self._scope = scope
        self._on_answer = on_answer
        self.is_started = False
        self._links = [
            NameServerLink(address, self, core) for address in dict.fromkeys(core.options.name_servers)
        ]
        core.topics.on_change.append(self._on_topics_changed)

    async def start(self, identity: BrokerIdentity) -> None:
        """Starts the links. Returns when every name server was tried once."""
        for link in self._links:
            link.identity = identity
            self._scope.start(f"register-{link.address}", link.run())
        self.is_started = True
        for link in self._links:
            await link.first_try_done.wait()

    async def stop(self) -> None:
        """Removes this broker from all routes; the scope ends the links' tasks."""
        if self.is_started:
            self.is_started = False
            for link in self._links:
                link.notify_tried()
            await asyncio.gather(*(link.leave() for link in self._links))

    @property
    def fault(self) -> str:
        """The reason why no name server knows this broker; empty if one does, or if none is configured."""
        if self._links and not self.is_started:
            return "the broker has not begun to register"
        faults = [f"{link.address}: {link.fault}" for link in self._links if link.fault]
        return "; ".join(faults) if len(faults) == len(self._links) else ""

    async def wait_registered(self, names: Iterable[str]) -> None:
        """Waits until every reachable name server knows these topics, at most `REGISTRATION_WAIT_S`: the
        creator of a topic may request its route at once.
        """
        names = tuple(names)
        is_over = False

        def end() -> None:
            nonlocal is_over
            is_over = True
            for link in self._links:
                link.notify_tried()

        timer = self._clock.call_later(REGISTRATION_WAIT_S, end)
        try:
            for link in self._links:
                while self.is_started and not is_over and link.is_missing(names):
                    await link.tried.wait()
        finally:
            timer.cancel()

    @property
    def has_rivals(self) -> bool:
        """True if another broker may claim the same name."""
        return self._may_register is not None

    async def may_register(self, name_server: str) -> bool:
        """Returns False once another broker holds the name for good."""
        return self._may_register is None or await self._may_register(name_server)

    def on_registered(self) -> None:
        """Processes an answer: passes on the answer of the first server that knows a master."""
        answers = [link.answer for link in self._links if link.answer is not None]
        known = next((answer for answer in answers if answer.master_address), answers[0])
        if not self._options.is_slave:
            self._mark_ordered(known.order_topics)
        self._on_answer(known)

    def lacks_master(self, answer: Registered | None) -> bool:
        """Returns True on a slave without a reported master or without a connection to it. It then asks again
        soon; otherwise it would copy nothing for a whole period.
        """
        if not self._options.is_slave:
            return False
        return answer is None or not answer.master_address or self._is_disconnected()

    def register_soon(self) -> None:
        """Registers again soon, because the master is lost and another may be known by now."""
        if self.is_started:
            for link in self._links:
                link.register_soon()

    def table_of(self, names: Iterable[str] | None) -> TopicConfigTable:
        """Returns these topics as they are registered; None: all topics."""
        configs = (
            (name, self._topics.get(name)) for name in (self._topics.names if names is None else names)
        )
        return TopicConfigTable(
            data_version=self._topics.data_version,
            topics={name: self._advertised(config) for name, config in configs if config is not None},
        )

    def _advertised(self, config: TopicConfig) -> TopicConfig:
        """Returns the topic as registered: a broker that is not readable or writeable limits its
        permissions.
        """
        allowed = self._options.broker_permission
        if allowed == PERMISSION_DEFAULT:
            return config
        return msgspec.structs.replace(config, permission=config.permission & allowed)

    def _mark_ordered(self, topics: Iterable[str]) -> None:
        for name in topics:
            config = self._topics.get(name)
            if config is not None and not config.is_ordered:
                version = self._topics.data_version
                self._topics.put(msgspec.structs.replace(config, is_ordered=True), version.timestamp_ms)

    def _on_topics_changed(self, names: list[str]) -> None:
        # Name servers accept topics from the master only, so a slave has no urgent changes.
        if self.is_started and not self._options.is_slave:
            for link in self._links:
                link.add_change(names)


class NameServerLink:
    """The link to one name server: its task, and the changes that are not yet confirmed."""

    def __init__(self, address: str, owner: Registration, core: BrokerCore) -> None:
        self.address = address
        self.identity: BrokerIdentity | None = None
        self.answer: Registered | None = None
        self.first_try_done = asyncio.Event()
        self._owner = owner
        self._client, self._clock, self._options = core.client, core.clock, core.options
        self._period_s = core.options.register_period_clamped_ms / 1000
        self._timeout_s = core.options.register_timeout_ms / 1000
        self.tried = asyncio.Event()  # replaced, and the old one set, at the end of each registration
        self._unconfirmed: dict[str, None] = {}
        self._in_flight: dict[str, None] = {}
        self._wake = TimedEvent(core.clock)
        self._is_reachable = True
        self.fault = "it has not answered yet"
        """The reason why the server does not know this broker; empty while it does."""
        self._channel: Channel | None = None  # the channel of the last answer
        self._answered_at_s = 0.0
        self._is_forgotten = False
        self._is_new_channel = False

    def add_change(self, names: list[str]) -> None:
        self._unconfirmed.update(dict.fromkeys(names))
        self._wake.set()

    def is_missing(self, names: tuple[str, ...]) -> bool:
        """Returns True while the server is reachable and has not confirmed all of these changes."""
        return self._is_reachable and any(
            name in self._unconfirmed or name in self._in_flight for name in names
        )

    def notify_tried(self) -> None:
        """Wakes the tasks that wait for the end of a registration."""
        self.tried.set()
        self.tried = asyncio.Event()

    def register_soon(self) -> None:
        """Registers in full now, because the answer is needed."""
        self._wake.set()

    async def run(self) -> None:
        """Registers repeatedly. Returns only when the owner may no longer register."""
        is_full = True
        while await self._owner.may_register(self.address):
            self._wake.clear()
            self._is_forgotten = self._is_new_channel = False
            is_ok = await self._register(is_full)
            self._in_flight = {}
            self.notify_tried()
            self.first_try_done.set()
            is_done = is_ok and not self._owner.lacks_master(self.answer)
            # A server that has just restarted may soon learn of another master.
            is_settled = not (self._is_new_channel and self._owner.has_rivals)
            period_s = self._period_s if is_done and is_settled else RETRY_S
            await self._wake.wait(period_s)
            is_full = not self._unconfirmed or not is_ok or self._is_forgotten
        self.notify_tried()
        self.first_try_done.set()

    async def leave(self) -> None:
        """Unregisters if the server is reachable; otherwise it notices the closed connection."""
        if self.identity is None or not self._is_reachable:
            return
        try:
            await unregister_broker.within(UNREGISTER_TIMEOUT_S, self._client, self.address, self.identity)
        except TandemError as error:
            log.info(events.NAMESERVER_UNREACHABLE, extra={"address": self.address, "reason": str(error)})

    async def _register(self, is_full: bool) -> bool:
        """Registers once. Returns True if the server confirmed."""
        assert self.identity is not None
        sent, self._unconfirmed = self._unconfirmed, {}
        self._in_flight = sent
        table = self._owner.table_of(None if is_full else sent)
        if not is_full and not table.topics:
            return True  # only deletions: the deleting tool reports them to the name servers
        body = RegisterBrokerBody(filter_servers=(), topics=table)
        identity = replace(self.identity, advertised_addresses=self._options.advertised_addresses)
        try:
            answer = await register_broker.within(self._timeout_s, self._client, self.address, identity, body)
        except TandemError as error:
            self._unconfirmed = sent | self._unconfirmed
            self._log_failure(error)
            return False
        if not self._is_reachable:
            log.info(events.NAMESERVER_REACHED, extra={"address": self.address})
        self._is_reachable = True
        self.fault = ""
        refused = answer.refused_addresses
        if refused and (self.answer is None or self.answer.refused_addresses != refused):
            log.warning(
                events.ADVERTISED_ADDRESS_REFUSED, extra={"address": self.address, "addresses": refused}
            )
        self.answer = answer
        self._watch_channel()
        self._owner.on_registered()
        return True

    def _watch_channel(self) -> None:
        self._answered_at_s = self._clock.monotonic()
        channel = self._client.open_channel(self.address)
        if channel is not None and channel is not self._channel:
            self._channel = channel
            self._is_new_channel = True
            channel.on_close.append(self._on_channel_closed)

    def _on_channel_closed(self, channel: Channel) -> None:
        """Schedules a registration, because the server has forgotten this broker (spec nameserver 5). A
        server that breaks every connection is asked no more often than an unreachable one.
        """
        if channel is self._channel and self._owner.is_started:
            pause_s = self._answered_at_s + RETRY_S - self._clock.monotonic()
            self._clock.call_later(max(0.0, pause_s), self._on_forgotten)

    def _on_forgotten(self) -> None:
        self._is_forgotten = True
        self._wake.set()

    def _log_failure(self, error: TandemError) -> None:
        """Logs one line per outage rather than per try."""
        if self._is_reachable:
            event = (
                events.NAMESERVER_UNREACHABLE
                if isinstance(error, ClientError)
                else events.NAMESERVER_REGISTRATION_REFUSED
            )
            log.warning(event, extra={"address": self.address, "reason": str(error)})
        self._is_reachable = False
        self.fault = str(error)
