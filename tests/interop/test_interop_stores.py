"""A store directory of one maker opened by the other, after a clean stop and after kill -9.

All messages are readable with dense queue offsets, new ones follow them, a group continues at its offset,
a key finds its message, and a delayed message that was under way arrives.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import Cluster, JavaBroker, OurBroker, our_cluster
from java_peers import EVERY_LINE, Line
from loads import COUNT, SMALL_FILES, commit, drain, fill
from tally import BOTH

from tandemmq.client import BlockingAdmin, BlockingProducer, Message
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.progress import ConsumerOffsetTable
from waits import until_blocking

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400), pytest.mark.interop_case(column=BOTH)]

NAME = "broker-s"
LATER = "Later"
GROUP = "store-group"


def start(cluster: Cluster, maker: str, line: Line, root: Path) -> OurBroker | JavaBroker:
    settings = {**SMALL_FILES, "storePathRootDir": root}
    if maker == "ours":
        return cluster.start_ours(NAME, settings)
    return cluster.start_java(line, NAME, settings)


def committed(cluster: Cluster, topic: str) -> dict[int, int | None]:
    with BlockingAdmin(cluster.name_server) as admin:
        return {queue.queue_id: offset for queue, offset in admin.committed_offsets(GROUP, topic).items()}


def is_written(root: Path, topic: str, offsets: dict[int, int]) -> bool:
    """The group's offsets are in the table on disk; Java empties the file before it writes it anew."""
    path = root / "config" / "consumerOffset.json"
    try:
        table = decode_body(path.read_bytes(), ConsumerOffsetTable)
    except (FileNotFoundError, RemoteProtocolError):
        return False
    return table.offsets.get(f"{topic}@{GROUP}") == offsets


def message_count(cluster: Cluster, topic: str) -> int:
    with BlockingAdmin(cluster.name_server) as admin:
        return admin.message_count(topic)


@pytest.mark.parametrize("line", EVERY_LINE)
@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize(("writer", "reader"), [("java", "ours"), ("ours", "java")])
def test_store_of_the_other_maker(tmp_path: Path, line: str, end: str, writer: str, reader: str) -> None:
    root = tmp_path / "store"
    with our_cluster(tmp_path / "cluster") as cluster:
        first = start(cluster, writer, EVERY_LINE[line], root)
        assert fill(cluster, LATER, [0]) == []
        assert fill(cluster, "Load", range(COUNT)) == []
        offsets = commit(cluster, "Load", GROUP)
        assert len(offsets) == 4
        until_blocking(lambda: is_written(root, "Load", offsets), "offsets are written down")
        with BlockingProducer("delayed", cluster.name_server) as producer:
            producer.send(Message(topic=LATER, body=b"delayed", delay_level=3))
        getattr(first, end)()
        assert len(list((root / "commitlog").iterdir())) >= 3

        start(cluster, reader, EVERY_LINE[line], root)
        home = tmp_path / "home"
        assert drain(cluster, EVERY_LINE[line], "Load", home) == [*range(COUNT)]
        assert committed(cluster, "Load") == offsets
        assert fill(cluster, "Load", range(COUNT, COUNT + 400)) == []
        assert drain(cluster, EVERY_LINE[line], "Load", home) == [*range(COUNT + 400)]
        with BlockingAdmin(cluster.name_server) as admin:
            for number in (0, COUNT // 2, COUNT - 1, COUNT + 399):
                found = admin.find_by_key("Load", f"key{number}")
                assert [record.body[:20].split(b":")[0] for record in found] == [str(number).encode()]
        until_blocking(lambda: message_count(cluster, LATER) == 2, "the delayed message arrives")
