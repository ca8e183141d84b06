"""Two masters of one name that did not know each other at their starts: only one continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_rig import Peer
from replica_group import Group

from ports import free_port
from tandemmq.api.nameserver import query_members
from tandemmq.broker import registration
from tandemmq.broker.broker import Broker
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import until

SELDOM = {"register_period_ms": 60_000}
"""The longest period: a decisive registration must have another cause."""
PATIENCE_S = 30.0
"""Less than a period, so that the next one cannot make up for a registration that did not happen."""


@asynccontextmanager
async def name_server(root: Path, port: int) -> AsyncIterator[None]:
    server = NameServer(
        NameServerOptions(
            listen_host="127.0.0.1",
            listen_port=port,
            kv_config_path=root / "kv.json",
            config_store_path=root / "ns.conf",
        ),
        network=TcpNetwork(),
        disk=RealDisk(),
        clock=LoopClock(),
    )
    await server.start()
    try:
        yield
    finally:
        await server.stop()


async def test_of_two_masters_that_met_an_empty_name_server_the_later_one_yields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master comes back with its old file while the name server is restarted."""
    monkeypatch.setattr(registration, "RETRY_S", 0.2)
    port = free_port()
    group = Group(tmp_path, f"127.0.0.1:{port}")
    async with name_server(tmp_path, port):
        first = await group.start(0, ports=(free_port(), 0), broker=SELDOM)
        async with Peer(first) as peer:
            await peer.send_ok("T", b"kept")
    second = await group.start(0, directory="second", broker=SELDOM)
    both = (first, second)
    may_register = first._claim.may_register
    is_second_known = asyncio.Event()
    assert first._registration is not None

    async def last(name_server: str) -> bool:
        """Delays the first broker's registration until the second one is known, so that the second finds no
        other master.
        """
        await is_second_known.wait()
        return await may_register(name_server)

    first._registration._may_register = last
    async with name_server(tmp_path, port), Peer(first) as to_first, Peer(second) as to_second:

        async def members() -> dict[int, str]:
            return await query_members(
                to_first.client, group.name_server, "DefaultCluster", "group", timeout_s=3
            )

        async def is_second_alone() -> bool:
            return await members() == {0: render_address(second.address)}

        await until(is_second_alone, "the routes lead to the second")
        is_second_known.set()
        await until(lambda: second._claim.yielded_to, "the later one has found the first", PATIENCE_S)
        assert second._claim.yielded_to == render_address(first.address)
        refused = await to_second.send("T", b"refused")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "is the master of group" in (refused.remark or "")
        assert (await to_second.send("%RETRY%G", b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE

        async def is_first_alone() -> bool:
            return await members() == {0: render_address(first.address)}

        await until(is_first_alone, "the routes lead to the first", PATIENCE_S)
        assert not first._claim.yielded_to
        await to_first.send_ok("T", b"goes on")
        assert await first._claim.other_master([render_address(second.address)]) is None
        assert await second._claim.other_master() == render_address(first.address)
    assert "second_master.found" in caplog.text
    assert "second_master.yielded" in caplog.text
    await asyncio.gather(*map(Broker.stop, both))


async def test_a_master_does_not_yield_to_an_earlier_address_of_its_own(tmp_path: Path) -> None:
    """A name server lists the old address for two minutes after the host died."""
    port = free_port()
    async with name_server(tmp_path, port):
        group = Group(tmp_path, f"127.0.0.1:{port}")
        master = await group.start(0, ports=(free_port(), 0), broker=SELDOM)
        own = render_address(master.address)
        earlier = own.replace("127.0.0.1", "localhost")
        claim = master._claim
        claim.own_address = lambda: "z" + own  # the greater address, which yields
        for _ in range(2):
            await claim._compare(earlier)
            assert not claim.yielded_to
        await group.stop(0)
