"""Tests which Spark setting wins: the caller's, that of spark-defaults.conf, or our default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandemmq.spark.user_settings import find_settings, merge_settings, parse_defaults

DEFAULTS = r"""
# comment
spark.driver.memory              3g
spark.ui.enabled=true
  spark.app.comment : a=b c
spark.long   one \
two
other.setting  1
spark.empty
"""


def test_the_file_is_read_as_spark_reads_it() -> None:
    assert parse_defaults(DEFAULTS.replace("\\\\", "\\")) == {
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "true",
        "spark.app.comment": "a=b c",
        "spark.long": "one two",
        "spark.empty": "",
    }


@pytest.mark.parametrize(
    ("arguments", "memory"),
    [
        ("", "3g"),
        ("--conf spark.driver.memory=5g pyspark-shell", "5g"),
        ("-c spark.driver.memory=5g --conf=spark.x=1 pyspark-shell", "5g"),
        ("--driver-memory 6g pyspark-shell", "6g"),
        ("--driver-memory=6g pyspark-shell", "6g"),
        ("--properties-file {other} pyspark-shell", "7g"),
        ("--conf", "3g"),
    ],
)
def test_arguments_win_over_the_file(arguments: str, memory: str, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    other = tmp_path / "other.conf"
    other.write_text("spark.driver.memory 7g\n")
    environment = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": arguments.format(other=other),
    }
    assert find_settings(environment)["spark.driver.memory"] == memory


def test_no_file_is_no_setting(tmp_path: Path) -> None:
    assert find_settings({"SPARK_CONF_DIR": str(tmp_path)}) == {}


def test_the_users_settings_win_and_lists_are_joined() -> None:
    ours = {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -Da=1",
        "spark.executorEnv.PYTHONPATH": "/ours",
    }
    theirs = {
        "spark.driver.memory": "4g",
        "spark.driver.extraJavaOptions": "-XX:+UseG1GC -Da=2",
        "spark.executorEnv.PYTHONPATH": "/theirs",
        "spark.executor.cores": "2",
    }
    assert merge_settings(ours, theirs) == {
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-Da=1 -XX:+UseG1GC -Da=2",
        "spark.executorEnv.PYTHONPATH": f"/ours{os.pathsep}/theirs",
        "spark.executor.cores": "2",
    }
