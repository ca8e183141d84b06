"""The demo's cluster: a NameServer, a synchronous master and its slave, each a process with a RocketMQ
configuration file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tandemmq.launcher import Server, stopping, write_properties

CLUSTER_NAME = "DemoCluster"
BROKER_NAME = "broker-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The running servers, and where the two brokers keep their files."""

    name_server: Server
    master: Server
    slave: Server
    master_store: Path
    slave_store: Path


@contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    """A cluster on free ports with its files below `directory`; everything is stopped at the end.

    Raises:  ProcessFailed when a server does not come up.
    """
    name_server = Server(
        "name server",
        ["namesrv", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"],
        directory / "namesrv.log",
    )
    with stopping([name_server]):
        name_server.start()
        master, master_store = _broker(directory, name_server, "master", broker_id=0)
        slave, slave_store = _broker(directory, name_server, "slave", broker_id=1)
        with stopping([master, slave]):
            master.start()
            slave.start()
            yield Cluster(
                name_server=name_server,
                master=master,
                slave=slave,
                master_store=master_store,
                slave_store=slave_store,
            )


def _broker(directory: Path, name_server: Server, name: str, *, broker_id: int) -> tuple[Server, Path]:
    """A broker that is not started yet, and the root of its store."""
    store = directory / name
    settings: dict[str, object] = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": BROKER_NAME,
        "brokerId": broker_id,
        "brokerRole": "SYNC_MASTER" if broker_id == 0 else "SLAVE",
        "namesrvAddr": name_server.address,
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": store,
        "flushDiskType": "ASYNC_FLUSH",
        "totalReplicas": 2,
        "inSyncReplicas": 2,
        "slaveReadEnable": "true",
        "autoCreateTopicEnable": "false",
    }
    conf = write_properties(directory / f"{name}.conf", settings)
    return Server(name, ["broker", "-c", str(conf)], directory / f"{name}.log"), store
