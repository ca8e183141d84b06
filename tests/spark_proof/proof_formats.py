"""Runs the same source where Spark works differently: in a Connect server, and in a declarative pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark

from tandemmq.spark.java import find_java
from tandemmq.spark.pipelines.runner import is_transient
from tandemmq.spark.session import share_python_path

SECONDS_MAX = 300.0
ATTEMPTS = 3

SPEC = """
name: proof
storage: file://{directory}/storage
libraries:
  - glob:
      include: transformations/**
"""
# Without Hive's catalog a second run does not know the tables of the first (spec spark SP-83).
DEFAULTS = """
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir {directory}/warehouse
spark.driver.extraJavaOptions -Dderby.system.home={directory}/derby
spark.ui.enabled false
"""
TABLE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table(name="landed")
def landed():
    return (
        spark.readStream.format("tandemmq")
        .options(nameServer="{namesrv}", topic="{topic}", startingOffsets="earliest")
        .option("columns", "queueId,queueOffset,body")
        .load()
    )
"""


class FormatFailed(Exception):
    """A program ended with an error; the text is the end of its output."""


def run_connect(namesrv: str, topic: str, copy: str, directory: Path) -> dict[str, int]:
    """Returns the counts of a Connect session.

    Raises:  FormatFailed.
    """
    program = Path(__file__).with_name("proof_connect.py")
    command = [sys.executable, str(program), namesrv, topic, copy, str(directory / "connect-checkpoint")]
    counts: dict[str, int] = json.loads(_run(command).splitlines()[-1])
    return counts


class Declarative:
    """A project of Spark's declarative pipelines: one table, fed by a topic."""

    def __init__(self, namesrv: str, topic: str, directory: Path) -> None:
        self._directory = directory
        (directory / "transformations").mkdir(parents=True)
        (directory / "spark-pipeline.yml").write_text(SPEC.format(directory=directory))
        (directory / "spark-defaults.conf").write_text(DEFAULTS.format(directory=directory))
        text = TABLE.format(namesrv=namesrv, topic=topic)
        (directory / "transformations" / "landed.py").write_text(text)

    def run(self) -> Any:
        """Reads all current messages into the table, and returns the table.

        Raises:  FormatFailed.
        """
        program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
        command = [str(program), "run", "--spec", str(self._directory / "spark-pipeline.yml")]
        _run(command, SPARK_CONF_DIR=str(self._directory))
        return pq.read_table(self._directory / "warehouse" / "landed")


def _run(command: list[str], **environment: str) -> str:
    """Runs the pipeline and returns its standard output; retries a start that Spark missed on a busy
    machine.
    """
    share_python_path()
    own = {"JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
                env={**os.environ, **own, **environment, "PATH": paths},
            )
        except subprocess.TimeoutExpired as error:
            raise FormatFailed(f"{command} did not end within {SECONDS_MAX:.0f} s") from error
        if not done.returncode:
            return done.stdout
        if not is_transient(done.stderr):
            break
    raise FormatFailed(f"{command} failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
