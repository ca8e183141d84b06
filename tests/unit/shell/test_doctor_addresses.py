"""The doctor's judgement of announced addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemmq.manage.addresses import Announced, Announcements
from tandemmq.manage.tools import Target
from tandemmq.shell.doctor_addresses import judge_announced

TARGET = Target("C", "broker-a", 0, "203.0.113.7:20911")
GOOD = Announced(TARGET, "public", True, ("broker-a", "0"))


def answer(*addresses: Announced, server: str = "n1:19876", network: str = "public") -> Announcements:
    return Announcements(server, network, addresses)


@pytest.mark.parametrize(
    ("one", "level", "text", "fix"),
    [
        (GOOD, "ok", "answers there", ""),
        (
            replace(GOOD, found=None, error="refused"),
            "problem",
            "cannot be reached",
            "advertisedAddresses=public=",
        ),
        (replace(GOOD, found=("broker-b", "0")), "problem", "broker-b:0 answers", "correct the mapping"),
        (replace(GOOD, found=("broker-a", "1")), "problem", "broker-a:1 answers", "correct the mapping"),
        (replace(GOOD, found=("", "")), "warning", "does not tell", "security"),
        (
            replace(GOOD, is_mapped=False),
            "warning",
            "registered address",
            "ADVERTISED_ADDRESSES -k broker-a.0.public",
        ),
        (replace(GOOD, network="internal", found=None), "problem", "cannot be reached", "networkListeners"),
    ],
)
def test_each_address_has_a_line_with_its_remedy(one: Announced, level: str, text: str, fix: str) -> None:
    [line] = judge_announced([answer(one)])
    assert line.level == level
    assert text in line.text
    assert fix in line.fix


def test_name_servers_with_different_views_are_a_problem() -> None:
    inside = replace(GOOD, network="internal", target=replace(TARGET, address="10.0.0.1:10911"))
    lines = list(judge_announced([answer(GOOD), answer(inside, server="n2:9876", network="internal")]))
    assert [line.level for line in lines] == ["ok", "ok", "problem"]
    assert "n1:19876 (public) and n2:9876 (internal)" in lines[2].text
    assert len(list(judge_announced([answer(GOOD), answer(GOOD, server="n2:19876")]))) == 1


def test_name_servers_that_do_not_answer_or_announce_nothing_are_problems() -> None:
    silent = Announcements("n3:9876", "", (), "refused")
    assert [line.level for line in judge_announced([silent, answer()])] == ["problem", "problem"]
