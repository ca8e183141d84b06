"""A machine with a gRPC proxy on it."""

from __future__ import annotations

from pathlib import Path

from sim.cluster.disk import NodeDisk
from sim.cluster.nodes import Node
from sim.cluster.world import World
from sim.image import Image
from tandemmq.proxy.options import ProxyConfig, ProxyOptions
from tandemmq.proxy.proxy import Proxy
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.runtime.ports import Address, Machine

PROXY_PORT = 8081
INVISIBLE_MS = 10_000
"""The invisible time of renewed messages."""


class ProxyNode(Node):
    """A proxy: it keeps nothing over a restart."""

    def __init__(self, name: str, world: World, namesrv: str) -> None:
        super().__init__(name, world)
        self._namesrv = namesrv
        self._proxy: Proxy | None = None

    @property
    def address(self) -> Address:
        return self.host.ip, PROXY_PORT

    def start(self) -> None:
        process = self.begin_process()
        self.world.note(f"{process} starts")
        self.world.spawn(process, self._boot(), "boot")

    async def _boot(self) -> None:
        disk = NodeDisk(
            Image(), dice=self.world.dice, clock=self.clock, note=lambda _: None, on_lost=lambda: None
        )
        options = ProxyOptions(
            listen_host=self.host.ip,
            listen_port=PROXY_PORT,
            local_host=self.host.ip,
            name_servers=self._namesrv,
            store_path=Path("/proxy"),
            makes_certificate=False,
            invisible_ms=INVISIBLE_MS,
            client_expiry_ms=20_000,
            drain_s=5,
        )
        proxy = self._proxy = Proxy(
            ProxyConfig(options=options, tls=TlsOptions(mode=TlsMode.DISABLED)),
            machine=Machine(self.network, disk, self.clock, self.chance),
            on_fatal=self.on_fatal,
        )
        await proxy.start()

    async def stop_server(self) -> None:
        if self._proxy is None:
            return
        await self._proxy.drain()
        await self._proxy.stop()
