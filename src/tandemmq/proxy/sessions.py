"""Sessions of clients: Telemetry, Heartbeat and NotifyClientTermination.

A telemetry stream carries settings and answers to commands from the client, merged settings and commands to
it. The first command of a client is its settings; most clients wait for the answer before they start.

At a bound: a client whose settings are refused tries again every second; the refusal is logged once per
            client, or per address of clients without an id, for the REFUSED_KEPT_MAX refused last.
Source:     spec proxy 2.10, 4.1 to 4.5.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from tandemmq.errors import TandemError
from tandemmq.proxy.clients import CommandStream, GrpcClient, TelemetryCommand
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.rpc import OK, Admit, Caller, GrpcCall, GrpcFailure, Message, grpc_status_of, parse
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.settings import ClientRole, Profile, merge_settings, profile_of
from tandemmq.proxy.statuses import Code, RpcRefused, code_of
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

HeartbeatResponse = message_class("HeartbeatResponse")
NotifyClientTerminationResponse = message_class("NotifyClientTerminationResponse")

REFUSED_KEPT_MAX: Final = 1_024
_OPENING: Final = TelemetryCommand()


@dataclass(slots=True)
class SessionHandlers:
    """The rpcs by which clients come, stay and leave."""

    core: ProxyCore
    _refused: dict[str, None] = field(default_factory=dict, init=False)

    async def handle_heartbeat(self, caller: Caller, _request: Message) -> Message:
        """Prolongs the registration; the kind of the client is that of its settings."""
        self._refresh(caller)
        return HeartbeatResponse(status=OK)

    async def handle_termination(self, caller: Caller, _request: Message) -> Message:
        """Removes the client, with its settings and registrations."""
        if self._refresh(caller).access_key != caller.access_key:
            raise RpcRefused(Code.UNAUTHORIZED, f"another user has sent the settings of {caller.client_id}")
        self.core.clients.remove(caller.client_id)
        return NotifyClientTerminationResponse(status=OK)

    async def serve_telemetry(self, call: GrpcCall, admit: Admit) -> None:
        """Serves one stream until the client ends it, the client opens another, or its registration ends.

        Raises:  GrpcFailure INVALID_ARGUMENT for refused settings, RESOURCE_EXHAUSTED while the table of
                 clients is full, INTERNAL for other failures.
        """
        # Some clients wait for the headers of the response before they read.
        await call.start()
        stream = CommandStream(call)
        self.core.clients.stream_began(stream)
        writer = self.core.tasks.start("telemetry", stream.write())
        client_id = ""
        try:
            async with stream.reading():
                client_id = (await admit(call, _OPENING)).client_id
                while not stream.is_ended and (data := await call.receive()) is not None:
                    command = parse(TelemetryCommand, data)
                    caller = await admit(call, command)
                    await self._handle_command(caller, command, stream)
            if not stream.is_ended:
                stream.close_when_sent()
                await asyncio.wait([writer])
        except TandemError as error:
            raise self._failure(client_id, call, error) from None
        finally:
            writer.cancel()
            stream.is_ended = True
            self.core.clients.stream_ended(stream, client_id)

    async def _handle_command(self, caller: Caller, command: Message, stream: CommandStream) -> None:
        match command.WhichOneof("command"):
            case "settings":
                await self._handle_settings(caller, command.settings, stream)
            case "thread_stack_trace" | "verify_message_result" as kind:
                self.core.clients.answer(caller.client_id, getattr(command, kind).nonce, command)
            case _:
                pass  # a command of a newer protocol, or one that clients do not send

    async def _handle_settings(self, caller: Caller, settings: Message, stream: CommandStream) -> None:
        """Registers the client and answers the merged settings. Clients repeat their settings every 5 min."""
        profile = profile_of(settings)
        merged = await self._merge(caller.client_id, settings, profile)
        self.core.clients.register(caller, profile, merged, stream)
        self._refused.pop(caller.client_id, None)
        self._refused.pop(caller.peer[0], None)
        if not stream.put(settings=merged):
            raise RpcRefused(Code.TOO_MANY_REQUESTS, "the client does not read the commands sent to it")
        stream.has_settings = True

    async def _merge(self, client_id: str, settings: Message, profile: Profile) -> Message:
        """Returns the merged settings. While the group cannot be queried, a known client keeps its values;
        for a new one a guess could break the order of its messages, so it tries again.
        """
        if profile.role is ClientRole.PRODUCER:
            return merge_settings(settings, self.core.options)
        try:
            group = await self.core.brokers.group(profile.group)
        except TandemError:
            known = self.core.clients.get(client_id)
            if known is None or known.settings is None or known.profile != profile:
                raise
            return known.settings
        return merge_settings(settings, self.core.options, group)

    def _refresh(self, caller: Caller) -> GrpcClient:
        client = self.core.clients.refresh(caller.client_id)
        if client is None:
            raise RpcRefused(
                Code.UNRECOGNIZED_CLIENT_TYPE, f"the settings of client {caller.client_id} are not known here"
            )
        return client

    def _failure(self, client_id: str, call: GrpcCall, error: TandemError) -> GrpcFailure:
        """Returns the gRPC error for an error of a stream, and logs it if it is the client's first one. A
        client that has no id yet is known by its address.
        """
        if isinstance(error, GrpcFailure):
            return error
        code = code_of(error)
        key = client_id or call.peer[0]
        if key not in self._refused:
            facts = {"client": client_id, "peer": call.peer, "code": code.name, "error": str(error)}
            call.lines.write(log, events.PROXY_CLIENT_REFUSED, facts)
            self._refused[key] = None
            if len(self._refused) > REFUSED_KEPT_MAX:
                del self._refused[next(iter(self._refused))]
        return GrpcFailure(grpc_status_of(code), f"{code.name}: {error}")
