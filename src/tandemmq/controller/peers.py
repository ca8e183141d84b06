"""Peers: messages of the consensus between controllers, over ordinary remoting connections.

Strategy:   each controller sends over a connection of its own, made when there is something to send; what
            cannot be sent at once is dropped, as the consensus allows. A connection to a peer of whom nothing
            was heard for a while is made anew: its machine may be gone without a word.
Invariants: only controllers of the group are listened to; with a shared secret each message proves it.
Bounds:     one attempt to connect per peer at a time.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

from tandemmq.consensus.core.messages import Message, decode_message, encode_message
from tandemmq.errors import NotPermitted, TandemError
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.controller import RaftMessageHeader
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

SILENT_S = 2.0
CONNECT_TIMEOUT_S = 1.0


class Peers:
    """What `RaftServer` sends by, and what it gets."""

    def __init__(
        self,
        *,
        group: str,
        name: str,
        secret: str,
        address_of: Callable[[str], str | None],
        receive: Callable[[Message], None],
        client: RemotingClient,
        scope: TaskScope,
        clock: Clock,
    ) -> None:
        """`address_of`: of a controller of the group, None for anybody else."""
        self._group = group
        self._name = name
        self._secret = secret
        self._address_of = address_of
        self._receive = receive
        self._client = client
        self._scope = scope
        self._clock = clock
        self._connecting: set[str] = set()
        self._connected_s: dict[str, float] = {}
        self._heard_s: dict[str, float] = {}
        self._refused: set[str] = set()

    def send(self, to: str, message: Message) -> None:
        address = self._address_of(to)
        if address is None:
            return
        channel = self._client.open_channel(address)
        now_s = self._clock.monotonic()
        if channel is not None:
            since_s = max(self._connected_s.get(to, 0.0), self._heard_s.get(to, 0.0))
            if now_s - since_s < SILENT_S:
                channel.send(self._command(message))
                return
            channel.abort(f"nothing heard of {to} for {now_s - since_s:.0f} s")
        if to not in self._connecting:
            self._connecting.add(to)
            self._scope.start(f"connect-{to}", self._connect(to, address, message))

    async def _connect(self, to: str, address: str, message: Message) -> None:
        try:
            channel = await self._client.channel(address, CONNECT_TIMEOUT_S)
            self._connected_s[to] = self._clock.monotonic()
            channel.send(self._command(message))
        except TandemError:
            pass  # as lost as any message may be; the next one tries again
        finally:
            self._connecting.discard(to)

    def is_heard(self, name: str) -> bool:
        """Whether the peer spoke just now."""
        return self._clock.monotonic() - self._heard_s.get(name, -SILENT_S) < SILENT_S

    def handle_message(self, channel: Channel, command: Command) -> None:
        """TANDEM_RAFT_MESSAGE (30001).

        Raises:  NotPermitted for anybody who is no controller of the group; RemoteProtocolError.
        """
        header = command.decode(RaftMessageHeader)
        body = bytes(command.body)
        proof = self._prove(header.sender, body)
        if (
            header.group != self._group
            or header.sender == self._name
            or self._address_of(header.sender) is None
            or not hmac.compare_digest(header.proof.encode(), proof.encode())
        ):
            self._refuse(channel, header)
        message = decode_message(body)
        if message.sender != header.sender:
            self._refuse(channel, header)
        self._heard_s[header.sender] = self._clock.monotonic()
        self._receive(message)

    def _refuse(self, channel: Channel, header: RaftMessageHeader) -> None:
        """Once per name in the log."""
        if header.sender not in self._refused and len(self._refused) < 64:
            self._refused.add(header.sender)
            log.warning(
                events.CONTROLLER_PEER_REFUSED,
                extra={"peer": channel.peer, "sender": header.sender, "group": header.group},
            )
        raise NotPermitted("no controller of this group")

    def _command(self, message: Message) -> Command:
        body = encode_message(message)
        header = RaftMessageHeader(group=self._group, sender=self._name, proof=self._prove(self._name, body))
        return Command.request(RequestCode.TANDEM_RAFT_MESSAGE, header, body=body, oneway=True)

    def _prove(self, sender: str, body: bytes) -> str:
        if not self._secret:
            return ""
        text = f"{self._group}\0{sender}\0".encode() + body
        return hmac.new(self._secret.encode(), text, "sha256").hexdigest()
