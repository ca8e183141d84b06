"""In-memory fakes of name servers, brokers and Spark."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec import structs

from tandemmq.errors import BrokerUnreachable
from tandemmq.protocol.bodies.codec import MessageQueue, encode_kv_table
from tandemmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    encode_cluster_info,
    encode_topic_route,
)
from tandemmq.protocol.bodies.stats import TopicOffset, TopicStats, encode_topic_stats
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, encode_record
from tandemmq.protocol.requests.admin import TopicStatsRequest
from tandemmq.protocol.requests.consume import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    PullRequest,
    PullResponse,
    QueryMessageRequest,
    QueryMessageResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateOffsetRequest,
)
from tandemmq.protocol.requests.route import RouteRequest
from tandemmq.protocol.requests.send import SendRequestV2, SendResponse
from tandemmq.spark.wire import OPEN, Security

BORN = encode_host("10.0.0.1", 4000)
STORED = encode_host("10.0.0.2", 10911)


def make_record(
    offset: int,
    *,
    topic: str = "T",
    queue_id: int = 0,
    body: bytes | None = None,
    tag: str = "",
    stored_at_ms: int | None = None,
) -> bytes:
    """Returns a stored record whose body contains its queue and offset."""
    properties = {"KEYS": f"k{offset}", **({"TAGS": tag} if tag else {})}
    new = NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=b"%d-%d" % (queue_id, offset) if body is None else body,
        properties=encode_properties(properties),
        born_at_ms=1_000 + offset,
        born_host=BORN,
    )
    return encode_record(
        new,
        queue_offset=offset,
        log_offset=offset * 100,
        stored_at_ms=2_000 + offset if stored_at_ms is None else stored_at_ms,
        store_host=STORED,
    )


@dataclass
class FakeQueue:
    """The offsets `[begin, end)` of a queue; `tag_of` returns the tag of an offset, `time_of` its store
    time.
    """

    begin: int = 0
    end: int = 0
    tag_of: Callable[[int], str] = lambda offset: ""
    time_of: Callable[[int], int] = lambda offset: 2_000 + offset


@dataclass(frozen=True)
class SentBatch:
    """One send as it arrived."""

    header: SendRequestV2
    body: bytes


@dataclass
class FakeBroker:
    """Answers like a broker; `pull_count_max` limits every pull, as real brokers do."""

    queues: dict[tuple[str, int], FakeQueue] = field(default_factory=dict)
    is_slave: bool = False
    pull_count_max: int = 32
    suggested_id: int = 0
    is_down: bool = False
    dies_after: int | None = None
    """The number of further answers after which the connection breaks."""
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    pulls: list[tuple[int, int]] = field(default_factory=list)
    refuse_pulls_with: int | None = None
    refuse_stats_with: int | None = None
    stats_queries: list[str] = field(default_factory=list)
    log_end: int = 0
    runtime_info: dict[str, str] = field(default_factory=dict)
    is_ours: bool = False
    """True to return the sizes of records on request, as TandemMQ brokers do."""
    is_lying: bool = False
    """True to return wrong sizes."""
    indexed_until_ms: int = 0
    hides_index_time: bool = False
    key_matches_max: int = 64
    """The most messages in an answer to a key."""
    key_queries: list[str] = field(default_factory=list)
    sent: list[SentBatch] = field(default_factory=list)
    send_codes: list[int] = field(default_factory=list)
    """The response codes of the next sends; 0 if the list is empty. Messages of rejected sends are stored all
    the same.
    """

    def answer(self, command: Command) -> Command:
        if self.dies_after is not None:
            if self.dies_after == 0:
                self.is_down = True
                raise BrokerUnreachable("the connection broke")
            self.dies_after -= 1
        handler = {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_TOPIC_STATS_INFO: self._stats,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.QUERY_MESSAGE: self._find_key,
        }[RequestCode(command.code)]
        return handler(command)

    def _pull(self, command: Command) -> Command:
        request = command.decode(PullRequest)
        self.pulls.append((request.queue_offset, request.count_max))
        if self.refuse_pulls_with is not None:
            return command.reply(self.refuse_pulls_with, remark="refused")
        if (request.topic, request.queue_id) not in self.queues:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST)
        queue = self.queues[request.topic, request.queue_id]
        offset = request.queue_offset
        header = PullResponse(
            suggested_broker_id=self.suggested_id,
            next_offset=offset,
            min_offset=queue.begin,
            max_offset=queue.end,
        )

        def reply(code: ResponseCode, next_offset: int, body: bytes = b"") -> Command:
            if self.is_slave and code is not ResponseCode.SUCCESS:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
            return command.reply(code, _with_next(header, next_offset), body=body)

        if offset < queue.begin:
            return reply(ResponseCode.PULL_OFFSET_MOVED, offset if self.is_slave else queue.begin)
        if offset >= queue.end:
            is_past = offset > queue.end
            return reply(ResponseCode.PULL_OFFSET_MOVED if is_past else ResponseCode.PULL_NOT_FOUND, offset)
        wanted = None if request.subscription in (None, "*") else request.subscription.split(" || ")
        records = []
        at = offset
        while at < min(queue.end, offset + 800) and len(records) < min(
            request.count_max, self.pull_count_max
        ):
            tag = queue.tag_of(at)
            if wanted is None or tag in wanted:
                records.append(self._record((request.topic, request.queue_id), at))
            at += 1
        if not records:
            return reply(ResponseCode.PULL_RETRY_IMMEDIATELY, at)
        if not (self.is_ours and request.wants_sizes):
            return reply(ResponseCode.SUCCESS, at, b"".join(records))
        sizes = b"".join((len(record) + self.is_lying).to_bytes(4, "big") for record in records)
        answer = reply(ResponseCode.SUCCESS, at, b"".join([*records, sizes]))
        assert isinstance(answer.header, PullResponse)
        answer.header = structs.replace(answer.header, sizes_bytes=len(sizes))
        return answer

    def _min(self, command: Command) -> Command:
        request = command.decode(GetMinOffsetRequest)
        queue = self.queues.get((request.topic, request.queue_id))
        if queue is None:
            return self._unknown(command, request.topic)
        return command.reply(0, GetMinOffsetResponse(offset=queue.begin))

    def _max(self, command: Command) -> Command:
        request = command.decode(GetMaxOffsetRequest)
        queue = self.queues.get((request.topic, request.queue_id))
        if queue is None:
            return self._unknown(command, request.topic)
        return command.reply(0, GetMaxOffsetResponse(offset=queue.end))

    def _stats(self, command: Command) -> Command:
        topic = command.decode(TopicStatsRequest).topic
        if self.refuse_stats_with is not None:
            return command.reply(self.refuse_stats_with, remark="refused")
        mine = {queue_id: queue for (name, queue_id), queue in self.queues.items() if name == topic}
        if not mine:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST)
        queues = {
            MessageQueue(broker_name="b", queue_id=queue_id, topic=topic): TopicOffset(
                min_offset=queue.begin,
                max_offset=queue.end,
                updated_at_ms=queue.time_of(queue.end - 1) if queue.begin < queue.end else 0,
            )
            for queue_id, queue in mine.items()
        }
        self.stats_queries.append(topic)
        return command.reply(0, body=encode_topic_stats(TopicStats(queues=queues)))

    def _unknown(self, command: Command, topic: str) -> Command:
        """Rejects a request for a queue that this broker lacks."""
        has_topic = any(name == topic for name, _ in self.queues)
        return command.reply(ResponseCode.INVALID_PARAMETER if has_topic else ResponseCode.TOPIC_NOT_EXIST)

    def _search(self, command: Command) -> Command:
        request = command.decode(SearchOffsetRequest)
        queue = self.queues[request.topic, request.queue_id]
        offsets = range(queue.begin, queue.end)
        found = queue.begin + bisect_left(offsets, request.timestamp_ms, key=queue.time_of)
        return command.reply(0, SearchOffsetResponse(offset=found))

    def _record(self, queue: tuple[str, int], offset: int) -> bytes:
        known = self.queues[queue]
        return make_record(
            offset,
            topic=queue[0],
            queue_id=queue[1],
            tag=known.tag_of(offset),
            stored_at_ms=known.time_of(offset),
        )

    def _find_key(self, command: Command) -> Command:
        """Finds messages by key; the key `kN` belongs to all messages with the offset N."""
        request = command.decode(QueryMessageRequest)
        self.key_queries.append(request.key)
        offset = int(request.key[1:]) if request.key[1:].isdecimal() else -1
        found = [
            self._record(name, offset)
            for name, queue in self.queues.items()
            if name[0] == request.topic
            and queue.begin <= offset < queue.end
            and queue.time_of(offset) <= self.indexed_until_ms
        ][: min(request.count_max, self.key_matches_max)]
        code = ResponseCode.SUCCESS if found else ResponseCode.QUERY_NOT_FOUND
        if self.hides_index_time:
            return command.reply(code, body=b"".join(found))
        header = QueryMessageResponse(index_updated_at_ms=self.indexed_until_ms, index_log_offset=0)
        return command.reply(code, header, body=b"".join(found))

    def _query(self, command: Command) -> Command:
        request = command.decode(QueryOffsetRequest)
        offset = self.committed.get((request.consumer_group, request.topic, request.queue_id))
        if offset is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND)
        return command.reply(0, QueryOffsetResponse(offset=offset))

    def _update(self, command: Command) -> Command:
        request = command.decode(UpdateOffsetRequest)
        key = (request.consumer_group, request.topic, request.queue_id)
        self.committed[key] = request.committed_offset
        return command.reply(0)

    def _send(self, command: Command) -> Command:
        header = command.decode(SendRequestV2)
        self.sent.append(SentBatch(header, bytes(command.body)))
        code = self.send_codes.pop(0) if self.send_codes else 0
        return command.reply(code, SendResponse(message_id="", queue_id=header.queue_id, queue_offset=0))

    def _runtime_info(self, command: Command) -> Command:
        return command.reply(
            0, body=encode_kv_table({"commitLogMaxOffset": str(self.log_end), **self.runtime_info})
        )


def _with_next(header: PullResponse, next_offset: int) -> PullResponse:
    return PullResponse(
        suggested_broker_id=header.suggested_broker_id,
        next_offset=next_offset,
        min_offset=header.min_offset,
        max_offset=header.max_offset,
    )


@dataclass
class FakeNet:
    """A name server at `ns:1` and brokers by address; replaces the connection pool."""

    brokers: dict[str, FakeBroker] = field(default_factory=dict)
    replicas: dict[str, dict[int, str]] = field(default_factory=dict)
    queue_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """The number of queues by topic and broker name."""
    is_name_server_down: bool = False
    suspects: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    """The addresses to which a connection was made or attempted."""

    def is_suspect(self, address: str) -> bool:
        return address in self.suspects

    def add_master(self, name: str = "b", **queues: FakeQueue) -> FakeBroker:
        """Adds a master at `NAME-0:1`; queues are given as `T_0=FakeQueue(...)`."""
        return self._add(name, 0, queues)

    def add_slave(self, name: str = "b", **queues: FakeQueue) -> FakeBroker:
        """Adds a slave at `NAME-1:1`."""
        broker = self._add(name, 1, queues)
        broker.is_slave = True
        return broker

    def _add(self, name: str, broker_id: int, queues: dict[str, FakeQueue]) -> FakeBroker:
        parsed = {(key.rpartition("_")[0], int(key.rpartition("_")[2])): q for key, q in queues.items()}
        broker = FakeBroker(queues=parsed)
        address = f"{name}-{broker_id}:1"
        self.brokers[address] = broker
        self.replicas.setdefault(name, {})[broker_id] = address
        for topic, queue_id in parsed:
            counts = self.queue_counts.setdefault(topic, {})
            counts[name] = max(counts.get(name, 0), queue_id + 1)
        return broker

    @contextmanager
    def borrow(self, address: str, security: Security = OPEN) -> Iterator[FakeConnection]:
        self.asked.add(address)
        broker = self.brokers.get(address)
        if self.is_name_server_down if address == "ns:1" else broker is None or broker.is_down:
            raise BrokerUnreachable(f"{address}: connection refused")
        yield FakeConnection(self, broker)

    def route(self, command: Command) -> Command:
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            names = ",".join(f'"{topic}"' for topic in self.queue_counts)
            return command.reply(0, body=b'{"topicList":[%s]}' % names.encode())
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return command.reply(0, body=encode_cluster_info(self._cluster_info()))
        counts = self.queue_counts.get(command.decode(RouteRequest).topic)
        if counts is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST)
        route = TopicRoute(
            queues=tuple(
                QueueData(broker_name=name, read_queue_count=count, write_queue_count=count, permission=6)
                for name, count in counts.items()
            ),
            brokers=tuple(
                BrokerData(cluster="c", broker_name=name, addresses=dict(self.replicas[name]))
                for name in counts
            ),
        )
        return command.reply(0, body=encode_topic_route(route))

    def _cluster_info(self) -> ClusterInfo:
        """Returns the cluster without brokers that are down, which name servers forget."""
        alive = {
            name: {at: address for at, address in known.items() if not self.brokers[address].is_down}
            for name, known in self.replicas.items()
        }
        return ClusterInfo(
            brokers={
                name: BrokerData(cluster="c", broker_name=name, addresses=addresses)
                for name, addresses in alive.items()
                if addresses
            }
        )

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic on all brokers and name servers, as an administrator does."""
        del self.queue_counts[topic]
        for broker in self.brokers.values():
            broker.queues = {key: queue for key, queue in broker.queues.items() if key[0] != topic}


class FakeConnection:
    """Answers each request at once, in the caller's thread."""

    def __init__(self, net: FakeNet, broker: FakeBroker | None) -> None:
        self._net = net
        self._broker = broker
        self._sent: dict[int, Command] = {}
        self._last = 0

    def send(self, commands: Sequence[Command]) -> list[int]:
        numbers = []
        for command in commands:
            self._last += 1
            self._sent[self._last] = command
            numbers.append(self._last)
        return numbers

    def receive(self, opaque: int, deadline: float) -> Command:
        command = self._sent.pop(opaque)
        return self._net.route(command) if self._broker is None else self._broker.answer(command)

    def request(self, command: Command, timeout_s: float) -> Command:
        return self.request_all([command], timeout_s)[0]

    def request_all(self, commands: Sequence[Command], timeout_s: float) -> list[Command]:
        return [self.receive(number, 0.0) for number in self.send(commands)]
