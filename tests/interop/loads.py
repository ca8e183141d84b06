"""Messages that tell by themselves whether they are whole: sent by our client, read back by Java's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from clusters import Cluster
from java_peers import Line, run_program

from tandemmq.client import BlockingAdmin, BlockingConsumer, BlockingProducer, Message, SendStatus
from tandemmq.errors import TandemError
from waits import until_blocking

LOG_FILE_BYTES = 4 << 20
COUNT = 4_500
"""About 11 MB: more than two log files."""
SMALL_FILES = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "maxHashSlotNum": 10_000, "maxIndexNum": 40_000}


def body(number: int) -> str:
    """A text of 800 to 3800 characters that its number determines."""
    head = f"{number}:"
    return head + chr(97 + number % 26) * (800 + number * 37 % 3000)


def fill(
    cluster: Cluster, topic: str, numbers: Iterable[int], *, is_waited_for: bool = True
) -> list[SendStatus]:
    """Sends the messages of these numbers; the statuses that are not SEND_OK."""
    others: list[SendStatus] = []

    def on_result(message: Message, outcome: object) -> None:
        status = getattr(outcome, "status", None)
        if isinstance(status, SendStatus) and status is not SendStatus.SEND_OK:
            others.append(status)

    messages = (
        Message(
            topic=topic,
            body=body(number).encode(),
            tags=f"t{number % 3}",
            keys=f"key{number}",
            wait_stored=is_waited_for,
        )
        for number in numbers
    )
    with BlockingProducer("fill", cluster.name_server) as producer:
        producer.send_many(messages, on_result=on_result)
    return others


def commit(cluster: Cluster, topic: str, group: str) -> dict[int, int]:
    """Makes the group and gives it an offset for each queue of the topic: 100, 101, ..."""
    with BlockingConsumer(group, cluster.name_server) as consumer:
        consumer.subscribe(topic)
        consumer.poll(count_max=1, timeout_s=30)
    offsets = {}
    with BlockingAdmin(cluster.name_server) as admin:
        for queue in admin.topic_offsets(topic):
            offsets[queue.queue_id] = 100 + queue.queue_id
            admin.set_offset(group, queue, offsets[queue.queue_id])
        committed = admin.committed_offsets(group, topic)
    assert {queue.queue_id: offset for queue, offset in committed.items()} == offsets
    return offsets


class HasLog(Protocol):
    """A broker of either maker whose log has files of LOG_FILE_BYTES."""

    address: str
    store: Path


def log_end(name_server: str, broker: HasLog) -> int:
    with BlockingAdmin(name_server) as admin:
        return int(admin.runtime_info(broker.address)["commitLogMaxOffset"])


def wait_for_copy(name_server: str, master: HasLog, slave: HasLog) -> int:
    """The end of both logs."""
    end = log_end(name_server, master)

    def has_all() -> bool:
        try:
            return log_end(name_server, slave) == end
        except TandemError:  # a Java broker that is just starting answers with an exception of its own
            return False

    until_blocking(has_all, f"the slave has the log up to {end}", 90)
    return end


def check_equal_logs(master: HasLog, slave: HasLog, end: int) -> None:
    """Both logs have the same bytes below `end`, in the same files."""
    for begin in range(0, end, LOG_FILE_BYTES):
        name = f"{begin:020d}"
        count = min(LOG_FILE_BYTES, end - begin)
        files = [broker.store / "commitlog" / name for broker in (master, slave)]
        with files[0].open("rb") as one, files[1].open("rb") as other:
            assert one.read(count) == other.read(count), f"file {name} differs below {count}"


def drain(cluster: Cluster, line: Line, topic: str, home: Path) -> list[int]:
    """The numbers of all messages of a topic, sorted, read with a Java client.

    Each body is whole, and each queue holds the offsets 0, 1, 2 ... without a gap.
    """
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{topic}.txt"
    run_program(line, "Drain", cluster.name_server, topic, str(path), home=home)
    offsets: dict[int, list[int]] = defaultdict(list)
    numbers = []
    for row in path.read_text().splitlines():
        queue_id, offset, text = row.split(" ", 2)
        offsets[int(queue_id)].append(int(offset))
        number = int(text.split(":", 1)[0])
        assert text == body(number), f"body of {number} in queue {queue_id} at {offset} is not whole"
        numbers.append(number)
    for queue_id, found in offsets.items():
        assert found == [*range(len(found))], f"offsets of queue {queue_id} are not dense"
    return sorted(numbers)
