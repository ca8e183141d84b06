"""Shapes of bodies, as in the spec and as sent by clients (spec remoting 6 and 11)."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.bodies import DataVersion, MessageQueue
from tandemmq.protocol.bodies.client import (
    AssignmentQuery,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    LockRequest,
    MessageModel,
    ProducerData,
    RequestMode,
    SubscriptionData,
    decode_consumer_list,
    decode_lock_answer,
    encode_consumer_list,
    encode_lock_answer,
)
from tandemmq.protocol.bodies.codec import decode_body, decode_kv_table, encode_body, encode_kv_table
from tandemmq.protocol.bodies.progress import (
    ConsumerOffsetTable,
    DelayOffsets,
)
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.protocol.bodies.route import (
    BrokerData,
    BrokerMembers,
    ClusterInfo,
    QueueData,
    TopicRoute,
    encode_cluster_info,
    encode_member_group,
    encode_strict,
    encode_topic_route,
)
from tandemmq.protocol.bodies.stats import ConsumeQueueEntry, ConsumeQueueView
from tandemmq.protocol.bodies.tables import (
    GroupRetryPolicy,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    decode_topic_list,
    encode_topic_list,
)
from tandemmq.protocol.loose_json import REQUEST_TEXT


def shaped(shape: type[Any]) -> Callable[[Any], Any]:
    """Returns the decoder of a body without a spelling of its own."""
    return lambda data: decode_body(data, shape)


VERSION = '{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
TOPIC = (
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T1",'
    '"topicSysFlag":0,"writeQueueNums":16}'
)
ROUTE = (
    '{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"},"brokerName":"broker-a",'
    '"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
    '"queueDatas":[{"brokerName":"broker-a","perm":6,'
    '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
CLUSTER = (
    '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a",'
    '"cluster":"DefaultCluster","enableActingMaster":false}},'
    '"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
)
SUBSCRIPTION = (
    '{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA || TagB",'
    '"subVersion":1700000000001,"tagsSet":["TagA"],"topic":"T1"}'
)
HEARTBEAT = (
    '{"clientID":"10.0.0.1@123#456","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    '"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":['
    + SUBSCRIPTION
    + '],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],'
    '"withoutSub":false}'
)
GROUP = (
    '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
    '"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
    '"groupName":"CG","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
    '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
    '"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)

EXAMPLES: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], bytes]]] = {
    "data version": (VERSION, shaped(DataVersion), encode_body),
    "topic config": (TOPIC, shaped(TopicConfig), encode_body),
    "topic table": (
        f'{{"dataVersion":{VERSION},"topicConfigTable":{{"T1":{TOPIC}}}}}',
        shaped(TopicConfigTable),
        encode_body,
    ),
    "route": (ROUTE, shaped(TopicRoute), encode_topic_route),
    "cluster": (CLUSTER, shaped(ClusterInfo), encode_cluster_info),
    "heartbeat": (HEARTBEAT, shaped(Heartbeat), encode_body),
    "group": (GROUP, shaped(SubscriptionGroupConfig), encode_body),
    "group table": (
        f'{{"dataVersion":{VERSION},"forbiddenTable":{{"CG":{{"T1":4}}}},'
        f'"subscriptionGroupTable":{{"CG":{GROUP}}}}}',
        shaped(SubscriptionGroupTable),
        encode_body,
    ),
    "consumer offsets": (
        f'{{"dataVersion":{VERSION},"offsetTable":{{"T1@CG":{{"0":10,"1":20}}}}}}',
        shaped(ConsumerOffsetTable),
        encode_body,
    ),
    "consumer list": ('{"consumerIdList":["id1","id2"]}', decode_consumer_list, encode_consumer_list),
    "lock request": (
        '{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"T","brokerName":"b","queueId":0}],'
        '"onlyThisBroker":false}',
        shaped(LockRequest),
        encode_body,
    ),
    "topic list": ('{"topicList":["T1"]}', decode_topic_list, encode_topic_list),
    "kv table": ('{"table":{"k":"v"}}', decode_kv_table, encode_kv_table),
}


@pytest.mark.parametrize(("text", "decode", "encode"), EXAMPLES.values(), ids=EXAMPLES.keys())
def test_example_of_the_spec_comes_out_byte_for_byte(
    text: str, decode: Callable[[Any], Any], encode: Callable[[Any], bytes]
) -> None:
    assert encode(decode(text.encode())).decode() == text


@pytest.mark.parametrize(("text", "decode", "encode"), EXAMPLES.values(), ids=EXAMPLES.keys())
def test_defaults_and_nulls(text: str, decode: Callable[[Any], Any], encode: Callable[[Any], bytes]) -> None:
    """An empty object takes all defaults, and so does one whose every key is null."""
    nulls = json.dumps(dict.fromkeys(json.loads(text)))
    assert decode(b"{}") == decode(nulls.encode())


def test_java_writes_integer_keys_without_quotes() -> None:
    loose = ROUTE.replace('"0":', "0:").replace('"1":', "1:")
    assert decode_body(loose.encode(), TopicRoute) == decode_body(ROUTE.encode(), TopicRoute)
    offsets = decode_body(
        b'{"groupTopicMap":{"g":["T"]},"offsetTable":{"T@g":{0:250,1:251\n\t}}}', ConsumerOffsetTable
    )
    assert offsets.offsets == {"T@g": {0: 250, 1: 251}}
    assert decode_body(b'{"offsetTable":{1:0,3:17}}', DelayOffsets).offsets == {1: 0, 3: 17}


def test_old_clients_evaluate_route_and_cluster_as_python_and_look_ids_up_as_numbers() -> None:
    broker = BrokerData(broker_name="b{}", cluster="[]", addresses={0: "h:1", 1: "h:2"})
    route = TopicRoute(brokers=(broker, BrokerData(broker_name="c", cluster="C")), queues=(QueueData(),))
    info = ClusterInfo(brokers={"b{}": broker}, clusters={"[]": ("b{}",)})
    texts = [
        encode_topic_route(route, is_strict=False),
        encode_topic_route(TopicRoute(), is_strict=False),
        encode_cluster_info(info, is_strict=False),
        encode_cluster_info(ClusterInfo(), is_strict=False),
    ]
    for text in texts:
        assert not any(word in text for word in (b"true", b"false", b"null", b" ", b"\n"))
    routed, nothing, clusters, _ = [ast.literal_eval(text.decode()) for text in texts]
    assert routed["brokerDatas"] == [
        {"brokerAddrs": {0: "h:1", 1: "h:2"}, "brokerName": "b{}", "cluster": "[]"},
        {"brokerAddrs": {}, "brokerName": "c", "cluster": "C"},
    ]
    assert nothing == {"brokerDatas": [], "filterServerTable": {}, "queueDatas": []}
    assert clusters["brokerAddrTable"]["b{}"]["brokerAddrs"] == {0: "h:1", 1: "h:2"}
    assert decode_body(texts[0], TopicRoute) == route
    assert decode_body(texts[2], ClusterInfo) == info


def test_strict_routes_are_ascii_and_always_say_whether_a_slave_may_act() -> None:
    broker = BrokerData(broker_name="b-\u00e9", cluster="C", addresses={0: "h:1"})
    text = encode_topic_route(TopicRoute(brokers=(broker,)))
    assert text.isascii()
    assert json.loads(text)["brokerDatas"] == [
        {"brokerAddrs": {"0": "h:1"}, "brokerName": "b-\u00e9", "cluster": "C", "enableActingMaster": False}
    ]


ANY_TEXT = st.text(st.characters(exclude_categories=()))  # including halves of surrogate pairs
ANY_FIELDS = st.recursive(
    ANY_TEXT | st.booleans() | st.integers(0, 2**31),
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=10,
)


@given(st.dictionaries(ANY_TEXT, ANY_FIELDS))
@example({"".join(map(chr, range(127))): 2**64, "b": [-(2**63) - 1], "a": {"2": "", "10": ""}})
@example({"delete": "\x7f"})
@example({"half a pair": "\ud800"})
def test_strict_text_has_the_bytes_of_the_plain_encoder(fields: dict[str, Any]) -> None:
    plain = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode("ascii")
    assert encode_strict(fields, []) == plain


def test_empty_parts_of_a_route_are_written() -> None:
    assert encode_topic_route(TopicRoute()) == b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'
    assert b'"brokerAddrs":{}' in encode_member_group(BrokerMembers(broker_name="b"))
    assert b'"brokerAddrs":{}' in encode_topic_route(TopicRoute(brokers=(BrokerData(broker_name="b"),)))


def test_acting_master_and_zone_are_written_when_set() -> None:
    data = encode_topic_route(TopicRoute(brokers=(BrokerData(is_acting_master_enabled=True, zone_name="z"),)))
    assert b'"enableActingMaster":true,"zoneName":"z"' in data
    assert decode_body(data, TopicRoute).brokers[0].zone_name == "z"


def test_null_inside_a_list_of_a_list_is_left_out() -> None:
    view = ConsumeQueueView(entries=(ConsumeQueueEntry(log_offset=5),), subscription=SubscriptionData())
    assert b"null" not in encode_body(view)
    route = TopicRoute(order_topic_conf=None, brokers=(BrokerData(zone_name="z"),))
    assert b"null" not in encode_topic_route(route)


def test_order_conf_is_left_out_when_absent() -> None:
    assert b"orderTopicConf" not in encode_topic_route(TopicRoute())
    assert b'"orderTopicConf":"b:4"' in encode_topic_route(TopicRoute(order_topic_conf="b:4"))


def test_heartbeat_of_go() -> None:
    heartbeat = decode_body(
        b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",'
        b'"messageModel":"Clustering","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","unitMode":false,'
        b'"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA","TagA"],'
        b'"codeSet":["2598919","2598919"],"subVersion":17,"expressionType":"TAG"}]}]}',
        Heartbeat,
    )
    (consumer,) = heartbeat.consumers
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    assert consumer.subscriptions[0].tag_hashes == {2598919}
    assert consumer.subscriptions[0].tags == {"TagA"}


def test_enum_by_ordinal_text_and_unknown_enum() -> None:
    assert ConsumeType("1") is ConsumeType.PASSIVELY
    with pytest.raises(ValueError, match="99"):
        ConsumeType("99")
    with pytest.raises(RemoteProtocolError):
        decode_body(b'{"consumerDataSet":[{"consumeType":"CONSUME_TELEPATHICALLY"}]}', Heartbeat)
    (consumer,) = decode_body(
        b'{"consumerDataSet":[{"consumeFromWhere":"","groupName":""}]}', Heartbeat
    ).consumers
    assert consumer.consume_from_where is ConsumeFromWhere.LAST_OFFSET, "empty is absent, as for FastJSON"


def test_enums_may_be_the_numbers_of_their_places() -> None:
    """A push consumer built on the C++ client describes itself that way."""
    heartbeat = decode_body(
        b'{"clientID":"127.0.0.1@7@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"CG","messageModel":1,"subscriptionDataSet":[{"codeSet":["0"],"subString":"*",'
        b'"subVersion":1,"tagsSet":[],"topic":"T"}]}],"producerDataSet":[]}',
        Heartbeat,
    )
    (consumer,) = heartbeat.consumers
    assert consumer.consume_from_where is ConsumeFromWhere.LAST_OFFSET
    assert consumer.consume_type is ConsumeType.PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert decode_body(b'{"mode":1}', RequestMode).mode == "POP"
    assert decode_body(b'{"messageModel":0}', AssignmentQuery).message_model == "BROADCASTING"
    table = decode_body(b'{"topicConfigTable":{"T":{"topicFilterType":1}}}', TopicConfigTable)
    assert table.topics["T"].filter_type == "MULTI_TAG"
    for wrong in (b"3", b"-1", b"1.0", b"true"):
        with pytest.raises(RemoteProtocolError):
            decode_body(b'{"consumerDataSet":[{"consumeType":%b}]}' % wrong, Heartbeat)


def test_equal_heartbeats_give_equal_bytes() -> None:
    tags = [f"tag{number}" for number in range(50)]

    def build(names: list[str]) -> bytes:
        subscription = SubscriptionData(
            topic="T", tags=frozenset(names), tag_hashes=frozenset(map(len, names))
        )
        consumer = ConsumerData(group="g", subscriptions=(subscription,))
        return encode_body(Heartbeat(consumers=(consumer,), producers=(ProducerData(group="p"),)))

    assert build(tags) == build(tags[::-1])


def test_shared_values_of_java_are_resolved() -> None:
    table = decode_body(
        ('{"topicConfigTable":{"T1":' + TOPIC + ',"T2":{"$ref":"$.topicConfigTable.T1"}}}').encode(),
        TopicConfigTable,
    )
    assert table.topics["T2"] == table.topics["T1"]


def test_kv_numbers_become_texts() -> None:
    assert decode_kv_table(b'{"table":{"a":1,"b":"x","c":true,"d":null}}') == {
        "a": "1",
        "b": "x",
        "c": "true",
    }
    with pytest.raises(RemoteProtocolError):
        decode_kv_table(b"[]")


def test_a_table_of_a_server_may_be_larger_than_a_request_in_loose_json() -> None:
    value = "v" * (REQUEST_TEXT.characters + 1)
    assert decode_kv_table(f'{{table:{{a:"{value}"}}}}'.encode()) == {"a": value}


def test_lists_drop_duplicates_and_keep_order() -> None:
    assert decode_consumer_list(b'{"consumerIdList":["b","a","b"]}') == ("b", "a")
    assert decode_topic_list(b'{"topicList":["b","a","b"]}') == ("b", "a")


def test_lock_answer_holds_queues() -> None:
    queue = MessageQueue(topic="T", broker_name="b", queue_id=3)
    assert decode_lock_answer(encode_lock_answer([queue])) == {queue}
    assert encode_lock_answer([]) == b'{"lockOKMQSet":[]}'
    assert decode_body(encode_body(LockRequest(queues=(queue,))), LockRequest).queues == (queue,)


def test_subscription_data_set_of_a_group_is_never_written() -> None:
    text = GROUP[:-1] + ',"subscriptionDataSet":[{"topic":"T"}]}'
    config = decode_body(text, SubscriptionGroupConfig)
    assert encode_body(config).decode() == GROUP


def test_exponential_retry_policy() -> None:
    text = '{"exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2},"type":"EXPONENTIAL"}'
    policy = decode_body(text, GroupRetryPolicy)
    assert policy.exponential is not None
    assert policy.exponential.delay_ms_max == 7_200_000
    assert encode_body(policy).decode() == text


def test_ha_status_round_trip() -> None:
    status = HaStatus(is_master=True, max_log_offset=5)
    assert decode_body(encode_body(status), HaStatus) == status


def test_data_version_moves_on() -> None:
    version = DataVersion(counter=3, timestamp_ms=5)
    moved = version.next(9)
    assert moved == DataVersion(counter=4, timestamp_ms=9)
    assert moved.order > version.order


def test_message_queues_sort_by_topic_broker_and_queue() -> None:
    queues = [
        MessageQueue("T", "b", 1),
        MessageQueue("T", "a", 2),
        MessageQueue("S", "z", 9),
        MessageQueue("T", "b", 0),
    ]
    assert [(queue.topic, queue.broker_name, queue.queue_id) for queue in sorted(queues)] == [
        ("S", "z", 9), ("T", "a", 2), ("T", "b", 0), ("T", "b", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"1", b'"x"', b'{"clientID":5}', b"\xff", b'{"consumerDataSet":[1]}']
)
def test_unreadable_body_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(data, Heartbeat)


def test_unencodable_json_raises_local_protocol_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_kv_table({"k": "\ud800"})


def test_text_that_looks_like_a_null_survives() -> None:
    table = ConsumerOffsetTable(offsets={'x":null@g': {0: 1}})
    assert decode_body(encode_body(table), ConsumerOffsetTable) == table
    assert decode_kv_table(encode_kv_table({"a": '":null'})) == {"a": '":null'}
