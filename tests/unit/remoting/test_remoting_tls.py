"""TLS on real sockets: the first byte decides; matching and other certificates; peers without TLS."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandemmq.errors import BrokerUnreachable, ConfigError
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import (
    ChannelLimits,
    ClientAuth,
    ConnectionOptions,
    ServerOptions,
    TlsClientOptions,
    TlsMode,
    TlsOptions,
    render_address,
)
from tandemmq.remoting.server import RemotingServer
from tandemmq.remoting.tls import TlsAcceptor, make_client_tls
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.units import MIB
from waits import PATIENCE_S, until

ECHO = 7


def make_certificate(folder: Path, name: str = "broker", password: str = "") -> tuple[Path, Path]:
    """Creates a self-signed certificate for 127.0.0.1 and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    folder = tmp_path_factory.mktemp("pki")
    make_certificate(folder)
    make_certificate(folder, "client")
    make_certificate(folder, "locked", "password")
    return folder


def server_tls(pki: Path, **changes: object) -> TlsOptions:
    values: dict[str, object] = {"cert_path": pki / "broker.pem", "key_path": pki / "broker.key", **changes}
    return TlsOptions(**values)  # type: ignore[arg-type]  # real fields


@asynccontextmanager
async def serving(
    options: TlsOptions, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, TlsAcceptor, RemotingServer]]:
    def echo(channel: Channel, command: Command) -> Command:
        return command.reply(body=bytes(command.body))

    door = TlsAcceptor(options, disk=RealDisk(), clock=LoopClock())
    door.load()
    limits = ServerOptions(limits=ChannelLimits(close_linger_s=0.5))
    server = RemotingServer({ECHO: echo}, network=TcpNetwork(), clock=LoopClock(), options=limits, tls=door)
    try:
        yield render_address(await server.start(host, 0)), door, server
    finally:
        await server.stop()


async def ask(address: str, options: TlsClientOptions | None, body: bytes = b"hello") -> bytes:
    client = RemotingClient(
        network=TcpNetwork(),
        clock=LoopClock(),
        tls=make_client_tls(options),
        options=ConnectionOptions(connect_timeout_s=PATIENCE_S),
    )
    try:
        return bytes((await client.request(address, Command.request(ECHO, body=body), PATIENCE_S)).body)
    finally:
        await client.close()


async def test_one_port_serves_both(pki: Path) -> None:
    trusting = TlsClientOptions(trust_path=pki / "broker.pem")
    async with serving(server_tls(pki)) as (address, _, server):
        assert await ask(address, None) == b"hello"
        assert await ask(address, trusting) == b"hello"
        large = bytes(range(256)) * 32 * 1024
        assert len(large) == 8 * MIB
        assert await ask(address, trusting, large) == large
        assert not server._undecided


async def test_many_requests_at_once_over_one_connection(pki: Path) -> None:
    async with serving(server_tls(pki)) as (address, _, _server):
        tls = make_client_tls(TlsClientOptions(verifies_peer=False))
        client = RemotingClient(network=TcpNetwork(), clock=LoopClock(), tls=tls)
        bodies = [b"%d" % number * 1_000 for number in range(300)]
        answers = await asyncio.gather(
            *(client.request(address, Command.request(ECHO, body=body), PATIENCE_S) for body in bodies)
        )
        assert [bytes(answer.body) for answer in answers] == bodies
        await client.close()


async def test_enforcing_closes_plain_connections(pki: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(server_tls(pki, mode=TlsMode.ENFORCING)) as (address, _, _server):
        assert await ask(address, TlsClientOptions(verifies_peer=False)) == b"hello"
        with pytest.raises(BrokerUnreachable):
            await ask(address, None)
        assert "tls.refused" in caplog.text


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
async def test_a_server_without_tls_closes_tls_connections(pki: Path, mode: TlsMode) -> None:
    async with serving(TlsOptions(mode=mode)) as (address, _, _server):
        assert await ask(address, None) == b"hello"
        with pytest.raises(BrokerUnreachable, match="TLS handshake"):
            await ask(address, TlsClientOptions(verifies_peer=False))


async def test_a_certificate_of_somebody_else_is_not_taken(
    pki: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(server_tls(pki)) as (address, _, _server):
        with pytest.raises(BrokerUnreachable, match="certificate verify failed"):
            await ask(address, TlsClientOptions(trust_path=pki / "client.pem"))
    # As good as another name, and it needs no resolving.
    async with serving(server_tls(pki), host="127.0.0.2") as (other_name, _, _server):
        named = TlsClientOptions(trust_path=pki / "broker.pem")
        with pytest.raises(BrokerUnreachable, match=r"mismatch|doesn't match"):
            await ask(other_name, named)
        unnamed = TlsClientOptions(trust_path=pki / "broker.pem", checks_name=False)
        assert await ask(other_name, unnamed) == b"hello"


async def test_clients_must_show_a_certificate_when_it_is_required(pki: Path) -> None:
    options = server_tls(pki, client_auth=ClientAuth.REQUIRE, trust_path=pki / "client.pem")
    shown = TlsClientOptions(
        verifies_peer=False, certificate_path=pki / "client.pem", key_path=pki / "client.key"
    )
    async with serving(options) as (address, _, _server):
        assert await ask(address, shown) == b"hello"
        with pytest.raises(BrokerUnreachable):
            await ask(address, TlsClientOptions(verifies_peer=False))


async def test_new_certificates_are_taken_over_and_bad_ones_are_not(
    pki: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(pki / "broker.pem", cert)
    shutil.copy(pki / "broker.key", key)
    first = TlsClientOptions(trust_path=pki / "broker.pem")
    second = TlsClientOptions(trust_path=pki / "client.pem")
    async with serving(TlsOptions(cert_path=cert, key_path=key)) as (address, door, _server):
        assert await ask(address, first) == b"hello"
        cert.write_text("nonsense")
        await door.reload_if_changed()
        assert "tls_certificates.refused" in caplog.text
        assert await ask(address, first) == b"hello"
        shutil.copy(pki / "client.pem", cert)
        shutil.copy(pki / "client.key", key)
        await door.reload_if_changed()
        assert await ask(address, second) == b"hello"


async def test_what_is_no_handshake_and_what_never_begins(pki: Path) -> None:
    async with serving(server_tls(pki)) as (address, _, server):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16garbage that is no ClientHello")
        assert len(await asyncio.wait_for(reader.read(), PATIENCE_S)) < 100  # an alert, then the end
        writer.close()
        _, silent = await asyncio.open_connection(host, int(port))
        await until(lambda: bool(server._undecided))
        silent.close()
        await until(lambda: not server._undecided)


def test_options_that_contradict_each_other(pki: Path) -> None:
    with pytest.raises(ConfigError, match="mode enforcing needs"):
        TlsOptions(mode=TlsMode.ENFORCING)
    with pytest.raises(ConfigError, match="belong together"):
        TlsOptions(cert_path=pki / "broker.pem")
    with pytest.raises(ConfigError, match="client_auth needs"):
        server_tls(pki, client_auth=ClientAuth.REQUIRE)
    locked = TlsOptions(cert_path=pki / "locked.pem", key_path=pki / "locked.key", key_password="wrong")
    with pytest.raises(ConfigError, match=r"locked\.key cannot be used"):
        TlsAcceptor(locked, disk=RealDisk(), clock=LoopClock()).load()
    right = TlsOptions(cert_path=pki / "locked.pem", key_path=pki / "locked.key", key_password="password")
    TlsAcceptor(right, disk=RealDisk(), clock=LoopClock()).load()
    assert "password" not in repr(right).replace("key_password", "")
