"""A name server notifies brokers of a new smallest id; brokers with access control authenticate it.

Source: spec nameserver 9, spec semantics 21.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from broker_rig import TIMEOUT_S

from tandemmq.broker.broker import Broker
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.register import RegisterBrokerBody, encode_register_broker_body
from tandemmq.protocol.bodies.route import decode_member_group
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.route import MemberGroupRequest, RegisterBrokerRequest
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from tandemmq.store import BrokerRole, StoreOptions
from waits import until

INNER = Credentials("inner", "inner-password")
NOTICE = int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)


def make_slave(root: Path, name_server: str) -> Broker:
    """Returns a broker that accepts only requests signed by `INNER`."""
    return Broker(
        BrokerOptions(
            listen_host="127.0.0.1",
            listen_port=0,
            fast_listen=False,
            broker_id=1,
            broker_name="broker-a",
            cluster_name="C",
            name_servers=(name_server,),
        ),
        StoreOptions(root=root / "store", role=BrokerRole.SLAVE, commit_log_file_bytes=1 << 20),
        machine=Machine(TcpNetwork(), RealDisk(), LoopClock(), SeededRandom(7)),
        access=AccessOptions(
            authentication_enabled=True, authorization_enabled=True, inner_credentials=INNER
        ),
    )


async def register_master(client: RemotingClient, name_server: str) -> Command:
    """Registers an unreachable master."""
    header = RegisterBrokerRequest(
        broker_name="broker-a",
        broker_address="127.0.0.1:1",
        cluster_name="C",
        ha_address="127.0.0.1:1",
        broker_id=0,
    )
    body = encode_register_broker_body(RegisterBrokerBody(filter_servers=()))
    command = Command.request(RequestCode.REGISTER_BROKER, header, body=body)
    return await client.request(name_server, command, TIMEOUT_S)


@pytest.mark.parametrize("credentials", [INNER, None])
async def test_broker_with_access_control_takes_signed_notices_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, credentials: Credentials | None
) -> None:
    caplog.set_level(logging.INFO, "tandemmq.audit")
    options = NameServerOptions(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_config_path=tmp_path / "kv.json",
        config_store_path=tmp_path / "ns.conf",
        notify_min_id_change=True,
    )
    server = NameServer(
        options, network=TcpNetwork(), disk=RealDisk(), clock=LoopClock(), credentials=credentials
    )
    name_server = render_address(await server.start())
    slave = make_slave(tmp_path, name_server)
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())

    async def is_registered() -> bool:
        header = MemberGroupRequest(cluster_name="C", broker_name="broker-a")
        command = Command.request(RequestCode.GET_BROKER_MEMBER_GROUP, header)
        answer = await client.request(name_server, command, TIMEOUT_S)
        return answer.code == ResponseCode.SUCCESS and 1 in decode_member_group(answer.body).addresses

    def verdicts() -> list[tuple[str, object]]:
        lines = [line for line in caplog.records if line.name == "tandemmq.audit"]
        return [(line.message, line.__dict__["who"]) for line in lines if line.__dict__["code"] == NOTICE]

    try:
        await slave.start()
        await until(is_registered)
        assert (await register_master(client, name_server)).code == ResponseCode.SUCCESS
        await until(verdicts)
        signed, unsigned = ("admin_request.allowed", "inner"), ("access.denied", "(anonymous)")
        assert verdicts() == [unsigned if credentials is None else signed]
    finally:
        await client.close()
        await slave.stop()
        await server.stop()
