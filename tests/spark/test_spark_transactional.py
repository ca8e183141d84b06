"""Tests the transactional sink against a real broker: nothing visible before the commit, everything after it,
whatever dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import Cluster

from tandemmq.errors import TandemError
from tandemmq.spark.metadata import QueriedCluster as Brokers
from tandemmq.spark.options import parse_options
from waits import until_blocking

PATIENCE_S = 240.0

DYING = """
import os, sys, time
from pathlib import Path
from tandemmq.spark.pipelines.runner import open_session
from tandemmq.spark.source import TandemSource

namesrv, checkpoint, ended = sys.argv[1:]


class DyingSource(TandemSource):
    "Its commit ends 16 messages, says so, and comes no further."

    @classmethod
    def name(cls):
        return "dying"

    def streamWriter(self, schema, overwrite):
        from tandemmq.spark.sink import transaction as sink

        settle, parent = sink.Ender._read_answers, os.getppid()

        def settle_and_wait(self, lane, decision):
            settle(self, lane, decision)
            Path(ended).touch()
            while os.getppid() == parent:
                time.sleep(0.05)
            os._exit(1)

        sink.WINDOW, sink.Ender._read_answers = 16, settle_and_wait
        return super().streamWriter(schema, overwrite)


with open_session("dying", "local[2]", Path(checkpoint + ".log")) as (spark, _):
    spark.dataSource.register(DyingSource)
    stream = spark.readStream.format("tandemmq").options(
        nameServer=namesrv, topic="TxFrom", startingOffsets="earliest", columns="body"
    ).load()
    query = stream.writeStream.format("dying").options(
        nameServer=namesrv, topic="TxTo", checkpointLocation=checkpoint, semantics="transactional",
    ).trigger(availableNow=True).start()
    query.awaitTermination()
"""


def count_visible(cluster: Any, topic: str) -> int:
    """Returns the number of messages in the brokers' queues; 0 if the topic does not exist."""
    raw = {"nameserver": cluster.namesrv, "topic": topic}
    metadata = Brokers(parse_options(raw, is_streaming=False))
    try:
        bounds = metadata.read_bounds(metadata.describe())
    except TandemError:
        return 0
    return sum(bound.end - bound.begin for bound in bounds.values())


def read_rows(spark: Any, cluster: Any, topic: str) -> list[Any]:
    options = {"nameServer": cluster.namesrv, "topic": topic, "columns": "body,msgId,tags"}
    return list(spark.read.format("tandemmq").options(**options).load().collect())


def check_each_once(spark: Any, cluster: Any, topic: str, sent: list[bytes]) -> None:
    rows = read_rows(spark, cluster, topic)
    assert sorted(bytes(row.body) for row in rows) == sorted(sent)
    assert len({row.msgId for row in rows}) == len(sent) == count_visible(cluster, topic)


def copy_stream(spark: Any, cluster: Any, checkpoint: Path, source: str, target: str, sink: str) -> Any:
    stream = (
        spark.readStream.format("tandemmq")
        .options(nameServer=cluster.namesrv, topic=source, startingOffsets="earliest", columns="body")
        .load()
    )
    return (
        stream.writeStream.format(sink)
        .options(nameServer=cluster.namesrv, topic=target, checkpointLocation=str(checkpoint))
        .options(semantics="transactional")
        .trigger(availableNow=True)
        .start()
    )


def register_refusing(spark: Any, cluster: Any, seen: Path) -> None:
    """Registers the sink `refusing`, whose commit records the numbers of waiting and visible rows, and
    fails.
    """
    from tandemmq.spark.sink.writer import TopicStreamWriter, TopicWriter
    from tandemmq.spark.source import TandemSource

    namesrv = cluster.namesrv

    # Classes defined in a function are pickled by value; Spark's processes cannot import this module.
    def refuse(messages: Any, topic: str) -> None:
        from tandemmq.spark.metadata import QueriedCluster as Brokers
        from tandemmq.spark.options import parse_options
        from tandemmq.spark.sink.halves import decode_part

        metadata = Brokers(parse_options({"nameserver": namesrv, "topic": topic}, is_streaming=False))
        bounds = metadata.read_bounds(metadata.describe()).values()
        waiting = sum(len(decode_part(raw)) for message in messages for raw in message.parts)
        seen.write_text(f"{waiting} {sum(bound.end - bound.begin for bound in bounds)}")
        raise RuntimeError("refused by the test")

    class RefusingWriter(TopicWriter):
        def commit(self, messages: Any) -> None:
            refuse(messages, self._options.topic)

    class RefusingStreamWriter(TopicStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:
            refuse(messages, self._options.topic)

    class RefusingSource(TandemSource):
        @classmethod
        def name(cls) -> str:
            return "refusing"

        def writer(self, schema: Any, overwrite: bool) -> TopicWriter:
            return RefusingWriter(*self._plan_write(schema, overwrite), "refusing")

        def streamWriter(self, schema: Any, overwrite: bool) -> TopicStreamWriter:
            return RefusingStreamWriter(*self._plan_write(schema, overwrite))

    spark.dataSource.register(RefusingSource)


def test_a_frame_is_visible_after_its_commit_and_not_at_all_after_an_abort(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    frame = spark.range(600, numPartitions=2).selectExpr("concat('n', id) AS body", "'a' AS tags")
    sink = {"nameServer": cluster.namesrv, "topic": "TxFrame", "mode": "transactional"}
    register_refusing(spark, cluster, tmp_path / "seen")
    with pytest.raises(Exception, match="refused by the test"):
        frame.write.format("refusing").options(**sink).mode("append").save()
    assert (tmp_path / "seen").read_text() == "600 0"
    assert count_visible(cluster, "TxFrame") == 0
    repeated = {**sink, "writeId": "w", "stateDir": str(tmp_path / "state")}
    for _ in range(2):
        frame.write.format("tandemmq").options(**repeated).mode("append").save()
    check_each_once(spark, cluster, "TxFrame", [b"n%d" % n for n in range(600)])
    assert {row.tags for row in read_rows(spark, cluster, "TxFrame")} == {"a"}


def test_a_batch_that_was_not_committed_is_sent_anew(spark: Any, cluster: Any, tmp_path: Path) -> None:
    sent = cluster.send("TxAgainFrom", 300)
    register_refusing(spark, cluster, tmp_path / "seen")
    query = copy_stream(spark, cluster, tmp_path / "c", "TxAgainFrom", "TxAgainTo", "refusing")
    with pytest.raises(Exception, match="refused by the test"):
        query.awaitTermination()
    assert (tmp_path / "seen").read_text() == "300 0"
    assert count_visible(cluster, "TxAgainTo") == 0
    for _ in range(2):
        copy_stream(spark, cluster, tmp_path / "c", "TxAgainFrom", "TxAgainTo", "tandemmq").awaitTermination()
        check_each_once(spark, cluster, "TxAgainTo", sent)
        # Simulates a crash between the commit and Spark's own log of the batch.
        for path in (tmp_path / "c" / "commits").iterdir():
            path.unlink()


def test_a_driver_that_is_killed_between_two_ends_finishes_after_its_restart(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    sent = cluster.send("TxFrom", 300)
    ended = tmp_path / "ended"
    command = [sys.executable, "-c", DYING, cluster.namesrv, str(tmp_path / "c"), str(ended)]
    driver = subprocess.Popen(command, start_new_session=True)
    try:
        until_blocking(lambda: ended.exists() or driver.poll() is not None, timeout_s=PATIENCE_S)
        assert driver.poll() is None
    finally:
        # Java is in the same process group; Spark's Python processes end with it.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert count_visible(cluster, "TxTo") == 16
    copy_stream(spark, cluster, tmp_path / "c", "TxFrom", "TxTo", "tandemmq").awaitTermination()
    check_each_once(spark, cluster, "TxTo", sent)
