"""Every request of a client gets an answer with a reason; no input makes the broker fail."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest
from broker_rig import TIMEOUT_S, Peer, running_broker

from tandemmq.protocol.codes import SERIALIZE_JSON, SERIALIZE_ROCKETMQ
from tandemmq.protocol.command import Command

WIRE_NAMES = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "j",
    "k",
    "l",
    "m",
    "n",
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "consumerGroup",
    "queueOffset",
    "maxMsgNums",
    "commitOffset",
    "suspendTimeoutMillis",
    "subscription",
    "subVersion",
    "expressionType",
    "maxMsgBytes",
    "setZeroIfNotFound",
    "timestamp",
    "boundaryType",
    "offset",
    "group",
    "delayLevel",
    "originMsgId",
    "clientID",
    "readQueueNums",
    "writeQueueNums",
    "perm",
    "topicFilterType",
    "topicSysFlag",
    "order",
    "attributes",
    "groupName",
    "cleanOffset",
    "key",
    "maxNum",
    "beginTimestamp",
    "endTimestamp",
    "_UNIQUE_KEY_QUERY",
    "topicList",
    "isForce",
    "topicSeq",
    "maxTopicNum",
    "groupSeq",
    "maxGroupNum",
    "dataVersion",
]

TEXTS = [
    "",
    " ",
    "0",
    "1",
    "-1",
    "4",
    "2147483647",
    "-2147483648",
    "9223372036854775807",
    "99999999999999999999",
    "true",
    "T1",
    "TBW102",
    "Nowhere",
    "CG",
    "%RETRY%CG",
    "%DLQ%CG",
    "SCHEDULE_TOPIC_XXXX",
    "../../x",
    "/",
    "a" * 300,
    "*",
    "||",
    "TAG",
    "SQL92",
    "SINGLE_TAG",
    "\u4e2d\u6587",
    "\x00",
    "\x01\x02",
    "TAGS\x01a\x02",
    "DELAY\x011\x02",
    "DELAY\x01x\x02",
    "WAIT\x01false",
    "UNIQ_KEY\x01",
    "+message.type=FIFO",
    "1.5",
    "NaN",
    "null",
    "{}",
]

BODIES = [
    b"",
    b"x",
    b"\x00" * 40,
    b"{}",
    b"[]",
    b"null",
    b'"text"',
    b"{" * 2_000,
    b'{"clientID":"c","consumerDataSet":[{}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"/"}]}]}',
    b'{"clientID":"c","producerDataSet":[{"groupName":""}]}',
    b'{"clientId":"c","consumerGroup":"g","mqSet":[{}]}',
    b'{"groupName":"g","retryQueueNums":-5}',
    b'{"groupName":"g","brokerId":99999999999999999999}',
    b"\xff\xfe\xfd",
    b"\x00\x00\x00\x16" + b"\x00" * 18,
    b"\x7f\xff\xff\xff" + b"\x00" * 18,
]


@pytest.mark.parametrize("seed", range(4))
async def test_garbage_is_answered_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    caplog.set_level(logging.ERROR)
    random = Random(seed)
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T1")
        assert broker._parts is not None
        codes = sorted(broker._servers[0]._dispatcher._routes)
        assert len(codes) > 35
        for _ in range(12):
            for code in codes:
                names = random.sample(WIRE_NAMES, random.choice((0, 10, len(WIRE_NAMES))))
                command = Command.request(
                    code,
                    fields={name: random.choice(TEXTS) for name in names},
                    body=random.choice(BODIES),
                    serialize_type=random.choice((SERIALIZE_JSON, SERIALIZE_ROCKETMQ)),
                )
                answer = await peer.client.request(peer.address, command, TIMEOUT_S)
                if answer.code != 0 and not 19 <= answer.code <= 21:
                    assert answer.remark, (code, answer.code)
        assert (await peer.send("T1")).code == 0
    ours = [record for record in caplog.records if record.name.startswith("tandemmq")]
    assert [record.getMessage() for record in ours] == []
