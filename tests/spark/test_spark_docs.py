"""Runs every example of the pages about Spark and of docs/coming-from-kafka.md in order, in one session, and
the README's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import Cluster

from dead_letter_maker import make_dead_letters
from tandemmq.client import BlockingAdmin, BlockingProducer
from tandemmq.protocol.message import Message
from tandemmq.units import MIB

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = (DOCS / "spark.md", *sorted((DOCS / "spark").glob("*.md")))
"""In this order: the page of the landing is before that of the pipelines, which read its lake."""

README = DOCS.parent / "README.md"
FROM_KAFKA = DOCS / "coming-from-kafka.md"

TOLD = {
    "landing": "400 rows",
    "audit": "OK: all sides are equal",
    "replay": "200 rows",
    "rollup": "rows",
    "history": "200 rows",
    "deadletters": "order-",
    "lake": "/orders",
}
"""A text in the output of each command of the document."""

NEEDS_JARS = ("kafka.bootstrap.servers", "from_avro")


def _here(text: str, cluster: Cluster, directory: Path) -> str:
    """Returns the document with the addresses and directories of this test."""
    for address in ("127.0.0.1:9876", "10.0.0.1:9876"):
        text = text.replace(address, cluster.namesrv)
    # The cluster example is the same landing with another directory.
    return text.replace("/data/", f"{directory}/").replace("/shared/", f"{directory}/shared-")


def _commands(text: str) -> list[tuple[list[str], str]]:
    """Returns the arguments of each pipeline command, and a text that its output must contain; all commands
    end by themselves.
    """
    commands = []
    for line in re.findall(r"^    tandemmq pipeline (.+)$", text, re.MULTILINE):
        command = shlex.split(line)
        if command == ["prepare"]:
            continue  # it needs a process without a session
        if command[0] in ("landing", "rollup") and "--once" not in command:
            command.append("--once")
        commands.append((command, TOLD[command[0]]))
    assert {command[0] for command, _ in commands} == set(TOLD)
    return commands


def _run_blocks(spark: Any, text: str, document: Path) -> dict[str, Any]:
    """Runs the Python blocks of a document and returns their variables; test_spark_with_jars.py runs those
    that need jars.
    """
    scope: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        if any(word in block for word in NEEDS_JARS):
            continue
        exec(compile(re.sub(r"spark = build_session.*", "", block), str(document), "exec"), scope)
    return scope


def test_the_examples_run(
    spark: Any, cluster: Cluster, tmp_path: Path, run_command: Callable[..., str]
) -> None:
    cluster.send("Orders", 400)
    (tmp_path / "store").symlink_to(cluster.directory / "master")
    text = _here("".join(page.read_text() for page in DOCUMENTS), cluster, tmp_path)
    make_dead_letters(cluster.namesrv, "billing", "Orders2Pay", 20, key="order-{}")
    # Simulates the loss of all queues: the log contains the messages that the slave acknowledged.
    shutil.copytree(cluster.directory / "slave" / "commitlog", tmp_path / "stopped" / "commitlog")
    for command, reported in _commands(text):
        output = run_command(*command)
        assert reported in output, (command, output)
    scope = _run_blocks(spark, text, DOCS / "spark")
    assert scope["table"].num_rows == 400
    for topic in ("Answers", "Copied", "CopiedOnce", "CopiedWhole"):
        source = spark.read.format("tandemmq").options(nameServer=cluster.namesrv, topic=topic)
        assert source.load().count() == 400
    for name in ("by_tag", "landed_by_tag"):
        assert sum(row["count"] for row in spark.table(name).collect()) == 400
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 400


def test_the_service_of_the_page_lands_its_topics(
    cluster: Cluster, tmp_path: Path, run_command: Callable[..., str]
) -> None:
    pytest.importorskip("deltalake")
    cluster.send("ServedOrders", 40)
    cluster.send("Shop-Carts", 30)
    text = _here((DOCS / "spark" / "serve.md").read_text(), cluster, tmp_path).replace(
        "Orders", "ServedOrders"
    )
    (settings,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "lake.yaml").write_text(settings)
    start, show = map(shlex.split, re.findall(r"`tandemmq pipeline (served? --.+?)`", text))
    run_command(*start[:-1], "0", "--once")
    shown = run_command(*show)
    assert re.search(r"^ServedOrders +running +40 ", shown, re.MULTILINE)
    assert re.search(r"^Shop-Carts +running +30 ", shown, re.MULTILINE)
    orders = ("--pause", "--resume", "--redo", "--cancel-redo")
    for option, state in zip(orders, ("paused", "running", "running", "running"), strict=True):
        assert f"| `{option}` |" in text
        shown = run_command(*show, option, "Shop-Carts")
        assert re.search(rf"^Shop-Carts +{state} ", shown, re.MULTILINE)


def test_classes_are_archived_once_for_all_sessions(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tandemmq", "pipeline", "prepare"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (archive,) = (tmp_path / "tandemmq").glob("*.jsa")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{archive}: ")
    assert archive.stat().st_size > 50 * MIB


def test_the_line_of_the_readme_shows_the_topic(
    spark: Any, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = re.findall(r"^    (spark\.read\..+)$", README.read_text(), re.MULTILINE)
    line = _here(line, cluster, tmp_path).replace('"Orders"', '"Greetings"')
    cluster.send("Greetings", 2)
    exec(compile(line, str(README), "exec"), {"spark": spark})
    assert capsys.readouterr().out.count("|Greetings|") == 2


def test_recipes_for_kafka_run_with_another_format_and_other_addresses(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    sent: dict[str, list[tuple[str, str, dict[str, str]]]] = {}
    with BlockingAdmin(cluster.namesrv) as admin, BlockingProducer("kafka", cluster.namesrv) as producer:
        for topic, queue_count in (("topic1", 2), ("topic2", 1)):
            admin.create_topic(topic, queue_count=queue_count)
            sent[topic] = [(f"k{n}", f"{topic}-{n}", {"h": f"v{n}"} if n % 2 else {}) for n in range(60)]
            queues = sorted(admin.topic_offsets(topic))
            for n, (key, value, headers) in enumerate(sent[topic]):
                message = Message(topic=topic, body=value.encode(), keys=(key,), properties=headers)
                producer.send(message, queue=queues[n % queue_count])
    scope = _run_blocks(spark, _here(FROM_KAFKA.read_text(), cluster, tmp_path), FROM_KAFKA)
    assert scope["stream"].schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert sorted(scope["rows"]) == sorted((key, value) for key, value, _ in sent["topic1"])
    # Queue 0 of topic1 has 30 messages: the query selects 23..29 of them, and all of the other queues.
    assert len(scope["some_rows"]) == 7 + 30 + 60
    assert scope["counts"] == (120, 60)

    def read(topic: str) -> list[Any]:
        table = spark.read.format("tandemmq").options(nameServer=cluster.namesrv, subscribe=topic)
        found = table.option("columns", "kafka").option("includeHeaders", "true").load().collect()
        return sorted((bytes(row.key).decode(), bytes(row.value).decode(), row.headers) for row in found)

    plain = sorted((key, value, None) for key, value, _ in sent["topic1"])
    assert read("copied1") == read("copied2") == plain
    expected = [
        (key, value, [(name, bytearray(text.encode())) for name, text in headers.items()] or None)
        for topic in sent
        for key, value, headers in sent[topic]
    ]
    assert read("copied3") == sorted(expected)
    with pytest.raises(Exception, match=r"give nameServer, the addresses of name servers"):
        spark.read.format("tandemmq_kafka").option("kafka.bootstrap.servers", "h:1").load()
