"""Maps keyed by message queue: FastJSON's spelling, which Go relies on (spec remoting 6)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.progress import (
    ConsumerStatus,
    decode_consumer_status,
    decode_reset_offsets,
    encode_consumer_status,
    encode_reset_offsets,
)
from tandemmq.protocol.bodies.stats import (
    ConsumeStats,
    QueueOffsets,
    QueueProgress,
    TopicOffset,
    TopicStats,
    decode_consume_stats,
    decode_queue_offsets,
    decode_topic_stats,
    encode_consume_stats,
    encode_consume_stats_list,
    encode_topic_stats,
)

FIRST = MessageQueue(topic="T", broker_name="b", queue_id=0)
SECOND = MessageQueue(topic="T", broker_name="b", queue_id=1)
KEY = '{"brokerName":"b","queueId":0,"topic":"T"}'


def test_reset_offsets_have_exactly_the_form_go_expects() -> None:
    assert encode_reset_offsets({FIRST: 5}).decode() == '{"offsetTable":{' + KEY + ":5}}"
    assert encode_reset_offsets({}) == b'{"offsetTable":{}}'


def test_reset_offsets_for_cpp_are_rows() -> None:
    rows = json.loads(encode_reset_offsets({FIRST: 5, SECOND: 6}, as_list=True))
    assert rows["offsetTable"][0] == {"brokerName": "b", "offset": 5, "queueId": 0, "topic": "T"}


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{' + KEY + ":5}}",
        '{"offsetTable":{' + json.dumps(KEY) + ":5}}",
        '{"offsetTable":[[' + KEY + ",5]]}",
        '{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"}]}',
        '{"offsetTable":{{topic:"T",brokerName:"b",queueId:0}:5}}',
    ],
)
def test_reset_offsets_are_read_in_every_form(text: str) -> None:
    assert decode_reset_offsets(text.encode()) == {FIRST: 5}


def test_consumer_status_round_trip() -> None:
    status = ConsumerStatus(clients={"c1": {FIRST: 1}, "c2": {}}, queues={SECOND: 2})
    assert decode_consumer_status(encode_consumer_status(status)) == status
    assert encode_consumer_status(ConsumerStatus()) == b'{"consumerTable":{},"messageQueueTable":{}}'


def test_stats_of_the_spec_come_out_byte_for_byte() -> None:
    consume = (
        '{"consumeTps":1.5,"offsetTable":{'
        + KEY
        + ':{"brokerOffset":10,"consumerOffset":8,"lastTimestamp":1700000000002,"pullOffset":9}}}'
    )
    stats = ConsumeStats(
        consume_tps=1.5,
        queues={
            FIRST: QueueProgress(
                broker_offset=10, committed_offset=8, last_timestamp_ms=1700000000002, pull_offset=9
            )
        },
    )
    assert encode_consume_stats(stats).decode() == consume
    assert decode_consume_stats(consume.encode()) == stats
    topic = (
        '{"offsetTable":{'
        + KEY
        + ':{"lastUpdateTimestamp":1700000000003,"maxOffset":10,"minOffset":0}},"topicPutTps":0.1}'
    )
    topic_stats = TopicStats(
        queues={FIRST: TopicOffset(updated_at_ms=1700000000003, max_offset=10)}, put_tps=0.1
    )
    assert encode_topic_stats(topic_stats).decode() == topic
    assert decode_topic_stats(topic.encode()) == topic_stats


@given(
    st.dictionaries(
        st.builds(
            MessageQueue,
            topic=st.just("T"),
            broker_name=st.sampled_from(["b", "b{", 'b"queueId"', "\u00e9"]),
            queue_id=st.integers(0, 9_999),
        ),
        st.builds(
            TopicOffset,
            updated_at_ms=st.integers(-1, 2**63 - 1),
            max_offset=st.integers(0, 2**63 - 1),
            min_offset=st.integers(-1, 2**63 - 1),
        ),
        max_size=20,
    ),
    st.integers(1, 200),
)
def test_offsets_of_queues_equal_the_whole_table(queues: dict[MessageQueue, TopicOffset], cut: int) -> None:
    text = encode_topic_stats(TopicStats(queues=queues))
    assert decode_queue_offsets(text) == {
        queue.queue_id: QueueOffsets(limits.min_offset, limits.max_offset, limits.updated_at_ms)
        for queue, limits in queues.items()
    }
    errors = []
    for decode in (decode_queue_offsets, decode_topic_stats):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(text[:-cut])
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_offsets_of_queues_are_read_in_every_spelling() -> None:
    queues = {
        queue: TopicOffset(updated_at_ms=queue.queue_id, min_offset=2, max_offset=3)
        for queue in (FIRST, SECOND)
    }
    text = encode_topic_stats(TopicStats(queues=queues))
    offsets = {queue.queue_id: QueueOffsets(2, 3, queue.queue_id) for queue in queues}
    assert decode_queue_offsets(text) == offsets
    assert decode_queue_offsets(text.replace(b":", b": ")) == offsets
    assert decode_queue_offsets(encode_topic_stats(TopicStats())) == {}
    with pytest.raises(RemoteProtocolError):
        decode_queue_offsets(text[:-30])


def test_stats_list_of_an_idle_broker() -> None:
    text = encode_consume_stats_list("h:1", {"g": ConsumeStats()}, total_lag=3).decode()
    assert text == (
        '{"brokerAddr":"h:1","consumeStatsList":[{"g":[{"consumeTps":0.0,"offsetTable":{}}]}],'
        '"totalDiff":3,"totalInflightDiff":0}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"offsetTable":5}',
        b'{"offsetTable":{"x":5}}',
        b'{"offsetTable":{{}:"x"}}',
        b'{"offsetTable":[5]}',
    ],
)
def test_unreadable_map_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_reset_offsets(data)
