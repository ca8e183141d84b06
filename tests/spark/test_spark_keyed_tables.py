"""Tests Delta and Iceberg tables with one row per key through Spark, against a dict: updates, deletes,
several changes of a key in one batch, messages without a key, and batches that a kill interrupts or repeats.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from spark_cluster import Cluster
from spark_lakes import forget_last_commit

from tandemmq.client import BlockingAdmin, BlockingProducer
from tandemmq.errors import ConfigError
from tandemmq.protocol.message import Message
from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.files import BAD_RECORDS_DIR
from tandemmq.spark.lake.formats import list_live_files
from tandemmq.spark.lake.home import require_lake
from tandemmq.spark.lake.upsert import NO_KEY
from tandemmq.spark.pipelines.feed import Feed, NumberedTask, StagedRows
from tandemmq.spark.pipelines.json_bodies import BAD_COLUMN
from tandemmq.spark.pipelines.serve import make_runner
from tandemmq.spark.pipelines.serve_config import ServeConfig, read_config

KEYS = 15
BATCH_ROWS = 60
QUEUES = 2

Work = Callable[[NumberedTask], StagedRows]


class Killed(Exception):
    """A stand-in for the end of the service after its tasks and before their commit."""


@dataclass
class Customers:
    """A topic of updates and deletes. `rows`: the table that it makes; `keyless`: its messages without a
    key.
    """

    cluster: Cluster
    topic: str
    rows: dict[str, bytes] = field(default_factory=dict)
    keyless: list[bytes] = field(default_factory=list)
    sent: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def change(self, count: int) -> None:
        """Sends changes of few keys, each key to the same queue."""
        with (
            BlockingAdmin(self.cluster.namesrv) as admin,
            BlockingProducer("keyed", self.cluster.namesrv) as producer,
        ):
            if not self.sent:
                admin.create_topic(self.topic, queue_count=QUEUES)
            queues = sorted(admin.topic_offsets(self.topic))
            for _ in range(count):
                number = self.chance.randrange(KEYS)
                key = f"k{number}" if self.chance.random() < 0.95 else ""
                body = b"null" if self.chance.random() < 0.2 else b"%d" % self.sent
                message = Message(topic=self.topic, body=body, keys=(key,) if key else ())
                producer.send(message, queue=queues[number % QUEUES])
                self._apply(key, body)

    def _apply(self, key: str, body: bytes) -> None:
        self.sent += 1
        if not key:
            self.keyless.append(body)
        elif body == b"null":
            self.rows.pop(key, None)
        else:
            self.rows[key] = body


def read_by_key(spark: Any, kind: str, root: Path) -> dict[str, bytes]:
    """Returns the bodies of a table by key, as Spark reads its files."""
    lake = require_lake(root)
    paths = [lake.data.locate(name) for name in sorted(list_live_files(lake))]
    rows = [(row["keys"], bytes(row["body"])) for row in spark.read.parquet(*paths).collect()]
    found, checked = dict(rows), check_lake(root)
    assert len(found) == len(rows) == checked.rows
    assert checked.faults == ()
    return found


def read_bad(root: Path) -> list[tuple[str, bytes]]:
    table = pq.read_table(root / BAD_RECORDS_DIR, columns=[BAD_COLUMN, "body"])
    return sorted((row[BAD_COLUMN], row["body"]) for row in table.to_pylist())


def write_config(path: Path, cluster: Cluster, topic: str, kind: str, **more: str) -> ServeConfig:
    entry = {"name": topic, "format": kind, "batchRows": BATCH_ROWS, **more}
    document = {"nameServer": cluster.namesrv, "out": str(path.parent / "lakes"), "topics": [entry]}
    path.write_text(yaml.safe_dump(document))
    return read_config(path)


def start_feed(config: ServeConfig) -> Feed:
    """Returns the feed of the only topic, as a new process would begin."""
    (rule,) = config.rules
    return Feed(config.make_options(rule.name, rule), key=rule.key, is_once=True)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_by_key_equals_a_dict_though_batches_are_interrupted_and_repeated(
    spark: Any, cluster: Cluster, tmp_path: Path, run_pipeline: Callable[..., list[Any]], kind: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    customers = Customers(cluster, f"Customers-{kind}")
    config = write_config(tmp_path / "lake.yaml", cluster, customers.topic, kind, key="keys")
    root = config.out / customers.topic
    serve = ("serve", "--config", str(tmp_path / "lake.yaml"), "--once")

    run = make_runner(spark, customers.topic)

    def run_and_die(work: Work, tasks: Sequence[NumberedTask]) -> list[StagedRows]:
        run(work, tasks)
        raise Killed

    def check() -> None:
        assert read_by_key(spark, kind, root) == customers.rows
        assert customers.keyless
        assert read_bad(root) == sorted((NO_KEY, body) for body in customers.keyless)

    customers.change(150)
    for _ in range(2):  # the first batch, and one on top of a table
        with pytest.raises(Killed):
            start_feed(config).run_batch(run_and_die)
        customers.change(20)
        assert start_feed(config).run_batch(run) is not None
    job = spark.sparkContext._jsc.sc().statusStore().jobsList(None).head()
    assert job.description().get() == customers.topic
    events = run_pipeline(*serve)
    assert events[-1]["reason"] == "done", events
    check()
    # The commit of the table was the last thing before a kill.
    for changes in (0, 40):
        forget_last_commit(root / "_checkpoint")
        customers.change(changes)
        events = run_pipeline(*serve)
        assert events[-1]["reason"] == "done", events
        check()


def test_a_table_by_key_is_not_written_as_another_lake(
    spark: Any, cluster: Cluster, tmp_path: Path, run_pipeline: Callable[..., list[Any]]
) -> None:
    pytest.importorskip("deltalake")
    customers, path = Customers(cluster, "OtherCustomers"), tmp_path / "lake.yaml"
    customers.change(40)
    with pytest.raises(ConfigError, match="key keys: needs the format delta or iceberg"):
        write_config(path, cluster, customers.topic, "parquet", key="keys")
    write_config(path, cluster, customers.topic, "delta", key="keys")
    run_pipeline("serve", "--config", str(path), "--once")
    before = dict(customers.rows)
    customers.change(20)
    config = write_config(path, cluster, customers.topic, "delta")
    with pytest.raises(ConfigError, match="has a row per value of keys, this run writes a row per message"):
        start_feed(config).run_batch(lambda work, tasks: [work(task) for task in tasks])
    assert read_by_key(spark, "delta", config.out / customers.topic) == before
    write_config(path, cluster, customers.topic, "delta", key="keys")
    run_pipeline("serve", "--config", str(path), "--once")
    assert read_by_key(spark, "delta", config.out / customers.topic) == customers.rows
