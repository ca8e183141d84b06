"""A name server, a master and a slave as processes, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tandemmq.client import BlockingProducer
from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.protocol.message import Message
from tandemmq.units import MIB


@dataclass(frozen=True)
class Cluster:
    """The addresses and processes of a name server, a master and a slave."""

    namesrv: str
    master: Server
    slave: Server
    directory: Path
    """The directory that contains the stores `master` and `slave`."""

    def send(self, topic: str, count: int, *, first: int = 0) -> list[bytes]:
        """Sends the bodies from number `first` on, with tags a and b alternating; all are acknowledged."""
        bodies = [b'{"n":%d}' % n for n in range(first, first + count)]
        messages = [
            Message(topic=topic, body=body, tags="ab"[n % 2], keys=(f"k{first + n}",))
            for n, body in enumerate(bodies)
        ]
        with BlockingProducer("spark-tests", self.namesrv) as producer:
            producer.send(messages[0])
            summary = producer.send_many(messages[1:])
        assert summary.failed_count == 0
        return bodies


def start_cluster(directory: Path) -> Iterator[Cluster]:
    """Starts a cluster on free ports; the slave acknowledges every message, so it has every confirmed one."""
    name_server = Server("name server", ["namesrv", "--set", "listenPort=0"], directory / "namesrv.log")
    with stopping([name_server]):
        address = name_server.start().replace("0.0.0.0", "127.0.0.1")
        brokers = []
        for name, settings in (
            ("master", {"brokerId": 0, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}),
            ("slave", {"brokerId": 1, "brokerRole": "SLAVE"}),
        ):
            common = {
                "namesrvAddr": address,
                "brokerName": "b",
                "brokerIP1": "127.0.0.1",
                "listenPort": 0,
                "slaveReadEnable": "true",
                "enablePropertyFilter": "true",
                "mappedFileSizeCommitLog": 16 * MIB,
                "scrubBytesPerSecond": 0,  # the slave would repair the bits that tests flip
                "storePathRootDir": directory / name,
            }
            conf = write_properties(directory / f"{name}.conf", {**common, **settings})
            brokers.append(Server(name, ["broker", "-c", str(conf)], directory / f"{name}.log"))
        with stopping(brokers):
            for broker in brokers:
                broker.start()
            yield Cluster(namesrv=address, master=brokers[0], slave=brokers[1], directory=directory)
