"""One Kafka broker as a process of this machine, with its own controller (KRaft) and Kafka's default
settings.

Maven downloads Kafka's jars and Spark's Kafka source, in the versions named here. No version of the source
for Spark 4.3 is available, and only an older one of its token helper; the versions named here load and read
together in Spark 4.3. None of them is kept in the repository or in the package.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.java.clusters import READY_S_MAX, stop_process, wait_until_open
from tandemmq.errors import TandemError
from tandemmq.launcher import write_properties
from tandemmq.spark.java import find_java

SOURCE_VERSION = "4.2.0"
BROKER_VERSION = "4.1.1"
SOURCE = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SOURCE_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""All jars that the source needs in addition to Spark's own, without their dependencies."""
BROKER = (f"org.apache.kafka:kafka_2.13:{BROKER_VERSION}",)

# The flags of Kafka's own start script.
_FLAGS = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")


@contextmanager
def running_kafka(jars: list[Path], directory: Path, *, partition_count: int) -> Iterator[tuple[str, int]]:
    """Runs a broker that creates topics of `partition_count` at their first use; yields its address and
    process id.

    Raises:  TandemError if it ends, or does not listen within READY_S_MAX.
    """
    directory.mkdir(parents=True)
    port, controller_port = _free_ports()
    address = f"127.0.0.1:{port}"
    settings = _write_settings(directory, address, f"127.0.0.1:{controller_port}", partition_count)
    log = directory / "kafka.log"
    java = [str(find_java() / "bin" / "java"), "-cp", os.pathsep.join(map(str, jars))]
    cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "a")
    with log.open("ab") as output:
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        if subprocess.run(formatting, stdout=output, stderr=output, timeout=READY_S_MAX).returncode:
            raise TandemError(f"Kafka's store could not be made (log: {log})")
        process = subprocess.Popen(
            [*java[:1], *_FLAGS, *java[1:], "kafka.Kafka", str(settings)], stdout=output, stderr=output
        )
    try:
        wait_until_open(process, port, "Kafka", log)
        yield address, process.pid
    finally:
        stop_process(process)


def _write_settings(directory: Path, address: str, controller: str, partition_count: int) -> Path:
    return write_properties(
        directory / "server.properties",
        {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{address}",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": directory / "data",
            "num.partitions": partition_count,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            # As in Kafka's own example: the only consumer of a group need not wait for others.
            "group.initial.rebalance.delay.ms": 0,
        },
    )


def _free_ports() -> tuple[int, int]:
    """Returns two ports that were just free; Kafka cannot choose ports by itself."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]
