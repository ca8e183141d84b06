"""Commands for messages: queryMsgById, queryMsgByUniqueKey, queryMsgByKey, queryMsgByOffset, printMsg,
queryMsgTraceById, printMsgByQueue, consumeMessage, queryCq, sendMessage, sendMsgStatus, checkMsgSendRT,
clusterRT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, replace
from typing import Annotated, Final

import typer

from tandemmq.admin import options as opt
from tandemmq.admin.options import option
from tandemmq.admin.render import CommandAnswer, Row, Table
from tandemmq.api import broker_admin
from tandemmq.api.broker_admin import END_OF_TIME_MS
from tandemmq.client import Message, MessageQueue, Producer, ProducerOptions
from tandemmq.client.consumer.subscription import ALL
from tandemmq.errors import NoRoute, TandemError
from tandemmq.manage.messages import find_by_key, find_by_position, find_records, read_group_states
from tandemmq.manage.reading import TopicPuller
from tandemmq.manage.tools import Place, Tools, find_targets, tools_options
from tandemmq.manage.traces import read_trace
from tandemmq.protocol.record import Record
from tandemmq.protocol.requests.admin import ConsumeQueueRequest
from tandemmq.protocol.topic_names import TRACE_TOPIC
from tandemmq.remoting.options import render_address
from tandemmq.runtime.machine import LoopClock

app = typer.Typer()

BODY_CHARS_MAX = 1_000
"""The longest body shown, in characters; longer ones are truncated with an ellipsis."""

ANY_TIME: Final = opt.Span()


PrintBody = Annotated[bool, option("-d --printBody", "true: print the bodies, too."), opt.FLAG]


@dataclass(frozen=True, slots=True)
class Output:
    """Options for the output of messages."""

    is_printed: Annotated[bool, option("-p --printMsg", "true: print the messages."), opt.FLAG] = False
    has_bodies: PrintBody = False
    counts_tags: Annotated[bool, option("-f --calculate", "true: count the messages by tag."), opt.FLAG] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSelection:
    """The messages of a topic to print, and the form of the output."""

    broker_name: str = ""
    queue_id: int | None = None
    offset: int | None = None
    expression: str = ALL
    times: opt.Span = ANY_TIME
    count_max: int
    output: Output


_SENDS: Final = ("group", "client", "topic", "kind", "sent_at", "took_ms", "ok", "broker")
_HANDLINGS: Final = ("group", "client", "begun_at", "ended_at", "took_ms", "retries", "ok", "outcome")
_ENDS: Final = ("group", "client", "ended_at", "state", "checked")
_RECALLS: Final = ("group", "client", "recalled_at", "ok")
CONSUMED: Final = ("CR_SUCCESS", "CR_COMMIT")

_COLUMNS = ("message_id", "unique_key", "topic", "queue", "queue_offset", "log_offset", "born_at")
_MORE = ("stored_at", "retries", "size", "tags", "keys", "properties", "body")


Tags = Annotated[str, option("-s --subExpression", "Only messages with these tags, separated by ||.")]
CountMax = Annotated[int, option("-m --maxNum N", "Stop after N messages.", min=1, max=1_000_000)]
QueueId = Annotated[int, option("-i --queueId", "The queue id.", min=0)]
ProbeBytes = Annotated[
    int, option("-s --size --messageSize", "Size of each body, in bytes.", min=1, max=4 << 20)
]


@dataclass(frozen=True, slots=True)
class ConsumerTarget:
    """Options for a consumer that processes the message at once; both are empty, or neither is."""

    group: Annotated[str, option("-g --consumerGroup", "With -d: the consumer's group.")] = ""
    client_id: Annotated[
        str, option("-d --clientId", "With -g: deliver the message to this consumer now.")
    ] = ""

    def __post_init__(self) -> None:
        if bool(self.group) != bool(self.client_id):
            raise typer.BadParameter("-g and -d must be given together: they name one consumer")


NO_CONSUMER: Final = ConsumerTarget()


@opt.command(app, "queryMsgById")
async def query_message_by_id(
    tools: Tools,
    message_id: Annotated[str, option("-i --msgId", "The message id; with -t, the unique key.")],
    topic: Annotated[str, option("-t --topic", "The topic of a unique key.")] = "",
    handler: ConsumerTarget = NO_CONSUMER,
) -> CommandAnswer:
    """Show one message and the groups that have consumed it; exit code 1 when none is found."""
    records = await find_records(tools, message_id, topic)
    answer = await _handled(tools, records, handler)
    table = Table("groups", ("group", "members", "state"))
    for record in records[:1]:
        states = await read_group_states(tools, record)
        table.rows += [(one.group, one.members, one.state) for one in states]
    return replace(answer, tables=[*answer.tables, table])


@opt.command(app, "queryMsgByUniqueKey")
async def query_message_by_unique_key(
    tools: Tools,
    topic: opt.Topic,
    unique_key: Annotated[str, option("-i --msgId", "The unique key, which the producer made.")],
    handler: ConsumerTarget = NO_CONSUMER,
    shows_all: Annotated[
        bool, option("-a --showAll", "Accepted for mqadmin's scripts; all are shown.")
    ] = False,
) -> CommandAnswer:
    """Show the message with a unique key; exit code 1 when none is found."""
    # There are several messages if the send was repeated.
    return await _handled(tools, await tools.cluster_admin.find_by_unique_key(topic, unique_key), handler)


@opt.command(app, "queryMsgTraceById")
async def query_trace_by_id(
    tools: Tools,
    unique_key: Annotated[str, option("-i --msgId", "The unique key of the message.")],
    trace_topic: Annotated[str, option("-t --traceTopic", "The topic of the traces.")] = TRACE_TOPIC,
    times: opt.Span = ANY_TIME,
    count_max: Annotated[
        int, option("-c --maxNum N", "Read at most N trace messages.", min=1, max=10_000)
    ] = 64,
) -> CommandAnswer:
    """Show the producer and the consumers of a message, from its trace; exit code 1 when none is found."""
    trace = await read_trace(
        tools,
        unique_key,
        trace_topic=trace_topic,
        count_max=count_max,
        begin_ms=times.begin_ms or 0,
        end_ms=END_OF_TIME_MS if times.end_ms is None else times.end_ms,
    )
    tables = [
        Table(name, columns, [astuple(one) for one in rows])
        for name, columns, rows in (
            ("sends", _SENDS, trace.sends),
            ("handlings", _HANDLINGS, trace.handlings),
            ("transactions", _ENDS, trace.ends),
            ("recalls", _RECALLS, trace.recalls),
        )
        if rows
    ]
    notes = [] if tables else [f"no trace of message {unique_key!r} in topic {trace_topic}"]
    return CommandAnswer(tables, notes, exit_code=0 if tables else 1)


@opt.command(app, "queryMsgByOffset")
async def query_message_by_offset(
    tools: Tools,
    topic: opt.Topic,
    broker_name: opt.BrokerName,
    queue_id: QueueId,
    offset: Annotated[int, option("-o --offset", "The queue offset.", min=0)],
) -> CommandAnswer:
    """Show the message at an offset of a queue; exit code 1 when there is none."""
    record = await find_by_position(tools, topic, broker_name, queue_id, offset)
    return _answer([] if record is None else [record])


@opt.command(app, "sendMessage")
def send_message(
    topic: opt.Topic,
    body: Annotated[str, option("-p --body", "The body; it is sent as UTF-8.")],
    keys: Annotated[str, option("-k --key", "Its keys, separated by spaces.")] = "",
    tags: Annotated[str, option("-c --tags", "Its tag.")] = "",
    broker_name: Annotated[str, option("-b --broker", "Send to the broker of this name.")] = "",
    queue_id: Annotated[int | None, option("-i --qid", "With -b: send to this queue.", min=0)] = None,
    is_traced: Annotated[bool, option("-m --msgTraceEnable", "true: trace the message."), opt.FLAG] = False,
) -> opt.Work:
    """Send one message; exit code 1 when it is stored less safely than the broker's settings promise."""
    if queue_id is not None and not broker_name:
        raise typer.BadParameter("-i also needs the broker of the queue (-b)")
    message = Message(topic, body.encode(), tags=tags, keys=keys.split())

    async def work(tools: Tools) -> CommandAnswer:
        async with _open_producer(tools, is_traced=is_traced) as producer:
            queue = None
            if broker_name:
                queues = await producer.queues(topic)
                fits = (
                    one
                    for one in queues
                    if one.broker_name == broker_name and queue_id in (None, one.queue_id)
                )
                queue = next(fits, None)
                if queue is None:
                    raise NoRoute(f"topic {topic!r} has no writable queue with this broker and id")
            result = await producer.send(message, queue=queue)
        place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
        row = (*place, result.status.value, result.message_id, result.unique_key)
        columns = ("broker", "queue", "queue_offset", "status", "message_id", "unique_key")
        return CommandAnswer([Table("sent", columns, [row])], exit_code=0 if result.is_ok else 1)

    return work


@opt.command(app, "printMsg")
async def print_messages(
    tools: Tools,
    topic: opt.Topic,
    expression: Tags = ALL,
    times: opt.Span = ANY_TIME,
    has_bodies: PrintBody = False,
    count_max: CountMax = 10_000,
) -> CommandAnswer:
    """Print the messages of a topic; exit code 1 when there is none."""
    output = Output(is_printed=True, has_bodies=has_bodies)
    selection = MessageSelection(expression=expression, times=times, count_max=count_max, output=output)
    return await print_topic(tools, topic, selection)


@opt.command(app, "printMsgByQueue")
async def print_messages_of_queue(
    tools: Tools,
    topic: opt.Topic,
    broker_name: Annotated[str, option("-a --brokerName", "The broker's name.")],
    queue_id: QueueId,
    expression: Tags = ALL,
    times: opt.Span = ANY_TIME,
    output: Output = Output(),
    count_max: CountMax = 10_000,
) -> CommandAnswer:
    """Print the messages of one queue (-p true), or count them by tag (-f true); exit code 1 when there is
    none.
    """
    queues = MessageSelection(expression=expression, times=times, count_max=count_max, output=output)
    selection = replace(queues, broker_name=broker_name, queue_id=queue_id)
    return await print_topic(tools, topic, selection)


@dataclass(frozen=True, slots=True)
class ConsumedSpan(opt.Span):
    """The span of times of consumeMessage, whose first option has another letter."""

    begin_ms: Annotated[
        int | None, option("-s --beginTimestamp", f"Earliest store time: {opt.TIMES}"), opt.MOMENT
    ] = None


@opt.command(app, "consumeMessage")
def consume_message(
    topic: opt.Topic,
    broker_name: Annotated[str, option("-b --brokerName", "Only messages of this broker.")] = "",
    offset: Annotated[
        int | None, option("-o --offset", "With -b and -i: start at this queue offset.", min=0)
    ] = None,
    queue_id: Annotated[int | None, option("-i --queueId", "With -b: only this queue.", min=0)] = None,
    times: ConsumedSpan = ConsumedSpan(),
    count_max: Annotated[
        int, option("-c --MessageNumber N", "Stop after N messages.", min=1, max=1_000_000)
    ] = 128,
    group: Annotated[
        str, option("-g --consumerGroup", "Accepted for mqadmin's scripts; no offset is committed.")
    ] = "",
) -> opt.Work:
    """Print messages of a topic, a broker or a queue, as a consumer would receive them; exit code 1 when
    there is none.
    """
    if queue_id is not None and not broker_name:
        raise typer.BadParameter("-i also needs the broker of the queue (-b)")
    if offset is not None and queue_id is None:
        raise typer.BadParameter("-o also needs the queue of the offset (-b and -i)")
    selection = MessageSelection(
        broker_name=broker_name,
        queue_id=queue_id,
        offset=offset,
        times=times,
        count_max=count_max,
        output=Output(is_printed=True, has_bodies=True),
    )
    return lambda tools: print_topic(tools, topic, selection)


@opt.command(app, "sendMsgStatus")
async def send_message_status(
    tools: Tools,
    broker_name: Annotated[str, option("-b --brokerName", "The broker to test.")],
    size: ProbeBytes = 128,
    count: Annotated[int, option("-c --count", "Number of sends.", min=1, max=100_000)] = 50,
) -> CommandAnswer:
    """Send test messages to a broker, in the topic named like the broker; exit code 1 when a send fails."""
    return await _try_sends(tools, broker_name, count, size)


@opt.command(app, "checkMsgSendRT")
async def check_send_time(
    tools: Tools,
    topic: opt.Topic,
    count: Annotated[int, option("-a --amount", "Number of sends.", min=1, max=100_000)] = 100,
    size: ProbeBytes = 128,
) -> CommandAnswer:
    """Send to a topic and report the time of each send; exit code 1 when one fails."""
    return await _try_sends(tools, topic, count, size)


@opt.command(app, "clusterRT", interval_s=10)
async def cluster_send_time(
    tools: Tools,
    count: Annotated[int, option("-a --amount", "Number of sends to each broker.", min=2, max=100_000)] = 100,
    size: ProbeBytes = 128,
    cluster: Annotated[str, option("-c --cluster", "Only the brokers of this cluster.")] = "",
) -> CommandAnswer:
    """Measure the send time of each broker repeatedly, in the topic named like the broker."""
    table = Table("round_trips", ("cluster", "broker", "took_ms", "succeeded", "failed"))
    async with _open_producer(tools) as producer:
        for target in await find_targets(tools, Place(cluster=cluster), masters_only=True):
            rows = [row async for row in _time_sends(producer, target.broker_name, count, size)]
            failed = sum(row[5] is not None for row in rows)
            took_ms = round(sum(row[4] for row in rows[1:]) / (count - 1), 2)
            table.rows.append((target.cluster, target.broker_name, took_ms, count - failed, failed))
    return CommandAnswer([table], exit_code=1 if any(row[-1] for row in table.rows) else 0)


@opt.command(app, "queryCq")
async def query_queue_entries(
    tools: Tools,
    topic: opt.Topic,
    queue_id: Annotated[int, option("-q --queue", "The queue id.", min=0)],
    index: Annotated[int, option("-i --index", "The first queue offset.", min=0)],
    count: Annotated[int, option("-c --count", "Number of entries.", min=1)] = 10,
    broker: Annotated[str, option("-b --broker HOST:PORT", "The broker's address.")] = "",
    group: Annotated[
        str, option("-g --consumer", "Show which entries match this group's subscription.")
    ] = "",
) -> CommandAnswer:
    """Show entries of a ConsumeQueue: the positions of messages in the log."""
    if not broker:
        masters = (await tools.cluster_admin.topic_route(topic)).masters
        if len(masters) != 1:
            raise NoRoute(f"topic {topic!r} is at {len(masters)} masters: name one of them (-b)")
        [broker] = masters
    header = ConsumeQueueRequest(
        topic=topic, queue_id=queue_id, queue_offset=index, count_max=count, consumer_group=group or None
    )
    view = await broker_admin.query_entries(tools.remoting, broker, header)
    expression = None if view.subscription is None else view.subscription.expression
    ends = (view.min_queue_offset, view.max_queue_offset, expression or view.filter_data)
    columns = ("broker", "topic", "queue", "min_offset", "max_offset", "subscription")
    queue = Table("queue", columns, [(broker, topic, queue_id, *ends)])
    entries = Table("entries", ("queue_offset", "log_offset", "size", "tag_hash", "matches"))
    entries.rows += [
        (index + number, one.log_offset, one.size_bytes, one.tag_hash, one.is_match)
        for number, one in enumerate(view.entries)
    ]
    return CommandAnswer([queue, entries])


@opt.command(app, "queryMsgByKey")
async def query_message_by_key(
    tools: Tools,
    topic: opt.Topic,
    key: Annotated[str, option("-k --msgKey", "One of the message's keys.")],
    times: opt.Span = ANY_TIME,
    count_max: Annotated[int, option("-m --maxNum N", "Show at most N messages.", min=1, max=10_000)] = 64,
) -> CommandAnswer:
    """Show messages that carry a key; exit code 1 when there is none."""
    return _answer(await find_by_key(tools, topic, key, times.begin_ms, times.end_ms, count_max=count_max))


# Implementation of the commands


async def _handled(tools: Tools, records: list[Record], handler: ConsumerTarget) -> CommandAnswer:
    """Shows the messages. With `handler` (group, client), also delivers the first message to this consumer
    and shows the result; exit code 1 when the consumer fails.
    """
    answer = _answer(records)
    if not handler.group or not records:
        return answer
    record = records[0]
    address = render_address(record.store_address)
    told = await broker_admin.consume_directly(
        tools.remoting,
        address,
        consumer_group=handler.group,
        client_id=handler.client_id,
        message_id=record.message_id,
        topic=record.topic,
    )
    row = (handler.group, handler.client_id, told.result, told.took_ms, told.remark or None)
    table = Table("handled", ("group", "client", "result", "took_ms", "remark"), [row])
    return CommandAnswer([*answer.tables, table], exit_code=0 if told.result in CONSUMED else 1)


async def print_topic(tools: Tools, topic: str, selection: MessageSelection) -> CommandAnswer:
    """Shows the messages of a topic, queue by queue. Exit code 1 when there is none."""
    reader = TopicPuller(tools, topic, selection.expression)
    queues = await reader.queues_at(selection.broker_name, selection.queue_id)
    if not queues:
        raise NoRoute(
            f"topic {topic!r} has no readable queue with this broker and id;"
            f" `tandemmq admin topicRoute -t {topic!r}` lists its queues"
        )
    records: list[Record] = []
    for queue in queues:
        await _read_queue(reader, queue, selection, records)
    has_more = len(records) > selection.count_max
    answer = _answer(records[: selection.count_max], has_bodies=selection.output.has_bodies)
    notes = [
        *answer.notes,
        *([f"only the first {selection.count_max} messages are shown"] if has_more else []),
    ]
    tables = list(answer.tables) if selection.output.is_printed else []
    if records and not selection.output.is_printed and not selection.output.counts_tags:
        notes.append(
            f"{min(len(records), selection.count_max)} messages: -p true prints them, -f true counts tags"
        )
    if selection.output.counts_tags:
        counts = Counter(one.tags or "" for one in records[: selection.count_max])
        tables.append(Table("tags", ("tag", "messages"), [*counts.most_common()]))
    return CommandAnswer(tables, notes, exit_code=answer.exit_code)


async def _read_queue(
    reader: TopicPuller, queue: MessageQueue, selection: MessageSelection, records: list[Record]
) -> None:
    """Adds the selected messages of one queue to `records`, `count_max + 1` at most in total: the last one
    shows that more exist.
    """
    offset, end = await reader.ends(queue)
    if selection.times.begin_ms is not None:
        offset = await reader.search(queue, selection.times.begin_ms)
    if selection.offset is not None:
        offset = max(offset, selection.offset)
    async for _, found in reader.walk(queue, offset, end):
        for one in found:
            if selection.times.end_ms is not None and one.stored_at_ms > selection.times.end_ms:
                return  # store times increase with the offset
            if len(records) > selection.count_max:
                return
            records.append(one.record)


@asynccontextmanager
async def _open_producer(tools: Tools, *, is_traced: bool = False) -> AsyncIterator[Producer]:
    options = ProducerOptions(client=tools_options(), trace=is_traced)
    name_servers = ";".join(tools.cluster_admin.name_servers)
    async with Producer("TANDEMMQ_ADMIN", name_servers, options=options) as producer:
        yield producer


async def _try_sends(tools: Tools, topic: str, count: int, size: int) -> CommandAnswer:
    """Sends `count` messages of `size` bytes, one after the other. Exit code 1 when a send fails."""
    sends = Table("sends", ("number", "broker", "queue", "status", "took_ms", "error"))
    async with _open_producer(tools) as producer:
        sends.rows = [row async for row in _time_sends(producer, topic, count, size)]
    times = sorted(row[4] for row in sends.rows)
    failed = sum(row[5] is not None for row in sends.rows)
    figures = (count, failed, times[len(times) // 2], times[-1])
    summary = Table("summary", ("sends", "failed", "took_ms_p50", "took_ms_max"), [figures])
    return CommandAnswer([sends, summary], exit_code=1 if failed else 0)


async def _time_sends(producer: Producer, topic: str, count: int, size: int) -> AsyncIterator[Row]:
    """Yields number, broker, queue, status, time in ms, and error of each send."""
    clock = LoopClock()
    body = b"a" * size
    for number in range(count):
        begun_s = clock.monotonic()
        broker = queue = error = None
        status = "FAILED"
        try:
            result = await producer.send(Message(topic, body))
        except TandemError as failure:
            error = str(failure)
        else:
            broker, queue, status = result.queue.broker_name, result.queue.queue_id, result.status.value
        took_ms = round((clock.monotonic() - begun_s) * 1_000, 1)
        yield (number, broker, queue, status, took_ms, error)


def _answer(records: list[Record], *, has_bodies: bool = True) -> CommandAnswer:
    """Returns the messages as a table; exit code 1 when there is none."""
    columns = _COLUMNS + (_MORE if has_bodies else _MORE[:-1])
    table = Table("messages", columns, [_row(record)[: len(columns)] for record in records])
    return CommandAnswer([table], [] if records else ["no message found"], exit_code=0 if records else 1)


def _row(record: Record) -> Row:
    place = (record.topic, record.queue_id, record.queue_offset, record.log_offset)
    times = (record.born_at_ms, record.stored_at_ms)
    properties = dict(record.properties)
    body = record.content.decode("utf-8", "backslashreplace")
    if len(body) > BODY_CHARS_MAX:
        body = body[:BODY_CHARS_MAX] + "…"
    sizes = (record.retry_count, record.size)
    tags, keys = properties.get("TAGS"), properties.get("KEYS")
    return (record.message_id, record.unique_key, *place, *times, *sizes, tags, keys, properties, body)
