"""Every code has its required permissions, which are tested for requests with more than one resource."""

from __future__ import annotations

import json

import pytest

from tandemmq.broker.access.needs import (
    CLUSTER,
    CREATE,
    GET,
    GROUP,
    NEEDS,
    PUB,
    SUB,
    TOPIC,
    UPDATE,
    Need,
    needs_of,
    of_broker,
)
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.catalogue import CATALOGUE, ServingRole
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
def test_every_code_that_a_broker_may_be_asked_has_a_row(code: Code) -> None:
    entry = CATALOGUE.get(code)
    others = (ServingRole.NAME_SERVER, ServingRole.CONTROLLER)
    is_of_others = entry is not None and entry.served_by in others
    is_push = entry is not None and entry.served_by is ServingRole.CLIENT
    relayed = (Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY)
    if is_of_others or (is_push and code not in relayed):
        assert code not in NEEDS
    else:
        assert code in NEEDS


def needs(code: int, fields: dict[str, str] | None = None, body: object = None) -> set[Need]:
    data = b"" if body is None else json.dumps(body).encode()
    return set(needs_of(Command(code=code, extra_fields=fields or {}, body=data), "cluster-a"))


def test_a_retry_topic_belongs_to_its_group() -> None:
    assert needs(Code.SEND_MESSAGE_V2, {"b": "T"}) == {Need(TOPIC, "T", PUB)}
    assert needs(Code.SEND_MESSAGE_V2, {"b": "%RETRY%G"}) == {Need(GROUP, "G", SUB)}
    pull = {"consumerGroup": "G", "topic": "%RETRY%G"}
    assert needs(Code.PULL_MESSAGE, pull) == {Need(GROUP, "G", SUB)}
    other = {"consumerGroup": "G", "topic": "%RETRY%H"}
    assert Need(GROUP, "H", SUB) in needs(Code.PULL_MESSAGE, other)


@pytest.mark.parametrize(
    ("topic", "others"),
    [
        ("%RETRY%b", set()),
        ("%RETRY%b+T", set()),  # pops
        ("%RETRY%b_T", {Need(TOPIC, "T", SUB)}),  # pops, or a group b_T
        ("%RETRY%billing", {Need(GROUP, "billing", SUB)}),
        ("%RETRY%billing+T", {Need(GROUP, "billing", SUB)}),
        ("%RETRY%", {Need(GROUP, "", SUB)}),
    ],
)
def test_a_group_has_its_own_retry_topics_only(topic: str, others: set[Need]) -> None:
    """It does not have those of a group whose name begins with its own."""
    own = {Need(GROUP, "b", SUB)}
    assert needs(Code.PULL_MESSAGE, {"consumerGroup": "b", "topic": topic}) == own | others
    assert needs(Code.ACK_MESSAGE, {"consumerGroup": "b", "topic": topic}) == own | others
    assert needs(Code.BATCH_ACK_MESSAGE, body={"acks": [{"c": "b", "t": topic}]}) == own | others
    data = [{"groupName": "b", "subscriptionDataSet": [{"topic": topic}]}]
    assert needs(Code.HEART_BEAT, body={"clientID": "c", "consumerDataSet": data}) == own | others


def test_the_log_as_it_is_is_read_by_administrators_only() -> None:
    for code in (Code.TANDEM_READ_LOG, Code.TANDEM_READ_LOG_CHECKSUM):
        assert needs(code) == {Need(CLUSTER, "cluster-a", UPDATE)}


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    ],
)
def test_where_messages_of_every_topic_wait_is_for_administrators(topic: str) -> None:
    for actions in (PUB, SUB, SUB | GET):
        assert of_broker(Need(TOPIC, topic, actions), "C") == Need(CLUSTER, "C", UPDATE)
    shown = Need(TOPIC, topic, GET)
    assert of_broker(shown, "C") == shown
    for other in (Need(TOPIC, "T", PUB), Need(TOPIC, "RMQ_SYS_TRACE_TOPIC", PUB), Need(GROUP, topic, SUB)):
        assert of_broker(other, "C") == other


def test_needs_that_stand_in_bodies() -> None:
    heartbeat = {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]},
        ],
    }
    assert needs(Code.HEART_BEAT, body=heartbeat) == {Need(GROUP, "G", SUB), Need(TOPIC, "T", SUB)}
    assert needs(Code.HEART_BEAT, body={"clientID": "c"}) == {Need(CLUSTER, "cluster-a", 0)}
    lock = {"consumerGroup": "G", "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 1}]}
    assert needs(Code.LOCK_BATCH_MQ, body=lock) == {Need(GROUP, "G", SUB), Need(TOPIC, "T", SUB)}
    acks = {"consumerGroup": "Own", "acks": [{"c": "G", "t": "T"}, {"c": "H", "t": "%RETRY%H_T"}]}
    assert needs(Code.BATCH_ACK_MESSAGE, body=acks) == {
        Need(GROUP, "G", SUB),
        Need(GROUP, "H", SUB),
        Need(TOPIC, "T", SUB),
    }
    assert needs(Code.BATCH_ACK_MESSAGE, body={"consumerGroup": "Own"}) == {Need(GROUP, "", SUB)}
    topics = {"topicConfigList": [{"topicName": "A"}, {"topicName": "B"}]}
    assert needs(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=topics) == {
        Need(TOPIC, "A", CREATE),
        Need(TOPIC, "B", CREATE),
    }
    assert needs(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body={"groupName": "G"}) == {
        Need(GROUP, "G", CREATE)
    }
    for body in (b"", b"[]", b"{"):
        with pytest.raises(RemoteProtocolError):
            needs_of(Command(code=Code.HEART_BEAT, body=body), "cluster-a")


def test_missing_names_are_no_resource_and_unlisted_codes_need_the_cluster() -> None:
    assert needs(Code.SEND_MESSAGE_V2) == {Need(TOPIC, "", PUB)}
    assert needs(Code.GET_BROKER_CONFIG) == {Need(CLUSTER, "cluster-a", GET)}
    assert needs(29_999) == {Need(CLUSTER, "cluster-a", UPDATE)}
