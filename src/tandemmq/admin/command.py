"""`tandemmq admin`: the commands that operators need first, with mqadmin's names and flags.

Exit codes: 0 done, 1 refused, not found or a fault that the command reports, 2 a mistake in the command line.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tandemmq.admin import access_command, brokers, controllers, groups, messages, topics
from tandemmq.admin.options import Address, Cluster, NewValue, SettingKey, Work, command
from tandemmq.admin.targets import EVERYWHERE, Place
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.client import Message, MessageQueue
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.assignment import RequestMode
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.group import GroupRetryPolicy
from tandemmq.protocol.bodies.topic import (
    PERMISSION_DEFAULT,
    TOPIC_UNIT,
    TOPIC_UNIT_SUBSCRIPTION,
    TopicConfig,
)
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.requests.admin import ConsumeQueueRequest
from tandemmq.runtime.clock import LoopClock

app = typer.Typer(
    name="admin",
    help="Look at brokers, topics, groups and messages, and change them. Names and flags are mqadmin's.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(access_command.app)
app.add_typer(controllers.app)

TIME_FORMAT: Final = "%Y-%m-%d#%H:%M:%S:%f"
"""mqadmin's, local time."""

Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]
Group = Annotated[str, typer.Option("-g", "--groupName", help="The consumer group.")]
ConsumerGroup = Annotated[str, typer.Option("-g", "--consumerGroup", help="The consumer group.")]
ResetGroup = Annotated[str, typer.Option("-g", "--group", help="The consumer group.")]
Force = Annotated[str, typer.Option("-f", "--force", help="Taken for granted, as by mqadmin.")]
BrokerName = Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")]
QueueId = Annotated[int, typer.Option("-i", "--queueId", min=0)]
Permission = Annotated[int, typer.Option("-p", "--perm", min=0, max=7, help="2 write, 4 read, 6 both.")]
PrintBody = Annotated[str, typer.Option("-d", "--printBody", help="true: with their bodies.")]
Tags = Annotated[str, typer.Option("-s", "--subExpression", help="Only these tags, separated by ||.")]
_TIMES: Final = "now, milliseconds since 1970 or yyyy-MM-dd#HH:mm:ss:SSS."
Begin = Annotated[str, typer.Option("-b", "--beginTimestamp", help=f"Stored then or later: {_TIMES}")]
End = Annotated[str, typer.Option("-e", "--endTimestamp", help=f"Stored then or earlier: {_TIMES}")]
CountMax = Annotated[int, typer.Option("-m", "--maxNum", help="At most so many.", min=1, max=1_000_000)]


# Brokers


CleanedCluster = Annotated[str, typer.Option("-c", "--cluster", help="The brokers of this cluster.")]


@command(app, "clusterList")
def cluster_list(cluster: Cluster = "") -> Work:
    """All registered brokers with role, version and rates."""
    return lambda tools: brokers.list_clusters(tools, cluster)


@command(app, "brokerStatus")
def broker_status(place: Place = EVERYWHERE) -> Work:
    """All figures of a broker."""
    return lambda tools: brokers.show_status(tools, place)


@command(app, "haStatus")
def ha_status(place: Place = EVERYWHERE) -> Work:
    """How far the slaves are; exit code 1 when one has halted."""
    return lambda tools: brokers.show_replication(tools, place)


@command(app, "acceptLog", names=False)
def accept_log(broker: Address) -> Work:
    """Let a master that waits for its slaves serve its log as it is: what only they hold is given up."""
    return lambda tools: brokers.accept_log(tools, broker)


@command(app, "getBrokerConfig")
def get_broker_config(place: Place = EVERYWHERE) -> Work:
    """The settings of a broker."""
    return lambda tools: brokers.show_config(tools, place)


@command(app, "updateBrokerConfig")
def update_broker_config(
    key: SettingKey,
    value: NewValue,
    place: Place,
    has_slaves: Annotated[
        str, typer.Option("-a", "--updateAllBroker", help="true: with -c at its slaves, too.")
    ] = "false",
) -> Work:
    """Change a setting of a broker, or of the masters of a cluster, while they run."""
    masters_only = not _flag(has_slaves, "-a")
    return lambda tools: brokers.change_config(tools, place, key, value, masters_only=masters_only)


@command(app, "cleanExpiredCQ")
def clean_expired_queues(broker: Address = "", cluster: CleanedCluster = "") -> Work:
    """Delete queue files whose messages are gone; without a place, at all brokers."""
    return lambda tools: brokers.clean(tools, Place(broker, cluster), RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


@command(app, "cleanUnusedTopic")
def clean_unused_topics(broker: Address = "", cluster: CleanedCluster = "") -> Work:
    """Delete the queues of topics that are no more; without a place, at all brokers."""
    return lambda tools: brokers.clean(tools, Place(broker, cluster), RequestCode.CLEAN_UNUSED_TOPIC)


@command(app, "deleteExpiredCommitLog")
def delete_expired_log(broker: Address = "", cluster: CleanedCluster = "") -> Work:
    """Delete log files older than fileReservedTime at once; without a place, at all brokers."""
    return lambda tools: brokers.clean(tools, Place(broker, cluster), RequestCode.DELETE_EXPIRED_COMMITLOG)


# Name servers


@command(app, "getNamesrvConfig")
def get_namesrv_config() -> Work:
    """The settings of every name server that is named."""
    return brokers.show_names_config


@command(app, "updateNamesrvConfig")
def update_namesrv_config(
    key: SettingKey,
    value: NewValue,
) -> Work:
    """Change a setting of every name server that is named."""
    return lambda tools: brokers.change_names_config(tools, key, value)


Space = Annotated[str, typer.Option("-s", "--namespace", help="The namespace of the key.")]
KvKey = Annotated[str, typer.Option("-k", "--key", help="The key.")]


@command(app, "updateKvConfig")
def update_kv_config(namespace: Space, key: KvKey, value: NewValue) -> Work:
    """Store a value in the key-value configuration of the name servers."""
    return lambda tools: brokers.change_kv(tools, namespace, key, value)


@command(app, "deleteKvConfig")
def delete_kv_config(namespace: Space, key: KvKey) -> Work:
    """Delete a value of the key-value configuration of the name servers."""
    return lambda tools: brokers.change_kv(tools, namespace, key, None)


@command(app, "wipeWritePerm")
def wipe_write_permission(name: BrokerName) -> Work:
    """Lead producers away from a broker: routes offer its queues to consumers only."""
    return lambda tools: brokers.change_write_permission(tools, name, allows=False)


@command(app, "addWritePerm")
def add_write_permission(name: BrokerName) -> Work:
    """Undo wipeWritePerm."""
    return lambda tools: brokers.change_write_permission(tools, name, allows=True)


# Topics


@command(app, "topicList")
def topic_list() -> Work:
    """The names of all topics."""
    return topics.list_topics


@command(app, "topicRoute")
def topic_route(topic: Topic) -> Work:
    """Queues and brokers of a topic."""
    return lambda tools: topics.show_route(tools, topic)


@command(app, "topicClusterList")
def topic_cluster_list(topic: Topic) -> Work:
    """The clusters of a topic."""
    return lambda tools: topics.show_clusters(tools, topic)


@command(app, "topicStatus")
def topic_status(topic: Topic) -> Work:
    """The ends of each queue of a topic."""
    return lambda tools: topics.show_ends(tools, topic)


@command(app, "updateTopic")
def update_topic(
    topic: Topic,
    place: Place,
    read_queues: Annotated[int, typer.Option("-r", "--readQueueNums", min=1, max=65535)] = 8,
    write_queues: Annotated[int, typer.Option("-w", "--writeQueueNums", min=1, max=65535)] = 8,
    permission: Permission = PERMISSION_DEFAULT,
    ordered: Annotated[str, typer.Option("-o", "--order", help="true or false.")] = "false",
    attributes: Annotated[str, typer.Option("-a", "--attributes", help="Changes: +a=b,+c=d,-e.")] = "",
    unit: Annotated[str, typer.Option("-u", "--unit", help="true or false.")] = "false",
    unit_subscription: Annotated[str, typer.Option("-s", "--hasUnitSub", help="true or false.")] = "false",
) -> Work:
    """Create a topic, or change it, at one broker or every master of a cluster."""
    config = TopicConfig(
        name=topic,
        read_queue_count=read_queues,
        write_queue_count=write_queues,
        permission=permission,
        is_ordered=_flag(ordered, "-o"),
        attributes=_attributes(attributes),
        sys_flag=_flag(unit, "-u") * TOPIC_UNIT | _flag(unit_subscription, "-s") * TOPIC_UNIT_SUBSCRIPTION,
    )
    return lambda tools: topics.change_topic(tools, config, place)


@command(app, "statsAll")
def stats_all(
    topic: Annotated[str, typer.Option("-t", "--topic", help="Only this topic.")] = "",
    only_active: Annotated[
        bool, typer.Option("-a", "--activeTopic", help="Only where messages went in or out in 24 hours.")
    ] = False,
) -> Work:
    """What goes into each topic and to each of its groups, and what waits."""
    return lambda tools: topics.show_stats(tools, topic, only_active=only_active)


@command(app, "exportMetadata")
def export_metadata(
    place: Place,
    directory: Annotated[
        Path, typer.Option("-f", "--filePath", help="The directory for the file.", metavar="DIR")
    ] = Path("/tmp/rocketmq/export"),
    only_topics: Annotated[bool, typer.Option("-t", "--topic", help="Only topics: topic.json.")] = False,
    only_groups: Annotated[
        bool, typer.Option("-g", "--subscriptionGroup", help="Only groups: subscriptionGroup.json.")
    ] = False,
    has_special: Annotated[
        bool, typer.Option("-s", "--specialTopic", help="Also topics of retries and dead letters.")
    ] = False,
) -> Work:
    """Write the users' topics and groups of a broker, or of a cluster's masters, into metadata.json."""
    if only_topics and only_groups:
        raise typer.BadParameter("-t: only topics, -g: only groups; name one of them, or none for both")
    what = "topics" if only_topics else "groups" if only_groups else ""
    return lambda tools: topics.export_tables(tools, place, directory, what, has_special=has_special)


@command(app, "updateTopicPerm")
def update_topic_permission(
    topic: Topic,
    permission: Permission,
    place: Place,
) -> Work:
    """Change what a topic permits, at one broker or every master of a cluster."""
    return lambda tools: topics.change_permission(tools, topic, permission, place)


@command(app, "deleteTopic")
def delete_topic(topic: Topic, cluster: Cluster) -> Work:
    """Delete a topic at all brokers of a cluster and at the name servers."""
    return lambda tools: topics.remove_topic(tools, topic, cluster)


# Groups


@command(app, "consumerProgress")
def consumer_progress(
    group: Group = "", topic: Annotated[str, typer.Option("-t", "--topicName", help="Only this topic.")] = ""
) -> Work:
    """How far a group is in each queue; without one, the lag of every group."""
    return lambda tools: groups.show_progress(tools, group, topic)


@command(app, "consumerConnection")
def consumer_connection(group: ConsumerGroup, broker: Address = "") -> Work:
    """The members of a group, and what it was refused; exit code 1 when nobody is online."""
    return lambda tools: groups.show_connections(tools, group, broker)


@command(app, "consumerStatus")
def consumer_status(
    group: ConsumerGroup,
    client_id: Annotated[str, typer.Option("-i", "--clientId", help="Only this member.")] = "",
    has_stack: Annotated[
        bool, typer.Option("-s", "--jstack", help="With the stacks of a Java client's threads.")
    ] = False,
    broker: Address = "",
) -> Work:
    """What the members of a group do, as they say themselves; exit code 1 when nobody is online."""
    return lambda tools: groups.show_members(tools, group, client_id, broker, has_stack=has_stack)


@command(app, "producerConnection")
def producer_connection(
    group: Annotated[str, typer.Option("-g", "--producerGroup", help="The producer group.")],
    broker: Address = "",
    topic: Annotated[str, typer.Option("-t", "--topic", help="As by mqadmin; all brokers are asked.")] = "",
) -> Work:
    """The producers of a group; exit code 1 when nobody is online."""
    return lambda tools: groups.show_producers(tools, group, broker)


@command(app, "getConsumerConfig")
def get_consumer_config(group: Group) -> Work:
    """The settings of a group at each master; exit code 1 when none knows it."""
    return lambda tools: groups.show_settings(tools, group)


@command(app, "deleteSubGroup")
def delete_sub_group(
    group: Group,
    place: Place,
    remove_offset: Annotated[
        str, typer.Option("-r", "--removeOffset", help="true: its offsets go, too.")
    ] = "false",
) -> Work:
    """Delete a group at one broker or every master of a cluster."""
    removes_offsets = _flag(remove_offset, "-r")
    return lambda tools: groups.remove_group(tools, group, place, removes_offsets=removes_offsets)


@command(app, "resetOffsetByTime")
def reset_offset_by_time(
    group: ResetGroup,
    topic: Topic,
    timestamp: Annotated[
        str,
        typer.Option(
            "-s", "--timestamp", help="now, milliseconds since 1970, -1 (the end) or yyyy-MM-dd#HH:mm:ss:SSS."
        ),
    ],
    force: Force = "true",
) -> Work:
    """Let a group, running or not, go on from a time."""
    _flag(force, "-f")
    time_ms = parse_time(timestamp, LoopClock().now_ms())
    return lambda tools: groups.reset_by_time(tools, group, topic, time_ms)


@command(app, "skipAccumulatedMessage")
def skip_accumulated(
    group: ResetGroup,
    topic: Topic,
    force: Force = "true",
) -> Work:
    """Let a group, running or not, go on from the end of a topic: what waits is never handled."""
    _flag(force, "-f")
    return lambda tools: groups.reset_by_time(tools, group, topic, END_OF_QUEUE_MS)


@command(app, "cloneGroupOffset")
def clone_group_offset(
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="The group whose place is taken.")],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="The group that goes on there.")],
    topic: Topic,
    offline: Annotated[str, typer.Option("-o", "--offline", help="Means nothing, as by mqadmin.")] = "false",
) -> Work:
    """Let a group that is not running go on in a topic where another one is."""
    _flag(offline, "-o")
    return lambda tools: groups.clone_offsets(tools, source, target, topic)


@command(app, "updateSubGroup")
def update_sub_group(
    group: Group,
    place: Place,
    consume: Annotated[str | None, typer.Option("-s", "--consumeEnable", help="true or false.")] = None,
    from_min: Annotated[
        str | None, typer.Option("-m", "--consumeFromMinEnable", help="true or false.")
    ] = None,
    broadcast: Annotated[
        str | None, typer.Option("-d", "--consumeBroadcastEnable", help="true or false.")
    ] = None,
    orderly: Annotated[
        str | None, typer.Option("-o", "--consumeMessageOrderly", help="true or false.")
    ] = None,
    retry_queues: Annotated[int | None, typer.Option("-q", "--retryQueueNums", min=0)] = None,
    retries: Annotated[int | None, typer.Option("-r", "--retryMaxTimes", min=-1)] = None,
    broker_id: Annotated[int | None, typer.Option("-i", "--brokerId", min=0)] = None,
    slow_broker_id: Annotated[int | None, typer.Option("-w", "--whichBrokerWhenConsumeSlowly", min=0)] = None,
    notifies: Annotated[
        str | None, typer.Option("-a", "--notifyConsumerIdsChanged", help="true or false.")
    ] = None,
    retry_policy: Annotated[
        str | None, typer.Option("-p", "--groupRetryPolicy", help="As mqadmin's: JSON.")
    ] = None,
) -> Work:
    """Create a group, or change what is named of it, at one broker or every master of a cluster."""
    changes: dict[str, Any] = {
        "is_consume_enabled": consume and _flag(consume, "-s"),
        "is_from_min_enabled": from_min and _flag(from_min, "-m"),
        "is_broadcast_enabled": broadcast and _flag(broadcast, "-d"),
        "is_orderly": orderly and _flag(orderly, "-o"),
        "retry_queue_count": retry_queues,
        "retry_count_max": retries,
        "broker_id": broker_id,
        "slow_read_broker_id": slow_broker_id,
        "notifies_members": notifies and _flag(notifies, "-a"),
        "retry_policy": retry_policy and _retry_policy(retry_policy),
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    return lambda tools: groups.change_group(tools, group, changes, place)


@command(app, "setConsumeMode")
def set_consume_mode(
    topic: Annotated[str, typer.Option("-t", "--topicName", help="The topic.")],
    group: Group,
    mode: Annotated[str, typer.Option("-m", "--mode", help="PULL or POP.")],
    place: Place,
    share_count: Annotated[
        int,
        typer.Option(
            "-q",
            "--popShareQueueNum",
            help="POP: also the queues of so many next members; 0: all queues.",
            min=0,
        ),
    ] = 0,
) -> Work:
    """Let a group whose queues the broker assigns pull or pop a topic."""
    name = mode.upper()
    if name != "PULL" and name != "POP":
        raise typer.BadParameter(f"-m {mode}: PULL or POP")
    wanted = RequestMode(group=group, mode=name, pop_share_queue_count=share_count, topic=topic)
    return lambda tools: groups.change_mode(tools, wanted, place)


# Messages


@command(app, "queryMsgById")
def query_message_by_id(
    message_id: Annotated[str, typer.Option("-i", "--msgId", help="Message id, or with -t unique key.")],
    topic: Annotated[str, typer.Option("-t", "--topic", help="For a producer's unique key.")] = "",
) -> Work:
    """One message; exit code 1 when there is none."""
    return lambda tools: messages.find_by_id(tools, message_id, topic)


@command(app, "queryMsgByUniqueKey")
def query_message_by_unique_key(
    topic: Topic, unique_key: Annotated[str, typer.Option("-i", "--msgId", help="The producer's id of it.")]
) -> Work:
    """The message with a producer's id; exit code 1 when there is none."""
    return lambda tools: messages.find_by_unique_key(tools, topic, unique_key)


@command(app, "queryMsgByOffset")
def query_message_by_offset(
    topic: Topic,
    broker_name: BrokerName,
    queue_id: QueueId,
    offset: Annotated[int, typer.Option("-o", "--offset", min=0)],
) -> Work:
    """The message at a place of a queue; exit code 1 when there is none."""
    queue = MessageQueue(topic, broker_name, queue_id)
    return lambda tools: messages.find_by_offset(tools, queue, offset)


@command(app, "sendMessage")
def send_message(
    topic: Topic,
    body: Annotated[str, typer.Option("-p", "--body", help="The message's body, as UTF-8.")],
    keys: Annotated[str, typer.Option("-k", "--key", help="Its keys, separated by spaces.")] = "",
    tags: Annotated[str, typer.Option("-c", "--tags", help="Its tag.")] = "",
    broker_name: Annotated[str, typer.Option("-b", "--broker", help="Only to the broker of this name.")] = "",
    queue_id: Annotated[int | None, typer.Option("-i", "--qid", help="Only to this queue.", min=0)] = None,
) -> Work:
    """Send one message; exit code 1 when it is not as safe as the broker's settings promise."""
    if queue_id is not None and not broker_name:
        raise typer.BadParameter("-i names a queue of a broker: name that, too (-b)")
    message = Message(topic, body.encode(), tags=tags, keys=keys.split())
    return lambda tools: messages.send(tools, message, broker_name, queue_id)


@command(app, "printMsg")
def print_messages(
    topic: Topic,
    expression: Tags = messages.ALL_TAGS,
    begin: Begin = "",
    end: End = "",
    body: PrintBody = "false",
    count_max: CountMax = 10_000,
) -> Work:
    """The messages of a topic; exit code 1 when there is none."""
    begin_ms, end_ms = _span(begin, end)
    wanted = messages.Wanted(
        expression=expression,
        begin_ms=begin_ms,
        end_ms=end_ms,
        count_max=count_max,
        has_bodies=_flag(body, "-d"),
    )
    return lambda tools: messages.print_topic(tools, topic, wanted)


@command(app, "printMsgByQueue")
def print_messages_of_queue(
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-a", "--brokerName", help="The broker's name.")],
    queue_id: QueueId,
    expression: Tags = messages.ALL_TAGS,
    begin: Begin = "",
    end: End = "",
    prints: Annotated[str, typer.Option("-p", "--printMsg", help="true: the messages themselves.")] = "false",
    body: PrintBody = "false",
    by_tag: Annotated[
        str, typer.Option("-f", "--calculate", help="true: how many have which tag.")
    ] = "false",
    count_max: CountMax = 10_000,
) -> Work:
    """The messages of one queue (-p true), how many have which tag (-f true); exit code 1 without one."""
    begin_ms, end_ms = _span(begin, end)
    wanted = messages.Wanted(
        broker_name=broker_name,
        queue_id=queue_id,
        expression=expression,
        begin_ms=begin_ms,
        end_ms=end_ms,
        count_max=count_max,
        is_printed=_flag(prints, "-p"),
        has_bodies=_flag(body, "-d"),
        counts_tags=_flag(by_tag, "-f"),
    )
    return lambda tools: messages.print_topic(tools, topic, wanted)


@command(app, "queryCq")
def query_queue_entries(
    topic: Topic,
    queue_id: Annotated[int, typer.Option("-q", "--queue", help="The queue's number.", min=0)],
    index: Annotated[int, typer.Option("-i", "--index", help="The first queue offset.", min=0)],
    count: Annotated[int, typer.Option("-c", "--count", help="How many entries.", min=1)] = 10,
    broker: Annotated[str, typer.Option("-b", "--broker", help="One broker.", metavar="HOST:PORT")] = "",
    group: Annotated[str, typer.Option("-g", "--consumer", help="Whose subscription is tried.")] = "",
) -> Work:
    """Entries of a ConsumeQueue: where messages lie in the log."""
    header = ConsumeQueueRequest(
        topic=topic, queue_id=queue_id, queue_offset=index, count_max=count, consumer_group=group or None
    )
    return lambda tools: messages.show_entries(tools, header, broker)


@command(app, "queryMsgByKey")
def query_message_by_key(
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="One of the message's keys.")],
    begin: Begin = "",
    end: End = "",
    count_max: Annotated[int, typer.Option("-m", "--maxNum", min=1, max=10_000)] = 64,
) -> Work:
    """Messages that carry a key; exit code 1 when there is none."""
    span = _span(begin, end)
    return lambda tools: messages.find_by_key(tools, topic, key, count_max, span)


def _span(begin: str, end: str) -> tuple[int | None, int | None]:
    """The milliseconds of two times; None: from or to the end."""
    now_ms = LoopClock().now_ms()
    begin_ms, end_ms = (parse_time(text, now_ms) if text else None for text in (begin, end))
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise typer.BadParameter(f"-b {begin} is later than -e {end}")
    return begin_ms, end_ms


def parse_time(text: str, now_ms: int) -> int:
    """The milliseconds of a time as mqadmin takes it. Raises typer.BadParameter."""
    if text == "now":
        return now_ms
    if text.removeprefix("-").isdecimal():
        time_ms = int(text)
        if time_ms >= END_OF_QUEUE_MS:
            return time_ms
        raise typer.BadParameter(f"-s {text}: -1 is the end of each queue, other times are not below 0")
    try:
        # %f takes milliseconds as the front of microseconds, which they are.
        return int(datetime.strptime(text, TIME_FORMAT).timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(
            f"-s {text}: now, milliseconds since 1970, -1 or yyyy-MM-dd#HH:mm:ss:SSS"
        ) from None


def _attributes(changes: str) -> dict[str, str]:
    """Signed names -> values, as brokers take them. Raises typer.BadParameter."""
    found: dict[str, str] = {}
    for change in filter(None, map(str.strip, changes.split(","))):
        name, has_value, value = change.partition("=")
        if name[:1] not in ("+", "-") or len(name) == 1 or bool(has_value) != name.startswith("+"):
            raise typer.BadParameter(f"-a {change}: +name=value or -name, separated by commas")
        found[name] = value
    return found


def _retry_policy(text: str) -> GroupRetryPolicy:
    try:
        return decode_body(text.encode(), GroupRetryPolicy)
    except RemoteProtocolError as error:
        example = '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}'
        raise typer.BadParameter(f"-p {text}: {error}; allowed is JSON as {example}") from None


def _flag(text: str, option: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise typer.BadParameter(f"{option} {text}: true or false")
    return text.lower() == "true"
