"""Findings about a cluster for production; each has a remedy."""

from __future__ import annotations

import pytest

from tandemmq.manage.tools import Target
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.shell.doctor_lines import Checkup
from tandemmq.shell.doctor_production import judge_production

NAMES = ["ns1:9876", "ns2:9876"]
GOOD = {
    "autoCreateTopicEnable": "false",
    "authenticationEnabled": "true",
    "metricsExporterType": "PROM",
    "enableControllerMode": "true",
    "controllerAddr": "c1:9878;c2:9878;c3:9878",
}


def checkup(broker_id: int, host: str = "", version: str = "V5_5_0", **settings: str) -> Checkup:
    target = Target("c", "b", broker_id, f"{host or f'host{broker_id}'}:10911")
    facts = {"brokerRole": "ASYNC_MASTER" if broker_id == 0 else "SLAVE", "brokerVersionDesc": version}
    return Checkup(target, facts, GOOD | settings, HaStatus())


def found(servers: list[str], *checkups: Checkup) -> set[str]:
    lines = [one for one in judge_production(servers, checkups) if one.level != "ok"]
    assert all(one.fix for one in lines)
    return {f"{one.level}: {one.text}" for one in lines}


def test_a_cluster_that_is_ready_has_no_finding() -> None:
    assert found(NAMES, checkup(0), checkup(1)) == set()


@pytest.mark.parametrize(
    ("servers", "checkups", "text"),
    [
        (NAMES[:1], [checkup(0), checkup(1)], "warning: ns1:9876 is the only name server"),
        (NAMES, [checkup(0)], "problem: b has one copy"),
        (NAMES, [checkup(0, "h"), checkup(1, "h")], "problem: several copies of b are on one machine: h"),
        (NAMES, [checkup(0), checkup(1, autoCreateTopicEnable="true")], "creates topics by use"),
        (NAMES, [checkup(0, metricsExporterType="DISABLE"), checkup(1)], "serves no metrics"),
        (NAMES, [checkup(0, authenticationEnabled="false"), checkup(1)], "has no access control"),
        (NAMES, [checkup(0, controllerAddr="c1:9878"), checkup(1)], "has 1 controllers"),
        (NAMES, [checkup(0, enableControllerMode="false"), checkup(1)], "has no failover"),
        (NAMES, [checkup(0, enableControllerMode="false"), checkup(1)], "before a slave has them"),
        (NAMES, [checkup(0), checkup(1, version="V5_4_0")], "different versions: V5_4_0, V5_5_0"),
    ],
)
def test_what_is_missing_is_found(servers: list[str], checkups: list[Checkup], text: str) -> None:
    assert any(text in one for one in found(servers, *checkups))


def test_old_access_control_counts() -> None:
    old = {"authenticationEnabled": "false", "aclEnable": "true"}
    assert found(NAMES, checkup(0, **old), checkup(1, **old)) == set()
