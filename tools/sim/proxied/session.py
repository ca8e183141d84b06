"""The session of one gRPC client: its telemetry stream at one proxy, settings, heartbeats and commands.

Strategy: when a stream ends, or a proxy asks for it, the client opens another one, at any proxy.
Knows not: messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.cluster.work.node import RETRY_S
from sim.proxied.application import GrpcApplication
from sim.proxied.grpc_client import CallFailed, GrpcCall
from sim.proxied.nodes import ProxyNode
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code

HeartbeatRequest = message_class("HeartbeatRequest")
HeartbeatResponse = message_class("HeartbeatResponse")
NotifyClientTerminationRequest = message_class("NotifyClientTerminationRequest")
NotifyClientTerminationResponse = message_class("NotifyClientTerminationResponse")
TelemetryCommand = message_class("TelemetryCommand")

BEAT_S = 5.0
SETTINGS_S = 8.0
"""The time for the answer to settings."""

OnCommand = Callable[[Any], None]


class Session:
    """One client. `run` is a task of its application's process."""

    def __init__(
        self, owner: GrpcApplication, name: str, settings: dict[str, Any], on_command: OnCommand
    ) -> None:
        self.proxy: ProxyNode | None = None
        """The proxy that has answered the settings; None while there is none."""
        self.number = 0
        """Rises with each client id: a client that has left comes back under another one."""
        self._owner = owner
        self._name = name
        self._settings = TelemetryCommand(settings=settings).settings
        self._on_command = on_command
        self._call: GrpcCall | None = None
        self._avoided: ProxyNode | None = None

    @property
    def client_id(self) -> str:
        return f"{self._name}@{self._owner.start_count}.{self.number}"

    async def run(self) -> None:
        """Keeps a stream open until the application ends."""
        owner, world = self._owner, self._owner.world
        while not owner.is_ending:
            others = [proxy for proxy in owner.proxies if proxy is not self._avoided] or owner.proxies
            proxy = world.dice.pick(others)
            self._avoided = None
            try:
                await self._serve(proxy)
            except (CallFailed, OSError, TimeoutError) as error:
                world.note(f"{owner.process} session {self.client_id} at {proxy.name} ends: {error}")
            self._end()
            await owner.clock.sleep(world.dice.between(0, 1) * RETRY_S)

    def move(self) -> None:
        """Opens another stream, at another proxy if there is one."""
        self._avoided = self.proxy
        if self._call is not None:
            self._call.cancel()

    async def leave(self) -> None:
        """Ends the client in order, and begins another one."""
        proxy, request = self.proxy, NotifyClientTerminationRequest(group={"name": self._owner.group})
        if proxy is None:
            return
        client_id, self.number, self.proxy = self.client_id, self.number + 1, None
        shape = NotifyClientTerminationResponse
        await self._owner.ask("NotifyClientTermination", request, shape, client_id=client_id, proxy=proxy)
        if self._call is not None:
            self._call.cancel()

    def _end(self) -> None:
        self.proxy = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _serve(self, proxy: ProxyNode) -> None:
        """Serves one stream. Raises CallFailed, OSError, TimeoutError."""
        owner, client_id = self._owner, self.client_id
        connection = await owner.connection(proxy)
        call = self._call = connection.begin("Telemetry", client_id=client_id)
        call.send(TelemetryCommand(settings=self._settings))
        answer = await call.next(SETTINGS_S)
        if answer is None:
            raise CallFailed("the stream ended before its settings")
        self._check_settings(TelemetryCommand.FromString(answer))
        if client_id != self.client_id or owner.is_ending:
            return  # it has left meanwhile
        self.proxy = proxy
        owner.count("sessions")
        while not owner.is_ending:
            try:
                data = await call.next(BEAT_S)
            except TimeoutError:
                await self._beat(proxy)
                continue
            if data is None:
                return
            command = TelemetryCommand.FromString(data)
            if command.WhichOneof("command") == "reconnect_endpoints_command":
                owner.count("asked to reconnect")
                self._avoided = proxy
                return
            self._on_command(command)

    async def _beat(self, proxy: ProxyNode) -> None:
        """Sends a heartbeat. Raises CallFailed if the proxy does not know the client."""
        request = HeartbeatRequest(group={"name": self._owner.group}, client_type=self._settings.client_type)
        answer = await self._owner.ask(
            "Heartbeat", request, HeartbeatResponse, client_id=self.client_id, proxy=proxy
        )
        if answer is None or answer.status.code != Code.OK:
            raise CallFailed(f"no heartbeat: {answer}")

    def _check_settings(self, command: Any) -> None:
        owner, settings = self._owner, command.settings
        if command.WhichOneof("command") != "settings":
            owner.world.findings.broken.append(f"{self.client_id} got {command} before its settings")
        elif settings.WhichOneof("pub_sub") == "subscription":
            found = settings.subscription.fifo, settings.backoff_policy.max_attempts
            if found != (owner.is_ordered, owner.retry_count_max + 1):
                owner.world.findings.broken.append(f"{self.client_id} got the settings {found}")


def consumer_settings(owner: GrpcApplication) -> dict[str, Any]:
    """Returns the settings of a push consumer of the application."""
    entry = {"topic": {"name": owner.topic}, "expression": {"expression": "*"}}
    return {
        "client_type": enum_number("ClientType", "PUSH_CONSUMER"),
        "subscription": {"group": {"name": owner.group}, "subscriptions": [entry]},
    }


def producer_settings(owner: GrpcApplication) -> dict[str, Any]:
    """Returns the settings of a producer of the application."""
    return {
        "client_type": enum_number("ClientType", "PRODUCER"),
        "publishing": {"topics": [{"name": owner.topic}]},
    }
