"""Applications that reach the brokers through gRPC proxies: connections, unary calls and sends.

Knows not: how messages are received.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from sim.cluster.ledger import Ledger
from sim.cluster.watch import Watch
from sim.cluster.work.node import Item
from sim.cluster.work.sharing import DirectWork
from sim.cluster.world import World
from sim.proxied.grpc_client import CallFailed, GrpcConnection
from sim.proxied.nodes import ProxyNode
from tandemmq.api import broker_admin
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code

SendMessageRequest = message_class("SendMessageRequest")
SendMessageResponse = message_class("SendMessageResponse")

CALL_S = 4.0
TAIL_COUNT = 12
"""The number of messages that are sent after the last fault."""
SLOW_WINDOW = 200

T = TypeVar("T")


class GrpcApplication(DirectWork):
    """An application whose requests go to any of the proxies."""

    group: ClassVar[str]
    is_ordered: ClassVar[bool] = False
    message_type: ClassVar[str] = "NORMAL"
    retry_count_max: ClassVar[int] = 1_000

    def __init__(
        self, name: str, world: World, namesrv: str, ledger: Ledger, watch: Watch, proxies: list[ProxyNode]
    ) -> None:
        super().__init__(name, world, namesrv, ledger, watch)
        self.proxies = proxies
        self._connections: dict[tuple[str, bool], GrpcConnection] = {}

    # The process.

    def forget(self) -> None:
        super().forget()
        self._connections = {}

    async def prepare(self) -> None:
        attributes = None if self.message_type == "NORMAL" else {"message.type": self.message_type}
        await self.admin.ensure_topic(self.topic, queue_count=self.queue_count, attributes=attributes)
        self.instance.routes.track(self.topic)
        await self.instance.routes.refresh(self.topic)
        config = SubscriptionGroupConfig(
            name=self.group, retry_count_max=self.retry_count_max, is_orderly=self.is_ordered
        )
        await broker_admin.create_group(self.instance.remoting, self.master_address(), config)

    async def stop_server(self) -> None:
        await super().stop_server()
        for connection in self._connections.values():
            connection.close()

    async def load(self) -> None:
        while not self.is_resting:
            await self.send_one()
            await self.pause()
        for _ in range(TAIL_COUNT):
            await self.send_one()
            await self.pause()

    # Calls.

    async def connection(self, proxy: ProxyNode, *, is_slow: bool = False) -> GrpcConnection:
        """Returns a connection to the proxy. Raises CallFailed, OSError, TimeoutError."""
        known = self._connections.get((proxy.name, is_slow))
        if known is not None and known.is_usable:
            return known
        window_bytes, read_s = (SLOW_WINDOW, 0.1) if is_slow else (65_535, 0.0)
        fresh = await GrpcConnection.open(
            self.network, self.clock, proxy.address, window_bytes=window_bytes, read_s=read_s
        )
        other = self._connections.get((proxy.name, is_slow))
        if other is not None and other.is_usable:
            fresh.close()  # another task was quicker
            return other
        self._connections[proxy.name, is_slow] = fresh
        return fresh

    async def ask(
        self, name: str, request: Any, shape: Any, *, client_id: str = "", proxy: ProxyNode | None = None
    ) -> Any:
        """Returns the answer of the proxy, or of any one; None if there is none."""
        proxy = proxy or self.world.dice.pick(self.proxies)
        try:
            connection = await self.connection(proxy)
            return await connection.ask(
                name, request, shape, client_id=client_id or self.name, timeout_s=CALL_S
            )
        except (CallFailed, OSError, TimeoutError) as error:
            self.world.note(f"{self.process} {name} at {proxy.name} fails: {error}")
            return None

    # Sends.

    async def send_one(self) -> None:
        """Sends a message and records the answer."""
        item = self.new_item()
        answer = await self.ask("SendMessage", self.request_of(item), SendMessageResponse)
        if answer is None:
            return
        item.end_s = self.world.loop.time()
        item.is_acknowledged = answer.status.code == Code.OK
        if item.is_acknowledged:
            item.place = -1, answer.entries[0].offset
            self.count("sent")
        self.world.note(f"{self.process} {item} {answer.status.code} {answer.status.message}")

    def message_group(self, item: Item) -> str:
        """Returns the message group of a message; empty without one."""
        return ""

    def message_id(self, item: Item) -> str:
        return f"{self.topic}{item.number:06d}"

    def request_of(self, item: Item) -> Any:
        """Returns the request that sends a message."""
        group = self.message_group(item)
        kind = "FIFO" if group else self.message_type
        system: dict[str, Any] = {
            "message_id": self.message_id(item),
            "message_type": enum_number("MessageType", kind),
        }
        if group:
            system["message_group"] = group
        message = {"topic": {"name": self.topic}, "body": item.body, "system_properties": system}
        return SendMessageRequest(messages=[message])
