"""The kind of a message by its properties, and the topics that accept it."""

from __future__ import annotations

import pytest

from tandemmq.proxy.kinds import MessageKind, check_kind, kind_of
from tandemmq.proxy.statuses import Code, RpcRefused


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "NORMAL"),
        ({"TAGS": "t"}, "NORMAL"),
        ({"TRAN_MSG": "true", "DELAY": "1", "__SHARDINGKEY": "g"}, "TRANSACTION"),
        ({"TRAN_MSG": "false"}, "NORMAL"),
        ({"DELAY": "1", "__SHARDINGKEY": "g"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "0"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "5"}, "DELAY"),
        ({"TIMER_DELAY_MS": "5"}, "DELAY"),
        ({"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "1"}, "FIFO"),
        ({"_SYS_MSG_PRIORITY_": "0", "__LITE_TOPIC": "x"}, "PRIORITY"),
        ({"_SYS_MSG_PRIORITY_": "-1"}, "NORMAL"),
        ({"_SYS_MSG_PRIORITY_": "high"}, "NORMAL"),
        ({"__LITE_TOPIC": "x"}, "LITE"),
    ],
)
def test_first_property_of_the_order_decides(properties: dict[str, str], kind: str):
    assert kind_of(properties) is MessageKind(kind)


MIXED_ACCEPTS = {"NORMAL", "FIFO", "DELAY", "TRANSACTION"}


@pytest.mark.parametrize("kind", list(MessageKind))
@pytest.mark.parametrize("accepted", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"])
def test_topic_accepts_its_own_kind(accepted: str, kind: MessageKind):
    if accepted == kind.value or (accepted == "MIXED" and kind.value in MIXED_ACCEPTS):
        check_kind("T", accepted, kind)
        return
    with pytest.raises(RpcRefused, match=kind.value) as refused:
        check_kind("T", accepted, kind)
    assert refused.value.code is Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_retry_and_dead_letter_topics_accept_every_kind(topic: str):
    check_kind(topic, "NORMAL", MessageKind.FIFO)
