"""Alert rules: metrics, runbooks, and when they fire."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from expressions import check_expression, promtool, used_metrics
from typer.testing import CliRunner

from tandemmq.generate.command import app, read_rules

WIKI = "https://wiki.example"
ALERTS = [rule for group in yaml.safe_load(read_rules(WIKI))["groups"] for rule in group["rules"]]
RUNBOOKS = Path(__file__).parents[3] / "docs" / "operations" / "runbooks.md"
BROKER = 'cluster="c", broker="b", broker_id="0", version="1"'
GROUP = 'cluster="c", node_type="broker", node_id="b", topic="t", consumer_group="g", is_retry="false"'


def runbook_of(alert: dict[str, Any]) -> str:
    """Returns the anchor of the alert's section."""
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == WIKI
    return str(anchor)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_use_metrics_that_exist(alert: dict[str, Any]) -> None:
    expression = alert["expr"]
    used = used_metrics(expression)
    assert used or expression.startswith("up{")
    check_expression(expression)
    labels = {label for metric in used.values() for label in metric.labels}
    assert set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"])) <= labels | {
        "instance",
        "job",
    }


def test_alerts_have_sections_in_the_runbooks() -> None:
    heads = re.findall(r"^## (.*)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    assert set(map(runbook_of, ALERTS)) - anchors == set()


def test_documentation_has_the_table_as_it_is() -> None:
    lines = ["| alert | severity | after | what to do |", "|---|---|---|---|"]
    for alert in ALERTS:
        anchor, severity = runbook_of(alert), alert["labels"]["severity"]
        link = f"[{anchor.replace('-', ' ')}](runbooks.md#{anchor})"
        lines.append(f"| `{alert['alert']}` | {severity} | {alert['for']} | {link} |")
    assert "\n".join(lines) + "\n" in RUNBOOKS.with_name("boards.md").read_text(encoding="utf-8")


def test_alerts_have_one_of_two_severities_and_names_of_their_own() -> None:
    assert {alert["labels"]["severity"] for alert in ALERTS} == {"page", "ticket"}
    names = [alert["alert"] for alert in ALERTS]
    assert len(names) == len(set(names))


def test_command_prints_the_rules_with_the_given_runbooks() -> None:
    done = CliRunner().invoke(app, ["alerts", "--runbooks", WIKI])
    assert done.exit_code == 0
    assert done.stdout == read_rules(WIKI)


@pytest.mark.parametrize("page", ["", "#top", "@wiki", "https://wiki.example/x: y # z", "it's"])
def test_rules_name_any_page_of_runbooks(page: str) -> None:
    rules = yaml.safe_load(read_rules(page))["groups"][0]["rules"]
    assert rules[0]["annotations"]["runbook_url"] == f"{page}#a-consumer-group-falls-behind"


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    promtool(tmp_path, "check rules", {"rules.yml": read_rules(WIKI)})


def fires(name: str, at: str, series: dict[str, str], **labels: str) -> dict[str, Any]:
    """Returns a test in promtool's form: the alert fires at that time, once, with these labels."""
    return _case(name, at, series, [{"exp_labels": labels}])


def is_quiet(name: str, at: str, series: dict[str, str]) -> dict[str, Any]:
    return _case(name, at, series, [])


def _case(name: str, at: str, series: dict[str, str], alerts: list[dict[str, Any]]) -> dict[str, Any]:
    (alert,) = [one for one in ALERTS if one["alert"] == name]
    for one in alerts:
        one["exp_labels"]["severity"] = alert["labels"]["severity"]
    return {
        "name": f"{name} at {at}",
        "interval": "15s",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": alerts}],
    }


def info(instance: str, role: str) -> str:
    return f'tandemmq_broker_info{{job="tandemmq", instance="{instance}", role="{role}", {BROKER}}}'


def own(metric: str, instance: str, labels: str = "") -> str:
    return f'{metric}{{job="tandemmq", instance="{instance}"{labels}}}'


LATE = f'rocketmq_consumer_lag_latency_milliseconds{{{GROUP}, is_system="false"}}'
SYSTEM = f'rocketmq_consumer_lag_latency_milliseconds{{{GROUP}, is_system="true"}}'
MASTER, SLAVE = info("m:1", "SYNC_MASTER"), info("s:1", "SLAVE")
HERE = {"cluster": "c", "broker": "b"}
NAMES = own("tandemmq_nameserver_ready", "n:1")
LEADER, FOLLOWER = (own("role", f"{name}:1", f', group="g", peer_id="{name}"') for name in ("n0", "n1"))
CASES = (
    # A group that stops: its age rises by 15 s per scrape.
    fires("TandemMQConsumerLate", "12m", {LATE: "0+15000x100"}, cluster="c", consumer_group="g", topic="t"),
    is_quiet("TandemMQConsumerLate", "9m", {LATE: "0+15000x100"}),
    is_quiet("TandemMQConsumerLate", "20m", {SYSTEM: "0+15000x100", LATE: "1000x100"}),
    # The master dies, and the slave stays a slave.
    fires("TandemMQNoMaster", "5m", {MASTER: "1x8 stale", SLAVE: "1x40"}, **HERE),
    # All members die.
    fires("TandemMQNoMaster", "5m", {MASTER: "1x8 stale", SLAVE: "1x8 stale"}, **HERE),
    # A failover.
    is_quiet(
        "TandemMQNoMaster",
        "5m",
        {MASTER: "1x8 stale", SLAVE: "1x8 stale", info("s:1", "SYNC_MASTER"): "_x9 1x40"},
    ),
    fires(
        "TandemMQNoSlaveInSync",
        "6m",
        {MASTER: "1x40", SLAVE: "1x8 stale", own("tandemmq_slaves_in_sync", "m:1"): "1x8 0x40"},
        job="tandemmq",
        instance="m:1",
        **HERE,
    ),
    # A master without slaves, on purpose.
    is_quiet("TandemMQNoSlaveInSync", "6m", {MASTER: "1x40", own("tandemmq_slaves_in_sync", "m:1"): "0x40"}),
    # Slaves never accept sends.
    is_quiet(
        "TandemMQMasterRefusesSends",
        "6m",
        {
            MASTER: "1x40",
            SLAVE: "1x40",
            own("tandemmq_store_writeable", "m:1"): "1x40",
            own("tandemmq_store_writeable", "s:1"): "0x40",
        },
    ),
    fires(
        "TandemMQMasterRefusesSends",
        "6m",
        {MASTER: "1x40", own("tandemmq_store_writeable", "m:1"): "0x40"},
        job="tandemmq",
        instance="m:1",
        **HERE,
    ),
    fires(
        "TandemMQSendsRefused",
        "8m",
        {MASTER: "1x40", own("tandemmq_sends_total", "m:1", ', code="SYSTEM_BUSY"'): "0+1x40"},
        code="SYSTEM_BUSY",
        **HERE,
    ),
    fires(
        "TandemMQFewFilesLeft",
        "9m",
        {
            own("tandemmq_process_open_fds", "m:1"): "95x40",
            own("tandemmq_process_max_fds", "m:1"): "100x40",
        },
        job="tandemmq",
        instance="m:1",
    ),
    is_quiet(
        "TandemMQFewFilesLeft",
        "9m",
        {
            own("tandemmq_process_open_fds", "m:1"): "80x40",
            own("tandemmq_process_max_fds", "m:1"): "100x40",
        },
    ),
    fires(
        "TandemMQScrapeFailed",
        "5m",
        {own("up", "m:1"): "1x8 0x40"},
        job="tandemmq",
        instance="m:1",
    ),
    # A name server that dies, and one that has no routes.
    fires(
        "TandemMQNameServerUnready",
        "6m",
        {own("up", "n:1"): "1x8 0x40", own("up", "m:1"): "1x8 0x40", NAMES: "1x8 stale"},
        job="tandemmq",
        instance="n:1",
    ),
    fires(
        "TandemMQNameServerUnready",
        "6m",
        {own("up", "n:1"): "1x40", NAMES: "1x8 0x40"},
        job="tandemmq",
        instance="n:1",
    ),
    # A restart.
    is_quiet("TandemMQNameServerUnready", "6m", {own("up", "n:1"): "1x40", NAMES: "1x19 0 0 1x40"}),
    # The leader dies, and a follower cannot replace it without a majority.
    fires(
        "TandemMQControllersLeaderless",
        "5m",
        {LEADER: "3x8 stale", FOLLOWER: "2x8 1x40"},
        job="tandemmq",
        group="g",
    ),
    is_quiet("TandemMQControllersLeaderless", "5m", {LEADER: "3x8 stale", FOLLOWER: "2x9 3x40"}),
)


def test_rules_fire_when_they_should(tmp_path: Path) -> None:
    rules = yaml.safe_load(read_rules(WIKI))
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": CASES}
    promtool(tmp_path, "test rules", {"tests.yml": yaml.safe_dump(tests), "rules.yml": yaml.safe_dump(rules)})
