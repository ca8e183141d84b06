"""The doctor's findings for given answers; each problem has a fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemmq.manage.tools import Target
from tandemmq.protocol.bodies import codec
from tandemmq.protocol.bodies.replica import HaClient, HaConnection, HaStatus
from tandemmq.protocol.bodies.route import BrokerData, ClusterInfo
from tandemmq.shell.doctor import judge_broker, judge_groups, judge_name_servers
from tandemmq.shell.doctor_lines import Checkup

NOW_MS = 1_800_000_000_000
AGE = "[ 0 days, 0 hours, 1 minutes, 40 seconds ]"
NAMES = ["192.0.2.1:9876"]


def checkup(
    broker_id: int = 0,
    *,
    address: str = "192.0.2.2:10911",
    role: str = "SYNC_MASTER",
    booted_ms: int = NOW_MS - 100_000,
    ratio: str = "0.10",
    replication: HaStatus | None = None,
    **settings: str,
) -> Checkup:
    facts = {
        "brokerRole": role,
        "bootTimestamp": str(booted_ms),
        "runtime": AGE,
        "commitLogDiskRatio": ratio,
        "damagedRangeCount": "0",
    }
    slave = HaConnection(address="192.0.2.3:5")
    status = replication or HaStatus(is_master=True, connections=(slave,))
    return Checkup(Target("c", "b", broker_id, address), facts, {"inSyncReplicas": "2", **settings}, status)


def levels(one: Checkup) -> set[tuple[str, str]]:
    return {(found.level, found.area) for found in judge_broker(one, NOW_MS, NAMES) if found.level != "ok"}


def doubting(**facts: str) -> Checkup:
    one = checkup()
    return replace(one, facts={**one.facts, **facts})


HALTED = HaStatus(client=HaClient(halt_reason="DIVERGED", halt_detail="at 5"))
ALONE = HaStatus(is_master=True)
BEHIND = HaStatus(is_master=True, connections=(HaConnection(address="s", lag_bytes=1 << 30),))
WAITING = HaStatus(is_master=True, waiting="for b-1", connections=(HaConnection(address="s"),))


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (checkup(), set()),
        (checkup(role="SLAVE"), {("problem", "brokers")}),
        (checkup(address="127.0.0.1:10911"), {("problem", "addresses")}),
        (checkup(booted_ms=NOW_MS - 160_000), {("problem", "clocks")}),
        (checkup(ratio="0.80"), {("warning", "disk")}),
        (checkup(ratio="0.97"), {("problem", "disk")}),
        (checkup(replication=ALONE), {("problem", "replication")}),
        (checkup(replication=BEHIND), {("warning", "replication")}),
        (checkup(replication=WAITING), {("problem", "replication")}),
        (checkup(1, role="SLAVE", replication=HALTED), {("problem", "replication")}),
        (doubting(tandemHistoryDoubt="the controllers know master epoch 1"), {("problem", "replication")}),
        (doubting(tandemHistoryDiffered="1"), {("problem", "replication")}),
        (doubting(tandemHistoryDoubt="", tandemHistoryDiffered="0"), set()),
        (doubting(tandemSpeedups="refused: it has version 1"), {("warning", "speedups")}),
        (doubting(tandemSpeedups="not installed"), set()),
        (checkup(inSyncReplicas="1"), {("warning", "settings")}),
        (checkup(role="ASYNC_MASTER"), {("warning", "settings")}),
    ],
)
def test_faults_of_a_broker(one: Checkup, found: set[tuple[str, str]]) -> None:
    assert levels(one) == found
    assert all(finding.fix for finding in judge_broker(one, NOW_MS, NAMES) if finding.level != "ok")


def test_refused_clients_are_told_with_what_to_correct() -> None:
    def said(**facts: str) -> list[str]:
        one = checkup()
        one = replace(one, facts={**one.facts, **facts})
        return [
            f"{line.text} {line.fix}" for line in judge_broker(one, NOW_MS, NAMES) if line.area == "clients"
        ]

    nobody = {codec.REFUSALS_KEY: "0", codec.DENIALS_KEY: "0", codec.REFUSED_CONNECTIONS_KEY: "0"}
    assert said() == []  # Java brokers do not report it
    assert said(**nobody) == ["b (192.0.2.2:10911) has rejected no requests since it started "]
    everything = {
        codec.REFUSALS_KEY: "3",
        codec.NEWEST_REFUSAL_KEY: "PULL_MESSAGE of group billing from 192.0.2.9:5: not allowed",
        codec.DENIALS_KEY: "2",
        codec.NEWEST_DENIAL_KEY: "mallory from 192.0.2.9:6: the signature of mallory is wrong",
        codec.REFUSED_CONNECTIONS_KEY: "7",
        codec.SEND_REFUSALS_KEY: "NO_PERMISSION 4",
    }
    denied, connections, consumers, sends = said(**everything)
    assert "2 requests by access control, the last mallory from 192.0.2.9:6" in denied
    assert "createAcl" in denied
    assert "7 connections above its limit" in connections
    assert "channel.refused" in connections
    assert "3 requests of consumers, the last PULL_MESSAGE of group billing" in consumers
    assert "consumerConnection" in consumers
    assert "sends with NO_PERMISSION 4" in sends


@pytest.mark.parametrize(
    ("refusal", "advice"),
    [
        ("the disk accepts no writes: No space left on device", "mappedFileSizeCommitLog"),
        ("queue files cannot be written: No space left on device", "free space"),
        ("2 copies are asked for and 1 is in sync", "the broker's log"),
    ],
)
def test_a_store_that_takes_no_messages_is_a_problem(refusal: str, advice: str) -> None:
    one = checkup(ratio="0.05")
    one = replace(one, facts={**one.facts, codec.STORE_REFUSAL_KEY: refusal})
    (found,) = [line for line in judge_broker(one, NOW_MS, NAMES) if line.level == "problem"]
    assert refusal in found.text
    assert advice in found.fix
    healthy = replace(one, facts={**one.facts, codec.STORE_REFUSAL_KEY: ""})
    assert levels(healthy) == set()


def test_members_of_a_group_must_fit_each_other() -> None:
    info = ClusterInfo(
        clusters={"c": ("b", "orphan")},
        brokers={
            "b": BrokerData(cluster="c", broker_name="b", addresses={0: "m:1", 1: "s:1"}),
            "orphan": BrokerData(cluster="c", broker_name="orphan", addresses={1: "o:1"}),
        },
    )
    members = [checkup(maxMessageSize="1"), checkup(1, address="s:1", role="SLAVE", maxMessageSize="2")]
    found = [(one.level, one.text) for one in judge_groups(info, members)]
    assert ("problem", "orphan has no master") in found
    assert any("maxMessageSize differs" in text for _, text in found)


def test_name_servers_must_know_the_same_brokers() -> None:
    broker = BrokerData(cluster="c", broker_name="b", addresses={0: "m:1"})
    whole, empty = ClusterInfo(clusters={"c": ("b",)}, brokers={"b": broker}), ClusterInfo()
    found = list(judge_name_servers({"a:1": whole, "b:1": empty}))
    assert [one.level for one in found] == ["ok", "problem"]
    assert "b:1 does not know m:1" in found[1].text
    assert [one.area for one in judge_name_servers({"b:1": empty})] == ["brokers"]
