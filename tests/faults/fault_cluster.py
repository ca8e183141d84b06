"""A name server, a master and a slave as processes, connected by links that can fail.

| process | listens | advertises | dialled through |
|---|---|---|---|
| master | 127.0.0.2:P | 127.0.0.12:P | `to_master`, by clients and by the slave for tables |
| master, for the log | 127.0.0.2:P+1 | 127.0.0.22:P+1 | `to_master_ha`, by the slave |
| slave | 127.0.0.3:Q | 127.0.0.13:Q | `to_slave`, by clients |
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fault_links import Links

from ports import free_port
from tandemmq.launcher import Server, write_properties

NEXT = (1,)
"""The port for the log is the next one."""

SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
    "fastListen": "false",
    "slaveReadEnable": "true",
}
QUICK: dict[str, object] = {
    "haSendHeartbeatInterval": 300,
    "haHousekeepingInterval": 1_500,
    "slaveTimeout": 800,
    "flushConsumerOffsetInterval": 500,
}


class FaultCluster:
    """The processes and their links. The constructor starts them; `close` leaves nothing running."""

    def __init__(self, root: Path, **settings: object) -> None:
        """`settings` are RocketMQ's keys for master and slave."""
        self._root = root
        self._frozen: set[Server] = set()
        self.links = Links()
        self.namesrv = Server("namesrv", self._conf("namesrv", {"listenPort": 0}), root / "namesrv.log")
        self.namesrv.start()
        port, slave_port = free_port("127.0.0.2", NEXT), free_port("127.0.0.3", NEXT)
        common = {"namesrvAddr": self.namesrv.address, "brokerName": "b0", **SMALL, **QUICK, **settings}
        self.master = self._broker(
            "master",
            {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, **common, "brokerIP2": "127.0.0.22"},
            ("127.0.0.2", "127.0.0.12", port),
        )
        slave_settings = {**common, "brokerRole": "SLAVE", "brokerId": 1}
        self.slave = self._broker("slave", slave_settings, ("127.0.0.3", "127.0.0.13", slave_port))
        self.to_master = self.links.add(("127.0.0.12", port), ("127.0.0.2", port))
        self.to_master_ha = self.links.add(("127.0.0.22", port + 1), ("127.0.0.2", port + 1))
        self.to_slave = self.links.add(("127.0.0.13", slave_port), ("127.0.0.3", slave_port))
        self.master_address = f"127.0.0.12:{port}"
        self.slave_address = f"127.0.0.13:{slave_port}"
        self.master.start()
        self.slave.start()

    def freeze(self, server: Server) -> None:
        """Freezes the process by SIGSTOP: it holds its sockets and does nothing."""
        os.kill(server.pid, signal.SIGSTOP)
        self._frozen.add(server)

    def thaw(self, server: Server) -> None:
        os.kill(server.pid, signal.SIGCONT)
        self._frozen.discard(server)

    def move_master(self) -> None:
        """Makes the next start use other ports, with links of their own."""
        port = free_port("127.0.0.2", NEXT)
        conf = self._root / "master.conf"
        with conf.open("a") as file:
            file.write(f"listenPort={port}\nhaListenPort={port + 1}\n")
        self.to_master = self.links.add(("127.0.0.12", port), ("127.0.0.2", port))
        self.to_master_ha = self.links.add(("127.0.0.22", port + 1), ("127.0.0.2", port + 1))
        self.master_address = f"127.0.0.12:{port}"

    def log_text(self, name: str) -> str:
        """Returns the log of `master`, `slave` or `namesrv`."""
        return (self._root / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        for server in list(self._frozen):
            self.thaw(server)
        for server in (self.slave, self.master, self.namesrv):
            server.stop()
        self.links.close()

    def _broker(self, name: str, settings: dict[str, object], place: tuple[str, str, int]) -> Server:
        bound, advertised, port = place
        own = {
            "bindAddress": bound,
            "brokerIP1": advertised,
            "listenPort": port,
            "haListenPort": port + 1,
            "storePathRootDir": self._root / name,
        }
        return Server(name, self._conf(name, {**settings, **own}), self._root / f"{name}.log")

    def _conf(self, name: str, settings: dict[str, object]) -> list[str]:
        settings = {"bindAddress": "127.0.0.1", **settings}
        if name == "namesrv":
            settings["kvConfigPath"] = self._root / "kv.json"
        path = write_properties(self._root / f"{name}.conf", settings)
        return ["namesrv" if name == "namesrv" else "broker", "-c", str(path)]
