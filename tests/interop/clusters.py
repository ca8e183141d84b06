"""Name servers and brokers of both makers behind one face: a test asks for a role and gets an address.

Readiness is a fact that a client can see: a broker is ready when its name server shows it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from java_peers import GRPC, JavaServer, Line

from ports import free_port
from tandemmq.client import BlockingAdmin
from tandemmq.errors import TandemError
from tandemmq.launcher import Server
from waits import until_blocking

HOST = "127.0.0.1"
PROXY_SECONDS_MAX = 180
"""It loads more classes than the others; a busy machine needs more than a minute for them."""


def broker_port() -> int:
    """A port that is free with its neighbours, which a broker uses for its other listeners."""
    return free_port(HOST, (-2, 1))


def is_open(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


class Cluster:
    """A name server of one make, and brokers of any make that register with it."""

    def __init__(self, name_server: str, directory: Path, stack: ExitStack) -> None:
        self.name_server = name_server
        self.directory = directory
        self.brokers: dict[str, OurBroker | JavaBroker] = {}
        self._stack = stack

    def start_ours(self, name: str, settings: Mapping[str, object] | None = None) -> OurBroker:
        """A broker of ours; its store is in a folder of its name, unless the settings tell."""
        broker = OurBroker(self, name, dict(settings or {}))
        self.brokers[name] = broker
        self._stack.callback(broker.kill)
        broker.start()
        return broker

    def start_java(self, line: Line, name: str, settings: Mapping[str, object] | None = None) -> JavaBroker:
        broker = JavaBroker(self, line, name, dict(settings or {}))
        self.brokers[name] = broker
        self._stack.callback(broker.kill)
        broker.start()
        return broker

    def wait_for(self, name: str, broker_id: int, address: str) -> None:
        """Returns once the name server tells this broker's address."""
        with BlockingAdmin(self.name_server) as admin:

            def is_registered() -> bool:
                try:
                    group = admin.cluster_info().brokers.get(name)
                except TandemError:
                    return False
                return group is not None and group.addresses.get(broker_id) == address

            until_blocking(is_registered, f"{name}:{broker_id} at {address} is registered")


class OurBroker:
    """A TandemMQ broker process."""

    def __init__(self, cluster: Cluster, name: str, settings: dict[str, object]) -> None:
        self.store = Path(str(settings.setdefault("storePathRootDir", cluster.directory / f"{name}-store")))
        # Not port 0: a Java slave asks its master for tables at the port two below, which 0 does not open.
        port = broker_port()
        self.settings = {"bindAddress": HOST, "listenPort": port, "brokerName": name, **settings}
        self.settings["namesrvAddr"] = cluster.name_server
        self.address = ""
        self.log_path = cluster.directory / f"{self.store.name}.log"
        self._cluster = cluster
        pairs = [part for key, value in self.settings.items() for part in ("--set", f"{key}={value}")]
        self._server = Server(name, ["broker", *pairs], self.log_path)

    def start(self) -> None:
        self.address = self._server.start()
        name, broker_id = str(self.settings["brokerName"]), int(str(self.settings.get("brokerId", 0)))
        self._cluster.wait_for(name, broker_id, self.address)

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    def check_alive(self) -> None:
        self._server.check_alive()


class JavaBroker:
    """A Java broker process of one line."""

    def __init__(self, cluster: Cluster, line: Line, name: str, settings: dict[str, object]) -> None:
        self.store = Path(str(settings.setdefault("storePathRootDir", cluster.directory / f"{name}-store")))
        port = broker_port()
        self.address = f"{HOST}:{port}"
        self.settings = {
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": port,
            "brokerName": name,
            **settings,
        }
        self.settings["namesrvAddr"] = cluster.name_server
        self._cluster = cluster
        home = cluster.directory / f"{self.store.name}-home-{port}"
        self._server = JavaServer(line, "org.apache.rocketmq.broker.BrokerStartup", self.settings, home)
        self.log_path = self._server.log_path

    def start(self) -> None:
        self._server.start()

        def is_listening() -> bool:
            self._server.check_alive()
            return is_open(self.address)

        until_blocking(is_listening, f"{self.address} listens; log: {self.log_path}")
        name, broker_id = str(self.settings["brokerName"]), int(str(self.settings.get("brokerId", 0)))
        self._cluster.wait_for(name, broker_id, self.address)

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        """Kills the broker and starts it again.

        Call it after transactions on a broker that serves further tests: from its first transaction on, a
        broker of 5.5 keeps a processor busy for good (its thread TransactionalOpBatchService), and the other
        servers and programs of the session run out of time. Such a broker sometimes does not stop in order.
        """
        self._server.kill()
        self.start()

    def check_alive(self) -> None:
        self._server.check_alive()


@contextmanager
def java_proxy(
    name_server: str, directory: Path, settings: Mapping[str, object] | None = None
) -> Iterator[str]:
    """RocketMQ's proxy before the cluster; the address that clients of the gRPC protocol are given."""
    port = broker_port()
    values = {
        "rocketMQClusterName": "DefaultCluster",
        "proxyMode": "CLUSTER",
        "namesrvAddr": name_server,
        "localServeAddr": HOST,
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
        **(settings or {}),
    }
    server = JavaServer(GRPC, "org.apache.rocketmq.proxy.ProxyStartup", values, directory)
    server.start()
    try:

        def is_listening() -> bool:
            server.check_alive()
            return is_open(f"{HOST}:{port}")

        until_blocking(is_listening, f"the proxy listens; log: {server.log_path}", PROXY_SECONDS_MAX)
        yield f"{HOST}:{port}"
    finally:
        server.kill()


@contextmanager
def our_cluster(directory: Path, settings: Mapping[str, object] | None = None) -> Iterator[Cluster]:
    """Our name server; brokers started through the result are gone at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        values = {
            "bindAddress": HOST,
            "listenPort": 0,
            "kvConfigPath": directory / "kvConfig.json",
            **(settings or {}),
        }
        pairs = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        server = Server("namesrv", ["namesrv", *pairs], directory / "namesrv.log")
        stack.callback(server.stop)
        yield Cluster(server.start(), directory, stack)


@contextmanager
def java_cluster(line: Line, directory: Path) -> Iterator[Cluster]:
    """A Java name server of the line."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        port = broker_port()
        server = JavaServer(
            line,
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            {"listenPort": port, "kvConfigPath": directory / "kvConfig.json"},
            directory / "namesrv-home",
        )
        stack.callback(server.kill)
        server.start()

        def is_listening() -> bool:
            server.check_alive()
            return is_open(f"{HOST}:{port}")

        until_blocking(is_listening, f"the name server listens; log: {server.log_path}")
        yield Cluster(f"{HOST}:{port}", directory, stack)
