"""The doctor reports ports that serve unauthenticated clients of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ports import free_port
from tandemmq.broker.broker import Broker
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.controller.controller import Controller
from tandemmq.controller.options import ControllerConfig, ControllerOptions
from tandemmq.manage.tools import Target
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from tandemmq.shell.doctor import Checkup, _judge_ports
from tandemmq.store import StoreOptions

EVERYWHERE, HERE = "0.0.0.0", "127.0.0.1"


async def found(tmp_path: Path, host: str, *, is_guarded: bool) -> list[str]:
    """Returns the kinds of open ports of a name server, a broker and a controller that listen on `host`."""
    port = free_port()
    machine = {"network": TcpNetwork(), "disk": RealDisk(), "clock": LoopClock()}
    access = AccessOptions(authentication_enabled=True, first_user=Credentials("root", "password"))
    names = NameServer(
        NameServerOptions(
            listen_host=host,
            listen_port=0,
            kv_config_path=tmp_path / "kv.json",
            config_store_path=tmp_path / "ns.properties",
        ),
        **machine,  # type: ignore[arg-type]  # as its parts
    )
    broker = Broker(
        BrokerOptions(listen_host=host, listen_port=0),
        StoreOptions(root=tmp_path / "store", commit_log_file_bytes=1 << 20, key_index_enable=False),
        machine=Machine(chance=SeededRandom(1), **machine),  # type: ignore[arg-type]  # the same
        access=access if is_guarded else AccessOptions(),
    )
    controller = Controller(
        ControllerConfig(
            options=ControllerOptions(
                peers=f"n0-127.0.0.1:{port}",
                listen_host=host,
                store_path=tmp_path / "controller",
                config_store_path=tmp_path / "controller.properties",
                shared_secret="sixteen letters!!" if is_guarded else "",
            )
        ),
        chance=SeededRandom(1),
        **machine,  # type: ignore[arg-type]  # the same
    )
    try:
        names_port = (await names.start())[1]
        await broker.start()
        await controller.start()
        settings = {"enableControllerMode": "true", "controllerAddr": f"127.0.0.1:{port}"}
        target = Target("c", "b", 0, render_address((HERE, broker.address[1])))
        one = Checkup(target, {}, settings, HaStatus())
        lines = await _judge_ports([render_address((HERE, names_port))], [one])
        assert all(line.level == "warning" and line.fix for line in lines) or len(lines) == 1
        return [line.text.partition(" 127.")[0].rpartition("the ")[2] for line in lines]
    finally:
        await controller.stop()
        await broker.stop()
        await names.stop()


async def test_open_ports_are_told(tmp_path: Path) -> None:
    every = ["name server", "broker", "controller"]
    assert await found(tmp_path / "open", EVERYWHERE, is_guarded=False) == every
    assert await found(tmp_path / "guarded", EVERYWHERE, is_guarded=True) == ["name server"]
    (well,) = await found(tmp_path / "here", HERE, is_guarded=False)
    assert well == "no port serves unauthenticated clients of other machines"


async def test_servers_say_at_their_start_that_they_are_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = [
        "nameserver.open_to_everybody",
        "replication.open_to_everybody",
        "broker.open_to_everybody",
        "controller.open_to_everybody",
    ]
    for name, host, is_guarded, told in (
        ("open", EVERYWHERE, False, opened),
        ("guarded", EVERYWHERE, True, opened[:2]),
        ("here", HERE, False, []),
    ):
        caplog.clear()
        await found(tmp_path / name, host, is_guarded=is_guarded)
        assert [line for line in caplog.messages if line.endswith("open_to_everybody")] == told
