"""A cluster small enough to break on purpose: brokers and a name server on the loopback, queues in lists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from batch_items import split_batch
from tandemmq.protocol.bodies.client import Heartbeat, encode_consumer_list
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    encode_cluster_info,
    encode_topic_route,
)
from tandemmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.message_id import encode_host, encode_message_id
from tandemmq.protocol.properties import decode_properties
from tandemmq.protocol.record import NewRecord, encode_record, tag_hash_of
from tandemmq.protocol.requests.consume import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    PullRequest,
    PullResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    SeenRecord,
    UpdateOffsetRequest,
)
from tandemmq.protocol.requests.route import ConsumerListRequest, RouteRequest, UnregisterClientRequest
from tandemmq.protocol.requests.send import SendBackRequest, SendRequestV2, SendResponse
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import render_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.machine import LoopClock, TcpNetwork

STORE_HOST = encode_host("127.0.0.1", 10911)
RECORD_BYTES = 1000
STORED_AT_MS = 1_700_000_000_001
BORN_HOST = encode_host("127.0.0.1", 40000)


@dataclass
class FakeQueue:
    """The records of one queue; those before `min_offset` are deleted."""

    records: list[tuple[bytes, str]] = field(default_factory=list)
    min_offset: int = 0


class FakeBroker:
    """One broker address. `refuse` and `hang` break it; `sends` counts requests."""

    def __init__(
        self, name: str, *, broker_id: int = 0, log: dict[tuple[str, int], FakeQueue] | None = None
    ) -> None:
        self.name = name
        self.broker_id = broker_id
        self.queues: dict[tuple[str, int], FakeQueue] = {} if log is None else log
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.version = OUR_VERSION
        self.members: dict[str, dict[str, Channel]] = {}
        self.heartbeats: list[Heartbeat] = []
        self.sends = 0
        self.send_codes: list[int] = []
        self.held_count = 0
        self.pulls: list[PullRequest] = []
        self.handed_back: list[SendBackRequest] = []
        self.replies: list[bytes] = []
        self.reply_codes: list[int] = []
        """The codes with which the next replies are rejected."""
        self.refuse: Callable[[SendRequestV2], int] = lambda _: 0
        self.refusal = "refused by the test"
        self.pull_code = 0
        self.back_code = 0
        self.query_code = 0
        self.hang = False
        self.suggest_id = 0
        self.proof: str | None = None
        self.address = ""
        self._arrived = asyncio.Event()
        self.handlers: dict[int, Callable[[Channel, Command], Command | Awaitable[Command | None] | None]] = {
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._reply,
        }
        self.server = RemotingServer(
            self.handlers,
            network=TcpNetwork(),
            clock=LoopClock(),
        )

    def queue(self, topic: str, queue_id: int) -> FakeQueue:
        return self.queues.setdefault((topic, queue_id), FakeQueue())

    def stored(self, topic: str) -> int:
        return sum(len(queue.records) for (name, _), queue in self.queues.items() if name == topic)

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        *,
        sys_flag: int = 0,
        flag: int = 0,
    ) -> int:
        queue = self.queue(topic, queue_id)
        offset = queue.min_offset + len(queue.records)
        record = encode_record(
            NewRecord(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=properties,
                born_at_ms=1_700_000_000_000,
                born_host=BORN_HOST,
                tag_hash=tag_hash_of(properties),
                sys_flag=sys_flag,
                flag=flag,
            ),
            queue_offset=offset,
            log_offset=offset * RECORD_BYTES,
            stored_at_ms=STORED_AT_MS,
            store_host=STORE_HOST,
        )
        queue.records.append((record, decode_properties(properties).get("TAGS", "")))
        self._arrived.set()
        return offset

    def notify(self, group: str) -> None:
        """Notifies the group's members of a change."""
        for channel in self.members.get(group, {}).values():
            channel.send(Command.request(40, fields={"consumerGroup": group}, oneway=True))

    def push(self, group: str, command: Command) -> None:
        for channel in self.members.get(group, {}).values():
            channel.send(command)

    def _send(self, channel: Channel, command: Command) -> Command | None:
        header = command.decode(SendRequestV2)
        self.sends += 1
        self.send_codes.append(command.code)
        if self.hang:
            return None
        code = self.refuse(header)
        if code not in (0, 10, 11, 12):
            return command.reply(code, remark=self.refusal)
        properties = (header.properties or "").encode()
        if header.is_batch:
            items = [(bytes(item.body), item.properties, item.flag) for item in split_batch(command.body)]
        else:
            items = [(bytes(command.body), properties, header.flag)]
        offsets = [
            self.put(header.topic, header.queue_id, body, raw, sys_flag=header.sys_flag, flag=flag)
            for body, raw, flag in items
        ]
        ids = ",".join(encode_message_id(STORE_HOST, offset * 1000) for offset in offsets)
        return command.reply(
            code, SendResponse(message_id=ids, queue_id=header.queue_id, queue_offset=offsets[0])
        )

    async def _pull(self, channel: Channel, command: Command) -> Command:
        header = command.decode(PullRequest)
        self.pulls.append(header)
        if self.pull_code:
            return command.reply(self.pull_code, remark="refused by the test")
        if header.commits_offset:
            self.offsets[header.consumer_group, header.topic, header.queue_id] = header.committed_offset
        queue = self.queue(header.topic, header.queue_id)
        deadline = asyncio.get_running_loop().time() + header.suspend_timeout_ms / 1000
        while (
            header.queue_offset == queue.min_offset + len(queue.records)
            and header.may_suspend
            and asyncio.get_running_loop().time() < deadline
        ):
            self._arrived.clear()
            self.held_count += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                break
            finally:
                self.held_count -= 1
        return self._answer_pull(command, header, queue)

    def _answer_pull(self, command: Command, header: PullRequest, queue: FakeQueue) -> Command:
        low, high = queue.min_offset, queue.min_offset + len(queue.records)

        def answer(code: int, next_offset: int, body: bytes = b"", passed: str | None = None) -> Command:
            return command.reply(
                code,
                PullResponse(
                    suggested_broker_id=self.suggest_id,
                    next_offset=next_offset,
                    min_offset=low,
                    max_offset=high,
                    passed=passed,
                ),
                body=body,
            )

        start = header.queue_offset
        if start < low or start > high:
            return answer(ResponseCode.PULL_OFFSET_MOVED, low if start < low else high)
        if start == high:
            return answer(ResponseCode.PULL_NOT_FOUND, start)
        wanted = {
            tag_hash(tag.strip()) for tag in (header.subscription or "*").split("||") if tag.strip() != "*"
        }
        chosen = queue.records[start - low : start - low + header.count_max]
        given = [record for record, tag in chosen if not wanted or tag_hash(tag) in wanted]
        code = ResponseCode.SUCCESS if given else ResponseCode.PULL_RETRY_IMMEDIATELY
        last = start + len(chosen) - 1
        passed = None
        if len(given) < len(chosen):
            passed = SeenRecord(last, last * RECORD_BYTES, STORED_AT_MS).render()
        return answer(code, last + 1, b"".join(given), passed)

    def _heartbeat(self, channel: Channel, command: Command) -> Command:
        heartbeat = decode_body(command.body, Heartbeat)
        self.heartbeats.append(heartbeat)
        for consumer in heartbeat.consumers:
            members = self.members.setdefault(consumer.group, {})
            if heartbeat.client_id not in members:
                members[heartbeat.client_id] = channel
                self.notify(consumer.group)
        answer = command.reply()
        answer.version = self.version
        return answer

    def _unregister(self, channel: Channel, command: Command) -> Command:
        header = command.decode(UnregisterClientRequest)
        if header.consumer_group:
            self.members.get(header.consumer_group, {}).pop(header.client_id, None)
            self.notify(header.consumer_group)
        return command.reply()

    def _list(self, channel: Channel, command: Command) -> Command:
        ids = self.members.get(command.decode(ConsumerListRequest).consumer_group)
        return command.reply(body=encode_consumer_list(ids)) if ids else command.reply(1, remark="nobody")

    def _query_offset(self, channel: Channel, command: Command) -> Command:
        header = command.decode(QueryOffsetRequest)
        if self.query_code:
            return command.reply(self.query_code, remark="refused by the test")
        offset = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if offset is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND)
        return command.reply(0, QueryOffsetResponse(offset=offset, seen=self.proof))

    def _update_offset(self, channel: Channel, command: Command) -> Command:
        header = command.decode(UpdateOffsetRequest)
        self.offsets[header.consumer_group, header.topic, header.queue_id] = header.committed_offset
        return command.reply()

    def _max(self, channel: Channel, command: Command) -> Command:
        header = command.decode(GetMaxOffsetRequest)
        queue = self.queue(header.topic, header.queue_id)
        return command.reply(0, GetMaxOffsetResponse(offset=queue.min_offset + len(queue.records)))

    def _min(self, channel: Channel, command: Command) -> Command:
        header = command.decode(GetMinOffsetRequest)
        return command.reply(
            0, GetMinOffsetResponse(offset=self.queue(header.topic, header.queue_id).min_offset)
        )

    def _reply(self, channel: Channel, command: Command) -> Command | None:
        if self.hang:
            return None
        code = self.reply_codes.pop(0) if self.reply_codes else 0
        if code:
            return command.reply(code, remark="refused by the test")
        self.replies.append(bytes(command.body))
        return command.reply(0, SendResponse(message_id="", queue_id=0, queue_offset=0))

    def _send_back(self, channel: Channel, command: Command) -> Command | None:
        if self.hang:
            return None
        if self.back_code:
            return command.reply(self.back_code, remark="refused by the test")
        self.handed_back.append(command.decode(SendBackRequest))
        return command.reply()


class FakeCluster:
    """The brokers, and the name server's routes to them. `topics` is the number of queues per broker of each
    topic.
    """

    def __init__(self, brokers: list[FakeBroker]) -> None:
        self.brokers = brokers
        self.topics: dict[str, int] = {"TBW102": 8}
        self.route_questions = 0
        self.hidden: set[FakeBroker] = set()
        self.namesrv = ""
        self.server = RemotingServer(
            {
                int(RequestCode.GET_ROUTEINFO_BY_TOPIC): self._route,
                int(RequestCode.GET_BROKER_CLUSTER_INFO): self._cluster_info,
            },
            network=TcpNetwork(),
            clock=LoopClock(),
        )

    def __getitem__(self, index: int) -> FakeBroker:
        return self.brokers[index]

    def _data(self) -> Iterator[BrokerData]:
        shown = [broker for broker in self.brokers if broker not in self.hidden]
        for name in sorted({broker.name for broker in shown}):
            addresses = {broker.broker_id: broker.address for broker in shown if broker.name == name}
            yield BrokerData(addresses=addresses, broker_name=name, cluster="c")

    def _route(self, channel: Channel, command: Command) -> Command:
        self.route_questions += 1
        count = self.topics.get(command.decode(RouteRequest).topic)
        brokers = tuple(self._data())
        if count is None or not brokers:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        queues = tuple(
            QueueData(
                broker_name=data.broker_name, permission=6, read_queue_count=count, write_queue_count=count
            )
            for data in brokers
        )
        return command.reply(body=encode_topic_route(TopicRoute(brokers=brokers, queues=queues)))

    def _cluster_info(self, channel: Channel, command: Command) -> Command:
        brokers = {data.broker_name: data for data in self._data()}
        return command.reply(
            body=encode_cluster_info(ClusterInfo(brokers=brokers, clusters={"c": tuple(brokers)}))
        )


@asynccontextmanager
async def running_cluster(*brokers: FakeBroker, **topics: int):
    """Runs the brokers and a name server, listening on free ports."""
    cluster = FakeCluster(list(brokers) or [FakeBroker("a")])
    cluster.topics.update(topics)
    async with AsyncExitStack() as stack:
        for broker in cluster.brokers:
            broker.address = render_address(await broker.server.start("127.0.0.1", 0))
            stack.push_async_callback(broker.server.stop)
        cluster.namesrv = render_address(await cluster.server.start("127.0.0.1", 0))
        stack.push_async_callback(cluster.server.stop)
        yield cluster
