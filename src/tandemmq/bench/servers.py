"""The servers that the benchmarks of Spark read from: a name server and one broker, as processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tandemmq.launcher import Server, stopping, write_properties

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Servers:
    """Both run."""

    name_server: Server
    broker: Server


@contextmanager
def running_servers(directory: Path) -> Iterator[Servers]:
    """The two on free ports of this machine, with default settings; store and logs are in `directory`.

    Raises:  ProcessFailed when one does not start.
    """
    command = ["namesrv", "--set", "listenPort=0", "--set", f"bindAddress={HOST}"]
    name_server = Server("name server", command, directory / "namesrv.log")
    with stopping([name_server]):
        settings = {
            "namesrvAddr": name_server.start(),
            "brokerName": "bench",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": 0,
            "storePathRootDir": directory / "store",
        }
        conf = write_properties(directory / "broker.conf", settings)
        broker = Server("broker", ["broker", "-c", str(conf)], directory / "broker.log")
        with stopping([broker]):
            broker.start()
            yield Servers(name_server=name_server, broker=broker)
