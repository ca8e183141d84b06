"""`tandemmq check`: the doctor's findings about what a cluster needs before it serves in production."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tandemmq.manage.settings import named_controllers
from tandemmq.shell.doctor_lines import Checkup, DoctorLine, ok, problem, warning
from tandemmq.units import MASTER_ID

CONTROLLERS_MIN: Final = 3
"""The controllers of which one may die while a majority still elects masters."""

_ELECTIONS: Final = "docs/operations/elections.md"
_SETTINGS: Final = (
    (
        "autoCreateTopicEnable",
        "true",
        "creates topics by use: a typing error in a name becomes a topic",
        "set autoCreateTopicEnable=false, and create topics with `tandemmq topics create`",
    ),
    (
        "metricsExporterType",
        "DISABLE",
        "serves no metrics, so nothing can alert you",
        "set metricsExporterType=PROM; `tandemmq generate alerts` prints rules",
    ),
)
"""Settings whose value, the default, is not for production; what such a broker does; and the remedy."""


def judge_production(servers: Sequence[str], checkups: Sequence[Checkup]) -> Iterator[DoctorLine]:
    """Judges name servers, copies, failover, access and observation."""
    if len(servers) == 1:
        text = f"{servers[0]} is the only name server: while it is down, clients cannot start"
        yield warning("production", text, "run two or three, and name all of them to brokers and clients")
    yield from _judge_copies(checkups)
    for one in checkups:
        if one.target.broker_id == MASTER_ID:
            yield from _judge_master(one)
        for key, value, text, fix in _SETTINGS:
            if one.settings.get(key, "") == value:
                yield warning("production", f"{one.target} {text}", fix)
        if _is_off(one.settings, "aclEnable") and _is_off(one.settings, "authenticationEnabled"):
            fix = "turn access control on: docs/operations/hardening.md"
            yield problem("production", f"{one.target} has no access control: any client may do all", fix)
    versions = sorted({one.facts.get("brokerVersionDesc", "") for one in checkups} - {""})
    if len(versions) > 1:
        fix = "finish the upgrade, one broker at a time"
        yield warning("production", f"brokers have different versions: {', '.join(versions)}", fix)


def _judge_copies(checkups: Sequence[Checkup]) -> Iterator[DoctorLine]:
    hosts: dict[str, list[str]] = {}
    for one in checkups:
        hosts.setdefault(one.target.broker_name, []).append(one.target.address.rpartition(":")[0])
    for name, held in sorted(hosts.items()):
        if len(held) == 1:
            fix = "add a slave: docs/operations/replication.md"
            yield problem("production", f"{name} has one copy: a lost disk loses its messages", fix)
        elif len(set(held)) < len(held):
            fix = "run each copy on its own machine, with its own disk and power supply"
            yield problem("production", f"several copies of {name} are on one machine: {held[0]}", fix)
        else:
            yield ok("production", f"{name} has {len(held)} copies on as many machines")


def _judge_master(one: Checkup) -> Iterator[DoctorLine]:
    if one.settings.get("enableControllerMode") == "true":
        controllers = named_controllers(one.settings)
        if len(controllers) < CONTROLLERS_MIN:
            text = f"{one.target} has {len(controllers)} controllers: without a majority no master is elected"
            yield warning("production", text, f"run {CONTROLLERS_MIN}: {_ELECTIONS}")
        return
    text = f"{one.target} has no failover: if it dies, its queues accept no messages until it is back"
    yield warning("production", text, f"let controllers elect the master: {_ELECTIONS}")
    if one.facts.get("brokerRole") == "ASYNC_MASTER":
        text = f"{one.target} answers sends before a slave has them: if its machine is lost, so are they"
        yield warning("production", text, "set brokerRole=SYNC_MASTER and inSyncReplicas=2")


def _is_off(settings: Mapping[str, str], key: str) -> bool:
    return settings.get(key, "false") != "true"
