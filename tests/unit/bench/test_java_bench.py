"""The comparison with Java RocketMQ: which cases there are, and what the report makes of readings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench.java.clusters import (
    JAVA,
    KERNEL,
    OURS,
    STILL_S_MAX,
    BrokerSetting,
    MeasuredCluster,
    paused_cluster,
)
from bench.java.measure import (
    ASYNC,
    CASES,
    ELECTED,
    PAIR,
    READ,
    Case,
    CaseFigures,
    choose_cases,
    paused_clusters,
)
from bench.java.report import (
    figure_of,
    introduction,
    render_json,
    render_page,
    rows_of,
    write_report,
)
from tandemmq.errors import TandemError

SEND = Case(setting=ASYNC, kind="send", in_flight=64)
RATE = Case(setting=ASYNC, kind="rate", rate=5_000)
TWO = Case(setting=PAIR, kind="send", in_flight=64)


def reading(case: Case, side: str, per_second: float, failed: int = 0) -> CaseFigures:
    names = ("name server", "master", "slave")[: 2 + case.setting.has_slave]
    us = 10.0 if side == OURS else 40.0
    return CaseFigures(
        case=case,
        side=side,
        per_second=per_second,
        p50_us=us,
        p99_us=2 * us,
        p999_us=3 * us,
        failed=failed,
        processor_us=dict.fromkeys(names, us),
        private_bytes=dict.fromkeys(names, int(us) << 20),
        resident_bytes=dict.fromkeys(names, int(us) << 21),
    )


def some_readings() -> list[CaseFigures]:
    rates = [(300.0, 100.0), (200.0, 100.0), (280.0, 70.0)]
    return [
        reading(case, side, rate, failed=3 if (case, side) == (RATE, JAVA) else 0)
        for ours, java in rates
        for case in (SEND, RATE, TWO)
        for side, rate in ((OURS, ours), (JAVA, java))
    ]


def test_ratios_are_those_of_the_pairs() -> None:
    figure = figure_of([(300.0, 100.0), (200.0, 100.0), (280.0, 70.0)])
    assert (figure.ours, figure.java) == (280.0, 100.0)
    assert (figure.ratio, figure.ratio_min, figure.ratio_max) == (3.0, 2.0, 4.0)
    assert figure_of([(1.0, 0.0)]).ratio == 0.0


def test_processor_time_is_that_of_all_brokers() -> None:
    send, _, two = rows_of(some_readings())
    assert (send.processor_us.ours, send.processor_us.java) == (10.0, 40.0)
    assert (two.processor_us.ours, two.processor_us.java) == (20.0, 80.0)


def test_page_has_a_table_for_each_setting_and_latencies_of_all() -> None:
    page = render_page(some_readings(), ["A machine."])
    assert page.startswith("A machine.\nMedians of 3 rounds")
    assert [line for line in page.splitlines() if line.startswith("###")] == [
        "### ASYNC_FLUSH",
        "### ASYNC_FLUSH, synchronous slave",
        "### Latency",
        "### Memory",
    ]
    assert "| sends of 1 KiB, 64 in flight | 280 | 100 | **3.00** (2.00 to 4.00) | 10.0 | 40.0 |" in page
    assert "|  | p99.9 | 0.03 | 0.12 | 0.25 |" in page
    assert "| | sends that failed | 0 | 3 | |" in page
    assert "| slave | 10 | 40 | 0.25 | 20 | 80 |" in page


def test_brokers_with_the_kernel_have_a_column_and_a_diamond(tmp_path: Path) -> None:
    readings = [*some_readings(), *(reading(SEND, KERNEL, 400.0) for _ in range(3))]
    send, rate, _ = rows_of(readings)
    assert (send.kernel_per_second, send.kernel_processor_us) == (
        figure_of([(400.0, 100.0), (400.0, 100.0), (400.0, 70.0)]),
        figure_of([(40.0, 40.0)] * 3),
    )
    assert rate.kernel_per_second is None
    page = render_page(readings, [])
    assert page.startswith("Medians of 3 rounds")
    assert "| sends of 1 KiB, 64 in flight | 280 | 100 | **3.00** (2.00 to 4.00) | **4.00** | 10.0 |" in page
    assert "| 5,000 sends/s of 1 KiB | 280 | 100 | **3.00** (2.00 to 4.00) | - | 10.0 |" in page
    write_report(readings, [], tmp_path, version="5.5.0")
    assert (tmp_path / "benchmarks.md").read_text().startswith(introduction("5.5.0", has_kernel=True))


def test_reading_a_backlog_has_no_latency_of_its_own() -> None:
    backlogs = [Case(setting=ASYNC, kind=kind) for kind in ("read", "filter", "sql")]
    readings = [reading(case, side, 1.0) for case in (*backlogs, SEND) for side in (OURS, JAVA)]
    latencies = render_page(readings, []).split("### Latency")[1].split("### Memory")[0]
    assert [line.split(" | ")[0] for line in latencies.splitlines() if "p50" in line] == [
        f"| {SEND.name}, ASYNC_FLUSH"
    ]


@pytest.mark.parametrize("kind", ["start", "failover"])
def test_what_happens_once_has_a_table_of_its_own(kind: str) -> None:
    once = Case(setting=ELECTED, kind=kind)
    page = render_page([reading(once, side, 1.0) for side in (OURS, JAVA)], [])
    assert [line for line in page.splitlines() if line.startswith("###")] == [
        "### Latency",
        "### Start and failover",
        "### Memory",
    ]
    assert f"| {once.name} | 0.00 | 0.00 | **0.25** (0.25 to 0.25) | 0.00 | 0.00 | **0.25**" in page


def test_report_is_a_page_a_plot_and_json(tmp_path: Path) -> None:
    readings = some_readings()
    write_report(readings, ["A machine."], tmp_path / "docs", version="5.3.3")
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert page.startswith("# Benchmarks\n")
    assert render_page(readings, ["A machine."]) in page
    assert (tmp_path / "docs" / "images" / "benchmarks.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "docs" / "benchmarks.json").read_text())
    assert told == json.loads(render_json(readings, ["A machine."]))
    assert len(told["readings"]) == len(readings)
    assert told["readings"][0]["case"]["setting"]["name"] == "ASYNC_FLUSH"


def test_page_of_the_repository_begins_as_a_measured_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    version = page.split("Java RocketMQ ", 1)[1].split(":", 1)[0]
    assert page.startswith(introduction(version, has_kernel="| with speedups |" in page))


def test_cases_are_chosen_by_a_part_of_their_name() -> None:
    names = [f"{case.setting.name}: {case.name}" for case in CASES]
    assert len(set(names)) == len(names)
    assert choose_cases([]) == list(CASES)
    assert {case.in_flight for case in choose_cases(["64 in flight"])} == {64}
    assert choose_cases(["backlog of 1 KiB, one tag"]) == [Case(setting=READ, kind="filter")]
    assert [case.kind for case in choose_cases(["each acknowledged", "SQL92", "delayed"])] == [
        "delay",
        "sql",
        "pop",
    ]
    assert [case.kind for case in choose_cases(["5,000 sends"])] == ["rate", "rate-read", "rate"]
    with pytest.raises(TandemError, match="no case has 'queues' in its name; there are: ASYNC_FLUSH: sends"):
        choose_cases(["queues"])


def test_both_brokers_are_told_the_same(tmp_path: Path) -> None:
    setting = BrokerSetting("both", flush="SYNC_FLUSH", has_slave=True)
    master, slave = (
        setting.of_broker(tmp_path, "127.0.0.1:9876", 10_911, is_slave=is_slave) for is_slave in (False, True)
    )
    assert (master["brokerRole"], slave["brokerRole"]) == ("SYNC_MASTER", "SLAVE")
    assert master["inSyncReplicas"] == slave["inSyncReplicas"] == 2
    assert {name for name in master if master[name] != slave[name]} == {
        "brokerId",
        "brokerRole",
        "storePathRootDir",
        "storePathCommitLog",
    }


def test_elected_brokers_have_the_same_role_and_take_nothing_alone(tmp_path: Path) -> None:
    first, second = (
        ELECTED.of_broker(tmp_path, "127.0.0.1:9876", port, is_slave=is_slave, controller="127.0.0.1:9878")
        for is_slave, port in ((False, 10_911), (True, 10_921))
    )
    assert first["controllerAddr"] == "127.0.0.1:9878"
    assert first["minInSyncReplicas"] == 2
    assert not first.keys() & {"brokerRole", "brokerId", "inSyncReplicas"}
    assert {name for name in first if first[name] != second[name]} == {
        "listenPort",
        "haListenPort",
        "storePathRootDir",
        "storePathCommitLog",
    }


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as subject:
        yield subject
        subject.kill()


def is_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "T"


def wait_until_still(pid: int, expected: bool) -> None:
    deadline = time.monotonic() + 30
    while is_still(pid) is not expected:
        assert time.monotonic() < deadline, "the signal did not come"
        time.sleep(0.001)


@pytest.mark.parametrize("slave", ["", "h:1"])
def test_unmeasured_cluster_is_paused_and_always_resumed(
    process: subprocess.Popen[bytes], slave: str
) -> None:
    cluster = MeasuredCluster(JAVA, "h:9876", "h:10911", {"master": process.pid}, slave=slave)
    with paused_cluster(cluster, STILL_S_MAX):
        wait_until_still(process.pid, True)
    wait_until_still(process.pid, False)
    measured = MeasuredCluster(OURS, "h:9877", "h:10921", {})
    with paused_clusters([cluster, measured], measured, STILL_S_MAX):
        wait_until_still(process.pid, True)
    with paused_clusters([cluster, measured], cluster, STILL_S_MAX):
        wait_until_still(process.pid, False)
    with suppress(TandemError), paused_cluster(cluster, STILL_S_MAX):
        wait_until_still(process.pid, True)
        raise TandemError("the load failed")
    wait_until_still(process.pid, False)


@pytest.mark.parametrize(
    ("slave", "controller", "seconds"), [("h:1", "h:2", 1.0), ("h:1", "", STILL_S_MAX + 1)]
)
def test_processes_that_would_be_declared_dead_are_not_paused(
    process: subprocess.Popen[bytes], slave: str, controller: str, seconds: float
) -> None:
    cluster = MeasuredCluster(
        JAVA, "h:9876", "h:10911", {"master": process.pid}, slave=slave, controller=controller
    )
    with paused_cluster(cluster, seconds):
        assert not is_still(process.pid)
