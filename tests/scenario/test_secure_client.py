"""The Python client, signed and over TLS; a slave that copies from a master with access control."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tandemmq.broker.broker import Broker
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.client import (
    Admin,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    StartFrom,
    TlsClientOptions,
)
from tandemmq.errors import BrokerUnreachable, ConfigError, NotPermitted
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.options import TlsMode, TlsOptions, render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from tandemmq.store import BrokerRole, StoreOptions
from waits import PATIENCE_S, until

ACCESS = AccessOptions(
    authentication_enabled=True,
    authorization_enabled=True,
    first_user=Credentials("root", "root-password"),
    inner_credentials=Credentials("inner", "inner-password"),
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsOptions:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    folder = tmp_path_factory.mktemp("pki")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-nodes", "-days", "2", "-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return TlsOptions(
        mode=TlsMode.ENFORCING, cert_path=cert, key_path=key, client_trust_path=cert, verifies_server=True
    )


def make_broker(root: Path, namesrv: str, tls: TlsOptions, broker_id: int) -> Broker:
    return Broker(
        BrokerOptions(listen_host="127.0.0.1", listen_port=0, name_servers=(namesrv,), broker_id=broker_id),
        StoreOptions(
            root=root / f"store-{broker_id}",
            role=BrokerRole.SLAVE if broker_id else BrokerRole.ASYNC_MASTER,
            commit_log_file_bytes=1 << 20,
            consume_queue_file_bytes=20_000,
        ),
        machine=Machine(TcpNetwork(), RealDisk(), LoopClock(), SeededRandom(broker_id)),
        access=ACCESS,
        tls=tls,
    )


async def test_everything_signed_and_encrypted(tmp_path: Path, tls: TlsOptions) -> None:
    options = NameServerOptions(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_config_path=tmp_path / "kv.json",
        config_store_path=tmp_path / "ns.conf",
    )
    name_server = NameServer(options, network=TcpNetwork(), disk=RealDisk(), clock=LoopClock(), tls=tls)
    namesrv = render_address(await name_server.start())
    master, slave = (make_broker(tmp_path, namesrv, tls, broker_id) for broker_id in (0, 1))
    client = ClientOptions(
        access_key="root", secret_key="root-password", tls=TlsClientOptions(trust_path=tls.cert_path)
    )
    try:
        await master.start()
        await slave.start()
        async with Admin(namesrv, options=client) as admin:
            await admin.create_topic("Secret", queue_count=2)
        async with Producer("PG", namesrv, options=ProducerOptions(client=client)) as producer:
            for number in range(20):
                await producer.send(Message("Secret", b"%d" % number))
        reading = ConsumerOptions(client=client, start_from=StartFrom.FIRST)
        got: set[bytes] = set()
        consumer = Consumer("CG", namesrv, options=reading)
        consumer.subscribe("Secret")
        async with asyncio.timeout(PATIENCE_S), consumer:
            while len(got) < 20:
                got |= {message.body for message in await consumer.poll()}
        # The slave requests tables from its master, signed with the inner credentials and over TLS.
        await until(lambda: slave._tables.topics.get("Secret") is not None, "the topic is copied")
        await until(
            lambda: (
                slave.store is not None
                and master.store is not None
                and slave.store.appended.value == master.store.appended.value
            ),
            "the log is copied",
        )
        unsigned = ProducerOptions(client=ClientOptions(tls=client.tls))
        async with Producer("PG", namesrv, options=unsigned) as producer:
            with pytest.raises(NotPermitted, match="not signed"):
                await producer.send(Message("Secret", b"x"))
        async with Admin(namesrv) as plain:
            with pytest.raises(BrokerUnreachable):
                await plain.topics()
    finally:
        await slave.stop()
        await master.stop()
        await name_server.stop()


def test_credentials_belong_together() -> None:
    with pytest.raises(ConfigError, match="must be given together"):
        ClientOptions(access_key="root")
    assert "hidden" not in repr(ClientOptions(access_key="root", secret_key="hidden"))
