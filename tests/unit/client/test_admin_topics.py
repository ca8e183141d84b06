"""Messages that fewer read queues would hide."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from tandemmq.api import broker_admin, broker_consume
from tandemmq.client import admin_topics
from tandemmq.client.admin_topics import find_unread
from tandemmq.errors import BadRequest, RequestRejected
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.stats import ConsumeStats, QueueProgress, TopicOffset, TopicStats
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.client import RemotingClient

REMOTING = cast(RemotingClient, None)
HELD = TopicConfig(name="Orders", read_queue_count=3, write_queue_count=1)


@pytest.mark.parametrize("reported", [1, 3])
@pytest.mark.parametrize(
    ("committed", "found"),
    [
        (None, "queues 1, 2: 8 messages, and no group"),
        (4, "queues 1, 2: group billing has 2 messages left"),
        (5, ""),
    ],
)
async def test_queues_that_the_broker_does_not_report_are_asked(
    monkeypatch: pytest.MonkeyPatch, reported: int, committed: int | None, found: str
) -> None:
    """RocketMQ 4.9 reports the ends of written queues only, and the progress in all that are read."""

    async def query_topic_stats(*_: object) -> TopicStats:
        ends = TopicOffset(min_offset=1, max_offset=5)
        return TopicStats(queues={MessageQueue("Orders", "a", number): ends for number in range(reported)})

    async def query_min_offset(*given: object) -> int:
        assert given[-1] in (1, 2)
        return 1

    async def query_max_offset(*_: object) -> int:
        return 5

    async def query_groups_of_topic(*_: object) -> list[str]:
        return [] if committed is None else ["billing"]

    async def query_consume_stats(*_: object, topic: str) -> ConsumeStats:
        progress = QueueProgress(broker_offset=5, committed_offset=committed or 0)
        return ConsumeStats(queues={MessageQueue(topic, "a", number): progress for number in range(3)})

    for call in (query_topic_stats, query_groups_of_topic, query_consume_stats):
        monkeypatch.setattr(broker_admin, call.__name__, call)
    for offset in (query_min_offset, query_max_offset):
        monkeypatch.setattr(broker_consume, offset.__name__, offset)
    assert await find_unread(REMOTING, "a:1", HELD, 1) == found


async def test_attributes_are_refused_where_a_broker_ignores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ 4.9 creates such a topic without them, and says nothing."""
    held: dict[str, TopicConfig] = {}

    async def query_topic_config(*_: object) -> TopicConfig:
        raise RequestRejected("no such request", code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    async def query_topic_configs(*_: object) -> TopicConfigTable:
        return TopicConfigTable(topics=held)

    async def create_topic(_remoting: object, _address: str, wanted: TopicConfig, **_: object) -> None:
        held[wanted.name] = wanted

    for call in (query_topic_config, query_topic_configs, create_topic):
        monkeypatch.setattr(broker_admin, call.__name__, call)
    masters = {"a": "a:1"}
    priority = msgspec.structs.replace(HELD, attributes={"+message.type": "PRIORITY"})
    with pytest.raises(BadRequest, match=r"\+message.type: brokers of RocketMQ 4 ignore them"):
        await admin_topics.create(REMOTING, masters, priority, None, exist_ok=False)
    assert held == {}
    assert await admin_topics.create(REMOTING, masters, HELD, None, exist_ok=False)
    with pytest.raises(BadRequest, match="brokers of RocketMQ 4"):
        await admin_topics.change(REMOTING, masters, "Orders", {"attributes": {"+message.type": "FIFO"}})
    assert held == {"Orders": HELD}
    assert not await admin_topics.create(REMOTING, masters, priority, None, exist_ok=True)
