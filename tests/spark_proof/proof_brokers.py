"""The brokers of the proof, as processes: a name server, a master that waits for its slave, and a slave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemmq.client import BlockingAdmin
from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.units import MIB

BROKER = "proof"
QUEUE_COUNT = 4
NOBODY = "127.0.0.1:9"
"""An address without a master."""


class Brokers:
    """The addresses, processes and stores of the brokers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        command = ["namesrv", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"]
        self.name_server = Server("name server", command, directory / "namesrv.log")
        self.name_server.start()
        self.namesrv = self.name_server.address
        self.master = self._make("master", {"brokerId": 0, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2})
        self.slave = self._make("slave", {"brokerId": 1, "brokerRole": "SLAVE"})
        # The same slave with a master address where nothing listens: it answers and stays behind.
        lonely = {"brokerId": 1, "brokerRole": "SLAVE", "haMasterAddress": NOBODY}
        self.lonely_slave = self._make("lonely", lonely, store="slave")

    def store(self, name: str) -> Path:
        return self._directory / name

    def create_topic(self, topic: str) -> None:
        with BlockingAdmin(self.namesrv) as admin:
            admin.create_topic(topic, queue_count=QUEUE_COUNT)

    def resize_topic(self, topic: str, queue_count: int) -> None:
        with BlockingAdmin(self.namesrv) as admin:
            admin.update_topic(topic, queue_count=queue_count, force=True)

    def message_count(self, topic: str) -> int:
        """Returns the number of messages by the offsets of the queues."""
        with BlockingAdmin(self.namesrv) as admin:
            return sum(found.max_offset - found.min_offset for found in admin.topic_offsets(topic).values())

    def _make(self, name: str, settings: dict[str, object], store: str = "") -> Server:
        common = {
            "namesrvAddr": self.namesrv,
            "brokerName": BROKER,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": 0,
            "slaveReadEnable": "true",
            "mappedFileSizeCommitLog": 64 * MIB,
            "scrubBytesPerSecond": 0,  # the slave would repair the planted bits
            "storePathRootDir": self.store(store or name),
        }
        conf = write_properties(self._directory / f"{name}.conf", {**common, **settings})
        return Server(name, ["broker", "-c", str(conf)], self._directory / f"{name}.log")


@contextmanager
def running_brokers(directory: Path) -> Iterator[Brokers]:
    brokers = Brokers(directory)
    with stopping([brokers.name_server, brokers.master, brokers.slave, brokers.lonely_slave]):
        brokers.master.start()
        brokers.slave.start()
        yield brokers
