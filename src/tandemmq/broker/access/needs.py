"""The rights that requests need: actions and their names, then the needs of every request code of a broker.

One table serves both kinds of rules. The 4.x rules know PUB, SUB and administrators. `Pub` and `Sub` map to
these. A need with only Create, Update or Delete requires an administrator, and so does any need on the
cluster. Get and List of a topic or group need just an account. A code without a row needs every right on the
cluster, so that nothing is open by omission.
A request that names a message by its log offset is judged by the message stored there (`needs_of_stored`),
whatever topic the request claims.
Source: spec semantics 21.2, 21.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tandemmq.errors import ConfigError, RemoteProtocolError
from tandemmq.protocol.bodies.codec import decode_object
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.properties import REAL_TOPIC
from tandemmq.protocol.record import RecordError, decode_record
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest, ResumeCheckRequest
from tandemmq.protocol.requests.consume import ViewMessageRequest
from tandemmq.protocol.requests.send import EndTransactionRequest, SendBackRequest
from tandemmq.protocol.topic_names import RETRY_PREFIX, holds_other_topics, is_system_topic, retry_topic
from tandemmq.units import Buffer

# Actions on resources, as bits and by name.

PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = (1 << number for number in range(7))
ALL: Final = 127

NAMES: Final = {
    "Pub": PUB,
    "Sub": SUB,
    "Create": CREATE,
    "Update": UPDATE,
    "Delete": DELETE,
    "Get": GET,
    "List": LIST,
}
_BY_FOLDED: Final = {"all": ALL, "any": ALL, **{name.lower(): bit for name, bit in NAMES.items()}}


def parse_action(name: str) -> int:
    """Returns the bit of an action's name, in any case; All and Any mean every action.

    Raises:  ConfigError naming what is allowed.
    """
    bit = _BY_FOLDED.get(name.strip().lower())
    if bit is None:
        raise ConfigError(f"action {name!r}: must be All or one of {', '.join(NAMES)}")
    return bit


def render_actions(bits: int) -> str:
    """Returns the names of the bits, joined by `|`."""
    return "|".join(name for name, bit in NAMES.items() if bits & bit) or "none"


def is_administrative(bits: int) -> bool:
    """Returns True if the actions are changes only, which no producer or consumer requests."""
    return bool(bits) and not bits & (PUB | SUB | GET | LIST)


TOPIC: Final = "Topic"
GROUP: Final = "Group"
CLUSTER: Final = "Cluster"


class Need(NamedTuple):
    """A need: one of the `actions` (bits) on one resource; the name "" is not the name of any resource."""

    kind: str
    name: str
    actions: int


Needs = tuple[Need, ...]
Rule = Callable[[Mapping[str, str], Command, str], Needs]
"""(fields, request, own cluster's name) -> all needs of the request."""


def needs_of(command: Command, cluster: str) -> Needs:
    """Returns the needs of this request.

    Raises:  RemoteProtocolError for a malformed body.
    """
    return NEEDS.get(command.code, _UNLISTED)(command.fields, command, cluster)


def log_offset_of(command: Command) -> int | None:
    """Returns the log offset that the request names, or None if it names none.

    Raises:  BadRequest for a malformed header.
    """
    match command.code:
        case Code.VIEW_MESSAGE_BY_ID:
            return command.decode(ViewMessageRequest).log_offset
        case Code.END_TRANSACTION:
            return command.decode(EndTransactionRequest).log_offset
        case Code.CONSUMER_SEND_MSG_BACK:
            return command.decode(SendBackRequest).log_offset
        case Code.CONSUME_MESSAGE_DIRECTLY:
            message_id = command.decode(ConsumeDirectlyRequest).message_id
        case Code.RESUME_CHECK_HALF_MESSAGE:
            message_id = command.decode(ResumeCheckRequest).message_id
        case _:
            return None
    return decode_message_id(message_id).log_offset if message_id else None


def needs_of_stored(command: Command, raw: Buffer, log_offset: int, cluster: str) -> Needs:
    """Returns the needs of a request that names the message stored at `log_offset`.

    A message that waits in a system topic (half, delayed, timer messages) is judged by its real topic. Bytes
    within a message may look like a record, so only administrators may name an offset without an intact
    record.
    """
    try:
        record = decode_record(raw, log_offset=log_offset)
    except RecordError:
        return (Need(CLUSTER, cluster, UPDATE),)
    topic = record.topic
    if is_system_topic(topic):
        topic = record.properties.get(REAL_TOPIC, topic)
    match command.code:
        case Code.VIEW_MESSAGE_BY_ID:
            return (topic_need(topic, SUB | GET),)
        case Code.END_TRANSACTION:
            return (topic_need(topic, PUB),)
        case Code.RESUME_CHECK_HALF_MESSAGE:
            return (topic_need(topic, UPDATE),)
        case Code.CONSUME_MESSAGE_DIRECTLY:
            return needs_beside_group(command.fields.get("consumerGroup") or "", topic, SUB)
        case _:
            return needs_beside_group(command.fields.get("group") or "", topic, SUB)


def of_broker(need: Need, cluster: str) -> Need:
    """Returns the need itself, or an administrator's for the broker's own topics. Messages of every topic
    wait there, and records written there are delivered, cancelled or acknowledged for every topic.
    """
    if need.kind == TOPIC and need.actions & (PUB | SUB) and holds_other_topics(need.name):
        return Need(CLUSTER, cluster, UPDATE)
    return need


def topic_need(name: str | None, actions: int) -> Need:
    """Returns a need on the topic; a retry topic counts as part of its group, and consumers write to it."""
    if name is not None and name.startswith(RETRY_PREFIX):
        group, _, _ = name[len(RETRY_PREFIX) :].partition("+")  # pop retries: %RETRY%group+topic
        return Need(GROUP, group, SUB if actions & PUB else actions)
    return Need(TOPIC, name or "", actions)


def needs_beside_group(group: str, topic: str, actions: int) -> Needs:
    """Returns the needs on a topic in addition to its group's: none for the group's own retry topics."""
    own = retry_topic(group)
    if topic == own or topic.startswith(own + "+"):
        return ()
    if topic.startswith(own + "_"):
        # Pop retries of the first form: %RETRY%group_topic. The name may also be the retry topic of a group
        # with a longer name, so the right to the topic is needed as well.
        return (Need(TOPIC, topic[len(own) + 1 :], actions),)
    return (topic_need(topic, actions),)


def _on_topic(field: str, actions: int) -> Rule:
    return lambda fields, _command, _cluster: (topic_need(fields.get(field), actions),)


def _on_group(field: str, actions: int) -> Rule:
    return lambda fields, _command, _cluster: (Need(GROUP, fields.get(field) or "", actions),)


def _on_cluster(actions: int) -> Rule:
    return lambda _fields, _command, cluster: (Need(CLUSTER, cluster, actions),)


def _on_both(group_field: str, actions: int, *topic_fields: str) -> Rule:
    """Returns a rule for the group and each named topic; retry topics count with the group."""

    def rule(fields: Mapping[str, str], _command: Command, _cluster: str) -> Needs:
        group = fields.get(group_field) or ""
        topics = [fields[name] for name in topic_fields or ("topic",) if fields.get(name)]
        named = [topic for name in topics for topic in name.split(";") if topic]
        others = [need for name in named for need in needs_beside_group(group, name, actions)]
        return (Need(GROUP, group, actions), *others)

    return rule


def _end_transaction(fields: Mapping[str, str], _command: Command, cluster: str) -> Needs:
    """The topic of the stored half message decides (`needs_of_stored`); clients of 4.9 name no topic."""
    return (topic_need(fields["topic"], PUB),) if fields.get("topic") else (Need(CLUSTER, cluster, 0),)


def _unregister(fields: Mapping[str, str], _command: Command, cluster: str) -> Needs:
    group = fields.get("consumerGroup")
    return (Need(GROUP, group, SUB),) if group else (Need(CLUSTER, cluster, 0),)


def _heartbeat(_fields: Mapping[str, str], command: Command, cluster: str) -> Needs:
    needs: dict[Need, None] = {}
    for consumer in _list_of(decode_object(command.body), "consumerDataSet"):
        group = _text_of(consumer, "groupName")
        needs[Need(GROUP, group, SUB)] = None
        for subscription in _list_of(consumer, "subscriptionDataSet"):
            topic = _text_of(subscription, "topic")
            needs.update(dict.fromkeys(needs_beside_group(group, topic, SUB)))
    return tuple(needs) or (Need(CLUSTER, cluster, 0),)


def _queue_locks(_fields: Mapping[str, str], command: Command, _cluster: str) -> Needs:
    body = decode_object(command.body)
    group = _text_of(body, "consumerGroup")
    topics = dict.fromkeys(_text_of(queue, "topic") for queue in _list_of(body, "mqSet"))
    return (
        Need(GROUP, group, SUB),
        *(need for topic in topics for need in needs_beside_group(group, topic, SUB)),
    )


def _check_config(_fields: Mapping[str, str], command: Command, _cluster: str) -> Needs:
    body = decode_object(command.body)
    subscription = body.get("subscriptionData")
    topic = _text_of(subscription, "topic") if isinstance(subscription, dict) else ""
    return (Need(GROUP, _text_of(body, "group"), SUB), topic_need(topic, SUB))


def _body_group_and_topic(group_key: str, actions: int) -> Rule:
    def rule(_fields: Mapping[str, str], command: Command, _cluster: str) -> Needs:
        body = decode_object(command.body)
        return (
            Need(GROUP, _text_of(body, group_key), actions),
            topic_need(_text_of(body, "topic"), actions),
        )

    return rule


def _batch_ack(_fields: Mapping[str, str], command: Command, _cluster: str) -> Needs:
    """Returns the needs of all entries; each entry names its own group."""
    needs: dict[Need, None] = {}
    for ack in _list_of(decode_object(command.body), "acks"):
        group = _text_of(ack, "c")
        needs[Need(GROUP, group, SUB)] = None
        needs.update(dict.fromkeys(needs_beside_group(group, _text_of(ack, "t"), SUB)))
    return tuple(needs) or (Need(GROUP, "", SUB),)


def _listed(kind: str, list_key: str, name_key: str, actions: int) -> Rule:
    """Returns a rule for each entry of a body's list; an empty list needs a right on the name ""."""

    def rule(_fields: Mapping[str, str], command: Command, _cluster: str) -> Needs:
        names = [_text_of(item, name_key) for item in _list_of(decode_object(command.body), list_key)]
        return tuple(Need(kind, name, actions) for name in names) or (Need(kind, "", actions),)

    return rule


def _body_group(actions: int) -> Rule:
    def rule(_fields: Mapping[str, str], command: Command, _cluster: str) -> Needs:
        return (Need(GROUP, _text_of(decode_object(command.body), "groupName"), actions),)

    return rule


def _list_of(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = value.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise RemoteProtocolError(f"{key} is not a list of objects")
    return found


def _text_of(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return "" if found is None else str(found)


_UNLISTED = _on_cluster(UPDATE)
_SEND_V2 = _on_topic("b", PUB)
_GET_TOPIC = _on_topic("topic", GET | SUB)
_SHOW_CLUSTER = _on_cluster(GET)
_CHANGE_CLUSTER = _on_cluster(UPDATE)

NEEDS: Final[dict[int, Rule]] = {
    Code.SEND_MESSAGE: _on_topic("topic", PUB),
    Code.SEND_MESSAGE_V2: _SEND_V2,
    Code.SEND_BATCH_MESSAGE: _SEND_V2,
    Code.SEND_REPLY_MESSAGE: _on_topic("topic", PUB),
    Code.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    Code.CONSUMER_SEND_MSG_BACK: _on_group("group", SUB),
    Code.RECALL_MESSAGE: _on_topic("topic", PUB),
    Code.END_TRANSACTION: _end_transaction,
    Code.RESUME_CHECK_HALF_MESSAGE: _on_topic("topic", UPDATE),
    Code.PULL_MESSAGE: _on_both("consumerGroup", SUB),
    Code.LITE_PULL_MESSAGE: _on_both("consumerGroup", SUB),
    Code.QUERY_MESSAGE: _on_topic("topic", SUB | GET),
    # By its log offset: see `needs_of_stored`.
    Code.VIEW_MESSAGE_BY_ID: _on_cluster(0),
    # Pops.
    Code.POP_MESSAGE: _on_both("consumerGroup", SUB),
    Code.PEEK_MESSAGE: _on_both("consumerGroup", SUB),
    Code.NOTIFICATION: _on_both("consumerGroup", SUB),
    Code.POLLING_INFO: _on_both("consumerGroup", SUB | GET),
    Code.ACK_MESSAGE: _on_both("consumerGroup", SUB),
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _on_both("consumerGroup", SUB),
    Code.POP_ROLLBACK: _CHANGE_CLUSTER,
    Code.QUERY_ASSIGNMENT: _body_group_and_topic("consumerGroup", SUB),
    Code.SET_MESSAGE_REQUEST_MODE: _body_group_and_topic("consumerGroup", UPDATE),
    # Offsets.
    Code.QUERY_CONSUMER_OFFSET: _on_both("consumerGroup", SUB | GET),
    Code.UPDATE_CONSUMER_OFFSET: _on_both("consumerGroup", SUB | UPDATE),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _GET_TOPIC,
    Code.GET_MAX_OFFSET: _GET_TOPIC,
    Code.GET_MIN_OFFSET: _GET_TOPIC,
    Code.GET_EARLIEST_MSG_STORETIME: _GET_TOPIC,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _on_both("group", UPDATE),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _on_both("group", GET),
    Code.CLONE_GROUP_OFFSET: _on_both("destGroup", UPDATE),
    Code.QUERY_CORRECTION_OFFSET: _on_both("compareGroup", GET, "topic"),
    # Clients.
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: _on_group("consumerGroup", SUB | GET),
    Code.CHECK_CLIENT_CONFIG: _check_config,
    Code.LOCK_BATCH_MQ: _queue_locks,
    Code.UNLOCK_BATCH_MQ: _queue_locks,
    Code.GET_CONSUMER_RUNNING_INFO: _on_group("consumerGroup", GET),
    Code.CONSUME_MESSAGE_DIRECTLY: _on_both("consumerGroup", SUB),
    # Topics and groups.
    Code.UPDATE_AND_CREATE_TOPIC: _on_topic("topic", CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _listed(TOPIC, "topicConfigList", "topicName", CREATE),
    Code.DELETE_TOPIC_IN_BROKER: _on_topic("topic", DELETE),
    Code.GET_TOPIC_CONFIG: _on_topic("topic", GET),
    Code.GET_TOPIC_STATS_INFO: _on_topic("topic", GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _on_topic("topic", GET),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _body_group(CREATE),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _listed(GROUP, "groupConfigList", "groupName", CREATE),
    Code.DELETE_SUBSCRIPTIONGROUP: _on_group("groupName", DELETE),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _on_group("group", GET),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _on_both("group", UPDATE),
    Code.GET_CONSUME_STATS: _on_both("consumerGroup", GET, "topic", "topicList"),
    Code.GET_CONSUMER_CONNECTION_LIST: _on_group("consumerGroup", GET),
    Code.QUERY_TOPICS_BY_CONSUMER: _on_group("group", GET),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _on_both("group", GET),
    Code.QUERY_CONSUME_TIME_SPAN: _on_both("group", GET),
    Code.QUERY_CONSUME_QUEUE: _on_topic("topic", GET),
    # The broker itself.
    Code.GET_PRODUCER_CONNECTION_LIST: _SHOW_CLUSTER,
    Code.GET_ALL_PRODUCER_INFO: _SHOW_CLUSTER,
    Code.GET_BROKER_CONSUME_STATS: _SHOW_CLUSTER,
    Code.GET_BROKER_RUNTIME_INFO: _SHOW_CLUSTER,
    Code.GET_BROKER_CONFIG: _SHOW_CLUSTER,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _SHOW_CLUSTER,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER,
    Code.SET_COMMITLOG_READ_MODE: _CHANGE_CLUSTER,
    Code.VIEW_BROKER_STATS_DATA: _SHOW_CLUSTER,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _on_cluster(GET | LIST),
    Code.UPDATE_BROKER_CONFIG: _CHANGE_CLUSTER,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE_CLUSTER,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGE_CLUSTER,
    Code.CLEAN_UNUSED_TOPIC: _CHANGE_CLUSTER,
    # Replicas and name servers.
    Code.GET_ALL_TOPIC_CONFIG: _on_cluster(GET | LIST),
    Code.GET_ALL_CONSUMER_OFFSET: _on_cluster(GET | LIST),
    Code.GET_ALL_DELAY_OFFSET: _on_cluster(GET | LIST),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _on_cluster(GET | LIST),
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _on_cluster(GET | LIST),
    Code.GET_TIMER_CHECK_POINT: _SHOW_CLUSTER,
    Code.GET_TIMER_METRICS: _SHOW_CLUSTER,
    Code.GET_BROKER_HA_STATUS: _SHOW_CLUSTER,
    # The checksum of a single byte reveals that byte.
    Code.TANDEM_READ_LOG_CHECKSUM: _CHANGE_CLUSTER,
    # Raw messages of every topic: for replicas and administrators, whatever an account's rights.
    Code.TANDEM_READ_LOG: _CHANGE_CLUSTER,
    Code.TANDEM_ACCEPT_LOG: _CHANGE_CLUSTER,
    Code.TANDEM_HAND_OVER: _CHANGE_CLUSTER,
    Code.TANDEM_VOUCH: _CHANGE_CLUSTER,
    Code.TANDEM_HISTORY: _CHANGE_CLUSTER,
    Code.TANDEM_AWAIT_TABLES: _SHOW_CLUSTER,
    # The state is only displayed, and the request is too frequent for the audit of changes.
    Code.TANDEM_TELL_SLAVE_STATE: _SHOW_CLUSTER,
    Code.EXCHANGE_BROKER_HA_INFO: _CHANGE_CLUSTER,
    Code.RESET_MASTER_FLUSH_OFFSET: _CHANGE_CLUSTER,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _CHANGE_CLUSTER,
    Code.GET_BROKER_EPOCH_CACHE: _SHOW_CLUSTER,
    # A hint: a broker that rejects it learns the same from the answer to its next heartbeat.
    Code.NOTIFY_BROKER_ROLE_CHANGED: _CHANGE_CLUSTER,
    # Access control.
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _CHANGE_CLUSTER,
    Code.DELETE_ACL_CONFIG: _CHANGE_CLUSTER,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _CHANGE_CLUSTER,
    Code.GET_BROKER_CLUSTER_ACL_INFO: _SHOW_CLUSTER,
    # These three return secrets, as in RocketMQ.
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _CHANGE_CLUSTER,
    Code.AUTH_CREATE_USER: _CHANGE_CLUSTER,
    Code.AUTH_UPDATE_USER: _CHANGE_CLUSTER,
    Code.AUTH_DELETE_USER: _CHANGE_CLUSTER,
    Code.AUTH_GET_USER: _CHANGE_CLUSTER,
    Code.AUTH_LIST_USER: _CHANGE_CLUSTER,
    Code.AUTH_CREATE_ACL: _CHANGE_CLUSTER,
    Code.AUTH_UPDATE_ACL: _CHANGE_CLUSTER,
    Code.AUTH_DELETE_ACL: _CHANGE_CLUSTER,
    Code.AUTH_GET_ACL: _SHOW_CLUSTER,
    Code.AUTH_LIST_ACL: _SHOW_CLUSTER,
}
