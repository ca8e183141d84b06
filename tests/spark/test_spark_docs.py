"""Every example of docs/spark.md runs, commands and Python, in order, in one session."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dead_letter_maker import make_dead_letters
from spark_cluster import Cluster

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"

TOLD = {
    "landing": "400 rows",
    "audit": "OK: all sides are equal",
    "replay": "200 rows",
    "rollup": "rows",
    "history": "200 rows",
    "deadletters": "order-",
    "rebuild": "",
    "lake": "/orders",
}
"""What a command of the document says here."""


def _here(text: str, cluster: Cluster, directory: Path) -> str:
    """The document with the addresses and directories of this test."""
    for address in ("127.0.0.1:9876", "10.0.0.1:9876"):
        text = text.replace(address, cluster.namesrv)
    # The cluster's example is the landing that went before, elsewhere.
    return text.replace("/data/", f"{directory}/").replace("/shared/", f"{directory}/shared-")


def _commands(text: str) -> list[tuple[list[str], str]]:
    """Arguments of each pipeline command, and what its output has to hold; all of them end by themselves."""
    commands = []
    for line in re.findall(r"^    tandemmq pipeline (.+)$", text, re.MULTILINE):
        command = shlex.split(line)
        if command[0] in ("landing", "rollup") and "--once" not in command:
            command.append("--once")
        commands.append((command, TOLD[command[0]]))
    assert {command[0] for command, _ in commands} == set(TOLD)
    return commands


def test_the_examples_run(
    lake_spark: Any, cluster: Cluster, tmp_path: Path, run_command: Callable[..., str]
) -> None:
    spark = lake_spark
    cluster.send("Orders", 400)
    (tmp_path / "store").symlink_to(cluster.directory / "master")
    text = _here(DOCUMENT.read_text(), cluster, tmp_path)
    make_dead_letters(cluster, "billing", "Orders2Pay", 20, key="order-{}")
    # As after a loss of all queues: what the slave has acknowledged is in its log, the rest comes later.
    shutil.copytree(cluster.directory / "slave" / "commitlog", tmp_path / "stopped" / "commitlog")
    for command, told in _commands(text):
        output = run_command(*command)
        assert told in output, (command, output)
    scope: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 7
    for block in blocks:
        exec(compile(re.sub(r"spark = build_session.*", "", block), str(DOCUMENT), "exec"), scope)
    assert scope["table"].num_rows == 400
    for topic in ("Answers", "Copied", "CopiedOnce", "CopiedWhole"):
        source = spark.read.format("tandemmq").options(nameServer=cluster.namesrv, topic=topic)
        assert source.load().count() == 400
    for name in ("by_tag", "landed_by_tag"):
        assert sum(row["count"] for row in spark.table(name).collect()) == 400
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 400
