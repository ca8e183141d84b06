"""Names of topics and groups."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.errors import BadRequest
from tandemmq.protocol.topic_names import (
    check_group,
    check_topic,
    dlq_topic,
    group_fault,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
    retry_topic,
    topic_fault,
)


@pytest.mark.parametrize("topic", ["a", "A-b_C|9%", "x" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250])
def test_allowed_topics_have_no_fault(topic: str) -> None:
    assert topic_fault(topic) == ""
    check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "blank"),
        (" ", "blank"),
        ("a b", "characters other"),
        ("a\n", "characters other"),
        ("ä", "characters other"),
        ("a/b", "characters other"),
        ("x" * 128, "at most 127"),
        ("%RETRY%" + "g" * 249, "at most 255"),
    ],
)
def test_refused_topics_name_the_reason(topic: str, reason: str) -> None:
    assert reason in topic_fault(topic)
    with pytest.raises(BadRequest, match=reason):
        check_topic(topic)


def test_groups_are_shorter_than_topics() -> None:
    assert group_fault("g" * 120) == ""
    assert "at most 120" in group_fault("g" * 121)
    with pytest.raises(BadRequest, match="blank"):
        check_group("")
    with pytest.raises(BadRequest, match="characters other"):
        check_group("a.b")


@pytest.mark.parametrize("name", [None, 5, ["Orders"]])
def test_a_name_of_another_type_is_refused(name: Any) -> None:
    for check in (check_topic, check_group):
        with pytest.raises(BadRequest, match=f"must be str, not {type(name).__name__}"):
            check(name)


def test_topics_of_a_group_are_recognised() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dlq_topic("g") == "%DLQ%g"
    assert is_retry_topic("%RETRY%g")
    assert is_dlq_topic("%DLQ%g")
    assert not is_retry_topic("RETRY")


@pytest.mark.parametrize(("topic", "expected"), [("TBW102", True), ("rmq_sys_x", True), ("orders", False)])
def test_system_topics_are_recognised(topic: str, expected: bool) -> None:
    assert is_system_topic(topic) is expected


@pytest.mark.parametrize(
    ("group", "expected"), [("TOOLS_CONSUMER", True), ("CID_RMQ_SYS_TRANS", True), ("g", False)]
)
def test_system_groups_are_recognised(group: str, expected: bool) -> None:
    assert is_system_group(group) is expected
