"""Frequent commands start quickly: modules that only some commands use are not loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
HEAVY = ("matplotlib", "pyarrow", "pandas", "pyspark", "typer", "rich", "yaml", "lark", "prometheus_client")
SPARK = "import pyspark_commitlog, tandemmq.spark.source, tandemmq.spark.stream, tandemmq.spark.lake.sink"
"""The modules that Spark's short-lived processes load at each start; they need pyspark."""
REPORT = "import tandemmq.spark.pipelines.report"
"""Loaded when a pipeline begins; what draws the report's charts, when it has ended."""
CHART = (
    "from tandemmq.spark.pipelines import charts, events; "
    "charts.draw_bars(events.BarChart(title='t', unit='', bars=(('a', 1.0),)))"
)
"""Drawn without what holds figures for a whole process."""
STATEMENTS = {
    "import tandemmq.client": ("numpy", "asyncio", "msgspec"),
    "from tandemmq.client import Message, Producer": ("numpy", "tandemmq.client.consumer.consumer"),
    "from tandemmq.client import *": ("numpy",),
    "import tandemmq.nameserver.nameserver, tandemmq.config.load": ("numpy", "tandemmq.store.message_store"),
    "import tandemmq.broker.broker, tandemmq.config.load": (),
    "import tandemmq.pytest_plugin": ("numpy", "msgspec"),
    "import tandemmq.__main__ as m; sys.argv[1:] = ['--version']; m.main()": ("numpy", "asyncio", "msgspec"),
    SPARK: ("numpy", "asyncio"),
    REPORT: ("tandemmq.spark.pipelines.charts",),
    CHART: ("matplotlib.pyplot",),
}
ALLOWED = {SPARK: ("pyspark",), REPORT: ("rich",), CHART: ("rich", "matplotlib")}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_only_what_is_needed_is_loaded(statement: str) -> None:
    allowed = ALLOWED.get(statement, ())
    unwanted = tuple(name for name in (*HEAVY, *STATEMENTS[statement]) if name not in allowed)
    script = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {statement}\n"
        f"print(*[name for name in {unwanted} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "", f"{statement} loads {run.stdout}"
