"""The fuzzer's corpus: real requests, one or more for every code that a role serves.

They are made from the catalogue, so a new request is fuzzed from the day it is served. The values are chosen
so that most requests succeed on a server that has the topic and the group.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache

import msgspec

from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.bodies.client import (
    ConsumerData,
    Heartbeat,
    ProducerData,
    SubscriptionData,
)
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.register import RegisterBrokerBody, body_crc32, encode_register_broker_body
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable
from tandemmq.protocol.catalogue import CATALOGUE, RequestRow, ServingRole
from tandemmq.protocol.codes import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.header_codec import Header, codec_of
from tandemmq.protocol.properties import encode_properties

TOPIC, GROUP, CLIENT_ID = "Fuzz", "FuzzGroup", "127.0.0.1@fuzz"
BROKER, CLUSTER = "fuzz-a", "DefaultCluster"

_TEXTS = {
    "topic": TOPIC,
    "b": TOPIC,
    "defaultTopic": "TBW102",
    "c": "TBW102",
    "topicFilterType": "SINGLE_TAG",
    "consumerGroup": GROUP,
    "producerGroup": GROUP,
    "group": GROUP,
    "groupName": GROUP,
    "a": GROUP,
    "clientID": CLIENT_ID,
    "clientId": CLIENT_ID,
    "brokerName": BROKER,
    "bname": BROKER,
    "brokerAddr": "127.0.0.1:1",
    "haServerAddr": "127.0.0.1:2",
    "clusterName": CLUSTER,
    "subscription": "*",
    "expressionType": "TAG",
    "exp": "*",
    "expType": "TAG",
    "properties": encode_properties({"KEYS": "k1 k2", "TAGS": "a", "WAIT": "true"}).decode(),
    "key": "k1",
    "attributes": "",
    "namespace": "ORDER_TOPIC_CONFIG",
    "boundaryType": "lower",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": TOPIC,
    "srcGroup": GROUP,
    "destGroup": "FuzzCopy",
    "compareGroup": GROUP,
    "filterGroups": "Other,Others",
    "clientAddr": CLIENT_ID,
    "masterHaAddress": "127.0.0.1:2",
    "masterAddress": "127.0.0.1:1",
    "extraInfo": f"0 {1_700_000_000_000} 60000 0 0 {BROKER} 0 0",
}
_TEXTS["i"] = _TEXTS["properties"]
_NUMBERS = {
    "queueId": 0,
    "e": 0,
    "defaultTopicQueueNums": 4,
    "d": 4,
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "maxMsgNums": 32,
    "maxNum": 32,
    "sysFlag": 0,
    "f": 0,
    "suspendTimeoutMillis": 200,
    "pollTime": 200,
    "bornTimestamp": 1_700_000_000_000,
    "g": 1_700_000_000_000,
    "timestamp": 1_700_000_000_000,
    "endTimestamp": 4_000_000_000_000,
    "invisibleTime": 10_000,
    "delayLevel": 3,
    "index": 0,
    "count": 16,
}


@cache
def requests_of(role: ServingRole) -> list[Command]:
    """Returns valid requests for every code that a server of the role answers, in both header forms."""
    return [
        _request(entry, body, form)
        for entry in CATALOGUE.values()
        if entry.served_by is role
        for body in _bodies(entry)
        for form in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ)
    ]


@cache
def prologue_of(role: ServingRole) -> list[Command]:
    """Returns the requests that create the topic, a group with members, and a registered broker for the
    others.
    """
    wanted = (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.HEART_BEAT,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.REGISTER_BROKER,
    )
    found = {command.code: command for command in requests_of(role)}
    return [found[code] for code in wanted if code in found]


def _request(entry: RequestRow, body: bytes, form: int) -> Command:
    fields = {} if entry.request is None else fields_of(entry.request)
    fields |= _extra_fields(entry.code, body)
    return Command(
        code=int(entry.code),
        flag=2 if entry.is_oneway else 0,
        serialize_type=form,
        body=body,
        extra_fields=fields,
    )


def fields_of(kind: type[Header]) -> dict[str, str]:
    """Returns a text for every field of a header, by its wire name."""
    codec_of(kind)  # raises if it is not a header
    fields = {}
    for info in msgspec.structs.fields(kind):
        name = info.encode_name
        if "bool" in str(info.type):
            fields[name] = "false"
        elif "int" in str(info.type):
            fields[name] = str(_NUMBERS.get(name, 0))
        else:
            fields[name] = _TEXTS.get(name, "x")
    return fields


def _extra_fields(code: int, body: bytes) -> dict[str, str]:
    if code == RequestCode.REGISTER_BROKER:
        return {"bodyCrc32": str(body_crc32(body))}
    if code == RequestCode.SEND_BATCH_MESSAGE:
        return {"m": "true"}
    return {}


def _bodies(entry: RequestRow) -> list[bytes]:
    """Returns the bodies for this request."""
    make = _BODIES.get(entry.code)
    return [make()] if make is not None else [b""]


def _message() -> bytes:
    return b"a fuzzed message, short enough to be stored often"


def _batch() -> bytes:
    properties = encode_properties({"TAGS": "b"})
    return encode_batch([(0, body, properties) for body in (b"one", b"two", b"three")])


def _heartbeat() -> bytes:
    subscription = SubscriptionData(topic=TOPIC, expression="a || b", tags=frozenset("ab"), version=1)
    consumer = ConsumerData(group=GROUP, subscriptions=(subscription,))
    producer = ProducerData(group=GROUP)
    return encode_body(Heartbeat(client_id=CLIENT_ID, consumers=(consumer,), producers=(producer,)))


def _registration() -> bytes:
    topics = {name: TopicConfig(name=name) for name in (TOPIC, "Other")}
    return encode_register_broker_body(RegisterBrokerBody(topics=TopicConfigTable(topics=topics)))


def _queues() -> bytes:
    queues = [{"topic": TOPIC, "brokerName": BROKER, "queueId": queue_id} for queue_id in range(4)]
    return _json({"consumerGroup": GROUP, "clientId": CLIENT_ID, "mqSet": queues})


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


_BODIES: dict[int, Callable[[], bytes]] = {
    RequestCode.SEND_MESSAGE: _message,
    RequestCode.SEND_MESSAGE_V2: _message,
    RequestCode.SEND_REPLY_MESSAGE: _message,
    RequestCode.SEND_REPLY_MESSAGE_V2: _message,
    RequestCode.SEND_BATCH_MESSAGE: _batch,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.REGISTER_BROKER: _registration,
    RequestCode.LOCK_BATCH_MQ: _queues,
    RequestCode.UNLOCK_BATCH_MQ: _queues,
    RequestCode.CHECK_CLIENT_CONFIG: lambda: _json(
        {
            "clientId": CLIENT_ID,
            "group": GROUP,
            "subscriptionData": {"topic": TOPIC, "expressionType": "SQL92", "subString": "a > 1 AND b = 'x'"},
        }
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda: _json({"groupName": GROUP, "retryMaxTimes": 3}),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda: _json(
        {"groupConfigList": [{"groupName": GROUP, "retryMaxTimes": 2}, {"groupName": "FuzzCopy"}]}
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda: _json(
        {
            "topicConfigList": [
                {"topicName": TOPIC, "attributes": {"+message.type": "NORMAL"}},
                {"topicName": "FuzzList", "readQueueNums": 2, "writeQueueNums": 2},
            ]
        }
    ),
    RequestCode.UPDATE_BROKER_CONFIG: lambda: b"# changes\nlongPollingEnable=true\nmaxMsgsNumBatch=63\n",
    RequestCode.UPDATE_NAMESRV_CONFIG: lambda: b"orderMessageEnable=true\nwaitSecondsForService=44\n",
    RequestCode.QUERY_ASSIGNMENT: lambda: _json(
        {"topic": TOPIC, "consumerGroup": GROUP, "clientId": CLIENT_ID, "strategyName": "AVG"}
    ),
    RequestCode.SET_MESSAGE_REQUEST_MODE: lambda: _json(
        {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0}
    ),
    RequestCode.BATCH_ACK_MESSAGE: lambda: _json(
        {
            "brokerName": BROKER,
            "acks": [{"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "pt": 1, "it": 1}],
        }
    ),
}

HA_REPORT = struct.Struct(">q")


def reports() -> list[bytes]:
    """Returns the reports that a slave sends to the HA port: its offset, twice if it is a TandemMQ slave."""
    return [HA_REPORT.pack(0), HA_REPORT.pack(0) * 2, HA_REPORT.pack(1 << 20)]
