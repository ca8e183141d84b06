"""The gRPC server with grpcio as the peer, over loopback: each kind of call, TLS, bounds, drain."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from http2_client import Http2Client

from tandemmq.proxy.certificate import ensure_certificate
from tandemmq.proxy.grpc_limits import GrpcLimits
from tandemmq.proxy.grpc_server import ALPN, GrpcServer
from tandemmq.proxy.rpc import GrpcCall, GrpcFailure, GrpcStatus, Method
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.remoting.tls import TlsAcceptor
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.telemetry import events
from tandemmq.units import MIB
from waits import PATIENCE_S, until

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


class Service:
    """Test methods. `calls` are those that run, `outcomes` the ends of held ones."""

    def __init__(self) -> None:
        self.calls: dict[GrpcCall, None] = {}
        self.outcomes: list[str] = []
        self.sent_count = 0
        self.release = asyncio.Event()

    def methods(self) -> list[Method]:
        return [
            Method("/t.T/Echo", self.echo),
            Method("/t.T/Count", self.count, is_held=True),
            Method("/t.T/Chat", self.chat, is_held=True),
            Method("/t.T/Hold", self.hold, is_held=True),
            Method("/t.T/Fail", self.fail),
            Method("/t.T/Break", self.break_down),
            Method("/t.T/Headers", self.headers),
        ]

    async def echo(self, call: GrpcCall) -> None:
        await call.send(await call.receive() or b"")

    async def count(self, call: GrpcCall) -> None:
        count, size = map(int, (await call.receive() or b"").split())
        for _ in range(count):
            await call.send(bytes(size))
            self.sent_count += 1

    async def chat(self, call: GrpcCall) -> None:
        await call.start()
        while (message := await call.receive()) is not None:
            await call.send(message.upper())

    async def hold(self, call: GrpcCall) -> None:
        self.calls[call] = None
        try:
            await call.receive()
            await self.release.wait()
            await call.send(b"released")
            self.outcomes.append("released")
        except asyncio.CancelledError:
            self.outcomes.append("cancelled")
            raise
        finally:
            del self.calls[call]

    async def fail(self, call: GrpcCall) -> None:
        raise GrpcFailure(GrpcStatus.INVALID_ARGUMENT, "100 % wrong: größer\n")

    async def break_down(self, call: GrpcCall) -> None:
        raise RuntimeError("a bug")

    async def headers(self, call: GrpcCall) -> None:
        await call.send(repr(sorted(call.metadata.items())).encode())


@asynccontextmanager
async def serving(
    limits: GrpcLimits | None = None, tls: TlsAcceptor | None = None
) -> AsyncIterator[tuple[str, GrpcServer, Service]]:
    service = Service()
    server = GrpcServer(TcpNetwork(), LoopClock(), methods=service.methods(), limits=limits, tls=tls)
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield f"{host}:{port}", server, service
    finally:
        await server.stop()
        assert (server.shared.call_count, server.shared.held_count) == (0, 0)
        assert server.shared.request_bytes == 0
        assert server.connection_count == 0


@asynccontextmanager
async def dialling(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        yield channel


async def echo(channel: grpc.aio.Channel, message: bytes = b"hello", **options: Any) -> bytes:
    answer: bytes = await channel.unary_unary("/t.T/Echo")(message, timeout=PATIENCE_S, **options)
    return answer


async def test_a_unary_call_is_answered() -> None:
    async with serving() as (address, _, _), dialling(address) as channel:
        assert await echo(channel) == b"hello"
        assert await echo(channel, b"") == b""


async def test_a_large_message_passes_in_both_directions() -> None:
    message = bytes(range(256)) * (6 * MIB // 256)
    async with serving() as (address, _, _), dialling(address) as channel:
        assert await echo(channel, message) == message


async def test_many_concurrent_calls_are_answered() -> None:
    async with serving() as (address, _, _), dialling(address) as channel:
        messages = [b"%d" % number for number in range(1500)]
        assert await asyncio.gather(*(echo(channel, message) for message in messages)) == messages


async def test_a_slow_reader_stops_the_handler_of_its_stream_only() -> None:
    async with serving() as (address, _, service), dialling(address) as channel:
        stream = channel.unary_stream("/t.T/Count")(b"2000 65536", timeout=PATIENCE_S)
        assert len(await stream.read()) == 65536
        assert await echo(channel) == b"hello"
        assert service.sent_count < 1000
        count = 1
        while (message := await stream.read()) is not grpc.aio.EOF:
            assert len(message) == 65536
            count += 1
        assert count == 2000


async def test_messages_pass_in_both_directions_of_one_call() -> None:
    async with serving() as (address, _, _), dialling(address) as channel:
        chat = channel.stream_stream("/t.T/Chat")(timeout=PATIENCE_S)
        await chat.initial_metadata()  # sent before any message
        for word in (b"one", b"two", b"three"):
            await chat.write(word)
            assert await chat.read() == word.upper()
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF
        assert await chat.code() == grpc.StatusCode.OK


async def test_metadata_is_passed_without_binary_values() -> None:
    metadata = (("x-mq-client-id", "a"), ("x-mq-client-id", "b"), ("x-bin", b"\0"))
    async with serving() as (address, _, _), dialling(address) as channel:
        answer = await channel.unary_unary("/t.T/Headers")(b"", metadata=metadata, timeout=PATIENCE_S)
        assert b"('x-mq-client-id', 'b')" in answer
        assert b"x-bin" not in answer


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        ("Fail", grpc.StatusCode.INVALID_ARGUMENT, "100 % wrong: größer\n"),
        ("Break", grpc.StatusCode.INTERNAL, "an internal error: see the log of the proxy"),
        ("Other", grpc.StatusCode.UNIMPLEMENTED, "unknown method /t.T/Other"),
    ],
)
async def test_an_error_becomes_a_status(method: str, code: grpc.StatusCode, text: str) -> None:
    async with serving() as (address, _, _), dialling(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/t.T/{method}")(b"x", timeout=PATIENCE_S)
        assert (caught.value.code(), caught.value.details()) == (code, text)
        assert await echo(channel) == b"hello"


async def test_a_deadline_cancels_the_handler() -> None:
    async with serving() as (address, _, service), dialling(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/Hold")(b"", timeout=0.3)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: service.outcomes == ["cancelled"])


async def test_a_cancelled_call_cancels_the_handler() -> None:
    async with serving() as (address, server, service), dialling(address) as channel:
        call = channel.unary_unary("/t.T/Hold")(b"", timeout=PATIENCE_S)
        await until(lambda: service.calls)
        call.cancel()
        await until(lambda: service.outcomes == ["cancelled"])
        await until(lambda: not server.shared.held_count)
        assert await echo(channel) == b"hello"


async def test_a_lost_connection_cancels_its_handlers() -> None:
    async with serving() as (address, server, service):
        async with dialling(address) as channel:
            calls = [channel.unary_unary("/t.T/Hold")(b"", timeout=PATIENCE_S) for _ in range(3)]
            await until(lambda: len(service.calls) == 3)
            del calls  # else they keep the connection
        await until(lambda: service.outcomes == ["cancelled"] * 3)
        await until(lambda: not server.connection_count)


async def test_drain_fails_no_call() -> None:
    async with serving() as (address, server, service), dialling(address) as channel:
        held = [channel.unary_unary("/t.T/Hold")(b"", timeout=PATIENCE_S) for _ in range(5)]
        await until(lambda: len(service.calls) == 5)
        draining = asyncio.ensure_future(server.drain(PATIENCE_S))
        await until(lambda: server._listener is None)
        service.release.set()
        assert await asyncio.gather(*held) == [b"released"] * 5
        await draining
        assert server.connection_count == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/Echo")(b"", timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_drain_ends_with_its_grace() -> None:
    async with serving() as (address, server, service), dialling(address) as channel:
        held = channel.unary_unary("/t.T/Hold")(b"", timeout=PATIENCE_S)
        await until(lambda: service.calls)
        await server.drain(0.1)
        assert service.calls
        await server.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await held
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert service.outcomes == ["cancelled"]


async def test_a_message_above_the_limit_ends_its_call() -> None:
    limits = GrpcLimits(message_bytes_max=1000)
    async with serving(limits) as (address, _, _), dialling(address) as channel:
        for size in (1001, 5 * MIB):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo(channel, bytes(size))
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await echo(channel, bytes(1000)) == bytes(1000)


async def test_a_compressed_message_is_refused() -> None:
    async with serving() as (address, _, _), dialling(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo(channel, bytes(10_000), compression=grpc.Compression.Gzip)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert await echo(channel) == b"hello"


@pytest.mark.parametrize(
    "limits", [GrpcLimits(request_bytes_max=1000), GrpcLimits(calls_max=1, held_calls_max=1)]
)
async def test_an_overloaded_server_refuses_calls(limits: GrpcLimits) -> None:
    async with serving(limits) as (address, _, service), dialling(address) as channel:
        held = channel.unary_unary("/t.T/Hold")(bytes(600), timeout=PATIENCE_S)
        await until(lambda: service.calls)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/Hold")(bytes(600), timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        service.release.set()
        assert await held == b"released"
        assert await echo(channel) == b"hello"


async def test_drain_of_one_of_two_servers_fails_no_call_of_a_busy_client() -> None:
    """Calls are sent all the time, so some cross the GOAWAY."""
    policy = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    async with serving() as (one, first, _), serving() as (other, _, _):
        options = (*OPTIONS, ("grpc.service_config", policy))
        async with grpc.aio.insecure_channel(f"ipv4:{one},{other}", options=options) as channel:
            await asyncio.gather(*(echo(channel, wait_for_ready=True) for _ in range(20)))
            await until(lambda: first.connection_count)
            drained = asyncio.Event()

            async def call_until_drained() -> int:
                count = 0
                while not drained.is_set():
                    assert await echo(channel) == b"hello"
                    count += 1
                return count

            callers = [asyncio.ensure_future(call_until_drained()) for _ in range(10)]
            await first.drain(PATIENCE_S)
            drained.set()
            assert sum(await asyncio.gather(*callers)) > 0
            assert first.connection_count == 0


def acceptor(folder: Path, mode: TlsMode = TlsMode.PERMISSIVE) -> tuple[TlsAcceptor, bytes]:
    """Returns the TLS with a self-signed certificate, and the certificate."""
    path = ensure_certificate(folder, disk=RealDisk(), clock=LoopClock())
    options = TlsOptions(mode=mode, cert_path=path, key_path=path)
    made = TlsAcceptor(options, disk=RealDisk(), clock=LoopClock(), protocols=ALPN)
    made.load()
    content = path.read_bytes()
    return made, content[content.index(b"-----BEGIN CERTIFICATE") :]


async def test_tls_and_plaintext_share_the_port(tmp_path: Path) -> None:
    tls, certificate = acceptor(tmp_path)
    credentials = grpc.ssl_channel_credentials(certificate)
    message = bytes(range(256)) * (5 * MIB // 256)
    async with serving(tls=tls) as (address, server, _):
        port = address.rpartition(":")[2]
        async with (
            dialling(address) as plain,
            grpc.aio.secure_channel(f"localhost:{port}", credentials, options=OPTIONS) as secure,
        ):
            assert await asyncio.gather(echo(plain), echo(secure)) == [b"hello"] * 2
            assert await echo(secure, message) == message
            assert server.connection_count == 2


@pytest.mark.parametrize("protocols", [[], ["http/1.1"], ["grpc-exp", "h2"]])
async def test_tls_with_any_offer_of_protocols_is_accepted(tmp_path: Path, protocols: list[str]) -> None:
    tls, _ = acceptor(tmp_path)
    async with serving(tls=tls) as (address, _, _):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if protocols:
            context.set_alpn_protocols(protocols)
        host, port = address.split(":")
        client = Http2Client()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: client, host, int(port), ssl=context)
        chosen = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        assert chosen == ("h2" if "h2" in protocols else None)
        client.begin()
        assert await client.ends(client.call("/t.T/Echo", b"x")) == (0, "")
        transport.close()
        await until(lambda: client.is_lost)


async def test_a_server_that_demands_tls_refuses_plaintext(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls, certificate = acceptor(tmp_path, TlsMode.ENFORCING)
    async with serving(tls=tls) as (address, _, _):
        client = await Http2Client.connect(TcpNetwork(), ("127.0.0.1", int(address.rpartition(":")[2])))
        await until(lambda: client.is_lost)
        credentials = grpc.ssl_channel_credentials(certificate)
        async with grpc.aio.secure_channel(address, credentials, options=OPTIONS) as channel:
            assert await echo(channel) == b"hello"
    assert events.TLS_REFUSED in caplog.messages


async def test_a_silent_connection_and_a_stuck_handshake_end(tmp_path: Path) -> None:
    tls, _ = acceptor(tmp_path)
    async with serving(GrpcLimits(preface_s=0.2), tls) as (address, server, _):
        target = ("127.0.0.1", int(address.rpartition(":")[2]))
        silent = await Http2Client.connect(TcpNetwork(), target, starts=False)
        await until(lambda: silent.is_lost)
        assert server.connection_count == 0


async def test_the_log_of_a_failed_handler_names_its_rpc(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with serving() as (address, _, _), dialling(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/t.T/Break")(b"x", timeout=PATIENCE_S)
    (record,) = [one for one in caplog.records if one.message == events.GRPC_CALL_FAILED]
    assert record.__dict__["rpc"] == "/t.T/Break"
    assert record.exc_info is not None
