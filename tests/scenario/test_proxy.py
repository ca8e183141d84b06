"""A whole proxy on a port, in front of a real broker, with calls of grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from client_rig import Rig, running_rig
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tandemmq.client import Admin
from tandemmq.errors import ConfigError
from tandemmq.proxy.options import ProxyConfig, ProxyOptions
from tandemmq.proxy.proxy import Proxy
from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import PACKAGE, find_file, message_class
from tandemmq.proxy.statuses import Code
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from waits import until

METADATA = (("x-mq-client-id", "c1"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))
TOPIC: dict[str, Any] = {"name": "T"}
GROUP: dict[str, Any] = {"name": "G"}


def machine() -> Machine:
    return Machine(TcpNetwork(), RealDisk(), LoopClock(), SystemRandom())


@asynccontextmanager
async def running_proxy(namesrv: str, folder: Path, **changes: Any) -> AsyncIterator[Proxy]:
    options = ProxyOptions(
        listen_host="127.0.0.1", listen_port=0, name_servers=namesrv, store_path=folder / "proxy", **changes
    )
    failures: list[BaseException] = []
    proxy = Proxy(ProxyConfig(options=options), machine=machine(), on_fatal=failures.append)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
    assert failures == []


@asynccontextmanager
async def rig_with_proxy(folder: Path) -> AsyncIterator[tuple[Rig, Proxy]]:
    async with running_rig(folder) as rig, Admin(rig.namesrv) as admin:
        await rig.start_broker("broker-a")
        await admin.create_topic("T", queue_count=2)
        async with running_proxy(rig.namesrv, folder) as proxy:
            yield rig, proxy


def channel_to(proxy: Proxy) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel("{}:{}".format(*proxy.address))


async def ask(channel: grpc.aio.Channel, name: str, **fields: Any) -> Any:
    """Returns the answer of a unary rpc."""
    call = channel.unary_unary(SERVICE + name)
    request = message_class(f"{name}Request")(**fields)
    data = await call(request.SerializeToString(), metadata=METADATA, timeout=10)
    return message_class(f"{name}Response").FromString(data)


async def receive(channel: grpc.aio.Channel, timeout_s: float = 20.0) -> list[Any]:
    """Returns the elements of one receive."""
    request = message_class("ReceiveMessageRequest")(
        group=GROUP, message_queue={"topic": TOPIC}, batch_size=8, invisible_duration={"seconds": 30}
    )
    stream = channel.unary_stream(SERVICE + "ReceiveMessage")(
        request.SerializeToString(), metadata=METADATA, timeout=timeout_s
    )
    shape = message_class("ReceiveMessageResponse")
    return [shape.FromString(data) async for data in stream]


def test_every_rpc_of_the_service_is_served_under_its_name(tmp_path: Path) -> None:
    """Only telemetry is held but no poll: else the streams of 4,096 clients would leave no room for calls."""
    options = ProxyOptions(name_servers="127.0.0.1:9876", store_path=tmp_path)
    proxy = Proxy(ProxyConfig(options=options), machine=machine())
    served = {
        method.path.removeprefix(SERVICE): (method.is_held, method.is_poll)
        for method in proxy._methods()
        if method.path.startswith(SERVICE)
    }
    (data, *_) = find_file(symbol=f"{PACKAGE}.MessagingService")
    (service,) = FileDescriptorProto.FromString(data).service
    assert served == {
        method.name: (method.server_streaming, method.server_streaming and not method.client_streaming)
        for method in service.method
    }


async def test_a_message_is_sent_received_and_acknowledged(tmp_path: Path) -> None:
    async with rig_with_proxy(tmp_path) as (_, proxy), channel_to(proxy) as channel:
        route = await ask(channel, "QueryRoute", topic=TOPIC)
        assert route.status.code == Code.OK
        assert {queue.broker.endpoints.addresses[0].port for queue in route.message_queues} == {
            proxy.address[1]
        }
        message = {"topic": TOPIC, "body": b"one", "system_properties": {"message_id": "01ID", "tag": "t"}}
        sent = await ask(channel, "SendMessage", messages=[message])
        assert [entry.status.code for entry in sent.entries] == [Code.OK]
        status, *found, end = await receive(channel)
        assert status.status.code == Code.OK
        assert [one.message.body for one in found] == [b"one"]
        assert end.WhichOneof("content") == "delivery_timestamp"
        handle = found[0].message.system_properties.receipt_handle
        entry = {"message_id": "01ID", "receipt_handle": handle}
        acked = await ask(channel, "AckMessage", group=GROUP, topic=TOPIC, entries=[entry])
        assert acked.status.code == Code.OK


async def test_a_drained_proxy_fails_no_call(tmp_path: Path) -> None:
    async with rig_with_proxy(tmp_path) as (_, proxy), channel_to(proxy) as channel:
        await ask(channel, "QueryRoute", topic=TOPIC)
        telemetry = channel.stream_stream(SERVICE + "Telemetry")(metadata=METADATA)
        settings = {"publishing": {"topics": [TOPIC]}}
        command = message_class("TelemetryCommand")(settings=settings)
        await telemetry.write(command.SerializeToString())
        assert await telemetry.read() is not grpc.aio.EOF
        receiving = asyncio.ensure_future(receive(channel))
        await until(lambda: proxy._receives.held_count)
        async with asyncio.timeout(15):  # far below grpcShutdownTimeSeconds
            await proxy.drain()
        assert [one.status.code for one in (await receiving)[:1]] == [Code.MESSAGE_NOT_FOUND]
        assert await telemetry.code() == grpc.StatusCode.OK


def test_a_proxy_that_may_make_no_certificate_needs_one(tmp_path: Path) -> None:
    options = ProxyOptions(makes_certificate=False, store_path=tmp_path)
    with pytest.raises(ConfigError, match="tlsCertPath"):
        Proxy(ProxyConfig(options=options), machine=machine())
    Proxy(ProxyConfig(options=options, tls=TlsOptions(mode=TlsMode.DISABLED)), machine=machine())
    assert not any(tmp_path.iterdir())
