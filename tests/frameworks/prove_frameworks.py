"""Runs the cases of every framework over real clusters: `make frameworks`. The last line is

    FRAMEWORKS OK faststream=N kombu=N celery=N taskiq=N failed=0

with the numbers of cases that passed, or FRAMEWORKS FAILED and exit code 1. Each framework must have lost a
master under load; the line before says how many were lost.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tandemmq.testing import Cluster

TESTS: Final = Path(__file__).resolve().parents[1]
FRAMEWORKS: Final = {
    "faststream": ("scenario/test_faststream.py", "frameworks/test_faststream_cases.py"),
    "kombu": ("scenario/test_kombu.py", "frameworks/test_kombu_suite.py"),
    "celery": ("scenario/test_celery.py", "frameworks/test_celery_suite.py"),
    "taskiq": ("scenario/test_taskiq.py", "frameworks/test_taskiq_suite.py"),
}
EXTRA_ARGUMENTS: Final = ("-p", "no:cacheprovider", "-o", "addopts=", "--strict-markers")


class CaseCounter:
    """A plugin of pytest that counts, per framework, cases and lost masters."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.lost_masters: Counter[str] = Counter()
        self.failed = 0
        self._now = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_expected = report.skipped and hasattr(report, "wasxfail")
        if report.failed or (report.skipped and not is_expected):
            self.failed += 1
        elif report.when == "call" and report.passed and type(report) is pytest.TestReport:  # no subtest
            self.passed[self._now] += 1

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line(
            "markers", "flaky: Celery's mark of a case that it repeats; here it runs once"
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed += not report.passed

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        path = item.path.relative_to(TESTS).as_posix()
        self._now = next(name for name, files in FRAMEWORKS.items() if path in files)

    def count_lost_masters(self) -> None:
        """Counts every master that a case loses from here on."""
        lose_master = Cluster.lose_master

        async def lose_and_count(cluster: Cluster) -> None:
            self.lost_masters[self._now] += 1
            await lose_master(cluster)

        Cluster.lose_master = lose_and_count  # type: ignore[method-assign]


def main(arguments: list[str]) -> int:
    counter = CaseCounter()
    counter.count_lost_masters()
    paths = [TESTS / name for files in FRAMEWORKS.values() for name in files]
    missing = [path for path in paths if not path.is_file()]
    for path in missing:
        print(f"{path} is missing")
    found = [str(path) for path in paths if path.is_file()]
    code = pytest.main([*EXTRA_ARGUMENTS, *arguments, *found], plugins=[counter])
    print("masters lost:", *(f"{name}={counter.lost_masters[name]}" for name in FRAMEWORKS))
    is_complete = all(counter.passed[name] and counter.lost_masters[name] for name in FRAMEWORKS)
    is_good = code == pytest.ExitCode.OK and not counter.failed and is_complete and not missing
    counts = " ".join(f"{name}={counter.passed[name]}" for name in FRAMEWORKS)
    print(f"FRAMEWORKS {'OK' if is_good else 'FAILED'} {counts} failed={counter.failed}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
