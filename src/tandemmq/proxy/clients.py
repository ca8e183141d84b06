"""The clients of this proxy: their settings and telemetry streams, and the removal of clients that have left.

A client is added by its first settings or its first transaction, and stays while it sends settings or
heartbeats. Nothing here must survive the process: a client that connects to any proxy sends its settings.

Invariants: a client has at most one stream, the newest; `on_gone` is called once for each client that leaves,
            by termination or expiry, and not for one that only opens a new stream.
At a bound: a new client is refused while the table is full; a command is dropped while COMMANDS_MAX of a
            stream wait; an admin request is refused while RELAYS_MAX wait for clients.
Source:     spec proxy 4.3, 4.4, 4.5.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.errors import Busy, TandemError
from tandemmq.protocol.codes import LanguageCode
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.rpc import OK, Caller, GrpcCall, Message
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.settings import TOPICS_MAX, ClientRole, Profile
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.runtime.ports import Clock, Random
from tandemmq.telemetry import events
from tandemmq.units import MIB

log = logging.getLogger(__name__)

TelemetryCommand = message_class("TelemetryCommand")

COMMANDS_MAX: Final = 256
COMMAND_BYTES_MAX: Final = 8 * MIB
RELAYS_MAX: Final = 1_024
SWEEP_S: Final = 5.0
RECONNECT_SINCE: Final = {"JAVA": (5, 1, 0), "GO": (5, 1, 4)}
"""The first versions, by language, that obey reconnect_endpoints; some others fail at an unknown command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The bounds of the table of clients.

    silence_s  a client that sends nothing for this long is removed
    grace_s    the same for a client whose telemetry stream has ended
    relay_s    the time limit for a client's answer to a tool's request
    """

    count_max: int = 20_000
    silence_s: float = 120.0  # channelExpiredTimeout
    grace_s: float = 30.0
    relay_s: float = 5.0  # grpcProxyRelayRequestTimeoutInSeconds


@dataclass(eq=False, slots=True)
class CommandStream:
    """The server's side of a telemetry stream: commands are sent in order by `write`, which one task runs."""

    call: GrpcCall
    is_ended: bool = False
    has_settings: bool = False
    """True once settings were answered: before, some clients fail at any other command."""
    _waiting: deque[bytes] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _is_closing: bool = False
    _reading: asyncio.Timeout | None = None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Runs the body, which reads the client's commands, until `end` interrupts it."""
        try:
            async with asyncio.timeout(None) as scope:
                self._reading = scope
                try:
                    yield
                finally:
                    self._reading = None
        except TimeoutError:
            if not self.is_ended:
                raise

    def put(self, **command: Any) -> bool:
        """Queues a command. Returns False if it was dropped: the client does not read, or has gone."""
        if self.is_ended or self._is_closing or len(self._waiting) >= COMMANDS_MAX:
            return False
        data = TelemetryCommand(status=OK, **command).SerializeToString()
        if self._waiting and self._waiting_bytes + len(data) > COMMAND_BYTES_MAX:
            return False
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._changed.set()
        return True

    def end(self) -> None:
        """Ends the stream, and interrupts the reader of the client's commands."""
        if self.is_ended:
            return
        self.is_ended = True
        self._changed.set()
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())

    def close_when_sent(self) -> None:
        """Ends the stream once the waiting commands are sent; further ones are dropped."""
        self._is_closing = True
        self._changed.set()

    async def write(self) -> None:
        """Sends commands until the stream ends, or a send fails, which ends it."""
        try:
            while not self.is_ended:
                while self._waiting:
                    data = self._waiting.popleft()
                    self._waiting_bytes -= len(data)
                    await self.call.send(data)
                if self._is_closing:
                    break
                self._changed.clear()
                await self._changed.wait()
        except (TandemError, OSError):
            pass
        self.end()


@dataclass(eq=False, slots=True)
class GrpcClient:
    """A client of this proxy.

    profile             from its last settings; None before the first
    settings            the merged settings that were sent to it
    transaction_topics  the topics to which it has sent transactions
    access_key          the user that sent the settings
    changed_at_ms       the time of the last change of the profile
    deadline_s          the time on `Clock.monotonic` at which it is removed unless it sends something
    """

    client_id: str
    deadline_s: float
    language: str = LanguageCode.OTHER.name
    version: str = ""
    profile: Profile | None = None
    settings: Message | None = None
    stream: CommandStream | None = None
    access_key: str = ""
    changed_at_ms: int = 0
    transaction_topics: dict[str, None] = field(default_factory=dict)

    @property
    def produced_topics(self) -> Iterable[str]:
        """The topics for which the client is a producer, each once."""
        is_producer = self.profile is not None and self.profile.role is ClientRole.PRODUCER
        named = self.profile.topics if self.profile is not None and is_producer else ()
        return dict.fromkeys((*named, *self.transaction_topics))

    @property
    def is_reachable(self) -> bool:
        """True if commands may be sent to the client."""
        return self.stream is not None and not self.stream.is_ended and self.stream.has_settings

    @property
    def knows_reconnect(self) -> bool:
        """True if the client obeys reconnect_endpoints (spec proxy 4.3)."""
        since = RECONNECT_SINCE.get(self.language)
        return since is not None and version_numbers(self.version) >= since


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers of a version such as 5.1.0-beta; () for another text."""
    numbers = text.partition("-")[0].split(".")
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        return ()
    return tuple(map(int, numbers))


@dataclass(slots=True)
class _Relay:
    """A tool's request that was relayed to a client, which has not answered yet."""

    client_id: str
    answer: asyncio.Future[Message]


class Clients:
    """The table of clients.

    `on_change` holds callbacks for each new or removed client, and each change of a profile or of the topics
    of transactions; `on_gone` those that get the id of each client that is removed.
    """

    def __init__(self, *, clock: Clock, chance: Random, limits: ClientLimits | None = None) -> None:
        self._clock = clock
        self._chance = chance
        self._limits = limits or ClientLimits()
        self._clients: dict[str, GrpcClient] = {}
        self._producers: dict[str, dict[str, GrpcClient]] = {}
        self._relays: dict[str, _Relay] = {}
        self._streams: dict[CommandStream, None] = {}
        self._is_closing = False
        self.on_change: list[Callable[[], None]] = []
        self.on_gone: list[Callable[[str], None]] = []
        self._lines = LimitedLines(clock)
        self.dropped_count = 0
        """Commands that were dropped because a client did not read them."""
        self.refused_count = 0
        """New clients that were refused because the table was full."""

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[GrpcClient]:
        return iter(list(self._clients.values()))

    # Queries.

    def get(self, client_id: str) -> GrpcClient | None:
        return self._clients.get(client_id)

    def is_alive(self, client_id: str) -> bool:
        """Returns True for a client of this proxy, False for one that is connected to another proxy."""
        return client_id in self._clients

    @property
    def produced_topics(self) -> list[str]:
        """The topics for which some client is a producer, sorted."""
        return sorted(self._producers)

    def producer_of(self, topic: str) -> GrpcClient | None:
        """Returns a reachable producer of the topic, chosen at random; None without one."""
        found = [client for client in self._producers.get(topic, {}).values() if client.is_reachable]
        return found[self._chance.below(len(found))] if found else None

    # Registration.

    def register(self, caller: Caller, profile: Profile, settings: Message, stream: CommandStream) -> None:
        """Registers a client with its merged settings, or refreshes it; an older stream of it is ended.

        Raises:  RpcRefused TOO_MANY_REQUESTS for a new client while the table is full; UNAUTHORIZED while
                 another user's client has this id, which would lose its stream and its messages.
        """
        client = self._find_or_add(caller.client_id)
        if client.is_reachable and client.access_key != caller.access_key:
            raise RpcRefused(
                Code.UNAUTHORIZED, f"another user has a client with the id {caller.client_id[:160]}"
            )
        client.language, client.version = caller.language, caller.version
        if client.stream is not stream and client.stream is not None:
            client.stream.end()
        client.stream, client.settings = stream, settings
        client.deadline_s = self._clock.monotonic() + self._limits.silence_s
        if client.profile == profile and client.access_key == caller.access_key:
            return
        self._remove_producer(client)
        if client.access_key != caller.access_key:
            # Checks carry messages: those of another user's transactions must not reach this one.
            client.access_key = caller.access_key
            client.transaction_topics.clear()
        client.profile, client.changed_at_ms = profile, self._clock.now_ms()
        self._add_producer(client)
        self._after_change()

    def refresh(self, client_id: str) -> GrpcClient | None:
        """Records a heartbeat. Returns the client if its settings are known."""
        client = self._clients.get(client_id)
        if client is None or client.profile is None:
            return None
        client.deadline_s = self._clock.monotonic() + self._limits.silence_s
        return client

    def note_transaction(self, topic: str, client_id: str) -> None:
        """Records that a client has sent a transaction, so that it can be asked for the outcome, even if it
        has not sent settings yet. While the table is full, a new client is not recorded.
        """
        try:
            client = self._find_or_add(client_id)
        except RpcRefused:
            return
        client.deadline_s = max(client.deadline_s, self._clock.monotonic() + self._limits.silence_s)
        if topic in client.transaction_topics or len(client.transaction_topics) >= TOPICS_MAX:
            return
        client.transaction_topics[topic] = None
        if client_id not in self._producers.get(topic, {}):
            self._add_producer(client)
            self._after_change()

    def stream_began(self, stream: CommandStream) -> None:
        """Records a new stream, whose client is not known yet."""
        self._streams[stream] = None
        if self._is_closing:
            stream.close_when_sent()

    # Leaving.

    def close_streams(self) -> None:
        """Ends all streams once their waiting commands are sent, and later ones at once: the proxy drains."""
        self._is_closing = True
        for stream in self._streams:
            stream.close_when_sent()

    def stream_ended(self, stream: CommandStream, client_id: str) -> None:
        """Records the end of a client's stream: without a further request the client is soon removed."""
        self._streams.pop(stream, None)
        client = self._clients.get(client_id)
        if client is not None and client.stream is stream:
            client.stream = None
            client.deadline_s = min(client.deadline_s, self._clock.monotonic() + self._limits.grace_s)

    def remove(self, client_id: str) -> None:
        """Removes a client, if it is known. Its stream stays open until the client ends it."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return
        self._remove_producer(client)
        for relay in [relay for relay in self._relays.values() if relay.client_id == client_id]:
            relay.answer.cancel()
        self._after_change()
        for callback in self.on_gone:
            callback(client_id)

    def expire(self) -> None:
        """Removes the clients whose time is over, and ends their streams."""
        now_s = self._clock.monotonic()
        for client in [one for one in self._clients.values() if one.deadline_s <= now_s]:
            facts = {"client": client.client_id}
            self._lines.write(log, events.PROXY_CLIENT_EXPIRED, facts, level=logging.INFO)
            self.remove(client.client_id)
            if client.stream is not None:
                client.stream.end()

    async def run(self) -> None:
        """Expires clients until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_S)
            self.expire()

    # Commands to clients.

    def command(self, client: GrpcClient, **command: Any) -> bool:
        """Sends a command to a client. Returns False, and counts it as dropped, if it cannot be sent."""
        stream = client.stream
        is_sent = stream is not None and client.is_reachable and stream.put(**command)
        self.dropped_count += not is_sent
        return is_sent

    async def ask(self, client: GrpcClient, name: str, **fields: Any) -> Message:
        """Sends the command `name` with a nonce and returns the client's answer to it.

        Raises:  Busy when the client does not answer in time, or cannot be asked.
        """
        if len(self._relays) >= RELAYS_MAX:
            raise Busy(f"{RELAYS_MAX} requests to clients of this proxy wait for answers: try again later")
        nonce = self._chance.token_bytes(16).hex()
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._relays[nonce] = _Relay(client.client_id, answer)
        timer = self._clock.call_later(self._limits.relay_s, answer.cancel)
        try:
            if not self.command(client, **{name: {"nonce": nonce, **fields}}):
                raise Busy(f"the client {client.client_id} has no telemetry stream at this proxy")
            await asyncio.wait([answer])
        finally:
            timer.cancel()
            del self._relays[nonce]
        if answer.cancelled():
            raise Busy(f"the client {client.client_id} did not answer within {self._limits.relay_s:.0f} s")
        return answer.result()

    def answer(self, client_id: str, nonce: str, command: Message) -> None:
        """Records a client's answer; an unknown nonce, or one of another client, is ignored."""
        relay = self._relays.get(nonce)
        if relay is not None and relay.client_id == client_id and not relay.answer.done():
            relay.answer.set_result(command)

    def reconnect(self) -> int:
        """Asks all clients to connect elsewhere, because this proxy is going to stop. Returns the number of
        clients that know the command; the others connect elsewhere when their connection ends.
        """
        nonce = self._chance.token_bytes(16).hex()
        return sum(
            self.command(client, reconnect_endpoints_command={"nonce": nonce})
            for client in self
            if client.knows_reconnect and client.is_reachable
        )

    # The table.

    def _find_or_add(self, client_id: str) -> GrpcClient:
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= self._limits.count_max:
                self.refused_count += 1
                raise RpcRefused(
                    Code.TOO_MANY_REQUESTS,
                    f"this proxy has {self._limits.count_max} clients: use another one",
                )
            client = GrpcClient(client_id, self._clock.monotonic() + self._limits.silence_s)
            self._clients[client_id] = client
        return client

    def _add_producer(self, client: GrpcClient) -> None:
        for topic in client.produced_topics:
            self._producers.setdefault(topic, {})[client.client_id] = client

    def _remove_producer(self, client: GrpcClient) -> None:
        for topic in client.produced_topics:
            members = self._producers.get(topic, {})
            members.pop(client.client_id, None)
            if not members:
                self._producers.pop(topic, None)

    def _after_change(self) -> None:
        for callback in self.on_change:
            callback()
