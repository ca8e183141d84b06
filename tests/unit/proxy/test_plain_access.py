"""Access control of the proxy by the accounts of RocketMQ 4.x (spec semantics 21.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http2_client import Http2Client
from test_access import Proxy as UserProxy
from test_access import request, signed

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.broker.access.plain_rules import POLL_S
from tandemmq.errors import ConfigError
from tandemmq.proxy.callers import CLIENT_ID, Callers
from tandemmq.proxy.options import ProxyConfig, ProxyOptions
from tandemmq.proxy.plain_access import PlainAccess
from tandemmq.proxy.proxy import Proxy
from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.ports import Machine
from unit.proxy.calls import FakeCall
from waits import until

FOLDER = Path("/rocketmq/conf")
RULES = FOLDER / "plain_acl.yml"
SECRET = "12345678"
ACCOUNTS = """
globalWhiteRemoteAddresses:
- 10.9.9.*
accounts:
- accessKey: orders-app
  secretKey: "12345678"
  whiteRemoteAddress: 10.1.1.1
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [Orders=PUB|SUB, Reads=SUB]
  groupPerms: [billing=SUB]
- accessKey: operator
  secretKey: "12345678"
  admin: true
"""
FAR = "10.0.0.9"


class World:
    """The access control of one proxy, with its files in memory."""

    def __init__(self, text: str = ACCOUNTS) -> None:
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.disk.make_dirs(FOLDER)
        self.audit = AccessLog(self.clock)
        self.access = PlainAccess(
            FOLDER, cluster="DefaultCluster", disk=self.disk, clock=self.clock, audit=self.audit
        )
        self.write(text)
        self.access.files.load()

    def write(self, text: str, path: Path = RULES) -> None:
        self.disk.write_atomically(path, text.encode())

    async def outcome(
        self,
        name: str = "QueryRouteRequest",
        metadata: Mapping[str, str] | None = None,
        host: str = FAR,
        **fields: Any,
    ) -> str:
        """The access key of a request that may be served, the reason of a refusal."""
        if metadata is None:
            metadata = signed("orders-app", SECRET)
        fields = fields or {"topic": {"name": "Orders"}}
        try:
            return await self.access.check(metadata, (host, 5), request(name, **fields))
        except RpcRefused as error:
            return str(error) if error.code == Code.UNAUTHORIZED else f"{error.code.name}: {error}"


def send_to(topic: str) -> dict[str, Any]:
    return {"messages": [{"topic": {"name": topic}}]}


def receive_of(group: str, topic: str) -> dict[str, Any]:
    return {"group": {"name": group}, "message_queue": {"topic": {"name": topic}}}


async def test_a_caller_must_prove_an_account() -> None:
    world = World()
    assert await world.outcome() == "orders-app"
    assert "not signed" in await world.outcome(metadata={})
    assert "no account with access key nobody-app" in await world.outcome(
        metadata=signed("nobody-app", SECRET)
    )
    assert "signature is wrong" in await world.outcome(metadata=signed("orders-app", "other-secret"))
    headers = signed("orders-app", SECRET)
    del headers["x-mq-date-time"]
    assert "x-mq-date-time" in await world.outcome(metadata=headers)
    assert world.audit.denied_count == 4


async def test_topics_and_groups_need_their_permissions() -> None:
    world = World()
    assert await world.outcome("SendMessageRequest", **send_to("Orders")) == "orders-app"
    assert "orders-app may not Pub Topic:Reads" in await world.outcome(
        "SendMessageRequest", **send_to("Reads")
    )
    assert "may not Pub Topic:Logs" in await world.outcome("SendMessageRequest", **send_to("Logs"))
    assert await world.outcome("ReceiveMessageRequest", **receive_of("billing", "Reads")) == "orders-app"
    assert "Group:audit" in await world.outcome("ReceiveMessageRequest", **receive_of("audit", "Reads"))
    assert "Topic:Logs" in await world.outcome("ReceiveMessageRequest", **receive_of("billing", "Logs"))
    retries = receive_of("billing", "%RETRY%billing")
    assert await world.outcome("ReceiveMessageRequest", **retries) == "orders-app"
    assert await world.outcome("HeartbeatRequest", client_type=1) == "orders-app"


async def test_only_an_administrator_may_do_everything() -> None:
    world = World(ACCOUNTS.replace("defaultTopicPerm: DENY", "defaultTopicPerm: PUB"))
    operator = signed("operator", SECRET)
    for topic in ("Logs", "SCHEDULE_TOPIC_XXXX"):
        assert await world.outcome("SendMessageRequest", operator, **send_to(topic)) == "operator"
    assert await world.outcome("SendMessageRequest", **send_to("Logs")) == "orders-app"
    assert "may not" in await world.outcome("SendMessageRequest", **send_to("SCHEDULE_TOPIC_XXXX"))


async def test_white_addresses_are_those_of_the_connection() -> None:
    world = World()
    unsigned: dict[str, str] = {"x-forwarded-for": "10.9.9.1", "x-mq-client-id": "c1"}
    assert await world.outcome(metadata=unsigned, host="10.9.9.1") == ""
    assert "not signed" in await world.outcome(metadata=unsigned)
    wrong = signed("orders-app", "other-secret")
    assert await world.outcome("SendMessageRequest", wrong, "10.1.1.1", **send_to("Logs")) == "orders-app"
    assert "wrong" in await world.outcome("SendMessageRequest", wrong, "10.1.1.2", **send_to("Orders"))


async def test_a_changed_file_takes_effect_and_an_invalid_one_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    watching = asyncio.ensure_future(world.access.files.watch())
    assert await world.outcome(metadata={}, host="10.9.9.1") == ""

    async def becomes(expected: str, **asked: Any) -> None:
        async def is_it() -> bool:
            await world.clock.pass_time(POLL_S)
            return expected in await world.outcome(**asked)

        await until(is_it)

    world.write(ACCOUNTS.replace("10.9.9.*", "10.9.8.1").replace("Orders=PUB|SUB", "Orders=SUB"))
    await becomes("may not Pub", name="SendMessageRequest", **send_to("Orders"))
    assert "not signed" in await world.outcome(metadata={}, host="10.9.9.1")
    world.write("accounts: [{accessKey: short}]")
    await until(lambda: world.clock.advance(POLL_S) or "access_rules.refused" in caplog.text)
    assert await world.outcome("ReceiveMessageRequest", **receive_of("billing", "Orders")) == "orders-app"
    more = "accounts: [{accessKey: later-app, secretKey: '12345678', defaultTopicPerm: PUB}]"
    world.write(ACCOUNTS)
    world.write(more, FOLDER / "acl" / "team" / "more.yml")
    await becomes("later-app", metadata=signed("later-app", SECRET))
    watching.cancel()


def test_a_proxy_does_not_start_with_other_rules_than_the_intended_ones() -> None:
    for text in ("accounts: [{accessKey: short}]", "accounts: 5", "{"):
        with pytest.raises(ConfigError):
            World(text)
    disk, clock = MemoryDisk(), ManualClock()
    with pytest.raises(ConfigError, match="aclEnable=true needs rules"):
        PlainAccess(FOLDER, cluster="C", disk=disk, clock=clock, audit=AccessLog(clock)).files.load()


async def test_a_request_must_pass_both_kinds_of_rules() -> None:
    users = UserProxy()
    world = World(ACCOUNTS.replace("orders-app", "alice-app"))
    users.broker.users["alice-app"] = users.broker.users["alice"]
    callers = Callers([world.access.check, users.access.check])

    async def outcome(topic: str, name: str = "alice-app") -> str:
        asked = request("SendMessageRequest", **send_to(topic))
        try:
            call = FakeCall(metadata={**signed(name, SECRET), CLIENT_ID: "c"}, peer=(FAR, 5))
            return (await callers.admit(call, asked)).access_key
        except RpcRefused as error:
            return str(error)

    assert "may not Pub Topic:Orders" in await outcome("Orders")  # has no policy
    users.allow(("Topic:*", "Pub", "Allow"))
    users.broker.acls["User:alice-app"] = users.broker.acls["User:alice"]
    users.clock.advance(61)
    assert await outcome("Orders") == "alice-app"
    assert "may not Pub Topic:Logs" in await outcome("Logs")  # has no permission in the file
    assert "no account" in await outcome("Orders", "alice")
    await users.tasks.close()


@asynccontextmanager
async def running(disk: MemoryDisk) -> AsyncIterator[tuple[Proxy, Http2Client, ManualClock]]:
    clock = ManualClock()
    network = MemoryNetwork(clock)
    options = ProxyOptions(listen_port=0, acl_enable=True, acl_directory=FOLDER, makes_certificate=False)
    proxy = Proxy(
        ProxyConfig(options=options, tls=TlsOptions(mode=TlsMode.DISABLED)),
        machine=Machine(network, disk, clock, SeededRandom(1)),
    )
    client = await Http2Client.connect(network, await proxy.start())
    yield proxy, client, clock
    await proxy.stop()


async def test_a_whole_proxy_applies_the_files(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disk = MemoryDisk()
    disk.make_dirs(FOLDER)
    disk.write_atomically(RULES, ACCOUNTS.encode())
    async with running(disk) as (_, client, _):
        for metadata, code in (
            ({}, Code.UNAUTHORIZED),
            (signed("orders-app", SECRET), Code.UNRECOGNIZED_CLIENT_TYPE),
        ):
            asked = request("HeartbeatRequest", client_type=1).SerializeToString()
            headers = [("x-mq-client-id", "c1"), *metadata.items()]
            call = client.call(SERVICE + "Heartbeat", asked, headers=headers)
            await client.ends(call)
            answer = message_class("HeartbeatResponse").FromString(client.data[call][5:])
            assert answer.status.code == code
    assert "access_rules.loaded" in caplog.text
