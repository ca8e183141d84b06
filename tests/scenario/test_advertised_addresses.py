"""Addresses per network over TCP: clients outside use another listener of the name server, and another text
for the broker's address.
"""

from __future__ import annotations

from pathlib import Path

from broker_rig import running_broker

from tandemmq.api import broker_admin
from tandemmq.api.nameserver import query_cluster_info
from tandemmq.client import Admin, Message, Producer
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import until


async def test_clients_outside_use_the_address_of_their_network(tmp_path: Path) -> None:
    server = NameServer(
        NameServerOptions(
            listen_host="127.0.0.1",
            listen_port=0,
            network_listeners="public=0",
            kv_config_path=tmp_path / "kv",
            config_store_path=tmp_path / "namesrv.properties",
        ),
        network=TcpNetwork(),
        disk=RealDisk(),
        clock=LoopClock(),
    )
    inside = render_address(await server.start())
    outside = render_address(dict(server.network_addresses)["public"])
    remoting = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    try:
        async with (
            running_broker(tmp_path / "a", name_servers=(inside,)) as broker,
            running_broker(tmp_path / "b", name_servers=(inside,), broker_name="broker-b") as other,
        ):
            registered = render_address(broker.address)
            public = f"localhost:{broker.address[1]}"

            async def seen(name_server: str) -> str:
                info = await query_cluster_info(remoting, name_server)
                return info.brokers[broker.options.broker_name].addresses[0]

            assert await seen(outside) == registered  # it has no address there yet
            for one in (broker, other):
                change = "advertisedAddresses", f"public=localhost:{one.address[1]}"
                await broker_admin.change_broker_config(remoting, render_address(one.address), *change)

            async def is_announced() -> bool:
                return await seen(outside) == public

            await until(is_announced)
            assert await seen(inside) == registered
            async with Producer("outside", outside) as producer:
                queues = [MessageQueue("TBW102", name, 0) for name in ("broker-a", "broker-b")]
                sent = [
                    await producer.send(Message(topic="TBW102", body=queue.broker_name.encode()), queue=queue)
                    for queue in queues
                ]
            # The ids contain registered addresses, and both brokers have a message at that offset.
            async with Admin(outside) as admin:
                found = [await admin.find_by_id(one.message_id) for one in sent]
            assert [record and record.body for record in found] == [b"broker-a", b"broker-b"]
    finally:
        await remoting.close()
        await server.stop()
