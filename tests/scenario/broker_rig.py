"""A real broker (and name server) over the loopback, and the plain requests that the scenarios send to it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tandemmq.broker.broker import Broker
from tandemmq.broker.options import BrokerOptions
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.client import (
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import PullRequest, PullResponse
from tandemmq.protocol.requests.send import SendRequestV2, SendResponse
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.ports import Disk, Machine
from tandemmq.store import BrokerRole, StoreOptions
from waits import PATIENCE_S

TIMEOUT_S = PATIENCE_S
MESSAGE_BYTES_MAX = 32 * 1024


def copy_as_killed(root: Path, copy: Path) -> None:
    """Copies the files that a kill would leave now of the running broker below `root`."""

    def copy_file(source: str, target: str) -> None:
        try:
            shutil.copy2(source, target)
        except FileNotFoundError:  # it was renamed since the folder was listed
            named = Path(source), Path(target)
            assert named[0].suffix == ".tmp", source
            shutil.copy2(*(one.with_suffix("") for one in named))

    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("lock"), copy_function=copy_file)


def make_broker(
    root: Path, *, store: Mapping[str, object] | None = None, disk: Disk | None = None, **changes: object
) -> Broker:
    settings: dict[str, object] = {"listen_host": "127.0.0.1", "listen_port": 0, **changes}
    is_slave = bool(settings.get("broker_id", 0))
    store_settings: dict[str, object] = {
        "commit_log_file_bytes": 1 << 20,
        "consume_queue_file_bytes": 20_000,
        "key_index_slot_count": 1_000,
        "key_index_entry_count": 4_000,
        "message_bytes_max": MESSAGE_BYTES_MAX,
        "role": BrokerRole.SLAVE if is_slave else BrokerRole.ASYNC_MASTER,
        **(store or {}),
    }
    return Broker(
        BrokerOptions(**settings),  # type: ignore[arg-type]  # real fields
        StoreOptions(root=root, **store_settings),  # type: ignore[arg-type]  # the same
        machine=Machine(TcpNetwork(), disk or RealDisk(), LoopClock(), SeededRandom(7)),
    )


@asynccontextmanager
async def running_broker(
    root: Path, *, store: Mapping[str, object] | None = None, disk: Disk | None = None, **changes: object
) -> AsyncIterator[Broker]:
    broker = make_broker(root, store=store, disk=disk, **changes)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def running_name_server(root: Path) -> AsyncIterator[str]:
    options = NameServerOptions(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_config_path=root / "kv.json",
        config_store_path=root / "ns.conf",
    )
    server = NameServer(options, network=TcpNetwork(), disk=RealDisk(), clock=LoopClock())
    try:
        yield render_address(await server.start())
    finally:
        await server.stop()


class Peer:
    """One client connection to a broker."""

    def __init__(self, broker: Broker, routes: Mapping[int, Handler] | None = None) -> None:
        self.address = render_address(broker.address)
        self.client = RemotingClient(network=TcpNetwork(), clock=LoopClock(), routes=routes)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()

    async def ask(
        self, code: int, header: object = None, *, body: bytes = b"", version: int | None = None
    ) -> Command:
        command = Command.request(code, header, body=body)  # type: ignore[arg-type]  # headers only
        if version is not None:
            command.version = version
        return await self.client.request(self.address, command, TIMEOUT_S)

    async def send(self, topic: str, body: bytes = b"hello", **changes: object) -> Command:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, **changes), body=body)

    async def send_ok(self, topic: str, body: bytes = b"hello", **changes: object) -> SendResponse:
        answer = await self.send(topic, body, **changes)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.decode(SendResponse)

    async def pull(self, topic: str, **changes: object) -> Command:
        return await self.ask(RequestCode.PULL_MESSAGE, pull_header(topic, **changes))

    async def heartbeat(
        self, client_id: str, *consumers: ConsumerData, producers: tuple[str, ...] = ()
    ) -> Command:
        body = Heartbeat(
            client_id=client_id,
            consumers=consumers,
            producers=tuple(ProducerData(group=group) for group in producers),
        )
        return await self.ask(RequestCode.HEART_BEAT, body=encode_body(body))


def send_header(topic: str, properties: Mapping[str, str] | None = None, **changes: object) -> SendRequestV2:
    values: dict[str, object] = {
        "producer_group": "PG",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_count": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_at_ms": 1_700_000_000_000,
        "flag": 0,
        "properties": encode_properties(properties or {}).decode(),
        **changes,
    }
    return SendRequestV2(**values)  # type: ignore[arg-type]  # real fields


def pull_header(topic: str, **changes: object) -> PullRequest:
    values: dict[str, object] = {
        "consumer_group": "CG",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": 0,
        "count_max": 32,
        "sys_flag": 0x4,
        "committed_offset": 0,
        "suspend_timeout_ms": 0,
        "subscription_version": 0,
        "subscription": "*",
        **changes,
    }
    return PullRequest(**values)  # type: ignore[arg-type]  # real fields


def consumer(group: str, *topics: str, expression: str = "*", **changes: object) -> ConsumerData:
    subscriptions = tuple(
        SubscriptionData(topic=topic, expression=expression, version=1_700_000_000_000) for topic in topics
    )
    values: dict[str, object] = {
        "group": group,
        "subscriptions": subscriptions,
        "consume_type": ConsumeType.PASSIVELY,
        "message_model": MessageModel.CLUSTERING,
        **changes,
    }
    return ConsumerData(**values)  # type: ignore[arg-type]  # real fields


def held_count(broker: Broker) -> int:
    """Returns the number of held pulls."""
    assert broker._parts is not None
    return len(broker._parts.core.long_polls)


def records_of(answer: Command) -> list[Record]:
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return list(decode_records(answer.body))


def pull_response(answer: Command) -> PullResponse:
    return answer.decode(PullResponse)
